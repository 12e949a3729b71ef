"""Which slice and order the tables take."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from surrogate.report.rows import best_model, choice_rows, narrow, time_rows, values

_ROW = st.fixed_dictionaries(
    {"model": st.sampled_from("abc"), "n": st.integers(0, 9), "gpu": st.sampled_from(["all", "x", "y"]),
     "stratum": st.sampled_from(["all", "ungrouped", "grouped"])}
)  # fmt: skip


@given(st.lists(_ROW, min_size=1))
def test_narrow_keeps_one_slice_of_the_given_rows(rows: list[dict[str, Any]]) -> None:
    kept = narrow(rows, {"gpu": ("all",), "stratum": ("ungrouped", "all")})
    assert kept and all(row in rows for row in kept)
    assert len({(row["gpu"], row["stratum"]) for row in kept}) == 1


@given(st.lists(_ROW, min_size=1))
def test_narrow_finds_what_was_judged(rows: list[dict[str, Any]]) -> None:
    kept = narrow(rows, {"gpu": ("all",), "stratum": ("ungrouped", "all")})
    assert any(row["n"] for row in kept) == any(row["n"] for row in rows)


def test_a_row_without_a_key_covers_all_of_it() -> None:
    assert narrow([{"model": "a", "n": 1}], {"gpu": ("all",)}) == [{"model": "a", "n": 1}]


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
