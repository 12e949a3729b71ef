"""`BoostedArrays`: a fitted model of boosted trees as arrays, and its files in a bundle.

Besides the trees it may hold a `Trend` and corrections. The `Trend` continues the log correction smoothly outside the
training ranges, where trees stay constant. The `Correction` of a calibrated device is a conditioned Gaussian process.
Neither needs pandas or scikit-learn.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, NamedTuple, Self

import numpy as np
from msgspec import Meta, Struct, structs

from surrogate.features.errors import InputError, read_toml
from surrogate.features.families import Family
from surrogate.models import json_types
from surrogate.models.call_cost import CallKey
from surrogate.models.grid import Label, MeasuredTimes
from surrogate.models.json_types import Keyed, Microseconds, Share, from_json_types, key_text, to_json_types
from surrogate.models.trees import Trees

QUANTILES = (0.25, 0.5, 0.75)
"""Quantiles of the first term at which its knots lie. The slope of the large problems is extrapolated."""
PENALTY = 1.0
"""Penalty on squared slopes of columns scaled to unit spread."""
MIN_SPREAD = 0.1
"""Minimum spread by which a term is scaled, so that noise in a nearly constant term is not amplified."""


def trend_names(family: Family) -> tuple[str, ...]:
    """Return the trend's terms: roofline time, the candidate's own roofline relative to it, and FLOPs per byte.

    More terms are collinear, and they predicted worse.
    """
    rooflines = (family.own_roofline,) if family.own_roofline else ()
    return ("log2_roofline_us", *rooflines, "log2_intensity")


class RangeKey(NamedTuple):
    """Key of a range of terms: a candidate and a GPU. An empty name means any candidate or any GPU."""

    candidate: str
    gpu: str


@dataclass(frozen=True)
class Trend:
    """Ridge regression on a few terms and hinges of the first one, used outside the training ranges.

    Inside the range the trend adds 0, so that the trees alone rank the candidates there. Outside it adds the difference
    between its values at the problem and at the nearest point of the range. Slopes are common to all candidates and
    GPUs. Own slopes predicted worse outside the range, even if they were shrunk towards the common ones. The range is
    of the candidate on the GPU, because the roofline times of large problems on a fast GPU are common on a slow one.

    Attributes
    ----------
    names
        Names of the terms.
    knots
        (knots,) knots of the first term.
    slopes
        (terms + knots,) slopes in log time per unit.
    ranges
        Key → (2, terms) minimum and maximum of each term.

    References
    ----------
    Hoerl and Kennard 1970, "Ridge regression: Biased estimation for nonorthogonal problems".
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
        """Fit on ``terms`` (rows, terms), ``target`` (rows,) in log time, names of candidates and GPUs (rows,)."""
        terms = terms.astype(np.float64)
        first, group = np.unique(_pair_texts(candidates, gpus), return_index=True, return_inverse=True)[1:]
        # 1. Scale the columns, so that one penalty suits all. Centre them within each candidate on each GPU, so that
        #    slopes measure growth with size, not differences of candidates, and no intercept is needed.
        knots = np.unique(np.quantile(terms[:, 0], QUANTILES))
        columns = _columns(terms, knots)
        spread = np.maximum(columns.std(axis=0), MIN_SPREAD)
        scaled = _centred(columns / spread, group)
        # 2. Ridge regression in closed form: (XᵀX + penalty) slopes = Xᵀy.
        normal = scaled.T @ scaled
        normal[np.diag_indices_from(normal)] += PENALTY
        slopes = np.linalg.solve(normal, scaled.T @ _centred(target[:, None], group))[:, 0] / spread
        # 3. The range of each candidate on each GPU, of each candidate on any GPU, and of all rows.
        ranges = {RangeKey("", ""): _range(terms)}
        for number, row in enumerate(first.tolist()):
            own_range = _range(terms[group == number])
            any_gpu = RangeKey(str(candidates[row]), "")
            ranges[RangeKey(any_gpu.candidate, str(gpus[row]))] = own_range
            ranges[any_gpu] = _range(np.concatenate([own_range, ranges.get(any_gpu, own_range)]))
        return cls(names, knots, slopes, ranges)

    def range_of(self, candidate: str, gpu: str) -> np.ndarray:
        """Return the range (2, terms) of the candidate on the GPU, or else on any GPU, or else of all rows."""
        keys = (RangeKey(candidate, gpu), RangeKey(candidate, ""), RangeKey("", ""))
        return next(self.ranges[key] for key in keys if key in self.ranges)

    def extrapolation(self, terms: np.ndarray, candidates: np.ndarray, gpus: np.ndarray) -> np.ndarray:
        """Return the addition to the log correction (rows,) at ``terms`` (rows, terms); exactly 0 inside the range."""
        if not len(terms):
            return np.zeros(0)
        _, first, group = np.unique(_pair_texts(candidates, gpus), return_index=True, return_inverse=True)
        pairs = zip(candidates[first].tolist(), gpus[first].tolist(), strict=True)
        ranges = np.stack([self.range_of(*pair) for pair in pairs])[group]
        return self.extrapolation_outside(terms, ranges)

    def extrapolation_outside(self, terms: np.ndarray, ranges: np.ndarray) -> np.ndarray:
        """Return `extrapolation` (rows,) with the given ``ranges`` (rows, 2, terms)."""
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
    """Return the minimum and maximum (2, terms) of ``terms`` (rows, terms)."""
    return np.stack([terms.min(axis=0), terms.max(axis=0)])


def _columns(terms: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Return (rows, terms + knots): the terms, and the distance of the first one above each knot."""
    return np.hstack([terms, np.maximum(terms[:, :1] - knots, 0.0)])


def _centred(columns: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return ``columns`` (rows, columns) less the mean of the row's group; ``group`` (rows,) are codes from 0."""
    counts = np.bincount(group)
    means = [np.bincount(group, weights=column) / counts for column in columns.T]
    return columns - np.stack(means, axis=1)[group]


def _pair_texts(candidates: np.ndarray, gpus: np.ndarray) -> np.ndarray:
    """Return a text for each pair (rows,). Pairs are numbered by the order of these texts."""
    return np.char.add(np.char.add(candidates.astype(str), "|"), gpus.astype(str))


PRIORS: dict[str, list[float]] = read_toml(__file__)
"""Hyperparameter → (median, spread of its natural logarithm). Standard deviations are in log time."""
MEDIANS = {name: median for name, (median, _) in PRIORS.items()}
PREDICTED_UNIT = 3.0
"""Doublings of the predicted time per unit of distance."""
SCALES = ("length", "common", "linear", "smooth", "mechanism", "mechanism_smooth", "candidate", "candidate_smooth")
Positive = Annotated[float, Meta(ge=1e-12, le=1e6)]
MAX_DEVIATION_ROWS = 400
"""Maximum measured rows from which `Correction.deviation` is computed: its cost grows with their square."""
CHUNK_ROWS = 4096
"""Rows per query: their covariances with all measured rows are in memory."""


@dataclass(frozen=True)
class CorrectionInputs:
    """Rows as inputs of the process.

    Attributes
    ----------
    terms
        (rows, terms) scaled terms.
    mechanism, candidate
        (rows,) codes.
    """

    terms: np.ndarray
    mechanism: np.ndarray
    candidate: np.ndarray

    @classmethod
    def of(
        cls, x: np.ndarray, names: np.ndarray, time_us: np.ndarray, units: tuple[float, ...], codes: Mapping[str, int]
    ) -> Self:
        """Return the rows as inputs. An unmeasured candidate gets the code −1: it shares no part with others."""
        # Scale each term by its unit, so that distances are comparable. The predicted time is the last term.
        terms = np.column_stack([x[:, : len(units)].astype(np.float64) / units, np.log2(time_us) / PREDICTED_UNIT])
        # If the family has mechanisms, their code is the last column. Otherwise the library's code replaces it.
        libraries = {name.partition("|")[0]: code for name, code in codes.items()}
        by_library = [libraries.get(str(name).partition("|")[0], -1) for name in names]
        mechanism = x[:, -1] if x.shape[1] > len(units) else np.array(by_library)
        candidate = np.array([codes.get(str(name), -1) for name in names], dtype=np.int64)
        return cls(terms, mechanism.astype(np.int64), candidate)

    def __len__(self) -> int:
        return len(self.terms)

    def take(self, index: np.ndarray) -> "CorrectionInputs":
        """Return the rows at these positions."""
        return CorrectionInputs(self.terms[index], self.mechanism[index], self.candidate[index])


def correction_columns(family: Family) -> tuple[str, ...]:
    """Return the columns of `Rows.features` in a correction. The mechanism's code, if any, is last."""
    mechanism = ("mechanism",) if "mechanism" in family.candidate_names else ()
    return (*family.distance_units, *mechanism)


@dataclass(frozen=True)
class Correction:
    """Gaussian process of the log factor on a model's times for one device, conditioned on measured rows.

    The covariance is a sum. Parts for all rows: an offset (common), a trend in the terms (linear), and a smooth part
    for similar problems (smooth). Each mechanism (or library, in families without mechanisms) and each candidate has an
    offset and a smooth part of its own. Outside the measured ranges the linear part stays constant.

    Attributes
    ----------
    scales
        Hyperparameter → value.
    inputs
        The measured rows.
    weights
        (rows,) dual coefficients.
    units
        (columns,) scales of the terms.
    candidates
        Candidate → its code.

    References
    ----------
    Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", equation 2.25.
    """

    scales: Mapping[str, Positive]
    inputs: CorrectionInputs
    weights: np.ndarray
    units: tuple[Positive, ...]
    candidates: Mapping[str, int]

    def __post_init__(self) -> None:
        rows = len(self.weights)
        shapes = [array.shape for array in (self.inputs.terms, self.inputs.mechanism, self.inputs.candidate)]
        if shapes != [(rows, len(self.units) + 1), (rows,), (rows,)] or not set(SCALES) <= set(self.scales):
            raise InputError("inputs, weights, units and scales of a correction do not fit one another")

    def log_factor(self, x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray) -> np.ndarray:
        """Return the natural logarithm of the factor on times, (rows,). It is near 0 far from all measured rows.

        Parameters
        ----------
        x
            (rows, columns) of `correction_columns`.
        names
            (rows,) names of the candidates.
        predicted_us
            (rows,) times in µs of the base model. If a time is NaN, so is the result.
        """
        parts = self._parts(x, names, predicted_us)
        return np.concatenate([covariance(self.scales, part, self.inputs) @ self.weights for part in parts])

    def _parts(self, x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray) -> list[CorrectionInputs]:
        """Return the rows as inputs, in parts of up to `CHUNK_ROWS` rows."""
        inputs = CorrectionInputs.of(x, names, predicted_us, units=self.units, codes=self.candidates)
        return list(map(inputs.take, np.split(np.arange(len(x)), range(CHUNK_ROWS, len(x), CHUNK_ROWS))))

    def deviation(self, x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray) -> np.ndarray:
        """Return the standard deviation of times around the corrected ones, (rows,), in units of the noise.

        It is about 1 near the measured rows and grows with the distance from them. The priors' medians decide it,
        because few rows do not show how far they reach. Parameters are those of `log_factor`.

        References
        ----------
        Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", equation 2.26.
        """
        sample, precision = self._precision
        variances = []
        for part in self._parts(x, names, predicted_us):
            inside = replace(part, terms=np.clip(part.terms, sample.terms.min(axis=0), sample.terms.max(axis=0)))
            shared = covariance(MEDIANS, part, sample)
            prior = sum(MEDIANS[name] ** 2 for name in SCALES if name not in ("length", "linear"))
            prior = prior + MEDIANS["linear"] ** 2 * (inside.terms**2).mean(axis=1)
            variances.append(prior - ((shared @ precision) * shared).sum(axis=1))
        return np.sqrt(1.0 + np.maximum(np.concatenate(variances), 0.0) / MEDIANS["noise"] ** 2)

    @cached_property
    def _precision(self) -> tuple[CorrectionInputs, np.ndarray]:
        """Return measured rows, and the inverse (rows, rows) of their covariance with noise, by the priors' medians."""
        step = -(-len(self.inputs) // MAX_DEVIATION_ROWS)
        sample = self.inputs.take(np.arange(0, len(self.inputs), step))
        noise = MEDIANS["noise"] ** 2 * np.eye(len(sample))
        return sample, np.linalg.inv(covariance(MEDIANS, sample, sample) + noise)


def covariance(scales: Mapping[str, float], a: CorrectionInputs, b: CorrectionInputs) -> np.ndarray:
    """Return the covariance (rows of a, rows of b) of log corrections, without noise."""
    # 1. Squared distances of all pairs by the binomial formula: it avoids an array of (rows, rows, terms).
    squares = (a.terms**2).sum(1)[:, None] + (b.terms**2).sum(1)[None, :] - 2 * (a.terms @ b.terms.T)
    # For equal rows, rounding can give a small negative number.
    similarity = np.exp(-0.5 * np.maximum(squares, 0.0) / scales["length"] ** 2)
    # 2. Parts for all rows of the device: an offset, a slope along every term within b's range, and a smooth part.
    slopes = np.clip(a.terms, b.terms.min(axis=0), b.terms.max(axis=0)) @ b.terms.T
    smooth = scales["smooth"] ** 2 * similarity
    total = scales["common"] ** 2 + scales["linear"] ** 2 / a.terms.shape[1] * slopes + smooth
    # 3. Parts for the rows of one mechanism, and of one candidate: an offset and a smooth part.
    for name in ("mechanism", "candidate"):
        same = getattr(a, name)[:, None] == getattr(b, name)[None, :]
        total += same * (scales[name] ** 2 + scales[f"{name}_smooth"] ** 2 * similarity)
    return total


TREES_FILE = "trees.npz"
FACTS = "times.json"
"""The files of `BoostedArrays`: its trees, and the rest."""
TERMS = "terms."
RESIDUAL_FILE = "residual.npz"
GRID = "grid."
LABELS = "labels.json"
"""Files of a model with interpolation: the terms model, the residual's trees, each GPU's measured times, the labels'
codes.
"""

_Exponent = Annotated[int, Meta(ge=-8, le=8)]


@dataclass(frozen=True)
class StoredInterpolation:
    """The measured times of all GPUs, and the stored trees of the residual (empty if none were fitted)."""

    measured_times: MeasuredTimes
    stored: bytes = b""

    @cached_property
    def trees(self) -> Trees:
        """Return the residual's trees. Raise `InputError` if the stored ones are damaged."""
        return Trees.from_bytes(self.stored)


@dataclass(frozen=True, slots=True)
class BoostedArrays:
    """A fitted model as arrays: its times are (roofline · 2^(w · r) + call cost) · exp(trees + trend) µs.

    If ``tiles``, the analytical model of output tiles replaces the roofline. Here w is ``algorithm_weight``, and r is
    the column of log2(the algorithm's own roofline / the problem's roofline).

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
    interpolation
        Measured times that are interpolated and mixed with the trees' times.
    tiles
        Whether the base is the time of AMD's matrix products by `surrogate.features.analytical`.
    """

    trees: Trees
    columns: tuple[str, ...]
    codes: Mapping[str, int]
    algorithm_weight: float = 0.0
    call_us: Mapping[CallKey, float] = field(default_factory=dict)
    trend: Trend | None = None
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    interpolation: StoredInterpolation | None = None
    tiles: bool = False

    def to_files(self) -> dict[str, bytes]:
        """Return the trees' arrays, and the rest as JSON."""
        names = ("columns", "codes", "call_us", "trend", *(["tiles"] if self.tiles else []))
        facts = {"own_weight": self.algorithm_weight} | {name: to_json_types(getattr(self, name)) for name in names}
        return {TREES_FILE: self.trees.to_bytes(), FACTS: json.dumps(facts, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "BoostedArrays":
        """Return the model from the output of `to_files`. Raise `InputError` if the parts do not fit one another."""
        facts = from_json_types(_Facts, json.loads(files[FACTS]), FACTS)
        trees = Trees.from_bytes(files[TREES_FILE])
        if trees.feature.max() > len(facts.columns) or len(set(facts.columns)) < len(facts.columns):
            raise InputError(f"the trees split more columns than the {len(facts.columns)} in {FACTS}")
        return cls(trees, **structs.asdict(facts))

    def check(self, family: Family) -> None:
        """Raise `InputError` if the model needs columns or sizes that the family does not have."""
        of_problem = {*family.problem_names, *family.candidate_names}
        columns = {*family.column_names, "library_version"}
        lines = self.interpolation.measured_times.lines if self.interpolation else ()
        if (
            not set(self.columns) <= columns
            or not set(self.trend.names if self.trend else ()) <= of_problem
            or not all(line and set(line) <= set(family.size_names) for line in lines)
            or any(len(each.units) != len(family.distance_units) for each in self.corrections.values())
        ):
            raise InputError(f"the model's columns, terms, lines or units are not those of {family.name}")


class _Facts(Struct, frozen=True, rename={"algorithm_weight": "own_weight"}):
    """The JSON file of a `BoostedArrays`, besides its trees."""

    columns: tuple[str, ...]
    codes: Mapping[str, json_types.Count]
    algorithm_weight: Share
    call_us: Keyed[CallKey, Microseconds]
    trend: Trend | None
    tiles: bool = False


@dataclass(frozen=True)
class _Labels:
    """The meaning of the codes of `MeasuredTimes`, and its lines, as JSON."""

    labels: Mapping[str, json_types.Count]
    lines: Annotated[tuple[Mapping[str, _Exponent], ...], Meta(max_length=64)]


def interpolation_files(interpolation: StoredInterpolation) -> dict[str, bytes]:
    """Return the files of the residual's trees, of every GPU's measured times, and of the labels' codes."""
    measured = interpolation.measured_times
    files = {f"{GRID}{gpu}.parquet": content for gpu, content in measured.packed.items()}
    if interpolation.stored:
        files[RESIDUAL_FILE] = interpolation.stored
    facts = {"labels": {key_text(label): code for label, code in measured.labels.items()}, "lines": measured.lines}
    return {**files, LABELS: json.dumps(facts).encode()}


def arrays_from_files(files: Mapping[str, bytes]) -> tuple[BoostedArrays, StoredInterpolation]:
    """Return the terms model with its interpolation, and the interpolation, from the files of an interpolated model."""
    terms = BoostedArrays.from_files(json_types.files_below(TERMS, files))
    packed = {name.removesuffix(".parquet"): content for name, content in json_types.files_below(GRID, files).items()}
    facts = from_json_types(_Labels, json.loads(files[LABELS]), LABELS)
    # The names of all candidates of a family have the same number of parts.
    parts = next(iter(terms.codes), "").count("|") + 1
    labels = {Label.parse(text, parts): code for text, code in facts.labels.items()}
    interpolation = StoredInterpolation(MeasuredTimes(labels, packed, facts.lines), files.get(RESIDUAL_FILE, b""))
    return replace(terms, interpolation=interpolation), interpolation
