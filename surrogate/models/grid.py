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

STEP = 0.005
"""Log times are kept in steps of half a percent: less than any table's noise."""
POSITION_BITS, POSITION_SCALE = 16, 1000.0
"""Place on a line in thousandths of a doubling, in the lowest bits of a key; the line's own hash stands above them."""
END_GAP = 1.0
"""Doublings that a one-sided neighbour counts as farther away than it is."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
SIZE_BITS = 44
MOST_SIZE = (1 << SIZE_BITS) - 1
"""Bits of a size in `_ticks`; larger sizes count as the largest."""
CHUNK_ROWS = 65_536
VALUE, CANDIDATE = "value", "candidate"


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
        """(rows, directions) uint64: a hash of the line in the upper 48 bits, and the place on it in the lower 16.

        Of the codes of candidates (rows,) and ``sizes`` (rows, sizes).
        """
        logs = np.log2(np.maximum(sizes, 1))
        leading_log = logs[:, self.leading]
        leading_log[:, 0] = 0.0
        moved = np.round((logs[:, None] - self.exponents * leading_log[:, :, None]) * 4096)
        fixed = np.where(self.exponents != 0, moved, sizes[:, None]).astype(np.int64).view(np.uint64)
        line = codes[:, None] * len(self.leading) + np.arange(1, len(self.leading) + 1)
        key = line.astype(np.uint64) * MULTIPLIER
        for position in range(sizes.shape[1]):
            key = (key ^ fixed[:, :, position]) * MULTIPLIER
            key ^= key >> np.uint64(29)
        position = np.round(leading_log * POSITION_SCALE).astype(np.uint64)
        return (key >> np.uint64(POSITION_BITS) << np.uint64(POSITION_BITS)) | position


@dataclass(frozen=True)
class Measured:
    """What was measured with some candidates, each on one GPU, found by the keys of `Lines`.

    ``codes`` of the candidates; ``keys`` (places,) ascending and ``values`` (places,) of all directions; ``ticked``
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
        """As ``keys``: the value between the nearest other places of the line, and how far they are in doublings.

        The gap is the harmonic mean of both distances; NaN where the line has no other place.
        """
        shift, last = np.uint64(POSITION_BITS), len(self.keys) - 1
        line, x = keys >> shift, _position(keys)
        before, after = np.searchsorted(self.keys, keys) - 1, np.searchsorted(self.keys, keys, side="right")
        low, high = np.maximum(before, 0), np.minimum(after, last)
        has_low = (before >= 0) & (self.keys[low] >> shift == line)
        has_high = (after <= last) & (self.keys[high] >> shift == line)
        down = np.where(has_low, x - _position(self.keys[low]), np.nan)
        up = np.where(has_high, _position(self.keys[high]) - x, np.nan)
        with np.errstate(invalid="ignore"):
            inner = (self.values[low] * up + self.values[high] * down) / (up + down)
            gap = 2 * up * down / (up + down)
        one_sided = np.where(has_low, self.values[low], np.where(has_high, self.values[high], np.nan))
        both = has_low & has_high
        return np.where(both, inner, one_sided), np.where(both, gap, np.fmin(down, up) + END_GAP)

    def ends(self, codes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, ticked) the measured values of sizes next below and next above, outside all the nearest twice."""
        wanted = _ticks(codes, sizes[:, self.ticked])
        above = np.searchsorted(self.ticks, wanted)
        high = self.ticks[np.minimum(above, len(self.ticks) - 1)]
        low = np.where(high == wanted, high, self.ticks[np.maximum(above - 1, 0)])
        low, high = (
            np.where(first >> SIZE_BITS == wanted >> SIZE_BITS, first, second)
            for first, second in ((low, high), (high, low))
        )
        return low & MOST_SIZE, high & MOST_SIZE


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
        steps = np.round(values / STEP)
        order = np.lexsort([steps, *sizes.T[::-1], codes])
        keys, steps = np.column_stack([codes, sizes])[order], steps[order]
        starts = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))
        last = np.append(starts[1:], len(keys)) - 1 - starts
        median = (steps[starts + last // 2] + steps[starts + (last + 1) // 2]) / 2
        return cls(keys[starts, 0], keys[starts, 1:], median.astype(np.float32) * STEP)

    def measured(self, lines: Lines, ticked: list[int]) -> Measured:
        """The rows along ``lines``; ``ticked`` as in `Measured`."""
        starts = range(0, len(self.codes), CHUNK_ROWS)
        parts = [lines.keys(self.codes[i : i + CHUNK_ROWS], self.sizes[i : i + CHUNK_ROWS]) for i in starts]
        keys = np.concatenate(parts).ravel()
        order = np.argsort(keys, kind="stable")
        values = self.values[order // len(lines.leading)]
        ticks = np.unique(_ticks(self.codes, self.sizes[:, ticked]))
        return Measured(np.unique(self.codes), lines, keys[order], values, ticked, ticks)

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
    def from_bytes(cls, content: bytes) -> Self:
        """What `to_bytes` wrote."""
        import pyarrow.parquet as pq

        table = pq.ParquetFile(io.BytesIO(content)).read(use_threads=False)
        # Arrow's own `to_numpy` imports pandas.
        arrays = [np.concatenate([np.from_dlpack(part) for part in column.chunks]) for column in table.columns]
        sizes = np.stack(arrays[1:-1], axis=1).astype(np.int64)
        return cls(arrays[0].astype(np.int64), sizes, arrays[-1].astype(np.float32) * STEP)


@dataclass(frozen=True)
class Grid:
    """The rows of all GPUs. ``labels``: `label` → code; ``packed``: GPU → a `GridPart`'s bytes; ``lines`` as families
    have them.
    """

    labels: Mapping[str, int]
    packed: Mapping[str, bytes]
    lines: tuple[Mapping[str, int], ...]
    _opened: dict[str, GridPart] = field(default_factory=dict, repr=False, compare=False)

    def codes(self, values: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        """(candidates,) codes in a setting of these values, −1 where a candidate was never measured."""
        codes = [self.labels.get(label(values, candidate), -1) for candidate in candidates]
        return np.array(codes, dtype=np.int64)

    def rows(self, gpu: str) -> GridPart:
        """All that was measured on a GPU of ``packed``. Raises `InputError` where the stored rows are damaged."""
        if gpu not in self._opened:
            try:
                self._opened[gpu] = GridPart.from_bytes(self.packed[gpu])
            except (OSError, ValueError) as error:
                raise InputError(f"the bundle's measured times of {gpu} are damaged ({error})") from None
        return self._opened[gpu]

    def lender(self, gpus: Sequence[str], codes: np.ndarray) -> str | None:
        """The first of the GPUs on which any of the candidates ``codes`` was measured."""
        known = (gpu for gpu in gpus if gpu in self.packed)
        return next((gpu for gpu in known if np.isin(codes, self.rows(gpu).codes).any()), None)

    def measured(self, kind: Family, lent: Mapping[str, np.ndarray | None]) -> Measured:
        """What was measured on each of ``packed``'s GPUs with candidates of these codes (None: with all)."""
        parts = []
        for gpu, codes in lent.items():
            part = self.rows(gpu)
            members = slice(None) if codes is None else np.flatnonzero(np.isin(part.codes, codes))
            parts.append((part.codes[members], part.sizes[members], part.values[members]))
        ticked = [kind.size_names.index(name) for name in kind.ticks]
        joined = GridPart(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        return joined.measured(Lines.of(self.lines, kind.size_names), ticked)


def label(values: Sequence[str], candidate: str) -> str:
    """A candidate with its setting: rows of other labels are no neighbours."""
    return "|".join((*values, candidate))


def _position(keys: np.ndarray) -> np.ndarray:
    """The places of keys on their lines, in doublings."""
    return (keys & np.uint64((1 << POSITION_BITS) - 1)).astype(np.float64) / POSITION_SCALE


def _ticks(codes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """As ``sizes`` (rows, ticked): one number that is in the order of codes, then of columns, then of sizes."""
    group = codes[:, None] * sizes.shape[1] + np.arange(sizes.shape[1])
    return (group << SIZE_BITS) | np.minimum(sizes, MOST_SIZE)
