"""Fit the errors of times on unmeasured GPUs, from fits that hold out a GPU with its architecture."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from msgspec import structs

from surrogate.dataset.problems import device_names, joined, row_groups, shape_columns, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.uncertainty import intervals
from surrogate.uncertainty.fit import dtypes_of, fit_independent_share
from surrogate.uncertainty.held_out_fits import Split
from surrogate.uncertainty.intervals import COVERAGE, HeldOutGpuErrors, UnseenGpu

MIN_GPUS = 3
"""Minimum number of GPUs (or architectures) that show how GPUs differ."""
NEW_GPU_MARGIN = 0.5
"""Margin for a new GPU: relative to the largest half width, and divided by the number of left-out GPUs.

On 63 cells (GPU and type), each tested with the widths from the other GPUs, 11 cells cover less than 85 % of the times
with this margin, and 15 without it.
"""
MAX_GPUS = 6
"""Maximum number of GPUs that `fit_unseen_gpu` leaves out: the GPUs with most rows. Each costs one fit."""
MAX_FIT_ROWS = 150_000
"""Maximum rows of each of these fits. More rows are sampled."""
GPU_FOLDS = 3
"""Number of parts of the shapes. A left-out GPU is evaluated on one part, which its fit saw on no GPU."""


def fit_unseen_gpu(rows: Rows, predicted: np.ndarray, seen: np.ndarray, evaluated: np.ndarray) -> UnseenGpu:
    """Fit the errors of times on a GPU that was never measured.

    Only these errors count, because a model can be accurate for a candidate and still transfer it badly to another GPU.

    Parameters
    ----------
    rows
        Rows of one family.
    predicted
        (rows,) times in µs by fits that saw neither the row's GPU, nor its architecture, nor its shape (`gpu_splits`).
        NaN if there are none.
    seen
        (rows,) result of `seen_settings`.
    evaluated
        (rows,) True for problems from which the independent share is learned.

    Returns
    -------
    UnseenGpu
        The defaults if no GPU was left out.
    """
    scored = np.flatnonzero(rows.ok & np.isfinite(predicted))
    if not len(scored):
        return UnseenGpu()
    part, predicted, seen, evaluated = rows.take(scored), predicted[scored], seen[scored], evaluated[scored]
    unseen = UnseenGpu(left_out_gpus(part, predicted, seen))
    counted = evaluated & seen
    columns = (predicted, part.time_us, unseen.half_widths(kinds_of(part)), part.problem, part.shape)
    share = fit_independent_share(*(values[counted] for values in columns))
    return structs.replace(unseen, independent_share=float(f"{share:.4g}"))


def seen_settings(rows: Rows, splits: Sequence[Split]) -> np.ndarray:
    """Return True (rows,) if the split that leaves the row's GPU out saw its setting and candidate on other GPUs.

    Other rows are predicted only as settings that were never measured.
    """
    key = joined(rows.frame.assign(candidate=rows.candidate), (*rows.family.setting_names, "candidate")).to_numpy()
    seen = np.zeros(len(rows), dtype=bool)
    for inside, outside in splits:
        seen[outside] = np.isin(key[outside], np.unique(key[inside]))
    return seen


def left_out_gpus(rows: Rows, predicted: np.ndarray, seen: np.ndarray) -> dict[str, HeldOutGpuErrors]:
    """Return `UnseenGpu.by_kind` from ok rows and their times (rows,) by fits that did not see their GPU.

    ``seen`` is the result of `seen_settings`. A line of GPUs gets its own errors if training held other GPUs of the
    line. For a line with a single GPU, all these errors are used and count as one GPU, because one GPU does not show
    how a second one differs.
    """
    ratio = predicted / rows.time_us
    device = device_names(rows.frame).astype(str)
    frame = pd.DataFrame(kinds_of(rows), columns=["line", "dtype"])

    def errors_at(positions: np.ndarray, counts: int | None = None) -> HeldOutGpuErrors:
        """Return the errors of the rows at ``positions``, counted as ``counts`` GPUs.

        GPUs are too few for a quantile over GPUs. The half width is the largest of the GPUs' own quantiles plus a
        margin, which is larger if there are fewer GPUs. A GPU with a single shape counts only if no GPU has more.
        """
        parts = [positions[device[positions] == name] for name in np.unique(device[positions])]
        parts = [part for part in parts if len(np.unique(rows.shape[part])) > 1] or parts
        median = np.median([np.median(np.abs(ratio[part] - 1)) for part in parts])
        max_half_width = max(np.quantile(np.abs(np.log(ratio[part])), COVERAGE) for part in parts)
        half_width = max_half_width * (1 + NEW_GPU_MARGIN / (counts or len(parts)))
        return HeldOutGpuErrors(len(parts), *(float(f"{value:.4g}") for value in (median, half_width)))

    # 1. All GPUs together. If a GPU has seen settings, only those count.
    has_seen = np.isin(device, np.unique(device[seen]))
    left_out = {"": errors_at(np.flatnonzero(seen | ~has_seen))}
    if len(never := np.flatnonzero(~seen)):
        left_out[intervals.NEVER] = errors_at(never)
    # 2. Each line, and each element type of a line. On few GPUs a type is no narrower than all types together.
    gpus = frame.groupby("line")["dtype"].agg(lambda part: len(np.unique(device[part.index])))
    counted = np.flatnonzero(seen & (frame["line"].map(gpus) > 1))
    for (line,), positions in row_groups(frame.iloc[counted], ("line",)):
        if line:
            left_out[line] = errors_at(counted[positions])
    for (line, dtype), positions in row_groups(frame.iloc[counted], ("line", "dtype")):
        if line and dtype:
            kind = errors_at(counted[positions])
            minimum = left_out[line].half_width if kind.gpus < MIN_GPUS else 0.0
            left_out[f"{line}|{dtype}"] = replace(kind, half_width=max(kind.half_width, minimum))
    for line in filter(None, gpus.index[gpus == 1] if len(counted) else ()):
        left_out[line] = errors_at(counted, counts=1)
    return left_out


def kinds_of(rows: Rows) -> np.ndarray:
    """Return the lines of the rows' GPUs (`surrogate.features.gpu.Gpu.line`) and their element types, (rows, 2)."""
    names, position = np.unique(device_names(rows.frame).astype(str), return_inverse=True)
    line = np.array([rows.device(name).line for name in names.tolist()])[position]
    return np.column_stack([line, dtypes_of(rows)])


def gpu_splits(rows: Rows, seed: int) -> list[Split]:
    """Return splits that leave one GPU out: ok rows of the GPU, and ok rows of other architectures and shapes.

    The list is empty if there are too few architectures.
    """
    position = np.flatnonzero(rows.ok)
    rows = rows.take(position)
    device = device_names(rows.frame).astype(str)
    names = shape_names(rows.frame, rows.family)
    if shape_columns(rows.frame, rows.family)[:1] == ("gpu",):  # the shape folds already leave GPUs out
        return []
    gpus, counts = np.unique(device, return_counts=True)
    architecture = {name: rows.device(name).architecture or name for name in gpus.tolist()}
    largest: dict[str, str] = {}  # architecture → its GPU with most rows
    for name in gpus[np.argsort(-counts, kind="stable")].tolist():
        largest.setdefault(architecture[name], name)
    if len(largest) < MIN_GPUS or len(set(names)) < 2:
        return []
    fold = fold_labels(names, GPU_FOLDS, seed)
    splits = []
    for number, left_out in enumerate(list(largest.values())[:MAX_GPUS]):
        on_gpu = device == left_out
        same_architecture = [name for name in architecture if architecture[name] == architecture[left_out]]
        folds = np.unique(fold[on_gpu])  # folds with rows on the GPU; each GPU takes the next of its folds
        holdout_fold = folds[number % len(folds)]
        outside = np.flatnonzero(on_gpu & (fold == holdout_fold))
        inside = np.flatnonzero((fold != holdout_fold) & ~np.isin(device, same_architecture))
        sample = np.sort(np.random.default_rng(seed).permutation(inside)[:MAX_FIT_ROWS])
        if len(sample):
            splits.append((position[sample], position[outside]))
    return splits
