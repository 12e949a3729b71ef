"""Paths that could block a reader are refused before they are opened; a shell's pipe may pass."""

import os
from pathlib import Path

import pytest

from surrogate.features.errors import read_bounded, require_regular

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")


def test_files_folders_and_missing_paths_pass(refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path, tmp_path / "missing", tmp_path / "file" / "below"):
        require_regular(path)
    with refused("no file's name"):
        require_regular("a\0b")


def test_pipe_of_a_shell_passes_only_if_streams_are_allowed(refused) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"content")
        os.close(writing)
        path = f"/dev/fd/{reading}"
        with refused("is a pipe"):
            require_regular(path)
        assert read_bounded(path, 100, streams=True) == b"content"
    finally:
        os.close(reading)


def test_content_above_the_limit_is_refused(refused, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with refused("larger than 4 bytes"):
        read_bounded(path, 4)
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "missing", 4)
