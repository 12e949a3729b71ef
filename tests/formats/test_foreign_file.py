"""Opening foreign files: packed or not, bounded, in the encodings that shells write."""

import bz2
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.formats.foreign_file import read_bytes, read_lines

PACKERS = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("packer", PACKERS)
def test_packing_is_seen_by_content_not_by_name(tmp_path: Path, packer: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(PACKERS[packer](b"one\r\ntwo\n\nfour"))
    assert list(read_lines(path)) == [(1, "one"), (2, "two"), (3, ""), (4, "four")]
    assert read_bytes(path) == b"one\r\ntwo\n\nfour"


@pytest.mark.parametrize("packer", PACKERS)
def test_bombs_are_bounded(tmp_path: Path, packer: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(PACKERS[packer](bytes(4 << 20)))
    with pytest.raises(InputError, match=r"more than 3,000,000 bytes; raise the limit with --max-bytes"):
        read_bytes(path, max_bytes=3_000_000)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "file"
    path.write_text("µs, é\nsecond\n", encoding=encoding)
    assert list(read_lines(path)) == [(1, "µs, é"), (2, "second")]


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bz2.compress(b"a" * (18 << 20)))
    with pytest.raises(InputError, match="line 1: longer than"):
        list(read_lines(path))


def test_missing_folder_and_damaged(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_bytes(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read"):
        read_bytes(tmp_path)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"hello" * 100)[:-12])
    with pytest.raises(InputError, match="damaged archive"):
        read_bytes(path)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\ufeff")), max_size=6))
def test_lines_survive(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    assert [line for _, line in read_lines(path)] == lines
