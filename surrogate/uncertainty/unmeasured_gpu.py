"""Fit the errors of times on unmeasured GPUs, and of kernel groups in settings in which they were never measured.

Both come from fits that hold out these rows. Grouped and depthwise convolutions run kernels of their own: a model that
saw them in fp32 may be wrong by far about their kernels in fp16.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from msgspec import structs

from surrogate.dataset.problems import device_names, joined, kernel_groups, row_groups, shape_columns, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.uncertainty import intervals
from surrogate.uncertainty.fit import FitTimes, Split, dtypes_of, fit_independent_share
from surrogate.uncertainty.intervals import COVERAGE, HeldOutGpuErrors, UnmeasuredGpuErrors

MIN_GPUS = 3
"""Minimum number of GPUs that show how GPUs differ."""
MIN_ARCHITECTURES = 2
"""Minimum number of architectures to hold one out. With two, the margin for an unmeasured GPU is a quarter."""
NEW_GPU_MARGIN = 0.5
"""Margin for an unmeasured GPU: a share of the largest half width, divided by the number of held-out GPUs.

Each GPU and element type was tested with the half widths from the other GPUs:

==============  =====  ===================
Margin          Tests  Coverage below 85 %
==============  =====  ===================
0               63     15
NEW_GPU_MARGIN  63     11
==============  =====  ===================
"""
MAX_GPUS = 6
"""Maximum number of held-out GPUs: the GPUs with most rows. Each costs one fit."""
MAX_FIT_ROWS = 150_000
"""Maximum training rows of each of these fits. More rows are sampled."""
GPU_FOLDS = 3
"""Number of folds of the shapes. A held-out GPU is evaluated on one fold, which its fit was trained on for no GPU."""
MIN_FOLD_SHAPES = 12
"""Minimum shapes for these folds. With fewer shapes, a held-out GPU is evaluated on all of them."""


def fit_unmeasured_gpu(
    rows: Rows, predicted: np.ndarray, was_trained: np.ndarray, evaluated: np.ndarray
) -> UnmeasuredGpuErrors:
    """Fit the errors of times on an unmeasured GPU.

    Only these errors count, because a model can be accurate for a candidate and still transfer it badly to another GPU.

    Parameters
    ----------
    rows
        Rows of one family.
    predicted
        (rows,) times in µs by fits that hold out the row's GPU, its architecture and its shape (`gpu_splits`), or NaN.
    was_trained
        (rows,) result of `trained_settings`.
    evaluated
        (rows,) True for problems from which the independent share is learned.

    Returns
    -------
    UnmeasuredGpuErrors
        The defaults if no GPU was held out.
    """
    scored = np.flatnonzero(rows.ok & np.isfinite(predicted))
    if not len(scored):
        return UnmeasuredGpuErrors()
    part, predicted = rows.take(scored), predicted[scored]
    was_trained, evaluated = was_trained[scored], evaluated[scored]
    unmeasured = UnmeasuredGpuErrors(held_out_gpu_errors(part, predicted, was_trained))
    counted = evaluated & was_trained
    columns = (predicted, part.time_us, unmeasured.half_widths(groups_of(part)), part.problem, part.shape)
    share = fit_independent_share(*(values[counted] for values in columns))
    return structs.replace(unmeasured, independent_share=float(f"{share:.4g}"))


def trained_settings(rows: Rows, splits: Sequence[Split]) -> np.ndarray:
    """Return True (rows,) if the row's setting and candidate are in the training rows of the split that holds it out.

    Other rows are predicted only as settings that were never measured.
    """
    key = joined(rows.frame.assign(candidate=rows.candidate), (*rows.family.setting_names, "candidate")).to_numpy()
    was_trained = np.zeros(len(rows), dtype=bool)
    for train, holdout in splits:
        was_trained[holdout] = np.isin(key[holdout], np.unique(key[train]))
    return was_trained


def held_out_gpu_errors(rows: Rows, predicted: np.ndarray, was_trained: np.ndarray) -> dict[str, HeldOutGpuErrors]:
    """Return `UnmeasuredGpuErrors.by_group` from ok rows and their times (rows,) by fits that hold out their GPU.

    ``was_trained`` is the result of `trained_settings`. A line of GPUs gets its own errors if other GPUs of the
    line were trained. For a line with a single GPU, all these errors are used and count as one GPU, because one GPU
    does not show how a second one differs.
    """
    ratio = predicted / rows.time_us
    device = device_names(rows.frame).astype(str)
    frame = pd.DataFrame(groups_of(rows), columns=["line", "dtype"])

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

    # 1. All GPUs together. If a GPU has trained settings, only those count.
    has_trained_settings = np.isin(device, np.unique(device[was_trained]))
    by_group = {"": errors_at(np.flatnonzero(was_trained | ~has_trained_settings))}
    if frame["line"].nunique() == 1:  # the errors of one line do not show those of another
        half_width = max(by_group[""].half_width, intervals.UNMEASURED_HALF_WIDTH)
        by_group[""] = replace(by_group[""], half_width=half_width)
    if len(never := np.flatnonzero(~was_trained)):
        by_group[intervals.NEVER] = errors_at(never)
    # 2. Each line, and each element type of a line. On few GPUs a type is no narrower than all types together.
    gpus = frame.groupby("line")["dtype"].agg(lambda part: len(np.unique(device[part.index])))
    counted = np.flatnonzero(was_trained & (frame["line"].map(gpus) > 1))
    for (line,), positions in row_groups(frame.iloc[counted], ("line",)):
        if line:
            by_group[line] = errors_at(counted[positions])
    for (line, dtype), positions in row_groups(frame.iloc[counted], ("line", "dtype")):
        if line and dtype:
            kind = errors_at(counted[positions])
            minimum = by_group[line].half_width if kind.gpus < MIN_GPUS else 0.0
            by_group[f"{line}|{dtype}"] = replace(kind, half_width=max(kind.half_width, minimum))
    for line in filter(None, gpus.index[gpus == 1] if len(counted) else ()):
        by_group[line] = errors_at(counted, counts=1)
    return by_group


def groups_of(rows: Rows) -> np.ndarray:
    """Return the lines of the rows' GPUs (`Gpu.product_line`) and their element types, (rows, 2)."""
    names, position = np.unique(device_names(rows.frame).astype(str), return_inverse=True)
    line = np.array([rows.device(name).product_line for name in names.tolist()])[position]
    return np.column_stack([line, dtypes_of(rows)])


def gpu_splits(rows: Rows, seed: int) -> list[Split]:
    """Return splits that hold out one GPU: ok rows of other architectures and shapes, and ok rows of the GPU.

    The list is empty if there are too few architectures.
    """
    position = np.flatnonzero(rows.ok)
    rows = rows.take(position)
    device = device_names(rows.frame).astype(str)
    names = shape_names(rows.frame, rows.family)
    if shape_columns(rows.frame, rows.family)[:1] == ("gpu",):  # the folds by shape already hold out GPUs
        return []
    gpus, counts = np.unique(device, return_counts=True)
    architecture = {name: rows.device(name).architecture or name for name in gpus.tolist()}
    largest: dict[str, str] = {}  # architecture → its GPU with most rows
    for name in gpus[np.argsort(-counts, kind="stable")].tolist():
        largest.setdefault(architecture[name], name)
    if len(largest) < MIN_ARCHITECTURES or len(set(names)) < 2:
        return []
    fold = fold_labels(names, GPU_FOLDS, seed)
    is_any_fold = len(set(names)) < MIN_FOLD_SHAPES
    splits = []
    for number, held_out_gpu in enumerate(list(largest.values())[:MAX_GPUS]):
        on_gpu = device == held_out_gpu
        same_architecture = [name for name in architecture if architecture[name] == architecture[held_out_gpu]]
        folds = np.unique(fold[on_gpu])  # folds with rows on the GPU; each GPU takes the next of its folds
        holdout_fold = folds[number % len(folds)]
        holdout = np.flatnonzero(on_gpu & (is_any_fold | (fold == holdout_fold)))
        train = np.flatnonzero((is_any_fold | (fold != holdout_fold)) & ~np.isin(device, same_architecture))
        sample = np.sort(np.random.default_rng(seed).permutation(train)[:MAX_FIT_ROWS])
        if len(sample):
            splits.append((position[sample], position[holdout]))
    return splits


MIN_ROWS = 20
"""Minimum number of held-out rows that show an error."""


def group_splits(rows: Rows, seed: int) -> list[Split]:
    """Return splits that hold out a kernel group: in its largest setting if it was measured in several, else anywhere.

    The training rows have other shapes than the held-out rows.
    """
    if not rows.family.kernel_groups:
        return []
    group = kernel_groups(rows.frame, rows.family)
    setting = joined(rows.frame, rows.family.setting_names).to_numpy()
    is_held_out_shape = fold_labels(shape_names(rows.frame, rows.family), GPU_FOLDS, seed) == 0
    splits = []
    for name in rows.family.kernel_groups[1:]:
        in_group = rows.ok & (group == name)
        settings, counts = np.unique(setting[in_group], return_counts=True)
        in_setting = in_group & (setting == settings[counts.argmax()]) if len(settings) > 1 else in_group
        holdout = np.flatnonzero(in_setting & is_held_out_shape)
        train = np.flatnonzero(rows.ok & ~in_setting & ~is_held_out_shape)
        if len(holdout) >= MIN_ROWS and len(train):
            splits.append((np.sort(np.random.default_rng(seed).permutation(train)[:MAX_FIT_ROWS]), holdout))
    return splits


def fit_unmeasured_group(rows: Rows, splits: Sequence[Split], answers: Sequence[FitTimes]) -> float:
    """Return the half width in log time that holds nine in ten held-out times of every group of `group_splits`.

    It is `intervals.UNMEASURED_GROUP_HALF_WIDTH` if no group was held out.
    """
    half_widths = [
        np.nanquantile(np.abs(np.log(answer[0] / rows.time_us[holdout])), COVERAGE)
        for (_, holdout), answer in zip(splits, answers, strict=True)
        if answer is not None
    ]
    return float(f"{max(half_widths):.4g}") if half_widths else intervals.UNMEASURED_GROUP_HALF_WIDTH
