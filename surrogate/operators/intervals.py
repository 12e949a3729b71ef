"""Where an operator model has seen anything like a row, and how wide its held-out errors were.

Source of the widths: Lei et al. 2018, "Distribution-free predictive inference for regression" (split conformal).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.operators.table import SIZE_NAMES, OperatorTable

COVERAGE = 0.90
LEAST_ROWS = 50
"""Held-out rows that a width of its own needs."""
ALL = "all"
COUNT = "count"
UNSEEN = "unseen"
SEEN_COLUMNS = ("gpu", "library", "kind", "variant", "dtype", "math")


@dataclass(frozen=True)
class OperatorDomain:
    """What training held, per ``gpu|library|kind|variant|dtype|math``.

    ``ranges`` least and greatest of every size, in the order of `SIZE_NAMES`; ``rows`` how many there were.
    """

    ranges: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    rows: Mapping[str, int]

    @classmethod
    def of(cls, table: OperatorTable) -> Self:
        """What the training rows span."""
        names = joined(table.frame, SEEN_COLUMNS).to_numpy()
        sizes = table.frame[list(SIZE_NAMES)].to_numpy()
        ranges, rows = {}, {}
        for name in np.unique(names):
            mine = sizes[names == name]
            ranges[str(name)] = (tuple(mine.min(axis=0).tolist()), tuple(mine.max(axis=0).tolist()))
            rows[str(name)] = len(mine)
        return cls(ranges, rows)

    def contains(self, table: OperatorTable) -> np.ndarray:
        """(rows,) True where GPU, library and setting were seen together and every size lies in its range."""
        names = joined(table.frame, SEEN_COLUMNS).to_numpy()
        sizes = table.frame[list(SIZE_NAMES)].to_numpy()
        inside = np.zeros(len(table), dtype=bool)
        for name in np.unique(names):
            if name in self.ranges:
                least, greatest = (np.array(bounds) for bounds in self.ranges[name])
                mine = names == name
                inside[mine] = ((sizes[mine] >= least) & (sizes[mine] <= greatest)).all(axis=1)
        return inside

    def devices(self) -> frozenset[str]:
        """``gpu|library`` of all training rows."""
        return frozenset("|".join(key.split("|")[:2]) for key in self.ranges)

    def counts(self) -> tuple[dict[tuple[str, ...], int], dict[tuple[str, ...], int]]:
        """Training rows per (gpu, library, kind, variant), and per (library, kind, variant)."""
        on_gpu: dict[tuple[str, ...], int] = {}
        overall: dict[tuple[str, ...], int] = {}
        for key, count in self.rows.items():
            part = tuple(key.split("|")[:4])
            on_gpu[part] = on_gpu.get(part, 0) + count
            overall[part[1:]] = overall.get(part[1:], 0) + count
        return on_gpu, overall

    def to_json(self) -> bytes:
        """Row counts, and the sizes that some row has, by name."""
        content = {
            key: {COUNT: self.rows[key]}
            | {size: [low, high] for size, low, high in zip(SIZE_NAMES, least, greatest, strict=True) if high}
            for key, (least, greatest) in self.ranges.items()
        }
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        ranges, rows = {}, {}
        for key, sizes in json.loads(content).items():
            rows[key] = int(sizes.pop(COUNT))
            pairs = [sizes.get(name, (0, 0)) for name in SIZE_NAMES]
            ranges[key] = (tuple(int(low) for low, _ in pairs), tuple(int(high) for _, high in pairs))
        return cls(ranges, rows)


@dataclass(frozen=True)
class OperatorWidths:
    """Half widths of the interval in log time.

    Keys: ``gpu|library|kind``, ``library|kind`` or ``all``; on GPUs never measured ``unseen|library|kind``, ``unseen``.
    """

    by_key: Mapping[str, float]

    @classmethod
    def fit(cls, table: OperatorTable, held_us: np.ndarray, unseen_us: np.ndarray) -> Self:
        """Conformal quantiles of |log(predicted / measured)| where at least `LEAST_ROWS` were held out.

        ``held_us`` (rows,) by models that did not see the row's shape, ``unseen_us`` that did not see its GPU; NaN
        where there is no prediction.
        """
        widths = _by_key(table, held_us, (("gpu", "library", "kind"), ("library", "kind")), "")
        return cls({**widths, **_by_key(table, unseen_us, (("library", "kind"),), f"{UNSEEN}|")})

    def of(self, table: OperatorTable, domain: OperatorDomain) -> np.ndarray:
        """(rows,) half widths in log time: the interval is predicted · exp(± width)."""
        known = np.isin(joined(table.frame, ("gpu", "library")).to_numpy(), list(domain.devices()))
        exact = joined(table.frame, ("gpu", "library", "kind")).map(self.by_key)
        kind = joined(table.frame, ("library", "kind"))
        seen = exact.fillna(kind.map(self.by_key)).fillna(self.by_key[ALL]).to_numpy(dtype=float)
        overall = self.by_key.get(UNSEEN, self.by_key[ALL])
        unseen = (f"{UNSEEN}|" + kind).map(self.by_key).fillna(overall).to_numpy(dtype=float)
        return np.where(known, seen, np.maximum(seen, unseen))

    def to_json(self) -> bytes:
        """The table."""
        widths = {key: float(f"{width:.6g}") for key, width in self.by_key.items()}
        return json.dumps({"coverage": COVERAGE, "widths": widths}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        return cls(json.loads(content)["widths"])


def _by_key(
    table: OperatorTable, predicted_us: np.ndarray, levels: tuple[tuple[str, ...], ...], prefix: str
) -> dict[str, float]:
    usable = np.flatnonzero(np.isfinite(predicted_us))
    if not len(usable):
        return {}
    part = table.take(usable)
    error = np.abs(np.log(predicted_us[usable] / part.time_us))
    widths = {prefix.rstrip("|") or ALL: _quantile(error)}
    for columns in levels:
        names = joined(part.frame, columns).to_numpy()
        for name in np.unique(names):
            mine = names == name
            if mine.sum() >= LEAST_ROWS:
                widths[f"{prefix}{name}"] = _quantile(error[mine])
    return widths


def _quantile(error: np.ndarray) -> float:
    """The conformal quantile: rank ⌈(n + 1)·coverage⌉ of the errors, the largest where there are too few."""
    rank = int(np.ceil((len(error) + 1) * COVERAGE))
    return float(np.sort(error)[min(rank, len(error)) - 1])
