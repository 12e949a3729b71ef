"""Error measures with known answers: medians and intervals, picks, variants and operators."""

import numpy as np
import pandas as pd
import pytest

from experiments.ablation import FULL, GROUPS, median_change, variant_verdicts, variants, without
from experiments.experiment import Effort
from experiments.held_out import candidate_rows, cross_validate, predict_rounds, rounds_by
from experiments.operators import errors, held_out
from experiments.picker import error_rates
from experiments.sources import Sources
from experiments.test_set_ii import EVERY, by_network
from experiments.verdicts import HEURISTIC, choice_verdicts, error_record, problem_picks
from surrogate.dataset.store import Dataset
from surrogate.features.families import CONV
from surrogate.models.base import dimension_columns, term_columns
from surrogate.models.baselines import AlwaysBestSingle
from surrogate.models.boosted import BoostedTerms


def test_error_record_matches_known_answers() -> None:
    """The errors are 10, 20 and 40 %; with only one shape to draw, the interval has no width."""
    record = error_record(np.array([110.0, 120.0, 60.0]), np.full(3, 100.0), np.zeros(3, dtype=int))
    assert (record["n"], record["shapes"]) == (3, 1)
    medians = [record[name] for name in ("median_error_pct", "error_low_pct", "error_high_pct")]
    assert medians == pytest.approx([20, 20, 20])
    squares = np.sqrt((0.01 + 0.04 + 0.16) / 3)
    assert (record["rmspe_pct"], record["rmse_ms"]) == pytest.approx((100 * squares, 0.1 * squares))


def test_infeasible_picks_are_right_only_by_the_rule_of_seer() -> None:
    """Picks are best, within 10 %, slow, and two infeasible ones, charged a slowdown of 3 and of 1.05."""
    slowdown, infeasible = [1.0, 1.1, 1.2, 3.0, 1.05], [False, False, False, True, True]
    picks = pd.DataFrame({"model": "m", "shape": range(5), "slowdown": slowdown, "infeasible": infeasible})
    (row,) = error_rates(picks).to_dict("records")
    assert (row["wrong_seer_pct"], row["wrong_pct"], row["infeasible_pct"]) == (20, 60, 40)


def test_times_of_an_oracle_give_no_slowdown(table) -> None:
    """Predictions equal to the measured times pick the fastest algorithm of every problem."""
    data = Dataset(table(8, noise=0.0))
    holdout = cross_validate(data, Effort().by_name("roofline"), count=3, seed=0, tick=lambda text: None)
    holdout.time_us["roofline"][:] = np.nan_to_num(holdout.rows.time_us, nan=np.inf)
    verdicts = choice_verdicts(holdout).set_index("model")["slowdown_macro"]
    assert verdicts["roofline"] == 1.0 < verdicts[HEURISTIC]
    picks = problem_picks(holdout)
    assert set(picks["model"]) == {"roofline", HEURISTIC}
    best = pd.Series(holdout.rows.time_us).groupby(holdout.rows.problem).min()
    np.testing.assert_allclose(picks["best_us"], best.reindex(holdout.rows.problem[picks["row"].to_numpy(dtype=int)]))
    totals = by_network(holdout)
    exact = totals[(totals["model"] == "roofline") & totals["total_error_pct"].notna()]
    assert len(exact) > 1 and EVERY in set(totals["network"])
    np.testing.assert_allclose(exact["total_error_pct"], 0, atol=1e-9)
    holdout.time_us["roofline"][:] *= 1.25
    totals = by_network(holdout)
    overall = totals[(totals["network"] == EVERY) & (totals["model"] == "roofline")].iloc[0]
    assert [overall["rmspe_pct"], overall["minimum_rmspe_pct"]] == pytest.approx([25, 25])
    root_mean_square = np.sqrt((picks.loc[picks["model"] == "roofline", "best_us"] ** 2).mean())
    assert overall["minimum_rmse_ms"] == pytest.approx(0.25 * root_mean_square / 1000)


def test_groups_contain_each_term_once_and_a_variant_lacks_its_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) | set(dimension_columns(CONV)) == set(term_columns(CONV))
    for names in GROUPS.values():
        assert set(term_columns(CONV)) - set(without(names)().columns(CONV)) == set(names)
    assert next(iter(variants(0))) == FULL


def test_median_change_matches_a_known_answer() -> None:
    """All errors are 10 % and 30 %, so that every bootstrap draw gives a change of 20 points."""
    measured = np.array([1.0, 2.0, 4.0, 8.0])
    change = median_change(1.3 * measured, 1.1 * measured, measured, np.array([0, 0, 1, 2]))
    assert change == pytest.approx((0.2, 0.2, 0.2))


def test_the_first_variant_is_compared_with_itself(sources: Sources) -> None:
    data = sources.dataset("cudnn")
    rows = candidate_rows([data])
    trees = BoostedTerms(rounds=15, learning_rate=0.3)
    compared = {"trees": trees, "again": trees, "single": AlwaysBestSingle()}
    holdout = predict_rounds(rows, data.candidates, rounds_by("shape", rows, 3, 0), compared, lambda text: None)
    changed = variant_verdicts(holdout).set_index("variant").filter(like="change")
    assert list(changed.index) == ["trees", "again", "single"]
    assert (changed.loc[["trees", "again"]] == 0).all(axis=None)
    assert changed.loc["single", "error_change_pct"] != 0


def test_operators_are_compared_with_the_default_on_the_same_rows(sources: Sources, effort: Effort) -> None:
    """The default model compared with itself has no difference and covers every row."""
    parts = list(held_out(sources, ("dense",), "shape", effort.by_name("roofline", "boosted-terms"), effort))
    table = errors(parts, ("operator",))
    assert set(table["operator"]) == {"bmm", "layer_norm"} and len(table) == 4
    own = table[table["model"] == "boosted-terms"]
    np.testing.assert_array_equal(own["median_error_pct"], own["default_same_rows_pct"])
    assert (own["coverage_pct"] == 100).all() and own["n"].sum() == sum(len(part.rows) for part in parts)
