"""Limits of unpacking: bytes, compression ratio, members; links, devices and false sizes are harmless."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path
from random import Random

import pytest

from surrogate.features.errors import InputError
from surrogate.formats import foreign_file
from surrogate.formats.foreign_file import Allowance, unpacked, untar

NOISE = Random(0).randbytes(3_000_000)


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the limits of megabytes with kilobytes."""
    monkeypatch.setattr(foreign_file, "FREE_BYTES", 100_000)
    monkeypatch.setattr(foreign_file, "MAX_MEMBERS", 20)


def test_allowance_is_the_smallest_of_three_limits(refused) -> None:
    assert Allowance("f", 10, 50_000).left == 50_000
    assert Allowance("f", 10, 10**9).left == 100_000
    assert Allowance("f", 5000, 10**9).left == 500_000
    with refused("f: the file unpacks to over 100,000 bytes; 100 times its own size; unpack it first"):
        Allowance("f", 10, 10**9).take(100_001)
    with refused("raise --max-bytes"):
        Allowance("f", 10, 1000).take(1001)


def archive(path: Path, members: list[tuple[str, bytes, bytes]], declared: int | None = None) -> Path:
    """Write a tar archive of (name, type, content)."""
    with gzip.open(path, "wb") as file:
        for name, kind, content in members:
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, "/etc/hosts"
            header.size = len(content) if declared is None else declared
            file.write(header.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
        file.write(bytes(1024))
    return path


def test_untar_extracts_regular_files_only(tmp_path: Path) -> None:
    odd = [(f"/{number}", kind, b"") for number, kind in enumerate((b"1", b"2", b"3", b"4", b"5", b"6"))]
    path = archive(tmp_path / "a.tar.gz", [*odd, ("../../x.json", b"0", b"{}"), ("y", b"0", b"")])
    (tmp_path / "in").mkdir()
    ((name, file),) = untar(path, tmp_path / "in", (".json",), max_bytes=10**6)
    assert (name, file.read_bytes()) == ("../../x.json", b"{}")
    assert sorted(tmp_path.rglob("*")) == [path, tmp_path / "in", file]


@pytest.mark.parametrize(
    ("members", "declared", "message"),
    [
        ([("x", b"0", b" " * 300_000)], None, "unpacks to over 100,000 bytes"),
        ([("x", b"0", b"")], 300_000, "unpacks to over 100,000 bytes"),
        ([("x", b"0", b"")], 5000, "damaged"),
        ([("x", b"x", NOISE)], None, "a header of 3,000,000 bytes"),
        ([("x", b"L", NOISE)], None, "a header of 3,000,000 bytes"),
        ([(str(number), b"0", b"") for number in range(30)], None, "more than 20 members"),
    ],
)
def test_hostile_archive_is_refused(members, declared, message, tmp_path):
    path = archive(tmp_path / "a.tar.gz", members, declared)
    with pytest.raises(InputError, match=message):
        untar(path, tmp_path, ("",), max_bytes=10**7)


def test_zip_member_larger_than_the_allowance_is_refused(refused) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("good", "abc")
        file.writestr("bad", " " * 300_000)
    with zipfile.ZipFile(out) as file:
        assert unpacked(file, "good", Allowance("f", 1000, 10**6)) == b"abc"
        with refused("100 times its own size"):
            unpacked(file, "bad", Allowance("f", 1000, 10**6))
