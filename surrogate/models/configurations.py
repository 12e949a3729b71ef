"""`configurations`, the default of described kernels: it ranks configurations and predicts the time of the fastest.

A time is a product: the problem's level (the time of its best configuration) times the expectation of
`surrogate.models.transfer` for the configuration. The transfer learns from all measured problems, on any GPU and of any
size. The level is a Gaussian process over the problem's columns, around the roofline. A measured configuration is
answered with its measured time.

Outside the measured problems the data show no trend. Above the largest problems, a kernel stays as near to its roofline
as in the largest ones. Below the smallest problems, where launches matter, its time falls as the root of the work.
"""

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np
import pandas as pd

from surrogate.dataset.checks import FASTEST_US
from surrogate.dataset.problems import joined, rows_by_code
from surrogate.dataset.rows import Rows
from surrogate.features import DTYPES, KERNEL_GAP_US, MACHINE_NAMES, InputError, peak_flops_table
from surrogate.features.families import DescribedFamily, DescribedProblem, Family
from surrogate.features.families.described import DESCRIBED_WORK_NAMES, RULED_OUT
from surrogate.features.gpu import Gpu, gpu, gpus
from surrogate.models.base import TimeModel
from surrogate.models.json_types import from_json_types
from surrogate.models.transfer import Prior, TransferState

MAX_LEVELS = 1000
"""Maximum problems in the fit of the level. More problems are sampled."""
NOISE = 1e-3
"""Variance of a level's noise, relative to the variance of the process."""
SMOOTH, LINEAR = (0.03, 0.1, 0.3, 1.0, 3.0), (0.0, 0.1, 1.0, 10.0)
"""Candidate amplitudes of the process's smooth and linear parts. Left-out problems choose among them."""
LEVEL_FILE, FACTS_FILE = "level.npz", "configurations.json"
MAX_SCORE = 0.999
"""Maximum score: a time of a thousand times the best. No longer times are predicted."""
SMALL_WORK_EXPONENT = 0.5
"""Exponent of the work with which times fall below the smallest measured problem."""
FLOPS, ROOFLINE = DESCRIBED_WORK_NAMES.index("log2_flops"), DESCRIBED_WORK_NAMES.index("log2_roofline_us")


DtypeUnits: TypeAlias = tuple[str, Sequence[tuple[str, bool]]]
"""A dtype, and the units (keys of `peak_flops_table`) that replace its peak if it is unknown."""
FP32: DtypeUnits = ("", (("fp32", False),))
"""No dtype, and the units of fp32."""
MAX_FP32_RATIO = 1.25
"""Multiple of the datasheet's fp32 peak above which other units must be in use.

Boards exceed this peak slightly by their clocks.
"""
TOLERANCE = 1e-4
"""Tolerance for logarithms that were stored in float32."""
LIKELY = 0.5
"""A configuration is expected to fail if its failure probability is at least this."""


@dataclass(frozen=True, eq=False)
class Level:
    """Gaussian process of log(time of the best configuration / roofline) over a problem's columns.

    Attributes
    ----------
    columns
        (problems, c) standardised columns of the measured problems.
    rates
        (c,) rates at which similarity falls with the distance in each column.
    weights
        (problems,) dual coefficients.
    mean
        Mean of the log level.
    amplitudes
        (2,) amplitudes of the smooth and of the linear part.
    linear
        Number of first columns in the linear part. They are the problem's own columns: the figures of a few GPUs do not
        show how another GPU scales.
    """

    columns: np.ndarray
    rates: np.ndarray
    weights: np.ndarray
    mean: float
    amplitudes: np.ndarray
    linear: int

    @classmethod
    def fit(cls, columns: np.ndarray, rates: np.ndarray, log_level: np.ndarray, linear: int) -> "Level":
        """Fit on log levels (problems,). The amplitudes minimise the error of each problem if it is left out."""
        mean = float(log_level.mean())
        fits = []
        for smooth in SMOOTH:
            for slope in LINEAR:
                amplitudes = np.array([smooth, slope])
                covariance = _covariance(columns, columns, rates, amplitudes, linear)
                inverse = np.linalg.inv(covariance + NOISE * np.eye(len(columns)))
                weights = inverse @ (log_level - mean)
                left_out = weights / np.diag(inverse)  # residual of each problem if it is left out
                fits.append((float(left_out @ left_out), len(fits), amplitudes, weights))
        _, _, amplitudes, weights = min(fits)
        return cls(columns, rates, weights, mean, amplitudes, linear)

    def at(self, column: np.ndarray) -> float:
        """Return the log level of a problem with standardised columns (c,)."""
        covariance = _covariance(column[None], self.columns, self.rates, self.amplitudes, self.linear)
        return self.mean + float(covariance[0] @ self.weights)


def _covariance(a: np.ndarray, b: np.ndarray, rates: np.ndarray, amplitudes: np.ndarray, linear: int) -> np.ndarray:
    """Return the covariance (rows of a, rows of b) of problems by their columns."""
    distance = np.abs(a[:, None] - b[None]) @ rates
    return amplitudes[0] * np.exp(-distance) + amplitudes[1] * (a[:, :linear] @ b[:, :linear].T) / linear


_Value = TypeVar("_Value")


class _Derived(Generic[_Value]):
    """A property that is computed once after a fit. A prediction does not change the model's attributes by it."""

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self.function = function

    def __get__(self, model: Any, owner: Any) -> _Value:
        values, name = vars(model).setdefault("_derived", {}), self.function.__name__
        if name not in values:
            values[name] = self.function(model)
        return values[name]


@dataclass(eq=False, repr=False)
class Configurations(TimeModel):
    """Predict the times and failures of a described kernel's configurations.

    Parameters
    ----------
    random_state
        Seed of the folds, the samples and the trees.

    Attributes
    ----------
    transfer_
        The `TransferState`: the expectation for each configuration.
    level_
        The `Level`: the time of the best configuration relative to the roofline.
    configurations_
        Names of the measured candidates.
    problems_
        Keys of the measured problems (`problem_keys`).
    times_us_
        (problems, configurations) measured times in µs; inf if the configuration failed, NaN if it was not measured.

    Raises
    ------
    InputError
        On fitting rows that are not of a described kernel.
    """

    name: ClassVar[str] = "configurations"
    help: ClassVar[str] = "the default for described kernels: choices on other problems, trees, and a time level"
    storable: ClassVar[bool] = True
    tunable: ClassVar[bool] = False
    fits_failures: ClassVar[bool] = True

    random_state: int = 0

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit the transfer and the level. ``time_us`` (rows,) is inf if the configuration failed."""
        described_family(rows.family)
        problem, first_row = _codes(rows.problem)
        names, first, configuration = np.unique(rows.candidate.astype(str), return_index=True, return_inverse=True)
        columns, parameters, terms = columns_of(rows)
        table = np.full((len(first_row), len(names)), np.nan)
        table[problem, configuration] = time_us
        term_table = np.full((*table.shape, terms.shape[1]), np.nan, dtype=np.float32)
        term_table[problem, configuration] = terms
        measured = table, parameters[first], term_table, columns[first_row]
        self.transfer_ = TransferState.fit(*measured, seed=self.random_state)
        self.configurations_ = names.tolist()
        self.problems_ = problem_keys(rows)[first_row].tolist()
        self.times_us_ = table.astype(np.float32)
        best_us = np.where(np.isfinite(table), table, np.nan)
        ran = np.flatnonzero(~np.isnan(best_us).all(axis=1))
        drawn = np.random.default_rng(self.random_state).permutation(ran)[:MAX_LEVELS]
        level = np.log(np.nanmin(best_us[drawn], axis=1) / rows.roofline_us[first_row][drawn])
        column_count = len(rows.family.problem_names)
        self.level_ = Level.fit(self.transfer_.columns[drawn], self.transfer_.rates, level, column_count)
        self._derived: dict[str, Any] = {}

    def _predict(self, rows: Rows) -> np.ndarray:
        return self.answers_of(rows)[0]

    def answers_of(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return predicted times in µs (rows,) and failure probabilities (rows,); 1 if the configuration is refused."""
        family = described_family(rows.family)
        columns, parameters, terms = columns_of(rows)
        keys = problem_keys(rows)
        number = self.numbers(rows.candidate.tolist())
        time_us, failure = np.empty((2, len(rows)))
        for part in rows_by_code(_codes(rows.problem)[0]):
            first = int(part[0])
            settings = {name: str(rows.frame[name].iloc[first]) for name in family.setting_names}
            problem = family.problem(dict(zip(family.size_names, rows.sizes[first].tolist(), strict=True)), settings)
            device = rows.device(str(rows.frame["gpu"].iloc[first]))
            time_us[part], failure[part] = self.answers(
                str(keys[first]), problem, device, columns[first], parameters[part], terms[part], number[part]
            )
            refused = np.any([*self.refusals(problem, device, parameters[part], number[part]).values()], axis=0)
            failure[part] = np.maximum(failure[part], refused)
        return time_us, failure

    def refusals(
        self, problem: DescribedProblem, device: Gpu, parameters: np.ndarray, number: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return `DescribedFamily.refusals` for candidates with these numbers (`numbers`).

        A formula of the launch does not refuse a configuration that ran on the GPU.
        """
        refusals = problem.family.refusals(problem, parameters, device)
        if device.name not in self.ran:
            return refusals
        ran = np.append(self.ran[device.name], False)[number]
        return {reason: refused & ((reason == RULED_OUT) | ~ran) for reason, refused in refusals.items()}

    @_Derived
    def gpus(self) -> frozenset[str]:
        """Return the measured GPUs."""
        return frozenset(self._gpu_of.tolist())

    @property
    def _gpu_of(self) -> np.ndarray:
        """Return each problem's GPU, (problems,)."""
        return np.array([key.partition("|")[0] for key in self.problems_])

    def min_us(
        self, key: str, problem: DescribedProblem, device: Gpu, units: Collection[tuple[str, bool]] = ()
    ) -> float:
        """Return the minimum time in µs of any configuration of a problem.

        The minimum is a launch, or the FLOPs at the GPU's peak. On a GPU or for a size outside the measured ones it
        is at least the roofline (`DescribedFamily.min_us`). With the ``units`` that are in use, the minimum of the
        expected time is returned; without them, the minimum of any time. Profilers report empty kernels of
        `FASTEST_US`, host clocks of `KERNEL_GAP_US`.

        Raises
        ------
        InputError
            If a size is 0 and no measured problem had a 0 there.
        """
        if key in self.problem_numbers:
            return float(problem.family.min_us(problem, device, cached=True))
        for place, (name, value) in enumerate(problem.sizes.items(), -len(problem.values)):
            if value == 0 and not any(measured.split("|")[place] == "0" for measured in self.problems_):
                raise InputError(f"{problem}: {name} is 0, which was never measured; give a whole number from 1")
        launch_us = min(KERNEL_GAP_US if units else FASTEST_US, float(np.nanmin(self.times_us_)))
        sizes = np.log2(np.maximum(np.array(problem.values, dtype=np.float64), 1.0))
        low, high = self.bounds[:, : len(sizes)]
        # Inside the measured sizes of its GPUs, caches may be faster than memory, and the measurements give the level.
        is_inside = device.name in self.gpus and ((low <= sizes + TOLERANCE) & (sizes <= high + TOLERANCE)).all()
        if is_inside and units:
            return launch_us
        return max(launch_us, float(problem.family.min_us(problem, device, units, cached=bool(is_inside))))

    @_Derived
    def units(self) -> list[tuple[str, bool]]:
        """Return the keys of `peak_flops_table` that are most likely in use.

        No measured time exceeds their peaks, and their peaks on the measured GPUs are the smallest.
        """
        listed, reached = self._reached.keys(), self._reached
        peaks = {name: peak_flops_table(gpu(name)) for name in listed}
        units = list(next(iter(peaks.values()), ()))
        able = [unit for unit in units if all(peaks[name][unit] >= reached[name] for name in listed)]
        # Quantised values may run at the peak of half precision. Tuned kernels rarely use double precision.
        able = [unit for unit in able if unit[0] in DTYPES and unit[0] != "fp64"] or able
        of_unit = {unit: [peaks[name][unit] for name in sorted(listed)] for unit in able}
        return [unit for unit, peaks_of_unit in of_unit.items() if peaks_of_unit == min(of_unit.values(), key=sum)]

    @_Derived
    def _reached(self) -> dict[str, float]:
        """Return registered GPU → the largest TFLOP/s that were measured there."""
        best_us = np.nan_to_num(self.times_us_, nan=np.inf).min(axis=1)
        tflops = np.exp2(self._work(self._measured)[:, FLOPS]) / best_us / 1e6
        listed = {board.name for board in gpus()} & self.gpus
        return {name: tflops[self._gpu_of == name].max() for name in sorted(listed)}

    @_Derived
    def ran(self) -> dict[str, np.ndarray]:
        """Return GPU → True (configurations,) if the configuration ran on some problem."""
        ran = np.isfinite(self.times_us_)
        return {name: np.any(ran[self._gpu_of == name], axis=0) for name in self.gpus}

    @_Derived
    def candidate_numbers(self) -> dict[str, int]:
        """Return candidate → its number."""
        return {name: number for number, name in enumerate(self.configurations_)}

    @_Derived
    def problem_numbers(self) -> dict[str, int]:
        """Return problem → its number."""
        return {key: number for number, key in enumerate(self.problems_)}

    @_Derived
    def bounds(self) -> np.ndarray:
        """Return the minimum and maximum of each measured problem column, (2, c).

        The GPU's columns have no bounds, nor has the roofline, which depends on the GPU.
        """
        free = np.arange(self._measured.shape[1]) >= self.level_.linear
        self._work(free)[ROOFLINE] = True
        return np.where(free, [[-np.inf], [np.inf]], [self._measured.min(axis=0), self._measured.max(axis=0)])

    @_Derived
    def boards(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return measured GPU → its columns, and log2 of its FLOPs and bytes per µs, (2,), by the rooflines."""
        work, roofline = self._work(self._measured)[:, :2], self._work(self._measured)[:, ROOFLINE, None]
        of_gpu = self._gpu_of
        figures, rates = self._measured[:, -len(MACHINE_NAMES) :], work - roofline
        boards = {name: of_gpu == name for name in sorted(self.gpus)}
        return {name: (figures[rows][0], rates[rows].max(axis=0)) for name, rows in boards.items()}

    @property
    def _measured(self) -> np.ndarray:
        """Return the columns (problems, c) of the measured problems, as `columns_of` gives them."""
        return self.transfer_.columns * self.transfer_.spread + self.transfer_.centre

    @_Derived
    def _log2_best_us(self) -> np.ndarray:
        """Return log2 of each problem's best time in µs, (problems,); inf if no configuration ran."""
        return np.log2(np.nan_to_num(self.times_us_, nan=np.inf).min(axis=1))

    def _work(self, columns: np.ndarray) -> np.ndarray:
        """Return a view of the `DESCRIBED_WORK_NAMES` columns of ``columns`` (…, c)."""
        return columns[..., self.level_.linear - len(DESCRIBED_WORK_NAMES) : self.level_.linear]

    def _best_us(self, problem: DescribedProblem, device: Gpu, columns: np.ndarray) -> float:
        """Return the time in µs of the best configuration of an unmeasured problem with ``columns`` (c,).

        An unmeasured GPU is as near to its roofline, at the peaks of the units in use, as the measured GPUs are on
        average. A line through the rooflines of two GPUs would not predict a third GPU.
        """
        inside = self.inside(problem, device, columns)
        listed = self._reached.keys() if device.vendor else ()
        measured = [device.name] if device.name in self.gpus else sorted(listed or self.gpus)
        is_above_fp32 = any(tflops > MAX_FP32_RATIO * gpu(name).fp32_tflops for name, tflops in self._reached.items())
        rated = (problem.dtype, self.units) if is_above_fp32 and self.units else FP32
        # 1. For each measured GPU, log2(time / roofline) of the nearest point inside the measured ranges.
        shares = []
        for name in measured:
            gpu_columns, by_roofline = self.boards[name]
            moved = inside.copy()
            moved[-len(gpu_columns) :] = gpu_columns
            self._work(moved)[ROOFLINE] = (self._work(moved)[:2] - by_roofline).max()
            standard = np.nan_to_num((moved - self.transfer_.centre) / self.transfer_.spread)
            log2_us = self._work(moved)[ROOFLINE] + self.level_.at(standard) / np.log(2)
            # A problem is not faster than a measured one if no size and no work of that one is larger. It is not
            # slower than a measured one if no size and no work of that one is smaller.
            sized = self.level_.linear - 2
            same = [key.startswith("|".join((name, *problem.settings, ""))) for key in self.problems_]
            excess = self._measured[same, :sized] - inside[:sized]
            smaller, larger = (self._log2_best_us[same][(sign * excess <= TOLERANCE).all(axis=1)] for sign in (1, -1))
            log2_us = min(max(log2_us, smaller[np.isfinite(smaller)].max(initial=-np.inf)), larger.min(initial=np.inf))
            rate = _log2_rates(problem, gpu(name), rated, by_roofline) if name in listed else by_roofline
            shares.append(log2_us - (self._work(moved)[:2] - rate).max())
        # 2. From that point to the problem, the time follows the roofline on the GPU, or its root for less work.
        rate = _log2_rates(problem, device, rated, self._by_work(columns))
        nearest, query = ((self._work(each)[:2] - rate).max() for each in (inside, columns))
        outside = query - nearest
        return float(2.0 ** (np.mean(shares) + nearest + outside * (1.0 if outside > 0 else SMALL_WORK_EXPONENT)))

    def inside(self, problem: DescribedProblem, device: Gpu, columns: np.ndarray) -> np.ndarray:
        """Return a problem's columns (c,) clipped to the measured ranges, with the device's roofline at that point."""
        inside = np.clip(columns, *self.bounds)
        rates = _log2_rates(problem, device, FP32, self._by_work(columns))
        self._work(inside)[ROOFLINE] = (self._work(inside)[:2] - rates).max()
        return inside

    def _by_work(self, columns: np.ndarray) -> np.ndarray:
        """Return (2,) log2 of FLOPs per µs from the roofline in ``columns`` (c,), and no limit of bytes.

        These rates replace unknown rates.
        """
        return np.array([self._work(columns)[FLOPS] - self._work(columns)[ROOFLINE], np.inf])

    def numbers(self, candidates: Sequence[str]) -> np.ndarray:
        """Return the numbers (n,) of the candidates with these names; −1 for an unmeasured candidate."""
        return np.array([self.candidate_numbers.get(name, -1) for name in candidates], dtype=np.int64)

    def answers(
        self,
        key: str,
        problem: DescribedProblem,
        device: Gpu,
        columns: np.ndarray,
        parameters: np.ndarray,
        terms: np.ndarray,
        number: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return times in µs (n,) and failure probabilities (n,) of configurations of one problem.

        Parameters
        ----------
        key
            The problem's key (`problem_keys`).
        problem
            The problem.
        device
            The GPU.
        columns, parameters, terms
            (c,), (n, p) and (n, t), as `columns_of` gives them.
        number
            (n,) numbers of the candidates (`numbers`).
        """
        row = self.problem_numbers.get(key)
        if row is None:
            prior = self.transfer_.prior(self.inside(problem, device, columns), parameters, terms, number)
            best_us = max(self._best_us(problem, device, columns), self.min_us(key, problem, device, self.units))
            return best_us * np.exp(relative(prior)), prior.failure
        prior = self.transfer_.prior(columns, parameters, terms, number)
        measured_us = np.append(self.times_us_[row], np.nan)[number]
        ran = self.times_us_[row][np.isfinite(self.times_us_[row])]
        level = self.level_.at(self.transfer_.columns[row])
        best_us = ran.min() if len(ran) else 2.0 ** self._work(columns)[ROOFLINE] * np.exp(level)
        time_us = np.where(np.isfinite(measured_us), measured_us, best_us * np.exp(relative(prior)))
        return time_us, np.where(np.isnan(measured_us), prior.failure, np.isinf(measured_us))

    def table(self, family: DescribedFamily) -> pd.DataFrame:
        """Return the training data as a table of the kernel, with a row per configuration and problem."""
        problem, configuration = np.nonzero(~np.isnan(self.times_us_))
        keys = pd.DataFrame([key.split("|") for key in self.problems_], columns=list(family.problem_key))
        keys = keys.astype(dict.fromkeys(family.size_names, np.int64))
        names = [name.rsplit("|", 2) for name in self.configurations_]
        candidates = pd.DataFrame([name[:2] for name in names], columns=["library", "algorithm"], dtype=object)
        values = [family.description.configuration(text) if text else {} for _, _, text in names]
        parameters = pd.DataFrame(values, columns=list(family.description.parameters))
        parts = [keys.iloc[problem], candidates.iloc[configuration], parameters.iloc[configuration]]
        time_us = self.times_us_[problem, configuration].astype(np.float64)
        ran = np.isfinite(time_us)
        outcome = pd.DataFrame({"time_us": np.where(ran, time_us, np.nan), "status": np.where(ran, "ok", "failed")})
        return pd.concat([*(part.reset_index(drop=True) for part in parts), outcome], axis=1)

    def measured(self, key: str, number: np.ndarray) -> np.ndarray:
        """Return True (n,) if the candidate with this number has a time on the problem with this key."""
        row = self.problem_numbers.get(key)
        if row is None:
            return np.zeros(len(number), dtype=bool)
        return np.append(np.isfinite(self.times_us_[row]), False)[number]

    def to_files(self) -> dict[str, bytes]:
        """Return the arrays of the transfer and the level, and the names of configurations and problems."""
        out = io.BytesIO()
        np.savez_compressed(out, times_us=self.times_us_, **vars(self.level_))
        facts = {"configurations": self.configurations_, "problems": self.problems_}
        return {**self.transfer_.to_files(), LEVEL_FILE: out.getvalue(), FACTS_FILE: json.dumps(facts).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """Return the model from the output of `to_files`."""
        model = cls(**params)
        model.transfer_ = TransferState.from_files(files)
        with np.load(io.BytesIO(files[LEVEL_FILE]), allow_pickle=False) as archive:
            level = {each.name: archive[each.name] for each in fields(Level)}
            model.times_us_ = archive["times_us"]
        model.level_ = Level(**{**level, "mean": float(level["mean"]), "linear": int(level["linear"])})
        facts = from_json_types(Mapping[str, list[str]], json.loads(files[FACTS_FILE]), FACTS_FILE)
        model.configurations_, model.problems_ = facts["configurations"], facts["problems"]
        if model.times_us_.shape != (len(model.problems_), len(model.configurations_)):
            raise InputError("the table of times does not fit its names; the file is damaged")
        return model


def _log2_rates(problem: DescribedProblem, board: Gpu, rated: DtypeUnits, otherwise: np.ndarray) -> np.ndarray:
    """Return log2 of `DescribedFamily.rates` of FLOPs and bytes, (2,), for a dtype and units; inf without a formula."""
    dtype, units = rated
    rates = problem.family.rates(dtype, board, units)
    return np.log2([rates.get(name, np.inf) for name in ("flops", "bytes")]) if rates else otherwise


def relative(prior: Prior) -> np.ndarray:
    """Return log(time / the problem's best time), (n,), from the score, so that likely failures come late."""
    return -np.log1p(-np.minimum(prior.score, MAX_SCORE))


def described_family(family: Family) -> DescribedFamily:
    """Return the family if it is of a described kernel. Raise `InputError` otherwise."""
    if not isinstance(family, DescribedFamily):
        raise InputError(f"{Configurations.name} predicts described kernels, not {family.name}; use boosted-terms")
    return family


def columns_of(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the problem's and GPU's columns (rows, c), parameters (rows, p), and launch terms (rows, t)."""
    family = described_family(rows.family)
    sized, launch = len(family.problem_names), len(family.problem_names) + len(family.parameter_names)
    constants = launch + len(family.candidate_names) - len(family.parameter_names)
    features = rows.features
    columns = np.column_stack([features[:, :sized], features[:, constants : constants + len(family.constant_names)]])
    return columns, features[:, sized:launch].astype(np.float64), features[:, launch:constants]


def problem_keys(rows: Rows) -> np.ndarray:
    """Return each row's problem as text (rows,): GPU, settings, sizes."""
    return joined(rows.frame, rows.family.problem_key).to_numpy(dtype=object)


def _codes(problem: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the problem's number from 0, (rows,), and the first row of each problem."""
    _, first, code = np.unique(problem, return_index=True, return_inverse=True)
    return code, first
