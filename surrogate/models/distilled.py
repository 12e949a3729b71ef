"""`distilled-terms`: trees of `boosted-terms` that also learn the answers of `stacked-terms`.

A stack of two models predicts the times of new shapes better than its first model alone. But it needs two ensembles and
SEER's fits to answer. So a fitted stack labels problems near the measured ones, and the trees of `boosted-terms` learn
from labels and measurements together. A bundle holds only these trees. Source: Bucilă, Caruana and Niculescu-Mizil
2006, "Model compression".
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import pandas as pd

from surrogate.dataset.problems import device_names, problems_of, row_groups
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.features.gpu import gpus
from surrogate.models.base import SearchRange
from surrogate.models.boosted import BoostedTerms
from surrogate.models.registry import fitted_part

MAX_UNIT = 16
"""Sizes are scaled in steps of at most this: kernels run multiples of a power of two faster than other sizes."""
MIN_STEPS = 4
"""Minimum number of steps in a size."""
MAX_LABELLED = 400_000
"""Maximum labelled rows, which limits the time of a fit. Large tables have enough shapes."""


@dataclass(eq=False, repr=False)
class DistilledTerms(BoostedTerms):
    """Boosted trees fitted to measured times and to another model's times of nearby problems.

    Trees of depth 8 answer a single problem faster than deeper trees with the same number of leaves.

    Parameters
    ----------
    teacher
        Name of the model that labels problems.
    copies
        Labelled rows on measured GPUs for each measured row.
    elsewhere_copies
        Labelled rows on other GPUs of the same vendors for each measured row.
    octaves
        Binary logarithm of the largest factor by which a size is scaled, up or down.
    measured_weight
        Weight of a measured row; a labelled row has weight 1.
    rounds, learning_rate, max_leaves, …
        See `BoostedTerms`.

    References
    ----------
    Bucilă, Caruana and Niculescu-Mizil 2006, "Model compression".
    """

    name: ClassVar[str] = "distilled-terms"
    help: ClassVar[str] = "boosted-terms that also learn stacked-terms' times of nearby problems"
    storable: ClassVar[bool] = True
    on_request: ClassVar[bool] = True

    teacher: str = "stacked-terms"
    copies: int = 5
    elsewhere_copies: int = 2
    octaves: float = 1.0
    measured_weight: Annotated[float, SearchRange(1.0, 30.0, log=True)] = 10.0
    learning_rate: Annotated[float, SearchRange(0.05, 0.3, log=True)] = 0.15
    max_depth: int = 8
    max_leaves: Annotated[int, SearchRange(64, 256, log=True)] = 256
    min_child_weight: Annotated[float, SearchRange(0.5, 20.0, log=True)] = 1.0
    subsample: Annotated[float, SearchRange(0.5, 1.0)] = 0.8
    colsample_bynode: Annotated[float, SearchRange(0.1, 1.0)] = 0.4
    best_weight: Annotated[float, SearchRange(0.0, 1.0)] = 0.25

    def weights(self, rows: Rows, time_us: np.ndarray) -> np.ndarray:
        """Return weights (rows,) with mean 1, as in `BoostedTerms`, times ``measured_weight`` for measured rows."""
        weight = super().weights(rows, time_us) * np.where(self._is_measured, self.measured_weight, 1.0)
        return weight / weight.mean()

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit the teacher, then the trees on its labels and on the measurements."""
        teacher = fitted_part(self, self.teacher, rows, time_us)
        copies = min(self.copies, max(1, MAX_LABELLED // len(rows)))
        frames = [nearby_rows(rows, copies, self.octaves, self.random_state).frame]
        if self.elsewhere_copies:
            others = nearby_rows(rows, self.elsewhere_copies, self.octaves, self.random_state + 1)
            frames.append(on_other_gpus(others, rows, self.random_state))
        nearby = rows_of(pd.concat(frames, ignore_index=True), rows.family, rows.devices)
        label_us = teacher.predict(nearby)
        usable = np.isfinite(label_us) & np.isfinite(nearby.features).all(axis=1)
        frame = pd.concat([rows.frame, nearby.frame[usable]], ignore_index=True)
        self._is_measured = np.arange(len(frame)) < len(rows)
        try:
            super()._fit(rows_of(frame, rows.family, rows.devices), np.concatenate([time_us, label_us[usable]]))
        finally:
            del self._is_measured


def nearby_rows(rows: Rows, copies: int, octaves: float, random_state: int) -> Rows:
    """Return rows with other sizes, on the same GPUs and with the same settings and candidates.

    A new row is left out if its sizes do not fit one another, or if its traits, which decide support, differ from the
    measured problem's.

    Parameters
    ----------
    rows
        Measured rows. All rows of a problem get the same sizes.
    copies
        New rows for each measured row, before rows are left out.
    octaves
        Each size of `Family.scaled` is multiplied by 2^u, where u is uniform in [−octaves, octaves].
    random_state
        Seed of the factors.

    Raises
    ------
    InputError
        If the family has no sizes to scale.
    """
    family, frame = rows.family, rows.frame
    if not family.scaled:
        raise InputError(f"{family.name} has no sizes to scale; use boosted-terms")
    random = np.random.default_rng(random_state)
    problems = int(rows.problem.max()) + 1
    parts = []
    for _ in range(copies):
        sizes = {}
        for names in family.scaled:
            factor = np.exp2(random.uniform(-octaves, octaves, problems))[rows.problem]
            sizes |= {name: scaled_sizes(frame[name].to_numpy(dtype=np.int64), factor) for name in names}
        part = frame.assign(**sizes)
        parts.append(part[_has_same_traits(part, frame, family)])
    return rows_of(pd.concat(parts, ignore_index=True), family, rows.devices)


def on_other_gpus(nearby: Rows, measured: Rows, random_state: int) -> pd.DataFrame:
    """Return the rows ``nearby`` as a table, each problem on a random GPU of the registry that ``measured`` lacks.

    The GPUs are of the measured GPUs' vendors. The table is empty if there are no others.
    """
    measured_gpus = set(device_names(measured.frame))
    vendors = {measured.device(name).vendor for name in measured_gpus}
    names = [each.name for each in gpus() if each.vendor in vendors and each.name not in measured_gpus]
    if not names:
        return nearby.frame.iloc[:0]
    drawn = np.random.default_rng(random_state).integers(len(names), size=int(nearby.problem.max()) + 1)
    return nearby.frame.assign(gpu=np.array(names, dtype=object)[drawn[nearby.problem]])


def scaled_sizes(size: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return ``size`` times ``factor`` (rows,), in whole steps of the largest power of two that divides ``size``."""
    unit = np.minimum(size & -size, MAX_UNIT)
    while (large := (unit > 1) & (MIN_STEPS * unit > size)).any():
        unit = np.where(large, unit // 2, unit)
    return unit * np.maximum(1, np.rint(size * factor / unit)).astype(np.int64)


def _has_same_traits(changed: pd.DataFrame, frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return True (rows,) if sizes fit one another and support is decided as in the same row of ``frame``."""
    same = np.ones(len(frame), dtype=bool)
    for setting, positions in row_groups(frame, family.setting_names):
        before, after = (family.traits(problems_of(each.iloc[positions], family, setting)) for each in (frame, changed))
        for old, new in zip(before, after, strict=True):
            same[positions] &= np.asarray(old) == np.asarray(new)
    sizes = {name: changed[name].to_numpy(dtype=np.int64) for name in family.size_names}
    for _, wrong, _ in family.misfits(sizes, changed["library"].to_numpy(dtype=object)):
        same &= ~wrong
    return same
