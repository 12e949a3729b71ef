"""Opening a foreign file: plain, .gz or .bz2 by its first bytes, tar or zip, with a bound on what it unpacks to.

Everything in the package that unpacks does it here.
"""

import bz2
import codecs
import gzip
import io
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Self, TypedDict, Unpack

from surrogate.dataset.files import Progress
from surrogate.features.errors import InputError, require_regular

Paths = Sequence[str | Path]

DEFAULT_MAX_BYTES = 256 << 20
"""Most bytes that one file may unpack to; a find-db of 500,000 rows has 70 MB."""
FREE_BYTES = 256 << 20
MAX_FOLD = 100
"""Up to so many bytes a file may unpack to however small it is; beyond them, to so many times its own size."""
MAX_MEMBERS = 10_000
"""Members of an archive."""
_MAX_LINE_CHARACTERS = 16 << 20
_PIECE_BYTES = 1 << 20


class ReadLimits(TypedDict, total=False):
    """What every reader hands on to `chunks`."""

    max_bytes: int
    progress: Progress | None


class Allowance:
    """The bytes that one packed file may still unpack to: all of ``max_bytes``, but not many times its own size.

    Traces compress 10 to 30 times, tables of text up to 100 times; a file of blanks does 1,000 times.
    """

    def __init__(self, source: str | Path, packed_bytes: int, max_bytes: int) -> None:
        maximum = max(FREE_BYTES, MAX_FOLD * packed_bytes)
        self.left = min(max_bytes, maximum)
        remedy = "raise --max-bytes" if max_bytes <= maximum else f"{MAX_FOLD} times its own size; unpack it first"
        self._refusal = f"{source}: unpacks to over {self.left:,} bytes; {remedy}"

    def take(self, count: int) -> None:
        """Count bytes that were unpacked, or will be. Raises `InputError` where they are too many."""
        self.left -= count
        if self.left < 0:
            raise InputError(self._refusal)


def chunks(
    path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> Iterator[bytes]:
    """The unpacked bytes of ``path`` in pieces of at most 1 MiB; ``progress`` is told the bytes read and those in all.

    Raises `InputError` for a file that is missing, damaged, or unpacks to more than its `Allowance`.
    """
    path = Path(path)
    require_regular(path)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a file") from None
    with raw:
        total = os.fstat(raw.fileno()).st_size
        allowance = Allowance(path, total, max_bytes)
        start = raw.peek(3)[:3]
        stream = raw
        if start[:2] == b"\x1f\x8b":
            stream = gzip.GzipFile(fileobj=raw)
        elif start == b"BZh":
            stream = bz2.BZ2File(raw)
        while True:
            try:
                piece = stream.read(_PIECE_BYTES)
            except (OSError, EOFError, zlib.error, ValueError) as error:
                raise InputError(f"{path}: damaged archive ({error}); fetch or pack it again") from None
            if not piece:
                return
            allowance.take(len(piece))
            if progress:
                progress(raw.tell(), total, path.name)
            yield piece


def untar(path: str | Path, folder: Path, endings: tuple[str, ...], *, max_bytes: int) -> list[tuple[str, Path]]:
    """The regular files of such names in a tar archive, packed or not: their names there, and the files in ``folder``.

    Those get names of their own, since names in an archive may lead anywhere; links are left out. Raises `InputError`
    for an archive that is damaged, has more than `MAX_MEMBERS`, or unpacks to more than its `Allowance` (as a header
    says, before it is unpacked).
    """
    files: list[tuple[str, Path]] = []
    pieces = chunks(path, max_bytes=max_bytes)
    try:
        allowance = Allowance(path, Path(path).stat().st_size, max_bytes)
        with tarfile.open(fileobj=_Pieces(pieces), mode="r|", tarinfo=_TarInfo) as archive:  # pyright: ignore
            for number, member in enumerate(archive):
                if number == MAX_MEMBERS:
                    raise InputError(f"{path}: more than {MAX_MEMBERS:,} members; unpack it first")
                allowance.take(member.size)
                wanted = member.isfile() and not member.issparse() and member.name.endswith(endings)
                if wanted and (content := archive.extractfile(member)):
                    with NamedTemporaryFile(dir=folder, delete=False) as file:
                        shutil.copyfileobj(content, file)
                    files.append((member.name, Path(file.name)))
    except InputError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: is no archive, or a damaged one ({error}); fetch or pack it again") from None
    return files


class _TarInfo(tarfile.TarInfo):
    """A header; those that hold long names are read into memory whole, whatever length they declare."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """As of `tarfile.TarInfo`."""
        header = super().frombuf(buf, encoding, errors)
        if header.size > _PIECE_BYTES and header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header


class _Pieces:
    """An iterator as the file that `tarfile` wants for a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int) -> bytes:
        """The next piece, whatever ``size`` is."""
        return next(self._pieces, b"")


def unpacked(archive: zipfile.ZipFile, name: str, allowance: Allowance) -> bytes:
    """The content of a member of a zip archive, unpacked piece by piece, since what it declares may be untrue.

    Raises `InputError` where it takes more than the ``allowance``, and what `zipfile` does for a damaged one.
    """
    content = io.BytesIO()
    with archive.open(name) as file:
        while piece := file.read(_PIECE_BYTES):
            allowance.take(len(piece))
            content.write(piece)
    return content.getvalue()


def read_bytes(path: str | Path, **limits: Unpack[ReadLimits]) -> bytes:
    """All unpacked bytes of ``path``; errors as in `chunks`."""
    content = io.BytesIO()  # gives its content away without a copy
    content.writelines(chunks(path, **limits))
    return content.getvalue()


def read_lines(path: str | Path, **limits: Unpack[ReadLimits]) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its end) of ``path``, never holding more than one line and one piece.

    UTF-8, or UTF-16 with its mark (as a Windows shell redirects); what does not decode becomes the replacement
    character, since names of kernels may hold anything.
    """
    number = 0
    rest = ""
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
