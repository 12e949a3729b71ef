"""Opening a foreign file: plain, .gz or .bz2 by its first bytes, with a bound on what it unpacks to."""

import bz2
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from surrogate.features.errors import InputError
from surrogate.features.regular_file import require_regular
from surrogate.formats.imported import Progress

DEFAULT_MAX_BYTES = 2 << 30
"""Most bytes that one file may unpack to; a find-db of 500,000 rows has 70 MB."""
FREE_BYTES = 128 << 20
MAX_EXPANSION = 40
"""Unless the caller sets a limit, a packed file may unpack beyond `FREE_BYTES` only to so many times its own size;
databases and benchmark files are packed to a tenth or a twentieth."""
MAX_LINE_BYTES = 16 << 20
_CHUNK = 1 << 20


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
        most = max_bytes
        if max_bytes == DEFAULT_MAX_BYTES and (start[:2] == b"\x1f\x8b" or start == b"BZh"):
            most = min(max_bytes, max(FREE_BYTES, MAX_EXPANSION * total))
        packed = (
            gzip.GzipFile(fileobj=raw)
            if start[:2] == b"\x1f\x8b"
            else bz2.BZ2File(raw)
            if start == b"BZh"
            else raw
        )
        while True:
            try:
                piece = packed.read(_CHUNK)
            except (OSError, EOFError, zlib.error, ValueError) as error:
                raise InputError(f"{path}: damaged archive ({error}); fetch or pack it again") from None
            if not piece:
                return
            seen += len(piece)
            if seen > most:
                raise InputError(
                    f"{path}: unpacks to more than {most:,} bytes; raise the limit with --max-bytes if"
                    " you trust it"
                )
            if progress:
                progress(raw.tell(), total)
            yield piece


def read_bytes(
    path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> bytes:
    """All unpacked bytes of ``path``; errors as in `chunks`."""
    return b"".join(chunks(path, max_bytes=max_bytes, progress=progress))


def read_lines(
    path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its end) of ``path``, never holding more than one line and one piece.

    UTF-8 with or without a mark, or UTF-16 with its mark (as a Windows shell redirects); what does not decode
    becomes the replacement character, since names of kernels may hold anything.
    """
    number, rest, encoding, wide = 0, b"", "", bytearray()
    for piece in chunks(path, max_bytes=max_bytes, progress=progress):
        if not encoding:
            encoding = _encoding(piece)
        if encoding == "utf-16":
            wide += piece  # its line ends are two bytes wide, so such (small) files are split when whole
            continue
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            number += 1
            yield number, _text(line, encoding if number == 1 else "utf-8")
        if len(rest) > MAX_LINE_BYTES:
            raise InputError(
                f"{path}, line {number + 1}: longer than {MAX_LINE_BYTES:,} bytes; this is no text file"
            )
    if encoding == "utf-16":
        yield from enumerate(wide.decode("utf-16", "replace").splitlines(), 1)
    elif rest:
        yield number + 1, _text(rest, encoding if number == 0 else "utf-8")


def _encoding(start: bytes) -> str:
    return "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _text(line: bytes, encoding: str) -> str:
    return line.decode(encoding, "replace").rstrip("\r")
