"""Run fits that hold out a part of the rows, and return their predictions of these rows."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from surrogate.dataset.problems import shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels, label_folds
from surrogate.dataset.threads import in_parallel, workers_for
from surrogate.features import InputError
from surrogate.models.base import ProgressCallback, TimeModel, fit_with_progress, holdout_times
from surrogate.uncertainty.domain import distances_to, training_shapes_of

MAX_CONCURRENT_ROWS = 2_000_000
"""Maximum rows of all fits that run at the same time. Each fit holds its own rows."""

Begin = Callable[[str, int], ProgressCallback]
"""Function that is called before a fit with the fit's name and row count. It returns the fit's progress callback."""
Split = tuple[np.ndarray, np.ndarray]
"""Positions of the training rows, and positions of the held-out rows."""


def shape_splits(
    rows: Rows, count: int, seed: int, fits: int | None = None, max_rows: int | None = None
) -> list[Split]:
    """Return the first ``fits`` of ``count`` folds by shape (None: all).

    A fold is trained on at most ``max_rows`` random rows (None: all). Raise `InputError` if no ok row can be held out.
    """
    splits = []
    for train, holdout in islice(label_folds(fold_labels(shape_names(rows.frame, rows.family), count, seed)), fits):
        if max_rows is not None and len(train) > max_rows:
            train = np.sort(np.random.default_rng(seed).permutation(train)[:max_rows])
        splits.append((train, holdout))
    if not any(rows.ok[train].any() and rows.ok[holdout].any() for train, holdout in splits):
        raise InputError("all rows have one shape; held-out errors and intervals need at least two shapes")
    return splits


def large_split(rows: Rows) -> list[Split]:
    """Return the split that holds out the larger half of a described kernel's problems, by the product of their sizes.

    The list is empty for another family, and if a half has a single shape.
    """
    work = np.log2(np.maximum(rows.sizes, 1)).sum(axis=1)
    is_small = work <= np.median(work[np.unique(rows.shape, return_index=True)[1]])
    if not rows.family.parameter_names or min(len(np.unique(rows.shape[half])) for half in (is_small, ~is_small)) < 2:
        return []
    return [(np.flatnonzero(is_small), np.flatnonzero(~is_small))]


class Fit(NamedTuple):
    """An unfitted model, the positions of its training rows, and the positions of its held-out rows (maybe none)."""

    name: str
    model: TimeModel
    train: np.ndarray
    holdout: np.ndarray


FitTimes = tuple[np.ndarray, np.ndarray] | None
"""Times in µs of the held-out rows and their distances to the training rows. None if the fit had no training rows."""


def run_fits(rows: Rows, fits: Sequence[Fit], begin: Begin, keep: Path | None = None) -> list[FitTimes]:
    """Run the fits in parallel, and return the answers of each. A fit without held-out rows leaves its model fitted.

    The number of concurrent fits depends on CPUs and memory. ``keep`` is a folder of finished fits (`holdout_times`).
    """

    def run(fit: Fit, stopped: object) -> FitTimes:
        on_progress = begin(fit.name, len(fit.train))
        train_rows = rows.take(fit.train)
        if not len(fit.holdout):
            fit_with_progress(fit.model, train_rows, on_progress)
        if not (train_rows.ok.any() and len(fit.holdout)):
            return None
        holdout_rows = rows.take(fit.holdout)
        predicted_us = holdout_times(fit.model, train_rows, holdout_rows, keep, on_progress)
        return predicted_us, distances_to(training_shapes_of(train_rows), holdout_rows)

    largest = max((len(fit.train) for fit in fits), default=1)
    return in_parallel(run, fits, workers_for(min(len(fits), max(1, MAX_CONCURRENT_ROWS // largest))))


def combined_answers(rows: Rows, splits: Sequence[Split], answers: Sequence[FitTimes]) -> tuple[np.ndarray, np.ndarray]:
    """Return times and distances (rows,) of all splits.

    Rows in no split, and rows of a fit without training rows, get NaN.
    """
    predicted, distance = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for (_, holdout), answer in zip(splits, answers, strict=True):
        if answer is not None:
            predicted[holdout], distance[holdout] = answer
    return predicted, distance
