"""Errors of times and slowdowns of picks, with intervals over shapes, and their text."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.held_out import Predictions
from surrogate.dataset.problems import evaluation_rows, newest_version
from surrogate.evaluation.judge import EvaluatedPicks, resample_weights, time_errors
from surrogate.evaluation.scorecard import EvaluationSet, choice_rows, heuristic_name, pick_by_heuristic, pick_by_times
from surrogate.models import DEFAULT_MODEL, MODELS

REPORTED = (DEFAULT_MODEL, "seer-time-only", "seer-paper")
"""The models that every answer reports if they were judged: the default, SEER's physics, and SEER with counters."""
HEURISTIC = heuristic_name(["cudnn"])
"""The name of cuDNN's own heuristic."""
ERROR_ARMS = ("error_low_pct", "error_high_pct")
"""The columns of the interval of a median error."""
DRAWS = 300
"""Bootstrap draws for the interval of a median error."""
COLUMNS = (
    *("model", "gpu", "stratum", "n", "shapes", "slowdown_macro", "ci_low", "ci_high"),
    *("slowdown_geomean", "slowdown_p95", "within_10pct", "top1", "infeasible_picks"),
)
"""Columns of `results.json` that a table of choices keeps."""
_TEXTS = COLUMNS[:3]


def time_verdicts(predictions: Predictions, part: np.ndarray | None = None) -> pd.DataFrame:
    """Return per model with times the errors in percent over `counted_rows`."""
    rows = predictions.rows
    counted = counted_rows(predictions, part)
    records = []
    for name, predicted in predictions.time_us.items():
        if name not in MODELS or MODELS[name].predicts_time:
            available = counted[np.isfinite(predicted[counted])]
            record = error_record(predicted[available], rows.time_us[available], rows.shape[available])
            records.append({"model": name, **record})
    return pd.DataFrame(records)


def counted_rows(predictions: Predictions, part: np.ndarray | None = None) -> np.ndarray:
    """Return the positions of the tested ok rows of the newest version (and of ``part``, a mask (rows,))."""
    rows = predictions.rows
    counted = predictions.tested & rows.ok & newest_version(rows.frame, rows.family)
    return np.flatnonzero(counted if part is None else counted & part)


def error_record(predicted_us: np.ndarray, measured_us: np.ndarray, shape: np.ndarray) -> dict[str, Any]:
    """Return n and shapes, the median error with its interval, p90 and RMSPE in percent, and RMSE.

    The 95 % interval is a bootstrap over ``shape`` (codes).
    """
    errors = time_errors(predicted_us, measured_us)
    low, high = median_interval(np.abs(predicted_us / measured_us - 1), shape)
    return {
        "n": errors.n,
        "shapes": len(np.unique(shape)),
        "median_error_pct": 100 * errors.median_ape,
        "error_low_pct": 100 * low,
        "error_high_pct": 100 * high,
        "p90_error_pct": 100 * errors.p90_ape,
        "rmspe_pct": 100 * errors.rmspe,
        "rmse_ms": float(np.sqrt(np.mean((predicted_us - measured_us) ** 2))) / 1000 if errors.n else float("nan"),
    }


def median_interval(error: np.ndarray, shape: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the median of ``error`` (rows,) by bootstrap over shapes; NaN without rows."""
    if not len(error):
        return float("nan"), float("nan")
    low, high = np.quantile(median_draws(error, shape), [0.025, 0.975])
    return float(low), float(high)


def median_draws(error: np.ndarray, shape: np.ndarray, share: float = 0.5) -> np.ndarray:
    """Return medians (draws,) of ``error`` (rows,) on bootstrap draws of shapes. The draws depend only on the shapes.

    ``share`` is the quantile; 0.5 is the median.
    """
    names, code = np.unique(shape, return_inverse=True)
    order = np.argsort(error, kind="stable")
    medians = []
    for counts in resample_weights(len(names), DRAWS, seed=len(names)):
        below = np.cumsum(counts[code[order]])
        medians.append(error[order[np.searchsorted(below, below[-1] * share)]])
    return np.array(medians)


def judged_picks(
    predictions: Predictions, part: np.ndarray | None = None
) -> tuple[EvaluationSet, dict[str, list[EvaluatedPicks]], np.ndarray] | None:
    """Return the judged problems among the tested rows, the picks of each model and the heuristic, and the rows'
    positions.

    None without problems.
    """
    rows = predictions.rows
    mask = predictions.tested & evaluation_rows(rows.frame, rows.family, predictions.candidates)
    mask &= True if part is None else part
    index = np.flatnonzero(mask)
    if not len(index):
        return None
    judged = EvaluationSet.of(rows.take(index))
    picks = {
        name: [pick_by_times(judged, predicted[index], predictions.allowed[index])]
        for name, predicted in predictions.time_us.items()
    }
    return judged, picks | {judged.heuristic: [pick_by_heuristic(judged)]}, index


def choice_verdicts(
    predictions: Predictions, part: np.ndarray | None = None, *, stratum: str = "ungrouped"
) -> pd.DataFrame:
    """Return per model the slowdown of its picks with its interval, over one stratum; empty without judged problems."""
    judged_choices = judged_picks(predictions, part)
    if judged_choices is None:
        return pd.DataFrame({key: pd.Series(dtype=object if key in _TEXTS else float) for key in COLUMNS})
    rows = choice_rows(judged_choices[0], judged_choices[1], {})
    selected = [row for row in rows if row["n"] and row["gpu"] == "all" and row["stratum"] == stratum]
    return pd.DataFrame(selected, columns=list(COLUMNS))


def times_and_picks(predictions: Predictions) -> pd.DataFrame:
    """Return `time_verdicts` with the number of problems, and the slowdown with its interval."""
    reported = ["model", "n", "slowdown_macro", "ci_low", "ci_high"]
    picks = choice_verdicts(predictions)[reported].rename(columns={"n": "problems"})
    return time_verdicts(predictions).merge(picks, on="model", how="left")


def problem_picks(predictions: Predictions) -> pd.DataFrame:
    """Return one row per judged problem and model.

    Columns are the columns of the problem's first row, stratum, best_us, slowdown, infeasible, and row (the position in
    the predictions' rows).
    """
    judged_choices = judged_picks(predictions)
    if judged_choices is None:
        return pd.DataFrame(columns=["model", "slowdown", "infeasible", "stratum", "best_us", "shape", "row"])
    judged, picks, index = judged_choices
    problems = judged.rows.frame.iloc[judged.problem_row].reset_index(drop=True)
    problems = problems.assign(
        stratum=judged.rows.stratum[judged.problem_row],
        best_us=judged.candidates.best_us(),
        shape=judged.shape,
        row=index[judged.problem_row],
    )
    parts = [
        problems[choice.chosen].assign(
            model=name, slowdown=choice.slowdown[choice.chosen], infeasible=choice.infeasible[choice.chosen]
        )
        for name, (choice,) in picks.items()
    ]
    return pd.concat(parts, ignore_index=True)


def reported_models(best: Any, available: Iterable[Any]) -> list[str]:
    """Return the models that an answer reports: `REPORTED` ones in ``available``, after ``best`` if it is another one.

    The default is always reported, so a model that was chosen by its result never appears alone.
    """
    names = [name for name in REPORTED if name in set(available)]
    return names if best in names else [str(best), *names]


def refused(reasons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row with n 0 and the reason for every model that could not be fitted."""
    return [{"model": name, "n": 0, "reason": reason} for name, reason in reasons.items()]
