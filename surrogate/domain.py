"""Where a fitted model has seen anything like a row: ranges of sizes, known devices and settings, shapes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined
from surrogate.dataset.schema import SIZE_COLUMNS
from surrogate.dataset.splits import shape_names

_SETTINGS = ("gpu", "library", "direction", "dtype", "math", "layout", "algorithm")


@dataclass(frozen=True)
class Domain:
    """``ranges`` size column → (least, greatest) seen; ``settings`` seen; ``shapes`` hashes of training shapes."""

    ranges: Mapping[str, tuple[int, int]]
    settings: frozenset[str]
    shapes: frozenset[str]

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """What the training rows span."""
        return cls(
            {c: (int(frame[c].min()), int(frame[c].max())) for c in SIZE_COLUMNS},
            frozenset(_settings(frame)),
            frozenset(shape_hashes(frame)),
        )

    def contains(self, frame: pd.DataFrame) -> np.ndarray:
        """(rows,) True where every size lies in its range and the device, setting and algorithm were seen together."""
        inside = np.isin(_settings(frame), list(self.settings))
        for column, (least, greatest) in self.ranges.items():
            inside &= frame[column].between(least, greatest).to_numpy()
        return inside

    def seen(self, frame: pd.DataFrame) -> np.ndarray:
        """(rows,) True where the row's shape was in training, at whatever batch, on whatever device."""
        return np.isin(shape_hashes(frame), list(self.shapes))

    def to_json(self) -> bytes:
        """All three parts."""
        content: dict[str, Any] = {
            "ranges": {c: list(r) for c, r in self.ranges.items()},
            "settings": sorted(self.settings),
            "shapes": sorted(self.shapes),
        }
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        data = json.loads(content)
        ranges = {c: (int(r[0]), int(r[1])) for c, r in data["ranges"].items()}
        return cls(ranges, frozenset(data["settings"]), frozenset(data["shapes"]))


def shape_hashes(frame: pd.DataFrame) -> np.ndarray:
    """(rows,) 16 hex digits naming each row's shape without telling it."""
    names = shape_names(frame)
    known = {name: hashlib.blake2b(name.encode(), digest_size=8).hexdigest() for name in set(names)}
    return np.array([known[name] for name in names])


def _settings(frame: pd.DataFrame) -> np.ndarray:
    return joined(frame, _SETTINGS).to_numpy()
