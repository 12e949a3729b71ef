"""``seer``, ``seer gpus`` and ``seer data`` through the entry point."""

import shutil
import tomllib
from importlib import resources
from pathlib import Path

import pandas as pd


def test_gpus_lists_all_with_the_expected_accuracy(seer):
    records = seer("gpus", "--json").json
    assert {"v100-sxm2-16gb", "h200-sxm", "mi210"} <= {row["name"] for row in records}
    answers = {row["name"]: row["answers"] for row in records}
    measured, unseen = answers["t4"]["conv"], answers["h100-sxm"]["conv"]
    assert measured["bundle"] == unseen["bundle"] == "cudnn7"
    assert measured["rows"] > 1000 > unseen["rows"] == 0
    assert (measured["source"], unseen["source"]) == ("model", "datasheet")
    assert 1 < measured["factor_90"] < unseen["factor_90"] and measured["median_ape"] < unseen["median_ape"]
    assert all({"gemm", "pointwise"} <= set(row) for row in answers.values())
    lines = seer("gpus", "--csv").out.splitlines()
    assert "conv_factor_90" in lines[0] and len(lines) == 1 + len(records)


def test_every_figure_of_a_gpu_is_explained(seer):
    words = tomllib.loads(resources.files("surrogate.cli").joinpath("gpus.toml").read_text(encoding="utf-8"))["figures"]
    assert {*words, "answers"} == {*seer("gpus", "t4", "--json").json}
    text = seer("gpus", "mi210").out
    assert all(key in text and meaning in text for key, meaning in words.items()) and "times of kernels on it" in text


def test_data_check_names_each_violation_with_its_row(seer, table, dataset, tmp_path):
    assert seer("data", "check", dataset).code == 0
    bad = table.copy()
    bad.loc[3, "c"] = -1
    bad.loc[5, "status"] = "fine"
    bad.to_parquet(tmp_path / "bad.parquet")
    result = seer("data", "check", tmp_path / "bad.parquet", "--json")
    assert result.code == 1
    assert {(v["row"], v["column"]) for v in result.json} >= {(4, "c"), (6, "status")}


def test_data_info_counts_problems_and_shapes(seer, dataset):
    records = seer("data", "info", dataset, "--json").json
    assert [r["gpu"] for r in records] == ["Tesla T4", "Tesla V100-SXM2-16GB"]
    assert all(r["problems"] == 32 and r["shapes"] == 16 and r["judged_problems"] == 32 for r in records)


def test_data_merge_keeps_every_row_once(seer, table, tmp_path):
    table.iloc[:100].to_parquet(tmp_path / "a.parquet")
    table.iloc[60:].to_parquet(tmp_path / "b.parquet")
    assert seer("data", "merge", tmp_path / "a.parquet", tmp_path / "b.parquet", "-o", tmp_path / "m.parquet").code == 0
    assert len(pd.read_parquet(tmp_path / "m.parquet")) == len(table)
    mixed = seer("data", "merge", tmp_path / "a.parquet", "run.jsonl", "-o", tmp_path / "n.parquet")
    assert mixed.code == 2 and not (tmp_path / "n.parquet").exists()


def test_import_does_not_replace_its_input(seer, tmp_path):
    sample = Path(__file__).parents[1] / "formats" / "samples" / "nvprof_trace.csv"
    path = shutil.copy(sample, tmp_path)
    assert seer("import", "nvprof", path, "--gpu", "t4", "-o", path).is_refusal("is also the input")
    assert Path(path).read_bytes() == sample.read_bytes()
