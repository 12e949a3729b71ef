"""Parquet read as columns alone: what stays, what is refused, and sizes judged before memory is taken."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surrogate.features.errors import LONGEST_MESSAGE, InputError, nearest
from surrogate.formats import parquet_file
from surrogate.formats.parquet_file import open_file, read_columns


def test_columns_come_back(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "n": np.array([1, 2, 3]), "time_us": [1.5, np.nan, 2.5], "gpu": ["a", None, "b"],
            "stable": pd.array([True, None, False], "boolean"), "flag": [True, False, True],
        }
    )  # fmt: skip
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=2)
    found, metadata = read_columns(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(found, frame)
    assert b"pandas" in metadata


def test_an_index_is_left_out_and_a_named_one_is_a_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2]}, index=[7, 9])
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_columns(tmp_path / "a.parquet")[0].to_dict("list") == {"n": [1, 2]}
    frame.rename_axis("c").to_parquet(tmp_path / "b.parquet")
    assert read_columns(tmp_path / "b.parquet")[0].to_dict("list") == {"n": [1, 2], "c": [7, 9]}


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([[1]]), "lists or records"),
        (pa.array([{"a": 1}]), "lists or records"),
        (pa.array([b"x"]), "bytes"),
        (pa.array([b"xx"], pa.binary(2)), "bytes"),
    ],
)
def test_what_no_table_of_measurements_holds(tmp_path: Path, column: pa.Array, kind: str) -> None:
    pq.write_table(pa.table({"n": column}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=f"'n' holds {kind}"):
        open_file(tmp_path / "a.parquet")


def test_a_column_there_twice(tmp_path: Path) -> None:
    pq.write_table(pa.table([[1], [2]], ["n", "n"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="'n' is there twice"):
        read_columns(tmp_path / "a.parquet")


def test_texts_count_as_often_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"gpu": ["x" * 1000] * 1000}), tmp_path / "a.parquet", compression="zstd")
    monkeypatch.setattr(parquet_file, "MAX_EXPANSION", 1)
    monkeypatch.setattr(parquet_file, "FREE_BYTES", 1_008_000)  # a million characters and 8 bytes a row
    assert len(read_columns(tmp_path / "a.parquet")[0]) == 1000
    monkeypatch.setattr(parquet_file, "FREE_BYTES", 1_007_999)
    with pytest.raises(InputError, match="would expand"):
        read_columns(tmp_path / "a.parquet")


def test_a_message_is_one_short_line() -> None:
    text = str(InputError("a\x1b[31m\n" + "x" * 10_000_000 + "; the remedy\u2028"))
    assert text.isprintable()
    assert len(text) < 2 * LONGEST_MESSAGE
    assert text.startswith("a\\x1b[31m\\n")
    assert text.endswith("; the remedy\\u2028")
    assert str(InputError("µs × 2 – fine")) == "µs × 2 – fine"


def test_nothing_is_near_a_name_of_megabytes() -> None:
    assert nearest("n" * 10_000_000, ["n"]) == ""
    assert nearest("stride", (f"column {i}" for i in range(10**9))) == ""


def test_texts_that_are_no_utf_8_are_refused(tmp_path: Path) -> None:
    bytes_ = pa.array([b"\xff\xfe", b"x"], pa.binary())
    table = pa.table({"gpu": pa.Array.from_buffers(pa.string(), 2, bytes_.buffers())})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet"):
        read_columns(tmp_path / "a.parquet")
