"""`boosted-terms`, the default, `boosted-dims` and `distilled-terms`: gradient-boosted trees on log(time / base).

A time is the base times a correction. The base holds the known scaling and the call cost. The trees learn the
correction from the sizes, the analytical terms, the device and the candidate. Outside the training ranges, where trees
stay constant, the `Trend` extrapolates. `boosted-dims` has no physics: raw sizes, the problem's roofline as the base,
no trend.

A stack of two models predicts the times of new shapes better than its first model alone. But it needs two ensembles and
SEER's fits to answer. So for `distilled-terms`, a fitted stack labels problems near the measured ones, and the trees of
`boosted-terms` learn from labels and measurements together. A bundle holds only these trees. Source: Bucilă, Caruana
and Niculescu-Mizil 2006, "Model compression".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import device_names, problems_of, row_groups
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.threads import threads_for
from surrogate.features import InputError, gpus, tiled_product_us
from surrogate.features.families import Family
from surrogate.models.base import ProgressCallback, SearchRange, TimeModel, dimension_columns, term_columns
from surrogate.models.call_cost import CallKey, call_cost_us, call_costs, common_call_costs
from surrogate.models.registry import fitted_part
from surrogate.models.times import BoostedArrays, Trend, trend_names
from surrogate.models.trees import ReadyTrees, Trees

if TYPE_CHECKING:
    from xgboost import Booster
    from xgboost.callback import TrainingCallback

CANDIDATE_WEIGHT = 10.0
"""Weight of the candidate's code when a split samples its columns. Another column has weight 1."""
XGBOOST_NAMES = (
    *("learning_rate", "max_depth", "max_leaves", "min_child_weight", "subsample"),
    *("colsample_bynode", "reg_lambda", "max_bin", "device"),
)
"""The settings of a model that are parameters of XGBoost."""


@dataclass(eq=False, repr=False)
class _Boosted(TimeModel):
    """One XGBoost booster for all candidates and devices. The candidate's code is a column with a larger weight.

    Parameters
    ----------
    rounds
        Number of trees.
    learning_rate, max_depth, max_leaves, min_child_weight, subsample, colsample_bynode, reg_lambda, max_bin
        Parameters of XGBoost.
    best_weight
        A row's weight is (best time of its problem / its time)^best_weight, because errors near the best times decide
        choices. 0: equal weights.
    median_rounds
        Number of further trees that reduce the absolute error instead of the squared one. They remove the bias from
        skewed noise.
    tiles
        Whether the base of AMD's matrix products is the time of the analytical model of output tiles, instead of
        roofline and call cost.
    random_state
        Seed of the trees.
    device
        Where XGBoost grows trees: ``cpu`` or ``cuda``.

    Attributes
    ----------
    booster_
        The trees.
    candidates_
        Candidate → its code, in the order of the candidates' median corrections.
    call_us_
        Call costs in µs; empty without physics.
    trend_
        The `Trend` outside the training ranges. None without physics.
    """

    storable: ClassVar[bool] = True
    algorithm_weight: ClassVar[float] = 0.0
    """Weight of the candidate's own roofline in the base, in log time, from 0 to 1."""
    has_physics: ClassVar[bool] = False
    """True if the base holds the call cost and a trend extrapolates outside the training ranges."""
    columns: ClassVar[Callable[[Family], tuple[str, ...]]] = staticmethod(dimension_columns)
    """Family → the columns of the trees, before the candidate's code."""

    rounds: Annotated[int, SearchRange(100, 1000, log=True)] = 300
    learning_rate: Annotated[float, SearchRange(0.02, 0.2, log=True)] = 0.08
    max_depth: int = 10
    max_leaves: Annotated[int, SearchRange(16, 256, log=True)] = 128
    min_child_weight: Annotated[float, SearchRange(0.5, 20.0, log=True)] = 3.0
    subsample: Annotated[float, SearchRange(0.5, 1.0)] = 0.6
    colsample_bynode: Annotated[float, SearchRange(0.1, 1.0)] = 0.2
    reg_lambda: Annotated[float, SearchRange(0.1, 20.0, log=True)] = 1.0
    max_bin: int = 128
    best_weight: Annotated[float, SearchRange(0.0, 1.0)] = 0.5
    median_rounds: int = 0
    tiles: bool = False
    random_state: int = 0
    device: str = "cpu"

    def base_us(self, rows: Rows) -> np.ndarray:
        """Return the base (rows,) in µs, which the correction multiplies: rooflines plus call cost, or tiles' time."""
        base_us = _tiled_us(rows) if self.tiles and rows.family.tiled_kinds else rows.roofline_us
        if self.algorithm_weight and rows.family.own_roofline:
            ratio = rows.column(rows.family.own_roofline).astype(np.float64)
            base_us = base_us * np.exp2(self.algorithm_weight * ratio)
        return base_us + self._call_us(rows) if self.call_us_ else base_us

    def target(self, rows: Rows, time_us: np.ndarray) -> np.ndarray:
        """Return the log corrections (rows,) that the trees learn, from times (rows,) in µs."""
        return np.log(time_us / self.base_us(rows))

    def design(self, rows: Rows) -> np.ndarray:
        """Return (rows, columns + 1) float32: `columns` and the candidate's code, NaN for a new candidate.

        Codes are in the order of the candidates' median corrections, so that a threshold separates fast from slow ones.
        """
        names, position = np.unique(rows.candidate.astype(str), return_inverse=True)
        codes = np.array([self.candidates_.get(name, np.nan) for name in names], dtype=np.float32)
        return np.column_stack([rows.columns(self.columns(rows.family)), codes[position]])

    def settings(self) -> dict[str, Any]:
        """Return parameters for ``xgboost.train``. `stages` gives the numbers of trees."""
        fixed = {"tree_method": "hist", "grow_policy": "lossguide", "seed": self.random_state, "verbosity": 0}
        return {name: getattr(self, name) for name in XGBOOST_NAMES} | fixed

    def stages(self) -> list[tuple[dict[str, Any], int]]:
        """Return parameters and numbers of trees for ``xgboost.train``. Each stage continues the previous one."""
        median = {**self.settings(), "objective": "reg:absoluteerror"}
        return [stage for stage in ((self.settings(), self.rounds), (median, self.median_rounds)) if stage[1]]

    def column_weights(self, family: Family) -> np.ndarray:
        """Return the weight (columns + 1,) with which a split samples each column of `design`.

        The candidate's code has a larger weight if several candidates compete for a problem.
        """
        return np.append(np.ones(len(self.columns(family))), self.candidate_weight_).astype(np.float32)

    def with_booster(self, booster: "Booster") -> Self:
        """Return this fitted model with other trees, which were trained on its `design` and `target`."""
        model = type(self)(**self.get_params(deep=False))
        vars(model).update({name: value for name, value in vars(self).items() if name != "arrays_"})
        model.booster_ = booster
        return model

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit the call costs, the trend and the trees."""
        import xgboost

        if not self.stages():
            raise InputError(f"{self.name}: rounds and median_rounds are 0; give at least one tree")
        vars(self).pop("arrays_", None)
        self.family_ = rows.family
        self.call_us_ = {}
        if self.has_physics and not (self.tiles and rows.family.tiled_kinds):
            timed = (*_gpus_and_libraries(rows), time_us)
            by_gpu = call_costs(*timed) if rows.family.call_cost_by_gpu else {}
            self.call_us_ = {**common_call_costs(*timed), **by_gpu}
        self.trend_ = None
        target = self.target(rows, time_us)
        medians = pd.Series(target).groupby(rows.candidate.astype(str)).median().sort_values(kind="stable")
        self.candidates_ = {str(name): code for code, name in enumerate(medians.index)}
        self.candidate_weight_ = CANDIDATE_WEIGHT if 2 * len(np.unique(rows.problem)) <= len(rows) else 1.0
        if self.has_physics:
            names = trend_names(rows.family)
            of_rows = {"candidates": rows.candidate, "gpus": _gpus_and_libraries(rows)[0]}
            self.trend_ = Trend.fit(names, rows.columns(names), target=target, **of_rows)
        threads = threads_for(len(rows))
        data = xgboost.QuantileDMatrix(
            self.design(rows),
            label=target,
            weight=self.weights(rows, time_us),
            max_bin=self.max_bin,
            feature_weights=self.column_weights(rows.family),
            nthread=threads,
        )
        self.booster_: Any = None
        callbacks = round_callbacks(self.on_progress, sum(rounds for _, rounds in self.stages()))
        for settings, rounds in self.stages():
            settings["nthread"] = threads
            self.booster_ = xgboost.train(settings, data, rounds, xgb_model=self.booster_, callbacks=callbacks)

    def _predict(self, rows: Rows) -> np.ndarray:
        log_correction = self.booster_.inplace_predict(self.design(rows)).astype(np.float64)
        if self.trend_ is not None:
            terms_ = rows.columns(self.trend_.names)
            log_correction += self.trend_.extrapolation(terms_, rows.candidate, _gpus_and_libraries(rows)[0])
        return self.base_us(rows) * np.exp(log_correction)

    def weights(self, rows: Rows, time_us: np.ndarray) -> np.ndarray:
        """Return weights (rows,) with mean 1, which fall with the ratio to the best time of the problem."""
        best_us = pd.Series(time_us).groupby(rows.problem).transform("min").to_numpy()
        weight = (best_us / time_us) ** self.best_weight
        return weight / weight.mean()

    def _call_us(self, rows: Rows) -> np.ndarray:
        """Return the call cost (rows,) of the row's library, on its GPU if the family has such costs."""
        gpus, libraries = _gpus_and_libraries(rows)
        keys = list(map(CallKey, gpus, libraries))
        costs = {key: call_cost_us(self.call_us_, *key) for key in set(keys)}
        return np.array([costs[key] for key in keys], dtype=np.float64)

    def tree_columns(self, family: Family) -> tuple[str, ...]:
        """Return the names of the columns of `design` except the last one, the candidate's code."""
        return self.columns(family)

    def tree_arrays(self) -> BoostedArrays:
        """Return the trees, the base's parameters and the trend as arrays."""
        if not hasattr(self, "arrays_"):
            self.arrays_ = BoostedArrays(
                trees=Trees.from_booster(self.booster_.save_raw("json")),
                columns=self.tree_columns(self.family_),
                codes=self.candidates_,
                algorithm_weight=self.algorithm_weight,
                call_us=self.call_us_,
                trend=self.trend_,
                tiles=bool(self.tiles and self.family_.tiled_kinds),
            )
        return self.arrays_

    def boosted_arrays(self) -> BoostedArrays | None:
        """Return the model as arrays."""
        return self.tree_arrays()

    def to_files(self) -> dict[str, bytes]:
        """Return the arrays as files."""
        return self.tree_arrays().to_files()

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """Return the model from the output of `to_files`."""
        return cls.from_arrays(BoostedArrays.from_files(files), params)

    @classmethod
    def from_arrays(cls, arrays: BoostedArrays, params: Mapping[str, Any] = MappingProxyType({})) -> Self:
        """Return the model with these arrays."""
        model = cls(**{**params, "tiles": arrays.tiles})
        model.arrays_ = arrays
        model.booster_ = ReadyTrees(lambda: arrays.trees, range(len(arrays.columns) + 1))
        model.candidates_ = dict(arrays.codes)
        model.call_us_ = dict(arrays.call_us)
        model.trend_ = arrays.trend
        return model


def _tiled_us(rows: Rows) -> np.ndarray:
    """Return the times (rows,) in µs by the analytical model of output tiles."""
    time_us = np.empty(len(rows))
    for (device, *values), positions in row_groups(rows.frame, ("gpu", *rows.family.setting_names)):
        problem: Any = problems_of(rows.frame.iloc[positions], rows.family, tuple(values))
        time_us[positions] = tiled_product_us(problem, rows.device(device))
    return time_us


def round_callbacks(on_progress: ProgressCallback | None, rounds: int) -> list["TrainingCallback"]:
    """Return XGBoost callbacks that call ``on_progress`` with the finished share of ``rounds``."""
    from xgboost.callback import TrainingCallback

    class Rounds(TrainingCallback):
        done = 0

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            self.done += 1
            if on_progress and self.done < rounds:
                on_progress(self.done / rounds)
            return False

    return [Rounds()] if on_progress else []


def _gpus_and_libraries(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the registry names of GPUs (rows,), and the names of libraries (rows,)."""
    return device_names(rows.frame).astype(str).astype(object), rows.frame["library"].astype(str).to_numpy(dtype=object)


class BoostedDims(_Boosted):
    """Boosted trees on the raw sizes; the base is the problem's roofline. Parameters: see `BoostedTerms`."""

    name: ClassVar[str] = "boosted-dims"
    help: ClassVar[str] = "gradient-boosted trees on the raw sizes"


class BoostedTerms(_Boosted):
    """Boosted trees on the sizes and the analytical terms.

    The base is the geometric mean of the problem's roofline and the algorithm's own roofline, plus the call cost.

    Parameters
    ----------
    rounds
        Number of trees.
    learning_rate, max_depth, max_leaves, min_child_weight, subsample, colsample_bynode, reg_lambda, max_bin
        Parameters of XGBoost.
    best_weight
        Exponent of the row weights, from 0 (equal weights): (best time of the problem / time)^best_weight.
    median_rounds
        Number of further trees that reduce the absolute error.
    random_state
        Seed of the trees.
    device
        Where XGBoost grows trees: ``cpu`` or ``cuda``.

    References
    ----------
    Chen and Guestrin 2016, "XGBoost: A scalable tree boosting system" (KDD).
    """

    name: ClassVar[str] = "boosted-terms"
    help: ClassVar[str] = "the default: boosted trees on sizes and analytical terms, and a trend outside their ranges"
    algorithm_weight: ClassVar[float] = 0.5
    has_physics: ClassVar[bool] = True
    columns = staticmethod(term_columns)


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
