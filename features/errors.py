"""Errors that a user's input can cause: the error class, hints at the nearest names, and checks of files.

A file must be regular: a pipe without a writer waits for ever, and a device may never end.
"""

import difflib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, ClassVar

MAX_MESSAGE = 1000
"""Maximum characters of a message. Messages repeat names, and a damaged file may hold a name of megabytes."""
_MESSAGE_END = 250
_MAX_NAME_LENGTH, _MAX_NAMES = 200, 2000
"""Bounds within which names are compared. A damaged table may have a million columns."""
_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[\w-]++)[ \t]*+\.[ \t]*+){50}""")
_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--([a-z]+(?:-[a-z]+)*)\b")
_FORMS = {"training": "training=True", "csv": "to_frame()", "json": "to_dict()"}
_PARAMETERS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "dim": "dims", **_FORMS}
"""Option → its Python parameter, if that is not the option's name with underscores."""


def as_parameters(text: str) -> str:
    """Return ``text`` with each option replaced by its Python parameter (``data_parallel``); commands in backquotes
    stay."""
    names = {**_PARAMETERS, **(InputError.parameters or {})}
    return _OPTION.sub(lambda m: names.get(m[1], m[1].replace("-", "_")) if m[1] else m[0], text)


def printable(text: str, kept: str = "") -> str:
    """Return ``text`` with control characters, line ends and invisible characters escaped, as in ``\\x1b``.

    Texts from files may hold commands for a terminal. The characters in ``kept`` stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


class InputError(ValueError):
    """A user's input is wrong. The message is one line: the input, the rule, and the remedy.

    The command line prints the message and exits with 2. A message names Python's parameters, or the options if the
    command line runs (see `naming_options`). It is one line of printable characters: other characters are escaped, as
    in ``\\n``. A message longer than `MAX_MESSAGE` loses its middle, since its end states the remedy.

    Parameters
    ----------
    message : str
        One line: the input, the rule, the remedy.
    """

    parameters: ClassVar[Mapping[str, str] | None] = {}
    """Option without ``--`` → its parameter, in addition to `_PARAMETERS`; None if messages name options."""

    def __init__(self, message: str = "") -> None:
        message = message if self.parameters is None else as_parameters(message)
        if len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE - _MESSAGE_END - 3]} … {message[-_MESSAGE_END:]}"
        super().__init__(printable(message))


def refusal(name: str, /, **fields: object) -> InputError:
    """Return the error with a text of `refusals.toml` and the text's ``fields``."""
    return InputError(read_toml(__file__, "refusals.toml")[name].format(**fields))


FIRST_LINES = {".csv": 2, ".tsv": 2, ".jsonl": 1}
"""Ending of a text file → the line that holds its first row. Rows of other tables are counted from 1."""


def row_number(source: object, position: int) -> int:
    """Return the number by which a person finds the row at ``position`` (from 0) in the table ``source``."""
    return position + FIRST_LINES.get(PurePath(str(source)).suffix.lower(), 1)


class TooLargeError(InputError):
    """A problem has more work than the package counts exactly."""


class UnknownGpuError(InputError):
    """A name fits no registered GPU, or several. An unreadable file in ``SEER_GPUS`` is another error."""


class RowError(InputError):
    """A row of a table is wrong: the message begins with the table and the row, as in ``mm.csv: line 17: …``."""

    def __init__(self, source: object, position: int, text: str) -> None:
        word = "line" if PurePath(str(source)).suffix.lower() in FIRST_LINES else "row"
        super().__init__(f"{source}: {word} {row_number(source, position)}: {text}")
        self.position = position
        self.text = text


@contextmanager
def naming(parameters: Mapping[str, str] | None) -> Iterator[None]:
    """Let errors name these parameters inside the context, or options for None, which inner contexts keep."""
    before = InputError.parameters
    InputError.parameters = None if before is None else parameters
    try:
        yield
    finally:
        InputError.parameters = before


naming_options = partial(naming, None)
"""Return a context in which errors name the command line's options."""


def nearest(name: str, names: Iterable[str], count: int = 3, cutoff: float = 0.5) -> str:
    """Return ``; did you mean …?`` with the closest of ``names``, or an empty text.

    ``cutoff`` (0 to 1) is the minimum similarity. If no name is that similar, names that begin with ``name`` are
    suggested.
    """
    if len(name) > _MAX_NAME_LENGTH:
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
    """Raise `InputError` if ``path`` is a pipe, a socket or a device.

    With ``streams`` this process's own streams pass: ``/dev/stdin``, and the path that a shell passes for ``<(…)``.
    They have a writer. Missing files and folders pass, too: the reader that opens them reports the error.
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
        raise InputError(f"{path}: is {kind}, no regular file; save its content to a file first")


def read_bounded(path: str | Path, max_bytes: int, *, streams: bool = False) -> bytes:
    """Return the content of a regular file (see `require_regular`) of at most ``max_bytes``.

    Raises `InputError` for a larger file, and the `OSError` of opening or reading it.
    """
    require_regular(path, streams=streams)
    with Path(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size <= max_bytes:
            content = file.read(max_bytes + 1)  # a file can grow, and a stream has no size
            if len(content) <= max_bytes:
                return content
    raise InputError(f"{path}: larger than {max_bytes:,} bytes, the maximum for such a file; check the path")


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a regular file; none if it cannot be read, which its reader reports."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(count)
    return b""


MAX_JSON_NODES = 4_000_000
"""Maximum objects and lists of a JSON document. An empty one has two bytes in a file and 64 in memory."""


def check_node_count(content: bytes | bytearray) -> None:
    """Raise `ValueError` if JSON documents have over `MAX_JSON_NODES` objects and lists."""
    if content.count(b"{") + content.count(b"[") > MAX_JSON_NODES:
        raise ValueError(f"over {MAX_JSON_NODES:,} objects and lists")


def parsed_json(content: bytes, errors: str = "strict") -> Any:
    """Return the value of a user's JSON document; ``errors`` is the treatment of undecodable bytes.

    Raises `json.JSONDecodeError` or `RecursionError` if it is none, `ValueError` for over `MAX_JSON_NODES` nodes.
    """
    import json

    check_node_count(content)
    return json.loads(content.decode(json.detect_encoding(content), errors))


def parsed_toml(content: bytes) -> dict[str, Any]:
    """Return the tables of a user's TOML file; a byte-order mark is skipped.

    Raises `ValueError` for other text, and for keys whose parts would take gigabytes of nested tables.
    """
    import tomllib

    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8; save it as UTF-8") from None
    if _LONG_KEY.search(text):
        raise ValueError("a key has over 50 parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None


def read_toml(module: str, name: str = "") -> dict[str, Any]:
    """Return the content of a TOML table that ships beside a module.

    ``module`` is the module's ``__file__``. ``name`` is the path of the table beside it; by default the table has the
    name of the module.
    """
    import tomllib  # imported late: `seer --help` reads no table

    path = Path(module).parent / name if name else Path(module).with_suffix(".toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@contextmanager
def one_line_errors(source: str) -> Iterator[None]:
    """Turn every exception of the user's own code into an `InputError` of one line: ``source``, notes and the error."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        text = text if len(text) <= 200 else f"{text[:199]}…"
        where = ": ".join((source, *getattr(error, "__notes__", ())))
        raise InputError(f"{where}: {type(error).__name__}: {text or 'no reason given'}") from None
