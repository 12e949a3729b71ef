"""Decide whether a fitted model was trained near a row, and give the reason if not.

A row is inside if its settings were measured together, its sizes lie in the training ranges, and its shape was measured
or is near measured shapes. The limit for "near" is the distance of held-out shapes to their nearest training shapes.
The distance is Euclidean in scaled log2 sizes: the root mean square over the nearest shapes, so that it is large where
training was sparse. A single problem needs only NumPy.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from surrogate.features import CUDNN_GRAPH, InputError
from surrogate.features.families import Family
from surrogate.models.json_types import Number, from_json_types, key_text

if TYPE_CHECKING:
    from surrogate.dataset.rows import Rows

REACH_QUANTILE = 0.99
"""A problem is outside if this share of the held-out problems was nearer to training."""
REFERENCES = 256
"""Maximum number of training shapes that are kept. More shapes are thinned to those farthest from one another."""
NEIGHBOURS = 5
"""Number of nearest shapes. The number and the weights give the sharpest intervals of equal coverage on held-out
shapes.
"""
BATCH_WEIGHT = 0.25
"""Distance per doubling of a batch size outside the measured batches. Inside them it adds no distance."""
PER_DOUBLING = 0.4
"""Half width in log time that a described kernel's problem gains per halving or doubling outside the measured ones.

It is the smallest multiple of 0.1 with which intervals cover 90 % of the times, near and far. Seven tables determined
it, and seven other tables confirmed it. On each table, models of the smaller problems predicted the larger problems,
and the reverse. Above the measured problems, a table shows its own (`Domain.per_doubling`). Below them it does not: no
large problem shows that the launch decides the time of small ones.
"""
MIN_SHAPES = 10
"""Minimum number of shapes that show a width for new shapes."""
_CHUNK = 256  # products of this many problems stay in the cache


class SettingKey(NamedTuple):
    """The setting in which a row is measured, with its algorithm.

    ``setting_values`` has one entry for each name in `Family.setting_names`. ``gpu`` is a registry name.
    """

    gpu: str
    library: str
    setting_values: tuple[str, ...]
    algorithm: str

    @classmethod
    def of(cls, fields: Sequence[str]) -> Self:
        """Return the key from one value for each of `setting_columns`."""
        return cls(fields[0], fields[1], tuple(fields[2:-1]), fields[-1])

    @property
    def fields(self) -> tuple[str, ...]:
        """Return one value for each of `setting_columns`."""
        return (self.gpu, self.library, *self.setting_values, self.algorithm)


class ReferenceKey(NamedTuple):
    """A library, and the ``reference_values`` of a setting that separate kinds of problems.

    ``gpu`` is a registry name, or None for all GPUs.
    """

    gpu: str | None
    library: str
    reference_values: tuple[str, ...]

    @classmethod
    def from_text(cls, text: str, family: Family) -> Self:
        """Return the key from the output of `key_text`.

        A text with one field more than `reference_columns` begins with the GPU.
        """
        fields = text.split("|")
        gpu = fields.pop(0) if len(fields) > len(reference_columns(family)) else None
        return cls(gpu, fields[0], tuple(fields[1:]))


class LibraryVersion(NamedTuple):
    """A release of a library."""

    library: str
    version: str


def size_weights(family: Family) -> np.ndarray:
    """Return the distance per doubling of each of the family's sizes, (sizes,). A size that may be 0 counts as 1 +
    size.
    """
    return np.where(_is_batch(family), BATCH_WEIGHT, [size.per_doubling for size in family.sizes])


@dataclass(frozen=True, eq=False)
class TrainingShapes:
    """The measured problems of one library and kind (direction, or operator and variant).

    Attributes
    ----------
    shapes
        (m, sizes) int64, m ≤ `REFERENCES`: problems to which distances are measured. Their batch sizes do not matter.
    minimum, maximum
        (sizes,) int64: ranges over all problems.
    reach
        The largest distance of a problem that is inside.
    """

    family: Family
    shapes: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    reach: float = inf

    @classmethod
    def of(cls, family: Family, sizes: np.ndarray, reach: float = inf, count: int = REFERENCES) -> Self:
        """Return the training shapes of problems with ``sizes`` (rows, sizes), with at most ``count`` shapes."""
        sizes = np.asarray(sizes, dtype=np.int64)
        shapes = sizes.copy()
        shapes[:, _is_batch(family)] = 1
        shapes = np.unique(shapes, axis=0)
        references = farthest_points(_coordinates(family, shapes) * ~_is_batch(family), count)
        return cls(family, shapes[references], minimum=sizes.min(axis=0), maximum=sizes.max(axis=0), reach=reach)

    @cached_property
    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the offset added to each size before its log2, and the size's weight."""
        return _offset(self.family), size_weights(self.family)

    @cached_property
    def _factors(self) -> np.ndarray:
        """Return (m, sizes + 1): the product with (coordinates, 1) is the squared distance less |coordinates|²."""
        points = _coordinates(self.family, self.shapes) * ~_is_batch(self.family)
        return np.column_stack([-2 * points, (points * points).sum(axis=1)])

    @cached_property
    def _batches(self) -> tuple[tuple[int, float, float], ...]:
        """Return the position, and the smallest and largest coordinate, of each batch size."""
        low, high = _coordinates(self.family, self.minimum), _coordinates(self.family, self.maximum)
        return tuple((int(i), float(low[i]), float(high[i])) for i in np.flatnonzero(_is_batch(self.family)))

    @cached_property
    def bounds(self) -> tuple[tuple[str, int, int], ...]:
        """Return (name, minimum, maximum) of each size."""
        return tuple(zip(self.family.size_names, self.minimum.tolist(), self.maximum.tolist(), strict=True))

    def distances(self, sizes: np.ndarray) -> np.ndarray:
        """Return the distances (rows,) of problems (rows, sizes). Equal neighbouring rows are computed once."""
        if len(sizes) < 2:
            return self._distances(sizes)
        new = np.append(True, (sizes[1:] != sizes[:-1]).any(axis=1))
        distinct = sizes[new]
        chunks = [self._distances(distinct[i : i + _CHUNK]) for i in range(0, len(distinct), _CHUNK)]
        return np.concatenate(chunks)[np.cumsum(new) - 1]

    def _distances(self, sizes: np.ndarray) -> np.ndarray:
        """Return the distances (rows,) of a few problems (rows, sizes)."""
        offset, weights = self._scale
        points = np.log2(sizes + offset) * weights
        batch_excess = 0.0
        for position, low, high in self._batches:
            batch = points[:, position]
            batch_excess = batch_excess + np.maximum(np.maximum(low - batch, batch - high), 0.0) ** 2
            points[:, position] = 0.0
        # The squared distances to all shapes, less the squared length of each point; then the mean of the nearest.
        squared = points.dot(self._factors[:, :-1].T) + self._factors[:, -1]
        count = min(NEIGHBOURS, len(self._factors))
        squared.partition(count - 1, axis=1)
        nearest = squared[:, :count].sum(axis=1) / count
        return np.sqrt(np.maximum(nearest + (points * points).sum(axis=1) + batch_excess, 0.0))

    def inside(self, sizes: np.ndarray) -> np.ndarray:
        """Return True (rows,) if all sizes (rows, sizes) lie in the measured ranges."""
        return np.all((self.minimum <= sizes) & (sizes <= self.maximum), axis=1)

    def doublings_outside(self, sizes: np.ndarray) -> np.ndarray:
        """Return the halvings below and the doublings above the measured ranges to ``sizes`` (rows, sizes), (rows, 2).

        They are summed over the sizes. If the product of the sizes is farther outside, it counts instead.
        """
        measured_sizes = (self.shapes, self.minimum, self.maximum)
        logs, shapes, minimum, maximum = (np.log2(np.maximum(each, 1)) for each in (sizes, *measured_sizes))
        shaped = ~_is_batch(self.family)
        product, measured = logs[:, shaped].sum(axis=1), shapes[:, shaped].sum(axis=1)
        below = np.maximum(np.maximum(minimum - logs, 0.0).sum(axis=1), measured.min() - product)
        above = np.maximum(np.maximum(logs - maximum, 0.0).sum(axis=1), product - measured.max())
        return np.column_stack([below, above])

    def to_dict(self) -> dict[str, object]:
        """Return JSON types. The key ``reach`` is left out if there is no limit."""
        arrays = {"shapes": self.shapes.tolist(), "least": self.minimum.tolist(), "greatest": self.maximum.tolist()}
        return arrays if self.reach == inf else {**arrays, "reach": self.reach}

    @classmethod
    def from_dict(cls, family: Family, stored: Mapping[str, Any]) -> Self:
        """Return the shapes from the output of `to_dict`. Raise `InputError` if the sizes are not the family's."""
        rows = [*stored["shapes"], stored["least"], stored["greatest"]]
        sizes = from_json_types(np.ndarray, rows, "references").astype(np.int64)
        minimum, maximum = sizes[-2], sizes[-1]
        minima = [size.minimum for size in family.sizes]
        if sizes.shape[1:] != (len(minima),) or (sizes < minima).any() or len(sizes) < 3 or (minimum > maximum).any():
            raise InputError(f"shapes, least and greatest are not sizes of family {family.name}")
        reach = from_json_types(Number, stored["reach"], "reach") if "reach" in stored else inf
        return cls(family, sizes[:-2], minimum, maximum, reach=reach)


@dataclass(frozen=True, eq=False)
class Domain:
    """The settings, shapes and versions that one family's training rows cover.

    Attributes
    ----------
    settings
        Settings that were measured, with their algorithms.
    shapes
        Hashes of the training shapes.
    versions
        Measured library versions.
    references
        Problems to which distances are measured. A described kernel also has those of each GPU.
    per_doubling
        Half width per doubling above the measured problems, for a described kernel.
    """

    family: Family
    settings: frozenset[SettingKey]
    shapes: frozenset[str]
    versions: frozenset[LibraryVersion]
    references: Mapping[ReferenceKey, TrainingShapes] = field(default_factory=dict)
    per_doubling: float = PER_DOUBLING

    @classmethod
    def of(cls, rows: "Rows", held_out_distance: np.ndarray | None = None) -> Self:
        """Return the domain of the training rows.

        Parameters
        ----------
        rows
            Training rows of one family.
        held_out_distance
            (rows,) distance of each row to the training problems of the fold that held the row out, or NaN. If None, no
            distance is too large.
        """
        from surrogate.dataset.problems import device_names, row_groups

        frame = rows.frame.assign(gpu=device_names(rows.frame))
        settings = frozenset(SettingKey.of(fields) for fields, _ in row_groups(frame, setting_columns(rows.family)))
        versions = frozenset(LibraryVersion(*names) for names, _ in row_groups(frame, ("library", "library_version")))
        shapes = frozenset(shape_hashes(rows).tolist())
        references = training_shapes_of(rows, held_out_distance)
        if rows.family.parameter_names:
            for (name,), positions in row_groups(frame, ("gpu",)):
                on_gpu = training_shapes_of(rows.take(positions))
                references |= {key._replace(gpu=name): measured for key, measured in on_gpu.items()}
        return cls(rows.family, settings, shapes, versions, references)

    def reference_key(self, library: str, setting: Sequence[str]) -> ReferenceKey:
        """Return the key of ``references`` for a problem with these values of `Family.setting_names`."""
        settings = dict(zip(self.family.setting_names, setting, strict=True))
        _, *columns = reference_columns(self.family)
        return ReferenceKey(None, library, tuple(settings[name] for name in columns))

    def distances(self, key: ReferenceKey, sizes: np.ndarray) -> np.ndarray:
        """Return the distances (problems,) of ``sizes`` (problems, sizes) to the training shapes of a `reference_key`.

        They are infinite if no problem of this key was measured.
        """
        references = self.references.get(key)
        return np.full(len(sizes), inf) if references is None else references.distances(sizes)

    def on_gpu(self, gpu: str | None) -> list[TrainingShapes]:
        """Return the problems of a described kernel that were measured on a GPU; of all GPUs if it has no own ones."""
        own = [shapes for key, shapes in self.references.items() if key.gpu == gpu]
        return own or [shapes for key, shapes in self.references.items() if key.gpu is None]

    def shapes_if_few(self, gpu: str) -> int:
        """Return the number of a GPU's shapes if it has less than `MIN_SHAPES`, and other GPUs have more; else 0."""
        if not self.family.parameter_names:
            return 0
        own, every = (
            len({*map(tuple, np.concatenate([e.shapes for e in self.on_gpu(name)]).tolist())}) for name in (gpu, None)
        )
        return own if own < min(MIN_SHAPES, every) else 0

    def extrapolation_width(self, sizes: np.ndarray, gpu: str | None = None) -> np.ndarray:
        """Return the extra half width (problems,) for ``sizes`` (problems, sizes) outside those measured on a GPU.

        Without a GPU, the sizes of all GPUs count. It is 0 unless the kernel is described. The widths of other families
        depend on the distance alone.
        """
        if not self.family.parameter_names:
            return np.zeros(len(sizes))
        slopes = PER_DOUBLING, self.per_doubling
        return np.min([each.doublings_outside(sizes) @ slopes for each in self.on_gpu(gpu)], axis=0)

    def setting_reason(self, key: SettingKey, library_version: str) -> str | None:
        """Return why this setting or the library's version is outside, or None."""
        if length := self._new_field(key):
            fields = key.fields
            together = ", ".join(filter(None, fields[: length - 1]))
            rest = f" with {together}" if together else f"; measured: {', '.join(self.gpus)}"
            return f"{setting_columns(self.family)[length - 1]} {fields[length - 1]} was never measured{rest}"
        if LibraryVersion(key.library, library_version) not in self.versions:
            measured = ", ".join(sorted(self.versions_of(key.library))).strip() or "a table without versions"
            return f"{key.library} {library_version} was never measured; measured: {measured}"
        return None

    def unmeasured_value(self, keys: Sequence[SettingKey]) -> str:
        """Return the name and the value of the first field that no measurement shares with the fields before it.

        If one of the keys was measured, the result is empty. Otherwise the key with the most measured fields counts.
        """
        lengths = [self._new_field(key) for key in keys]
        length = max(lengths)
        field = keys[lengths.index(length)].fields[length - 1]
        return f"{setting_columns(self.family)[length - 1]} {field}" if all(lengths) else ""

    def _new_field(self, key: SettingKey) -> int:
        """Return the position, from 1, of the first field that was never measured with the fields before it, or 0."""
        fields = key.fields
        return next((i for i in range(1, len(fields) + 1) if fields[:i] not in self._beginnings), 0)

    def size_reason(self, key: ReferenceKey, sizes: Sequence[int], gpu: str | None = None) -> str | None:
        """Return why these sizes are outside those of all GPUs or, for a described kernel, of a GPU; or None."""
        references = self.references.get(key)
        if references is None:
            return f"{' '.join((key.library, *key.reference_values)).strip()} was never measured"
        own_width, extra_width = (float(self.extrapolation_width(np.array([sizes]), each)[0]) for each in (gpu, None))
        wider = ", so that intervals are wider" if own_width else ""
        wider += f", each end by a factor of {exp(extra_width):.3g}" if own_width and own_width == extra_width else ""
        own = self.references.get(key._replace(gpu=gpu), references)
        place = f" on {gpu}" if own_width > extra_width else ""
        outside = [
            f"{name} {value} lies outside the measured {minimum} … {maximum}{place}"
            for value, (name, minimum, maximum) in zip(sizes, own.bounds, strict=True)
            if not minimum <= value <= maximum
        ]
        if outside:
            inside = [
                " ".join(filter(None, (other.library, *other.reference_values)))
                for other, shapes in self.references.items()
                if not place
                and (other.gpu, other.library) == (key.gpu, key.library)
                and shapes.inside(np.array([sizes]))[0]
            ]
            also = f"; measured there: {', '.join(inside[:4])}" if inside else ""
            return f"{', '.join(outside)}{wider}{also}"
        if wider:
            return f"the product of the sizes lies outside the measured products{place}{wider}"
        distance = float(references.distances(np.array([sizes]))[0])
        if distance > references.reach and shape_hash(self.family, sizes) not in self.shapes:
            return (
                f"the nearest measured shapes are {distance:.2f} away in scaled log2 sizes;"
                f" {REACH_QUANTILE:.0%} of held-out problems had theirs within {references.reach:.2f}"
            )
        return None

    def shape_was_trained(self, rows: "Rows") -> np.ndarray:
        """Return True (rows,) if the row's shape was in training, with any batch and on any device."""
        return np.isin(shape_hashes(rows), list(self.shapes))

    @cached_property
    def _beginnings(self) -> frozenset[tuple[str, ...]]:
        """Return every prefix of every setting's fields: the values that were measured together."""
        fields = [key.fields for key in self.settings]
        return frozenset(values[:i] for values in fields for i in range(1, len(values) + 1))

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Return the registry names of the training GPUs."""
        return tuple(sorted({key.gpu for key in self.settings}))

    @cached_property
    def libraries(self) -> dict[str, frozenset[str]]:
        """Return library → registry names of the GPUs on which it was measured, sorted by library."""
        pairs = {(key.library, key.gpu) for key in self.settings}
        names = sorted({library for library, _ in pairs})
        return {name: frozenset(gpu for library, gpu in pairs if library == name) for name in names}

    @property
    def default_libraries(self) -> tuple[str, ...]:
        """Return the libraries that compete if none is requested: engine configurations only without another one."""
        return tuple(name for name in self.libraries if name != CUDNN_GRAPH) or tuple(self.libraries)

    def versions_of(self, library: str) -> set[str]:
        """Return the measured versions of a library."""
        return {release.version for release in self.versions if release.library == library}

    def gpus_of(self, library: str, setting: Sequence[str]) -> frozenset[str]:
        """Return the registry names of the GPUs on which a library was measured, with the setting's operator if it has
        one.
        """
        settings = dict(zip(self.family.setting_names, setting, strict=True))
        measured = self.libraries.get(library, frozenset())
        if not (operator := settings.get("operator")):
            return measured
        return frozenset(gpu for gpu in measured if (gpu, library, operator) in self._beginnings)

    def dtypes(self, gpu: str) -> list[str]:
        """Return the element types that were measured on a GPU (registry name)."""
        position = self.family.setting_names.index("dtype")
        return sorted({key.setting_values[position] for key in self.settings if key.gpu == gpu})

    def to_json(self) -> bytes:
        """Return all parts as JSON."""
        content = {
            "family": self.family.name,
            "settings": sorted(map(key_text, self.settings)),
            "shapes": sorted(self.shapes),
            "versions": sorted(map(key_text, self.versions)),
            "references": {key_text(key): references.to_dict() for key, references in self.references.items()},
            **({} if self.per_doubling == PER_DOUBLING else {"per_doubling": self.per_doubling}),
        }
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, family: Family) -> Self:
        """Return the domain of a bundle's family from the output of `to_json`."""
        data = from_json_types(_Stored, json.loads(content), "domain")
        fields = [text.split("|") for text in data.settings]
        if {len(each) for each in fields} != {len(setting_columns(family))}:
            raise InputError(f"domain.settings are not {', '.join(setting_columns(family))}")
        settings = frozenset(map(SettingKey.of, fields))
        versions = frozenset(LibraryVersion(*text.split("|", 1)) for text in data.versions)
        keys = (ReferenceKey.from_text(text, family) for text in data.references)
        shapes = (TrainingShapes.from_dict(family, stored) for stored in data.references.values())
        references = dict(zip(keys, shapes, strict=True))
        return cls(family, settings, frozenset(data.shapes), versions, references, per_doubling=data.per_doubling)


@dataclass(frozen=True)
class _Stored:
    """A `Domain` as JSON. Each key and each setting is one text."""

    settings: tuple[str, ...]
    shapes: tuple[str, ...]
    versions: tuple[str, ...]
    references: Mapping[str, Mapping[str, Any]]
    per_doubling: Number = PER_DOUBLING


def setting_columns(family: Family) -> tuple[str, ...]:
    """Return the columns of a `SettingKey`. The GPU has its registry name."""
    return ("gpu", "library", *family.setting_names, "algorithm")


def training_shapes_of(rows: "Rows", held_out_distance: np.ndarray | None = None) -> dict[ReferenceKey, TrainingShapes]:
    """Return `Domain.reference_key` → the training shapes of its rows (see `Domain.of`)."""
    sizes = rows.sizes
    distance = np.full(len(rows), np.nan) if held_out_distance is None else held_out_distance
    references = {}
    for key, positions in _by_reference(rows):
        finite = distance[positions][np.isfinite(distance[positions])]
        reach = float(np.quantile(finite, REACH_QUANTILE)) if len(finite) else inf
        references[key] = TrainingShapes.of(rows.family, sizes[positions], reach)
    return references


def distances_to(references: Mapping[ReferenceKey, TrainingShapes], rows: "Rows") -> np.ndarray:
    """Return the distances (rows,) to `training_shapes_of` other rows, infinite if they have none of the row's key."""
    sizes = rows.sizes
    out = np.full(len(rows), inf)
    for key, positions in _by_reference(rows):
        if key in references:
            out[positions] = references[key].distances(sizes[positions])
    return out


def shape_hashes(rows: "Rows") -> np.ndarray:
    """Return 16 hex digits (rows,) that identify each row's shape without revealing it."""
    first, code = np.unique(rows.shape, return_index=True, return_inverse=True)[1:]
    return np.array([shape_hash(rows.family, sizes) for sizes in rows.sizes[first].tolist()], dtype="U16")[code]


def shape_hash(family: Family, sizes: Sequence[int]) -> str:
    """Return 16 hex digits of the shape of a problem's sizes."""
    text = "/".join(str(size) for name, size in zip(family.size_names, sizes, strict=True) if name not in family.batch)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def farthest_points(points: np.ndarray, count: int) -> np.ndarray:
    """Return ascending positions of at most ``count`` of ``points`` (rows, d). Each is the farthest from those before.

    Greedy k-centre, starting at the first point. Its radius is at most twice the best possible one (Gonzalez 1985).
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


def _offset(family: Family) -> np.ndarray:
    return np.array([float(size.minimum == 0) for size in family.sizes])


def _is_batch(family: Family) -> np.ndarray:
    return np.array([name in family.batch for name in family.size_names])


def _coordinates(family: Family, sizes: np.ndarray) -> np.ndarray:
    """Return the scaled log2 sizes (…, sizes)."""
    return np.log2(np.asarray(sizes, dtype=np.float64) + _offset(family)) * size_weights(family)


def reference_columns(family: Family) -> tuple[str, ...]:
    """Return the columns of a `ReferenceKey`."""
    return ("library", *(name for name in family.candidate_key if name in family.settings))


def _by_reference(rows: "Rows") -> list[tuple[ReferenceKey, np.ndarray]]:
    """Return each `Domain.reference_key` with the positions of its rows."""
    from surrogate.dataset.problems import row_groups

    key_rows = row_groups(rows.frame, reference_columns(rows.family))
    return [(ReferenceKey(None, library, tuple(values)), positions) for (library, *values), positions in key_rows]
