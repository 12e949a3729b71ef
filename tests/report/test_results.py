"""`results.json`: what is refused, in how many lines; which slice and order tables take; the judged rows as CSV."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.errors import InputError
from surrogate.report.page import write_report
from surrogate.report.results import (
    SCHEMA,
    best_model,
    by_family,
    check_results,
    choice_rows,
    csv_text,
    shown_models,
    time_rows,
    values,
)
from surrogate.report.summary import terminal_summary


def _refused(path: Path, text: str | bytes) -> str:
    path.mkdir(exist_ok=True)
    (path / "results.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as raised:
        write_report(path)
    assert "\n" not in str(raised.value)
    assert {entry.name for entry in path.iterdir()} == {"results.json"}
    return str(raised.value)


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no results.json in .*; `seer compare -o .*` writes one"):
        write_report(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2", b"\xff\xfe\x00", "[" * 100_000])
def test_what_is_not_json_is_refused(tmp_path: Path, text: str | bytes) -> None:
    assert "write it again with seer compare" in _refused(tmp_path, text)


def test_a_newer_schema_is_refused_politely(tmp_path: Path) -> None:
    message = _refused(tmp_path, json.dumps({"schema": SCHEMA + 1, "time_rows": [], "choice_rows": []}))
    assert f"has schema {SCHEMA + 1}" in message and "update seer-surrogate" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": None}, "schema is None"),
        ({"schema": "1"}, "schema is '1'"),
        ({"dataset": []}, "dataset is []"),
        ({"time_rows": None}, "no list time_rows"),
        ({"choice_rows": [3]}, "choice_rows[0] is not an object with a model"),
        ({"choice_rows": [{"model": "a", "slowdown_macro": "fast"}]}, "slowdown_macro is 'fast'"),
        ({"choice_rows": [{"model": "a", "n": 10**400}]}, "n is 1000"),
        ({"choice_rows": [{"model": "a", "paired_vs_heuristic": [1, 2]}]}, "paired_vs_heuristic is [1, 2]"),
        ({"choice_rows": [{"model": "a", "slowdown_geomean_ci": 7}]}, "slowdown_geomean_ci is 7"),
        ({"time_rows": [{"model": "a", "gpu": 7}]}, "gpu is 7"),
        ({"time_rows": [{"model": "\ud800"}]}, "surrogate"),
    ],
)
def test_a_broken_part_is_named(
    tmp_path: Path, results: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    assert message in _refused(tmp_path, json.dumps({**results, **change}))


def test_an_object_that_is_not_results_is_refused() -> None:
    for other in ([], None, "results"):
        with pytest.raises(InputError, match="not an object"):
            check_results(other)
    with pytest.raises(InputError, match="schema is None"):
        terminal_summary({})


def test_learned_models_come_first_then_references(results: dict[str, Any]) -> None:
    names = [row["model"] for row in choice_rows(results)]
    assert names[0] == "booster"
    assert names[-4:] == ["seer-paper", "oracle", "cudnn-heuristic", "always-best-single"]


def test_the_primary_slice_is_ungrouped_over_all_gpus(results: dict[str, Any]) -> None:
    assert {(row["stratum"], row["gpu"]) for row in choice_rows(results)} == {("ungrouped", "all")}
    assert {(row["stratum"], row["population"]) for row in time_rows(results)} == {("all", "all")}


def test_all_strata_stand_in_where_nothing_ungrouped_was_judged(results: dict[str, Any]) -> None:
    for row in results["choice_rows"]:
        if row["stratum"] == "ungrouped":
            row["n"] = 0
    assert {row["stratum"] for row in choice_rows(results)} == {"all"}
    assert {row["stratum"] for row in choice_rows(results, stratum="grouped")} == {"grouped"}
    assert {row["gpu"] for row in choice_rows(results, gpu="Tesla T4")} == {"Tesla T4"}
    assert [row["model"] for row in choice_rows({"choice_rows": [{"model": "a", "n": 1}]})] == ["a"]


def test_best_model_is_never_a_reference(results: dict[str, Any]) -> None:
    assert best_model(results) == "booster"
    results["choice_rows"] = [
        r for r in results["choice_rows"] if r["model"] in ("oracle", "cudnn-heuristic")
    ]
    assert best_model(results) == "booster"  # by its times
    results["time_rows"] = []
    assert best_model(results) is None


def test_values_are_of_judged_rows_in_the_wanted_order() -> None:
    rows = [{"gpu": "b", "n": 1}, {"gpu": "A", "n": 1}, {"gpu": "c", "n": 0}, {"gpu": "all", "n": 5}]
    assert values(rows, "gpu") == ["A", "b"]
    assert values(rows, "gpu", ("b",)) == ["b", "A"]


def test_shown_models_are_the_best_four_and_two_references(results: dict[str, Any]) -> None:
    assert shown_models(results) == [
        "booster", "booster-raw", "nearest", "seer-time-only", "cudnn-heuristic", "always-best-single",
    ]  # fmt: skip


def test_several_families_are_told_apart_and_one_is_everything(results: dict[str, Any]) -> None:
    assert by_family(results) == {"": results}
    results["choice_rows"] = [
        {**row, "family": family} for family in ("gemm", "conv") for row in results["choice_rows"]
    ]
    parts = by_family(results)
    assert list(parts) == ["conv", "gemm"] and parts["gemm"]["dataset"] == results["dataset"]
    assert {row["family"] for row in parts["gemm"]["choice_rows"]} == {"gemm"}


def test_csv_has_every_row_and_column(results: dict[str, Any]) -> None:
    read = list(csv.DictReader(csv_text(results["choice_rows"]).splitlines()))
    assert len(read) == len(results["choice_rows"])
    for got, row in zip(read, results["choice_rows"], strict=True):
        assert got["model"] == row["model"] and got["reason"] == row.get("reason", "")
        assert got["paired_low"] == str((row["paired_vs_heuristic"] or [""])[0])
        assert got["slowdown_macro"] == ("" if row["slowdown_macro"] is None else repr(row["slowdown_macro"]))


def test_csv_of_intervals_nulls_nested_values_and_nothing() -> None:
    rows = [
        {
            "model": "a,b",
            "n": 1,
            "slowdown_geomean_ci": [1.0, 2.0],
            "paired_vs_heuristic": None,
            "x": {"k": [1]},
        },
        {"model": "c", "n": 0, "slowdown_geomean_ci": None, "paired_vs_heuristic": [1, 2, 3], "x": math.nan},
    ]
    assert csv_text(rows).splitlines() == [
        "model,n,slowdown_geomean_ci_low,slowdown_geomean_ci_high,paired_low,paired_mid,paired_high,x",
        '"a,b",1,1.0,2.0,,,,"{""k"": [1]}"',
        "c,0,,,1,2,3,",
    ]
    assert csv_text([]).startswith("model,split,family,stratum,") and csv_text([]).count("\n") == 1
