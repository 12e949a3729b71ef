"""Figures with known answers: medians and their intervals, error rates of picks, changes between versions, traits."""

import numpy as np
import pandas as pd
import pytest
from experiments.words import interval, listing, percent, ratio
from hypothesis import given
from hypothesis import strategies as st

from experiments.held_out import candidate_rows, cross_validate
from experiments.picker import error_rates
from experiments.test_set_ii import EVERY, by_network
from experiments.verdicts import choice_verdicts, error_record, median_interval, problem_picks
from experiments.versions import changes
from experiments.winners_classes import class_terms, classify
from experiments.worst_errors import shares, traits
from surrogate.dataset.store import Dataset
from surrogate.evaluation.scorecard import HEURISTIC
from surrogate.features.problem import SIZE_COLUMNS


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30))
def test_an_interval_lies_within_the_data(errors: list[float]) -> None:
    """Each row a shape of its own: bounds in order and among the values."""
    low, high = median_interval(np.array(errors), np.arange(len(errors)))
    assert min(errors) <= low <= high <= max(errors)


def test_error_record_known_answers() -> None:
    """Errors of 10, 20 and 40 % in one shape: no shape to draw but that one, so the interval has no width."""
    found = error_record(np.array([110.0, 120.0, 60.0]), np.full(3, 100.0), np.zeros(3, dtype=int))
    assert found["n"] == 3
    assert found["shapes"] == 1
    assert found["median_error_pct"] == pytest.approx(20)
    assert found["error_low_pct"] == found["error_high_pct"] == pytest.approx(20)
    assert found["rmspe_pct"] == pytest.approx(100 * np.sqrt((0.01 + 0.04 + 0.16) / 3))


def test_infeasible_picks_count_as_right_only_by_seer_s_rule() -> None:
    """Four picks: fine, within 10 %, slow, and infeasible (charged as slow)."""
    picks = pd.DataFrame(
        {
            "model": "m",
            "shape": [0, 1, 2, 3],
            "slowdown": [1.0, 1.1, 1.2, 3.0],
            "infeasible": [False, False, False, True],
        }
    )
    (row,) = error_rates(picks).to_dict("records")
    assert row["wrong_seer_pct"] == 25
    assert row["wrong_pct"] == 50
    assert row["infeasible_pct"] == 25


def test_an_oracle_s_times_give_no_slowdown(table) -> None:
    """Times without noise follow from the terms' order, so predictions equal to them pick the best everywhere."""
    data = Dataset(table(8, noise=0.0))
    found = cross_validate(data, ["roofline"], count=3, seed=0, tick=lambda text: None)
    found.time_us["roofline"][:] = np.nan_to_num(found.rows.time_us, nan=np.inf)
    verdicts = choice_verdicts(found).set_index("model")
    assert verdicts.loc["roofline", "slowdown_macro"] == 1.0
    assert verdicts["slowdown_macro"][HEURISTIC] > 1.0
    picks = problem_picks(found)
    assert set(picks["model"]) == {"roofline", HEURISTIC}
    best = pd.Series(found.rows.time_us).groupby(found.rows.problem).min()
    codes = found.rows.problem[picks["row"].to_numpy(dtype=int)]
    np.testing.assert_allclose(picks["best_us"], best.reindex(codes))
    totals = by_network(found)
    exact = totals[(totals["model"] == "roofline") & totals["total_error_pct"].notna()]
    assert len(exact) > 1
    np.testing.assert_allclose(exact["total_error_pct"], 0, atol=1e-9)
    assert EVERY in set(totals["network"])


def test_changes_between_versions_known_answers() -> None:
    """One algorithm twice as slow, one newly supported, and the best of one problem of two changed."""
    sizes = pd.DataFrame([dict.fromkeys(SIZE_COLUMNS, 1), dict.fromkeys(SIZE_COLUMNS, 2)])

    def version(times: dict[str, list[float]]) -> pd.DataFrame:
        parts = [sizes.assign(math="fma", algorithm=name, time_us=values) for name, values in times.items()]
        frame = pd.concat(parts, ignore_index=True)
        return frame.assign(status=np.where(frame["time_us"].notna(), "ok", "not_supported"))

    older = version({"A": [1.0, 1.0], "B": [1.5, 4.0], "C": [np.nan, 9.0]})
    newer = version({"A": [2.0, 2.0], "B": [1.5, 4.0], "C": [7.0, 9.0]})
    found = changes(older, newer).set_index("algorithm")
    assert found.loc["A", "ratio_median"] == 2.0
    assert found.loc["A", "changed_pct"] == 100
    assert found.loc["B", "changed_pct"] == 0
    assert found.loc["C", "newly_supported"] == 1
    assert found.loc["all", "no_longer_supported"] == 0
    assert found.loc["all", "pairs"] == 5
    assert found.loc["all", "best_changed_pct"] == 50


def test_shares_rank_traits_by_lift(table) -> None:
    """A trait that only the worst rows have stands first; `traits` has a mask for every row."""
    rows = candidate_rows([Dataset(table(8))])
    has = traits(rows)
    assert len(has) == len(rows)
    assert has["grouped"].sum() == (rows.frame["groups"] > 1).sum()
    worst = np.array([0, 1])
    rare = pd.DataFrame(
        {"common": np.ones(10, dtype=bool), "rare": np.arange(10) < 2, "absent": np.zeros(10, dtype=bool)}
    )
    found = shares(rare, worst, np.zeros(10))
    assert list(found["trait"])[:2] == ["rare", "common"]
    assert found["lift"].iloc[0] == pytest.approx(5)
    assert np.isnan(found["lift"].iloc[2])


def test_class_terms_hold_every_class(table) -> None:
    """Two rows of one problem differ in their own terms, not in those of all classes side by side."""
    data = Dataset(table(3, gpus=("Tesla T4",), batches=(1,)))
    rows = candidate_rows([data])
    design = class_terms(rows, data, ["FFT", "IMPLICIT_GEMM"])
    same = np.flatnonzero(rows.problem == rows.problem[0])
    assert (rows.features[same[0]] != rows.features[same[2]]).any()
    np.testing.assert_array_equal(design[same[0]], design[same[2]])


def test_classify_tells_two_classes_apart() -> None:
    """A threshold on one column; and one class alone is always named."""
    x = np.linspace(0, 1, 80, dtype=np.float32)[:, None]
    label = (x[:, 0] > 0.5).astype(int) * 2
    assert (classify(x, label, x, 4, 0).argmax(axis=1) == label).mean() > 0.9
    np.testing.assert_array_equal(classify(x, np.full(80, 3), x, 4, 0), np.tile([0, 0, 0, 1], (80, 1)))


def test_words() -> None:
    """Numbers as sentences print them."""
    assert percent(12.345) == "12.3 %"
    assert percent(1234.5) == "1,234 %"
    assert percent(float("nan")) == ratio(float("inf")) == "no figure"
    assert interval(1.0111, 1.2) == "[1.011, 1.200]"
    assert listing([]) == "none"
    assert listing(["a"]) == "a"
    assert listing(["a", "b", "c"]) == "a, b and c"
