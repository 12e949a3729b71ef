"""Files of other programs: one reader per foreign format. Each module here that declares a ``FORMAT`` is a reader.

`FORMATS`, name on the command line → format, is made of these modules when it is first asked for.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

from surrogate.features.errors import InputError, nearest, require_regular

if TYPE_CHECKING:
    from surrogate.formats.imported import Imported


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `seer import`: its help; it takes one of ``choices``, a text (``metavar``), a file or a count."""

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    takes: Literal["text", "file", "count"] = "text"


_NUMBERING = "How SEER's files number algorithms 4–7: cuDNN's enum (default) or the README's."
_PROBLEMS = "For profiler logs: SEER's text list of the problems that were run, with the algorithm as ninth number."
COMMON: Mapping[str, Option] = {
    "numbering": Option(_NUMBERING, choices=("enum", "readme")),
    "library_version": Option("The library's version, where the files do not say it.", "V"),
    "problems": Option(_PROBLEMS, takes="file"),
    "kernel": Option("With --problems: names of the main kernels, a regular expression.", "PATTERN"),
    "name": Option("Of tuners' files that hold several kernels: the one to import.", "KERNEL"),
    "max_bytes": Option("Most bytes that one file may unpack to (default 256 MiB).", takes="count"),
}
"""Options that several readers share, by the parameter's name; a reader's own stand in its `Format`."""
_ALWAYS = ("gpu", "gpus", "progress")
"""Parameters of a reader that the command line gives in its own way: ``--gpu`` once, or several times."""


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format: its name on the command line, one line of help on what its files hold, and what reads them.

    The keyword parameters of ``reader`` are its options, and it needs those without a default; the docstring of its
    module tells how to get its files. Options that no other reader has are explained in ``own``.
    """

    name: str
    summary: str
    reader: Callable[..., "Imported"]
    own: Mapping[str, Option] = field(default_factory=dict)
    finds_files: bool = False
    """True where the reader takes folders, and finds the files itself where no path is given."""

    @property
    def parameters(self) -> dict[str, bool]:
        """Name of each keyword parameter of the reader → whether it must be given."""
        needed: dict[str, bool] = {}
        for parameter in inspect.signature(self.reader).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                needed[parameter.name] = parameter.default is parameter.empty
            elif parameter.kind is parameter.VAR_KEYWORD:
                (keywords,) = get_args(parameter.annotation)  # Unpack of a TypedDict, whose keys may be left out
                needed |= dict.fromkeys(inspect.get_annotations(keywords), False)
        return needed

    @property
    def options(self) -> dict[str, Option]:
        """The reader's options by the parameter's name, but for the GPU; one without help where nobody explains it."""
        explained = {**COMMON, **self.own}
        return {name: explained.get(name, Option("")) for name in self.parameters if name not in _ALWAYS}

    def read(self, paths: Sequence[str | Path], **options: object) -> "Imported":
        """The content of ``paths``.

        Raises `InputError` for an option that the format lacks or needs, or a wrong file.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for name in sorted(given.keys() - self.parameters):
            known = sorted(self.parameters.keys() - {"progress"})
            flags = ", ".join(map(_flag, known))
            raise InputError(f"{self.name} takes no {_flag(name)}; known: {flags}{nearest(name, known)}")
        for name in sorted(name for name, is_needed in self.parameters.items() if is_needed and name not in given):
            raise InputError(f"its files do not tell the {name}; give {_flag(name)}")
        if not paths and not self.finds_files:
            raise InputError(f"no {self.name} file given; give at least one path")
        for path in () if self.finds_files else paths:
            if Path(path).is_dir():
                raise InputError(f"{path}: a folder; name the files in it, as in {path}/*")
            require_regular(path)
            if not Path(path).is_file():
                remedy = f"`seer import {self.name} --how` says how to get one"
                raise InputError(f"{path}: cannot be read (no such file); {remedy}")
        return self.reader(paths, **given)

    def how_to_get(self) -> str:
        """How a user obtains the files, in sentences (the documentation of the reader's module)."""
        return inspect.cleandoc(importlib.import_module(self.reader.__module__).__doc__ or "")


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


@cache
def _discovered() -> Mapping[str, Format]:
    """The formats of this package's modules, in the order of the modules' names.

    Raises `TypeError` where two modules have one name for theirs.
    """
    names = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
    declared = [getattr(importlib.import_module(name), "FORMAT", None) for name in names]
    formats = {each.name: each for each in declared if isinstance(each, Format)}
    if len(formats) < sum(isinstance(each, Format) for each in declared):
        raise TypeError("two modules of surrogate/formats declare a FORMAT of one name")
    return MappingProxyType(formats)


def __getattr__(name: str) -> Mapping[str, Format]:
    """`FORMATS`, for which the readers, and so pandas, are imported."""
    if name != "FORMATS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _discovered()
