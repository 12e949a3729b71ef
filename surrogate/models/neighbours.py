"""Combine the times of boosted trees with measured neighbours, for one problem or a table, with NumPy only.

Near measured problems of a candidate on a GPU, times are close to an interpolation along the family's lines
(`surrogate.models.grid`), which further trees correct. The answer is a weighted mean of both models in log time. The
farther the neighbours, the smaller is the share of the interpolation. A few doublings away it is 0. At a measured
problem the answer is the measured time, unless `surrogate.models.interpolated` dropped it as a spike.
"""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np

from surrogate.features.families import Family
from surrogate.models.grid import MeasuredRows, distinct_rows

MAX_SHARE = 0.7
"""Share of the corrected interpolation in the mean if neighbours are near."""
NEAR = 1.0
FAR = 3.0
"""Gaps in doublings: the share is full up to `NEAR` and 0 from `FAR`."""

Terms = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(rows to answer, rows with other sizes, these sizes) → the trees' input and log(time / base) of the terms model for
all.
"""
Residual = Callable[[np.ndarray], np.ndarray]
"""(rows, columns) the terms model's input with `line_columns` → (rows,) correction of the interpolation."""


class MeasuredCandidates(NamedTuple):
    """Columns (rows,): the code of each row's candidate, the name of its library, and a number.

    Rows of one number have the same code, library and version. Their libraries decide which sizes fit one another.
    """

    codes: np.ndarray
    library: np.ndarray
    number: np.ndarray


def line_columns(measured: MeasuredRows, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the further columns of the residual's trees, the interpolation (rows,), and the smallest gap (rows,).

    The columns (rows, 1 + 2 · lines) are the interpolation and, for every line, its difference from the interpolation
    and its gap. The interpolation is the mean over the lines with weights 1 / gap², or NaN without a neighbour.
    ``keys`` has the shape (rows, lines).
    """
    values, gaps = measured.between(keys)
    has_value = np.isfinite(values)
    # Lines with nearer neighbours have larger weights. A line without neighbours has weight 0.
    weight = np.where(has_value, 1.0 / np.maximum(gaps, 1e-3) ** 2, 0.0)
    with np.errstate(invalid="ignore"):
        start = (np.where(has_value, values, 0.0) * weight).sum(axis=1) / weight.sum(axis=1)
    extra = np.column_stack([start, values - start[:, None], gaps]).astype(np.float32)
    return extra, start, np.fmin.reduce(gaps, axis=1)


def log_corrections(
    measured: MeasuredRows,
    family: Family,
    candidates: MeasuredCandidates,
    sizes: np.ndarray,
    terms: Terms,
    residual: Residual | None,
) -> np.ndarray:
    """Return log(time / base) (rows,) of measured candidates.

    A size between two measured values gets the weighted mean over both; the nearer one weighs more. Outside the range
    the last measured value counts, with a weight that falls with the distance.

    Parameters
    ----------
    measured
        The measured rows.
    family
        The family.
    candidates
        The candidates. All of them were measured.
    sizes
        (rows, sizes).
    terms
        The terms model.
    residual
        The trees that correct the interpolation, or None.
    """
    # 1. The measured corners around every row (one corner if its sizes are measured): the row of each, (corners,), and
    #    whether its sizes differ from the row's. Corners that rows share are computed once: ``first`` (distinct,) is
    #    the position of each distinct corner, ``number`` (corners,) the distinct corner of every corner.
    owner, corner, weight, weight_sum = _corners(measured, family, candidates, sizes)
    first, number = distinct_rows(np.column_stack([candidates.number[owner], corner]))
    owner_of, sizes_of = owner[first], corner[first]
    is_moved = (corner != sizes[owner]).any(axis=1)
    keys = measured.lines.keys(candidates.codes[owner_of], sizes_of)
    values = measured.at(keys[:, 0])
    is_measured = ~np.isnan(values)
    # 2. A measured problem gets its measured time.
    count = len(sizes)
    out = np.full(count, np.nan)
    direct = np.flatnonzero(is_measured[number] & ~is_moved)
    out[owner[direct]] = values[number[direct]]
    open_rows = np.flatnonzero(np.isnan(out))
    if not len(open_rows):
        return out
    # 3. Evaluate the terms model for the open rows and for their corners. ``term_index`` (distinct,) is the position of
    #    each corner in the result: the open rows come first, then the corners that are not an open row.
    term_index = np.full(len(first), -1)
    is_open = np.isnan(out)[owner] & ~is_moved
    row_position = np.cumsum(np.isnan(out)) - 1
    term_index[number[is_open]] = row_position[owner[is_open]]
    other = np.flatnonzero(term_index < 0)
    term_index[other] = len(open_rows) + np.arange(len(other))
    design, log_terms = terms(open_rows, owner_of[other], sizes_of[other])
    # 4. The correction of the terms model at each corner: exact if measured, else interpolated if neighbours are near.
    added = np.where(is_measured, values - log_terms[term_index], 0.0)
    unknown = np.flatnonzero(~is_measured)
    if residual is not None and len(unknown):
        extra, start, gap = line_columns(measured, keys[unknown, 1:])
        share = np.nan_to_num(MAX_SHARE * np.clip((FAR - gap) / (FAR - NEAR), 0.0, 1.0))
        has_share = np.flatnonzero(share > 0)
        unknown = unknown[has_share]
        corrected = start[has_share] + residual(np.hstack([design[term_index[unknown]], extra[has_share]]))
        added[unknown] = share[has_share] * (corrected - log_terms[term_index[unknown]])
    # 5. Average over the corners. Weights of invalid corners are given to the others. Outside the range, weights sum
    #    to less than 1.
    total = np.bincount(owner, weight * added[number], count)[open_rows]
    used = np.bincount(owner, weight, count)[open_rows]
    mean = np.divide(total * weight_sum[open_rows], used, out=np.zeros(len(open_rows)), where=used > 0)
    out[open_rows] = log_terms[: len(open_rows)] + mean
    return out


def _corners(
    measured: MeasuredRows, family: Family, candidates: MeasuredCandidates, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the measured corners around every row: row (corners,), sizes (corners, sizes), weight (corners,).

    The last result (rows,) sums the weights of all corners, also of corners whose sizes do not fit one another.
    """
    # 1. Sizes that differ from the measured values in some row. If there are none, every row is its only corner.
    queries = sizes[:, measured.grid_sizes]
    low, high = ends = measured.ends(candidates.codes, sizes)
    free = np.flatnonzero(((low != queries) | (high != queries)).any(axis=0))
    count = len(sizes)
    if not len(free):
        return np.arange(count), sizes, np.ones(count), np.ones(count)
    # 2. The weight of either end of a size, in its logarithm. Outside the range both ends are equal: the value counts
    #    once, with a weight that falls with the distance. ``ends`` and ``counts`` are (2, rows, free sizes).
    x = np.log2(np.maximum(queries[:, free], 1))
    ends = np.stack(ends)[:, :, free]
    log_low, log_high = np.log2(np.maximum(ends, 1))
    inside = log_low < log_high
    share = np.divide(x - log_low, log_high - log_low, out=np.zeros(x.shape), where=inside)
    outside_share = np.clip(1.0 - np.abs(x - log_low) / FAR, 0.0, 1.0)
    counts = np.stack([np.where(inside, 1.0 - share, outside_share), share])
    # 3. All corners of every row. ``sides`` (corners per row, free sizes) selects the ends, ``corner`` (corners per
    #    row, rows, sizes) holds the sizes. A corner's weight is the product of the weights of its ends.
    sides = np.array(list(product((0, 1), repeat=len(free))))
    corner = np.repeat(sizes[None], len(sides), axis=0)
    weight = np.ones((len(sides), count))
    for column, size in enumerate(free.tolist()):
        corner[:, :, measured.grid_sizes[size]] = ends[sides[:, column], :, column]
        weight *= counts[sides[:, column], :, column]
    # 4. Keep corners with a positive weight if their sizes fit one another.
    side, owner = np.nonzero(weight)
    corners = corner[side, owner]
    fits = np.ones(len(owner), dtype=bool)
    for _, misfit, _ in family.misfits(dict(zip(family.size_names, corners.T, strict=True)), candidates.library[owner]):
        fits &= ~misfit
    return owner[fits], corners[fits], weight[side, owner][fits], weight.sum(axis=0)
