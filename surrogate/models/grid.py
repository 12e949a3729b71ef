"""`Grid`: measured times as they stand, and what lies between them along lines through the sizes.

A line of a family goes through problems whose sizes differ in one way alone: one size grows, or several by one factor
while their ratios stay. Between two measured problems of a line the log of time over base time is close to linear in
the log of that factor. Each GPU's rows are packed by themselves, so that a question about one GPU reads no other.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from surrogate.dataset.problems import device_names, joined
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError

STEP = 0.005
"""Log times are kept in steps of half a percent: less than any table's noise."""
POSITION_BITS, POSITION_SCALE = 16, 1000.0
"""Place on a line in thousandths of a doubling, in the lowest bits of a key; the line's own hash stands above them."""
END_GAP = 1.0
"""Doublings that a one-sided neighbour counts as farther away than it is."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
VALUE, CANDIDATE = "value", "candidate"


@dataclass(frozen=True)
class Line:
    """One line's measured places in order: ``keys`` (rows,) uint64 and ``values`` (rows,)."""

    keys: np.ndarray
    values: np.ndarray

    def at(self, keys: np.ndarray) -> np.ndarray:
        """(rows,) the value measured there, NaN where none was."""
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, self.values[place], np.nan)

    def between(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows,) the value between the nearest other places of the line, and how far they are in doublings.

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


@dataclass(frozen=True)
class GridPart:
    """One GPU's rows (rows,): ``codes`` of candidate and setting, ``sizes`` by name, ``values`` log(time / base)."""

    codes: np.ndarray
    sizes: Mapping[str, np.ndarray]
    values: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, sizes: Mapping[str, np.ndarray], values: np.ndarray) -> Self:
        """Of rows of any order; of equal rows the median."""
        frame = pd.DataFrame({CANDIDATE: codes, **sizes, VALUE: np.round(values / STEP)})
        keys = [CANDIDATE, *sizes]
        if frame.duplicated(keys).any():
            frame = frame.groupby(keys, as_index=False)[VALUE].median()
        frame = frame.iloc[np.lexsort([frame[key] for key in reversed(keys)])]
        sorted_sizes = {name: frame[name].to_numpy(dtype=np.int64) for name in sizes}
        return cls(frame[CANDIDATE].to_numpy(), sorted_sizes, frame[VALUE].to_numpy(dtype=np.float32) * STEP)

    def line(self, exponents: Mapping[str, int]) -> Line:
        """All lines of one direction; see `line_keys`."""
        keys = line_keys(self.codes, self.sizes, exponents)
        order = np.argsort(keys, kind="stable")
        return Line(keys[order], self.values[order])

    @cached_property
    def ticks(self) -> dict[tuple[int, str], np.ndarray]:
        """(code, size) → the values that were measured."""
        starts = np.flatnonzero(np.diff(self.codes, prepend=-1))
        parts = np.split(np.arange(len(self.codes)), starts[1:])
        return {
            (int(self.codes[part[0]]), name): np.unique(size[part])
            for part in parts
            for name, size in self.sizes.items()
        }

    def to_bytes(self) -> bytes:
        """A parquet file."""
        columns = {CANDIDATE: self.codes.astype(np.int16)}
        columns |= {name: size.astype(np.int32) for name, size in self.sizes.items()}
        columns[VALUE] = np.round(self.values / STEP).astype(np.int16)
        out = io.BytesIO()
        pq.write_table(pa.table(columns), out, compression="zstd", compression_level=19)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """What `to_bytes` wrote."""
        frame = pq.read_table(io.BytesIO(content)).to_pandas()
        sizes = {name: frame[name].to_numpy(dtype=np.int64) for name in frame.columns[1:-1]}
        return cls(
            frame[CANDIDATE].to_numpy(dtype=np.int64), sizes, frame[VALUE].to_numpy(dtype=np.float32) * STEP
        )


@dataclass(frozen=True)
class Grid:
    """The rows of all GPUs. ``labels``: candidate with its setting → code; ``packed``: GPU → a `GridPart`'s bytes."""

    labels: Mapping[str, int]
    packed: Mapping[str, bytes]
    lines: tuple[Mapping[str, int], ...]

    @classmethod
    def fit(cls, rows: Rows, values: np.ndarray) -> Self:
        """From log(time / base) (rows,) of ``rows``."""
        label = _labels(rows)
        labels = {name: code for code, name in enumerate(np.unique(label).tolist())}
        codes = pd.Series(label).map(labels).to_numpy()
        sizes, packed, device = _sizes(rows), {}, device_names(rows.frame)
        for gpu in np.unique(device).tolist():
            own = device == gpu
            part = GridPart.of(codes[own], {name: size[own] for name, size in sizes.items()}, values[own])
            packed[gpu] = part.to_bytes()
        return cls(labels, packed, rows.family.lines)

    @cached_property
    def _opened(self) -> dict[str, tuple[GridPart, Line, tuple[Line, ...]]]:
        return {}

    def _open(self, gpu: str) -> tuple[GridPart, Line, tuple[Line, ...]]:
        """A GPU's rows, with the places of single problems and of every direction of lines."""
        if gpu not in self._opened:
            try:
                part = GridPart.from_bytes(self.packed[gpu])
            except (pa.ArrowException, KeyError) as error:
                raise InputError(f"the bundle's measured times of {gpu} are damaged ({error})") from None
            self._opened[gpu] = part, part.line({}), tuple(part.line(line) for line in self.lines)
        return self._opened[gpu]

    def asked(self, rows: Rows) -> "list[Asked]":
        """The rows GPU by GPU, those of GPUs that were measured."""
        device, label, sizes = device_names(rows.frame), _labels(rows), _sizes(rows)
        codes = pd.Series(label).map(self.labels).fillna(-1).to_numpy(dtype=np.int64)
        out = []
        for gpu in self.packed:
            if not (device == gpu).any():
                continue
            part, exact, lines = self._open(gpu)
            own = np.flatnonzero((device == gpu) & np.isin(codes, part.codes))
            if len(own):
                own_sizes = {name: size[own] for name, size in sizes.items()}
                out.append(Asked(own, codes[own], own_sizes, part, exact, lines, self.lines))
        return out


@dataclass(frozen=True)
class Asked:
    """Rows of one GPU beside what was measured there. ``position`` (rows,) among all rows that were asked about."""

    position: np.ndarray
    codes: np.ndarray
    sizes: Mapping[str, np.ndarray]
    part: GridPart
    exact: Line
    lines: tuple[Line, ...]
    directions: tuple[Mapping[str, int], ...]

    def take(self, index: np.ndarray) -> "Asked":
        """The rows at these positions."""
        sizes = {name: size[index] for name, size in self.sizes.items()}
        return replace(self, position=self.position[index], codes=self.codes[index], sizes=sizes)

    def measured(self) -> np.ndarray:
        """(rows,) the values of problems that were measured, else NaN."""
        return self.exact.at(line_keys(self.codes, self.sizes, {}))

    def neighbours(self) -> tuple[np.ndarray, np.ndarray]:
        """(rows, lines) values between neighbours, and gaps in doublings; NaN where a line has none."""
        both = [
            line.between(line_keys(self.codes, self.sizes, direction))
            for line, direction in zip(self.lines, self.directions, strict=True)
        ]
        values, gaps = (np.stack(columns, axis=1) for columns in zip(*both, strict=True))
        return values, gaps

    def ends(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(rows,) the measured values of a size next below and next above, the nearest one twice outside the range."""
        size, low, high = self.sizes[name], *np.empty((2, len(self.codes)), dtype=np.int64)
        for code in np.unique(self.codes):
            own = np.flatnonzero(self.codes == code)
            ticks = self.part.ticks[int(code), name]
            above = np.searchsorted(ticks, size[own])
            exact = ticks[np.minimum(above, len(ticks) - 1)] == size[own]
            low[own] = ticks[np.clip(np.where(exact, above, above - 1), 0, len(ticks) - 1)]
            high[own] = ticks[np.minimum(above, len(ticks) - 1)]
        return low, high


def line_keys(codes: np.ndarray, sizes: Mapping[str, np.ndarray], exponents: Mapping[str, int]) -> np.ndarray:
    """(rows,) uint64: a hash of the line in the upper 48 bits, and the place on it in the lower 16.

    Along a line the sizes grow as factor^exponent, the first of them as the factor itself; the others stay. Without
    exponents each problem is a line of its own.
    """
    place = np.zeros(len(codes), dtype=np.float64)
    if exponents:
        place = np.log2(np.maximum(sizes[next(iter(exponents))], 1))
    key = (codes.astype(np.uint64) + np.uint64(1)) * MULTIPLIER
    for name, size in sizes.items():
        exponent = exponents.get(name, 0)
        fixed = np.round((np.log2(np.maximum(size, 1)) - exponent * place) * 4096) if exponent else size
        key = (key ^ fixed.astype(np.int64).view(np.uint64)) * MULTIPLIER
        key ^= key >> np.uint64(29)
    position = np.round(place * POSITION_SCALE).astype(np.uint64)
    return (key >> np.uint64(POSITION_BITS) << np.uint64(POSITION_BITS)) | position


def _position(keys: np.ndarray) -> np.ndarray:
    """(rows,) the places of keys on their lines, in doublings."""
    return (keys & np.uint64((1 << POSITION_BITS) - 1)).astype(np.float64) / POSITION_SCALE


def _labels(rows: Rows) -> np.ndarray:
    """(rows,) the candidate and its setting: rows of other labels are no neighbours."""
    settings = joined(rows.frame, rows.family.setting_names)
    return (settings + "|" + rows.candidate.astype(str)).to_numpy()


def _sizes(rows: Rows) -> dict[str, np.ndarray]:
    """The size columns (rows,)."""
    return {name: rows.frame[name].to_numpy(dtype=np.int64) for name in rows.family.size_names}
