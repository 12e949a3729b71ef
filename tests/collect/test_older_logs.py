"""Logs of an older collector still merge: convolutions with counters, and other operators, measured on the fake GPU.

A log outlives the collector that wrote it. Measurements on a rented GPU may be merged by a later version.
"""

import json
from collections import Counter
from pathlib import Path
from statistics import median

import pandas as pd
import pytest

from surrogate.collect.merge import merge_runs

LOGS = Path(__file__).with_name("logs")
CONVOLUTIONS, OPERATORS = LOGS / "conv-fma-forward.jsonl", LOGS / "operators.jsonl"


def results(path: Path) -> list[dict]:
    """Return the results of a log's measurements in its order."""
    return [record["result"] for record in map(json.loads, path.read_text().splitlines()) if "result" in record]


def test_convolutions_keep_times_rankings_and_counters():
    merged = merge_runs([CONVOLUTIONS])
    rows = merged.frame
    assert Counter(rows["status"]) == {"ok": 15, "not_supported": 8, "workspace_too_large": 1}
    ok = rows[rows["status"] == "ok"]
    medians = sorted(median(each["times_us"]) for each in results(CONVOLUTIONS) if each["status"] == "ok")
    assert sorted(ok["time_us"]) == pytest.approx(medians)
    assert set(ok["timer"]) == {"cupti"} and ok[["find_time_us", "heuristic_algorithm"]].notna().all(axis=None)
    assert set(rows["gpu"]) == {"NVIDIA H100 80GB HBM3"} and set(rows["library_version"]) == {"9.19.0"}
    assert Counter(rows["origin"]) == {"grid seer-fft": 8, "network": 8, "sample": 8} and merged.candidates == "all"
    kernels = merged.kernels
    assert kernels is not None and len(kernels) == 37
    counted = kernels[kernels["fp32_instructions"].notna()]
    assert len(counted) == merged.metadata["counted_kernels"] == merged.metadata["counted_kernels_joined"] == 12
    assert counted[["dram_read_transactions", "l2_write_sectors", "counted_time_us"]].notna().all(axis=None)


def test_the_command_merges_both_logs(seer, tmp_path):
    table, operators = tmp_path / "h100.parquet", tmp_path / "operators.parquet"
    assert "24 rows" in seer("data", "merge", CONVOLUTIONS, "-o", table).succeeded().out
    assert pd.read_parquet(tmp_path / "h100.kernels.parquet")["fp32_instructions"].notna().sum() == 12
    assert "6 rows" in seer("data", "merge", OPERATORS, "-o", operators).succeeded().out
    rows = pd.read_parquet(operators)
    assert rows["operator"].tolist() == ["max_pool", "batch_norm", "relu", "softmax", "gemm", "embedding_bag"]
    assert rows["time_us"].tolist() == pytest.approx([median(each["times_us"]) for each in results(OPERATORS)])
    for path in (table, operators):
        assert "no violations" in seer("data", "check", path).succeeded().out
