"""Locks among workers that share a file: the system's own, so that a killed worker leaves none behind."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileOpenLock

_LOOKED_AT_BYTES = 1 << 16


class JournalFlock:
    """``flock`` on the journal itself. A line that a full disk or a power cut tore is cut off before the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptors: list[int] = []

    def acquire(self) -> bool:
        """Wait for the lock; True."""
        import fcntl

        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _cut_torn_line(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors.append(descriptor)
        return True

    def release(self) -> None:
        """Give it back."""
        os.close(self._descriptors.pop())


def journal_lock(path: Path) -> Any:
    """The lock for the journal at ``path``; one by a file beside it where the system has no ``flock``."""
    return JournalFileOpenLock(str(path)) if os.name == "nt" else JournalFlock(path)


@contextmanager
def folder_locked(path: Path) -> Iterator[None]:
    """Hold the folder of ``path``, on behalf of that file: a database has locks of its own on itself."""
    if os.name == "nt":
        lock = JournalFileOpenLock(str(path))
        lock.acquire()
        try:
            yield
        finally:
            lock.release()
        return
    import fcntl

    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _cut_torn_line(descriptor: int) -> None:
    end = size = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _LOOKED_AT_BYTES)
        whole = os.pread(descriptor, end - start, start).rfind(b"\n") + 1
        end = start + whole
        if whole:
            break
    if end < size:
        os.ftruncate(descriptor, end)
