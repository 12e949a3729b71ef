"""The judged rows as CSV."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.errors import InputError
from surrogate.report.csv_files import csv_text, write_csv


def test_every_row_and_column_arrives(tmp_path: Path, results: dict[str, Any]) -> None:
    paths = write_csv(results, tmp_path)
    assert [path.name for path in paths] == ["time_rows.csv", "choice_rows.csv"]
    with paths[1].open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(results["choice_rows"])
    for got, row in zip(read, results["choice_rows"], strict=True):
        assert got["model"] == row["model"] and got["reason"] == row.get("reason", "")
        low = (row["paired_vs_heuristic"] or [""])[0]
        assert got["paired_low"] == str(low)
        assert got["slowdown_macro"] == ("" if row["slowdown_macro"] is None else repr(row["slowdown_macro"]))


def test_intervals_nulls_and_nested_values() -> None:
    rows = [
        {"model": "a,b", "n": 1, "x_ci": [1.0, 2.0], "paired_vs_heuristic": None, "more": {"k": [1]}},
        {"model": "c", "n": 0, "x_ci": None, "paired_vs_heuristic": [1, 2, 3], "more": math.nan},
    ]
    assert csv_text(rows).splitlines() == [
        "model,n,x_ci_low,x_ci_high,paired_low,paired_mid,paired_high,more",
        '"a,b",1,1.0,2.0,,,,"{""k"": [1]}"',
        "c,0,,,1,2,3,",
    ]


@pytest.mark.parametrize("odd", [[1, 2], [1, 2, 3, 4], 7, True, "x", {"a": 1}])
def test_what_is_no_interval_keeps_its_column(odd: Any) -> None:
    """A file edited by hand: an interval in one row, something else in another."""
    rows = [{"model": "a", "x": odd}, {"model": "b", "x": [1.0, 2.0, 3.0]}]
    read = list(csv.DictReader(csv_text(rows).splitlines()))
    assert read[1]["x_low"] == "1.0" and read[1]["x_high"] == "3.0" and read[1]["x"] == ""
    assert read[0]["x"] and read[0]["x_low"] == ""


def test_no_rows_is_a_header() -> None:
    assert csv_text([]).startswith("model,split,stratum,") and csv_text([]).count("\n") == 1


def test_a_folder_that_is_not_there(tmp_path: Path, results: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        write_csv(results, tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []
