"""``seer train``, ``evaluate``, ``predict`` and ``info`` through the entry point."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def bundle(trained, tmp_path):
    """Return a copy of the trained bundle that the test may change."""
    return Path(shutil.copytree(trained, tmp_path / "bundle"))


@pytest.mark.filterwarnings("ignore:column note is not read")
def test_predict_keeps_rows_columns_and_order_and_adds_others(seer, bundle, table, tmp_path):
    problems = table.drop(columns=["status", "time_us"]).sample(frac=1, random_state=0)
    problems["note"] = np.arange(len(problems))
    problems.to_parquet(tmp_path / "p.parquet")
    result = seer("predict", "--bundle", bundle, "--data", tmp_path / "p.parquet", "-o", tmp_path / "q.parquet")
    assert result.code == 0, result.err
    out = pd.read_parquet(tmp_path / "q.parquet")
    added = ["predicted_us", "lower_us", "upper_us", "in_domain", "supported", "source"]
    assert list(out.columns) == [*problems.columns, *added]
    assert (out["note"].to_numpy() == problems["note"].to_numpy()).all()
    assert ((out.lower_us < out.predicted_us) & (out.predicted_us < out.upper_us)).all()
    assert out["in_domain"].all()
    winograd = out[out.algorithm == "WINOGRAD"]
    assert (winograd.supported == (winograd.r == 3)).all()


def test_evaluate_and_info_report_coverage_and_widths_for_each_gpu(seer, bundle, dataset):
    records = seer("evaluate", bundle, dataset, "--json").json
    seen = next(r for r in records if (r["part"], r["stratum"]) == ("seen", "all"))
    assert [row["gpu"] for row in seen["intervals"]] == ["t4", "v100-sxm2-16gb"]
    assert sum(row["rows"] for row in seen["intervals"]) == seen["rows"]
    low, high = seen["interval_coverage_ci"]
    assert 0 <= low <= seen["interval_coverage"] <= high <= 1
    assert seen["interval_factor"] > 1 and seen["in_domain"] == 1.0
    assert 0 < seen["pick_probability"] <= 1 and 0 < seen["pick_was_best"] <= 1
    text = seer("evaluate", bundle, dataset).out
    assert f"{seen['median_ape']:.1%}" in text and "90 % intervals cover t4" in text
    # A figure without any value has a key in JSON but no row in the table.
    assert "paired_vs_seer" in seen and seen["paired_vs_seer"] is None and seen["paired_problems_vs_seer"] == 0
    rows = {line.split("  ")[0]: line.split("  ")[1:] for line in text.splitlines()}
    assert "slowdown" in rows and not {"paired_vs_seer", "paired_problems_vs_seer", "paired_vs_trees"} & rows.keys()
    assert all({*map(str.strip, cells)} - {"", "–"} for cells in rows.values())
    holdout = seer("info", bundle, "--json").json["card"]["held_out"]["conv"]
    assert [row["gpu"] for row in holdout["intervals"]] == ["all", "t4", "v100-sxm2-16gb"]
    assert all(0.7 < row["coverage"] <= 1 and row["half_width"] > 0 for row in holdout["intervals"])
    assert " t4 " in seer("info", bundle).out


def test_training_again_replaces_the_bundle(seer, dataset, bundle):
    assert seer("train", dataset, "--model", "linear-dims", "-o", bundle).code == 0
    assert seer("info", bundle, "--json").json["parts"]["conv"]["model"] == "linear-dims"


def test_the_info_of_a_gpu_lists_the_bundles_that_answer_for_it(seer) -> None:
    """Each bundle is shown by its name. The name of MI300X's bundle is also the GPU's."""
    listed = seer("info", "h100").succeeded().out
    assert all(name in listed for name in ("h100-sxm", "cudnn7", "language_gemm", "56827", "datasheet"))
    assert "2,607,090 measured times" in seer("info", "language_gemm").succeeded().out
    assert "language_gemm" in seer("info", "gb200").succeeded().out  # no bundle of convolutions covers its library
    both = seer("info", "mi300x").succeeded().out
    assert "aiter" in both and "licences" in both
    assert seer("info", "language_gem").is_refusal("no bundle there")
