"""Where a fitted model has seen anything like a row, and the reason where it has not.

A row is inside if its settings were measured together, its sizes lie in the training ranges, and its shape was measured
or is no farther from the nearest ones than held-out shapes were from theirs. numpy only, until a table comes in.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from surrogate.features.problem import SIZE_COLUMNS
from surrogate.uncertainty.references import References

if TYPE_CHECKING:
    import pandas as pd

SETTINGS = ("gpu", "library", "direction", "dtype", "math", "layout", "algorithm")
"""What a row is measured with; a GPU goes by its registry name."""
REACH_QUANTILE = 0.99
"""A problem farther from training than this share of the held-out problems were is outside."""


@dataclass(frozen=True, eq=False)
class Domain:
    """What the training rows span.

    ``ranges`` size column → (least, greatest) seen; ``settings`` the joined values of `SETTINGS` seen together;
    ``versions`` joined library and version; ``shapes`` hashes of training shapes; ``references`` joined library and
    direction → the problems that distances are taken to; ``reach`` the same key → the greatest distance inside.
    """

    ranges: Mapping[str, tuple[int, int]]
    settings: frozenset[str]
    shapes: frozenset[str]
    versions: frozenset[str] = frozenset()
    references: Mapping[str, References] = field(default_factory=dict)
    reach: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, frame: "pd.DataFrame", held_out_distance: np.ndarray | None = None) -> Self:
        """What the training rows span; ``held_out_distance`` (rows,) is each row's distance to the training problems

        of the fold that held it out, NaN where none did. Without it no distance is too far.
        """
        distance = np.full(len(frame), np.nan) if held_out_distance is None else held_out_distance
        reach = {key: distance[rows][np.isfinite(distance[rows])] for key, rows in _groups(frame).items()}
        return cls(
            {c: (int(frame[c].min()), int(frame[c].max())) for c in SIZE_COLUMNS},
            frozenset(_texts(frame, SETTINGS)),
            frozenset(shape_hashes(frame)),
            frozenset(_texts(frame, ("library", "library_version"))),
            reference_shapes(frame),
            {key: float(np.quantile(d, REACH_QUANTILE)) for key, d in reach.items() if len(d)},
        )

    @overload
    def distance(self, sizes: Sequence[int], library: str = ..., direction: str = ...) -> float: ...
    @overload
    def distance(self, sizes: np.ndarray, library: str = ..., direction: str = ...) -> np.ndarray: ...
    def distance(
        self, sizes: Sequence[int] | np.ndarray, library: str = "cudnn", direction: str = "fwd"
    ) -> float | np.ndarray:
        """Distance to the nearest training shapes of that library and direction (see `references`).

        ``sizes`` a sequence of 14 numbers in the order of `SIZE_COLUMNS` → float, or an array (rows, 14) → (rows,).
        Infinite where the library was never measured in that direction.
        """
        known = self.references.get(f"{library}|{direction}")
        if isinstance(sizes, np.ndarray) and sizes.ndim == 2:
            return np.full(len(sizes), inf) if known is None else known.distances(sizes)
        return inf if known is None else known.distance(sizes)  # type: ignore[arg-type]

    def distances(self, frame: "pd.DataFrame") -> np.ndarray:
        """(rows,) `distance` of every row of a normalised frame."""
        return distances_to(self.references, frame)

    def setting_reason(
        self,
        gpu: str,
        library: str,
        direction: str,
        dtype: str,
        math: str,
        layout: str,
        algorithm: str,
        library_version: str | None = None,
    ) -> str | None:
        """Why these settings are outside, or None; ``gpu`` by its registry name, no version is any version."""
        values = (gpu, library, direction, dtype, math, layout, algorithm)
        if "|".join(values) not in self.settings:
            known = self._known_together
            length = next(i for i in range(1, len(values) + 1) if "|".join(values[:i]) not in known)
            together = ", ".join(values[: length - 1])
            return f"{SETTINGS[length - 1]} {values[length - 1]} was never measured" + (
                f" with {together}" if together else f"; measured: {', '.join(self._gpus)}"
            )
        if (
            library_version is not None
            and self.versions
            and f"{library}|{library_version}" not in self.versions
        ):
            seen = sorted(v.partition("|")[2] for v in self.versions if v.startswith(f"{library}|"))
            return f"{library} {library_version} was never measured; measured: {', '.join(seen)}"
        return None

    def size_reason(
        self,
        sizes: Sequence[int],
        library: str = "cudnn",
        direction: str = "fwd",
        distance: float | None = None,
    ) -> str | None:
        """Why these 14 sizes are outside, or None; ``distance`` where it is known already."""
        for value, (name, least, greatest) in zip(sizes, self._bounds, strict=True):
            if not least <= value <= greatest:
                return f"{name} {value} lies outside the measured {least} … {greatest}"
        if distance is None:
            distance = self.distance(sizes, library, direction)
        limit = self.reach.get(f"{library}|{direction}", inf)
        if distance > limit and shape_hash("/".join(map(str, sizes[1:]))) not in self.shapes:
            return (
                f"the nearest measured shapes are {distance:.2f} away in scaled log2 sizes;"
                f" {REACH_QUANTILE:.0%} of held-out problems had theirs within {limit:.2f}"
            )
        return None

    def reason(
        self,
        sizes: Sequence[int],
        *,
        gpu: str,
        algorithm: str,
        library: str = "cudnn",
        direction: str = "fwd",
        dtype: str = "fp32",
        math: str = "fma",
        layout: str = "NCHW",
        library_version: str | None = None,
        distance: float | None = None,
    ) -> str | None:
        """The first thing about a row that training did not span, in one line; None where it is inside."""
        settings = self.setting_reason(
            gpu, library, direction, dtype, math, layout, algorithm, library_version
        )
        return settings or self.size_reason(sizes, library, direction, distance)

    def contains(self, frame: "pd.DataFrame", distance: np.ndarray | None = None) -> np.ndarray:
        """(rows,) True where a row of a normalised frame is inside; ``distance`` (rows,) where it is known already."""
        inside = _member(frame, SETTINGS, self.settings)
        if self.versions:
            inside &= _member(frame, ("library", "library_version"), self.versions)
        for column, (least, greatest) in self.ranges.items():
            values = frame[column].to_numpy()
            inside &= (least <= values) & (values <= greatest)
        far = self.distances(frame) if distance is None else distance
        beyond = np.zeros(len(frame), dtype=bool)
        for key, rows in _groups(frame).items():
            beyond[rows] = far[rows] > self.reach.get(key, inf)
        beyond[beyond] = ~self.seen(frame[beyond])
        return inside & ~beyond

    def seen(self, frame: "pd.DataFrame") -> np.ndarray:
        """(rows,) True where the row's shape was in training, at whatever batch, on whatever device."""
        return np.isin(shape_hashes(frame), list(self.shapes))

    @cached_property
    def _bounds(self) -> tuple[tuple[str, int, int], ...]:
        return tuple((name, *self.ranges[name]) for name in SIZE_COLUMNS)

    @cached_property
    def _known_together(self) -> frozenset[str]:
        """Every beginning of every setting: what of it was seen together."""
        parts = [text.split("|") for text in self.settings]
        return frozenset("|".join(p[:i]) for p in parts for i in range(1, len(p) + 1))

    @cached_property
    def _gpus(self) -> tuple[str, ...]:
        return tuple(sorted({text.partition("|")[0] for text in self.settings}))

    def to_json(self) -> bytes:
        """All parts; a reference is the list of a shape's 13 sizes."""
        content: dict[str, Any] = {
            "ranges": {c: list(r) for c, r in self.ranges.items()},
            "settings": sorted(self.settings),
            "shapes": sorted(self.shapes),
            "versions": sorted(self.versions),
            "references": {key: known.to_dict() for key, known in self.references.items()},
            "reach": dict(self.reach),
        }
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote; bundle schema 1 had no versions, references and reach: they bound nothing then."""
        data = json.loads(content)
        return cls(
            {c: (int(r[0]), int(r[1])) for c, r in data["ranges"].items()},
            frozenset(data["settings"]),
            frozenset(data["shapes"]),
            frozenset(data.get("versions", ())),
            {key: References.from_dict(known) for key, known in data.get("references", {}).items()},
            {key: float(limit) for key, limit in data.get("reach", {}).items()},
        )


def reference_shapes(frame: "pd.DataFrame") -> dict[str, References]:
    """Joined library and direction → the shapes of its rows that distances are taken to."""
    sizes = _sizes(frame)
    return {key: References.of(sizes[rows]) for key, rows in _groups(frame).items()}


def distances_to(references: Mapping[str, References], frame: "pd.DataFrame") -> np.ndarray:
    """(rows,) distances to `reference_shapes`, infinite where there are none of a row's library and direction."""
    sizes, out = _sizes(frame), np.full(len(frame), inf)
    for key, rows in _groups(frame).items():
        if key in references:
            out[rows] = references[key].distances(sizes[rows])
    return out


def shape_hashes(frame: "pd.DataFrame") -> np.ndarray:
    """(rows,) 16 hex digits naming each row's shape without telling it."""
    from surrogate.dataset.splits import shape_names

    names = shape_names(frame)
    known = {name: shape_hash(name) for name in set(names)}
    return np.array([known[name] for name in names], dtype="U16")


def shape_hash(name: str) -> str:
    """16 hex digits of one shape, named by its sizes with ``/`` between them."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _sizes(frame: "pd.DataFrame") -> np.ndarray:
    return frame[list(SIZE_COLUMNS)].to_numpy()


def _groups(frame: "pd.DataFrame") -> dict[str, np.ndarray]:
    """Joined library and direction → positions of its rows."""
    first, code = _first_rows(frame, ("library", "direction"))
    keys = zip(first["library"], first["direction"], strict=True)
    return {
        f"{library}|{direction}": np.flatnonzero(code == i) for i, (library, direction) in enumerate(keys)
    }


def _first_rows(frame: "pd.DataFrame", columns: tuple[str, ...]) -> tuple["pd.DataFrame", np.ndarray]:
    """One row per distinct combination, and each row's place among them."""
    groups = frame.groupby(list(columns), sort=False)
    code = groups.ngroup().to_numpy()
    first = np.unique(code, return_index=True)[1]
    return frame.iloc[first], code


def _texts(frame: "pd.DataFrame", columns: tuple[str, ...]) -> list[str]:
    """The distinct joined values of ``columns``."""
    from surrogate.dataset.problems import joined

    return joined(_first_rows(frame, columns)[0], columns).to_list()


def _member(frame: "pd.DataFrame", columns: tuple[str, ...], known: frozenset[str]) -> np.ndarray:
    """(rows,) True where the joined values of ``columns`` are among ``known``."""
    from surrogate.dataset.problems import joined

    first, code = _first_rows(frame, columns)
    return np.array([text in known for text in joined(first, columns)], dtype=bool)[code]
