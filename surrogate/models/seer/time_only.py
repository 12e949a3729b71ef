"""`seer-time-only`: SEER's physics fitted to times without counters, which analytical terms replace.

Instructions and transactions per block follow from the problem and the tile. Each term is divided by the device's peak
or bandwidth. So a coefficient is an efficiency, which transfers to other devices. Within one device the division
changes nothing. Units: 1e6 flops over TFLOP/s, 1e3 sectors over GB/s; coefficients in µs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.features import MECHANISMS, SIZE_COLUMNS, ConvColumns, Mechanism, ceil_div
from surrogate.features.roofline import compute_us, mechanism_b_max, memory_us
from surrogate.features.terms import MECHANISM_TERMS, TILES, KernelTerms, Sized, sized
from surrogate.models.base import SearchRange, TimeModel
from surrogate.models.baselines import MIN_US
from surrogate.models.json_types import Number
from surrogate.models.least_squares import GroupLevel, fitted_groups, key_columns, relative_fit, relative_loss
from surrogate.models.seer import physics
from surrogate.models.seer.fits import BUCKETS
from surrogate.models.seer.physics import UNDER_UTILISED, gemm_p_tile, require_convolutions, roofline_class

LANES = 32
SECTOR_BYTES = 32
FFT_MECHANISMS = ("fft", "fft_tiling")
OUTPUT_EDGES = (32, 64, 128)
"""K ranges. In each range one tile is assumed: K ≤ 32, ≤ 64, ≤ 128, above."""


@dataclass(frozen=True, slots=True)
class MechanismTerms:
    """Terms of one mechanism's rows, for the small, the middle and the large tile (FFT: the middle one only).

    Attributes
    ----------
    mechanism
        The mechanism.
    bound
        (rows,) class by the roofline, or FFT's bucket (see `_fft_bucket`).
    span
        (rows,) K range.
    tile
        (rows,) tile by a rule, −1 without a rule.
    terms
        Tile → the three time forms, each (rows, terms).
    """

    mechanism: Mechanism
    bound: np.ndarray
    span: np.ndarray
    tile: np.ndarray
    terms: tuple[tuple[np.ndarray, ...], ...]

    def form(self, bound: int) -> int:
        """Return the time form of a class. FFT has only one."""
        return 0 if self.mechanism in FFT_MECHANISMS else bound


def mechanism_terms(rows: Rows, mechanism_code: int) -> MechanismTerms:
    """Return the terms of rows of one mechanism (by `Rows.column("mechanism")`)."""
    mechanism = MECHANISMS[mechanism_code]
    frame = rows.frame
    settings = {name: frame[name] for name in ("dtype", "math", "layout", "direction")}
    columns = ConvColumns.of([frame[name] for name in SIZE_COLUMNS], **settings)
    p = sized(columns)
    peak, bandwidth = (np.exp2(rows.column(f"log2_{n}").astype(np.float64)) for n in ("peak_tflops", "dram_gbs"))
    names, index = np.unique(frame["gpu"].astype(str).to_numpy(), return_inverse=True)
    # (3, rows): blocks of the small, the middle and the large tile that each row's GPU holds.
    slots = np.array([mechanism_b_max(rows.device(name), mechanism) for name in names.tolist()])[index].T
    kernel = MECHANISM_TERMS[mechanism](p, slots)
    span = np.searchsorted(OUTPUT_EDGES, p.channels_out)
    if mechanism in FFT_MECHANISMS:
        terms = ((_fft_terms(p, mechanism, peak, bandwidth),),)
        no_span = np.zeros_like(span)
        return MechanismTerms(mechanism, _fft_bucket(p, mechanism), span=no_span, tile=no_span, terms=terms)
    floors = compute_us(kernel.arithmetic_flops, peak), memory_us(kernel.dram_bytes, bandwidth)
    bound = roofline_class(*floors, kernel.launches[1].waves)
    tile = gemm_p_tile(p.channels_out) if mechanism == "precomp_gemm" else np.full(len(rows), -1)
    rates = {"peak": peak, "bandwidth": bandwidth}
    terms = tuple(_forms(p, mechanism, kernel, tile=t, b_max=slots[t], **rates) for t in range(len(TILES[mechanism])))
    return MechanismTerms(mechanism, bound, span=span, tile=tile, terms=terms)


def _forms(
    p: Sized,
    mechanism: Mechanism,
    kernel: KernelTerms,
    tile: int,
    b_max: np.ndarray,
    peak: np.ndarray,
    bandwidth: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Return the compute-bound, memory-bound and under-utilised form with one tile, with all kernels' terms."""
    tile_m, tile_n = TILES[mechanism][tile]
    sector = p.itemsize / SECTOR_BYTES
    if mechanism.startswith("winograd"):
        depth, instructions = p.channels_in, 1.0 * ceil_div(p.channels_in, 8)
    else:
        depth, instructions = p.gemm_k, 1.0 * p.gemm_k * tile_m * tile_n / LANES
    reads, writes = (tile_m + tile_n) * depth * sector, tile_m * tile_n * sector
    w = physics.waves(kernel.launches[tile].blocks, b_max)
    # The wave term n stays in µs. Each other term is divided by the rate of the unit that it uses.
    arithmetic, traffic = instructions / (1e6 * peak), 1 / (1e3 * bandwidth)
    extra = _extra_terms(p, mechanism, bandwidth)
    units = {"instructions": arithmetic, "reads": reads * traffic, "writes": writes * traffic}
    forms = (physics.time_terms(bound, w, b_max, **units) for bound in range(3))
    return tuple(physics.term_matrix((*form, *extra)) for form in forms)


def _extra_terms(p: Sized, mechanism: Mechanism, bandwidth: np.ndarray) -> physics.Terms:
    """Return GEMM's im2col, or non-fused Winograd's transforms, as terms.

    For other mechanisms, grouped problems have a launch per group.
    """
    area, taps, channels = p.out_h * p.out_w, p.r * p.s, p.c // p.groups
    traffic = 1e3 * bandwidth
    if mechanism == "gemm":
        return p.n * area * taps * p.c / traffic, p.k * taps * channels / traffic, p.groups
    if mechanism == "winograd_nonfused":
        image = p.n * p.c * p.h * p.w / traffic
        return image, p.k * channels * taps / traffic, p.n * p.k * area / traffic, p.groups
    return (p.groups * (p.groups > 1),)


def _fft_bucket(p: Sized, mechanism: Mechanism) -> np.ndarray:
    """Return FFT's width bucket. FFT_TILING: 0 for 1×1 filters at stride 1, 1 for larger ones, 2 for strides."""
    if mechanism == "fft":
        return np.searchsorted(BUCKETS, np.maximum(p.h, p.w)).clip(max=len(BUCKETS) - 1)
    return np.where(np.maximum(p.stride_h, p.stride_w) > 1, 2, np.maximum(p.r, p.s) > 1)


def _fft_terms(p: Sized, mechanism: Mechanism, peak: np.ndarray, bandwidth: np.ndarray) -> np.ndarray:
    """Return SEER's four terms times N/128 (and groups, tiles).

    Two terms do not depend on N: the filters' transform and the launches.
    """
    c, k = p.channels_in, p.channels_out
    images = p.n / 128 * p.groups
    if mechanism == "fft_tiling":
        sides = (p.result_h, p.r), (p.result_w, p.s)
        down, across = (ceil_div(out, np.maximum(physics.FFT_TILE + 1 - taps, 1)) for out, taps in sides)
        images = images * down * across
    traffic = 1e3 * bandwidth
    filters = c * k * p.groups / traffic
    terms = (c * images / traffic, c * k * images / (1e6 * peak), k * images / traffic, images, filters, p.groups)
    return physics.term_matrix(terms)


SPANS = len(OUTPUT_EDGES) + 1
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class TileFit:
    """The fit of a group: tile → coefficients, and the tile of each K range."""

    coefficients: Mapping[int, tuple[Number, ...]]
    tile_of: tuple[int, ...]

    @classmethod
    def fit(cls, a: MechanismTerms, form: int, rows: np.ndarray, time_us: np.ndarray) -> "TileFit":
        """Fit on the group's ``rows`` (positions in ``a``) and their times.

        If a rule gives the tiles, each tile is fitted on its rows. Otherwise every tile is fitted on all rows, and each
        K range takes its best tile. Both steps are repeated `ROUNDS` times on each tile's own rows. A tile with fewer
        than two rows per coefficient keeps the fit over all rows.
        """
        candidates = [terms[form][rows] for terms in a.terms]
        span, rule_tile = a.span[rows], a.tile[rows]
        fits = pooled = [relative_fit(terms, time_us, nonnegative=True) for terms in candidates]
        tile_of = np.zeros(SPANS, dtype=int)
        for _ in range(ROUNDS):
            losses = [relative_loss(x, time_us, c) for x, c in zip(candidates, fits, strict=True)]
            sums = np.array([np.bincount(span, loss, minlength=SPANS) for loss in losses])
            # A range without rows takes the best tile of the whole group.
            sums[:, np.bincount(span, minlength=SPANS) == 0] = sums.sum(axis=1, keepdims=True)
            tile_of = sums.argmin(axis=0)
            tile = np.where(rule_tile >= 0, rule_tile, tile_of[span])
            fits = [
                relative_fit(terms[tile == t], time_us[tile == t], nonnegative=True)
                if (tile == t).sum() >= 2 * terms.shape[1]
                else pooled[t]
                for t, terms in enumerate(candidates)
            ]
        return cls({t: tuple(fit.tolist()) for t, fit in enumerate(fits)}, tuple(tile_of.tolist()))

    def predict(self, a: MechanismTerms, form: int, rows: np.ndarray) -> np.ndarray:
        """Return times in µs (rows,) of the ``rows`` (positions in ``a``)."""
        tile = np.where(a.tile[rows] >= 0, a.tile[rows], np.array(self.tile_of)[a.span[rows]])
        time_us = np.empty(len(rows))
        for t in np.unique(tile):
            members = tile == t
            time_us[members] = a.terms[t][form][rows[members]] @ np.array(self.coefficients[int(t)])
        return time_us


@dataclass(eq=False, repr=False)
class SeerTimeOnly(TimeModel):
    """The paper's time forms with non-negative coefficients, per (GPU, library version, algorithm) and class.

    Grouped and depthwise problems, which SEER does not model, are fitted apart.

    Parameters
    ----------
    least_rows
        Minimum rows of a group. A smaller group takes the fit over the GPU's other versions, or else over all GPUs (see
        `_LEVELS`).

    Attributes
    ----------
    fits_
        Group's key → its `TileFit`.

    Raises
    ------
    InputError
        On fitting rows that are no convolutions.

    References
    ----------
    SEER (PACT 2021) and its public repository.
    """

    name: ClassVar[str] = "seer-time-only"
    help: ClassVar[str] = "SEER's physics fitted to times only, with analytical terms instead of counters"
    storable: ClassVar[bool] = True
    json_file: ClassVar[str] = "fits.json"
    json_types: ClassVar[Mapping[str, Any]] = {"fits_": Mapping[str, TileFit]}

    least_rows: Annotated[int, SearchRange(6, 40, log=True)] = 8

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit the groups of every level."""
        self.fit_rows(FeatureRows.of(rows), np.arange(len(rows)), time_us)

    def _predict(self, rows: Rows) -> np.ndarray:
        """Return positive times; NaN for an algorithm without training rows."""
        return self.predict_rows(FeatureRows.of(rows), np.arange(len(rows)))

    def fit_rows(self, features: "FeatureRows", index: np.ndarray, time_us: np.ndarray) -> Self:
        """Fit on the rows at ``index`` only. ``time_us`` (rows,) in µs is of all rows of ``features``."""
        self.fits_: dict[str, TileFit] = {}
        for part in features.parts:
            members = np.flatnonzero(np.isin(part.rows, index))
            part_us = time_us[part.rows]
            fitted: dict[tuple[int, bytes], TileFit] = {}  # groups of two levels often have the same rows
            for key, group in fitted_groups(part.levels, self.least_rows, members):
                form = _form(key, part.terms)
                same = form, group.tobytes()
                if same not in fitted:
                    fitted[same] = TileFit.fit(part.terms, form, group, part_us[group])
                self.fits_[key] = fitted[same]
        return self

    def predict_rows(self, features: "FeatureRows", index: np.ndarray) -> np.ndarray:
        """Return times in µs (rows at ``index``,); NaN for an algorithm without training rows."""
        time_us = np.full(features.size, np.nan)
        for part in features.parts:
            members = np.flatnonzero(np.isin(part.rows, index))
            part_us = np.full(len(part.rows), np.nan)
            for level in part.levels:
                for key, group in level.groups(members[np.isnan(part_us[members])]):
                    if fit := self.fits_.get(key):
                        part_us[group] = fit.predict(part.terms, _form(key, part.terms), group)
            time_us[part.rows] = np.maximum(part_us, MIN_US)
        return time_us[index]


_LEVELS = (
    ("gpu", "version", "candidate", "grouping", "bound"),
    ("gpu", "candidate", "grouping", "bound"),
    ("candidate", "grouping", "bound"),
    ("gpu", "candidate", "grouping"),
    ("candidate",),
)
"""Columns of a group's key, from the most specific level. Without ``bound``, the form is the under-utilised one."""


class FeaturePart(NamedTuple):
    """The rows of one mechanism: positions, terms, and the groups of every level, the most specific first."""

    rows: np.ndarray
    terms: MechanismTerms
    levels: tuple[GroupLevel, ...]


class FeatureRows(NamedTuple):
    """The inputs of SEER's fits from a table. They serve every fit to a part of its rows."""

    size: int
    parts: tuple[FeaturePart, ...]

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return the inputs of all rows. Raise `InputError` if they are no convolutions."""
        require_convolutions(rows, SeerTimeOnly.name)
        code = rows.column("mechanism").astype(int)
        parts = []
        for number in np.unique(code).tolist():
            members = np.flatnonzero(code == number)
            part = rows.take(members)
            terms = mechanism_terms(part, number)
            columns = key_columns(part).assign(bound=[f"bound{bound}" for bound in terms.bound])
            levels = [GroupLevel.of(("|".join(level) + "|" + joined(columns, level)).to_numpy()) for level in _LEVELS]
            parts.append(FeaturePart(members, terms, tuple(levels)))
        return cls(len(rows), tuple(parts))


def _form(key: str, terms: MechanismTerms) -> int:
    """Return the time form of the class in a group's key, or else the under-utilised one, the most general."""
    last = key.rsplit("|", 1)[-1]
    return terms.form(int(last.removeprefix("bound")) if last.startswith("bound") else UNDER_UTILISED)
