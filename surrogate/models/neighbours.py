"""What measured neighbours make of a time that boosted trees predict: by NumPy alone, one problem or a table alike.

Beside problems that were measured with a candidate on a GPU, times lie near an interpolation along the family's lines
(`surrogate.models.grid`), which trees of their own correct. The answer is a weighted mean of both models in log time;
the farther the neighbours, the less of the interpolation it holds, and none is left a few doublings away. At a measured
problem the measured time is the answer, unless `surrogate.models.interpolated` left it out as a spike.
"""

from collections.abc import Callable
from itertools import product

import numpy as np

from surrogate.features.families import Family
from surrogate.models.grid import MeasuredRows

SHARE = 0.7
"""Of the corrected interpolation in the mean, where neighbours are near."""
NEAR = 1.0
FAR = 3.0
"""Gaps in doublings up to which that share is whole, and from which on it is nothing."""

Terms = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(rows as asked, rows with other sizes, those sizes) → the trees' input and log(time / base) of the terms for all."""
Residual = Callable[[np.ndarray], np.ndarray]
"""(rows, columns) the terms' input with `line_columns` → (rows,) what to add to the interpolation."""


def line_columns(measured: MeasuredRows, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the residual's trees see beside the terms (rows, 1 + 2 · lines), the interpolation (rows,), the nearest gap.

    The columns are the interpolation, and of every line its difference from that and its gap. The interpolation is the
    lines' mean, weighed by 1 / gap²; NaN where no line has a neighbour. ``keys`` (rows, lines).
    """
    values, gaps = measured.between(keys)
    has_value = np.isfinite(values)
    # A line whose neighbours are near says more than one whose neighbours are far; one without any says nothing.
    weight = np.where(has_value, 1.0 / np.maximum(gaps, 1e-3) ** 2, 0.0)
    with np.errstate(invalid="ignore"):
        start = (np.where(has_value, values, 0.0) * weight).sum(axis=1) / weight.sum(axis=1)
    extra = np.column_stack([start, values - start[:, None], gaps]).astype(np.float32)
    return extra, start, np.fmin.reduce(gaps, axis=1)


def log_corrections(
    measured: MeasuredRows,
    family: Family,
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
    # 1. The problems that were measured around every row (one where its sizes are measured ones): the row that owns
    #    each, (corners,), and whether it has other sizes than the row.
    owner, corner, weight, whole = _corners(measured, family, codes=codes, sizes=sizes, library=library)
    other = (corner != sizes[owner]).any(axis=1)
    keys = measured.lines.keys(codes[owner], corner)
    values = measured.at(keys[:, 0])
    is_measured = ~np.isnan(values)
    # 2. A measured problem has its measured time.
    out = np.full(len(codes), np.nan)
    direct = is_measured & ~other
    out[owner[direct]] = values[direct]
    left = np.flatnonzero(np.isnan(out))
    if not len(left):
        return out
    # 3. The terms at the other problems, and at the corners between which they lie. ``at`` (corners,) is the position
    #    of each corner's among them: the rows as asked come first, then the corners of other sizes in order.
    design, log_terms = terms(left, owner[other], corner[other])
    term_row = np.zeros(len(codes), dtype=np.int64)
    term_row[left] = np.arange(len(left))
    at = np.where(other, len(left) - 1 + np.cumsum(other), term_row[owner])
    # 4. What the corners add to the terms: exact where measured, else by interpolation, where neighbours are near.
    added = np.where(is_measured, values - log_terms[at], 0.0)
    unknown = np.flatnonzero(~is_measured)
    if residual is not None and len(unknown):
        extra, start, gap = line_columns(measured, keys[unknown, 1:])
        share = np.nan_to_num(SHARE * np.clip((FAR - gap) / (FAR - NEAR), 0.0, 1.0))
        near = np.flatnonzero(share > 0)
        unknown = unknown[near]
        corrected = start[near] + residual(np.hstack([design[at[unknown]], extra[near]]))
        added[unknown] = share[near] * (corrected - log_terms[at[unknown]])
    # 5. Weights sum to 1, to less outside the range; those of corners that are no problems go to the others.
    total = np.bincount(owner, weight * added, len(codes))[left]
    used = np.bincount(owner, weight, len(codes))[left]
    mean = np.divide(total * whole[left], used, out=np.zeros(len(left)), where=used > 0)
    out[left] = log_terms[: len(left)] + mean
    return out


def _corners(
    measured: MeasuredRows, family: Family, codes: np.ndarray, sizes: np.ndarray, library: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The row (corners,), sizes (corners, sizes) and weight (corners,) of the measured sizes around every row.

    Last the sum of the weights (rows,) of all corners, those included whose sizes do not fit one another.
    """
    # 1. Which sizes lie off the measured values, in any row; where none does, every row is its own only corner.
    ticked = sizes[:, measured.ticked]
    low, high = ends = measured.ends(codes, sizes)
    off = np.flatnonzero(((low != ticked) | (high != ticked)).any(axis=0))
    count = len(codes)
    if not len(off):
        return np.arange(count), sizes, np.ones(count), np.ones(count)
    # 2. What either end of a size counts, in its logarithm. Outside the range both ends are the same one, which counts
    #    once, the less the farther away. ``ends`` and ``counts`` are (2, rows, sizes off).
    x = np.log2(np.maximum(ticked[:, off], 1))
    ends = np.stack(ends)[:, :, off]
    near, far = np.log2(np.maximum(ends, 1))
    inside = near < far
    share = np.divide(x - near, far - near, out=np.zeros(x.shape), where=inside)
    once = np.clip(1.0 - np.abs(x - near) / FAR, 0.0, 1.0)
    counts = np.stack([np.where(inside, 1.0 - share, once), share])
    # 3. All corners of every row: ``sides`` (corners of a row, sizes off) says which end each takes, ``corner``
    #    (corners of a row, rows, sizes) holds the sizes, and a corner weighs the product of its ends.
    sides = np.array(list(product((0, 1), repeat=len(off))))
    corner = np.repeat(sizes[None], len(sides), axis=0)
    weight = np.ones((len(sides), count))
    for column, size in enumerate(off.tolist()):
        corner[:, :, measured.ticked[size]] = ends[sides[:, column], :, column]
        weight *= counts[sides[:, column], :, column]
    # 4. Those that count, and whose sizes fit one another.
    side, owner = np.nonzero(weight)
    corners = corner[side, owner]
    fits = np.ones(len(owner), dtype=bool)
    for _, misfit, _ in family.geometry(dict(zip(family.size_names, corners.T, strict=True)), library[owner]):
        fits &= ~misfit
    return owner[fits], corners[fits], weight[side, owner][fits], weight.sum(axis=0)
