"""Behaviour common to all formats: opening foreign files, rows of families, and ``seer import``."""

import bz2
import gzip
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from surrogate.cli.import_ import command
from surrogate.dataset.store import read_dataset
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from surrogate.formats.foreign_file import read_bytes, read_lines
from surrogate.formats.imported import family_rows
from tests.known import known_answers

ANSWERS = known_answers(__file__)
PACKERS = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("name", FORMATS)
def test_missing_files_are_named(name: str, tmp_path: Path) -> None:
    options = {option: "v100" for option, is_needed in FORMATS[name].parameters.items() if is_needed}
    for paths, word in (([], "no"), ([tmp_path / "gfx90a68.none"], "cannot be read"), ([tmp_path], "folder")):
        with pytest.raises(InputError, match=word):
            FORMATS[name].read(paths, **options)


@pytest.mark.parametrize("packer", PACKERS)
def test_compression_is_detected_by_content_and_limited(refused, tmp_path: Path, packer: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(PACKERS[packer](b"one\r\ntwo\n\nfour"))
    assert list(read_lines(path)) == [(1, "one"), (2, "two"), (3, ""), (4, "four")]
    assert read_bytes(path) == b"one\r\ntwo\n\nfour"
    path.write_bytes(PACKERS[packer](bytes(4 << 20)))
    with refused("--max-bytes"):
        read_bytes(path, max_bytes=3_000_000)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_are_read_in_any_unicode_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "file"
    path.write_text("µs, é\nsecond\n", encoding=encoding)
    assert list(read_lines(path)) == [(1, "µs, é"), (2, "second")]


NO_LINES = {"give a text file": bz2.compress(b"a" * (18 << 20))}
NO_LINES |= {"the archive is damaged": gzip.compress(b"hello" * 100, mtime=0)[:-12]}


@pytest.mark.parametrize(("word", "content"), NO_LINES.items(), ids=NO_LINES)
def test_files_without_lines_are_refused(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=word):
        list(read_lines(tmp_path / "file"))


def test_family_rows_puts_several_families_into_one_table() -> None:
    """Repeats become a median; columns of other families are 0 or empty; missing values get the family's default."""
    shared = {"gpu": "t4", "library": "cudnn"}
    gemm = {**shared, "operator": "linear", "batch": 1, "m": 2, "n": 3, "k": 4, "dtype": "fp16"}
    conv = {**shared, "operator": "conv", "n": 1, "c": 2, "h": 3, "w": 3, "k": 4, "r": 1, "s": 1, "stride_h": 1}
    frame = pd.DataFrame([{**gemm, "time_us": 3.0}, {**gemm, "time_us": 5.0}, {**conv, "time_us": 7.0, "run": "a"}])
    rows = family_rows(frame)
    columns = ["family", "operator", "dtype", "variant", "direction", "m", "k", "r", "algorithm", "status"]
    assert rows[columns].to_numpy().tolist() == ANSWERS["two_families"]
    measured = rows[["time_us", "time_us_min", "time_us_max", "repeats"]].to_numpy().tolist()
    assert measured == [[4.0, 3.0, 5.0, 2], [7.0, 7.0, 7.0, 1]]
    assert rows["library_version"].tolist() == ["unknown", "unknown"] and rows["run"].tolist()[1] == "a"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_import_command_writes_a_listed_dataset_of_miopen(tmp_path: Path) -> None:
    source, target = tmp_path / "gfx90a68.HIP.fdb.txt", tmp_path / "mi210.parquet"
    source.write_text(ANSWERS["line"])
    assert f"{target}: 2 rows, candidates listed" in run("miopen", source, "-o", target)
    dataset = read_dataset(target)
    assert dataset.candidates == "listed"
    assert dataset.frame["solver"].tolist() == ["ConvA", "ConvB"]


def test_import_command_writes_kernels_of_nvprof(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(ANSWERS["trace"])
    (tmp_path / "ops.txt").write_text("1\n128 64 56 128 0 3 1 0 1\n")
    log, target, kernels = (tmp_path / name for name in ("trace.csv", "xp.parquet", "xp.kernels.parquet"))
    output = run("nvprof", log, "--problems", tmp_path / "ops.txt", "-o", target, "--quiet")
    assert output.splitlines()[1] == f"{kernels}: 1 kernel"
    assert read_dataset(target).frame["time_us"].tolist() == [4.992]
    assert pd.read_parquet(kernels)["static_shared_bytes"].tolist() == [1536]
    assert "1 launch without problems" in run("nvprof", log, "-o", target, "--gpu", "titan-xp")
    assert pd.read_parquet(target)["gpu"].tolist() == ["titan-xp"]
