"""Predictions against measurements: a bundle on a dataset, and the held-out rows of a training for the model card."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.problems import judged_rows
from surrogate.dataset.rows import Rows, rows_by_family
from surrogate.dataset.store import Dataset, as_dataset
from surrogate.evaluation.coverage import coverage_rows, picks, reliability
from surrogate.evaluation.judge import time_errors
from surrogate.evaluation.scorecard import Judged, choice_rows, pick_by_heuristic, pick_by_times
from surrogate.models import Support, model_frame
from surrogate.uncertainty.fit import held_out_half_widths


def evaluate(bundle: Bundle, data: Dataset | pd.DataFrame | str | Path) -> list[dict[str, Any]]:
    """Errors and slowdowns of a bundle on a dataset, shapes seen in training and unseen ones apart.

    One record per family × part (unseen, seen) × grouping (all, and the family's primary one): time errors over ok
    rows, the intervals (coverage, median factor upper / predicted, and ``intervals`` per GPU), the choice figures, and
    how sure the picks were. Raises `InputError` for a family that the bundle does not know.
    """
    data = as_dataset(data)
    frame = model_frame(data, bundle.candidate)
    devices = {**bundle.devices, **data.devices}
    predictions = bundle.predict(frame, devices)
    records = []
    for kind, (positions, rows) in rows_by_family(frame, devices).items():
        part = bundle.part(kind)
        predicted = predictions.iloc[positions].reset_index(drop=True)
        seen = part.domain.seen(rows)
        judged = judged_rows(rows.frame, kind, data.candidates)
        for name, member in (("unseen", ~seen), ("seen", seen)):
            judgement = _evaluate_part(rows, predicted, member, judged & member, part.widths.own_share)
            records += [{"family": kind.name, "part": name, **record} for record in judgement]
    return records


def _evaluate_part(
    rows: Rows, predicted: pd.DataFrame, member: np.ndarray, judged_mask: np.ndarray, own_share: float
) -> list[dict[str, Any]]:
    times, supported = predicted["predicted_us"].to_numpy(), predicted["supported"].to_numpy()
    choices = choice_figures(rows, times, supported, judged_mask)
    records = []
    for grouping in dict.fromkeys(("all", rows.family.primary)):
        counted = member & rows.ok & rows.family.in_grouping(rows.stratum, grouping)
        errors = asdict(time_errors(times[counted], rows.time_us[counted]))
        choice = choices.get(grouping, {"n": 0, "shapes": 0})
        record = {
            "stratum": grouping,
            "rows": errors.pop("n"),
            **errors,
            "in_domain": float(predicted["in_domain"].to_numpy()[counted].mean()) if counted.any() else None,
            **_interval_figures(rows, predicted, counted),
            "problems": choice["n"],
            **{key: value for key, value in choice.items() if key != "n"},
            **_pick_figures(rows, predicted, judged_mask & counted & supported, own_share),
        }
        records.append(rounded(record))
    return records


def _interval_figures(rows: Rows, predicted: pd.DataFrame, counted: np.ndarray) -> dict[str, Any]:
    """Coverage and widths of the intervals of the counted rows, and the same per GPU."""
    times, upper = predicted["predicted_us"].to_numpy()[counted], predicted["upper_us"].to_numpy()[counted]
    log_error = np.log(times / rows.time_us[counted])
    records = coverage_rows(rows.take(counted), log_error, np.log(upper / times))
    if not records:
        return {"interval_coverage": None}
    whole, *per_gpu = [rounded(record) for record in records]
    return {
        "interval_coverage": whole["coverage"],
        "interval_coverage_ci": [whole["coverage_low"], whole["coverage_high"]],
        "interval_factor": whole["interval_factor"],
        "intervals": per_gpu,
    }


def _pick_figures(
    rows: Rows, predicted: pd.DataFrame, counted: np.ndarray, own_share: float
) -> dict[str, Any]:
    """How likely the picks among supported ok candidates were held to be the best, and how many were."""
    times, upper = predicted["predicted_us"].to_numpy()[counted], predicted["upper_us"].to_numpy()[counted]
    half_width, problem = np.log(upper / times), rows.problem[counted]
    stated, best = picks(times, rows.time_us[counted], half_width, problem, own_share)
    return {"pick_probability": stated.mean(), "pick_was_best": best.mean()} if len(stated) else {}


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
        *(values[judged] for values in (predicted_us, measured_us, half_width, rows.problem)),
        own_share=own_share,
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
