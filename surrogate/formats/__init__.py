"""Readers of other programs' files. Each module of this package that declares a ``FORMAT`` is a reader.

`FORMATS` maps the name on the command line to the format. It is built on first access.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

from surrogate.features import InputError, nearest, read_toml, registry, require_regular
from surrogate.features.gpu import gpu as gpu_by_name

if TYPE_CHECKING:
    from surrogate.formats.imported import Imported


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `seer import`, with its help. Its value is one of ``choices``, a text, a file or a count."""

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    takes: Literal["text", "file", "count"] = "text"


COMMON = {name: Option(**row) for name, row in read_toml(__file__, "options.toml").items()}
"""Options that several readers share, by parameter name. A `Format` explains the options of one reader."""
_ALWAYS = ("gpu", "gpus", "progress")
"""Parameters of a reader that are not options of its own: the command line sets them for every reader."""


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format: its name on the command line, one line of help, and its reader.

    The keyword parameters of ``reader`` are the options of the format. A parameter without a default is required. The
    docstring of the reader's module explains how to get the files. ``extra_options`` explains further options.
    """

    name: str
    summary: str
    reader: Callable[..., "Imported"]
    extra_options: Mapping[str, Option] = field(default_factory=dict)
    finds_files: bool = False
    """True if the reader accepts folders, or searches for the files when no path is given."""

    @property
    def parameters(self) -> dict[str, bool]:
        """Name of each keyword parameter of the reader → whether it is required."""
        needed: dict[str, bool] = {}
        for parameter in inspect.signature(self.reader).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                needed[parameter.name] = parameter.default is parameter.empty
            elif parameter.kind is parameter.VAR_KEYWORD:
                (keywords,) = get_args(parameter.annotation)  # Unpack of a TypedDict: its keys are optional
                needed |= dict.fromkeys(inspect.get_annotations(keywords), False)
        return needed

    @property
    def options(self) -> dict[str, Option]:
        """The reader's options by parameter name, without the GPU. An unexplained option has an empty help text."""
        explained = {**COMMON, **self.extra_options}
        return {name: explained.get(name, Option("")) for name in self.parameters if name not in _ALWAYS}

    def read(self, paths: Sequence[str | Path], **options: object) -> "Imported":
        """Return the content of ``paths``. A note says so if the name of the ``gpu`` fits several boards.

        Raises `InputError` for an unknown option, a missing required option, an unknown GPU, or a wrong file.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for name in sorted(given.keys() - self.parameters):
            accepted = sorted(self.parameters.keys() - {"progress"})
            flags = ", ".join(map(_flag, accepted))
            raise InputError(f"{self.name} takes no {_flag(name)}; known: {flags}{nearest(name, accepted)}")
        if not paths and not self.finds_files:
            raise InputError(f"no {self.name} file given; give at least one path")
        for path in () if self.finds_files else paths:
            if Path(path).is_dir():
                raise InputError(f"{path} is a folder; name the files in it, as in {path}/*")
            require_regular(path)
            if not Path(path).is_file():
                remedy = f"`seer import {self.name} --how` says how to get one"
                raise InputError(f"{path}: cannot be read (no such file); {remedy}")
        note = None
        if "gpu" in given:
            note = registry().ambiguity_note(str(given["gpu"]))
            given["gpu"] = gpu_by_name(str(given["gpu"])).name
        try:
            for name in sorted(name for name, is_needed in self.parameters.items() if is_needed and name not in given):
                where = "".join(f"{path}: " for path in paths[:1])
                raise InputError(f"{where}{self.name} files do not name the {name}; give {_flag(name)}")
            imported = self.reader(paths, **given)
            return replace(imported, notes=(note, *imported.notes)) if note else imported
        except InputError as error:
            from surrogate.formats.recognise import explained

            line = explained(str(error), paths, f"import {self.name}")
            if line == str(error):
                raise
            raise InputError(line) from None

    def how_to_get(self) -> str:
        """Return the docstring of the reader's module, which explains how to get the files."""
        return inspect.cleandoc(importlib.import_module(self.reader.__module__).__doc__ or "")


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


@cache
def _discovered() -> Mapping[str, Format]:
    """Return the formats that the modules of this package declare, in the order of the modules' names.

    Raises `TypeError` if two modules declare formats of the same name.
    """
    names = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
    declared = [getattr(importlib.import_module(name), "FORMAT", None) for name in names]
    formats = {each.name: each for each in declared if isinstance(each, Format)}
    if len(formats) < sum(isinstance(each, Format) for each in declared):
        raise TypeError("two modules of surrogate/formats declare a FORMAT of the same name; rename one")
    return MappingProxyType(formats)


def __getattr__(name: str) -> Mapping[str, Format]:
    """Return `FORMATS`. This imports every reader, and pandas with them."""
    if name != "FORMATS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _discovered()
