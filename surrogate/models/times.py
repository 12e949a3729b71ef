"""`BoostedTimes`: a fitted model of boosted trees as plain values, and the files that a bundle keeps of it.

Its parts beside the trees: the `Trend`, a smooth continuation of the log correction outside the range of the training
data, where trees stay constant; and the `Correction` of a calibrated device, a conditioned Gaussian process. Neither
needs pandas or scikit-learn.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, NamedTuple, Self

import numpy as np
from msgspec import Meta

from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models.grid import Grid, Label
from surrogate.models.json_types import (
    Count,
    Keyed,
    Microseconds,
    Share,
    files_below,
    from_json_types,
    key_text,
    to_json_types,
)
from surrogate.models.launch import CallKey
from surrogate.models.trees import Trees

QUANTILES = (0.25, 0.5, 0.75)
"""Of the first term: where its knots lie. The slope of the large problems is what goes on."""
PENALTY = 1.0
"""Of squared slopes of columns scaled to unit spread."""
MIN_SPREAD = 0.1
"""A term that varies less is scaled by this, so that noise in it is not blown up."""


def trend_names(family: Family) -> tuple[str, ...]:
    """The terms: roofline time, the candidate's own over it, and FLOPs per byte. More, being collinear, did worse."""
    rooflines = (family.own_roofline,) if family.own_roofline else ()
    return ("log2_roofline_us", *rooflines, "log2_intensity")


class RangeKey(NamedTuple):
    """Whose range it is: a candidate's on a GPU; on any GPU, or of any candidate, where a name is empty."""

    candidate: str
    gpu: str


@dataclass(frozen=True)
class Trend:
    """A ridge regression on a few terms and hinges of the first one, and the ranges outside of which it counts.

    Inside the range the trend adds nothing, so that the trees alone rank the candidates there. Outside it adds the
    difference between its value at the problem and its value at the nearest point of the range. Slopes are common to
    all candidates and GPUs: slopes of their own, however much they were shrunk towards the common ones, predicted worse
    beyond the range. The range is that of the candidate on the GPU, because a problem that is large for a fast GPU has
    roofline times that are common on a slow one.

    ``names`` of the terms; ``knots`` (knots,) of the first; ``slopes`` (terms + knots,) in log time per unit;
    ``ranges`` (2, terms) the least and the largest values.
    """

    names: tuple[str, ...]
    knots: np.ndarray
    slopes: np.ndarray
    ranges: Keyed[RangeKey, np.ndarray]

    def __post_init__(self) -> None:
        terms = len(self.names)
        shapes = {values.shape for values in self.ranges.values()}
        if shapes != {(2, terms)} or (self.knots.ndim, self.slopes.shape) != (1, (terms + self.knots.size,)):
            raise InputError("names, knots, slopes and ranges of the trend do not fit one another")
        if RangeKey("", "") not in self.ranges or any((low > high).any() for low, high in self.ranges.values()):
            raise InputError("the trend lacks the range over all rows, or a range ends below its beginning")

    @classmethod
    def fit(
        cls, names: tuple[str, ...], terms: np.ndarray, target: np.ndarray, candidates: np.ndarray, gpus: np.ndarray
    ) -> Self:
        """From ``terms`` (rows, terms), ``target`` (rows,) in log time, names of candidates and GPUs (rows,)."""
        terms = terms.astype(np.float64)
        first, group = np.unique(_joined(candidates, gpus), return_index=True, return_inverse=True)[1:]
        # 1. Scaled columns make one penalty fair to all of them. Centred within each candidate on each GPU, they tell
        #    how times grow with size, not how one candidate differs from another, and need no intercept.
        knots = np.unique(np.quantile(terms[:, 0], QUANTILES))
        columns = _columns(terms, knots)
        spread = np.maximum(columns.std(axis=0), MIN_SPREAD)
        scaled = _centred(columns / spread, group)
        # 2. Ridge regression in closed form: (XᵀX + penalty) slopes = Xᵀy.
        normal = scaled.T @ scaled
        normal[np.diag_indices_from(normal)] += PENALTY
        slopes = np.linalg.solve(normal, scaled.T @ _centred(target[:, None], group))[:, 0] / spread
        # 3. The range of every candidate on every GPU, then that of a candidate on any GPU and that of all rows.
        ranges = {RangeKey("", ""): _range(terms)}
        for number, row in enumerate(first.tolist()):
            here = _range(terms[group == number])
            anywhere = RangeKey(str(candidates[row]), "")
            ranges[RangeKey(anywhere.candidate, str(gpus[row]))] = here
            ranges[anywhere] = _range(np.concatenate([here, ranges.get(anywhere, here)]))
        return cls(names, knots, slopes, ranges)

    def range_of(self, candidate: str, gpu: str) -> np.ndarray:
        """(2, terms) of the candidate on the GPU, else of the candidate on any GPU, else of all rows."""
        keys = (RangeKey(candidate, gpu), RangeKey(candidate, ""), RangeKey("", ""))
        return next(self.ranges[key] for key in keys if key in self.ranges)

    def extrapolation(self, terms: np.ndarray, candidates: np.ndarray, gpus: np.ndarray) -> np.ndarray:
        """(rows,) what to add to the log correction at ``terms`` (rows, terms); exactly 0 inside the range."""
        if not len(terms):
            return np.zeros(0)
        _, first, group = np.unique(_joined(candidates, gpus), return_index=True, return_inverse=True)
        pairs = zip(candidates[first].tolist(), gpus[first].tolist(), strict=True)
        ranges = np.stack([self.range_of(*pair) for pair in pairs])[group]
        return self.extrapolation_outside(terms, ranges)

    def extrapolation_outside(self, terms: np.ndarray, ranges: np.ndarray) -> np.ndarray:
        """(rows,) as `extrapolation`, with the ``ranges`` (rows, 2, terms) that the caller looked up."""
        low, high = ranges[:, 0], ranges[:, 1]
        added = np.zeros(len(terms))
        is_outside = (terms < low) | (terms > high)
        if is_outside.any():
            rows = np.flatnonzero(is_outside.any(axis=1))
            values = terms[rows].astype(np.float64)
            nearest = np.clip(values, low[rows], high[rows])
            step = _columns(values, self.knots) - _columns(nearest, self.knots)
            added[rows] = (step * self.slopes).sum(axis=1)
        return added


def _range(terms: np.ndarray) -> np.ndarray:
    """(2, terms) the least and the largest values of ``terms`` (rows, terms)."""
    return np.stack([terms.min(axis=0), terms.max(axis=0)])


def _columns(terms: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """(rows, terms + knots) the terms, and how far the first one lies above each knot."""
    return np.hstack([terms, np.maximum(terms[:, :1] - knots, 0.0)])


def _centred(columns: np.ndarray, group: np.ndarray) -> np.ndarray:
    """``columns`` (rows, columns) less the mean of the row's group; ``group`` (rows,) codes from 0."""
    counts = np.bincount(group)
    means = [np.bincount(group, weights=column) / counts for column in columns.T]
    return columns - np.stack(means, axis=1)[group]


def _joined(candidates: np.ndarray, gpus: np.ndarray) -> np.ndarray:
    """(rows,) a text for each pair, by whose order pairs are numbered."""
    return np.char.add(np.char.add(candidates.astype(str), "|"), gpus.astype(str))


PREDICTED_UNIT = 3.0
"""Doublings of the predicted time per unit of distance."""
SCALES = ("length", "common", "linear", "smooth", "mechanism", "mechanism_smooth", "candidate", "candidate_smooth")
Positive = Annotated[float, Meta(ge=1e-12, le=1e6)]
CHUNK = 4096
"""Rows that are asked at once: their covariances with all measured ones are held."""


@dataclass(frozen=True)
class Inputs:
    """Rows as the process sees them: ``terms`` (rows, terms) scaled, ``mechanism`` and ``candidate`` codes (rows,)."""

    terms: np.ndarray
    mechanism: np.ndarray
    candidate: np.ndarray

    def __len__(self) -> int:
        return len(self.terms)

    def take(self, index: np.ndarray) -> "Inputs":
        """The rows at these positions."""
        return Inputs(self.terms[index], self.mechanism[index], self.candidate[index])


def correction_columns(family: Family) -> tuple[str, ...]:
    """Columns of `Rows.features` that a correction sees, before the predicted time; the mechanism's code is last."""
    mechanism = ("mechanism",) if "mechanism" in family.candidate_names else ()
    return (*family.distance_units, *mechanism)


@dataclass(frozen=True)
class Correction:
    """A Gaussian process conditioned on ``inputs``: the log factor on a model's times for one device.

    Its covariance sums what may differ on a new device: everything alike (common), a trend in the terms (linear),
    problems like one another (smooth); and for each mechanism (or, in families without mechanisms, each library) and
    each candidate an offset and a smooth part of its own. Beyond the measured ranges slopes do not go on. Source:
    Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", equation 2.25.

    ``scales`` are the hyperparameters, ``weights`` (rows,) the dual coefficients, ``units`` (columns,) the scales of
    the terms, ``candidates`` name → code.
    """

    scales: Mapping[str, Positive]
    inputs: Inputs
    weights: np.ndarray
    units: tuple[Positive, ...]
    candidates: Mapping[str, int]

    def __post_init__(self) -> None:
        rows = len(self.weights)
        shapes = [array.shape for array in (self.inputs.terms, self.inputs.mechanism, self.inputs.candidate)]
        if shapes != [(rows, len(self.units) + 1), (rows,), (rows,)] or not set(SCALES) <= set(self.scales):
            raise InputError("inputs, weights, units and scales of a correction do not fit one another")

    def log_factor(self, x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray) -> np.ndarray:
        """(rows,) natural logarithm of what times are multiplied by: near zero far from everything measured.

        ``x`` (rows, columns) of `correction_columns`, ``names`` (rows,) of the candidates, ``predicted_us`` (rows,) the
        base model's times; NaN where those are.
        """
        inputs = inputs_of(x, names, predicted_us, units=self.units, codes=self.candidates)
        factor = np.empty(len(x))
        for start in range(0, len(x), CHUNK):
            part = np.arange(start, min(start + CHUNK, len(x)))
            factor[part] = covariance(self.scales, inputs.take(part), self.inputs) @ self.weights
        return factor


def inputs_of(
    x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray, units: tuple[float, ...], codes: Mapping[str, int]
) -> Inputs:
    """The rows as the process sees them; a candidate that was not measured shares nothing with the others (code −1)."""
    # Distances are comparable only in units of each term; the predicted time is a term as well, behind the others.
    terms = np.column_stack([x[:, : len(units)].astype(np.float64) / units, np.log2(predicted_us) / PREDICTED_UNIT])
    # Where the family has mechanisms their code is the last column; elsewhere the library's stands in.
    libraries = {name.partition("|")[0]: code for name, code in codes.items()}
    by_library = [libraries.get(str(name).partition("|")[0], -1) for name in names]
    mechanism = x[:, -1] if x.shape[1] > len(units) else np.array(by_library)
    candidate = np.array([codes.get(str(name), -1) for name in names], dtype=np.int64)
    return Inputs(terms, mechanism.astype(np.int64), candidate)


def covariance(scales: Mapping[str, float], a: Inputs, b: Inputs) -> np.ndarray:
    """Covariance (rows of a, rows of b) of log corrections, noise left out."""
    # 1. Squared distances of all pairs by the binomial formula: one matrix product, no array of (rows, rows, terms).
    cross = a.terms @ b.terms.T
    squares = (a.terms**2).sum(1)[:, None] + (b.terms**2).sum(1)[None, :] - 2 * cross
    # Rounding can leave a small negative number where both rows are the same.
    near = np.exp(-0.5 * np.maximum(squares, 0.0) / scales["length"] ** 2)
    # 2. What all rows of the device share: an offset, a slope along every term as far as b reaches, and a smooth part.
    slopes = np.clip(a.terms, b.terms.min(axis=0), b.terms.max(axis=0)) @ b.terms.T
    total = scales["common"] ** 2 + scales["linear"] ** 2 / a.terms.shape[1] * slopes + scales["smooth"] ** 2 * near
    # 3. What only rows of one mechanism, and of one candidate, share: an offset and a smooth part of their own.
    for name in ("mechanism", "candidate"):
        same = getattr(a, name)[:, None] == getattr(b, name)[None, :]
        total += same * (scales[name] ** 2 + scales[f"{name}_smooth"] ** 2 * near)
    return total


ARRAYS = "trees.npz"
FACTS = "times.json"
"""The files of `BoostedTimes`: its trees, and the rest."""
TERMS = "terms."
TREES = "residual.npz"
GRID = "grid."
LABELS = "labels.json"
"""With neighbours: the terms' model, the residual's trees, a GPU's measured times, and the candidates' codes."""

_Exponent = Annotated[int, Meta(ge=-8, le=8)]


@dataclass(frozen=True)
class Neighbours:
    """All GPUs' measured times, and the residual's trees as stored (empty: none were fitted)."""

    grid: Grid
    stored: bytes = b""

    @cached_property
    def trees(self) -> Trees:
        """The residual's trees. Raises `InputError` where the stored ones are damaged."""
        return Trees.from_bytes(self.stored)


@dataclass(frozen=True, slots=True)
class BoostedTimes:
    """A fitted model as arrays: its times are (roofline · 2^(w · r) + call cost) · exp(trees + trend) µs.

    Here w is ``algorithm_weight``, and r is the column of log2(the algorithm's own roofline / the problem's roofline).

    Attributes
    ----------
    trees
        Trees of the log correction.
    columns
        Names of the trees' columns. The candidate's code is a further column, the last one.
    codes
        Candidate, as `Rows.candidate` names it → its code.
    algorithm_weight
        Weight of the algorithm's own roofline in the base, from 0 to 1. Bundles store it as ``own_weight``.
    call_us
        Call cost in µs.
    trend
        Continuation of the correction outside the training ranges. None: the correction stays constant there.
    corrections
        Device → the correction that a calibration fitted for it.
    neighbours
        Measured times that are interpolated and mixed with the trees' times.
    """

    trees: Trees
    columns: tuple[str, ...]
    codes: Mapping[str, int]
    algorithm_weight: float = 0.0
    call_us: Mapping[CallKey, float] = field(default_factory=dict)
    trend: Trend | None = None
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    neighbours: Neighbours | None = None

    def to_files(self) -> dict[str, bytes]:
        """The arrays, and the rest as JSON."""
        names = ("columns", "codes", "call_us", "trend")
        facts = {"own_weight": self.algorithm_weight} | {name: to_json_types(getattr(self, name)) for name in names}
        return {ARRAYS: self.trees.to_bytes(), FACTS: json.dumps(facts, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "BoostedTimes":
        """What `to_files` wrote. Raises `InputError` where the parts do not fit one another."""
        facts = from_json_types(_Facts, json.loads(files[FACTS]), FACTS)
        trees = Trees.from_bytes(files[ARRAYS])
        if trees.feature.max() > len(facts.columns) or len(set(facts.columns)) < len(facts.columns):
            raise InputError(f"the trees split more columns than the {len(facts.columns)} that {FACTS} names")
        return cls(trees, facts.columns, facts.codes, facts.own_weight, call_us=facts.call_us, trend=facts.trend)

    def check(self, family: Family) -> None:
        """Raise `InputError` where the model asks for columns or sizes that the family has not."""
        of_problem = {*family.problem_names, *family.candidate_names}
        columns = {*family.column_names, "library_version"}
        lines = self.neighbours.grid.lines if self.neighbours else ()
        if (
            not set(self.columns) <= columns
            or not set(self.trend.names if self.trend else ()) <= of_problem
            or not all(line and set(line) <= set(family.size_names) for line in lines)
            or any(len(each.units) != len(family.distance_units) for each in self.corrections.values())
        ):
            raise InputError(f"the model's columns, terms, lines or units are not those of {family.name}")


@dataclass(frozen=True)
class _Facts:
    """What `BoostedTimes` keeps beside its trees, as JSON."""

    columns: tuple[str, ...]
    codes: Mapping[str, Count]
    own_weight: Share
    call_us: Keyed[CallKey, Microseconds]
    trend: Trend | None


@dataclass(frozen=True)
class _Labels:
    """What the codes of a `Grid` mean, and its lines, as JSON."""

    labels: Mapping[str, Count]
    lines: Annotated[tuple[Mapping[str, _Exponent], ...], Meta(max_length=64)]


def neighbour_files(neighbours: Neighbours) -> dict[str, bytes]:
    """The residual's trees, every GPU's measured times, and what their codes mean."""
    grid = neighbours.grid
    files = {f"{GRID}{gpu}.parquet": content for gpu, content in grid.packed.items()}
    if neighbours.stored:
        files[TREES] = neighbours.stored
    facts = {"labels": {key_text(label): code for label, code in grid.labels.items()}, "lines": grid.lines}
    return {**files, LABELS: json.dumps(facts).encode()}


def times_from_files(files: Mapping[str, bytes]) -> tuple[BoostedTimes, Neighbours]:
    """The terms' times, of the files of an interpolated model, and the same neighbours that these hold."""
    terms = BoostedTimes.from_files(files_below(TERMS, files))
    packed = {name.removesuffix(".parquet"): content for name, content in files_below(GRID, files).items()}
    facts = from_json_types(_Labels, json.loads(files[LABELS]), LABELS)
    # The names of all candidates of a family have as many parts.
    parts = next(iter(terms.codes), "").count("|") + 1
    labels = {Label.parse(text, parts): code for text, code in facts.labels.items()}
    near = Neighbours(Grid(labels, packed, facts.lines), files.get(TREES, b""))
    return replace(terms, neighbours=near), near
