"""The one error a user's input can cause, the nearest-match hint that goes with a name, and the check of a user's file.

A file must be a regular one: a pipe without a writer waits for ever, a device may never end.
"""

import difflib
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from inspect import isfunction
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

LONGEST_MESSAGE = 1000
"""Characters of a message; a damaged file may hold a name of megabytes, and messages repeat names."""
_END = 250
_LONGEST_NAME, _MAX_NAMES = 200, 2000
"""Bounds within which a name is compared: a damaged table may have a million columns."""
_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--([a-z]+(?:-[a-z]+)*)\b")
_PARAMETERS = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "dim": "dims",
    "training": "training=True",
    "csv": "to_frame()",
    "json": "to_dict()",
}
"""Option → what it is in Python, where that is not its name with underscores."""


def as_parameters(text: str) -> str:
    """``text`` with Python's parameters (``data_parallel``) in the place of options; commands in backquotes stay."""
    return _OPTION.sub(lambda m: _PARAMETERS.get(m[1], m[1].replace("-", "_")) if m[1] else m[0], text)


class InputError(ValueError):
    """Bad input: one line that says what came, the rule, and the remedy. The command line prints it and exits 2.

    A message is one line of printable characters whatever the input holds: others are escaped, as in ``\\n``, and from
    the middle of one longer than `LONGEST_MESSAGE` characters a piece is left out (its end tells the remedy). Options
    that it names are Python's parameters, unless the command line runs.
    """

    names_options = False

    def __init__(self, message: str = "") -> None:
        message = message if self.names_options else as_parameters(message)
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE - _END - 3]} … {message[-_END:]}"
        if not message.isprintable():
            message = "".join(c if c.isprintable() or c == " " else ascii(c)[1:-1] for c in message)
        super().__init__(message)


FIRST_LINES = {".csv": 2, ".tsv": 2, ".jsonl": 1}
"""Ending of a text file → the line that its first row stands in; rows of other tables are counted from 1."""


def row_number(source: object, position: int) -> int:
    """The number of the row at ``position`` (from 0) for a person who looks into the table ``source``."""
    return position + FIRST_LINES.get(PurePath(str(source)).suffix.lower(), 1)


class RowError(InputError):
    """Bad input in the row at ``position`` (from 0) of the table ``source``, as ``mm.csv: line 17: …``."""

    def __init__(self, source: object, position: int, text: str) -> None:
        word = "line" if PurePath(str(source)).suffix.lower() in FIRST_LINES else "row"
        super().__init__(f"{source}: {word} {row_number(source, position)}: {text}")
        self.position = position
        self.text = text


@contextmanager
def naming_options() -> Iterator[None]:
    """Within it, errors name the command line's options."""
    before = InputError.names_options
    InputError.names_options = True
    try:
        yield
    finally:
        InputError.names_options = before


def nearest(name: str, names: Iterable[str], count: int = 3, cutoff: float = 0.5) -> str:
    """``; did you mean …?`` with the closest of ``names``, else those that begin with ``name``; nothing when none is as
    close as ``cutoff`` (0 to 1)."""
    if len(name) > _LONGEST_NAME:
        return ""
    by_lower = {candidate.lower(): candidate for candidate in islice(names, _MAX_NAMES)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=cutoff)
    close = close or [each for each in by_lower if name and each.startswith(name.lower())][:count]
    return f"; did you mean {' or '.join(by_lower[c] for c in close)}?" if close else ""


def check_choice(what: str, value: object, choices: Collection[str]) -> None:
    """Raise an `InputError` that lists the ``choices`` of ``what`` if ``value`` is not among them."""
    if value not in list(choices):  # a list, since a value may not be hashable
        raise InputError(f"{what} {value!r} is unknown; known: {', '.join(choices)}{nearest(str(value), choices)}")


STREAM_FOLDERS = (Path("/dev/fd"), Path("/proc/self/fd"))
STDIN = Path("/dev/stdin")
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def require_regular(path: str | Path, *, streams: bool = False) -> None:
    """Raise `InputError` where ``path`` is a pipe, a socket or a device; with ``streams`` this process's own may pass.

    Those are ``/dev/stdin`` and what a shell passes for ``<(…)``: they have a writer. A missing file and a folder are
    left to the reader, which says what it wants in their place.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    except ValueError:
        raise InputError(f"{str(path)!r} is no file's name; give the path of a file") from None
    kind = _KINDS.get(stat.S_IFMT(mode), "")
    if kind and not (streams and kind == "a pipe" and (path == STDIN or path.parent in STREAM_FOLDERS)):
        raise InputError(f"{path}: is {kind}, no regular file; save what it gives to a file first")


def read_bounded(path: str | Path, max_bytes: int, *, streams: bool = False) -> bytes:
    """The content of a regular file (see `require_regular`) of at most ``max_bytes``.

    Raises `InputError` for a larger one, and the `OSError` of opening or reading it.
    """
    require_regular(path, streams=streams)
    with Path(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size <= max_bytes:
            content = file.read(max_bytes + 1)  # a file can grow, and a stream tells no size
            if len(content) <= max_bytes:
                return content
    raise InputError(f"{path}: larger than {max_bytes:,} bytes, the most that such a file may have; check the path")


def read_table(name: str) -> dict[str, Any]:
    """The content of a TOML table of this package, by its path below it."""
    import tomllib  # `seer --help` reads none

    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


@contextmanager
def one_line_errors(source: str) -> Iterator[None]:
    """What the user's own code raises becomes an `InputError` of one line: ``source``, the error's notes, the error."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        text = text if len(text) <= 200 else f"{text[:199]}…"
        where = ": ".join((source, *getattr(error, "__notes__", ())))
        raise InputError(f"{where}: {type(error).__name__}: {text or 'no reason given'}") from None


def imported_callable(source: str, contract: str) -> Callable[..., object]:
    """The callable that ``module:callable`` names, or a file ``x.py:callable``; modules of the current folder count.

    Of ``x.py`` alone it is the only public function that the file defines. The user's module is imported on purpose, as
    ``python -m`` would: its code runs. Raises `InputError`, with ``contract`` as the remedy, where there is none or
    importing it fails.
    """
    module, _, name = source.partition(":")
    folder = Path.cwd()
    if module.endswith(".py"):
        folder = Path(module).resolve().parent
        module = Path(module).stem
    if not module or not (name or source.endswith(".py")):
        raise InputError(f"{source!r} names no function; write module:callable; {contract}")
    here = str(folder)
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        with one_line_errors(source):
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise InputError(f"{source}: no module {module} is in this folder or on PYTHONPATH; {contract}")
            target: object = importlib.import_module(module)
            parts = (name or _only_function(source, target)).split(".")
            if not hasattr(target, parts[0]):
                listed = ", ".join(_functions(target)) or "no function"
                raise InputError(f"{source}: {module} has no {parts[0]}; name one that it defines: {listed}")
            for part in parts:
                target = getattr(target, part)
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    if not callable(target):
        raise InputError(f"{source}: is a {type(target).__name__}, not callable; {contract}")
    return target


def _only_function(source: str, module: object) -> str:
    """The name of the one public function that a module defines. Raises `InputError` for none, and for several."""
    names = _functions(module)
    if len(names) != 1:
        listed = f"has {', '.join(names)}" if names else "defines no function"
        raise InputError(f"{source}: {listed}; name one of its functions, as in {source}:{(names or ['build'])[0]}")
    return names[0]


def _functions(module: object) -> list[str]:
    """Names of the public functions that a module defines."""
    return [
        name
        for name, value in vars(module).items()
        if isfunction(value) and value.__module__ == vars(module)["__name__"] and not name.startswith("_")
    ]
