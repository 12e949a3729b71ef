"""Tests of `results.json`: refused content, slices and order of rows, and CSV."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.errors import InputError
from surrogate.report import results as stored
from surrogate.report.comparison import write_report
from tests.known import cases


@cases(__file__)
def test_unusable_results_are_refused_and_the_folder_is_unchanged(tmp_path, results, content, word):
    if isinstance(content, dict):
        content = json.dumps({**results, **content})
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, match=word) as raised:
        write_report(tmp_path)
    assert "\n" not in str(raised.value) and set(tmp_path.iterdir()) == before


def test_learned_models_come_first_then_references(results: dict[str, Any]) -> None:
    names = [row["model"] for row in stored.choice_rows(results)]
    assert names[0] == "stacked-terms"
    assert names[-3:] == ["oracle", "cudnn-heuristic", "always-best-single"]
    assert not {"seer-paper", "configurations"} & set(names)  # they have no evaluated row


def test_the_primary_slice_is_ungrouped_over_all_gpus(results: dict[str, Any]) -> None:
    assert {(row["stratum"], row["gpu"]) for row in stored.choice_rows(results)} == {("ungrouped", "all")}
    assert {(row["stratum"], row["population"]) for row in stored.time_rows(results)} == {("all", "all")}


def test_the_slice_is_all_strata_if_ungrouped_has_no_rows(results: dict[str, Any]) -> None:
    for row in results["choice_rows"]:
        if row["stratum"] == "ungrouped":
            row["n"] = 0
    assert {row["stratum"] for row in stored.choice_rows(results)} == {"all"}
    assert {row["stratum"] for row in stored.choice_rows(results, stratum="grouped")} == {"grouped"}
    assert {row["gpu"] for row in stored.choice_rows(results, gpu="Tesla T4")} == {"Tesla T4"}
    assert [row["model"] for row in stored.choice_rows({"choice_rows": [{"model": "a", "n": 1}]})] == ["a"]


def test_the_reported_model_is_fixed_in_advance_or_the_best_learned_one(results: dict[str, Any]) -> None:
    results["reported"] = {"conv": "linear-terms"}
    assert stored.reported_model(results) == "linear-terms"
    for unknown in ({"conv": None}, {"conv": "not-judged"}, {"gemm": "linear-terms"}, None):
        results["reported"] = unknown
        assert stored.reported_model(results) == "stacked-terms"
    names = ("oracle", "cudnn-heuristic")
    results["choice_rows"] = [row for row in results["choice_rows"] if row["model"] in names]
    assert stored.reported_model(results) == "stacked-terms"  # by its times
    results["time_rows"] = []
    assert stored.reported_model(results) is None


def test_references_are_evaluated_models_and_the_heuristic_by_default(results: dict[str, Any]) -> None:
    models = results["references"]["conv"]
    assert stored.references(results) == models and len(models) == 4
    models["paper"] = "seer-paper"
    assert "paper" not in stored.references(results)
    del results["references"]
    assert stored.references(results) == {"heuristic": "cudnn-heuristic"}


def test_log_ratios_of_schema_1_become_relative(results: dict[str, Any], tmp_path: Path) -> None:
    row = {"model": "m", "n": 1, "slowdown_macro": 1.0, "paired_problems": 9}
    logs = {"paired_vs_heuristic": [math.log(0.9), math.log(1.1), 1e4], "paired_pooled_vs_heuristic": None}
    old = {"schema": 1, "time_rows": [], "choice_rows": [row | logs]}
    (tmp_path / "results.json").write_text(json.dumps(old))
    (converted,) = stored.read_results(tmp_path)["choice_rows"]
    assert converted["paired_vs_heuristic"][:2] == pytest.approx([-0.1, 0.1])
    assert math.isfinite(converted["paired_vs_heuristic"][2])
    assert converted["paired_problems"] == 9 and converted["paired_pooled_vs_heuristic"] is None
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert stored.read_results(tmp_path) == results  # schema 2 is relative


def test_values_come_from_evaluated_rows_in_the_given_order() -> None:
    rows = [{"gpu": "b", "n": 1}, {"gpu": "A", "n": 1}, {"gpu": "c", "n": 0}, {"gpu": "all", "n": 5}]
    assert stored.values(rows, "gpu") == ["A", "b"]
    assert stored.values(rows, "gpu", ("b",)) == ["b", "A"]


def test_drawn_models_are_the_reported_one_its_references_and_the_best_others(results: dict[str, Any]) -> None:
    four = ["stacked-terms", "seer-time-only", "linear-terms", "boosted-terms"]
    assert stored.drawn_models(results) == [*four, "cudnn-heuristic", "always-best-single"]
    del results["reported"], results["references"]
    assert stored.drawn_models(results)[:4] == ["stacked-terms", "boosted-terms", "linear-terms", "seer-time-only"]


def test_results_are_split_by_family_unless_there_is_one(results: dict[str, Any]) -> None:
    assert stored.by_family(results) == {"": results}
    results["costs"].append({"family": "gemm", "model": "m", "fits": 1})
    rows = results["choice_rows"]
    results["choice_rows"] = [{**row, "family": family} for family in ("gemm", "conv") for row in rows]
    parts = stored.by_family(results)
    assert list(parts) == ["conv", "gemm"] and parts["gemm"]["dataset"] == results["dataset"]
    assert {row["family"] for row in parts["gemm"]["choice_rows"]} == {"gemm"}
    assert (len(parts["gemm"]["costs"]), len(parts["conv"]["costs"])) == (1, 5)
    assert not parts["gemm"]["coverage"]


def test_csv_has_every_row_and_column(results: dict[str, Any]) -> None:
    csv_rows = list(csv.DictReader(stored.csv_text(results["choice_rows"]).splitlines()))
    assert len(csv_rows) == len(results["choice_rows"])
    for got, row in zip(csv_rows, results["choice_rows"], strict=True):
        assert got["model"] == row["model"] and got["reason"] == row.get("reason", "")
        assert got["paired_low"] == str((row.get("paired_vs_heuristic") or [""])[0])
        assert got["paired_vs_seer_mid"] == str((row.get("paired_vs_seer") or ["", ""])[1])
        assert got["slowdown_macro"] == ("" if row.get("slowdown_macro") is None else repr(row["slowdown_macro"]))


def test_csv_writes_intervals_nulls_nested_values_and_no_rows() -> None:
    names = ("model", "n", "slowdown_geomean_ci", "paired_vs_heuristic", "x")
    values = [("a,b", 1, [1.0, 2.0], None, {"k": [1]}), ("c", 0, None, [1, 2, 3], math.nan)]
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in values]
    assert stored.csv_text(rows).splitlines() == [
        "model,n,slowdown_geomean_ci_low,slowdown_geomean_ci_high,paired_low,paired_mid,paired_high,x",
        '"a,b",1,1.0,2.0,,,,"{""k"": [1]}"',
        "c,0,,,1,2,3,",
    ]
    assert stored.csv_text([]).startswith("model,split,family,stratum,") and stored.csv_text([]).count("\n") == 1
