"""Tables of measured operators to a bundle: fit on everything, and know the errors from held-out folds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.dataset.splits import fold_of_names
from surrogate.evaluation.judge import time_errors
from surrogate.features.errors import InputError
from surrogate.operators.blended import HELD_FOLDS, BlendedOperators, cross_fit
from surrogate.operators.boosted import BoostedOperators
from surrogate.operators.bundle import OperatorBundle
from surrogate.operators.intervals import OperatorDomain, OperatorWidths
from surrogate.operators.launch import fit_launches
from surrogate.operators.table import OperatorTable, read_operators

GPU_FOLDS = 5
"""GPUs are dealt into that many folds for the errors on GPUs never measured."""
Progress = Callable[[int, int, str], None]


def train_operators(
    paths: Sequence[str | Path],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> OperatorBundle:
    """Fit on all rows of the files; widths and the card's errors from folds by shape.

    On GPUs never measured the widths are those of whole GPUs left out, by the trees alone. Raises `InputError` for
    unreadable files, or where there are fewer than two shapes.
    """
    return train_table(read_operators(paths), seed=seed, progress=progress)


def train_table(table: OperatorTable, *, seed: int = 0, progress: Progress | None = None) -> OperatorBundle:
    """The same from a table in memory."""
    step = progress or (lambda done, total, text: None)
    if len(set(table.shape_names())) < 2:
        raise InputError(f"{table.name}: one shape alone; held-out errors and intervals need at least two")
    total = HELD_FOLDS + GPU_FOLDS + 1
    parts = cross_fit(table, seed=seed, progress=lambda fold: step(fold, total, f"held-out fold {fold + 1}"))
    unseen = _held_gpus(table, seed, lambda fold: step(HELD_FOLDS + fold, total, f"GPU fold {fold + 1}"))
    step(total - 1, total, "all rows")
    model = BlendedOperators().fit_with(table, parts, seed=seed)
    step(total, total, "done")
    held = parts.blended_us(table, model.shares)
    return OperatorBundle(
        model,
        OperatorWidths.fit(table, held, unseen),
        OperatorDomain.of(table),
        fit_launches(table),
        _card(table, held, unseen, seed),
    )


def _held_gpus(table: OperatorTable, seed: int, step: Callable[[int], None]) -> np.ndarray:
    """(rows,) predictions by trees that never saw the row's GPU; NaN where there is one GPU only."""
    names = table.frame["gpu"].to_numpy(dtype=object)
    fold_of = fold_of_names(names, GPU_FOLDS, seed)
    label = np.array([fold_of[name] for name in names])
    held = np.full(len(table), np.nan)
    for fold in range(GPU_FOLDS):
        step(fold)
        inside, outside = np.flatnonzero(label != fold), np.flatnonzero(label == fold)
        if len(inside) and len(outside):
            fitted = BoostedOperators().fit(table.take(inside), seed=seed)
            held[outside] = fitted.predict_us(table.take(outside))
    return held


def _card(table: OperatorTable, held: np.ndarray, unseen: np.ndarray, seed: int) -> dict[str, Any]:
    frame = table.frame
    names = (frame["library"] + "|" + frame["kind"]).to_numpy()
    return {
        "data": {
            "name": table.name,
            "rows": len(table),
            "gpus": sorted(frame["gpu"].unique()),
            "libraries": sorted(frame["library"].unique()),
            "operators": sorted(frame["kind"].unique()),
            "dtypes": sorted(frame["dtype"].unique()),
            "dropped": dict(table.dropped),
        },
        "training": {"seed": seed},
        "held_out": {
            "split": f"{HELD_FOLDS} folds by shape, batch left out (they also chose the shares)",
            "by_operator": {
                str(name): _errors(held[names == name], table.time_us[names == name])
                for name in np.unique(names)
            },
        },
        "unseen_gpu": {
            "split": f"{GPU_FOLDS} folds of whole GPUs, trees alone",
            "by_operator": {
                str(name): _errors(unseen[names == name], table.time_us[names == name])
                for name in np.unique(names)
            },
        },
    }


def _errors(predicted_us: np.ndarray, measured_us: np.ndarray) -> dict[str, float | int | None]:
    """Errors to four significant digits, null where there are none."""
    found = asdict(time_errors(predicted_us, measured_us))
    return {
        name: (value if isinstance(value, int) else float(f"{value:.4g}") if np.isfinite(value) else None)
        for name, value in found.items()
    }
