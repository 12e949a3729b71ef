"""The declared columns are those that the code reads and writes, and `seer data columns` shows them."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from surrogate import compare
from surrogate.bundled import __file__ as bundled_file
from surrogate.cli import main
from surrogate.collect.device import Kernel
from surrogate.dataset import schema
from surrogate.dataset.columns import COLUMNS, TABLES, columns, names
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.formats.imported import KERNEL_COUNTERS
from surrogate.formats.ncu_metrics import METRICS, kernel_numbers

Table = Callable[..., pd.DataFrame]


def test_every_column_is_declared_once_and_said() -> None:
    for table in TABLES:
        declared = names(table)
        assert declared and len(set(declared)) == len(declared), table
    assert {column.table for column in COLUMNS} == set(TABLES)
    for column in COLUMNS:
        assert column.kind in ("text", "int64", "float64", "boolean")
        assert column.meaning and column.meaning[-1] not in ".;," and "\n" not in column.meaning


def test_units_are_in_the_names() -> None:
    units = {"_us": "µs", "_bytes": "bytes", "_mhz": "MHz", "_pct": "%"}
    for column in COLUMNS:
        for ending, unit in units.items():
            if column.name.endswith(ending):
                assert column.unit == unit, column


def test_an_unknown_table_names_the_known() -> None:
    with pytest.raises(InputError, match=r"'kernel' is unknown; known: dataset.*did you mean kernels"):
        columns("kernel")


def test_what_runs_and_rankings_write_is_declared() -> None:
    assert {*Kernel.__slots__, "blocks"} <= set(names("kernels"))
    assert tuple(name for name in names("dataset") if name in SIZE_COLUMNS) == SIZE_COLUMNS


def test_what_nsight_compute_counts_is_declared() -> None:
    assert (*KERNEL_COUNTERS, "counted_time_us") == schema.KERNEL_COUNTERS
    found = kernel_numbers(dict.fromkeys(METRICS, ("", 8.0)), (8, 1, 1), (32, 1, 1))
    assert set(KERNEL_COUNTERS) <= set(found) <= set(names("kernels"))


def test_bundled_tables_are_declared() -> None:
    files = sorted(Path(bundled_file).parent.glob("*.parquet"))
    assert files
    for file in files:
        assert set(pd.read_parquet(file).columns) <= set(names("dataset")), file.name


def test_what_a_comparison_writes_is_declared(table: Table) -> None:
    frame = table(6, gpus=("Tesla T4",)).assign(heuristic_algorithm="FFT", networks="net")
    data = Dataset(frame)
    for by in ("shape", "random"):
        found = compare(data, models=("roofline",), by=by, folds_count=2)
        for rows in ("time_rows", "choice_rows"):
            written = {name for row in found.results[rows] for name in row}
            assert written <= set(names(rows)), written - set(names(rows))
            assert set(names(rows, required=True)) - {"algorithm"} <= written
        assert set(found.predictions.columns) <= set(names("held_out"))
        assert set(found.choices.columns) <= set(names("choices"))
        assert set(found.folds.columns) <= set(names("folds"))


def test_kinds_are_those_of_the_written_frame(table: Table) -> None:
    kinds = {column.name: column.kind for column in columns("dataset")}
    for name, values in table(2).items():
        came = {"i": "int64", "f": "float64"}.get(values.dtype.kind, "text")
        assert kinds[str(name)] == came, name


def test_the_command_lists_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["seer", "data", "columns", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return capsys.readouterr().out

    listed = json.loads(shown("--json"))
    assert [(row["table"], row["name"]) for row in listed] == [(one.table, one.name) for one in COLUMNS]
    assert len(shown("--csv", "--table", "folds").splitlines()) == 1 + len(columns("folds"))
    text = shown()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "time_us: median time of one call" in text and "µs, float64, required" in text
