"""`MeasuredTimes`: measured times, and their positions along lines through the sizes.

Along a line of a family, one size grows and the others stay, or several sizes grow by one factor. Between two measured
problems of a line, the log of time over base time is nearly linear in the log of that factor. The rows of each GPU are
packed apart, so that a query about one GPU reads no other. Queries need NumPy and pyarrow; only fitting needs pandas.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from surrogate.features.caches import BoundedCache
from surrogate.features.errors import InputError
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
