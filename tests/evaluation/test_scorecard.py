"""Rows of results.json from three problems against hand calculations."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.rows import Rows
from surrogate.evaluation import scorecard
from surrogate.features.conv import parse
from surrogate.features.problem import SIZE_COLUMNS
from tests.tables import checked, every

NAN = float("nan")
HEURISTIC = "cudnn-heuristic"
PROBLEMS = (("Tesla T4", "n1c8h9k8r3p1"), ("Tesla T4", "n4c8h9k8r3p1"), ("TITAN V", "n1c8h9k8r1g8"))
TIMES = {"GEMM": (10.0, 10.0, 8.0), "FFT": (20.0, 5.0, NAN), "WINOGRAD": (40.0, 20.0, 4.0)}


@pytest.fixture
def frame() -> pd.DataFrame:
    """Return two batches of a 3×3 shape on one GPU and a depthwise shape on another, with three algorithms each."""
    gpus, texts = zip(*PROBLEMS, strict=True)
    rows = every(place=range(3), algorithm=TIMES)
    place = rows.pop("place").to_numpy()
    rows[list(SIZE_COLUMNS)] = np.array([parse(text).sizes for text in texts])[place]
    time_us = np.array(list(TIMES.values())).T.ravel()
    status = np.where(np.isnan(time_us), "not_supported", "ok")
    rows = rows.assign(gpu=np.array(gpus)[place], time_us=time_us, status=status)
    setting = {"direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    return rows.assign(library="cudnn", library_version="7.6", heuristic_algorithm="GEMM", **setting)


def _evaluated(frame: pd.DataFrame) -> scorecard.EvaluationSet:
    return scorecard.EvaluationSet.of(checked(frame))


def _ok(frame: pd.DataFrame) -> Rows:
    return checked(frame[frame["status"] == "ok"])


def _row(rows: list[dict[str, Any]], **where: str) -> dict[str, Any]:
    found = [row for row in rows if all(row[key] == value for key, value in where.items())]
    assert len(found) == 1
    return found[0]


def test_choice_rows_equal_the_hand_calculation(frame: pd.DataFrame) -> None:
    evaluated = _evaluated(frame)
    # The model picks Winograd everywhere: slowdowns 4, 4, 1; cuDNN's heuristic GEMM: 1, 2, 2.
    model = scorecard.pick_by_times(evaluated, np.tile([3.0, 2.0, 1.0], 3), np.ones(9, bool))
    picks = {"model": [model], HEURISTIC: [scorecard.pick_by_heuristic(evaluated)]}
    picks[scorecard.ORACLE] = [scorecard.pick_oracle(evaluated)]
    rows = scorecard.choice_rows(evaluated, picks, {})
    row = _row(rows, model="model", stratum="all", gpu="all")
    assert (row["n"], row["shapes"], row["infeasible_picks"]) == (3, 2, 0)
    assert row["slowdown_macro"] == pytest.approx(2.0)  # shapes: 4 and 1, geometric mean
    assert row["slowdown_geomean"] == pytest.approx(16 ** (1 / 3))
    assert (row["slowdown_max"], row["top1"], row["within_10pct"]) == pytest.approx((4, 1 / 3, 1 / 3))
    # Measuring FFT too gives the slowdowns 2, 1 and (FFT did not run) 1.
    assert row["top2_slowdown"] == pytest.approx(2 ** (1 / 3))
    assert row["ci_low"] <= row["slowdown_macro"] <= row["ci_high"]
    # Paired, per shape: (ln 4 + ln 2)/2 and −ln 2, mean of the two.
    low, mid, high = row["paired_vs_heuristic"]
    assert row["paired_problems"] == 3
    assert mid == pytest.approx(2 ** (1 / 4) - 1) and low <= mid <= high
    assert row["paired_pooled_vs_heuristic"][1] == pytest.approx(2 ** (2 / 3) - 1)
    assert row["paired_vs_seer"] is None and row["paired_problems_vs_seer"] == 0
    oracle = _row(rows, model=scorecard.ORACLE, stratum="all", gpu="all")
    assert (oracle["slowdown_macro"], oracle["slowdown_max"], oracle["top1"]) == (1, 1, 1)
    heuristic = _row(rows, model=HEURISTIC, stratum="all", gpu="all")
    assert heuristic["paired_vs_heuristic"] == [0, 0, 0]


def test_choice_rows_exist_for_every_gpu_and_stratum(frame: pd.DataFrame) -> None:
    evaluated = _evaluated(frame)
    rows = scorecard.choice_rows(evaluated, {HEURISTIC: [scorecard.pick_by_heuristic(evaluated)]}, {})
    strata = {"all": "all ungrouped 3x3s1 grouped", "Tesla T4": "all ungrouped 3x3s1", "TITAN V": "all grouped"}
    expected = {(gpu, stratum) for gpu, names in strata.items() for stratum in names.split()}
    assert {(row["gpu"], row["stratum"]) for row in rows} == expected
    assert _row(rows, gpu="all", stratum="ungrouped")["slowdown_macro"] == pytest.approx(math.sqrt(2))
    assert _row(rows, gpu="TITAN V", stratum="all")["slowdown_macro"] == pytest.approx(2)


def test_log_slowdowns_of_seeds_are_averaged_per_problem(frame: pd.DataFrame) -> None:
    evaluated = _evaluated(frame)
    first = scorecard.pick_by_times(evaluated, np.tile([1.0, 2.0, 3.0], 3), np.ones(9, bool))  # GEMM: 1, 2, 2
    second = scorecard.pick_by_times(evaluated, np.tile([3.0, 2.0, 1.0], 3), np.ones(9, bool))  # Winograd: 4, 4, 1
    picks = {"m": [first, second], HEURISTIC: [scorecard.pick_by_heuristic(evaluated)]}
    row = _row(scorecard.choice_rows(evaluated, picks, {}), model="m", gpu="all", stratum="all")
    assert row["slowdown_geomean"] == pytest.approx((2 * math.sqrt(8) * math.sqrt(2)) ** (1 / 3))
    assert row["n"] == 3 and row["top1"] == pytest.approx(2 / 6)


def test_heuristic_pick_without_a_time_is_infeasible(frame: pd.DataFrame) -> None:
    with_heuristic = frame.assign(heuristic_algorithm=["DIRECT"] * 3 + ["GEMM"] * 3 + ["FFT"] * 3)
    choice = scorecard.pick_by_heuristic(_evaluated(with_heuristic))
    assert choice.chosen.all()
    assert choice.row.tolist() == [-1, 3, 7]
    # Absent and unsupported picks both count as the slowest candidate.
    assert choice.infeasible.tolist() == [True, False, True]
    assert choice.slowdown == pytest.approx([4.0, 2.0, 2.0])


def _ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return twelve ranked configurations of each problem: rank r takes 20 − r, and rank 10 fails.

    The second problem has no row of rank 7.
    """
    rows = frame[frame["algorithm"] == "GEMM"].merge(pd.DataFrame({"heuristic_rank": range(1, 13)}), how="cross")
    rows["algorithm"] = "eng" + rows["heuristic_rank"].astype(str)
    rows = rows.assign(library="cudnn-graph", heuristic_algorithm="eng1", time_us=20.0 - rows["heuristic_rank"])
    failed = rows["heuristic_rank"] == 10
    rows.loc[failed, ["status", "time_us"]] = ["failed", NAN]
    return rows[(rows["heuristic_rank"] != 7) | (rows["n"] != 4)]


def test_the_best_of_the_first_ten_picks_if_all_ten_were_measured(frame: pd.DataFrame) -> None:
    evaluated = _evaluated(_ranked(frame))
    picks = scorecard.library_picks(evaluated) | {scorecard.ORACLE: [scorecard.pick_oracle(evaluated)]}
    assert list(picks) == ["cudnn-graph-heuristic", scorecard.FIRST_TEN, scorecard.ORACLE]
    (best,) = picks[scorecard.FIRST_TEN]
    assert best.chosen.tolist() == [True, False, True]
    # Rank 9 takes 11, rank 12 takes 8 and is the fastest, rank 1 takes 19.
    assert best.slowdown[best.chosen] == pytest.approx(11 / 8) and not best.infeasible.any()
    assert scorecard.reference_models(evaluated, picks)["first_ten"] == scorecard.FIRST_TEN
    rows = scorecard.choice_rows(evaluated, picks, {})
    oracle = _row(rows, model=scorecard.ORACLE, gpu="all", stratum="all")
    assert oracle["paired_vs_first_ten"] == pytest.approx([8 / 11 - 1] * 3)
    assert (oracle["paired_problems_vs_first_ten"], oracle["paired_problems"]) == (2, 3)
    heuristic = _row(rows, model="cudnn-graph-heuristic", gpu="all", stratum="all")
    assert heuristic["paired_vs_first_ten"][1] == pytest.approx(19 / 11 - 1)
    incomplete = _evaluated(_ranked(frame).query("heuristic_rank > 1"))
    assert not scorecard.pick_best_of_first_ten(incomplete).chosen.any()
    without = scorecard.choice_rows(_evaluated(frame), scorecard.library_picks(_evaluated(frame)), {})
    assert not any("first_ten" in name for row in without for name in row)


def test_equal_times_go_to_the_lower_rank(frame: pd.DataFrame) -> None:
    ranked = _ranked(frame).iloc[::-1].assign(time_us=5.0, status="ok")
    evaluated = _evaluated(ranked)
    picked = evaluated.rows.frame["heuristic_rank"].iloc[scorecard.pick_oracle(evaluated).row]
    assert picked.tolist() == [1, 1, 1]


def test_heuristic_is_evaluated_only_where_it_picks(frame: pd.DataFrame) -> None:
    some = frame.assign(heuristic_algorithm=np.array(["GEMM"] * 6 + [None] * 3, dtype=object))
    evaluated = _evaluated(some)
    oracle, heuristic = scorecard.pick_oracle(evaluated), scorecard.pick_by_heuristic(evaluated)
    assert heuristic.chosen.tolist() == [True, True, False]
    rows = scorecard.choice_rows(evaluated, {HEURISTIC: [heuristic], scorecard.ORACLE: [oracle]}, {})
    assert _row(rows, model=HEURISTIC, stratum="all", gpu="all")["n"] == 2
    # Both chose on two problems only; the other GPU has no pair.
    paired = _row(rows, model=scorecard.ORACLE, stratum="all", gpu="all")["paired_vs_heuristic"]
    assert paired[1] == pytest.approx(2**-0.5 - 1)
    assert _row(rows, model=scorecard.ORACLE, stratum="all", gpu="TITAN V")["paired_vs_heuristic"] is None
    absent = _row(rows, model=HEURISTIC, stratum="all", gpu="TITAN V")
    assert absent["n"] == 0 and absent["reason"]


def test_time_rows_equal_the_hand_calculation(frame: pd.DataFrame) -> None:
    ok = _ok(frame)
    ratio = ok.time_us / pd.Series(ok.time_us).groupby(ok.problem).transform("min").to_numpy()
    predicted = ok.time_us * np.where(ratio == 1, 1.1, 1.3)
    rows = scorecard.time_rows(ok, ratio, {"m": [predicted], "ranks": []}, {"ranks": "it ranks"})
    total = _row(rows, model="m", population="all", stratum="all", gpu="all", algorithm="all")
    assert (total["n"], total["shapes"]) == (8, 2)
    assert total["mape"] == pytest.approx((3 * 0.1 + 5 * 0.3) / 8)
    near = _row(rows, model="m", population="within-2x", stratum="all", gpu="all", algorithm="all")
    assert near["n"] == 6 and near["mape"] == pytest.approx((3 * 0.1 + 3 * 0.3) / 6)  # 10 20 | 10 5 | 8 4
    top = _row(rows, model="m", population="best", stratum="all", gpu="all", algorithm="all")
    assert top["n"] == 3 and top["mape"] == pytest.approx(0.1)
    assert _row(rows, model="m", population="all", algorithm="FFT")["n"] == 2
    assert _row(rows, model="m", population="all", gpu="TITAN V")["n"] == 2
    assert _row(rows, model="m", population="all", stratum="grouped")["n"] == 2
    ranks = _row(rows, model="ranks")
    assert (ranks["n"], ranks["reason"]) == (0, "it ranks")


def test_errors_of_several_seeds_are_averaged(frame: pd.DataFrame) -> None:
    ok = _ok(frame)
    rows = scorecard.time_rows(ok, np.ones(len(ok)), {"m": [1.1 * ok.time_us, 1.3 * ok.time_us]}, {})
    row = _row(rows, model="m", population="all", stratum="all", gpu="all", algorithm="all")
    assert row["median_ape"] == pytest.approx(0.2) and row["n"] == 8


def test_picks_within_the_noise_count_as_the_best(frame: pd.DataFrame) -> None:
    # The picks take 1.05, 1.2 and 1.0 times the best: two of three are within 10 %, one is the best.
    near = checked(frame.assign(status="ok", time_us=[10.5, 10, 99, 12, 10, 99, 10, 11, 99]))
    for noise, slowdowns in ((0.06, [1.0, 1.2, 1.0]), (0.0, [1.05, 1.2, 1.0])):
        evaluated = scorecard.EvaluationSet.of(near, noise)
        gemm = scorecard.pick_by_times(evaluated, np.tile([1.0, 2.0, 3.0], 3), np.ones(9, bool))
        assert gemm.slowdown == pytest.approx(slowdowns)
    rows = scorecard.choice_rows(evaluated, {"m": [gemm], HEURISTIC: [scorecard.pick_by_heuristic(evaluated)]}, {})
    row = _row(rows, model="m", stratum="all", gpu="all")
    assert row["within_10pct"] == pytest.approx(2 / 3) and row["top1"] == pytest.approx(1 / 3)
    assert row["slowdown_p95"] == pytest.approx(1.05 + 0.9 * 0.15) and row["slowdown_max"] == pytest.approx(1.2)


def test_rows_without_a_prediction_are_not_counted(frame: pd.DataFrame) -> None:
    ok = _ok(frame)
    some = np.where(ok.frame["groups"] == 1, ok.time_us, NAN)
    rows = scorecard.time_rows(ok, np.ones(len(ok)), {"some": [some], "none": [ok.time_us * NAN]}, {})
    part = _row(rows, model="some", population="all", stratum="all", gpu="all", algorithm="all")
    assert (part["n"], part["shapes"]) == (6, 1)
    missing = _row(rows, model="none")
    assert missing["n"] == missing["shapes"] == 0 and missing["reason"]


def test_heuristic_is_named_after_its_library(frame: pd.DataFrame) -> None:
    assert _evaluated(frame).heuristic == scorecard.heuristic_name(["cudnn", "cudnn"]) == HEURISTIC
    assert scorecard.is_heuristic(scorecard.heuristic_name(["vllm", "sglang"]))
    assert not scorecard.is_heuristic(scorecard.ORACLE)
    tuna = frame.assign(library="miopen", solver=frame["algorithm"] + "-a", heuristic_solver="FFT-a")
    evaluated = _evaluated(tuna)
    assert evaluated.heuristic == "tunanet"
    assert scorecard.pick_by_heuristic(evaluated).row.tolist() == [1, 4, 7]  # the picked rows are solvers


def test_other_families_are_grouped_by_their_own_strata() -> None:
    """Softmax and layer normalisation have two candidates each; no stratum of convolutions appears."""
    frame = every(operator=("softmax", "layer_norm"), n=(1, 8), algorithm=("a", "b")).assign(c=64, h=1, w=1)
    frame = frame.assign(family="rowwise", gpu="Tesla T4", library="torch", library_version="2", status="ok")
    frame["time_us"] = frame["algorithm"].map({"a": 1.0, "b": 2.0})
    evaluated = _evaluated(frame)
    slow = scorecard.pick_by_times(evaluated, np.tile([2.0, 1.0], 4), np.ones(8, bool))
    picks = {"m": [slow], evaluated.heuristic: [scorecard.pick_by_heuristic(evaluated)]}
    rows = scorecard.choice_rows(evaluated, picks, {})
    of_model = [row for row in rows if row["model"] == "m"]
    assert {row["stratum"]: row["n"] for row in of_model} == {"all": 4, "softmax": 2, "layer_norm": 2}
    assert all(row["family"] == "rowwise" and row["slowdown_macro"] == pytest.approx(2) for row in of_model)


def test_references_are_models_with_picks_and_the_better_linear_model(frame: pd.DataFrame) -> None:
    evaluated = _evaluated(frame)
    gemm = [scorecard.pick_by_times(evaluated, np.tile([1.0, 2.0, 3.0], 3), np.ones(9, bool))]
    winograd = [scorecard.pick_by_times(evaluated, np.tile([3.0, 2.0, 1.0], 3), np.ones(9, bool))]
    nothing = [scorecard.pick_by_times(evaluated, np.full(9, NAN), np.ones(9, bool))]
    picks = {"linear-dims": winograd, "linear-terms": gemm, "seer-time-only": winograd, "boosted-terms": nothing}
    picks[HEURISTIC] = [scorecard.pick_by_heuristic(evaluated)]
    references = scorecard.reference_models(evaluated, picks)
    assert references == {"heuristic": HEURISTIC, "seer": "seer-time-only", "linear": "linear-terms"}
    row = _row(scorecard.choice_rows(evaluated, picks, {}), model="linear-terms", stratum="ungrouped", gpu="all")
    # The two ungrouped problems are batches of one shape: GEMM takes 1 and 2 times the best, Winograd 4 and 4.
    assert row["paired_vs_seer"][1] == pytest.approx(math.sqrt(2) / 4 - 1)
    assert row["paired_problems_vs_seer"] == 2 and row["paired_vs_trees"] is None


def test_median_errors_are_compared_on_the_rows_that_both_predict(frame: pd.DataFrame) -> None:
    ok = _ok(frame)
    predicted, seer = ok.time_us * 1.1, ok.time_us * 1.3
    seer[0] = NAN
    models = {"m": [predicted], "seer-time-only": [seer]}
    rows = scorecard.time_rows(ok, np.ones(len(ok)), models, {}, {"seer": "seer-time-only"})
    row = _row(rows, model="m", population="all", stratum="ungrouped", gpu="all", algorithm="all")
    assert row["median_vs_seer"] == pytest.approx([-0.2, -0.2, -0.2])
    assert "median_vs_seer" not in _row(rows, model="m", population="all", stratum="all", gpu="all", algorithm="all")
    own = _row(rows, model="seer-time-only", population="all", stratum="ungrouped", gpu="all", algorithm="all")
    assert "median_vs_seer" not in own
