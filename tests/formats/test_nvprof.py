"""Reading nvprof logs in each printed form."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from surrogate.dataset.columns import KERNEL_NUMBERS
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from surrogate.formats.nvprof import SIZE_BYTES, TIME_US, metric, scaled
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

SAMPLES = Path(__file__).parent / "samples"
TRACE = (SAMPLES / "nvprof_trace.csv").read_text()


def read(folder: Path, *texts: str, **options: Any) -> Imported:
    """Return the import of samples (by file name) or of other texts."""
    paths = []
    for index, text in enumerate(texts):
        paths.append(folder / f"log{index}.csv")
        is_sample = text and "\n" not in text and (SAMPLES / text).is_file()
        paths[-1].write_text((SAMPLES / text).read_text() if is_sample else text)
    return FORMATS["nvprof"].read(paths, **options)


def kernels(folder: Path, *texts: str, **options: Any) -> pd.DataFrame:
    imported = read(folder, *texts, **options)
    assert imported.rows.empty and imported.kernels is not None
    return imported.kernels


@pytest.mark.parametrize("ending", ["csv", "txt"])
def test_trace_becomes_launches(tmp_path: Path, ending: str) -> None:
    assert read(tmp_path, f"nvprof_trace.{ending}").notes == ("log0.csv: 1 memory operation left out",)
    frame = kernels(tmp_path, f"nvprof_trace.{ending}")
    texts, (first, second) = (["kernel_name", "gpu"], frame[[*KERNEL_NUMBERS, "start_us"]].dropna(axis=1).to_numpy())
    names = ["void im2col<float, 4>(int, float*)", "maxwell_sgemm_128x64_nn"]
    assert frame[texts].to_numpy().tolist() == [[name, "TITAN Xp"] for name in names]
    # grid, block, registers, static and dynamic shared memory, time, blocks, start
    assert first.tolist() == pytest.approx([64, 2, 1, 256, 1, 1, 16, 1536, 2048, 4.992, 128, 466210])
    assert second.tolist() == pytest.approx([512, 1, 3, 128, 2, 1, 128, 512, 0, 1250.5, 1536, 467500])


def test_each_table_has_its_own_units_row(tmp_path: Path) -> None:
    other = TRACE.replace("ms,us,,,,,,,,KB,B", "s,ms,,,,,,,,B,KB")
    frame = kernels(tmp_path, TRACE + other, gpu="titan-xp")
    columns = ["gpu", "time_us", "static_shared_bytes", "dynamic_shared_bytes"]
    first, _, third, _ = frame[columns].to_numpy().tolist()
    assert (first, third) == (["titan-xp", 4.992, 1536, 2048], ["titan-xp", 4992.0, 2, 2048 * 1024])


def test_indented_text_and_program_output_in_a_table_are_read(tmp_path: Path) -> None:
    text = (SAMPLES / "nvprof_trace.txt").read_text()
    assert len(kernels(tmp_path, "\n".join("      " + line for line in text.splitlines()))) == 2
    noisy = TRACE.replace("\n467.5", "\ndone 50 %\n467.5")
    assert len(kernels(tmp_path, noisy)) == 2
    assert "1 line left out that nvprof did not print" in read(tmp_path, noisy).notes[1]


@pytest.mark.parametrize("ending", ["csv", "txt"])
def test_metrics_join_by_launch_and_averages_by_name(tmp_path: Path, ending: str) -> None:
    columns = ["time_us", "fp32_instructions", "dram_read_transactions", "dram_utilization_pct"]
    joined = kernels(tmp_path, TRACE, f"nvprof_metrics.{ending}")
    assert joined[columns].to_numpy().tolist() == [[4.992, 1000, 250, 50], [1250.5, 4_000_000, 90_000, 80]]
    averaged = kernels(tmp_path, TRACE, f"nvprof_averages.{ending}")
    assert averaged["fp32_instructions"].isna().tolist() == [True, False]
    assert averaged[["fp32_instructions", "dram_utilization_pct"]].to_numpy().tolist()[1] == [20, 20]
    notes = read(tmp_path, TRACE, f"nvprof_averages.{ending}").notes
    assert any("1 kernel not joined" in note for note in notes) == (ending == "csv")  # a kernel never launched


def test_metrics_of_another_program_are_not_joined(tmp_path: Path) -> None:
    other = (SAMPLES / "nvprof_metrics.csv").read_text().replace("im2col", "col2im")
    assert kernels(tmp_path, TRACE, other)["fp32_instructions"].isna().all()
    assert any("not joined" in note for note in read(tmp_path, TRACE, other).notes)


def test_problems_make_dataset_rows(refused, tmp_path: Path) -> None:
    """The median of the two runs of a problem counts; the table of kernels has the counters."""
    problems = tmp_path / "prof-ops-algo2.txt"
    problems.write_text("1\n128\t64\t56\t128\t0\t3\t1\t0\t2\n")
    texts = (TRACE, "nvprof_metrics.csv", TRACE.replace("1250.5", "1350.5"))
    imported = read(tmp_path, *texts, problems=problems, kernel="sgemm", library_version="7.6")
    expected = ANSWERS["test_problems_make_dataset_rows"]["expected"]
    assert imported.rows[list(expected)].to_dict("records") == [expected]
    assert not imported.rows.empty and imported.kernels is not None
    counted = ["kernel_index", "blocks", "fp32_instructions"]
    assert imported.kernels[counted].to_numpy().tolist() == [[0, 1536, 4_000_000]]
    for text, kernel, message in (
        (TRACE, None, "1 problem, but run 1 has 2 matching launches; .*kernel"),
        (TRACE, "(", "not a regular expression"),
        ("nvprof_metrics.csv", "sgemm", "no times"),
    ):
        with pytest.raises(InputError, match=message):
            read(tmp_path, text, problems=problems, kernel=kernel)
    problems.write_text("1\n128\t64\t56\t128\t0\t3\t1\t0\n")
    with refused("a line has no algorithm"):
        read(tmp_path, TRACE, problems=problems, kernel="sgemm")


@cases(__file__)
def test_summaries_of_nvprof_and_nsys_are_alike(seer, tmp_path, sample, changes, delimiter, note):
    """``changes`` replaces texts of a sample; a ``delimiter`` other than a comma then separates its columns."""
    text = (SAMPLES / sample).read_text().replace(",", delimiter or ",")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    frame = kernels(tmp_path, text)
    assert frame["time_us"].tolist() == pytest.approx([50, 16.666])
    calls = frame[["kernel_name", "invocations"]].to_numpy().tolist()
    assert calls == [["flux(float*)", 600], ["advance(float*)", 600]]
    rows = seer("trace", "kernels", tmp_path / "log0.csv", "--json").succeeded().json
    assert [row["total_us"] for row in rows if row["type"] == "GPU activities"] == [30_000, 10_000]
    shares = {row["type"]: sum(each["time_pct"] for each in rows if each["type"] == row["type"]) for row in rows}
    assert shares == pytest.approx(dict.fromkeys(shares, 100), abs=0.1)
    assert note in "".join(read(tmp_path, text).notes)


@cases(__file__)
def test_tables_of_nsys_are_read(tmp_path: Path, text: str, expected: list[list[object]]) -> None:
    frame = kernels(tmp_path, text)
    assert frame[["gpu", "kernel_name", "time_us", "grid_x"]].fillna(0).to_numpy().tolist() == expected


@cases(__file__)
def test_wrong_files_are_refused(refused, tmp_path: Path, text: str, message: str) -> None:
    with refused("log0.csv", message):
        read(tmp_path, text)


def test_values_are_converted_to_columns() -> None:
    assert scaled("2.4e+03s", "", TIME_US, "x") == pytest.approx(2.4e9)
    assert scaled("912ns", "", TIME_US, "x") == pytest.approx(0.912)
    assert round(scaled("1.1152KB", "", SIZE_BYTES, "x")) == 1142
    assert metric("inst_fp_32", "4000000") == ("fp32_instructions", 4e6)
    assert metric("dram_read_transactions", "90000") == ("dram_read_transactions", 9e4)
    assert metric("dram_write_transactions", "250") == ("dram_write_transactions", 250)
    assert metric("single_precision_fu_utilization", "High (8)") == ("fp32_utilization_pct", 80)
    assert metric("achieved_occupancy", "0.25") == ("achieved_occupancy_pct", 25)
    assert metric("dram_utilization", "Low (1)") == ("dram_utilization_pct", 10.0)
    assert metric("dram_utilization", "Idle (0)") == ("dram_utilization_pct", 0.0)
    assert metric("ipc", "1.25") == ("ipc", 1.25)
    assert pd.isna(metric("inst_fp_32", "<OVERFLOW>")[1])
