"""Compute prediction intervals, and the probability of each candidate to be the fastest.

The half width of an interval in log time is a product. The base depends on GPU and candidate, with fallbacks to the
candidate on any GPU and to all rows. One factor depends on the distance to the training data, one on the predicted
time. The product is at most the candidate's largest error: the data show no larger one, near or far.
`surrogate.uncertainty.fit` fits them on rows held out by shape. This module needs only numpy, so that an answer does
not wait for pandas or SciPy.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import erf, exp, inf, log, sinh, sqrt
from typing import Annotated, NamedTuple, Self

import numpy as np
from msgspec import Meta, Struct, field

from surrogate.features import InputError, read_toml
from surrogate.models.json_types import Number, from_json_types, key_text

COVERAGE = 0.90
UNMEASURED_HALF_WIDTH = log(3.0)
"""Half width for an unmeasured GPU, if too few GPUs were measured to fit one."""
STUDENT_90 = 0.9 * sqrt(2.0 / (1.0 - 0.9**2))
"""A variable of Student's t distribution with 2 degrees of freedom lies within ± this in 90 of 100 cases."""
NORMAL_90 = 1.6448536269514722
"""A standard normal variable lies within ± this in 90 of 100 cases."""
UNMEASURED_GROUP_HALF_WIDTH = 4.48
"""Half width for problems whose kernel group was never measured in their setting, if the data cannot show it.

Without depthwise rows in training, nine in ten times of cuDNN's depthwise convolutions are within a factor of 88.
"""
COMPARED = 256
"""Maximum candidates of a problem that are compared with one another: the cost grows with their square."""
MAX_POINTS = 1000
"""Maximum number of times at which the distributions are compared."""
_MIN_WIDTH = 1e-9  # replaces a half width of 0
_MIN_PROBABILITY = 1e-300


HalfWidth = Annotated[float, Meta(ge=0, le=50)]
Factor = Annotated[float, Meta(ge=0, le=1e6)]


class WidthKey(NamedTuple):
    """A candidate (as in `Rows.candidate`) on a GPU, in an element type.

    ``gpu`` is a registry name; None: any GPU. If ``dtype`` is None: any element type.
    """

    gpu: str | None
    candidate: str
    dtype: str | None = None


ALL = WidthKey(None, "all")
"""Key of the base over all rows."""
RANK_BY_MODEL, AVERAGE_RANK = "model", "habit"
"""Sources of the candidates' order on an unmeasured GPU, as bundles spell them.

Bundles of version 0.3.0 may also hold "nearest", which means the model.
"""
RankingSource = Annotated[str, Meta(pattern=f"^({RANK_BY_MODEL}|{AVERAGE_RANK}|nearest)$")]


@dataclass(frozen=True)
class StepFunction:
    """A step function: it changes at the ascending ``edges``, and ``values`` has one entry more."""

    edges: tuple[Number, ...] = ()
    values: tuple[Factor, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.values) != len(self.edges) + 1 or any(low > high for low, high in pairwise(self.edges)):
            raise InputError("a step function has ascending edges, and one value more than edges")

    def at(self, x: np.ndarray) -> np.ndarray:
        """Return the value (rows,) at each x. An edge belongs to the step above it; NaN gets the last value."""
        return np.array(self.values)[np.searchsorted(np.array(self.edges), x, side="right")]


@dataclass(frozen=True)
class Widths:
    """Half widths in log time of the 90 % prediction intervals of one family's candidates.

    Attributes
    ----------
    by_key
        Base half width for each key. It holds `ALL`. A candidate may have a key for all GPUs, for one GPU, and for one
        element type on that GPU. A GPU of a described kernel has a key for all candidates.
    distance
        Factor as a function of the distance to the training data. It never falls.
    time_us
        Factor as a function of the predicted time in µs.
    independent_share
        Share of a half width that is independent between the candidates of one problem. Bundles store it as
        ``own_share``.
    max_errors
        Candidate → largest held-out error in log time, which limits its half widths; "all" for the other candidates.
        Empty: no limit.
    unmeasured_group
        Minimum half width of problems whose kernel group (`Family.kernel_group`) was never measured in their setting.
    """

    by_key: Mapping[WidthKey, float]
    distance: StepFunction = StepFunction()
    time_us: StepFunction = StepFunction()
    independent_share: float = 1.0
    max_errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unmeasured_group: float = UNMEASURED_GROUP_HALF_WIDTH

    def base(self, gpu: str, candidate: str, dtype: str) -> float:
        """Return a candidate's half width before the factors for distance and time. ``gpu`` is a registry name."""
        on_gpu = WidthKey(gpu, candidate, dtype), WidthKey(gpu, candidate)
        keys = (*on_gpu, WidthKey(None, candidate), WidthKey(gpu, ALL.candidate), ALL)
        return next(self.by_key[key] for key in keys if key in self.by_key)

    def limit(self, candidate: str) -> float:
        """Return the largest half width of a candidate."""
        return self.max_errors.get(candidate, self.max_errors.get(ALL.candidate, inf))

    def at(
        self, gpu: np.ndarray, candidate: np.ndarray, dtype: np.ndarray, distance: np.ndarray, predicted_us: np.ndarray
    ) -> np.ndarray:
        """Return half widths in log time (rows,): the interval is predicted · exp(± half width).

        ``gpu`` (rows,) are registry names. ``distance`` (rows,) is from `surrogate.uncertainty.domain.distances_to`.
        """
        keys = list(zip(gpu, candidate, dtype, strict=True))
        bases = {key: self.base(*key) for key in set(keys)}
        base = np.array([bases[key] for key in keys], dtype=np.float64) * self.distance.at(distance)
        limits = {name: self.limit(name) for name in set(candidate)}
        return np.minimum(base * self.time_us.at(predicted_us), [limits[name] for name in candidate])

    @property
    def max_half_width(self) -> float:
        """Return an upper bound of all half widths."""
        return max(self.by_key.values()) * max(self.distance.values) * max(self.time_us.values)

    def to_json(self) -> bytes:
        """Return all parts as JSON."""
        by_key = {key_text((key.dtype, key.gpu, key.candidate)): base for key, base in self.by_key.items()}
        factors = {
            "distance": asdict(self.distance),
            "time_us": asdict(self.time_us),
            "own_share": self.independent_share,
            **({"max_errors": dict(self.max_errors)} if self.max_errors else {}),
        }
        if self.unmeasured_group != UNMEASURED_GROUP_HALF_WIDTH:
            factors["unmeasured_group"] = self.unmeasured_group
        return json.dumps({"coverage": COVERAGE, "by_key": by_key, **factors}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, libraries: Collection[str]) -> Self:
        """Return the widths from the output of `to_json`. Names of candidates begin with one of the ``libraries``."""
        data = json.loads(content)
        stored = from_json_types(Mapping[str, HalfWidth], data["by_key"], "by_key")
        by_key = {_width_key(text, libraries): base for text, base in stored.items()}
        distance, time_us = (from_json_types(StepFunction, data[name], name) for name in ("distance", "time_us"))
        if ALL not in by_key or list(distance.values) != sorted(distance.values):
            raise InputError(f"by_key lacks {ALL.candidate!r}, or the factor for the distance falls")
        max_errors = from_json_types(Mapping[str, HalfWidth], data.get("max_errors", {}), "max_errors")
        share = from_json_types(Factor, data["own_share"], "own_share")
        group = data.get("unmeasured_group", UNMEASURED_GROUP_HALF_WIDTH)
        group = from_json_types(HalfWidth, group, "unmeasured_group")
        return cls(by_key, distance, time_us, independent_share=share, max_errors=max_errors, unmeasured_group=group)


def _width_key(text: str, libraries: Collection[str]) -> WidthKey:
    """Return the key of a text: the candidate, which begins with a library, maybe after the type and the GPU."""
    names = text.split("|")
    prefix = next((i for i, name in enumerate(names) if name in libraries), len(names) - 1)
    dtype, gpu = [None, None, *names[:prefix]][-2:]
    return WidthKey(gpu, "|".join(names[prefix:]), dtype)


@dataclass(frozen=True)
class HeldOutGpuErrors:
    """Errors of times on ``gpus`` GPUs, each held out of training.

    Attributes
    ----------
    gpus
        Number of GPUs. If it is 0, the half width is an assumption.
    median_ape
        Median of |predicted / measured − 1|, or None for no GPUs.
    half_width
        Half width in log time that covers nine in ten times of each GPU. It has a margin, which is larger for fewer
        GPUs.
    """

    gpus: int
    median_ape: Number | None
    half_width: HalfWidth


NEVER = "never"
"""Key of settings that were measured on no other GPU."""
UNKNOWN = HeldOutGpuErrors(0, None, UNMEASURED_HALF_WIDTH)
NOTES: dict[str, str] = read_toml(__file__)
"""Notes on the errors of times on GPUs without measurements."""


class UnmeasuredGpuErrors(Struct, frozen=True):
    """Errors on unmeasured GPUs, and the ranking source there. Bundles store some attributes under older names.

    Attributes
    ----------
    by_group
        Errors on held-out GPUs. Keys are a line of GPUs (`surrogate.features.gpu.Gpu.product_line`) with
        an element type ("nvidia|fp16"), a line, "" for all GPUs, and `NEVER` for settings in which no other GPU was
        measured.
    independent_share
        The same as in `Widths`.
    ranking_source
        `RANK_BY_MODEL` or `AVERAGE_RANK`: the order of candidates that had the smaller slowdown on these GPUs.
    mean_log_slowdowns
        Setting and candidate → mean log slowdown on the measured GPUs. Empty if the model ranks.
    """

    by_group: Mapping[str, HeldOutGpuErrors] = field(default_factory=lambda: {"": UNKNOWN}, name="by_kind")
    independent_share: Factor = field(default=1.0, name="own_share")
    ranking_source: RankingSource = field(default=RANK_BY_MODEL, name="chooser")
    mean_log_slowdowns: Mapping[str, Annotated[float, Meta(ge=0, le=100)]] = field(default_factory=dict, name="habit")

    def __post_init__(self) -> None:
        if "" not in self.by_group:
            raise InputError('by_kind lacks the key ""')

    def group_key(self, line: str, dtype: str) -> str:
        """Return the key of ``by_group`` for a line and an element type, or else for the line, or else for all GPUs."""
        return next(key for key in (f"{line}|{dtype}", line, "") if key in self.by_group)

    def half_widths(self, groups: np.ndarray) -> np.ndarray:
        """Return half widths in log time (rows,) for ``groups`` (rows, 2): lines and element types."""
        pairs = list(map(tuple, groups.tolist()))
        half_width_of = {pair: self.by_group[self.group_key(*pair)].half_width for pair in set(pairs)}
        return np.array([half_width_of[pair] for pair in pairs])

    def note(self, group_key: str, is_described: bool, judged_on: str = "") -> str:
        """Return one line on the expected errors on such a GPU.

        If the kernel ``is_described``, its times come from other GPUs' measurements; otherwise they come from the
        datasheet. ``judged_on`` are the times with these errors, in words.
        """
        basis = NOTES["from_other_gpus"] if is_described else NOTES["from_datasheet"]
        errors = self.by_group[group_key]
        if errors.median_ape is None:
            return NOTES["unknown_errors"].format(basis=basis)
        line, _, dtype = group_key.partition("|")
        times = "times in settings never measured" if group_key == NEVER else f"times in {dtype}" if dtype else "times"
        figures = {"percent": 100 * errors.median_ape, "factor": exp(errors.half_width)}
        gpus = self._counted_gpus(line, errors.gpus)
        note = NOTES["expected_errors"].format(basis=basis, gpus=gpus, times=judged_on or times, **figures)
        return note + NOTES["reliable_order"] if is_described else note

    def _counted_gpus(self, line: str, count: int) -> str:
        """Return the number of GPUs as text, with the vendor if the errors are from GPUs of this line."""
        if count == 1:
            return "one GPU"
        if not any(key.startswith(f"{line}|") for key in self.by_group):  # the errors come from other lines
            return f"{count} GPUs"
        return f"{count} {line.upper()} GPUs" if line.isalpha() else f"{count} AMD {line} GPUs"


def student_cdf(x: np.ndarray) -> np.ndarray:
    """Return P(T ≤ x) for Student's t distribution with 2 degrees of freedom, in closed form.

    Source: Johnson, Kotz and Balakrishnan 1995, Continuous Univariate Distributions 2, chapter 28.
    """
    return 0.5 + 0.5 * x / np.sqrt(2.0 + x * x)


_NORMAL_POINTS = np.linspace(-9.0, 9.0, 3601)
_NORMAL_VALUES = np.array([0.5 + 0.5 * erf(x / sqrt(2.0)) for x in _NORMAL_POINTS])


def normal_cdf(x: np.ndarray) -> np.ndarray:
    """Return P(X ≤ x) for a standard normal variable, interpolated to 1e-6."""
    return np.interp(x, _NORMAL_POINTS, _NORMAL_VALUES)


class ErrorDistribution(NamedTuple):
    """A symmetric distribution of independent errors.

    90 in 100 errors lie within ± ``quantile_90``. The ascending ``points`` are dense in the middle.
    """

    cdf: Callable[[np.ndarray], np.ndarray]
    quantile_90: float
    points: np.ndarray


STUDENT = ErrorDistribution(student_cdf, STUDENT_90, 100 * np.sinh(np.linspace(-6.0, 6.0, 49)) / sinh(6.0))
"""Errors of the algorithms of a library. Heavy tails make stated and actual shares of best picks agree."""
NORMAL = ErrorDistribution(normal_cdf, NORMAL_90, 8 * np.sinh(np.linspace(-3.0, 3.0, 49)) / sinh(3.0))
"""Errors of configurations: the heavy tails of hundreds of slow ones would add up to most of the probability."""


def probability_best(
    log_time: np.ndarray | Sequence[float],
    half_width: np.ndarray | Sequence[float],
    independent_share: float = 1.0,
    errors: ErrorDistribution = STUDENT,
) -> np.ndarray:
    """Return the probability of each candidate of one problem to be the fastest.

    Parameters
    ----------
    log_time
        (k,) natural logarithms of the predicted times.
    half_width
        (k,) half widths of the 90 % intervals in log time.
    independent_share
        Share of a half width that remains if the error that all candidates have in common is removed
        (`Widths.independent_share`). The common error does not change the order.
    errors
        Distribution of the independent errors: `STUDENT` or, for configurations, `NORMAL`.

    Returns
    -------
    np.ndarray
        (k,) probabilities, which sum to 1; empty if there are no candidates. If k exceeds `COMPARED`, only that many
        candidates with the shortest times are compared.

    Notes
    -----
    P(i is the fastest) is the integral of ∏ P(time of j > t), over all j ≠ i, with respect to the distribution of the
    time t of candidate i. It is computed as a Stieltjes sum over points that lie densely around every candidate. The
    sum is exact to about 1e-3.
    """
    mean = np.asarray(log_time, dtype=np.float64)
    if mean.size < 2:
        return np.ones(mean.shape)
    if mean.size > COMPARED:
        probability = np.full(mean.size, _MIN_PROBABILITY)
        fastest = np.argpartition(mean, COMPARED)[:COMPARED]
        probability[fastest] = probability_best(
            mean[fastest], np.asarray(half_width)[fastest], independent_share, errors
        )
        return probability
    deviation = np.maximum(
        np.asarray(half_width, dtype=np.float64) * (independent_share / errors.quantile_90), _MIN_WIDTH
    )
    # 1. Points around every candidate. Points above the smallest last point of a candidate do not change the result.
    points = (mean + errors.points[:, None] * deviation).ravel()
    points = np.sort(points[points <= (mean + errors.points[-1] * deviation).min()])
    points = points[:: -(-len(points) // MAX_POINTS)]  # points of many candidates are closer than needed
    # 2. P(time of j > t) at each point, and the product over all other candidates.
    later = np.maximum(errors.cdf((mean - points[:, None]) / deviation), _MIN_PROBABILITY)
    others_later = later.prod(axis=1, keepdims=True) / later
    # 3. Trapezoids: the probability of i between two points times the mean probability that all others are later.
    mass = (later[:-1] - later[1:]) * (others_later[:-1] + others_later[1:])
    total = np.maximum(mass.sum(axis=0), 0.0)  # rounding may give small negative numbers
    return total / total.sum()
