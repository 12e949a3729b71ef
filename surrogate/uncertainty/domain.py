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
from math import exp, inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models.json_types import Number, from_json_types, key_text

if TYPE_CHECKING:
    from surrogate.dataset.rows import Rows

REACH_QUANTILE = 0.99
"""A problem farther from training than this share of the held-out problems were is outside."""
REFERENCES = 256
"""Training shapes kept at most: more are thinned to those that lie farthest from one another."""
NEIGHBOURS = 5
"""Nearest shapes that count, chosen with the weights for the sharpest intervals of one coverage on held-out shapes."""
BATCH_WEIGHT = 0.25
"""Distance per doubling of a size of the batch beyond the batches measured; between them it counts for nothing."""
PER_DOUBLING = 0.4
"""Half width in log time that a problem of a described kernel gains with every doubling or halving beyond the measured
ones. The least tenth with which nine in ten times held, near and far, where half of a real table's problems, the small
or the large ones, had to foretell the other half; chosen on seven tables, and it held on seven others."""
_CHUNK = 256  # products of this many problems stay in the cache


class SettingKey(NamedTuple):
    """What a row is measured with: ``values`` of `Family.setting_names`; the GPU goes by its registry name."""

    gpu: str
    library: str
    values: tuple[str, ...]
    algorithm: str

    @classmethod
    def of(cls, fields: Sequence[str]) -> Self:
        """From one value for every one of `setting_columns`."""
        return cls(fields[0], fields[1], tuple(fields[2:-1]), fields[-1])

    @property
    def fields(self) -> tuple[str, ...]:
        """One value for every one of `setting_columns`."""
        return (self.gpu, self.library, *self.values, self.algorithm)


class ReferenceKey(NamedTuple):
    """A library, and those ``values`` of a setting that tell one kind of problem from another.

    On a GPU by its registry name, or (None) on all of them.
    """

    gpu: str | None
    library: str
    values: tuple[str, ...]

    @classmethod
    def from_text(cls, text: str, family: Family) -> Self:
        """What `key_text` gave: a GPU comes first where there is a field more than `reference_columns`."""
        fields = text.split("|")
        gpu = fields.pop(0) if len(fields) > len(reference_columns(family)) else None
        return cls(gpu, fields[0], tuple(fields[1:]))


class LibraryVersion(NamedTuple):
    """A release of a library."""

    library: str
    version: str


def weights(family: Family) -> np.ndarray:
    """(sizes,) the distance per doubling of each of the family's sizes; one that may be 0 counts as 1 + size."""
    return np.where(_is_batch(family), BATCH_WEIGHT, [size.per_doubling for size in family.sizes])


@dataclass(frozen=True, eq=False)
class References:
    """What was measured with one library and kind of problem (direction, or operator and variant).

    ``shapes`` (m, sizes) int64, m ≤ `REFERENCES`, problems that distances are taken to, whose batch sizes do not
    matter; ``minimum`` and ``greatest`` (sizes,) int64 of all problems; ``reach`` the greatest distance inside.
    """

    family: Family
    shapes: np.ndarray
    minimum: np.ndarray
    greatest: np.ndarray
    reach: float = inf

    @classmethod
    def of(cls, family: Family, sizes: np.ndarray, reach: float = inf, count: int = REFERENCES) -> Self:
        """From the sizes (rows, sizes) of all training problems, repeats allowed; ``count`` shapes are kept at most."""
        sizes = np.asarray(sizes, dtype=np.int64)
        shapes = sizes.copy()
        shapes[:, _is_batch(family)] = 1
        shapes = np.unique(shapes, axis=0)
        references = farthest_points(_coordinates(family, shapes) * ~_is_batch(family), count)
        return cls(family, shapes[references], minimum=sizes.min(axis=0), greatest=sizes.max(axis=0), reach=reach)

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
        low, high = _coordinates(self.family, self.minimum), _coordinates(self.family, self.greatest)
        return tuple((int(i), float(low[i]), float(high[i])) for i in np.flatnonzero(_is_batch(self.family)))

    @cached_property
    def bounds(self) -> tuple[tuple[str, int, int], ...]:
        """(name, least, greatest) of every size."""
        return tuple(zip(self.family.size_names, self.minimum.tolist(), self.greatest.tolist(), strict=True))

    def distance(self, sizes: Sequence[int]) -> float:
        """Distance of one problem's sizes, in the order of `Family.size_names`."""
        shift, scale = self._scale
        x = np.log2(np.array([*sizes, 2], dtype=np.float64) + shift) * scale
        batch_excess = -1.0  # for the one at the end
        for position, low, high in self._batches:
            batch = float(x[position])
            batch_excess += max(low - batch, batch - high, 0.0) ** 2
            x[position] = 0.0
        squared = self._factors.dot(x)
        count = min(NEIGHBOURS, len(squared))
        squared.partition(count - 1)
        nearest = sum(squared[:count].tolist()) / count
        return max(nearest + float(x.dot(x)) + batch_excess, 0.0) ** 0.5

    def distances(self, sizes: np.ndarray) -> np.ndarray:
        """(rows,) distances of problems (rows, sizes); neighbouring equal rows are computed once."""
        sizes = np.asarray(sizes)
        if len(sizes) < 2:  # faster than arrays
            return np.array([self.distance(row) for row in sizes.tolist()])
        new = np.append(True, (sizes[1:] != sizes[:-1]).any(axis=1))
        points = _coordinates(self.family, sizes[new])
        batch_excess = np.zeros(len(points))
        for position, low, high in self._batches:
            batch = points[:, position]
            batch_excess += np.maximum(np.maximum(low - batch, batch - high), 0.0) ** 2
            points[:, position] = 0.0
        chunks = [self._nearest(points[i : i + _CHUNK]) for i in range(0, len(points), _CHUNK)]
        squared = np.concatenate(chunks) + (points * points).sum(axis=1) + batch_excess
        return np.sqrt(np.maximum(squared, 0.0))[np.cumsum(new) - 1]

    def _nearest(self, points: np.ndarray) -> np.ndarray:
        """(rows,) mean squared distance to the nearest shapes, less the squared length of ``points`` (rows, sizes)."""
        squared = points @ self._factors[:, :-1].T + self._factors[:, -1]
        count = min(NEIGHBOURS, len(self._factors))
        squared.partition(count - 1, axis=1)
        return squared[:, :count].sum(axis=1) / count

    def inside(self, sizes: np.ndarray) -> np.ndarray:
        """(rows,) True where all sizes (rows, sizes) lie in the measured ranges."""
        return np.all((self.minimum <= sizes) & (sizes <= self.greatest), axis=1)

    def doublings_outside(self, sizes: np.ndarray) -> np.ndarray:
        """(rows,) doublings, or halvings, from the measured ranges to ``sizes`` (rows, sizes): of the sizes in sum, or
        of their product, whichever is more."""
        logs, shapes, minimum, greatest = (
            np.log2(np.maximum(each, 1)) for each in (sizes, self.shapes, self.minimum, self.greatest)
        )
        outside = np.maximum(minimum - logs, 0.0) + np.maximum(logs - greatest, 0.0)
        shaped = ~_is_batch(self.family)
        product, measured = logs[:, shaped].sum(axis=1), shapes[:, shaped].sum(axis=1)
        past = np.maximum(product - measured.max(), measured.min() - product)
        return np.maximum(outside.sum(axis=1), past)

    def to_dict(self) -> dict[str, object]:
        """Plain numbers; no ``reach`` where there is no limit."""
        arrays = {"shapes": self.shapes.tolist(), "least": self.minimum.tolist(), "greatest": self.greatest.tolist()}
        return arrays if self.reach == inf else {**arrays, "reach": self.reach}

    @classmethod
    def from_dict(cls, family: Family, stored: Mapping[str, Any]) -> Self:
        """What `to_dict` gave. Raises `InputError` for sizes that the family has not, or none."""
        rows = [*stored["shapes"], stored["least"], stored["greatest"]]
        sizes = from_json_types(np.ndarray, rows, "references").astype(np.int64)
        minimum, greatest = sizes[-2], sizes[-1]
        floors = [size.minimum for size in family.sizes]
        if sizes.shape[1:] != (len(floors),) or (sizes < floors).any() or len(sizes) < 3 or (minimum > greatest).any():
            raise InputError(f"shapes, least and greatest are not sizes of {family.name}")
        reach = from_json_types(Number, stored["reach"], "reach") if "reach" in stored else inf
        return cls(family, sizes[:-2], minimum, greatest, reach=reach)


@dataclass(frozen=True, eq=False)
class Domain:
    """What the training rows of one family span.

    ``settings`` were measured together; ``shapes`` are hashes of training shapes; ``references`` the problems that
    distances are taken to.
    """

    family: Family
    settings: frozenset[SettingKey]
    shapes: frozenset[str]
    versions: frozenset[LibraryVersion]
    references: Mapping[ReferenceKey, References] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: "Rows", held_out_distance: np.ndarray | None = None) -> Self:
        """What the training rows span; ``held_out_distance`` (rows,) is each row's distance to the training problems
        of the fold that held it out, NaN where none did. Without it no distance is too far.
        """
        from surrogate.dataset.problems import device_names, row_groups

        frame = rows.frame.assign(gpu=device_names(rows.frame))
        settings = frozenset(SettingKey.of(fields) for fields, _ in row_groups(frame, setting_columns(rows.family)))
        versions = frozenset(LibraryVersion(*names) for names, _ in row_groups(frame, ("library", "library_version")))
        shapes = frozenset(shape_hashes(rows).tolist())
        references = references_of(rows, held_out_distance)
        return cls(rows.family, settings, shapes, versions, references=references)

    def reference_key(self, library: str, setting: Sequence[str]) -> ReferenceKey:
        """The key of ``references`` for a problem whose values of `Family.setting_names` are ``setting``."""
        named = dict(zip(self.family.setting_names, setting, strict=True))
        _, *columns = reference_columns(self.family)
        return ReferenceKey(None, library, tuple(named[name] for name in columns))

    def distance(self, key: ReferenceKey, sizes: Sequence[int]) -> float:
        """Distance of one problem's sizes to the nearest training shapes of a `reference_key`.

        Infinite where nothing of that key was measured.
        """
        references = self.references.get(key)
        return inf if references is None else references.distance(sizes)

    def distances(self, key: ReferenceKey, sizes: np.ndarray) -> np.ndarray:
        """(problems,) `distance` of each of ``sizes`` (problems, sizes)."""
        references = self.references.get(key)
        return np.full(len(sizes), inf) if references is None else references.distances(sizes)

    def extrapolation_width(self, sizes: np.ndarray) -> np.ndarray:
        """(problems,) what ``sizes`` (problems, sizes) beyond the measured ones add to the half widths of a described
        kernel. Other families' widths go by the distance alone."""
        if not self.family.parameter_names:
            return np.zeros(len(sizes))
        return PER_DOUBLING * np.min([each.doublings_outside(sizes) for each in self.references.values()], axis=0)

    def setting_reason(self, key: SettingKey, library_version: str | None = None) -> str | None:
        """Why this setting is outside, or None; no version is any version."""
        if key not in self.settings:
            # The first field with which nothing was measured any more, given those before it.
            fields = key.fields
            length = next(i for i in range(1, len(fields) + 1) if fields[:i] not in self._beginnings)
            together = ", ".join(filter(None, fields[: length - 1]))
            return f"{setting_columns(self.family)[length - 1]} {fields[length - 1]} was never measured" + (
                f" with {together}" if together else f"; measured: {', '.join(self.gpus)}"
            )
        if library_version is not None and LibraryVersion(key.library, library_version) not in self.versions:
            measured = ", ".join(sorted(self.versions_of(key.library))).strip() or "a table that names no version"
            return f"{key.library} {library_version} was never measured; measured: {measured}"
        return None

    def size_reason(self, key: ReferenceKey, sizes: Sequence[int], distance: float | None = None) -> str | None:
        """Why these sizes are outside, or None; ``distance`` where it is known already."""
        references = self.references.get(key)
        if references is None:
            return f"{' '.join((key.library, *key.values)).strip()} was never measured"
        extra = float(self.extrapolation_width(np.array([sizes]))[0])
        wider = f", so that intervals are wider, each end by a factor of {exp(extra):.3g}" if extra else ""
        outside = [
            f"{name} {value} lies outside the measured {minimum} … {greatest}"
            for value, (name, minimum, greatest) in zip(sizes, references.bounds, strict=True)
            if not minimum <= value <= greatest
        ]
        if outside:
            return f"{', '.join(outside)}{wider}"
        if wider:
            return f"the product of the sizes lies outside the measured ones'{wider}"
        if distance is None:
            distance = references.distance(sizes)
        if distance > references.reach and shape_hash(self.family, sizes) not in self.shapes:
            return (
                f"the nearest measured shapes are {distance:.2f} away in scaled log2 sizes;"
                f" {REACH_QUANTILE:.0%} of held-out problems had theirs within {references.reach:.2f}"
            )
        return None

    def seen(self, rows: "Rows") -> np.ndarray:
        """(rows,) True where the row's shape was in training, at whatever batch, on whatever device."""
        return np.isin(shape_hashes(rows), list(self.shapes))

    @cached_property
    def _beginnings(self) -> frozenset[tuple[str, ...]]:
        """Every beginning of every setting's fields: what of it was seen together."""
        fields = [key.fields for key in self.settings]
        return frozenset(values[:i] for values in fields for i in range(1, len(values) + 1))

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Registry names of the GPUs that training saw."""
        return tuple(sorted({key.gpu for key in self.settings}))

    @cached_property
    def libraries(self) -> dict[str, frozenset[str]]:
        """Library → registry names of the GPUs that it was measured on, by name."""
        pairs = {(key.library, key.gpu) for key in self.settings}
        names = sorted({library for library, _ in pairs})
        return {name: frozenset(gpu for library, gpu in pairs if library == name) for name in names}

    def versions_of(self, library: str) -> set[str]:
        """The versions of a library that were measured."""
        return {release.version for release in self.versions if release.library == library}

    def gpus_of(self, library: str, setting: Sequence[str]) -> frozenset[str]:
        """Registry names of the GPUs on which a library was measured, with the setting's operator where it has one."""
        named = dict(zip(self.family.setting_names, setting, strict=True))
        measured = self.libraries.get(library, frozenset())
        if not (operator := named.get("operator")):
            return measured
        return frozenset(gpu for gpu in measured if (gpu, library, operator) in self._beginnings)

    def dtypes(self, gpu: str) -> list[str]:
        """The element types measured on a GPU, by its registry name."""
        position = self.family.setting_names.index("dtype")
        return sorted({key.values[position] for key in self.settings if key.gpu == gpu})

    def to_json(self) -> bytes:
        """All parts as plain values."""
        content = {
            "family": self.family.name,
            "settings": sorted(map(key_text, self.settings)),
            "shapes": sorted(self.shapes),
            "versions": sorted(map(key_text, self.versions)),
            "references": {key_text(key): references.to_dict() for key, references in self.references.items()},
        }
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, family: Family) -> Self:
        """What `to_json` wrote, of a bundle's part of this family."""
        data = from_json_types(_Stored, json.loads(content), "domain")
        fields = [text.split("|") for text in data.settings]
        if {len(each) for each in fields} != {len(setting_columns(family))}:
            raise InputError(f"domain.settings are not {', '.join(setting_columns(family))}")
        settings = frozenset(map(SettingKey.of, fields))
        versions = frozenset(LibraryVersion(*text.split("|", 1)) for text in data.versions)
        references = {
            ReferenceKey.from_text(text, family): References.from_dict(family, stored)
            for text, stored in data.references.items()
        }
        return cls(family, settings, frozenset(data.shapes), versions, references=references)


@dataclass(frozen=True)
class _Stored:
    """A `Domain` as JSON; keys and settings are one text each."""

    settings: tuple[str, ...]
    shapes: tuple[str, ...]
    versions: tuple[str, ...]
    references: Mapping[str, Mapping[str, Any]]


def setting_columns(family: Family) -> tuple[str, ...]:
    """What a row is measured with; a GPU goes by its registry name."""
    return ("gpu", "library", *family.setting_names, "algorithm")


def references_of(rows: "Rows", held_out_distance: np.ndarray | None = None) -> dict[ReferenceKey, References]:
    """`Domain.reference_key` → the problems of its rows that distances are taken to (see `Domain.of`)."""
    sizes = rows.sizes
    distance = np.full(len(rows), np.nan) if held_out_distance is None else held_out_distance
    references = {}
    for key, positions in _by_reference(rows):
        finite = distance[positions][np.isfinite(distance[positions])]
        reach = float(np.quantile(finite, REACH_QUANTILE)) if len(finite) else inf
        references[key] = References.of(rows.family, sizes[positions], reach)
    return references


def distances_to(references: Mapping[ReferenceKey, References], rows: "Rows") -> np.ndarray:
    """(rows,) distances to `references_of` other rows, infinite where there are none of a row's key."""
    sizes = rows.sizes
    out = np.full(len(rows), inf)
    for key, positions in _by_reference(rows):
        if key in references:
            out[positions] = references[key].distances(sizes[positions])
    return out


def shape_hashes(rows: "Rows") -> np.ndarray:
    """(rows,) 16 hex digits naming each row's shape without telling it."""
    first, code = np.unique(rows.shape, return_index=True, return_inverse=True)[1:]
    hashes = [shape_hash(rows.family, sizes) for sizes in rows.sizes[first].tolist()]
    return np.array(hashes, dtype="U16")[code]


def shape_hash(family: Family, sizes: Sequence[int]) -> str:
    """16 hex digits of the shape of a problem's sizes."""
    named = zip(family.size_names, sizes, strict=True)
    text = "/".join(str(size) for name, size in named if name not in family.batch)
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


def _shift(family: Family) -> np.ndarray:
    return np.array([float(size.minimum == 0) for size in family.sizes])


def _is_batch(family: Family) -> np.ndarray:
    return np.array([name in family.batch for name in family.size_names])


def _coordinates(family: Family, sizes: np.ndarray) -> np.ndarray:
    """Scaled log2 sizes (…, sizes)."""
    return np.log2(np.asarray(sizes, dtype=np.float64) + _shift(family)) * weights(family)


def reference_columns(family: Family) -> tuple[str, ...]:
    """The columns of a `ReferenceKey`."""
    return ("library", *(name for name in family.candidate_key if name in family.settings))


def _by_reference(rows: "Rows") -> list[tuple[ReferenceKey, np.ndarray]]:
    """(`Domain.reference_key`, positions of its rows)."""
    from surrogate.dataset.problems import row_groups

    named = row_groups(rows.frame, reference_columns(rows.family))
    return [(ReferenceKey(None, library, tuple(values)), positions) for (library, *values), positions in named]
