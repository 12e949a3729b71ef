"""SEER's fits: a linear form, a kernel variant, an algorithm of several variants, and FFT."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from surrogate.models.json_types import Number
from surrogate.models.least_squares import relative_fit
from surrogate.models.seer import physics
from surrogate.models.seer.kernels import GEMM_P, TilePredictor
from surrogate.models.seer.physics import Sizes, Terms, launched_blocks, term_matrix
from surrogate.models.seer.trees import Tree, tuned_tree


@dataclass(frozen=True, slots=True)
class FormFit:
    """Fitted coefficients of one form, and the least training target, which stands where the form turns negative.

    Relative least squares can extrapolate below zero; an algorithm must not win for that.
    """

    coefficients: tuple[Number, ...]
    floor: Number

    @classmethod
    def of(cls, terms: Terms, target: np.ndarray) -> "FormFit":
        """`relative_fit` of ``target`` (rows,)."""
        return cls(tuple(relative_fit(term_matrix(terms), target).tolist()), float(target.min()))

    def predict(self, terms: Terms) -> np.ndarray:
        """The form's values (rows,), all positive."""
        value = term_matrix(terms) @ np.array(self.coefficients)
        return np.where(value > 0, value, self.floor)


MIN_OUTPUTS = 32


class MeasuredKernels(NamedTuple):
    """Main kernels that ran: counts *per block*, ``time_us`` of the kernel alone; arrays (rows,)."""

    sizes: Sizes
    blocks: np.ndarray
    b_max: np.ndarray
    instructions: np.ndarray
    reads: np.ndarray
    writes: np.ndarray
    bound: np.ndarray
    time_us: np.ndarray


@dataclass(frozen=True, slots=True)
class VariantFit:
    """What was fitted of one variant. ``times``: class → the time form's coefficients."""

    algorithm: str
    tile: str
    b_max: Number
    blocks_per_output: Number
    class_tree: Tree
    instructions: FormFit
    read_tree: Tree
    write_tree: Tree
    times: Mapping[int, FormFit]

    @classmethod
    def fit(cls, algorithm: str, tile: str, m: MeasuredKernels, seed: int, evaluations: int) -> "VariantFit":
        """From measured rows of the variant (at least one)."""
        # The original clamps K in this one variant's trees when it fits, and in all of GEMM-P's when it predicts.
        clamp = algorithm == GEMM_P and tile == "128x32"
        dram = _dram_inputs(algorithm, m.sizes, m.blocks, clamp)

        def tree(x: np.ndarray, y: np.ndarray, *, classify: bool = False) -> Tree:
            return tuned_tree(x, y, classify=classify, seed=seed, evaluations=evaluations)

        outputs = m.sizes.batch * m.sizes.out_width**2 * m.sizes.outputs
        times = {
            int(bound): FormFit.of(_time_terms(m, m.bound == bound, int(bound)), m.time_us[m.bound == bound])
            for bound in np.unique(m.bound)
        }
        return cls(
            algorithm,
            tile,
            b_max=float(np.median(m.b_max)),
            blocks_per_output=float(np.median(m.blocks / outputs)),
            class_tree=tree(_class_inputs(m.sizes, m.blocks, clamp), m.bound, classify=True),
            instructions=FormFit.of(_instruction_terms(algorithm, m.sizes), m.instructions),
            read_tree=tree(dram, m.reads / _depth(algorithm, m.sizes)),
            write_tree=tree(dram, m.writes),
            times=times,
        )

    def launched(self, sizes: Sizes, published: bool = False) -> np.ndarray:
        """Blocks (rows,), by the tile's rule, else by the measured blocks per output element."""
        blocks = launched_blocks(self.algorithm, self.tile, sizes, published).astype(np.float64)
        counted = np.ceil(self.blocks_per_output * sizes.batch * sizes.out_width**2 * sizes.outputs)
        return np.where(np.isnan(blocks), np.maximum(counted, 1), blocks)

    def bound(self, sizes: Sizes, blocks: np.ndarray) -> np.ndarray:
        """The class (rows,) by the tree, 0 … 2 as in `physics.kernel_class`."""
        clamp = self.algorithm == GEMM_P
        return self.class_tree.predict(_class_inputs(sizes, blocks, clamp)).astype(np.int64)

    def predict_us(self, sizes: Sizes, blocks: np.ndarray) -> np.ndarray:
        """Time in µs of the main kernel with so many ``blocks``, (rows,)."""
        bound = self.bound(sizes, blocks)
        dram = _dram_inputs(self.algorithm, sizes, blocks, clamp=self.algorithm == GEMM_P)
        instructions = self.instructions.predict(_instruction_terms(self.algorithm, sizes))
        reads = self.read_tree.predict(dram) * _depth(self.algorithm, sizes)
        writes = self.write_tree.predict(dram)
        time_us = np.empty(len(blocks))
        m = MeasuredKernels(
            sizes,
            blocks,
            b_max=np.full(len(blocks), self.b_max),
            instructions=instructions,
            reads=reads,
            writes=writes,
            bound=bound,
            time_us=time_us,
        )
        for form in np.unique(bound):
            members = bound == form
            time_us[members] = self.times[int(form)].predict(_time_terms(m, members, int(form)))
        return time_us


def _time_terms(m: MeasuredKernels, rows: np.ndarray, bound: int) -> physics.Terms:
    """The class's time form over the chosen rows."""
    b_max, instructions, reads, writes = (a[rows] for a in (m.b_max, m.instructions, m.reads, m.writes))
    w = physics.waves(m.blocks[rows], b_max)
    return physics.time_terms(bound, w, b_max, instructions=instructions, reads=reads, writes=writes)


def _is_winograd(algorithm: str) -> bool:
    return algorithm.startswith("WINOGRAD")


def _depth(algorithm: str, s: Sizes) -> np.ndarray:
    """What reads per block are counted in: k²·C, for Winograd C."""
    return s.channels if _is_winograd(algorithm) else s.filter_width**2 * s.channels


def _instruction_terms(algorithm: str, s: Sizes) -> physics.Terms:
    if _is_winograd(algorithm):
        return physics.winograd_instruction_terms(s.channels)
    return physics.gemm_instruction_terms(s.channels, s.filter_width)


def _columns(s: Sizes, clamp: bool) -> list[np.ndarray]:
    """C, W, K, O, k, stride."""
    outputs = np.maximum(s.outputs, MIN_OUTPUTS) if clamp else s.outputs
    return [s.channels, s.width, outputs, s.out_width, s.filter_width, s.stride]


def _class_inputs(s: Sizes, blocks: np.ndarray, clamp: bool) -> np.ndarray:
    return np.column_stack([*_columns(s, clamp), blocks])


def _dram_inputs(algorithm: str, s: Sizes, blocks: np.ndarray, clamp: bool) -> np.ndarray:
    """GEMM family: the sizes, blocks, k²C, k²CK, O²k²C; Winograd: the sizes."""
    columns = _columns(s, clamp)
    if _is_winograd(algorithm):
        return np.column_stack(columns)
    depth = _depth(algorithm, s)
    return np.column_stack([*columns, blocks, depth, depth * columns[2], depth * s.out_width**2])


COUNTED_ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "WINOGRAD", "WINOGRAD_NONFUSED")
GEMM, NONFUSED = "GEMM", "WINOGRAD_NONFUSED"


@dataclass(frozen=True, slots=True)
class AlgorithmFit:
    """``variants`` and ``extras`` (pre and post kernels) by variant key; GEMM has one im2col fit for all tiles."""

    algorithm: str
    chooser: TilePredictor
    variants: Mapping[str, VariantFit]
    extras: Mapping[str, FormFit]

    @classmethod
    def fit(
        cls, algorithm: str, m: MeasuredKernels, tiles: np.ndarray, extra_us: np.ndarray, seed: int, evaluations: int
    ) -> "AlgorithmFit":
        """From measured rows: ``tiles`` (rows,) names, ``extra_us`` (rows,) time of the other kernels, 0 where none."""
        chooser = TilePredictor.fit(algorithm, m.sizes, tiles, seed=seed, evaluations=evaluations)
        widths = m.sizes.filter_width.tolist()
        keys = np.array([_key(algorithm, tile, k) for tile, k in zip(tiles, widths, strict=True)])
        variants = {}
        for key in np.unique(keys):
            members = np.flatnonzero(keys == key)
            part = MeasuredKernels(m.sizes.take(members), *(array[members] for array in m[1:]))
            tile = str(tiles[members[0]])
            variants[str(key)] = VariantFit.fit(algorithm, tile, part, seed=seed, evaluations=evaluations)
        extras = {}
        for key in ([""] if algorithm == GEMM else np.unique(keys)) if algorithm in (GEMM, NONFUSED) else []:
            members = (extra_us > 0) & ((keys == key) | (key == ""))
            if members.any():
                extras[str(key)] = FormFit.of(_extra_terms(algorithm, m.sizes.take(members)), extra_us[members])
        return cls(algorithm, chooser, variants, extras)

    def predict_us(self, sizes: Sizes, published: bool = False) -> np.ndarray:
        """Times in µs, (rows,), of all kernels; NaN where training held no such variant.

        The variant is predicted, and its blocks follow from the sizes; ``published``: by the original's rule.
        """
        time_us = np.full(len(sizes.batch), np.nan)
        for variant, key, members in self._parts(sizes, None):
            part = sizes.take(members)
            main_us = variant.predict_us(part, variant.launched(part, published))
            time_us[members] = main_us + self._extra_us(key, part)
        return time_us

    def main_kernel_us(self, sizes: Sizes, tiles: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Times in µs, (rows,), of main kernels whose ``tiles`` (names) and ``blocks`` are known, as in Test-set-I."""
        time_us = np.full(len(sizes.batch), np.nan)
        for variant, _, members in self._parts(sizes, tiles):
            time_us[members] = variant.predict_us(sizes.take(members), blocks[members])
        return time_us

    def bound(self, sizes: Sizes) -> np.ndarray:
        """Classes (rows,) of the main kernels, 0 … 2 as in `physics.kernel_class`; −1 where no variant is known."""
        bound = np.full(len(sizes.batch), -1)
        for variant, _, members in self._parts(sizes, None):
            part = sizes.take(members)
            bound[members] = variant.bound(part, variant.launched(part))
        return bound

    def _parts(self, sizes: Sizes, tiles: np.ndarray | None) -> Iterator[tuple[VariantFit, str, np.ndarray]]:
        """(variant, its key, positions) of the rows that each fitted variant runs."""
        if tiles is None:
            keys = self._keys(sizes)
        else:
            keys = np.array([_key(self.algorithm, *pair) for pair in zip(tiles, sizes.filter_width, strict=True)])
        for key in np.unique(keys):
            if key in self.variants:
                yield self.variants[key], str(key), np.flatnonzero(keys == key)

    def _extra_us(self, key: str, sizes: Sizes) -> np.ndarray:
        """Time of the pre and post kernels (rows,), 0 where none were measured."""
        fit = self.extras.get("" if self.algorithm == GEMM else key)
        return fit.predict(_extra_terms(self.algorithm, sizes)) if fit else np.zeros(len(sizes.batch))

    def _keys(self, sizes: Sizes) -> np.ndarray:
        """(rows,) the variant that runs; where it was never measured, the nearest tile that was (at that width)."""
        chosen = self.chooser.choose(sizes)
        tiles = self.chooser.tiles
        keys = np.full(len(chosen), "", dtype=object)
        for position in np.unique(chosen):
            for width in np.unique(sizes.filter_width):
                by_distance = sorted(range(len(tiles)), key=lambda other: (abs(other - int(position)), other))
                nearest_keys = (_key(self.algorithm, tiles[other], int(width)) for other in by_distance)
                key = next((candidate for candidate in nearest_keys if candidate in self.variants), "")
                keys[(chosen == position) & (sizes.filter_width == width)] = key
        return keys


def _key(algorithm: str, tile: str, filter_width: int) -> str:
    """Non-fused Winograd's variants are tile × filter width, the others' are tiles."""
    return f"{tile}/k{filter_width}" if algorithm == NONFUSED else str(tile)


def _extra_terms(algorithm: str, s: Sizes) -> physics.Terms:
    return physics.transform_terms(s) if algorithm == NONFUSED else physics.im2col_terms(s)


BUCKETS = (16, 32, 64, 128, 256)
"""Widths that FFT has a transform for, each with a fit of its own."""
FFT_ALGORITHMS = ("FFT", "FFT_TILING")
ALL_WIDTHS = 0


@dataclass(frozen=True, slots=True)
class FftFit:
    """Width bucket (FFT_TILING: one for all) → coefficients. ``batch``: that of the training rows; SEER has no
    batch term, so other batches are scaled in proportion. ``class_tree``: FFT_TILING's, on C, K, O and k, where
    utilisations were counted.
    """

    algorithm: str
    fits: Mapping[int, FormFit]
    batch: Number
    class_tree: Tree | None

    @classmethod
    def fit(
        cls, algorithm: str, sizes: Sizes, time_us: np.ndarray, bound: np.ndarray, seed: int, evaluations: int
    ) -> "FftFit":
        """From the feasible ok rows (at least one); ``bound`` (rows,): classes, NaN where nothing was counted."""
        batch = float(np.median(sizes.batch))
        bucket = buckets(algorithm, sizes)
        scaled = time_us * batch / sizes.batch
        fits = {
            int(width): FormFit.of(_terms(algorithm, sizes.take(bucket == width)), scaled[bucket == width])
            for width in np.unique(bucket)
        }
        counted = np.flatnonzero(np.isfinite(bound))
        tree = None
        if len(counted) and algorithm == "FFT_TILING":
            x = _fft_class_inputs(sizes.take(counted))
            tree = tuned_tree(x, bound[counted], classify=True, seed=seed, evaluations=evaluations)
        return cls(algorithm, fits, batch, tree)

    def bound(self, sizes: Sizes) -> np.ndarray:
        """Classes (rows,) as `AlgorithmFit.bound`."""
        if self.class_tree is None:
            return np.full(len(sizes.batch), -1)
        return self.class_tree.predict(_fft_class_inputs(sizes))

    def predict_us(self, sizes: Sizes) -> np.ndarray:
        """Time in µs (rows,); NaN in a width bucket that training did not hold."""
        bucket = buckets(self.algorithm, sizes)
        time_us = np.full(len(bucket), np.nan)
        for width, fit in self.fits.items():
            members = bucket == width
            time_us[members] = fit.predict(_terms(self.algorithm, sizes.take(members)))
        return time_us * sizes.batch / self.batch


def _fft_class_inputs(s: Sizes) -> np.ndarray:
    return np.column_stack([s.channels, s.outputs, s.out_width, s.filter_width])


def buckets(algorithm: str, sizes: Sizes) -> np.ndarray:
    """(rows,) the least of `BUCKETS` that holds each width; FFT_TILING: one for all."""
    if algorithm == "FFT_TILING":
        return np.full(len(sizes.width), ALL_WIDTHS)
    return np.array(BUCKETS)[np.searchsorted(BUCKETS, sizes.width).clip(max=len(BUCKETS) - 1)]


def _terms(algorithm: str, s: Sizes) -> physics.Terms:
    if algorithm == "FFT_TILING":
        return physics.fft_tiling_terms(s.channels, s.outputs, s.out_width, s.filter_width)
    return physics.fft_terms(s.channels, s.outputs)
