"""`configurations`, the default of described kernels: which configuration is fast where, and how fast the fastest is.

A time is the problem's level, the time of its best configuration, times what `surrogate.models.transfer` expects of the
configuration: that is learned from every problem that was measured, on any GPU and of any size. The level is a Gaussian
process over the problem's columns around its roofline. What was measured itself is answered as it was measured.

Nothing tells how a trend goes on beyond what was measured. Beyond the largest problems a kernel stays as near to its
roofline as it was there; below the smallest, where launches take their share, its time falls as the root of the work.
"""

import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.dataset.checks import FASTEST_US
from surrogate.dataset.problems import joined, rows_by_code
from surrogate.dataset.rows import Rows
from surrogate.features.analytical import LAUNCH_US
from surrogate.features.errors import InputError
from surrogate.features.families import DescribedFamily, DescribedProblem, Family
from surrogate.features.families.described import RULED_OUT, WORK_NAMES
from surrogate.features.gpu import Gpu, gpu, gpus
from surrogate.features.problem import DTYPES
from surrogate.features.roofline import MACHINE_NAMES, peak_flops_table
from surrogate.models.base import TimeModel
from surrogate.models.json_types import from_json_types, input_error_if_damaged
from surrogate.models.transfer import Prior, TransferState

MAX_LEVELS = 1000
"""Problems that the level goes by; of more, so many are drawn."""
NOISE = 1e-3
"""Variance of a level beside those of the process."""
SMOOTH, LINEAR = (0.03, 0.1, 0.3, 1.0, 3.0), (0.0, 0.1, 1.0, 10.0)
"""Amplitudes of the process among which problems left out choose: of what is smooth, and of what is linear."""
LEVEL_FILE, FACTS_FILE = "level.npz", "configurations.json"
MAX_SCORE = 0.999
"""Score of what takes a thousand times the best time: nothing is expected to take longer."""
BELOW = 0.5
"""Share of the work's halvings below the smallest measured problem that the time does not follow."""
FLOPS, ROOFLINE = WORK_NAMES.index("log2_flops"), WORK_NAMES.index("log2_roofline_us")
FP32 = ("", (("fp32", False),))
"""No dtype, and the units of fp32."""
BEYOND_FP32 = 1.25
"""Multiple of a data sheet's fp32 peak, which boards exceed by their clocks, from which on other units are in use."""
SLACK = 1e-4
"""Of logarithms that were kept in float32."""
LIKELY = 0.5
"""Probability of a failure from which on a configuration is not expected to run."""


@dataclass(frozen=True, eq=False)
class Level:
    """log(time of the best configuration / roofline) as a Gaussian process over standardised ``columns`` (problems, c).

    ``weights`` (problems,) and ``mean`` are fitted; ``amplitudes`` (2,) of the smooth and the linear part, which is in
    the first ``linear`` columns alone, the problem's: two GPUs' figures say nothing of how a third one's scale.
    """

    columns: np.ndarray
    rates: np.ndarray
    weights: np.ndarray
    mean: float
    amplitudes: np.ndarray
    linear: int

    @classmethod
    def fit(cls, columns: np.ndarray, rates: np.ndarray, log_level: np.ndarray, linear: int) -> "Level":
        """``log_level`` (problems,). Amplitudes are those with which each problem left out is met best."""
        mean = float(log_level.mean())
        fits = []
        for smooth in SMOOTH:
            for slope in LINEAR:
                amplitudes = np.array([smooth, slope])
                covariance = _covariance(columns, columns, rates, amplitudes, linear)
                inverse = np.linalg.inv(covariance + NOISE * np.eye(len(columns)))
                weights = inverse @ (log_level - mean)
                left_out = weights / np.diag(inverse)  # the residual of each problem, had it been left out
                fits.append((float(left_out @ left_out), len(fits), amplitudes, weights))
        _, _, amplitudes, weights = min(fits)
        return cls(columns, rates, weights, mean, amplitudes, linear)

    def at(self, column: np.ndarray) -> float:
        """The level of a problem with standardised columns (c,)."""
        covariance = _covariance(column[None], self.columns, self.rates, self.amplitudes, self.linear)
        return self.mean + float(covariance[0] @ self.weights)


def _covariance(a: np.ndarray, b: np.ndarray, rates: np.ndarray, amplitudes: np.ndarray, linear: int) -> np.ndarray:
    """(rows of a, rows of b) of problems by their columns."""
    distance = np.abs(a[:, None] - b[None]) @ rates
    return amplitudes[0] * np.exp(-distance) + amplitudes[1] * (a[:, :linear] @ b[:, :linear].T) / linear


@dataclass(eq=False, repr=False)
class Configurations(TimeModel):
    """Times of a described kernel's configurations; see the module."""

    name: ClassVar[str] = "configurations"
    help: ClassVar[str] = "the default of described kernels: other problems' choices and trees, and a level"
    storable: ClassVar[bool] = True
    tunable: ClassVar[bool] = False
    fits_failures: ClassVar[bool] = True

    random_state: int = 0

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """``time_us`` (rows,) is inf where the configuration failed."""
        described_family(rows.family)
        problem, first_row = _codes(rows.problem)
        candidate = rows.candidate.astype(str)
        names, first, configuration = np.unique(candidate, return_index=True, return_inverse=True)
        columns, parameters, terms = columns_of(rows)
        table = np.full((len(first_row), len(names)), np.nan)
        table[problem, configuration] = time_us
        term_table = np.full((*table.shape, terms.shape[1]), np.nan, dtype=np.float32)
        term_table[problem, configuration] = terms
        self.transfer_ = TransferState.fit(
            table, parameters[first], term_table, columns[first_row], seed=self.random_state
        )
        self.configurations_ = names.tolist()
        self.problems_ = problem_keys(rows)[first_row].tolist()
        self.times_us_ = table.astype(np.float32)
        best_us = np.where(np.isfinite(table), table, np.nan)
        ran = np.flatnonzero(~np.isnan(best_us).all(axis=1))
        drawn = np.random.default_rng(self.random_state).permutation(ran)[:MAX_LEVELS]
        level = np.log(np.nanmin(best_us[drawn], axis=1) / rows.roofline_us[first_row][drawn])
        sized = len(rows.family.problem_names)
        self.level_ = Level.fit(self.transfer_.columns[drawn], self.transfer_.rates, level, sized)
        for name in ("places", "bounds", "gpus", "ran", "units", "boards", "_reached", "_log2_best_us"):
            vars(self).pop(name, None)

    def _predict(self, rows: Rows) -> np.ndarray:
        return self.of_rows(rows)[:, 0]

    def of_rows(self, rows: Rows) -> np.ndarray:
        """(rows, 4) times in µs; probabilities of a failure, 1 where the configuration is refused; bounds of times in
        µs as of `min_us`; and 1 where the time is a measurement, else 0."""
        family = described_family(rows.family)
        columns, parameters, terms = columns_of(rows)
        keys = problem_keys(rows)
        known = self.numbers(rows.candidate.tolist())
        out = np.empty((len(rows), 4))
        for part in rows_by_code(_codes(rows.problem)[0]):
            first = int(part[0])
            key = str(keys[first])
            settings = {name: str(rows.frame[name].iloc[first]) for name in family.setting_names}
            asked = family.problem(dict(zip(family.size_names, rows.sizes[first].tolist(), strict=True)), settings)
            device = rows.device(str(rows.frame["gpu"].iloc[first]))
            time_us, failure = self.answers(
                key, asked, device, columns[first], parameters[part], terms[part], known[part]
            )
            refused = np.any([*self.refusals(asked, device, parameters[part], known[part]).values()], axis=0)
            is_measured = self.measured(key, known[part])
            out[part] = np.column_stack(
                np.broadcast_arrays(time_us, np.maximum(failure, refused), self.min_us(key, asked, device), is_measured)
            )
        return out

    def refusals(
        self, problem: DescribedProblem, device: Gpu, parameters: np.ndarray, known: np.ndarray
    ) -> dict[str, np.ndarray]:
        """`DescribedFamily.refusals`; a formula of a launch does not refuse what ran on the GPU."""
        refusals = problem.family.refusals(problem, parameters, device)
        if device.name not in self.ran:
            return refusals
        ran = np.append(self.ran[device.name], False)[known]
        return {reason: refused & ((reason == RULED_OUT) | ~ran) for reason, refused in refusals.items()}

    @cached_property
    def gpus(self) -> frozenset[str]:
        """Those that were measured."""
        return frozenset(self._gpu_of.tolist())

    @property
    def _gpu_of(self) -> np.ndarray:
        """(problems,) the GPU of each."""
        return np.array([key.partition("|")[0] for key in self.problems_])

    def min_us(
        self, key: str, problem: DescribedProblem, device: Gpu, units: Collection[tuple[str, bool]] = ()
    ) -> float:
        """What no configuration of a ``problem`` that was not measured is faster than, in µs: a launch, and on a GPU or
        of a size beyond the measured ones its roofline (`DescribedFamily.min_us`). 0 for a measured one. With the
        ``units`` that it runs on what is expected, without the least of any: profilers report empty kernels of
        `FASTEST_US`, host clocks of `LAUNCH_US`.

        Raises `InputError` for a size of 0 where none was measured.
        """
        if key in self.places[1]:
            return 0.0
        for place, (name, value) in enumerate(problem.sizes.items(), -len(problem.values)):
            if value == 0 and not any(measured.split("|")[place] == "0" for measured in self.problems_):
                raise InputError(f"{problem}: {name} is 0, which was never measured; give 1 or more")
        launch_us = min(LAUNCH_US if units else FASTEST_US, float(np.nanmin(self.times_us_)))
        sizes = np.log2(np.maximum(np.array(problem.values, dtype=np.float64), 1.0))
        low, high = self.bounds[:, : len(sizes)]
        # Within the measured sizes of its GPUs a table may do better: what lies in a cache is read faster.
        is_inside = device.name in self.gpus and ((low <= sizes + SLACK) & (sizes <= high + SLACK)).all()
        return launch_us if is_inside else max(launch_us, float(problem.family.min_us(problem, device, units)))

    @cached_property
    def units(self) -> list[tuple[str, bool]]:
        """Keys of `peak_flops_table` that are most likely in use: of those whose peaks no measured time exceeds, the
        ones with the least peaks on the measured GPUs."""
        listed, reached = self._reached.keys(), self._reached
        peaks = {name: peak_flops_table(gpu(name)) for name in listed}
        units = list(next(iter(peaks.values()), ()))
        able = [unit for unit in units if all(peaks[name][unit] >= reached[name] for name in listed)]
        # Quantised values may run at half precision's peak, and double precision is rare in a kernel that is tuned.
        able = [unit for unit in able if unit[0] in DTYPES and unit[0] != "fp64"] or able
        of_unit = {unit: [peaks[name][unit] for name in sorted(listed)] for unit in able}
        return [unit for unit, own in of_unit.items() if own == min(of_unit.values(), key=sum)]

    @cached_property
    def _reached(self) -> dict[str, float]:
        """Measured GPU that the registry lists → the most TFLOP/s that were reached there."""
        tflops = (
            np.exp2(self._work(self._measured)[:, FLOPS]) / np.nan_to_num(self.times_us_, nan=np.inf).min(axis=1) / 1e6
        )
        listed = {board.name for board in gpus()} & self.gpus
        return {name: tflops[self._gpu_of == name].max() for name in sorted(listed)}

    @cached_property
    def ran(self) -> dict[str, np.ndarray]:
        """GPU → (configurations,) True where one ran on some problem."""
        ran = np.isfinite(self.times_us_)
        return {name: np.any(ran[self._gpu_of == name], axis=0) for name in self.gpus}

    @cached_property
    def places(self) -> tuple[dict[str, int], dict[str, int]]:
        """Candidate → its number, and problem → its number."""
        return (
            {name: number for number, name in enumerate(self.configurations_)},
            {key: number for number, key in enumerate(self.problems_)},
        )

    @cached_property
    def bounds(self) -> np.ndarray:
        """(2, c) the least and the greatest of each of the problem's columns that was measured; the GPU's, and the
        roofline, which is the GPU's as well, have none."""
        free = np.arange(self._measured.shape[1]) >= self.level_.linear
        self._work(free)[ROOFLINE] = True
        ends = [self._measured.min(axis=0), self._measured.max(axis=0)]
        return np.where(free, [[-np.inf], [np.inf]], ends)

    @cached_property
    def boards(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Measured GPU → its own columns, and (2,) log2 of what it does of FLOPs and of bytes in a µs, as rooflines
        tell."""
        work, roofline = self._work(self._measured)[:, :2], self._work(self._measured)[:, ROOFLINE, None]
        of_gpu = self._gpu_of
        return {
            name: (
                self._measured[of_gpu == name][0, -len(MACHINE_NAMES) :],
                (work - roofline)[of_gpu == name].max(axis=0),
            )
            for name in sorted(self.gpus)
        }

    @property
    def _measured(self) -> np.ndarray:
        """(problems, c) columns as `columns_of` gives them."""
        return self.transfer_.columns * self.transfer_.spread + self.transfer_.centre

    @cached_property
    def _log2_best_us(self) -> np.ndarray:
        """(problems,) of the best time; inf where nothing ran."""
        return np.log2(np.nan_to_num(self.times_us_, nan=np.inf).min(axis=1))

    def _work(self, columns: np.ndarray) -> np.ndarray:
        """Of columns (…, c) those of `WORK_NAMES`: a view."""
        return columns[..., self.level_.linear - len(WORK_NAMES) : self.level_.linear]

    def _best_us(self, problem: DescribedProblem, device: Gpu, columns: np.ndarray) -> float:
        """Time in µs of the best configuration of a problem that was not measured, with these columns (c,).

        A GPU that was not measured is as near to its roofline as the measured ones are to theirs, in the mean, at the
        peaks of the units in use: a straight line through the rooflines of two GPUs says nothing of a third one's.
        """
        inside = self.inside(problem, device, columns)
        listed = self._reached.keys() if device.vendor else ()
        measured = [device.name] if device.name in self.gpus else sorted(listed or self.gpus)
        is_beyond = any(tflops > BEYOND_FP32 * gpu(name).fp32_tflops for name, tflops in self._reached.items())
        unit = (problem.dtype, self.units) if is_beyond and self.units else FP32
        # 1. log2(time / roofline) of the nearest problem that lies within what was measured.
        shares = []
        for name in measured:
            own, by_roofline = self.boards[name]
            there = inside.copy()
            there[-len(own) :] = own
            self._work(there)[ROOFLINE] = (self._work(there)[:2] - by_roofline).max()
            standard = np.nan_to_num((there - self.transfer_.centre) / self.transfer_.spread)
            log2_us = self._work(there)[ROOFLINE] + self.level_.at(standard) / np.log(2)
            # No problem takes less than a measured one of which no size and no work is larger, or more than one of
            # which none is smaller.
            sized = self.level_.linear - 2
            on = [key.startswith("|".join((name, *problem.settings, ""))) for key in self.problems_]
            excess = self._measured[on, :sized] - inside[:sized]
            smaller, larger = (self._log2_best_us[on][(sign * excess <= SLACK).all(axis=1)] for sign in (1, -1))
            log2_us = min(max(log2_us, smaller[np.isfinite(smaller)].max(initial=-np.inf)), larger.min(initial=np.inf))
            rate = _log2_rates(problem, gpu(name), unit, by_roofline) if name in listed else by_roofline
            shares.append(log2_us - (self._work(there)[:2] - rate).max())
        # 2. From there on it goes as its roofline on the GPU, or as the root of that.
        rate = _log2_rates(problem, device, unit, self._by_work(columns))
        nearest, asked = ((self._work(each)[:2] - rate).max() for each in (inside, columns))
        past = asked - nearest
        return float(2.0 ** (np.mean(shares) + nearest + past * (1.0 if past > 0 else BELOW)))

    def inside(self, problem: DescribedProblem, device: Gpu, columns: np.ndarray) -> np.ndarray:
        """A problem's columns (c,) brought into what was measured, with the roofline that the device has there."""
        inside = np.clip(columns, *self.bounds)
        rates = _log2_rates(problem, device, FP32, self._by_work(columns))
        self._work(inside)[ROOFLINE] = (self._work(inside)[:2] - rates).max()
        return inside

    def _by_work(self, columns: np.ndarray) -> np.ndarray:
        """(2,) log2 of FLOPs in a µs by the roofline of columns (c,), and no bound of bytes: where no figure tells."""
        return np.array([self._work(columns)[FLOPS] - self._work(columns)[ROOFLINE], np.inf])

    def numbers(self, candidates: Sequence[str]) -> np.ndarray:
        """(n,) numbers of the candidates of these names, −1 for one that was never measured."""
        places = self.places[0]
        return np.array([places.get(name, -1) for name in candidates], dtype=np.int64)

    def answers(
        self,
        key: str,
        problem: DescribedProblem,
        device: Gpu,
        columns: np.ndarray,
        parameters: np.ndarray,
        terms: np.ndarray,
        known: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(n,) times in µs, and (n,) probabilities of a failure, of configurations of one problem.

        ``key`` as of `problem_keys`; ``columns`` (c,), ``parameters`` (n, p) and ``terms`` (n, t) as of `columns_of`;
        ``known`` (n,) as of `numbers`.
        """
        number = self.places[1].get(key)
        if number is None:
            prior = self.transfer_.prior(self.inside(problem, device, columns), parameters, terms, known)
            best_us = max(self._best_us(problem, device, columns), self.min_us(key, problem, device, self.units))
            return best_us * np.exp(relative(prior)), prior.failure
        prior = self.transfer_.prior(columns, parameters, terms, known)
        own = np.append(self.times_us_[number], np.nan)[known]
        ran = self.times_us_[number][np.isfinite(self.times_us_[number])]
        level = self.level_.at(self.transfer_.columns[number])
        best_us = ran.min() if len(ran) else 2.0 ** self._work(columns)[ROOFLINE] * np.exp(level)
        time_us = np.where(np.isfinite(own), own, best_us * np.exp(relative(prior)))
        return time_us, np.where(np.isnan(own), prior.failure, np.isinf(own))

    def table(self, family: DescribedFamily) -> pd.DataFrame:
        """What the model was fitted on, as a table of the kernel: a row for each configuration on a problem."""
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

    def measured(self, key: str, known: np.ndarray) -> np.ndarray:
        """(n,) whether the candidates ``known``, as of `numbers`, have a time on a problem, as of `problem_keys`."""
        number = self.places[1].get(key)
        if number is None:
            return np.zeros(len(known), dtype=bool)
        return np.append(np.isfinite(self.times_us_[number]), False)[known]

    def to_files(self) -> dict[str, bytes]:
        """The transfer's arrays, the level's, and the names of configurations and problems."""
        out = io.BytesIO()
        level: dict[str, Any] = {name: np.asarray(getattr(self.level_, name)) for name in _LEVEL}
        np.savez_compressed(out, times_us=self.times_us_, **level)
        facts = {"configurations": self.configurations_, "problems": self.problems_}
        return {**self.transfer_.to_files(), LEVEL_FILE: out.getvalue(), FACTS_FILE: json.dumps(facts).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        with input_error_if_damaged(cls.name):
            model.transfer_ = TransferState.from_files(files)
            with np.load(io.BytesIO(files[LEVEL_FILE]), allow_pickle=False) as archive:
                level = {name: archive[name] for name in _LEVEL}
                model.times_us_ = archive["times_us"]
            model.level_ = Level(**{**level, "mean": float(level["mean"]), "linear": int(level["linear"])})
            facts = from_json_types(Mapping[str, tuple[str, ...]], json.loads(files[FACTS_FILE]), FACTS_FILE)
            model.configurations_, model.problems_ = list(facts["configurations"]), list(facts["problems"])
            if model.times_us_.shape != (len(model.problems_), len(model.configurations_)):
                raise InputError("the table of times does not fit its names; the file is damaged")
        return model


_LEVEL = ("columns", "rates", "weights", "mean", "amplitudes", "linear")


def _log2_rates(
    problem: DescribedProblem, board: Gpu, unit: tuple[str, Sequence[tuple[str, bool]]], otherwise: np.ndarray
) -> np.ndarray:
    """(2,) log2 of `DescribedFamily.rates` of FLOPs and bytes for a dtype and units, inf where no formula tells."""
    known = problem.family.rates(unit[0], board, unit[1])
    return np.log2([known.get(name, np.inf) for name in ("flops", "bytes")]) if known else otherwise


def relative(prior: Prior) -> np.ndarray:
    """(n,) log(time / the problem's best time), by the score, so that what may fail comes late."""
    return -np.log1p(-np.minimum(prior.score, MAX_SCORE))


def described_family(family: Family) -> DescribedFamily:
    """The family as that of a described kernel. Raises `InputError` for any other."""
    if not isinstance(family, DescribedFamily):
        raise InputError(f"{Configurations.name} is for described kernels, not {family.name}; use boosted-terms")
    return family


def columns_of(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, c) columns of the problem and its GPU, (rows, p) parameters, (rows, t) terms of the launch."""
    family = described_family(rows.family)
    sized, launch = len(family.problem_names), len(family.problem_names) + len(family.parameter_names)
    constants = launch + len(family.candidate_names) - len(family.parameter_names)
    features = rows.features
    columns = np.column_stack([features[:, :sized], features[:, constants : constants + len(family.constant_names)]])
    return columns, features[:, sized:launch].astype(np.float64), features[:, launch:constants]


def problem_keys(rows: Rows) -> np.ndarray:
    """(rows,) each row's problem as text: GPU, settings, sizes."""
    return joined(rows.frame, rows.family.problem_key).to_numpy(dtype=object)


def _codes(problem: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) the problem's number from 0, and the first row of each."""
    _, first, code = np.unique(problem, return_index=True, return_inverse=True)
    return code, first
