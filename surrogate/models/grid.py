"""`Grid`: measured times as they stand, and where they lie along lines through the sizes.

A line of a family goes through problems whose sizes differ in one way alone: one size grows, or several by one factor
while their ratios stay. Between two measured problems of a line the log of time over base time is close to linear in
the log of that factor. Each GPU's rows are packed by themselves, so that a question about one GPU reads no other.
Questions need NumPy and pyarrow alone; only fitting needs pandas.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models.json_types import input_error_if_damaged

STEP = 0.005
"""Log times are kept in steps of half a percent: less than any table's noise."""
POSITION_BITS = 16
POSITION_SCALE = 1000.0
"""Position on a line in thousandths of a doubling, in a key's lowest bits; the line's own hash stands above them."""
END_GAP = 1.0
"""Doublings that a one-sided neighbour counts as farther away than it is."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
SIZE_BITS = 44
MAX_SIZE = (1 << SIZE_BITS) - 1
"""Bits of a size in `_ticks`; larger sizes count as the largest."""
CHUNK_ROWS = 65_536
MAX_ROWS = 1 << 20
"""Of one GPU, however small their file is; real ones take 1.2 bytes a row."""
VALUE = "value"
CANDIDATE = "candidate"
"""The columns of a stored part beside the sizes."""


class Label(NamedTuple):
    """A candidate with its setting: rows of other labels are no neighbours."""

    setting: tuple[str, ...]
    candidate: str

    @classmethod
    def parse(cls, text: str, candidate_parts: int) -> Self:
        """Of what `surrogate.models.json_types.joined` gave, and the number of parts of the candidate's name itself."""
        parts = text.split("|")
        return cls(tuple(parts[:-candidate_parts]), "|".join(parts[-candidate_parts:]))


class Lines(NamedTuple):
    """Directions through the sizes: along one they grow as factor^exponent, the others stay.

    ``exponents`` (directions, sizes); ``leading`` (directions,) the size that grows as the factor itself. The first
    direction is none, so that each problem is a line of its own.
    """

    exponents: np.ndarray
    leading: np.ndarray

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, int]], names: Sequence[str]) -> "Lines":
        """Of size → exponent for every direction, the leading size first."""
        exponents = [[line.get(name, 0) for name in names] for line in ({}, *lines)]
        return cls(np.array(exponents), np.array([0, *(names.index(next(iter(line))) for line in lines)]))

    def keys(self, codes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """(rows, directions) uint64: a hash of the line in the upper 48 bits, and the position on it in the lower 16.

        Of the codes of candidates (rows,) and ``sizes`` (rows, sizes).
        """
        # 1. Where each row stands on each line: the log of the size that leads there, (rows, directions). Along no
        #    direction nothing moves.
        logs = np.log2(np.maximum(sizes, 1))
        leading_log = logs[:, self.leading]
        leading_log[:, 0] = 0.0
        # 2. What stays the same along the line, (rows, directions, sizes): of a size that grows, the log of what it
        #    would be at the line's beginning, to 1/4096 of a doubling; of any other, the size itself.
        moved = np.round((logs[:, None] - self.exponents * leading_log[:, :, None]) * 4096)
        fixed = np.where(self.exponents != 0, moved, sizes[:, None]).astype(np.int64).view(np.uint64)
        # 3. A hash of candidate, direction and those: equal for all rows of one line.
        line = codes[:, None] * len(self.leading) + np.arange(1, len(self.leading) + 1)
        key = line.astype(np.uint64) * MULTIPLIER
        for position in range(sizes.shape[1]):
            key = (key ^ fixed[:, :, position]) * MULTIPLIER
            key ^= key >> np.uint64(29)
        # 4. The position makes way for the hash's lowest bits, so that the keys of a line lie side by side in order.
        position = np.round(leading_log * POSITION_SCALE).astype(np.uint64)
        return (key >> np.uint64(POSITION_BITS) << np.uint64(POSITION_BITS)) | position


@dataclass(frozen=True)
class MeasuredRows:
    """What was measured with some candidates, each on one GPU, found by the keys of `Lines`.

    ``codes`` of the candidates; ``keys`` (entries,) ascending and ``values`` (entries,) of all directions; ``ticked``
    positions of the sizes that tables measure at a few values, and those in ``ticks``, ascending (see `_ticks`).
    """

    codes: np.ndarray
    lines: Lines
    keys: np.ndarray
    values: np.ndarray
    ticked: list[int]
    ticks: np.ndarray

    def at(self, keys: np.ndarray) -> np.ndarray:
        """(rows,) the value measured there, NaN where none was."""
        position = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[position] == keys, self.values[position], np.nan)

    def between(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As ``keys``: the value between the nearest others on the line, and how far they are in doublings.

        The gap is the harmonic mean of both distances; NaN where nothing else on the line was measured.
        """
        shift = np.uint64(POSITION_BITS)
        last = len(self.keys) - 1
        line = keys >> shift
        x = positions(keys)
        # 1. The entries next below and above, a measurement at the very position left out. They count where they lie
        #    on the same line, and inside the array.
        before = np.searchsorted(self.keys, keys) - 1
        after = np.searchsorted(self.keys, keys, side="right")
        low = np.maximum(before, 0)
        high = np.minimum(after, last)
        has_low = (before >= 0) & (self.keys[low] >> shift == line)
        has_high = (after <= last) & (self.keys[high] >> shift == line)
        # 2. Distances to both in doublings. Between them the value is linear, the nearer one weighs more.
        down = np.where(has_low, x - positions(self.keys[low]), np.nan)
        up = np.where(has_high, positions(self.keys[high]) - x, np.nan)
        with np.errstate(invalid="ignore"):
            inner = (self.values[low] * up + self.values[high] * down) / (up + down)
            gap = 2 * up * down / (up + down)
        # 3. With a neighbour on one side alone its value stands, as if it were farther away.
        one_sided = np.where(has_low, self.values[low], np.where(has_high, self.values[high], np.nan))
        both = has_low & has_high
        return np.where(both, inner, one_sided), np.where(both, gap, np.fmin(down, up) + END_GAP)

    def ends(self, codes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, ticked) the measured values of sizes next below and next above, outside all the nearest twice."""
        # A size's tick is found among those of its own candidate and column: the next one is not below it, the one
        # before is. A side that lies in another group has no measured size; there the other side stands for both.
        wanted = _ticks(codes, sizes[:, self.ticked])
        above = np.searchsorted(self.ticks, wanted)
        high = self.ticks[np.minimum(above, len(self.ticks) - 1)]
        low = np.where(high == wanted, high, self.ticks[np.maximum(above - 1, 0)])
        group = wanted >> SIZE_BITS
        minimum = np.where(low >> SIZE_BITS == group, low, high)
        largest = np.where(high >> SIZE_BITS == group, high, low)
        return minimum & MAX_SIZE, largest & MAX_SIZE


@dataclass(frozen=True)
class GridPart:
    """One GPU's rows (rows,): ``codes`` of candidate and setting, ``sizes`` (rows, sizes), ``values`` log(time / base).

    Rows stand in the order of codes and sizes.
    """

    codes: np.ndarray
    sizes: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, sizes: np.ndarray, values: np.ndarray) -> Self:
        """Of rows of any order; of equal rows the median."""
        # 1. In the order of codes, sizes, values (the last key of `lexsort` sorts first), equal rows stand together.
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
        """(rows, directions) as of `Lines.keys`."""
        starts = range(0, len(self.codes), CHUNK_ROWS)
        parts = [lines.keys(self.codes[i : i + CHUNK_ROWS], self.sizes[i : i + CHUNK_ROWS]) for i in starts]
        return np.concatenate(parts)

    def measured(self, lines: Lines, ticked: list[int]) -> MeasuredRows:
        """The rows along ``lines``; ``ticked`` as in `MeasuredRows`."""
        # Keys of all rows along all directions, ascending; a key's row is its position over the directions.
        keys = self.keys(lines).ravel()
        order = np.argsort(keys, kind="stable")
        values = self.values[order // len(lines.leading)]
        ticks = np.unique(_ticks(self.codes, self.sizes[:, ticked]))
        return MeasuredRows(np.unique(self.codes), lines, keys=keys[order], values=values, ticked=ticked, ticks=ticks)

    def to_bytes(self, names: Sequence[str]) -> bytes:
        """A parquet file; ``names`` of the sizes."""
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
        """What `to_bytes` wrote. Raises `InputError` for other columns than those, or far more rows than bytes."""
        import pyarrow.parquet as pq

        file = pq.ParquetFile(io.BytesIO(content))
        kinds = ["int16", *["int32"] * len(names), "int16"]
        columns = [(column.name, str(column.type)) for column in file.schema_arrow]
        if columns != list(zip((CANDIDATE, *names, VALUE), kinds, strict=True)):
            raise InputError("its columns are not the candidate, the family's sizes and the value")
        if not 0 < file.metadata.num_rows <= max(MAX_ROWS, len(content)):
            raise InputError(f"it declares {file.metadata.num_rows:,} rows")
        table = file.read(use_threads=False)
        # Arrow's own `to_numpy` imports pandas.
        arrays = [np.concatenate([np.from_dlpack(part) for part in column.chunks]) for column in table.columns]
        sizes = np.stack(arrays[1:-1], axis=1).astype(np.int64)
        if arrays[0].min() < 0 or sizes.min() < 0:
            raise InputError("a code or a size is negative")
        return cls(arrays[0].astype(np.int64), sizes, arrays[-1].astype(np.float32) * STEP)


@dataclass(frozen=True)
class Grid:
    """The rows of all GPUs. ``packed``: GPU → a `GridPart`'s bytes; ``lines`` as families have them."""

    labels: Mapping[Label, int]
    packed: Mapping[str, bytes]
    lines: tuple[Mapping[str, int], ...]
    _opened: dict[str, GridPart] = field(default_factory=dict, repr=False, compare=False)

    def codes(self, values: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        """(candidates,) codes in a setting of these values, −1 where a candidate was never measured."""
        codes = [self.labels.get(Label(tuple(values), candidate), -1) for candidate in candidates]
        return np.array(codes, dtype=np.int64)

    def rows(self, family: Family, gpu: str) -> GridPart:
        """All that was measured on a GPU of ``packed``. Raises `InputError` where the stored rows are damaged."""
        if gpu not in self._opened:
            with input_error_if_damaged(f"the measured times of {gpu}"):
                self._opened[gpu] = GridPart.from_bytes(self.packed[gpu], family.size_names)
        return self._opened[gpu]

    def measured(self, family: Family, lent: Mapping[str, np.ndarray | None]) -> MeasuredRows:
        """What was measured on each of ``packed``'s GPUs with candidates of these codes (None: with all)."""
        parts = []
        for gpu, codes in lent.items():
            part = self.rows(family, gpu)
            members = slice(None) if codes is None else np.flatnonzero(np.isin(part.codes, codes))
            parts.append((part.codes[members], part.sizes[members], part.values[members]))
        ticked = [family.size_names.index(name) for name in family.grid_sizes]
        joined = GridPart(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        return joined.measured(Lines.of(self.lines, family.size_names), ticked)


def positions(keys: np.ndarray) -> np.ndarray:
    """The positions of keys (as `Lines.keys`) on their lines, in doublings."""
    return (keys & np.uint64((1 << POSITION_BITS) - 1)).astype(np.float64) / POSITION_SCALE


def _ticks(codes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """As ``sizes`` (rows, ticked): one number that is in the order of codes, then of columns, then of sizes."""
    group = codes[:, None] * sizes.shape[1] + np.arange(sizes.shape[1])
    return (group << SIZE_BITS) | np.minimum(sizes, MAX_SIZE)
