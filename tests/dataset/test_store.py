"""Datasets on disk read back, are written completely or not at all, and are refused if invalid."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surrogate.dataset.columns import SCHEMA_VERSION
from surrogate.dataset.store import as_dataset, kernels_path, read_dataset, write_dataset
from surrogate.dataset.tables import METADATA_KEY, read_table
from surrogate.features.errors import InputError
from tests.tables import Table


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _refused(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_dataset(path, **options)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


def test_a_dataset_reads_back(tmp_path: Path, table: Table) -> None:
    frame = table(3).assign(colour="blue")
    metadata = {"campaign": "invented", "clocks": [1, 2]}
    write_dataset(frame, tmp_path / "a.parquet", candidates="listed", metadata=metadata)
    data = read_dataset(tmp_path / "a.parquet")
    assert data.candidates == "listed" and data.name == "a.parquet" and len(data) == len(frame)
    assert data.metadata == {"campaign": "invented", "clocks": [1, 2], "schema": SCHEMA_VERSION, "candidates": "listed"}
    pd.testing.assert_frame_equal(data.frame.drop(columns="family"), frame, check_dtype=False)
    assert _names(tmp_path) == ["a.parquet"]


def test_kernels_are_written_to_a_second_file(tmp_path: Path, table: Table) -> None:
    kernels = pd.DataFrame({"kernel_name": ["k"], "time_us": [1.0]})
    write_dataset(table(1), tmp_path / "a.parquet", kernels=kernels)
    assert kernels_path(tmp_path / "a.parquet").name == "a.kernels.parquet"
    assert _names(tmp_path) == ["a.kernels.parquet", "a.parquet"]
    assert pd.read_parquet(tmp_path / "a.kernels.parquet")["kernel_name"].tolist() == ["k"]


def test_a_failed_write_leaves_no_kernels(tmp_path: Path, table: Table) -> None:
    """Parquet refuses a column of mixed types; the kernel table must not remain without its dataset."""
    frame = table(1).assign(mixed=[1, "two", *[3] * (len(table(1)) - 2)])
    with pytest.raises((InputError, pa.ArrowException)):
        write_dataset(frame, tmp_path / "a.parquet", kernels=pd.DataFrame({"kernel_name": ["k"]}))
    assert _names(tmp_path) == []


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in _refused(tmp_path / "a.parquet")
    assert "a folder, no file" in _refused(tmp_path)


def test_a_file_without_metadata_is_read(tmp_path: Path, table: Table) -> None:
    table(2).to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet")[1] == {}
    assert read_dataset(tmp_path / "a.parquet").candidates == "all"
    assert read_dataset(tmp_path / "a.parquet", candidates="listed").candidates == "listed"


def _with_metadata(path: Path, frame: pd.DataFrame, content: bytes) -> Path:
    pq.write_table(pa.Table.from_pandas(frame).replace_schema_metadata({METADATA_KEY: content}), path)
    return path


def test_a_newer_schema_is_refused(tmp_path: Path, table: Table) -> None:
    newer = json.dumps({"schema": SCHEMA_VERSION + 1}).encode()
    message = _refused(_with_metadata(tmp_path / "a.parquet", table(1), newer))
    assert f"schema {SCHEMA_VERSION + 1}" in message and f"up to {SCHEMA_VERSION}" in message and "upgrade" in message


def test_violations_are_counted_and_the_first_is_named(tmp_path: Path, table: Table) -> None:
    frame = table(2)
    frame.loc[[3, 6], "n"] = -1
    write_dataset(frame, tmp_path / "a.parquet")
    message = _refused(tmp_path / "a.parquet")
    assert "row 4: n is -1" in message and "1 more" in message


def test_repeats_count_by_their_median_unless_another_column_differs(refused) -> None:
    rows = [{"m": m, "n": 8, "k": 8, "time_us": us} for m in (1, 2, 4) for us in (3.0 * m, 1.0 * m, 2.0 * m)]
    frame = pd.DataFrame(rows).assign(
        gpu="v100", library="cublas", algorithm="nt", time_us_min=lambda table: table["time_us"]
    )
    data = as_dataset(frame)
    assert data.frame["time_us"].tolist() == [2.0, 4.0, 8.0] and data.metadata["repeats"] == 6
    assert data.frame["time_us_min"].tolist() == [1.0, 2.0, 4.0]
    with refused("row 2: it repeats row 1, but differs in trans; ", "delete the column"):
        as_dataset(frame.assign(trans=["N", "T", "N"] * 3))


def test_writing_a_dataset_keeps_the_kernels_of_another(tmp_path: Path, table: Table) -> None:
    """The kernels of ``foo`` and of ``foo.parquet`` would have the same file name."""
    kernels = pd.DataFrame({"kernel_name": ["k"], "time_us": [1.0]})
    write_dataset(table(1), tmp_path / "foo.parquet", kernels=kernels)
    write_dataset(table(1), tmp_path / "foo")
    assert _names(tmp_path) == ["foo", "foo.kernels.parquet", "foo.parquet"]
    write_dataset(table(1), tmp_path / "foo.parquet")
    assert _names(tmp_path) == ["foo", "foo.parquet"]


@pytest.mark.parametrize("name", ["data.csv", "data.tsv", "data.json", "data.jsonl"])
def test_text_formats_keep_the_rows(tmp_path: Path, table: Table, name: str) -> None:
    frame = table(3)
    write_dataset(frame, tmp_path / name, candidates="listed")
    write_dataset(frame, tmp_path / "data.parquet", candidates="listed")
    as_text = read_dataset(tmp_path / name, candidates="listed").frame
    pd.testing.assert_frame_equal(as_text, read_dataset(tmp_path / "data.parquet").frame, check_dtype=False)


def test_an_unknown_suffix_is_refused(refused, tmp_path: Path, table: Table) -> None:
    with refused("data.txt: a table is written as .parquet, .csv"):
        write_dataset(table(1), tmp_path / "data.txt")
    assert not _names(tmp_path)


@pytest.mark.parametrize("content", ["{not json", "[1, 2]", '{"n": 1}\n3', "a,b\n1,2,3,4\n5"])
def test_text_that_is_no_table_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "data.txt"
    path.write_text(content)
    _refused(path)
