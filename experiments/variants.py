"""Variants of a model on the same held-out rows, each compared with the first of them, problem by problem."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.held_out import Predictions, Tick
from experiments.verdicts import error_record, judged_picks, median_draws
from surrogate.dataset.problems import newest_version
from surrogate.dataset.rows import Rows
from surrogate.dataset.strata import in_grouping, strata
from surrogate.evaluation.judge import resample_weights, shape_interval
from surrogate.evaluation.scorecard import DRAWS as CHOICE_DRAWS
from surrogate.evaluation.scorecard import HEURISTIC
from surrogate.models import Model, Support

Round = tuple[np.ndarray, np.ndarray]
"""Positions of the rows to train on and to test on."""


def predict_variants(
    rows: Rows, candidates: str, rounds: Sequence[Round], variants: Mapping[str, Model], seed: int, tick: Tick
) -> Predictions:
    """Held-out predictions of every variant, by its label; see `experiments.held_out.predict_rounds`."""
    time_us = {label: np.full(len(rows), np.nan) for label in variants}
    allowed, tested = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    for inside, outside in rounds:
        train, test = rows.take(inside), rows.take(outside)
        for label, model in variants.items():
            tick(label)
            time_us[label][outside] = model.fit(train, seed=seed).predict_us(test)
        allowed[outside] = Support.fit(train).supported(test)
        tested[outside] = True
    return Predictions(rows, candidates, time_us, allowed, tested, {})


def variant_verdicts(predictions: Predictions, part: np.ndarray | None = None) -> pd.DataFrame:
    """Per variant, over ungrouped problems: slowdown and time errors with intervals, and both less the first's.

    ``slowdown_change_pct`` is 100 times the mean log slowdown less the first variant's (macro over shapes),
    ``error_change_pct`` the median error less the first's in percentage points; their intervals are paired: both
    variants are seen on the same draws of shapes. ``part`` (rows,) limits what is judged.
    """
    ungrouped = in_grouping(strata(predictions.rows.frame), "ungrouped")
    part = ungrouped if part is None else ungrouped & part
    choices, times = _choices(predictions, part), _times(predictions, part)
    return times.merge(choices, on="variant", how="left")


def _choices(predictions: Predictions, part: np.ndarray) -> pd.DataFrame:
    found = judged_picks(predictions, part)
    if found is None:
        return pd.DataFrame({"variant": pd.Series(dtype=str)})
    judged, picks, _ = found
    names, shape = np.unique(judged.shape, return_inverse=True)
    draw = resample_weights(len(names), CHOICE_DRAWS, seed=len(names))
    picked = {label: choice for label, (choice,) in picks.items() if label != HEURISTIC}
    logs = {label: np.log(choice.slowdown) for label, choice in picked.items()}
    first = next(iter(logs.values()))
    records = []
    for label, log in logs.items():
        macro = shape_interval(log, shape, draw, macro=True)
        change = shape_interval(log - first, shape, draw, macro=True)
        pooled_change = shape_interval(log - first, shape, draw, macro=False)
        records.append(
            {
                "variant": label,
                "problems": len(log),
                "problem_shapes": len(names),
                "slowdown_macro": np.exp(macro.mid),
                "ci_low": np.exp(macro.low),
                "ci_high": np.exp(macro.high),
                "slowdown_pooled": np.exp(log.mean()),
                "slowdown_p95": float(np.quantile(np.exp(log), 0.95)),
                "outside_pct": 100 * float(picked[label].infeasible.mean()),
                "slowdown_change_pct": 100 * change.mid,
                "slowdown_change_low": 100 * change.low,
                "slowdown_change_high": 100 * change.high,
                "pooled_change_pct": 100 * pooled_change.mid,
                "pooled_change_low": 100 * pooled_change.low,
                "pooled_change_high": 100 * pooled_change.high,
            }
        )
    return pd.DataFrame(records)


def _times(predictions: Predictions, part: np.ndarray) -> pd.DataFrame:
    rows = predictions.rows
    counted = np.flatnonzero(predictions.tested & rows.ok & newest_version(rows.frame) & part)
    measured, shape = rows.time_us[counted], rows.shape[counted]
    first = next(iter(predictions.time_us.values()))[counted]
    records = []
    for label, time in predictions.time_us.items():
        known = np.flatnonzero(np.isfinite(time[counted]))
        mine = [values[known] for values in (time[counted], first, measured, shape)]
        change, low, high = median_change(*mine)
        records.append(
            {
                "variant": label,
                **error_record(mine[0], mine[2], mine[3]),
                "error_change_pct": 100 * change,
                "error_change_low": 100 * low,
                "error_change_high": 100 * high,
            }
        )
    return pd.DataFrame(records)


def median_change(
    predicted: np.ndarray, other: np.ndarray, measured: np.ndarray, shape: np.ndarray
) -> tuple[float, float, float]:
    """Median error of ``predicted`` less that of ``other``, with its 95 % interval over shapes; arrays (rows,)."""
    errors = [np.abs(time / measured - 1) for time in (predicted, other)]
    draws = [median_draws(error, shape) for error in errors]
    low, high = np.quantile(draws[0] - draws[1], [0.025, 0.975])
    return float(np.median(errors[0]) - np.median(errors[1])), float(low), float(high)
