"""Datasets to a bundle: fit on everything, and know the errors from held-out folds."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.card import card, held_out_choice, held_out_intervals, rounded
from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.problems import judged_rows
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.dataset.store import Dataset
from surrogate.dataset.strata import strata
from surrogate.evaluation.judge import time_errors
from surrogate.evaluation.scorecard import HEURISTIC, Judged, choice_rows, pick_by_heuristic, pick_by_times
from surrogate.evaluation.tune import search
from surrogate.features.errors import InputError
from surrogate.models import DEFAULT_MODEL, Model, Support, model_class
from surrogate.uncertainty.coverage import coverage_rows, picks
from surrogate.uncertainty.domain import Domain, distances_to, reference_shapes
from surrogate.uncertainty.unseen_gpu import unseen_gpu_factor
from surrogate.uncertainty.width_fit import fit_widths

__all__ = ["evaluate", "held_out_choice", "train"]

HELD_OUT_FOLDS, HELD_OUT_FOLDS_FEW = 5, 10
"""Folds by shape whose held-out predictions give the interval widths and the model card's errors: with few shapes more

of them, since a fold then lies farther from its training data than a new shape from the bundle's."""
FEW_SHAPES = 500


def train(
    data: Dataset,
    *,
    model: str = DEFAULT_MODEL,
    trials: int = 0,
    params: Mapping[str, Any] | None = None,
    candidate: str = "algorithm",
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Bundle:
    """Fit ``model`` on all ok rows of ``data``, with ``params`` in place of its stored settings.

    ``trials`` settings are searched first (0: none), which leaves ``params`` aside. Interval widths and the card's
    errors come from folds by shape (`fold_count`); with three GPUs or more, `unseen_gpu_factor` from fits without one.
    Raises `InputError` where the data cannot carry the model.
    """
    step = progress or (lambda done, total, text: None)
    cls = model_class(model)
    if not cls.predicts_time:
        raise InputError(
            f"{model} ranks algorithms and predicts no time; train another model, as {DEFAULT_MODEL}"
        )
    rows = rows_of(candidate_frame(data, candidate), data.devices)
    if not rows.ok.any():
        raise InputError(f"{data.name}: no row has status ok; there is nothing to learn from")
    total = fold_count(rows) + 2 + (trials > 0)
    if trials:
        params = search(
            cls, rows, trials, seed, progress=lambda n, of, best: step(0, total, f"trial {n} of {of} {best}")
        )
    unfitted = cls(**(params or {}))
    held, distance = held_out(
        unfitted,
        rows,
        fold_count(rows),
        seed,
        lambda fold: step(int(trials > 0) + fold, total, f"held-out fold {fold + 1}"),
    )
    step(total - 2, total, "all rows")
    fitted = unfitted.fit(rows, seed=seed)
    measured = np.where(rows.ok, rows.time_us, np.nan)
    widths = fit_widths(rows.frame, held, measured, distance, judged_rows(rows.frame, data.candidates))
    described = card(data, rows, held, fold_count(rows), trials, seed)
    described["held_out"] |= held_out_intervals(data, rows.frame, held, measured, distance, widths.own_share)
    step(total - 1, total, "unseen GPUs")
    factor = unseen_gpu_factor(rows, widths, unfitted, seed=seed)
    described |= {} if factor is None else rounded({"unseen_gpu_factor": factor})
    step(total, total, "done")
    return Bundle(
        fitted,
        Support.fit(rows),
        widths,
        Domain.of(rows.frame, distance),
        candidate,
        data.devices,
        described,
    )


def fold_count(rows: Rows) -> int:
    """Folds of the held-out predictions."""
    return HELD_OUT_FOLDS_FEW if len(np.unique(rows.shape)) < FEW_SHAPES else HELD_OUT_FOLDS


def held_out(
    model: Model, rows: Rows, count: int, seed: int, step: Callable[[int], None]
) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) predictions by models that never saw the row's shape, and distances to what those models saw.

    ``count`` folds by shape; ``step`` is called with the number of each before its fit. NaN where a fold had nothing to
    learn from. Raises `InputError` where no row gets a prediction.
    """
    names = shape_names(rows.frame)
    fold_of = fold_of_names(names, count, seed)
    label = np.array([fold_of[name] for name in names])
    predicted, distance = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for fold in range(count):
        step(fold)
        inside, outside = rows.take(label != fold), np.flatnonzero(label == fold)
        if inside.ok.any() and len(outside):
            test = rows.take(outside)
            predicted[outside] = model.fit(inside, seed=seed).predict_us(test)
            distance[outside] = distances_to(reference_shapes(inside.frame), test.frame)
    if not np.isfinite(predicted[rows.ok]).any():
        raise InputError("all rows have one shape; held-out errors and intervals need at least two shapes")
    return predicted, distance


def evaluate(bundle: Bundle, data: Dataset) -> list[dict[str, Any]]:
    """Errors and slowdowns of a bundle on a dataset, shapes seen in training and unseen ones apart.

    One record per part (seen, unseen) × grouping (all, ungrouped): time errors over ok rows, the intervals (coverage,
    median factor upper / predicted, and ``intervals`` per GPU), the choice figures, and how sure the picks were.
    """
    frame = candidate_frame(data, bundle.candidate)
    devices = {**bundle.devices, **data.devices}
    rows = rows_of(frame, devices)
    predicted = bundle.predict(frame, devices)
    seen = bundle.domain.seen(frame)
    judged_mask = judged_rows(frame, data.candidates)
    records = []
    for name, member in (("unseen", ~seen), ("seen", seen)):
        records += _evaluate_part(
            name, rows, predicted, member, judged_mask & member, bundle.widths.own_share
        )
    return records


def _evaluate_part(
    name: str,
    rows: Rows,
    predicted: pd.DataFrame,
    member: np.ndarray,
    judged_mask: np.ndarray,
    own_share: float,
) -> list[dict[str, Any]]:
    times = predicted["predicted_us"].to_numpy()
    stratum = strata(rows.frame)
    picks: dict[tuple[str, str], dict[str, Any]] = {}
    part = np.flatnonzero(judged_mask)
    if len(part):
        judged = Judged.of(
            rows.frame.iloc[part], rows.problem[part], rows.shape[part], rows.order[part], stratum[part]
        )
        chosen = pick_by_times(judged, times[part], predicted["supported"].to_numpy()[part])
        for row in choice_rows(judged, {"model": [chosen], HEURISTIC: [pick_by_heuristic(judged)]}, {}):
            if row["model"] == "model":
                picks[row["gpu"], row["stratum"]] = {
                    k: v for k, v in row.items() if k not in ("model", "gpu", "stratum")
                }
    records = []
    for grouping in ("all", "ungrouped"):
        counted = member & rows.ok & ((stratum != "grouped") | (grouping == "all"))
        errors = asdict(time_errors(times[counted], rows.time_us[counted]))
        choice = picks.get(("all", grouping), {"n": 0, "shapes": 0})
        record = {
            "part": name,
            "stratum": grouping,
            "rows": errors.pop("n"),
            **errors,
            "in_domain": float(predicted["in_domain"].to_numpy()[counted].mean()) if counted.any() else None,
            **_interval_figures(rows, predicted, counted),
            "problems": choice["n"],
            **{key: value for key, value in choice.items() if key != "n"},
            **_pick_figures(rows, predicted, judged_mask & counted, own_share),
        }
        records.append(rounded(record))
    return records


def _interval_figures(rows: Rows, predicted: pd.DataFrame, counted: np.ndarray) -> dict[str, Any]:
    """Coverage and widths of the intervals of the counted rows, and the same per GPU."""
    times, upper = predicted["predicted_us"].to_numpy()[counted], predicted["upper_us"].to_numpy()[counted]
    records = coverage_rows(rows.frame[counted], np.log(times / rows.time_us[counted]), np.log(upper / times))
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
    rows: Rows, predicted: pd.DataFrame, judged: np.ndarray, own_share: float
) -> dict[str, Any]:
    """How likely the picks among supported ok candidates were held to be the best, and how many were."""
    part = np.flatnonzero(judged & predicted["supported"].to_numpy())
    times, upper = predicted["predicted_us"].to_numpy()[part], predicted["upper_us"].to_numpy()[part]
    stated, best = picks(times, rows.time_us[part], np.log(upper / times), rows.problem[part], own_share)
    if not len(stated):
        return {}
    return {"pick_probability": stated.mean(), "pick_was_best": best.mean()}
