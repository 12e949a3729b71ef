"""`MeasuredTimes`: measured times, their positions along lines through the sizes, and the times of problems near them.

Near measured problems of a candidate on a GPU, times are close to an interpolation along the family's lines, which
further trees correct. `log_corrections` returns a weighted mean of both models in log time. The farther the neighbours,
the smaller is the share of the interpolation. A few doublings away it is 0. At a measured problem the answer is the
measured time, unless `surrogate.models.interpolated` dropped it as a spike.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, Self

import numpy as np

from surrogate.features import BoundedCache, InputError
from surrogate.features.families import Family
from surrogate.models.json_types import input_error_if_damaged

STEP = 0.005
"""Resolution of stored log times: half a percent, less than the noise of any table."""
POSITION_BITS = 16
POSITION_SCALE = 1000.0
"""Positions on a line are stored in thousandths of a doubling, in a key's lowest bits, below the line's hash."""
END_GAP = 1.0
"""Doublings that are added to the gap of a neighbour on one side only."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
SIZE_BITS = 44
MAX_SIZE = (1 << SIZE_BITS) - 1
"""The largest size in `_grid_values`. Larger sizes count as the largest."""
CHUNK_ROWS = 65_536
MAX_ROWS = 1 << 20
"""Maximum rows of one GPU in a small file. Real files take 1.2 bytes per row."""
MAX_OPENED = 3
"""Maximum number of GPUs whose rows are kept unpacked: a GPU and its donors."""
VALUE = "value"
CANDIDATE = "candidate"
"""Columns of a stored part, besides the sizes."""


class Label(NamedTuple):
    """A candidate with its setting. Only rows with the same label are neighbours."""

    setting: tuple[str, ...]
    candidate: str

    @classmethod
    def parse(cls, text: str, candidate_parts: int) -> Self:
        """Return the label of a text from `json_types.key_text`. A candidate's name has ``candidate_parts`` parts."""
        parts = text.split("|")
        return cls(tuple(parts[:-candidate_parts]), "|".join(parts[-candidate_parts:]))


class Lines(NamedTuple):
    """Directions through the sizes: along a direction, each size grows as factor^exponent.

    The first direction is empty, so that each problem is a line of its own.

    Attributes
    ----------
    exponents
        (directions, sizes) exponents.
    leading
        (directions,) position of the size that grows as the factor itself.
    """

    exponents: np.ndarray
    leading: np.ndarray

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, int]], names: Sequence[str]) -> "Lines":
        """Return the lines from mappings size → exponent, with the leading size first in each."""
        exponents = [[line.get(name, 0) for name in names] for line in ({}, *lines)]
        return cls(np.array(exponents), np.array([0, *(names.index(next(iter(line))) for line in lines)]))

    def keys(self, codes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return a key per row and direction, (rows, directions) uint64.

        The upper 48 bits are a hash of the line, the lower 16 the position on it. ``codes`` (rows,) are of the
        candidates, ``sizes`` (rows, sizes).
        """
        # 1. The position of each row on each line: the log of its leading size, (rows, directions). It is 0 in the
        #    empty direction.
        logs = np.log2(np.maximum(sizes, 1))
        leading_log = logs[:, self.leading]
        leading_log[:, 0] = 0.0
        # 2. The invariants of the line, (rows, directions, sizes). For a growing size this is the log of its value at
        #    the line's beginning, to 1/4096 of a doubling. For any other it is the size itself.
        moved = np.round((logs[:, None] - self.exponents * leading_log[:, :, None]) * 4096)
        fixed = np.where(self.exponents != 0, moved, sizes[:, None]).astype(np.int64).view(np.uint64)
        # 3. Hash the candidate, the direction and the invariants. The hash is equal for all rows of one line.
        line = codes[:, None] * len(self.leading) + np.arange(1, len(self.leading) + 1)
        key = line.astype(np.uint64) * MULTIPLIER
        for position in range(sizes.shape[1]):
            key = (key ^ fixed[:, :, position]) * MULTIPLIER
            key ^= key >> np.uint64(29)
        # 4. The position replaces the hash's lowest bits, so that the keys of a line are adjacent and in order.
        position = np.round(leading_log * POSITION_SCALE).astype(np.uint64)
        return (key >> np.uint64(POSITION_BITS) << np.uint64(POSITION_BITS)) | position


@dataclass(frozen=True)
class MeasuredRows:
    """Measured values of some candidates, each on one GPU, that are found by the keys of `Lines`.

    Attributes
    ----------
    codes
        Codes of the candidates.
    lines
        The lines.
    keys, values
        (entries,) keys of all rows and directions, ascending, and their values.
    grid_sizes
        Positions of the sizes that tables measure at a few values only.
    grid_values
        These values, ascending (see `_grid_values`).
    """

    codes: np.ndarray
    lines: Lines
    keys: np.ndarray
    values: np.ndarray
    grid_sizes: list[int]
    grid_values: np.ndarray

    def at(self, keys: np.ndarray) -> np.ndarray:
        """Return the measured value (rows,) with each key, or NaN."""
        position = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[position] == keys, self.values[position], np.nan)

    def between(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the interpolated value between the nearest other rows on the line, and the gap in doublings.

        Both have the shape of ``keys``. The gap is the harmonic mean of both distances. If no other row on the line was
        measured, both are NaN.
        """
        shift = np.uint64(POSITION_BITS)
        last = len(self.keys) - 1
        line = keys >> shift
        x = positions(keys)
        # 1. The next entries below and above, without an entry at the same position. They count if they lie on the
        #    same line and inside the array.
        before = np.searchsorted(self.keys, keys) - 1
        after = np.searchsorted(self.keys, keys, side="right")
        low = np.maximum(before, 0)
        high = np.minimum(after, last)
        has_low = (before >= 0) & (self.keys[low] >> shift == line)
        has_high = (after <= last) & (self.keys[high] >> shift == line)
        # 2. Distances to both in doublings, and the linear interpolation between them.
        down = np.where(has_low, x - positions(self.keys[low]), np.nan)
        up = np.where(has_high, positions(self.keys[high]) - x, np.nan)
        with np.errstate(invalid="ignore"):
            inner = (self.values[low] * up + self.values[high] * down) / (up + down)
            gap = 2 * up * down / (up + down)
        # 3. If there is a neighbour on one side only, its value is taken, with a larger gap.
        one_sided = np.where(has_low, self.values[low], np.where(has_high, self.values[high], np.nan))
        both = has_low & has_high
        return np.where(both, inner, one_sided), np.where(both, gap, np.fmin(down, up) + END_GAP)

    def ends(self, codes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next smaller and the next larger measured grid values, (rows, grid sizes) each.

        Outside the measured range, both are the nearest value.
        """
        # Find the first value that is not smaller, and the one before it. A side that belongs to another candidate or
        # column has no measured value: then the other side is used for both.
        queries = _grid_values(codes, sizes[:, self.grid_sizes])
        above = np.searchsorted(self.grid_values, queries)
        high = self.grid_values[np.minimum(above, len(self.grid_values) - 1)]
        low = np.where(high == queries, high, self.grid_values[np.maximum(above - 1, 0)])
        group = queries >> SIZE_BITS
        minimum = np.where(low >> SIZE_BITS == group, low, high)
        largest = np.where(high >> SIZE_BITS == group, high, low)
        return minimum & MAX_SIZE, largest & MAX_SIZE


@dataclass(frozen=True)
class GpuTimes:
    """The rows of one GPU, sorted by code and sizes.

    Attributes
    ----------
    codes
        (rows,) codes of candidate and setting.
    sizes
        (rows, sizes).
    values
        (rows,) log(time / base).
    """

    codes: np.ndarray
    sizes: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, sizes: np.ndarray, values: np.ndarray) -> Self:
        """Return the part with rows of any order. Equal rows are replaced by their median."""
        # 1. Sort by codes, sizes, values (the last key of `lexsort` sorts first), so that equal rows are adjacent.
        steps = np.round(values / STEP)
        order = np.lexsort([steps, *sizes.T[::-1], codes])
        steps = steps[order]
        keys = np.column_stack([codes, sizes])[order]
        # 2. The median of each run of equal rows is the mean of its two middle values.
        starts = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))
        last = np.append(starts[1:], len(keys)) - 1 - starts
        median = (steps[starts + last // 2] + steps[starts + (last + 1) // 2]) / 2
        return cls(keys[starts, 0], keys[starts, 1:], median.astype(np.float32) * STEP)

    def keys(self, lines: Lines) -> np.ndarray:
        """Return `Lines.keys` of all rows, (rows, directions)."""
        starts = range(0, len(self.codes), CHUNK_ROWS)
        parts = [lines.keys(self.codes[i : i + CHUNK_ROWS], self.sizes[i : i + CHUNK_ROWS]) for i in starts]
        return np.concatenate(parts)

    def measured(self, lines: Lines, grid_sizes: list[int]) -> MeasuredRows:
        """Return the rows along ``lines``, with ``grid_sizes`` as in `MeasuredRows`."""
        # Sort the keys of all rows and directions. A key's row is its position divided by the number of directions.
        keys = self.keys(lines).ravel()
        order = np.argsort(keys, kind="stable")
        values = self.values[order // len(lines.leading)]
        grid_values = np.unique(_grid_values(self.codes, self.sizes[:, grid_sizes]))
        return MeasuredRows(np.unique(self.codes), lines, keys[order], values, grid_sizes, grid_values)

    def to_bytes(self, names: Sequence[str]) -> bytes:
        """Return a parquet file. ``names`` are the names of the sizes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {CANDIDATE: self.codes.astype(np.int16)}
        columns |= {name: size.astype(np.int32) for name, size in zip(names, self.sizes.T, strict=True)}
        columns[VALUE] = np.round(self.values / STEP).astype(np.int16)
        out = io.BytesIO()
        pq.write_table(pa.table(columns), out, compression="zstd", compression_level=19)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, names: Sequence[str]) -> Self:
        """Return the part from the output of `to_bytes`.

        Raise `InputError` for other columns, or if there are far more rows than bytes.
        """
        import pyarrow.parquet as pq

        file = pq.ParquetFile(io.BytesIO(content))
        kinds = ["int16", *["int32"] * len(names), "int16"]
        columns = [(column.name, str(column.type)) for column in file.schema_arrow]
        if columns != list(zip((CANDIDATE, *names, VALUE), kinds, strict=True)):
            raise InputError("its columns are not the candidate, the family's sizes and the value")
        if not 0 < file.metadata.num_rows <= max(MAX_ROWS, len(content)):
            raise InputError(f"it declares {file.metadata.num_rows:,} rows")
        table = file.read(use_threads=False)
        # Arrow's own `to_numpy` would import pandas.
        arrays = [np.concatenate([np.from_dlpack(part) for part in column.chunks]) for column in table.columns]
        sizes = np.stack(arrays[1:-1], axis=1).astype(np.int64)
        if arrays[0].min() < 0 or sizes.min() < 0:
            raise InputError("a code or a size is negative")
        return cls(arrays[0].astype(np.int64), sizes, arrays[-1].astype(np.float32) * STEP)


@dataclass(frozen=True)
class MeasuredTimes:
    """The rows of all GPUs.

    Attributes
    ----------
    labels
        Label → its code.
    packed
        GPU → the bytes of its `GpuTimes`.
    lines
        The family's lines: mappings size → exponent.
    """

    labels: Mapping[Label, int]
    packed: Mapping[str, bytes]
    lines: tuple[Mapping[str, int], ...]
    _opened: BoundedCache[str, GpuTimes] = field(
        default_factory=lambda: BoundedCache(MAX_OPENED), repr=False, compare=False
    )

    def codes(self, values: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        """Return the candidates' codes in a setting with these values; −1 for an unmeasured candidate."""
        codes = [self.labels.get(Label(tuple(values), candidate), -1) for candidate in candidates]
        return np.array(codes, dtype=np.int64)

    def rows(self, family: Family, gpu: str) -> GpuTimes:
        """Return all rows of a GPU of ``packed``. Raise `InputError` if the stored rows are damaged."""
        if (part := self._opened.get(gpu)) is None:
            with input_error_if_damaged(f"the measured times of {gpu}"):
                part = self._opened.put(gpu, GpuTimes.from_bytes(self.packed[gpu], family.size_names))
        return part

    def measured(self, family: Family, codes_by_gpu: Mapping[str, np.ndarray | None]) -> MeasuredRows:
        """Return the rows of each GPU in ``codes_by_gpu`` with candidates of these codes (None: all candidates)."""
        parts = []
        for gpu, codes in codes_by_gpu.items():
            part = self.rows(family, gpu)
            members = slice(None) if codes is None else np.flatnonzero(np.isin(part.codes, codes))
            parts.append((part.codes[members], part.sizes[members], part.values[members]))
        grid_sizes = [family.size_names.index(name) for name in family.grid_sizes]
        joined = GpuTimes(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        return joined.measured(Lines.of(self.lines, family.size_names), grid_sizes)


def distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first position (distinct,) of each distinct row, and its number (rows,); ``rows`` is (rows, columns).

    Sorting a hash of the rows is ten times as fast as sorting the rows. Rows with a common hash are compared.
    """
    columns = rows.astype(np.int64, copy=False).view(np.uint64)
    key = np.zeros(len(rows), dtype=np.uint64)
    for column in columns.T:
        key = (key ^ column) * MULTIPLIER
        key ^= key >> np.uint64(29)
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    if (rows[first[number]] != rows).any():
        _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, number.ravel()


def positions(keys: np.ndarray) -> np.ndarray:
    """Return the positions of keys (see `Lines.keys`) on their lines, in doublings."""
    return (keys & np.uint64((1 << POSITION_BITS) - 1)).astype(np.float64) / POSITION_SCALE


def _grid_values(codes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return one number per size, (rows, grid sizes), in the order of codes, then columns, then sizes."""
    group = codes[:, None] * sizes.shape[1] + np.arange(sizes.shape[1])
    return (group << SIZE_BITS) | np.minimum(sizes, MAX_SIZE)


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
