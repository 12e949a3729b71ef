"""SEER's terms where nothing was counted: instructions and transactions per block from the problem and the tile.

Each term is divided by the device's peak or bandwidth, so that a coefficient is an efficiency and serves other devices
too (within one device that changes nothing). Units: 1e6 flops over TFLOP/s, 1e3 sectors over GB/s; coefficients in µs.
"""

from dataclasses import dataclass

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.features.algorithms import MECHANISMS, Mechanism
from surrogate.features.elementwise import ceil_div
from surrogate.features.errors import InputError
from surrogate.features.families import CONV
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.machine import b_max_columns
from surrogate.features.problem import SIZE_COLUMNS, ConvColumns
from surrogate.features.roofline import compute_us, memory_us
from surrogate.features.shape import gemm_k, out_h, out_w
from surrogate.features.terms import MECHANISM_TERMS, TILES
from surrogate.features.terms.kernel import KernelTerms, roles
from surrogate.models.seer import formulas
from surrogate.models.seer.classify import roofline_class
from surrogate.models.seer.fft_fit import BUCKETS
from surrogate.models.seer.variants import gemm_p_tile

LANES = 32
SECTOR_BYTES = 32
FORMS = 3
FFT_MECHANISMS = ("fft", "fft_tiling")
OUTPUT_EDGES = (32, 64, 128)
"""K ranges within which one tile is taken to run: K ≤ 32, ≤ 64, ≤ 128, above."""


@dataclass(frozen=True, slots=True)
class Analytical:
    """Terms of one mechanism's rows, by tile: small, middle, large (FFT: the middle one alone).

    ``bound`` (rows,): class by the roofline, or FFT's bucket (see `_fft_bucket`); ``span`` (rows,): K range;
    ``tile`` (rows,): the tile that a rule names, −1 where none does; ``terms[tile]``: the three time forms,
    each (rows, terms).
    """

    mechanism: Mechanism
    bound: np.ndarray
    span: np.ndarray
    tile: np.ndarray
    terms: tuple[tuple[np.ndarray, ...], ...]

    def form(self, bound: int) -> int:
        """Which of the time forms a class uses: FFT has one only."""
        return 0 if self.mechanism in FFT_MECHANISMS else bound


def require_convolutions(rows: Rows, model: str) -> None:
    """Raise `InputError` where the rows are of another family: SEER is a model of convolutions."""
    if rows.family is not CONV:
        raise InputError(f"{model} knows convolutions, and these are rows of family {rows.family.name}")


def _known_gpu(name: str) -> Gpu:
    try:
        return gpu(name)
    except InputError:
        raise InputError(f"its terms are those of GPU kernels, and {name!r} is no known GPU") from None


def analytical(rows: Rows, mechanism_code: int) -> Analytical:
    """The terms of rows that all belong to one mechanism (by `Rows.column("mechanism")`)."""
    mechanism = MECHANISMS[mechanism_code]
    frame = rows.frame
    p = ConvColumns.of(
        [frame[name] for name in SIZE_COLUMNS],
        **{name: frame[name] for name in ("dtype", "math", "layout", "direction")},
    )
    peak, bandwidth = (
        np.exp2(rows.column(f"log2_{n}").astype(np.float64)) for n in ("peak_tflops", "dram_gbs")
    )
    names, index = np.unique(frame["gpu"].astype(str).to_numpy(), return_inverse=True)
    b_max = b_max_columns([_known_gpu(str(name)) for name in names], index, mechanism)
    found = MECHANISM_TERMS[mechanism](p, b_max)
    span = np.searchsorted(OUTPUT_EDGES, roles(p).channels_out)
    if mechanism in FFT_MECHANISMS:
        terms = ((_fft_terms(p, mechanism, peak, bandwidth),),)
        return Analytical(mechanism, _fft_bucket(p, mechanism), 0 * span, 0 * span, terms)
    own = compute_us(found.arithmetic_flops, peak), memory_us(found.dram_bytes, bandwidth)
    bound = roofline_class(*own, found.launches[1].waves)
    tile = gemm_p_tile(roles(p).channels_out) if mechanism == "precomp_gemm" else np.full(len(rows), -1)
    terms = tuple(
        _forms(p, mechanism, found, t, b_max[t], peak, bandwidth) for t in range(len(TILES[mechanism]))
    )
    return Analytical(mechanism, bound, span, tile, terms)


def _forms(
    p: ConvColumns,
    mechanism: Mechanism,
    found: KernelTerms,
    tile: int,
    b_max: np.ndarray,
    peak: np.ndarray,
    bandwidth: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """The compute-bound, memory-bound and under-utilised form with one tile, pre and post kernels' terms joined."""
    tile_m, tile_n = TILES[mechanism][tile]
    sector = p.itemsize / SECTOR_BYTES
    depth = roles(p).channels_in if mechanism.startswith("winograd") else gemm_k(p)
    if mechanism.startswith("winograd"):
        instructions = 1.0 * ceil_div(roles(p).channels_in, 8)
    else:
        instructions = 1.0 * depth * tile_m * tile_n / LANES
    reads, writes = (tile_m + tile_n) * depth * sector, tile_m * tile_n * sector
    w = formulas.waves(found.launches[tile].blocks, b_max)
    # n, the waves' own term, stays in µs; the others go by the unit that they keep busy.
    arithmetic, traffic = instructions / (1e6 * peak), 1 / (1e3 * bandwidth)
    extra = _extra_terms(p, mechanism, bandwidth)
    return tuple(
        formulas.term_matrix((*form, *extra), len(p))
        for form in (
            formulas.compute_terms(w, b_max, arithmetic),
            formulas.memory_terms(w, b_max, reads * traffic, writes * traffic),
            formulas.under_utilised_terms(w, b_max, arithmetic, reads * traffic, writes * traffic),
        )
    )


def _extra_terms(p: ConvColumns, mechanism: Mechanism, bandwidth: np.ndarray) -> formulas.Terms:
    """im2col of GEMM, the transforms of non-fused Winograd; for the rest a launch per group of grouped problems."""
    area, taps, channels = out_h(p) * out_w(p), p.r * p.s, p.c // p.groups
    traffic = 1e3 * bandwidth
    if mechanism == "gemm":
        return p.n * area * taps * p.c / traffic, p.k * taps * channels / traffic, p.groups
    if mechanism == "winograd_nonfused":
        image = p.n * p.c * p.h * p.w / traffic
        return image, p.k * channels * taps / traffic, p.n * p.k * area / traffic, p.groups
    return (p.groups * (p.groups > 1),)


def _fft_bucket(p: ConvColumns, mechanism: Mechanism) -> np.ndarray:
    """FFT's width bucket. FFT_TILING: 0 for 1×1 filters at stride 1, 1 for larger ones, 2 for strides."""
    if mechanism == "fft":
        return np.searchsorted(BUCKETS, np.maximum(p.h, p.w)).clip(max=len(BUCKETS) - 1)
    return np.where(np.maximum(p.stride_h, p.stride_w) > 1, 2, np.maximum(p.r, p.s) > 1)


def _fft_terms(p: ConvColumns, mechanism: Mechanism, peak: np.ndarray, bandwidth: np.ndarray) -> np.ndarray:
    """SEER's four terms times N/128 (and groups, tiles); the filters' transform and the launches, which know no N."""
    r = roles(p)
    c, k = r.channels_in, r.channels_out
    images = p.n / 128 * p.groups
    if mechanism == "fft_tiling":
        down, across = (
            ceil_div(o, np.maximum(formulas.FFT_TILE + 1 - f, 1)) for o, f in ((r.out_h, p.r), (r.out_w, p.s))
        )
        images = images * down * across
    traffic = 1e3 * bandwidth
    filters = c * k * p.groups / traffic
    terms = (
        c * images / traffic,
        c * k * images / (1e6 * peak),
        k * images / traffic,
        images,
        filters,
        p.groups,
    )
    return formulas.term_matrix(terms, len(p))
