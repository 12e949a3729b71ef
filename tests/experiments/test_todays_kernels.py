"""The comparison with aiconfigurator on an invented table, if aiconfigurator is not installed."""

import sys
from itertools import product

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from experiments import todays_kernels
from surrogate.dataset.store import write_dataset

SLOW = {"vllm": 1.0, "trtllm": 1.2, "sglang": 1.5}


@pytest.mark.parametrize("leave_out", ["none", "siblings"])
def test_a_comparison_without_aiconfigurator_gives_the_reason(leave_out, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("experiments.todays_verdicts.DRAWS", 20)
    sizes = product(("h100-sxm", "h200-sxm", "b200"), SLOW, (1, 64, 4096), (512, 1024, 2048, 4096), (512, 1024, 2048))
    frame = pd.DataFrame(list(sizes), columns=["gpu", "library", "m", "n", "k"])
    time_us = (5.0 + frame["m"] * frame["n"] * frame["k"] / 1e8) * frame["library"].map(SLOW)
    frame = frame.assign(family="gemm", operator="gemm", dtype="bf16", math="default", variant="", batch=1)
    frame = frame.assign(library_version="1", algorithm=frame["library"], status="ok", time_us=time_us)
    frame = frame.assign(spike=np.arange(len(frame)) % 10 == 0)
    write_dataset(frame, tmp_path / "gemm.parquet", candidates="listed")
    words = f"--family gemm --table {tmp_path / 'gemm.parquet'} --judge h100-sxm --most-rows 90 --leave-out {leave_out}"
    words += f" --aiconfigurator-python {sys.executable}-none --out {tmp_path}"
    done = CliRunner().invoke(todays_kernels.main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    name = "todays_gemm" + "_siblings" * (leave_out == "siblings")
    table = pd.read_csv(tmp_path / "tables" / f"{name}.csv").set_index("model")
    assert table.loc["aiconfigurator", "n"] == 0 and isinstance(table.loc["aiconfigurator", "reason"], str)
    raw = table[(table["population"] == "raw") & (table["part"] == "all") & (table["frameworks"] == "all")]
    assert raw.loc["always-best-single", "slowdown"] == 1.0 and raw.loc["interpolated-terms", "problems"] == 6
    if leave_out == "siblings":
        # B200 is as fast as H100 here, so the scaled copy has the error of the ratio of rooflines.
        assert raw.loc["best single of the nearest GPU", "slowdown"] == 1.0
        assert raw.loc["copy of the nearest GPU", "median_error_pct"] > 10
        errors = raw.loc[["interpolated-terms", "calibrated by 10 problems"], "median_error_pct"]
        assert errors.iloc[1] < errors.iloc[0]
        assert "calibrated by 50 problems" not in raw.index  # there are only 30 problems
