"""An append-only file of JSON lines, each with its checksum, that many processes write and any kill leaves good.

A line is eight hexadecimal digits (CRC-32 of the JSON's bytes), a blank, the JSON. The first is a header that names the
kind of file and its schema version. Lines that fail their checksum (torn by a kill) are skipped when reading and leave
with the next compaction. Nothing is forced to the disk: a power cut may cost the latest lines, never the earlier ones.
"""

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surrogate.dataset.atomic import atomic_path
from surrogate.features.errors import InputError
from surrogate.features.regular_file import require_regular

Record = dict[str, Any]
_BINARY = getattr(os, "O_BINARY", 0)
_COMPARED = 256
_LOCK_AT = 1 << 30
"""Where Windows locks a byte: past any content, so that readers are not kept out."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """What the header says: the ``kind`` of file, the ``schema`` version that this release writes and reads up to."""

    kind: str
    schema: int

    def line(self) -> bytes:
        """The header's line."""
        return encode({"kind": self.kind, "schema": self.schema})

    def check(self, record: Record, path: Path) -> None:
        """Raise `InputError` where ``record`` is no header of this kind, or that of a newer release."""
        if record.get("kind") != self.kind:
            raise InputError(
                f"{path}: holds something else than a {self.kind}; name another place, or remove it"
            )
        if not isinstance(record.get("schema"), int) or record["schema"] > self.schema:
            raise InputError(
                f"{path}: {self.kind} of schema {record.get('schema')}, this release reads up to {self.schema};"
                " upgrade seer-surrogate, or name another place"
            )


def encode(record: Record) -> bytes:
    """One line, its end included."""
    text = json.dumps(record, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> Record | None:
    """The record of a line without its end, or None where its checksum says that it is not whole."""
    text = line[9:]
    try:
        if line[8:9] != b" " or int(line[:8], 16) != zlib.crc32(text):
            return None
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


@dataclass(slots=True)
class CheckedLines:
    """One such file. ``read_new`` gives what was added since the last call, by whichever process."""

    path: Path
    kind: FileKind
    skipped: int = 0
    """Damaged lines met so far."""
    _offset: int = 0
    _state: tuple[int, int, int] = (-1, 0, 0)
    """Inode, size and time of the last change when it was read."""
    _before: bytes = b""
    """The last bytes before the offset: they tell a file that a compaction replaced, whose inode may come back."""
    _header_seen: bool = False

    def read_new(self) -> list[Record]:
        """Records appended since the last call; all of them after a compaction. A line still being written waits.

        Raises `InputError` for a file of another kind or of a newer release, `OSError` where it cannot be read.
        """
        require_regular(self.path)
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                state = (status.st_ino, status.st_size, status.st_mtime_ns)
                if state == self._state:
                    return []
                file.seek(self._offset - len(self._before))
                if state[0] != self._state[0] or file.read(len(self._before)) != self._before:
                    self._offset, self._before, self._header_seen = 0, b"", False
                    file.seek(0)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content.rfind(b"\n") + 1
        if not whole and not self._header_seen and not _begins(content, self.kind.line()):
            self.kind.check({}, self.path)
        records = list(self._records(content[:whole]))
        self._state = state  # only now: a file that is refused is refused again
        self._offset += whole
        self._before = (self._before + content[max(whole - _COMPARED, 0) : whole])[-_COMPARED:]
        return records

    def search(self, text: bytes) -> list[Record]:
        """Records of the whole file whose line contains ``text``, the oldest first; no other line is parsed.

        Raises as `read_new`, whose place in the file stays.
        """
        require_regular(self.path)
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        header, _, lines = content.partition(b"\n")
        if not _begins(content, self.kind.line()):
            self.kind.check(decode(header) or {}, self.path)
        found = [decode(line) for line in lines.split(b"\n")[:-1] if text in line] if text in lines else []
        return [record for record in found if record is not None]

    def _records(self, content: bytes) -> Iterator[Record]:
        for line in content.split(b"\n")[:-1]:
            record = decode(line)
            if not self._header_seen:
                self.kind.check(record or {}, self.path)
                self._header_seen = True
            elif record is None:
                self.skipped += bool(line)
            else:
                yield record

    def append(self, record: Record) -> int:
        """Add one line in one write and give the file's size back, in bytes; a torn last line is closed first.

        Raises `OSError` where it cannot be written (the file is left as it was), `InputError` as `read_new`.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked() as (descriptor, size):
            before = b""
            if size == 0:
                before = self.kind.line()
            elif _read_at(descriptor, size - 1, 1) != b"\n":
                before = b"\n"
            line = before + encode(record)
            written = os.write(descriptor, line)
            if written < len(line):
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return size + written

    def compact(self, keep: Callable[[Sequence[Record]], Sequence[Record]]) -> None:
        """Put in the file's place one that holds ``keep`` of its records; atomically, no writer loses a line.

        Raises `OSError` or `InputError` where the new file cannot be written or renamed; the old one then stays.
        """
        with self._locked():
            records = CheckedLines(self.path, self.kind).read_new()
            with atomic_path(self.path) as temporary:
                temporary.write_bytes(self.kind.line() + b"".join(map(encode, keep(records))))

    @contextmanager
    def _locked(self) -> Iterator[tuple[int, int]]:
        """(descriptor, size) of the file that stands at the path now, locked; made if missing, its header checked."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _BINARY, 0o644)
            try:
                with _lock(descriptor):
                    status = os.fstat(descriptor)
                    if self._stands(status.st_ino):
                        yield descriptor, self._begun(descriptor, status.st_size)
                        return
            finally:
                os.close(descriptor)

    def _stands(self, inode: int) -> bool:
        """False where a compaction of another process has replaced the opened file meanwhile."""
        try:
            return self.path.stat().st_ino == inode
        except FileNotFoundError:
            return False

    def _begun(self, descriptor: int, size: int) -> int:
        """The size to append at: 0 where the first writer was killed within its header. Refuses a foreign file."""
        header = self.kind.line()
        start = _read_at(descriptor, 0, 4096)
        if size < len(header) and _begins(start, header):
            os.ftruncate(descriptor, 0)
            return 0
        self.kind.check(decode(start.split(b"\n")[0]) or {}, self.path)
        return size


def _read_at(descriptor: int, offset: int, count: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, count)


def _begins(content: bytes, header: bytes) -> bool:
    return header.startswith(content)


@contextmanager
def _lock(descriptor: int) -> Iterator[None]:
    """The file for this process alone, waiting for it; on a system without such locks, nothing."""
    try:
        import fcntl
    except ImportError:
        with _windows_lock(descriptor):
            yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def _windows_lock(descriptor: int) -> Iterator[None]:
    """The same by ``msvcrt``, which locks bytes; it waits ten seconds at most, then raises `OSError`."""
    try:
        import msvcrt
    except ImportError:
        yield
        return
    locking: Any = msvcrt
    os.lseek(descriptor, _LOCK_AT, os.SEEK_SET)
    locking.locking(descriptor, locking.LK_LOCK, 1)
    try:
        yield
    finally:
        with suppress(OSError):
            os.lseek(descriptor, _LOCK_AT, os.SEEK_SET)
            locking.locking(descriptor, locking.LK_UNLCK, 1)
