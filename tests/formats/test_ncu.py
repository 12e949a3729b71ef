"""Reading Nsight Compute: both CSV formats, locales, and reports with a fake ``ncu_report`` module."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

SAMPLES = Path(__file__).parent / "samples"
RAW = (SAMPLES / "ncu_raw.csv").read_text()
DETAILS = (SAMPLES / "ncu_details.csv").read_text()
HEADER = next(line for line in DETAILS.splitlines() if line.startswith('"ID"'))


def details(*metrics: tuple[str, str, str]) -> str:
    """Return a details page of one launch with these metrics: (name, unit, value)."""
    row = '"0","6153","sgemm","7","(256, 1, 1)","(1024, 1, 1)","0","7.5","Some Section","{}","{}","{}"'
    return "\n".join([HEADER, *(row.format(*metric) for metric in metrics)]) + "\n"


def read(folder: Path, *texts: str, **options: Any) -> Imported:
    paths = []
    for index, text in enumerate(texts):
        paths.append(folder / f"export{index}.csv")
        paths[-1].write_text(text)
    return FORMATS["ncu"].read(paths, **options)


def first(imported: Imported) -> pd.Series:
    assert imported.rows.empty and imported.kernels is not None
    return imported.kernels.iloc[0]


def test_wide_format_is_read_with_scaled_units(tmp_path: Path) -> None:
    imported = read(tmp_path, RAW, gpu="v100-sxm2-16gb")
    assert imported.kernels is not None and len(imported.kernels) == 2
    expected = ANSWERS["test_wide_format_is_read_with_scaled_units"]["expected"]
    assert first(imported)[list(expected)].to_dict() == expected
    assert imported.kernels.iloc[1][["blocks", "b_max", "waves"]].tolist() == [10, 160, 1]


def test_long_format_is_read(tmp_path: Path) -> None:
    row = first(read(tmp_path, DETAILS))
    expected = ANSWERS["test_long_format_is_read"]["expected"]
    assert row[list(expected)].to_dict() == expected


def test_waves_rounded_to_two_digits_give_no_b_max(tmp_path: Path) -> None:
    row = first(read(tmp_path, details(("Duration", "us", "5.5"), ("Waves Per SM", "", "6.40"))))
    assert pd.isna(row["b_max"]) and pd.isna(row["waves"])


def test_files_of_one_metric_group_each_are_joined(tmp_path: Path) -> None:
    times = details(("gpu__time_duration.sum", "ns", "5500"))
    counts = details(("dram__sectors_read.sum", "sector", "320"))
    imported = read(tmp_path, counts, times)
    assert imported.kernels is not None and len(imported.kernels) == 1
    assert first(imported)[["time_us", "dram_read_transactions"]].tolist() == [5.5, 320]


def test_problems_make_dataset_rows_with_all_counters(refused, tmp_path: Path) -> None:
    counted = ANSWERS["test_problems_make_dataset_rows_with_all_counters"]["counted"]
    problems = tmp_path / "ops.txt"
    problems.write_text("1\n8 64 56 128 0 3 1 1 1\n")
    imported = read(tmp_path, details(*counted), problems=problems, kernel="sgemm", gpu="v100", library_version="9.1")
    columns = ["n", "algorithm", "time_us", "gpu", "library_version"]
    assert imported.rows[columns].to_numpy().tolist() == [[8, "IMPLICIT_PRECOMP_GEMM", 5.5, "v100-sxm2-16gb", "9.1"]]
    assert not imported.rows.empty and imported.kernels is not None
    counters = ["blocks", "l2_read_sectors", "tensor_pipe_instructions", "sm_cycles"]
    assert imported.kernels[counters].to_numpy().tolist() == [[1024, 1500.0, 42.0, 9000.0]]
    two = [details(("Duration", "us", time), ("L2 Hit Rate", "%", "5")) for time in ("1.234,5", "1.234")]
    assert read(tmp_path, *two).kernels["time_us"].tolist() == [1234.5, 1234]  # the first file shows the second's mark
    with refused("name no GPU"):
        read(tmp_path, RAW, problems=problems, kernel="sgemm")


@cases(__file__)
def test_real_exports_have_known_values(measurements: Path, file: str, expected: dict[str, float]) -> None:
    row = first(FORMATS["ncu"].read([measurements / file], gpu="t4"))
    assert row[list(expected)].to_dict() == expected


@cases(__file__)
def test_other_exports_and_locales_have_the_same_launches(tmp_path, sample, changes, expected, note):
    """The first launch of each sample takes 212.48 µs; ``changes`` replaces texts of the sample."""
    text = (SAMPLES / sample).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    imported = read(tmp_path, text)
    row = first(imported)
    known = {"kernel_name": row["kernel_name"].replace(" ", ""), "grid_x": row["grid_x"], "block_x": row["block_x"]}
    assert known == {"kernel_name": "tile_product(float*)", "grid_x": 640, "block_x": 256}
    assert row[list(expected)].to_dict() == pytest.approx(expected)
    assert (note in imported.notes[0]) if note else not imported.notes


@cases(__file__)
def test_text_and_turned_tables_are_read(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    assert first(read(tmp_path, text))[list(expected)].to_dict() == expected


@cases(__file__)
def test_wrong_files_are_refused(refused, tmp_path: Path, text: str, message: str) -> None:
    with refused("export0.csv", message):
        read(tmp_path, text)


class FakeMetric:
    def __init__(self, unit: str, value: float) -> None:
        self.unit, self.as_double = (lambda: unit), (lambda: value)


_REPORTED = {
    "gpu__time_duration.sum": FakeMetric("nsecond", 1234.0),
    "dram__sectors_read.sum": FakeMetric("sector", 320.0),
    **{f"launch__grid_dim_{axis}": FakeMetric("", size) for axis, size in (("x", 8.0), ("y", 2.0), ("z", 1.0))},
    "smsp__other.sum": FakeMetric("", 1.0),
}


class FakeAction:
    def name(self) -> str:
        return "sgemm"

    def metric_names(self) -> list[str]:
        return list(_REPORTED)

    def metric_by_name(self, name: str) -> FakeMetric:
        return _REPORTED[name]


def test_report_is_read_with_the_ncu_report_module(refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "a.ncu-rep"
    report.write_bytes(b"NVR\0")
    with refused("ncu --import a.ncu-rep --csv --page raw"):
        FORMATS["ncu"].read([report])
    profiled = SimpleNamespace(num_actions=lambda: 1, action_by_idx=lambda _: FakeAction())
    empty = SimpleNamespace(num_actions=lambda: 0)
    context = SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda _: profiled)
    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=lambda path: context))
    with refused("no such file"):
        FORMATS["ncu"].read([tmp_path / "b.ncu-rep"])
    row = first(FORMATS["ncu"].read([report], gpu="h200-sxm"))
    columns = ["kernel_name", "time_us", "dram_read_transactions", "blocks"]
    assert row[columns].tolist() == ["sgemm", 1.234, 320, 16]
    context.range_by_idx = lambda _: empty
    with refused("no profiled kernel"):
        FORMATS["ncu"].read([report])
