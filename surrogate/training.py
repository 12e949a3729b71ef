"""Datasets to a bundle: fit on everything, and know the errors from held-out folds."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from features.errors import InputError
from surrogate.bundle import Bundle
from surrogate.comparison import candidate_frame
from surrogate.conformal import Widths
from surrogate.dataset.problems import judged_rows
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.schema import SIZE_COLUMNS
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.dataset.store import Dataset
from surrogate.dataset.strata import strata
from surrogate.domain import Domain
from surrogate.judge import time_errors
from surrogate.models import DEFAULT_MODEL, Model, Support, model_class
from surrogate.scorecard import HEURISTIC, Judged, choice_rows, pick_by_heuristic, pick_by_times
from surrogate.tune import search

HELD_OUT_FOLDS = 3
"""Folds by shape whose held-out predictions give the interval widths and the model card's errors."""


def train(
    data: Dataset,
    *,
    model: str = DEFAULT_MODEL,
    trials: int = 0,
    candidate: str = "algorithm",
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Bundle:
    """Fit ``model`` on all ok rows of ``data``; ``trials`` settings are searched first (0: the stored ones).

    Interval widths and the card's errors come from `HELD_OUT_FOLDS` folds by shape. Raises `InputError` where the data
    cannot carry the model.
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
    total = HELD_OUT_FOLDS + 1 + (trials > 0)
    params: dict[str, Any] = {}
    if trials:
        step(0, total, f"{trials} trials")
        params = search(cls, rows, trials, seed)
    held = _held_out(
        cls(**params),
        rows,
        seed,
        lambda fold: step(int(trials > 0) + fold, total, f"held-out fold {fold + 1}"),
    )
    step(total - 1, total, "all rows")
    fitted = cls(**params).fit(rows, seed=seed)
    step(total, total, "done")
    return Bundle(
        fitted,
        Support.fit(rows),
        Widths.fit(rows.frame, held, np.where(rows.ok, rows.time_us, np.nan)),
        Domain.of(rows.frame),
        candidate,
        data.devices,
        _card(data, rows, held, trials, seed),
    )


def _held_out(model: Model, rows: Rows, seed: int, step: Callable[[int], None]) -> np.ndarray:
    """(rows,) predictions by models that never saw the row's shape; NaN where there is one shape only."""
    names = shape_names(rows.frame)
    fold_of = fold_of_names(names, HELD_OUT_FOLDS, seed)
    label = np.array([fold_of[name] for name in names])
    predicted = np.full(len(rows), np.nan)
    for fold in range(HELD_OUT_FOLDS):
        step(fold)
        inside, outside = rows.take(label != fold), np.flatnonzero(label == fold)
        if inside.ok.any() and len(outside):
            predicted[outside] = model.fit(inside, seed=seed).predict_us(rows.take(outside))
    if not np.isfinite(predicted[rows.ok]).any():
        raise InputError("all rows have one shape; held-out errors and intervals need at least two shapes")
    return predicted


def _card(data: Dataset, rows: Rows, held: np.ndarray, trials: int, seed: int) -> dict[str, Any]:
    frame = rows.frame
    return {
        "data": {
            "name": data.name,
            "rows": len(frame),
            "ok_rows": int(rows.ok.sum()),
            "shapes": int(rows.shape.max()) + 1,
            "gpus": sorted(frame["gpu"].unique()),
            "libraries": sorted(
                {f"{a} {b}" for a, b in zip(frame["library"], frame["library_version"], strict=True)}
            ),
            "directions": sorted(frame["direction"].unique()),
            "dtypes": sorted(frame["dtype"].unique()),
            "maths": sorted(frame["math"].unique()),
            "layouts": sorted(frame["layout"].unique()),
            "algorithms": sorted(frame["algorithm"].unique()),
            "ranges": {c: [int(frame[c].min()), int(frame[c].max())] for c in SIZE_COLUMNS},
            "origins": sorted(set(frame["origin"].dropna())) if "origin" in frame else [],
            "where": data.metadata.get("where", []),
        },
        "licence_notices": data.metadata.get("licence_notices", []),
        "training": {"trials": trials, "seed": seed},
        "held_out": {
            "split": f"{HELD_OUT_FOLDS} folds by shape, batch left out",
            "time": _rounded(asdict(time_errors(held[rows.ok], rows.time_us[rows.ok]))),
            "choice": held_out_choice(data, rows, held),
        },
    }


def held_out_choice(data: Dataset, rows: Rows, predicted: np.ndarray) -> dict[str, Any]:
    """Slowdown of the choices that held-out predictions make, over judged problems; empty where none can be judged."""
    part = np.flatnonzero(judged_rows(rows.frame, data.candidates))
    if not len(part):
        return {}
    judged = Judged.of(
        rows.frame.iloc[part],
        rows.problem[part],
        rows.shape[part],
        rows.order[part],
        strata(rows.frame)[part],
    )
    allowed = Support.fit(rows).supported(rows)[part]
    picks = {
        "model": [pick_by_times(judged, predicted[part], allowed)],
        HEURISTIC: [pick_by_heuristic(judged)],
    }
    return {
        row["stratum"]: _rounded({k: v for k, v in row.items() if k not in ("model", "gpu", "stratum")})
        for row in choice_rows(judged, picks, {})
        if row["model"] == "model" and row["gpu"] == "all" and row["stratum"] in ("all", "ungrouped")
    }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Six significant digits, plain numbers, null for NaN: what a card needs."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, float | np.floating):
            return float(f"{value:.6g}") if np.isfinite(value) else None
        return value.item() if isinstance(value, np.generic) else value

    return {key: plain(value) for key, value in row.items()}


def evaluate(bundle: Bundle, data: Dataset) -> list[dict[str, Any]]:
    """Errors and slowdowns of a bundle on a dataset, shapes seen in training and unseen ones apart.

    One record per part (seen, unseen) × grouping (all, ungrouped): time errors over ok rows, and the choice figures.
    """
    frame = candidate_frame(data, bundle.candidate)
    devices = {**bundle.devices, **data.devices}
    rows = rows_of(frame, devices)
    predicted = bundle.predict(frame, devices)
    seen = bundle.domain.seen(frame)
    judged_mask = judged_rows(frame, data.candidates)
    records = []
    for name, member in (("unseen", ~seen), ("seen", seen)):
        records += _evaluate_part(name, rows, predicted, member, judged_mask & member)
    return records


def _evaluate_part(
    name: str, rows: Rows, predicted: pd.DataFrame, member: np.ndarray, judged_mask: np.ndarray
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
        covered = (predicted["lower_us"] <= rows.time_us) & (rows.time_us <= predicted["upper_us"])
        choice = picks.get(("all", grouping), {"n": 0, "shapes": 0})
        record = {
            "part": name,
            "stratum": grouping,
            "rows": errors.pop("n"),
            **errors,
            "interval_coverage": float(covered.to_numpy()[counted].mean()) if counted.any() else None,
            "problems": choice["n"],
            **{key: value for key, value in choice.items() if key != "n"},
        }
        records.append(_rounded(record))
    return records
