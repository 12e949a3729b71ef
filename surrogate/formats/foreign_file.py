"""Open foreign files: plain text, .gz and .bz2 (recognised by their first bytes), tar and zip.

Every file that the package unpacks is read here, with a limit on its unpacked size.
"""

import bz2
import codecs
import gzip
import io
import json
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any, TypedDict, Unpack

from surrogate.dataset.files import Progress
from surrogate.features import InputError, require_regular

Paths = Sequence[str | Path]

DEFAULT_MAX_BYTES = 256 << 20
"""Maximum unpacked size of one file. A find-db of 500,000 rows has 70 MB."""
FREE_BYTES = 64 << 20
MAX_FOLD = 100
"""A file may unpack to `FREE_BYTES`, or to `MAX_FOLD` times its packed size if that is more."""
MAX_MEMBERS = 10_000
"""Maximum number of members in an archive."""
_MAX_LINE_CHARACTERS = 16 << 20
_PIECE_BYTES = 1 << 20


class ReadLimits(TypedDict, total=False):
    """Options that every reader passes to `chunks`."""

    max_bytes: int
    progress: Progress | None


class Allowance:
    """The number of bytes that one packed file may still unpack to.

    The limit is ``max_bytes``, and at most `MAX_FOLD` times the packed size. Traces compress 10 to 30 times and text
    tables up to 100 times. A file of blanks compresses 1,000 times.
    """

    def __init__(self, source: str | Path, packed_bytes: int, max_bytes: int) -> None:
        maximum = max(FREE_BYTES, MAX_FOLD * packed_bytes)
        self.left = min(max_bytes, maximum)
        remedy = "raise --max-bytes" if max_bytes <= maximum else f"{MAX_FOLD} times its own size; unpack it first"
        self._refusal = f"{source}: the file unpacks to over {self.left:,} bytes; {remedy}"

    def take(self, count: int) -> None:
        """Subtract ``count`` unpacked bytes. Raises `InputError` if the limit is exceeded."""
        self.left -= count
        if self.left < 0:
            raise InputError(self._refusal)


def chunks(
    path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> Iterator[bytes]:
    """Yield the unpacked bytes of ``path`` in pieces of at most 1 MiB.

    ``progress`` is called with the number of bytes read, the file's size in bytes and its name. Raises `InputError` if
    the file is missing or damaged, or if it unpacks to more than its `Allowance`.
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
                raise InputError(f"{path}: the archive is damaged ({error}); fetch or pack it again") from None
            if not piece:
                return
            allowance.take(len(piece))
            if progress:
                progress(raw.tell(), total, path.name)
            yield piece


def untar(path: str | Path, folder: Path, endings: tuple[str, ...], *, max_bytes: int) -> list[tuple[str, Path]]:
    """Unpack the regular files of a tar archive that have one of the ``endings``; the archive may be packed.

    Returns (name in the archive, file in ``folder``) for each. The files get new names, because a name in an archive
    may lead to any path. Links are skipped. Raises `InputError` if the archive is damaged, has more than `MAX_MEMBERS`
    members, or unpacks to more than its `Allowance`. The size in a member's header is checked before unpacking.
    """
    files: list[tuple[str, Path]] = []
    pieces = chunks(path, max_bytes=max_bytes)
    try:
        allowance = Allowance(path, Path(path).stat().st_size, max_bytes)
        stream = SimpleNamespace(read=lambda _: next(pieces, b""))  # tarfile accepts pieces of any size
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_TarInfo) as archive:  # pyright: ignore
            for number, member in enumerate(archive):
                if number == MAX_MEMBERS:
                    raise InputError(f"{path}: the archive has more than {MAX_MEMBERS:,} members; unpack it first")
                allowance.take(member.size)
                matches = member.isfile() and not member.issparse() and member.name.endswith(endings)
                if matches and (content := archive.extractfile(member)):
                    with NamedTemporaryFile(dir=folder, delete=False) as file:
                        shutil.copyfileobj(content, file)
                    files.append((member.name, Path(file.name)))
    except InputError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InputError(f"{path} is not a tar archive, or is damaged ({error}); fetch or pack it again") from None
    return files


class _TarInfo(tarfile.TarInfo):
    """A header with a limit on its length. `tarfile` reads the headers of long names into memory whole."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field. `tarfile` sets the type after the size: raise `tarfile.ReadError` if the header is too long."""
        super().__setattr__(name, value)
        if name == "type" and self.size > _PIECE_BYTES and value not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")


def unpacked(archive: zipfile.ZipFile, name: str, allowance: Allowance) -> bytes:
    """Return the content of a member of a zip archive.

    The member is unpacked piece by piece, because its declared size may be false. Raises `InputError` if it exceeds
    the ``allowance``, and the errors of `zipfile` if it is damaged.
    """
    content = io.BytesIO()
    with archive.open(name) as file:
        while piece := file.read(_PIECE_BYTES):
            allowance.take(len(piece))
            content.write(piece)
    return content.getvalue()


def files_of(paths: Paths, endings: tuple[str, ...], what: str) -> Iterator[tuple[Path, bool]]:
    """Yield (file, True) for given files, and (file, False) for files with ``endings`` below folders, sorted by name.

    Raises `InputError` if a folder has none of them, or if no path is given.
    """
    if not paths:
        raise InputError(f"no {what} file given; give files or folders; `seer import {what} --how` says where they are")
    for path in map(Path, paths):
        inside = sorted(each for each in path.rglob("*") if each.is_file() and each.name.endswith(endings))
        if path.is_dir() and not inside:
            raise InputError(f"{path}: the folder has no {what} file; their names end in {', '.join(endings)}")
        yield from ((each, False) for each in inside) if path.is_dir() else [(path, True)]


def read_bytes(path: str | Path, **limits: Unpack[ReadLimits]) -> bytes:
    """Return all unpacked bytes of ``path``. Raises the errors of `chunks`."""
    content = io.BytesIO()  # getvalue() does not copy
    content.writelines(chunks(path, **limits))
    return content.getvalue()


@contextmanager
def readable(path: str | Path, remedy: str, *, keep_input_errors: bool = True) -> Iterator[None]:
    """Turn an error that a file's content causes into an `InputError` that names the file and ends with ``remedy``.

    An `InputError` inside passes, unless ``keep_input_errors`` is False, since its text names the file.
    """
    try:
        yield
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError) as error:
        if keep_input_errors and isinstance(error, InputError):
            raise
        what = {json.JSONDecodeError: "not JSON", KeyError: "it lacks"}.get(type(error), "not as expected")
        detail = "" if isinstance(error, TypeError | AttributeError) else f" ({str(error)[:80]})"
        raise InputError(f"{path}: {what}{detail}; {remedy}") from None


def read_lines(path: str | Path, **limits: Unpack[ReadLimits]) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without line end) of ``path``.

    The memory holds one line and one piece at a time. The encoding is UTF-8, or UTF-16 with a byte-order mark (as a
    Windows shell writes it). Undecodable bytes become the replacement character, because kernel names may hold any
    bytes. Raises `InputError` for a line of over 16 million characters, and the errors of `chunks`.
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
            raise InputError(f"{path}, line {number + 1}: over 16 million characters; give a text file")
    if rest:
        yield number + 1, rest.rstrip("\r")
