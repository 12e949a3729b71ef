"""Predictions against measurements: the held-out rows of a training for the model card, and figures of choices."""

from dataclasses import asdict
from typing import Any

import numpy as np

from surrogate.dataset.problems import judged_rows
from surrogate.dataset.rows import Rows
from surrogate.evaluation.coverage import coverage_rows, picks, reliability
from surrogate.evaluation.judge import time_errors
from surrogate.evaluation.scorecard import Judged, choice_rows, pick_by_heuristic, pick_by_times
from surrogate.models import Support
from surrogate.uncertainty.fit import held_out_half_widths


def held_out_card(
    rows: Rows,
    predicted_us: np.ndarray,
    measured_us: np.ndarray,
    distance: np.ndarray,
    own_share: float,
    support: Support,
    candidates: str,
) -> dict[str, Any]:
    """Errors, slowdowns, and how intervals and probabilities hold, of one family's held-out predictions (rows,).

    Interval widths are those of models and widths that never saw the row's shape. NaN where a value is unknown.
    """
    half_width = held_out_half_widths(rows, predicted_us, measured_us, distance)
    coverage = coverage_rows(rows, np.log(predicted_us / measured_us), half_width)
    judged = judged_rows(rows.frame, rows.family, candidates)
    stated, best = picks(
        *(values[judged] for values in (predicted_us, measured_us, half_width, rows.problem)), own_share=own_share
    )
    choices = choice_figures(rows, predicted_us, support.supported(rows), judged)
    shown = [grouping for grouping in choices if grouping in ("all", rows.family.primary)]
    return {
        "time": rounded(asdict(time_errors(predicted_us[rows.ok], rows.time_us[rows.ok]))),
        "choice": {grouping: rounded(choices[grouping]) for grouping in shown},
        "intervals": [rounded(row) for row in coverage],
        "pick_probability": [rounded(row) for row in reliability(stated, best)],
    }


def choice_figures(
    rows: Rows, predicted_us: np.ndarray, supported: np.ndarray, counted: np.ndarray
) -> dict[str, dict[str, Any]]:
    """Grouping → figures of the choices over all GPUs; empty where no problem is counted.

    Arrays (rows,): predicted times, what the model holds feasible, and the rows of problems that are judged.
    """
    part = np.flatnonzero(counted)
    if not len(part):
        return {}
    judged = Judged.of(rows.take(part))
    chosen = {
        "model": [pick_by_times(judged, predicted_us[part], supported[part])],
        judged.heuristic: [pick_by_heuristic(judged)],
    }
    return {
        row["stratum"]: {k: v for k, v in row.items() if k not in ("model", "gpu", "stratum", "family")}
        for row in choice_rows(judged, chosen, {})
        if row["model"] == "model" and row["gpu"] == "all"
    }


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Six significant digits, plain numbers, null for NaN: what a card needs."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, float | np.floating):
            return float(f"{value:.6g}") if np.isfinite(value) else None
        return value.item() if isinstance(value, np.generic) else value

    return {key: plain(value) for key, value in row.items()}
