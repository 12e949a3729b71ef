"""Opening a foreign file: plain, .gz or .bz2 by its first bytes, with a bound on what it unpacks to."""

import bz2
import codecs
import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypedDict, Unpack

from surrogate.features.errors import InputError, require_regular

Paths = Sequence[str | Path]
Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all) of the file at hand."""

DEFAULT_MAX_BYTES = 256 << 20
"""Most bytes that one file may unpack to; a find-db of 500,000 rows has 70 MB."""
_MAX_LINE_CHARACTERS = 16 << 20
_PIECE_BYTES = 1 << 20


class Limits(TypedDict, total=False):
    """What every reader hands on to `chunks`."""

    max_bytes: int
    progress: Progress | None


def chunks(
    path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> Iterator[bytes]:
    """The unpacked bytes of ``path`` in pieces of at most 1 MiB.

    Raises `InputError` for a file that is missing, damaged, or unpacks to more than ``max_bytes``.
    """
    path, seen = Path(path), 0
    require_regular(path)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a file") from None
    with raw:
        total = os.fstat(raw.fileno()).st_size
        start = raw.peek(3)[:3]
        unpacked = raw
        if start[:2] == b"\x1f\x8b":
            unpacked = gzip.GzipFile(fileobj=raw)
        elif start == b"BZh":
            unpacked = bz2.BZ2File(raw)
        while True:
            try:
                piece = unpacked.read(_PIECE_BYTES)
            except (OSError, EOFError, zlib.error, ValueError) as error:
                raise InputError(f"{path}: damaged archive ({error}); fetch or pack it again") from None
            if not piece:
                return
            seen += len(piece)
            if seen > max_bytes:
                raise InputError(f"{path}: unpacks to over {max_bytes:,} bytes; raise --max-bytes")
            if progress:
                progress(raw.tell(), total)
            yield piece


def read_bytes(path: str | Path, **limits: Unpack[Limits]) -> bytes:
    """All unpacked bytes of ``path``; errors as in `chunks`."""
    return b"".join(chunks(path, **limits))


def read_lines(path: str | Path, **limits: Unpack[Limits]) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its end) of ``path``, never holding more than one line and one piece.

    UTF-8, or UTF-16 with its mark (as a Windows shell redirects); what does not decode becomes the replacement
    character, since names of kernels may hold anything.
    """
    number, rest = 0, ""
    pieces = chunks(path, **limits)
    first = next(pieces, b"")
    encoding = "utf-16" if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    for text in codecs.iterdecode(chain([first], pieces), encoding, "replace"):
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            number += 1
            yield number, line.rstrip("\r")
        if len(rest) > _MAX_LINE_CHARACTERS:
            raise InputError(f"{path}, line {number + 1}: over 16 million characters; this is no text file")
    if rest:
        yield number + 1, rest.rstrip("\r")
