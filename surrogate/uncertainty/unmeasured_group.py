"""Fit the errors of times of a kernel group in a setting in which it was never measured.

Grouped and depthwise convolutions run kernels of their own. A model that saw them in fp32 may be wrong by far about
their kernels in fp16.
"""

from collections.abc import Sequence

import numpy as np

from surrogate.dataset.problems import joined, kernel_groups, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.uncertainty.held_out_fits import FitTimes, Split
from surrogate.uncertainty.intervals import COVERAGE, UNMEASURED_GROUP_HALF_WIDTH
from surrogate.uncertainty.unmeasured_gpu import GPU_FOLDS, MAX_FIT_ROWS

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

    It is `UNMEASURED_GROUP_HALF_WIDTH` if no group was held out.
    """
    half_widths = [
        np.nanquantile(np.abs(np.log(answer[0] / rows.time_us[holdout])), COVERAGE)
        for (_, holdout), answer in zip(splits, answers, strict=True)
        if answer is not None
    ]
    return float(f"{max(half_widths):.4g}") if half_widths else UNMEASURED_GROUP_HALF_WIDTH
