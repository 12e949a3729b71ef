"""What measured neighbours make of a time that boosted trees predict: by NumPy alone, one problem or a table alike.

Beside problems that were measured with a candidate on a GPU, times lie near an interpolation along the family's lines
(`surrogate.models.grid`), which trees of their own correct. The answer is a weighted mean of both models in log time;
the farther the neighbours, the less of the interpolation it holds, and none is left a few doublings away. At a measured
problem the measured time is the answer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from surrogate.features.families import Family
from surrogate.models.grid import Grid, Measured
from surrogate.models.trees import BoostedTimes, Trees

SHARE = 0.7
"""Of the corrected interpolation in the mean, where neighbours are near."""
NEAR, FAR = 1.0, 3.0
"""Gaps in doublings up to which that share is whole, and from which on it is nothing."""
TERMS, TREES, GRID, LABELS = "terms.", "residual.npz", "grid.", "labels.json"
"""The files: of the terms' model, the residual's trees, a GPU's measured times, and the candidates' codes."""

Terms = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(rows as asked, rows with other sizes, those sizes) → the trees' input and log(time / base) of the terms for all."""
Residual = Callable[[np.ndarray], np.ndarray]
"""(rows, columns) the terms' input with `line_columns` → (rows,) what to add to the interpolation."""


@dataclass(frozen=True)
class Neighbours:
    """All GPUs' measured times, and the residual's trees as stored (empty: none were fitted)."""

    grid: Grid
    stored: bytes = b""

    @cached_property
    def trees(self) -> Trees:
        """The residual's trees."""
        return Trees.from_bytes(self.stored)


def times_from_files(files: Mapping[str, bytes]) -> tuple[BoostedTimes, Neighbours]:
    """The terms' times, of the files of an interpolated model, and the same neighbours that these hold."""
    files_of = {
        start: {name.removeprefix(start): content for name, content in files.items() if name.startswith(start)}
        for start in (TERMS, GRID)
    }
    packed = {name.removesuffix(".parquet"): content for name, content in files_of[GRID].items()}
    facts = json.loads(files[LABELS])
    grid = Grid(facts["labels"], packed, tuple(facts["lines"]))
    near = Neighbours(grid, files.get(TREES, b""))
    return replace(BoostedTimes.from_files(files_of[TERMS]), neighbours=near), near


def line_columns(measured: Measured, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the residual's trees see beside the terms (rows, 1 + 2 · lines), the interpolation (rows,), the nearest gap.

    The columns are the interpolation, and of every line its difference from that and its gap. The interpolation is the
    lines' mean, weighed by 1 / gap²; NaN where no line has a neighbour. ``keys`` (rows, lines).
    """
    values, gaps = measured.between(keys)
    known = np.isfinite(values)
    weight = np.where(known, 1.0 / np.maximum(gaps, 1e-3) ** 2, 0.0)
    with np.errstate(invalid="ignore"):
        start = (np.where(known, values, 0.0) * weight).sum(axis=1) / weight.sum(axis=1)
    extra = np.column_stack([start, values - start[:, None], gaps]).astype(np.float32)
    return extra, start, np.fmin.reduce(gaps, axis=1)


def log_corrections(
    measured: Measured,
    kind: Family,
    codes: np.ndarray,
    sizes: np.ndarray,
    library: np.ndarray,
    terms: Terms,
    residual: Residual | None,
) -> np.ndarray:
    """(rows,) log(time / base) of candidates ``codes`` (rows,), all of them measured ones, at ``sizes`` (rows, sizes).

    A size between two measured ones takes the mean over both, each weighed by its nearness; outside the range that of
    the last one counts, and fades. ``library`` (rows,) decides which sizes fit one another.
    """
    owner, corner, weight, whole = _corners(measured, kind, codes, sizes, library)
    other = (corner != sizes[owner]).any(axis=1)
    keys = measured.lines.keys(codes[owner], corner)
    values = measured.at(keys[:, 0])
    is_measured = ~np.isnan(values)
    # 1. A measured problem has its measured time.
    out, direct = np.full(len(codes), np.nan), is_measured & ~other
    out[owner[direct]] = values[direct]
    left = np.flatnonzero(np.isnan(out))
    if not len(left):
        return out
    # 2. The terms at the other problems, and at the corners between which they lie.
    design, log_terms = terms(left, owner[other], corner[other])
    term_row = np.zeros(len(codes), dtype=np.int64)
    term_row[left] = np.arange(len(left))
    at = np.where(other, len(left) - 1 + np.cumsum(other), term_row[owner])
    # 3. What the corners add to the terms: exact where measured, else by interpolation, where neighbours are near.
    added = np.where(is_measured, values - log_terms[at], 0.0)
    unknown = np.flatnonzero(~is_measured)
    if residual is not None and len(unknown):
        extra, start, gap = line_columns(measured, keys[unknown, 1:])
        share = np.nan_to_num(SHARE * np.clip((FAR - gap) / (FAR - NEAR), 0.0, 1.0))
        near = np.flatnonzero(share > 0)
        unknown = unknown[near]
        corrected = start[near] + residual(np.hstack([design[at[unknown]], extra[near]]))
        added[unknown] = share[near] * (corrected - log_terms[at[unknown]])
    # 4. Weights sum to 1, to less outside the range; those of corners that are no problems go to the others.
    total, used = (np.bincount(owner, part, len(codes))[left] for part in (weight * added, weight))
    mean = np.divide(total * whole[left], used, out=np.zeros(len(left)), where=used > 0)
    out[left] = log_terms[: len(left)] + mean
    return out


def _corners(
    measured: Measured, kind: Family, codes: np.ndarray, sizes: np.ndarray, library: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The row (corners,), sizes (corners, sizes) and weight (corners,) of the measured sizes around every row.

    Last the sum of the weights (rows,) of all corners, those included whose sizes do not fit one another.
    """
    ticked = sizes[:, measured.ticked]
    low, high = ends = measured.ends(codes, sizes)
    off = np.flatnonzero(((low != ticked) | (high != ticked)).any(axis=0))
    count = len(codes)
    if not len(off):
        return np.arange(count), sizes, np.ones(count), np.ones(count)
    # 1. What either end of a size counts, in its logarithm. Outside the range both ends are the same one, which counts
    #    once, the less the farther away.
    x, ends = np.log2(np.maximum(ticked[:, off], 1)), np.stack(ends)[:, :, off]
    near, far = np.log2(np.maximum(ends, 1))
    inside = near < far
    share = np.divide(x - near, far - near, out=np.zeros(x.shape), where=inside)
    once = np.clip(1.0 - np.abs(x - near) / FAR, 0.0, 1.0)
    counts = np.stack([np.where(inside, 1.0 - share, once), share])
    # 2. All corners of every row, and their weights.
    sides = np.array(list(product((0, 1), repeat=len(off))))
    corner, weight = np.repeat(sizes[None], len(sides), axis=0), np.ones((len(sides), count))
    for column, size in enumerate(off.tolist()):
        corner[:, :, measured.ticked[size]] = ends[sides[:, column], :, column]
        weight *= counts[sides[:, column], :, column]
    # 3. Those that count, and whose sizes fit one another.
    side, owner = np.nonzero(weight)
    corners = corner[side, owner]
    fits = np.ones(len(owner), dtype=bool)
    for _, misfit, _ in kind.geometry(dict(zip(kind.size_names, corners.T, strict=True)), library[owner]):
        fits &= ~misfit
    return owner[fits], corners[fits], weight[side, owner][fits], weight.sum(axis=0)
