"""Reading cudnn_scope's JSON in both generations."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.formats import FORMATS
from surrogate.formats.imported import KEY_COLUMNS
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

SECOND = ANSWERS["second"]
FIRST = ANSWERS["first"]
RAN = ANSWERS["ran"]
FAILED = ANSWERS["failed"]


def save(folder: Path, *benchmarks: dict[str, Any]) -> Path:
    path = folder / "scope.json"
    path.write_text(json.dumps({"context": {"date": "2019"}, "benchmarks": list(benchmarks)}))
    return path


def test_second_generation_file_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, {"name": SECOND.format("GEMM"), **RAN}, {"name": SECOND.format("DIRECT"), **FAILED})
    rows = FORMATS["cudnn-scope"].read([path]).rows
    expected = ANSWERS["test_second_generation_file_is_read"]["expected"]
    assert rows.iloc[0][list(expected)].to_dict() == expected
    assert rows.iloc[1][["algorithm", "status", "gpu"]].tolist() == ["DIRECT", "not_supported", "Tesla T4"]
    assert rows["time_us"].isna().tolist() == [False, True]


@cases(__file__)
def test_first_generation_file_needs_a_gpu_and_is_read(refused, tmp_path, layer, algorithm, expected):
    fields = {key: value for key, value in RAN.items() if ":" not in key}
    path = save(tmp_path, {"name": FIRST.format(layer, algorithm), **fields})
    with refused("names no GPU; ", "--gpu"):
        FORMATS["cudnn-scope"].read([path])
    rows = FORMATS["cudnn-scope"].read([path], gpu="v100", library_version="7.1").rows
    assert rows.iloc[0][["direction", "dtype", "math", "algorithm"]].tolist() == list(expected)
    sizes = ["n", "c", "h", "w", "k", "r", "s", "pad_w", "stride_h"]
    assert rows.iloc[0][sizes].tolist() == [2, 64, 28, 30, 128, 3, 5, 2, 2]
    assert rows["heuristic_algorithm"].isna().tolist() == [True]


def test_repetitions_become_one_row(tmp_path: Path) -> None:
    name = SECOND.format("GEMM")
    times = [{"name": name, **RAN, "real_time": t, "time_unit": "us"} for t in (30.0, 10.0, 20.0)]
    mean = {"name": name, **RAN, "run_type": "aggregate", "real_time": 1.0}
    imported = FORMATS["cudnn-scope"].read([save(tmp_path, *times, mean, {"name": name, **FAILED})])
    columns = ["status", "time_us", "time_us_min", "time_us_max", "repeats"]
    assert imported.rows[columns].to_numpy().tolist() == [["ok", 20.0, 10.0, 30.0, 3]]
    assert "1 benchmark left out" in imported.notes[0]


def test_truncated_file_gives_its_complete_benchmarks(tmp_path: Path) -> None:
    path = save(tmp_path, {"name": SECOND.format("GEMM"), **RAN}, {"name": SECOND.format("FFT"), **RAN})
    path.write_text(path.read_text()[:-60])
    imported = FORMATS["cudnn-scope"].read([path])
    assert imported.rows["algorithm"].tolist() == ["GEMM"]
    assert "ends within" in imported.notes[0]


@cases(__file__)
def test_wrong_files_are_refused(refused, tmp_path: Path, old: str, new: str, message: str) -> None:
    path = save(tmp_path, {"name": SECOND.format("GEMM"), **RAN})
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with refused(str(path), message):
        FORMATS["cudnn-scope"].read([path])


@cases(__file__)
def test_samples_agree_with_the_published_table(measurements, sample, origin, options, minimum, tolerance):
    """The published table rounds to six digits and takes the median of more files than the 2018 sample."""
    rows = FORMATS["cudnn-scope"].read([measurements / "raw" / f"{sample}.json.gz"], **options).rows
    published = pd.read_parquet(measurements / "cudnn_conv_per_algorithm.parquet")
    names = {"gpu": {"Tesla V100-PCIE-16GB": "v100-pcie-16gb"}}
    published = published[published["origin"] == origin].replace(names)
    both = rows.replace(names).merge(published, on=list(KEY_COLUMNS), suffixes=("", "_published"))
    assert len(both) >= minimum
    assert (both["status"] == both["status_published"]).all()
    ok = both[both["status"] == "ok"]
    assert len(ok) > 40
    for column in ("time_us", "workspace_bytes"):
        assert ((ok[column] - ok[f"{column}_published"]).abs() <= tolerance * ok[f"{column}_published"]).all()
    assert (ok["heuristic_algorithm"].fillna("") == ok["heuristic_algorithm_published"].fillna("")).all()


def test_benchmarks_with_counters_give_kernels_without_times(measurements: Path) -> None:
    """81 operations transform each of the 256² filters, and 240 each of the 16 · 16 · 256 input tiles."""
    imported = FORMATS["cudnn-scope"].read([measurements / "raw" / "dlperf_v100_profile" / "batch_16.json.gz"])
    assert set(imported.rows["status"]) == {"not_supported"} and "44 benchmarks counted" in imported.notes[-1]
    kernels = imported.kernels
    assert kernels is not None and not kernels.duplicated([*KEY_COLUMNS, "kernel_index"]).any()
    assert set(kernels[["dtype", "math"]].agg(" ".join, axis=1)) == {"fp16 tensor_op"}
    assert len(kernels.drop_duplicates(list(KEY_COLUMNS))) == 44
    chosen = (kernels["algorithm"] == "WINOGRAD_NONFUSED") & (kernels["h"] == 14)
    transforms = kernels[chosen].set_index("kernel_index")["flop_count_sp"]
    assert transforms.tolist() == [240 * 16 * 16 * 256, 81 * 256**2, 16842752, 0]
    counted = kernels["fadd_instructions"] + kernels["fmul_instructions"] + 2 * kernels["ffma_instructions"]
    assert (counted == kernels["flop_count_sp"]).all()
    assert not {"time_us", "fp32_instructions", "dram_read_transactions"} & set(kernels)


def test_benchmarks_without_counters_give_times(tmp_path: Path) -> None:
    """The same problem without CUPTI keeps its time; a utilisation level is ten per cent."""
    name = SECOND.format("GEMM")
    metrics = ANSWERS["test_benchmarks_without_counters_give_times"]["metrics"]
    path = save(tmp_path, {"name": name, **RAN, "real_time": 1e9, **metrics}, {"name": name, **RAN})
    imported = FORMATS["cudnn-scope"].read([path])
    assert imported.rows["time_us"].tolist() == [59.0] and imported.kernels is not None
    columns = ["kernel_name", "half_precision_fu_utilization_pct", "kernel_index"]
    assert imported.kernels[columns].to_numpy().tolist() == [["sgemm(a/b)", 40.0, 0]]
