"""Recognise a file by its first bytes, after the reader that it was given to has refused it."""

import codecs
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from surrogate.features import InputError, read_toml
from surrogate.formats.foreign_file import chunks

_FIRST_BYTES = 1 << 16


class FileKind(NamedTuple):
    """A row of the table of this module, which explains the columns."""

    name: str
    start: re.Pattern[str]
    readers: tuple[str, ...]
    remedy: str


@cache
def file_kinds() -> tuple[FileKind, ...]:
    """Return the kinds of files in the order in which they are tried."""
    kinds = []
    for row in read_toml(__file__)["file"]:
        start = re.compile(row["start"], re.DOTALL | re.MULTILINE | re.ASCII)
        remedy = row.get("remedy") or f"give it to `seer {row['readers'][0]}`"
        kinds.append(FileKind(row["is"], start, tuple(row.get("readers", ())), remedy))
    return tuple(kinds)


def recognised(path: str | Path) -> FileKind | None:
    """Return the first kind that the first bytes of a file fit; None if none fits, or if the file cannot be read."""
    try:
        first = next(chunks(path), b"")[:_FIRST_BYTES]
    except InputError:
        return None
    is_utf_16 = first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = first.removeprefix(codecs.BOM_UTF8).decode("utf-16" if is_utf_16 else "latin-1", "replace")
    return next((kind for kind in file_kinds() if kind.start.search(text)), None)


def explained(line: str, paths: Iterable[str | Path], *readers: str) -> str:
    """Return the line of a refusal, or a line that names what the refused file is and what reads it.

    Parameters
    ----------
    line : str
        The refusal. It has the path of the refused file.
    paths : iterable of str or Path
        The files that were given; other words are skipped.
    *readers : str
        The names of the command that refused the file. A file that it should read keeps its own refusal.

    Returns
    -------
    str
        One line.
    """
    for path in paths:
        kind = recognised(path) if str(path) in line else None
        if kind and not {*kind.readers} & {*readers}:
            return f"{path}: this is {kind.name}; {kind.remedy}"
    return line
