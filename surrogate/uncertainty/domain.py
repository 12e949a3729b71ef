"""Where a fitted model has seen anything like a row, and the reason where it has not.

A row is inside if its settings were measured together, its sizes lie in the training ranges, and its shape was measured
or is no farther from the nearest ones than held-out shapes were from theirs. The distance is Euclidean in scaled log2
sizes, the root mean square over the nearest shapes, so that it is large where training was sparse. Needs numpy alone,
until a table comes in.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from surrogate.features.families import Family, family

if TYPE_CHECKING:
    from surrogate.dataset.rows import Rows

REACH_QUANTILE = 0.99
"""A problem farther from training than this share of the held-out problems were is outside."""
REFERENCES = 256
"""Training shapes kept at most: more are thinned to those that lie farthest from one another."""
NEIGHBOURS = 5
"""Nearest shapes that count, chosen with the weights for the sharpest intervals of one coverage on held-out shapes."""
BATCH_WEIGHT, SIZE_WEIGHT = 0.25, 0.35
WEIGHTS = {
    **dict.fromkeys(
        ("r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w", "window", "window_w", "stride"), 1.0
    ),
    "groups": 0.5,
    **dict.fromkeys(("pad_h", "pad_w", "pad"), 0.25),
}
"""Distance per doubling of a size, where it is not `SIZE_WEIGHT`; a size that may be 0 counts as 1 + size.

A size of the batch counts `BATCH_WEIGHT` beyond the batches measured; between them it counts for nothing.
"""
_CHUNK = 256  # products of this many problems stay in the cache


def weights(kind: Family) -> np.ndarray:
    """(sizes,) the distance per doubling of each of the family's sizes."""
    weights = [WEIGHTS.get(name, SIZE_WEIGHT) for name in kind.size_names]
    return np.where(_is_batch(kind), BATCH_WEIGHT, weights)


@dataclass(frozen=True, eq=False)
class References:
    """What was measured with one library and kind of problem (direction, or operator and variant).

    ``shapes`` (m, sizes) int64, m ≤ `REFERENCES`, problems that distances are taken to, whose batch sizes do not
    matter; ``least`` and ``greatest`` (sizes,) int64 of all problems; ``reach`` the greatest distance inside.
    """

    family: Family
    shapes: np.ndarray
    least: np.ndarray
    greatest: np.ndarray
    reach: float = inf

    @classmethod
    def of(cls, kind: Family, sizes: np.ndarray, reach: float = inf, count: int = REFERENCES) -> Self:
        """From the sizes (rows, sizes) of all training problems, repeats allowed; ``count`` shapes are kept at most."""
        sizes = np.asarray(sizes, dtype=np.int64)
        shapes = sizes.copy()
        shapes[:, _is_batch(kind)] = 1
        shapes = np.unique(shapes, axis=0)
        references = farthest_points(_coordinates(kind, shapes) * ~_is_batch(kind), count)
        return cls(kind, shapes[references], sizes.min(axis=0), sizes.max(axis=0), reach)

    @cached_property
    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        """(sizes + 1,) what is added to each size before its log2, and its weight; a last size of 2 becomes 1."""
        return np.append(_shift(self.family), 0.0), np.append(weights(self.family), 1.0)

    @cached_property
    def _factors(self) -> np.ndarray:
        """(m, sizes + 1): its product with coordinates and a one is a squared distance, less their squared length."""
        points = _coordinates(self.family, self.shapes) * ~_is_batch(self.family)
        return np.column_stack([-2 * points, (points * points).sum(axis=1)])

    @cached_property
    def _batches(self) -> tuple[tuple[int, float, float], ...]:
        """Of every batch size: its position, and the least and greatest coordinate."""
        low, high = _coordinates(self.family, self.least), _coordinates(self.family, self.greatest)
        return tuple((int(i), float(low[i]), float(high[i])) for i in np.flatnonzero(_is_batch(self.family)))

    @cached_property
    def bounds(self) -> tuple[tuple[str, int, int], ...]:
        """(name, least, greatest) of every size."""
        return tuple(zip(self.family.size_names, self.least.tolist(), self.greatest.tolist(), strict=True))

    def distance(self, sizes: Sequence[int]) -> float:
        """Distance of one problem's sizes, in the order of `Family.size_names`."""
        shift, scale = self._scale
        x = np.log2(np.array([*sizes, 2], dtype=np.float64) + shift) * scale
        beyond = -1.0  # for the one at the end
        for position, low, high in self._batches:
            batch = float(x[position])
            beyond += max(low - batch, batch - high, 0.0) ** 2
            x[position] = 0.0
        squared = self._factors.dot(x)
        count = min(NEIGHBOURS, len(squared))
        squared.partition(count - 1)
        nearest = sum(squared[:count].tolist()) / count
        return max(nearest + float(x.dot(x)) + beyond, 0.0) ** 0.5

    def distances(self, sizes: np.ndarray) -> np.ndarray:
        """(rows,) distances of problems (rows, sizes); neighbouring equal rows are computed once."""
        sizes = np.asarray(sizes)
        if not len(sizes):
            return np.empty(0)
        new = np.append(True, (sizes[1:] != sizes[:-1]).any(axis=1))
        points = _coordinates(self.family, sizes[new])
        beyond = np.zeros(len(points))
        for position, low, high in self._batches:
            batch = points[:, position]
            beyond += np.maximum(np.maximum(low - batch, batch - high), 0.0) ** 2
            points[:, position] = 0.0
        chunks = [self._nearest(points[i : i + _CHUNK]) for i in range(0, len(points), _CHUNK)]
        squared = np.concatenate(chunks) + (points * points).sum(axis=1) + beyond
        return np.sqrt(np.maximum(squared, 0.0))[np.cumsum(new) - 1]

    def _nearest(self, points: np.ndarray) -> np.ndarray:
        """(rows,) mean squared distance to the nearest shapes, less the squared length of ``points`` (rows, sizes)."""
        squared = points @ self._factors[:, :-1].T + self._factors[:, -1]
        count = min(NEIGHBOURS, len(self._factors))
        squared.partition(count - 1, axis=1)
        return squared[:, :count].sum(axis=1) / count

    def inside(self, sizes: np.ndarray) -> np.ndarray:
        """(rows,) True where all sizes (rows, sizes) lie in the measured ranges."""
        return np.all((self.least <= sizes) & (sizes <= self.greatest), axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; no ``reach`` where there is no limit."""
        arrays = {name: getattr(self, name).tolist() for name in ("shapes", "least", "greatest")}
        return arrays | ({} if self.reach == inf else {"reach": self.reach})

    @classmethod
    def from_dict(cls, kind: Family, content: Mapping[str, Any]) -> Self:
        """What `to_dict` gave."""
        arrays = [np.array(content[name], dtype=np.int64) for name in ("shapes", "least", "greatest")]
        arrays[0] = arrays[0].reshape(-1, len(kind.sizes))
        return cls(kind, *arrays, reach=float(content.get("reach", inf)))


@dataclass(frozen=True, eq=False)
class Domain:
    """What the training rows of one family span.

    ``settings`` the joined values of `setting_columns` seen together; ``shapes`` hashes of training shapes;
    ``versions`` joined library and version; ``references`` `reference_key` → its `References`.
    """

    family: Family
    settings: frozenset[str]
    shapes: frozenset[str]
    versions: frozenset[str]
    references: Mapping[str, References] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: "Rows", held_out_distance: np.ndarray | None = None) -> Self:
        """What the training rows span; ``held_out_distance`` (rows,) is each row's distance to the training problems
        of the fold that held it out, NaN where none did. Without it no distance is too far.
        """
        return cls(
            rows.family,
            frozenset(_texts(rows, setting_columns(rows.family))),
            frozenset(shape_hashes(rows)),
            frozenset(_texts(rows, ("library", "library_version"))),
            references_of(rows, held_out_distance),
        )

    def reference_key(self, library: str, setting: Sequence[str]) -> str:
        """The key of ``references`` for a problem whose values of `Family.setting_names` are ``setting``."""
        values = dict(zip(self.family.setting_names, setting, strict=True))
        return "|".join((library, *(values[name] for name in _reference_columns(self.family)[1:])))

    def distance(self, key: str, sizes: Sequence[int]) -> float:
        """Distance of one problem's sizes to the nearest training shapes of a `reference_key`.

        Infinite where nothing of that key was measured.
        """
        known = self.references.get(key)
        return inf if known is None else known.distance(sizes)

    def distances(self, rows: "Rows") -> np.ndarray:
        """(rows,) the distance of every row."""
        return distances_to(self.references, rows)

    def setting_reason(
        self, gpu: str, library: str, setting: Sequence[str], algorithm: str, library_version: str | None = None
    ) -> str | None:
        """Why these settings are outside, or None; ``gpu`` by its registry name, no version is any version."""
        values = (gpu, library, *setting, algorithm)
        if "|".join(values) not in self.settings:
            known = self._known_together
            length = next(i for i in range(1, len(values) + 1) if "|".join(values[:i]) not in known)
            together = ", ".join(filter(None, values[: length - 1]))
            return f"{setting_columns(self.family)[length - 1]} {values[length - 1]} was never measured" + (
                f" with {together}" if together else f"; measured: {', '.join(self.gpus)}"
            )
        if library_version is not None and f"{library}|{library_version}" not in self.versions:
            seen = sorted(v.partition("|")[2] for v in self.versions if v.startswith(f"{library}|"))
            return f"{library} {library_version} was never measured; measured: {', '.join(seen)}"
        return None

    def size_reason(self, key: str, sizes: Sequence[int], distance: float | None = None) -> str | None:
        """Why these sizes are outside, or None; ``distance`` where it is known already."""
        known = self.references.get(key)
        if known is None:
            return f"{key.replace('|', ' ').strip()} was never measured"
        for value, (name, least, greatest) in zip(sizes, known.bounds, strict=True):
            if not least <= value <= greatest:
                return f"{name} {value} lies outside the measured {least} … {greatest}"
        if distance is None:
            distance = known.distance(sizes)
        if distance > known.reach and shape_hash(self.family, sizes) not in self.shapes:
            return (
                f"the nearest measured shapes are {distance:.2f} away in scaled log2 sizes;"
                f" {REACH_QUANTILE:.0%} of held-out problems had theirs within {known.reach:.2f}"
            )
        return None

    def seen(self, rows: "Rows") -> np.ndarray:
        """(rows,) True where the row's shape was in training, at whatever batch, on whatever device."""
        return np.isin(shape_hashes(rows), list(self.shapes))

    @cached_property
    def _known_together(self) -> frozenset[str]:
        """Every beginning of every setting: what of it was seen together."""
        parts = [text.split("|") for text in self.settings]
        return frozenset("|".join(p[:i]) for p in parts for i in range(1, len(p) + 1))

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Registry names of the GPUs that training saw."""
        return tuple(sorted({text.partition("|")[0] for text in self.settings}))

    @cached_property
    def libraries(self) -> dict[str, frozenset[str]]:
        """Library → registry names of the GPUs that it was measured on, by name."""
        pairs = {tuple(text.split("|", 2)[:2]) for text in self.settings}
        names = sorted({library for _, library in pairs})
        return {name: frozenset(gpu for gpu, library in pairs if library == name) for name in names}

    def gpus_of(self, library: str, setting: Sequence[str]) -> frozenset[str]:
        """Registry names of the GPUs on which a library was measured, with the setting's operator where it has one."""
        named = dict(zip(self.family.setting_names, setting, strict=True))
        known, operator = self.libraries.get(library, frozenset()), named.get("operator")
        return frozenset(gpu for gpu in known if not operator or f"{gpu}|{library}|{operator}" in self._known_together)

    def dtypes(self, gpu: str) -> list[str]:
        """The element types measured on a GPU, by its registry name."""
        place = setting_columns(self.family).index("dtype")
        return sorted({values[place] for text in self.settings if (values := text.split("|"))[0] == gpu})

    def to_json(self) -> bytes:
        """All parts as plain values."""
        content: dict[str, Any] = {
            "family": self.family.name,
            "settings": sorted(self.settings),
            "shapes": sorted(self.shapes),
            "versions": sorted(self.versions),
            "references": {key: known.to_dict() for key, known in self.references.items()},
        }
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        data = json.loads(content)
        kind = family(data["family"])
        seen = (frozenset(data[name]) for name in ("settings", "shapes", "versions"))
        references = {key: References.from_dict(kind, known) for key, known in data["references"].items()}
        return cls(kind, *seen, references=references)


def setting_columns(kind: Family) -> tuple[str, ...]:
    """What a row is measured with; a GPU goes by its registry name."""
    return ("gpu", "library", *kind.setting_names, "algorithm")


def references_of(rows: "Rows", held_out_distance: np.ndarray | None = None) -> dict[str, References]:
    """`Domain.reference_key` → the problems of its rows that distances are taken to (see `Domain.of`)."""
    sizes = rows.sizes
    far = np.full(len(rows), np.nan) if held_out_distance is None else held_out_distance
    references = {}
    for key, positions in _by_reference(rows):
        known = far[positions][np.isfinite(far[positions])]
        reach = float(np.quantile(known, REACH_QUANTILE)) if len(known) else inf
        references[key] = References.of(rows.family, sizes[positions], reach)
    return references


def distances_to(references: Mapping[str, References], rows: "Rows") -> np.ndarray:
    """(rows,) distances to `references_of` other rows, infinite where there are none of a row's key."""
    sizes, out = rows.sizes, np.full(len(rows), inf)
    for key, positions in _by_reference(rows):
        if key in references:
            out[positions] = references[key].distances(sizes[positions])
    return out


def shape_hashes(rows: "Rows") -> np.ndarray:
    """(rows,) 16 hex digits naming each row's shape without telling it."""
    first, code = np.unique(rows.shape, return_index=True, return_inverse=True)[1:]
    hashes = [shape_hash(rows.family, sizes) for sizes in rows.sizes[first].tolist()]
    return np.array(hashes, dtype="U16")[code]


def shape_hash(kind: Family, sizes: Sequence[int]) -> str:
    """16 hex digits of the shape of a problem's sizes."""
    named = zip(kind.size_names, sizes, strict=True)
    text = "/".join(str(size) for name, size in named if name not in kind.batch)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def farthest_points(points: np.ndarray, count: int) -> np.ndarray:
    """Ascending positions of at most ``count`` of ``points`` (rows, d), each next one the farthest from those taken.

    Greedy k-centre, which covers within twice the best possible radius (Gonzalez 1985); starts at the first point.
    """
    if len(points) <= count:
        return np.arange(len(points))
    taken = [0]
    squared = ((points - points[0]) ** 2).sum(axis=1)
    while len(taken) < count:
        farthest = int(squared.argmax())
        taken.append(farthest)
        np.minimum(squared, ((points - points[farthest]) ** 2).sum(axis=1), out=squared)
    return np.sort(np.array(taken))


def _shift(kind: Family) -> np.ndarray:
    return np.array([float(size.least == 0) for size in kind.sizes])


def _is_batch(kind: Family) -> np.ndarray:
    return np.array([name in kind.batch for name in kind.size_names])


def _coordinates(kind: Family, sizes: np.ndarray) -> np.ndarray:
    """Scaled log2 sizes (…, sizes)."""
    return np.log2(np.asarray(sizes, dtype=np.float64) + _shift(kind)) * weights(kind)


def _reference_columns(kind: Family) -> tuple[str, ...]:
    """Library, and what of a setting tells one kind of problem from another."""
    return ("library", *(name for name in kind.candidate_key if name in kind.settings))


def _by_reference(rows: "Rows") -> list[tuple[str, np.ndarray]]:
    """(`Domain.reference_key`, positions of its rows)."""
    from surrogate.dataset.problems import groups

    named = groups(rows.frame, _reference_columns(rows.family))
    return [("|".join(values), positions) for values, positions in named]


def _texts(rows: "Rows", columns: tuple[str, ...]) -> list[str]:
    """The distinct joined values of ``columns``."""
    from surrogate.dataset.problems import joined

    return joined(rows.frame.drop_duplicates(list(columns)), columns).to_list()
