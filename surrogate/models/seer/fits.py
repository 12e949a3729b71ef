"""SEER's fits: a linear form, a kernel variant, an algorithm with several variants, and FFT."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from surrogate.models.json_types import Number
from surrogate.models.least_squares import relative_fit
from surrogate.models.seer import physics
from surrogate.models.seer.physics import GEMM_P, Sizes, Terms, TilePredictor, launched_blocks, term_matrix, tree_inputs
from surrogate.models.seer.trees import Tree, tuned_tree


@dataclass(frozen=True, slots=True)
class FormFit:
    """Fitted coefficients of one form, and the minimum training target.

    Relative least squares can extrapolate to values below zero. The minimum replaces them, so that no algorithm wins by
    such a value.
    """

    coefficients: tuple[Number, ...]
    floor: Number

    @classmethod
    def of(cls, terms: Terms, target: np.ndarray) -> "FormFit":
        """Fit ``target`` (rows,) by `relative_fit`."""
        return cls(tuple(relative_fit(term_matrix(terms), target).tolist()), float(target.min()))

    def predict(self, terms: Terms) -> np.ndarray:
        """Return the form's values (rows,), all positive."""
        value = term_matrix(terms) @ np.array(self.coefficients)
        return np.where(value > 0, value, self.floor)


class MeasuredKernels(NamedTuple):
    """Measured main kernels, as arrays (rows,). Counts are *per block*; ``time_us`` is the kernel's own time."""

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
    """The fits of one variant. ``times`` maps a class to the coefficients of its time form."""

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
        """Fit on measured rows of the variant (at least one)."""
        # The original clamps K in this variant's trees when it fits, and in all trees of GEMM-P when it predicts.
        clamp = algorithm == GEMM_P and tile == "128x32"
        dram = _dram_inputs(algorithm, m.sizes, m.blocks, clamp)

        def tree(x: np.ndarray, y: np.ndarray, *, classify: bool = False) -> Tree:
            return tuned_tree(x, y, classify=classify, seed=seed, evaluations=evaluations)

        outputs = m.sizes.batch * m.sizes.out_width**2 * m.sizes.outputs
        members = {int(bound): m.bound == bound for bound in np.unique(m.bound)}
        times = {bound: FormFit.of(_time_terms(m, rows, bound), m.time_us[rows]) for bound, rows in members.items()}
        return cls(
            algorithm,
            tile,
            b_max=float(np.median(m.b_max)),
            blocks_per_output=float(np.median(m.blocks / outputs)),
            class_tree=tree(np.column_stack([tree_inputs(m.sizes, clamp), m.blocks]), m.bound, classify=True),
            instructions=FormFit.of(physics.instruction_terms(algorithm, m.sizes), m.instructions),
            read_tree=tree(dram, m.reads / _depth(algorithm, m.sizes)),
            write_tree=tree(dram, m.writes),
            times=times,
        )

    def launched(self, sizes: Sizes, published: bool = False) -> np.ndarray:
        """Return blocks (rows,) by the tile's rule, or else from the measured blocks per output element."""
        blocks = launched_blocks(self.algorithm, self.tile, sizes, published).astype(np.float64)
        counted = np.ceil(self.blocks_per_output * sizes.batch * sizes.out_width**2 * sizes.outputs)
        return np.where(np.isnan(blocks), np.maximum(counted, 1), blocks)

    def bound(self, sizes: Sizes, blocks: np.ndarray) -> np.ndarray:
        """Return the class (rows,) by the tree, 0 … 2 as in `physics.kernel_class`."""
        inputs = np.column_stack([tree_inputs(sizes, self.algorithm == GEMM_P), blocks])
        return self.class_tree.predict(inputs).astype(np.int64)

    def predict_us(self, sizes: Sizes, blocks: np.ndarray) -> np.ndarray:
        """Return the main kernel's time in µs (rows,) with so many ``blocks``."""
        bound = self.bound(sizes, blocks)
        dram = _dram_inputs(self.algorithm, sizes, blocks, clamp=self.algorithm == GEMM_P)
        kernels = MeasuredKernels(
            sizes,
            blocks,
            b_max=np.full(len(blocks), self.b_max),
            instructions=self.instructions.predict(physics.instruction_terms(self.algorithm, sizes)),
            reads=self.read_tree.predict(dram) * _depth(self.algorithm, sizes),
            writes=self.write_tree.predict(dram),
            bound=bound,
            time_us=np.empty(len(blocks)),
        )
        for form in np.unique(bound):
            members = bound == form
            kernels.time_us[members] = self.times[int(form)].predict(_time_terms(kernels, members, int(form)))
        return kernels.time_us


def _time_terms(m: MeasuredKernels, rows: np.ndarray, bound: int) -> physics.Terms:
    """Return the terms of the class's time form for the chosen rows."""
    b_max, instructions, reads, writes = (a[rows] for a in (m.b_max, m.instructions, m.reads, m.writes))
    w = physics.waves(m.blocks[rows], b_max)
    return physics.time_terms(bound, w, b_max, instructions=instructions, reads=reads, writes=writes)


def _depth(algorithm: str, s: Sizes) -> np.ndarray:
    """Return the unit of reads per block: k²·C, for Winograd C."""
    return s.channels if physics.is_winograd(algorithm) else s.filter_width**2 * s.channels


def _dram_inputs(algorithm: str, s: Sizes, blocks: np.ndarray, clamp: bool) -> np.ndarray:
    """Return the inputs of the DRAM trees. GEMM family: sizes, blocks, k²C, k²CK, O²k²C. Winograd: sizes."""
    columns = tree_inputs(s, clamp)
    if physics.is_winograd(algorithm):
        return columns
    depth = _depth(algorithm, s)
    return np.column_stack([columns, blocks, depth, depth * columns[:, 2], depth * s.out_width**2])


COUNTED_ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "WINOGRAD", "WINOGRAD_NONFUSED")
GEMM, NONFUSED = "GEMM", "WINOGRAD_NONFUSED"


class AlgorithmFit(Struct, frozen=True, rename={"predictor": "chooser"}):
    """The fits of one algorithm on one device.

    Attributes
    ----------
    algorithm
        Name of the algorithm.
    predictor
        Predictor of the tile. Bundles store it as ``chooser``.
    variants
        Variant's key → the fit of its main kernel.
    extras
        Variant's key → the fit of its pre and post kernels. GEMM has one im2col fit for all tiles.
    """

    algorithm: str
    predictor: TilePredictor
    variants: Mapping[str, VariantFit]
    extras: Mapping[str, FormFit]

    @classmethod
    def fit(
        cls, algorithm: str, m: MeasuredKernels, tiles: np.ndarray, extra_us: np.ndarray, seed: int, evaluations: int
    ) -> "AlgorithmFit":
        """Fit on measured rows: ``tiles`` (rows,) names, ``extra_us`` (rows,) time of the other kernels, 0 if none."""
        predictor = TilePredictor.fit(algorithm, m.sizes, tiles, seed=seed, evaluations=evaluations)
        keys = _variant_keys(algorithm, tiles, m.sizes)
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
                extras[str(key)] = FormFit.of(physics.extra_terms(algorithm, m.sizes.take(members)), extra_us[members])
        return cls(algorithm, predictor, variants, extras)

    def predict_us(self, sizes: Sizes, published: bool = False) -> np.ndarray:
        """Return times in µs (rows,) of all kernels; NaN if training had no such variant.

        The variant is predicted, and its blocks follow from the sizes. If ``published``, the original's rule gives the
        blocks.
        """
        time_us = np.full(len(sizes.batch), np.nan)
        for variant, key, members in self._parts(self._keys(sizes)):
            part = sizes.take(members)
            time_us[members] = variant.predict_us(part, variant.launched(part, published)) + self._extra_us(key, part)
        return time_us

    def main_kernel_us(self, sizes: Sizes, tiles: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Return times in µs (rows,) of main kernels with known ``tiles`` and ``blocks``, as in Test-set-I."""
        time_us = np.full(len(sizes.batch), np.nan)
        for variant, _, members in self._parts(_variant_keys(self.algorithm, tiles, sizes)):
            time_us[members] = variant.predict_us(sizes.take(members), blocks[members])
        return time_us

    def bound(self, sizes: Sizes) -> np.ndarray:
        """Return classes (rows,) of the main kernels, 0 … 2 as in `physics.kernel_class`; −1 for an unknown variant."""
        bound = np.full(len(sizes.batch), -1)
        for variant, _, members in self._parts(self._keys(sizes)):
            part = sizes.take(members)
            bound[members] = variant.bound(part, variant.launched(part))
        return bound

    def _parts(self, keys: np.ndarray) -> Iterator[tuple[VariantFit, str, np.ndarray]]:
        """Yield (variant, its key, positions) of each fitted variant among the ``keys`` (rows,)."""
        for key in np.unique(keys):
            if key in self.variants:
                yield self.variants[key], str(key), np.flatnonzero(keys == key)

    def _extra_us(self, key: str, sizes: Sizes) -> np.ndarray:
        """Return the time of the pre and post kernels (rows,), 0 if they were not measured."""
        fit = self.extras.get("" if self.algorithm == GEMM else key)
        return fit.predict(physics.extra_terms(self.algorithm, sizes)) if fit else np.zeros(len(sizes.batch))

    def _keys(self, sizes: Sizes) -> np.ndarray:
        """Return the variant's key (rows,): the predicted tile, or else the nearest measured tile of that width."""
        chosen = self.predictor.choose(sizes)
        tiles = self.predictor.tiles
        keys = np.full(len(chosen), "", dtype=object)
        for position in np.unique(chosen):
            for width in np.unique(sizes.filter_width):
                by_distance = sorted(range(len(tiles)), key=lambda index: (abs(index - int(position)), index))
                nearest_keys = (_key(self.algorithm, tiles[index], int(width)) for index in by_distance)
                key = next((candidate for candidate in nearest_keys if candidate in self.variants), "")
                keys[(chosen == position) & (sizes.filter_width == width)] = key
        return keys


def _key(algorithm: str, tile: str, filter_width: int) -> str:
    """Return a variant's key: tile and filter width for non-fused Winograd, else the tile."""
    return f"{tile}/k{filter_width}" if algorithm == NONFUSED else str(tile)


def _variant_keys(algorithm: str, tiles: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return the variants' keys (rows,) of kernels with known ``tiles``."""
    return np.array([_key(algorithm, tile, k) for tile, k in zip(tiles, sizes.filter_width.tolist(), strict=True)])


BUCKETS = (16, 32, 64, 128, 256)
"""Widths of FFT's transforms. Each has its own fit."""
FFT_ALGORITHMS = ("FFT", "FFT_TILING")
ALL_WIDTHS = 0


@dataclass(frozen=True, slots=True)
class FftFit:
    """The fits of FFT or FFT_TILING.

    Attributes
    ----------
    algorithm
        Name of the algorithm.
    fits
        Width bucket → coefficients. FFT_TILING has one bucket.
    batch
        Batch of the training rows. SEER has no batch term, so times are proportional to the batch.
    class_tree
        FFT_TILING's tree of classes on C, K, O and k, if utilisations were counted.
    """

    algorithm: str
    fits: Mapping[int, FormFit]
    batch: Number
    class_tree: Tree | None

    @classmethod
    def fit(
        cls, algorithm: str, sizes: Sizes, time_us: np.ndarray, bound: np.ndarray, seed: int, evaluations: int
    ) -> "FftFit":
        """Fit on feasible ok rows (at least one). ``bound`` (rows,) are classes, NaN without counters."""
        batch = float(np.median(sizes.batch))
        bucket = buckets(algorithm, sizes)
        scaled = time_us * batch / sizes.batch
        fits = {}
        for width in np.unique(bucket):
            rows = bucket == width
            fits[int(width)] = FormFit.of(physics.fft_terms(algorithm, sizes.take(rows)), scaled[rows])
        counted = np.flatnonzero(np.isfinite(bound))
        tree = None
        if len(counted) and algorithm == "FFT_TILING":
            x = _fft_class_inputs(sizes.take(counted))
            tree = tuned_tree(x, bound[counted], classify=True, seed=seed, evaluations=evaluations)
        return cls(algorithm, fits, batch, tree)

    def bound(self, sizes: Sizes) -> np.ndarray:
        """Return classes (rows,), as `AlgorithmFit.bound`."""
        if self.class_tree is None:
            return np.full(len(sizes.batch), -1)
        return self.class_tree.predict(_fft_class_inputs(sizes))

    def predict_us(self, sizes: Sizes) -> np.ndarray:
        """Return times in µs (rows,); NaN in a width bucket without training rows."""
        bucket = buckets(self.algorithm, sizes)
        time_us = np.full(len(bucket), np.nan)
        for width, fit in self.fits.items():
            members = bucket == width
            time_us[members] = fit.predict(physics.fft_terms(self.algorithm, sizes.take(members)))
        return time_us * sizes.batch / self.batch


def _fft_class_inputs(s: Sizes) -> np.ndarray:
    return np.column_stack([s.channels, s.outputs, s.out_width, s.filter_width])


def buckets(algorithm: str, sizes: Sizes) -> np.ndarray:
    """Return the smallest of `BUCKETS` (rows,) that holds each width, or one bucket for FFT_TILING."""
    if algorithm == "FFT_TILING":
        return np.full(len(sizes.width), ALL_WIDTHS)
    return np.array(BUCKETS)[np.searchsorted(BUCKETS, sizes.width).clip(max=len(BUCKETS) - 1)]
