"""The format that a file's beginning tells, and the hint that a user of the wrong one gets."""

import bz2
import gzip
from pathlib import Path

import pytest

from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from surrogate.formats.guess import command_for
from tests.fuzz import seeds

SAMPLES = {
    "seer import nvprof": (seeds.NVPROF, seeds.NVPROF_TEXT, seeds.NVPROF_METRICS),
    "seer import ncu": (seeds.NCU, seeds.NCU_LONG),
    "seer import miopen": (seeds.MIOPEN,),
    "seer import cudnn-scope": (seeds.SCOPE,),
    "seer import lin-csv": (seeds.LIN,),
    "seer trace summary": (b'{"traceEvents": []}', b"SQLite format 3\0"),
    "seer data check": (b"PAR1",),
    "seer import seer-xls": (b"PK\3\4", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    "": (b"", b"hello\n", b"\x1f\x8bdamaged"),
}


@pytest.mark.parametrize(("command", "content"), [(c, one) for c, many in SAMPLES.items() for one in many])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lambda data: b"\xef\xbb\xbf" + data])
def test_the_beginning_tells_the_command(tmp_path: Path, command: str, content: bytes, pack) -> None:
    (tmp_path / "file").write_bytes(pack(content))
    assert command_for(tmp_path / "file") == command


def test_utf_16_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(seeds.NCU.decode().encode("utf-16"))
    assert command_for(tmp_path / "file") == "seer import ncu"


def test_the_wrong_format_is_named(tmp_path: Path) -> None:
    good, wrong = tmp_path / "gfx90a68.txt", tmp_path / "gfx90a68.json"
    good.write_bytes(seeds.MIOPEN)
    wrong.write_bytes(seeds.SCOPE)
    with pytest.raises(
        InputError, match=r"gfx90a68\.json.*it looks like a file for `seer import cudnn-scope`$"
    ):
        FORMATS["miopen"].read([good, wrong])


def test_a_damaged_file_of_the_right_format_has_no_hint(tmp_path: Path) -> None:
    (tmp_path / "gfx90a68.txt").write_bytes(seeds.MIOPEN + b"x\n")
    with pytest.raises(InputError) as caught:
        FORMATS["miopen"].read([tmp_path / "gfx90a68.txt"])
    assert "looks like a file" not in str(caught.value)


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder; name the files in it"):
        FORMATS["miopen"].read([tmp_path])


def test_real_samples(shared_data: Path) -> None:
    for pattern, command in (
        ("raw/miopen_*", "miopen"),
        ("raw/cudnn_scope_*", "cudnn-scope"),
        ("traces/ncu_*", "ncu"),
    ):
        for path in shared_data.glob(pattern):
            assert command_for(path) == f"seer import {command}", path
