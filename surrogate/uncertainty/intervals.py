"""Intervals that hold, and how likely each candidate is to be the fastest.

A half width of the log error is a base per GPU and candidate, falling back to the candidate on any GPU and to all rows,
times a factor for the distance to the training data, times one for the predicted time; `surrogate.uncertainty.fit`
finds them on rows held out by shape. Needs numpy alone, so that an answer does not wait for pandas or SciPy.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, NamedTuple, Self

import numpy as np

from surrogate.features.errors import InputError
from surrogate.models.plain import NOT_EMPTY, Rule, between, from_plain, joined

COVERAGE = 0.90
UNSEEN_GPU_FACTOR = 3.0
"""On half widths for a GPU that was never measured, where too few GPUs were measured to find one."""
NORMAL_90 = 1.6448536269514722
"""A normal variable lies within ± this many standard deviations in 90 of 100 cases."""
COMPARED = 256
"""Candidates of a problem that are compared with one another: configurations by the thousand cost their square."""
MOST_POINTS = 1000
"""At which times the distributions are compared."""
_STEPS = np.linspace(-5.0, 5.0, 33)  # in standard deviations; 3e-7 of a normal variable lies below
_LEAST_WIDTH = 1e-9  # half width 0 stands for a very small one
_LEAST_PROBABILITY = 1e-300


HalfWidth = Annotated[float, between(0, 50)]
Factor = Annotated[float, between(0, 1e6)]


class WidthKey(NamedTuple):
    """A candidate, as `Rows.candidate` names it, on a GPU by its registry name (None: on any)."""

    gpu: str | None
    candidate: str


ALL = WidthKey(None, "all")
"""Key of the base over all rows."""
MODEL, HABIT, NEAREST = "model", "habit", "nearest"
CHOOSER = Rule("model, habit or nearest", lambda values: set(values) <= {MODEL, HABIT, NEAREST})


@dataclass(frozen=True)
class StepFunction:
    """``values`` has one entry more than the ascending ``edges`` at which the function changes."""

    edges: tuple[float, ...] = ()
    values: tuple[Factor, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.values) != len(self.edges) + 1 or any(low > high for low, high in pairwise(self.edges)):
            raise InputError("a step function has ascending edges, and one value more than edges")

    def at(self, x: np.ndarray) -> np.ndarray:
        """(rows,) the value at each x; an edge belongs to the step above it, NaN to the last."""
        return np.array(self.values)[np.searchsorted(np.array(self.edges), x, side="right")]


@dataclass(frozen=True)
class Widths:
    """Half widths of the interval in log time, for the candidates of one family.

    ``by_key`` holds a base for `ALL`, and for candidates on any GPU or on one; the factor for the ``distance`` never
    falls; ``own_share`` is the part of a half width that the candidates of one problem do not share.
    """

    by_key: Mapping[WidthKey, float]
    distance: StepFunction = StepFunction()
    time_us: StepFunction = StepFunction()
    own_share: float = 1.0

    def base(self, gpu: str, candidate: str) -> float:
        """The half width of a candidate before distance and time count; ``gpu`` by its registry name."""
        by_key = self.by_key
        return by_key.get(WidthKey(gpu, candidate)) or by_key.get(WidthKey(None, candidate)) or by_key[ALL]

    def at(self, gpu: np.ndarray, candidate: np.ndarray, distance: np.ndarray, predicted_us: np.ndarray) -> np.ndarray:
        """(rows,) half widths in log time of rows on the GPUs of these registry names: the interval is
        predicted · exp(± half width). ``distance`` (rows,) as `surrogate.uncertainty.domain.distances_to` gives it.
        """
        keys = list(zip(gpu, candidate, strict=True))
        bases = {key: self.base(*key) for key in set(keys)}
        base = np.array([bases[key] for key in keys], dtype=np.float64) * self.distance.at(distance)
        return base * self.time_us.at(predicted_us)

    @property
    def greatest(self) -> float:
        """The half width that none exceeds."""
        return max(self.by_key.values()) * max(self.distance.values) * max(self.time_us.values)

    def to_json(self) -> bytes:
        """All of it."""
        by_key = {joined(key): base for key, base in self.by_key.items()}
        return json.dumps({"coverage": COVERAGE, **asdict(self), "by_key": by_key}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, libraries: Collection[str]) -> Self:
        """What `to_json` wrote; the names of candidates begin with one of the ``libraries``."""
        data = json.loads(content)
        by_key = {}
        for text, base in from_plain(Mapping[str, HalfWidth], data["by_key"], "by_key").items():
            first, _, rest = text.partition("|")
            on_any = first in libraries or text == ALL.candidate
            by_key[WidthKey(None, text) if on_any else WidthKey(first, rest)] = base
        distance, time_us = (from_plain(StepFunction, data[name], name) for name in ("distance", "time_us"))
        if ALL not in by_key or list(distance.values) != sorted(distance.values):
            raise InputError(f"by_key lacks {ALL.candidate!r}, or the factor for the distance falls")
        return cls(by_key, distance, time_us, own_share=from_plain(Factor, data["own_share"], "own_share"))


@dataclass(frozen=True)
class UnseenGpu:
    """What answers on a GPU that was never measured and how far off times are there, by leaving out each of ``gpus``.

    ``factors`` math type → what half widths are multiplied by ("": over all); ``own_share`` as in `Widths`, of the
    widened half widths; ``median_ape`` the median of |predicted / measured − 1|, and ``factor_90`` the factor that nine
    in ten times were off by at most (every GPU with equal weight), None where no GPU could be left out. ``chooser``:
    whose order of the candidates was best there, the `MODEL`'s, the `HABIT`'s or the `NEAREST` measured GPU's;
    ``habit`` setting and candidate → what the habit ranks by, the mean log slowdown on the measured GPUs.
    """

    factors: Annotated[Mapping[str, Factor], NOT_EMPTY] = field(default_factory=lambda: {"": UNSEEN_GPU_FACTOR})
    own_share: Factor = 1.0
    gpus: int = 0
    median_ape: float | None = None
    factor_90: float | None = None
    chooser: Annotated[str, CHOOSER] = MODEL
    habit: Mapping[str, Annotated[float, between(0, 100)]] = field(default_factory=dict)

    def factor(self, math: str) -> float:
        """The factor of a math type; of one that no GPU was left out with, the largest."""
        return self.factors.get(math) or max(self.factors.values())

    def note(self, described: bool) -> str:
        """One line on what an answer for such a GPU is worth: from the specification, of a ``described`` kernel from
        other GPUs' measurements."""
        basis = "never measured on this GPU: other GPUs' times stand in" if described else "from specification alone"
        if self.median_ape is None:
            return f"{basis}: how far off such times are is not known"
        if described:
            return (
                f"{basis}; on {self.gpus} GPUs left out of training times were off by {100 * self.median_ape:.0f} % in"
                f" the median, nine in ten by less than a factor of {self.factor_90:.1f}; the order errs less"
            )
        return (
            f"{basis}: on {self.gpus} GPUs left out of training the times of all kinds together were"
            f" off by {100 * self.median_ape:.0f} % in the median, nine in ten by less than a factor of"
            f" {self.factor_90:.1f}; the interval beside a time is its own kind's"
        )


def normal_cdf(x: np.ndarray) -> np.ndarray:
    """P(Z ≤ x) of a standard normal variable, absolute error below 7.5e-8.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.17.
    """
    t = 1.0 / (1.0 + 0.2316419 * np.abs(x))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * x * x) * series * (1 / np.sqrt(2 * np.pi))
    return np.where(x >= 0, 1.0 - tail, tail)


def probability_best(
    log_time: np.ndarray | Sequence[float], half_width: np.ndarray | Sequence[float], own_share: float = 1.0
) -> np.ndarray:
    """(k,) probability of each of the ``k`` candidates of one problem to be the fastest; they sum to 1.

    ``log_time`` (k,) natural logs of predicted times; ``half_width`` (k,) half widths of their 90 % intervals in log
    time. Errors are normal; what all candidates have in common in theirs cancels, and ``own_share`` is the part of a
    half width that remains (`Widths.own_share`). P(i is best) is the integral of ∏ P(time of j > t), over all others j,
    with respect to the distribution of i's time t: a Stieltjes sum over points laid densely around every candidate,
    exact to about 1e-3. Of more than `COMPARED` candidates those with the least times alone may be the fastest. Empty
    for no candidates.
    """
    mean = np.asarray(log_time, dtype=np.float64)
    if mean.size < 2:
        return np.ones(mean.shape)
    if mean.size > COMPARED:
        probability = np.full(mean.size, _LEAST_PROBABILITY)
        near = np.argpartition(mean, COMPARED)[:COMPARED]
        probability[near] = probability_best(mean[near], np.asarray(half_width)[near], own_share)
        return probability
    deviation = np.maximum(np.asarray(half_width, dtype=np.float64) * (own_share / NORMAL_90), _LEAST_WIDTH)
    # 1. Points around every candidate; beyond the first that is certainly past, nothing is decided any more.
    points = (mean + _STEPS[:, None] * deviation).ravel()
    points = np.sort(points[points <= (mean + _STEPS[-1] * deviation).min()])
    points = points[:: -(-len(points) // MOST_POINTS)]  # those of many candidates are far closer than needed
    # 2. P(time of j > t) at every point, and the product over all others.
    later = np.maximum(normal_cdf((mean - points[:, None]) / deviation), _LEAST_PROBABILITY)
    others_later = later.prod(axis=1, keepdims=True) / later
    # 3. Trapezoids: the mass of i between two points, times the mean chance that the others come later.
    mass = (later[:-1] - later[1:]) * (others_later[:-1] + others_later[1:])
    total = mass.sum(axis=0)
    return total / total.sum()
