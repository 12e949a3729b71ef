"""`Bundle`: fitted models with all data for predictions, and its folder on disk.

The folder holds ``bundle.json``: schema, model card, and the SHA-256 of every file and of itself. For each family of
kernels it holds the fitted model, its support, interval widths and domain. The files are JSON, parquet and NumPy
arrays; nothing in them executes.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, TypedDict, cast

from msgspec import Meta

from surrogate.dataset.files import checked_file, write_folder
from surrogate.features import Gpu, InputError, check_choice, description_of, read_bounded
from surrogate.features.families import FAMILIES, DescribedFamily, Family
from surrogate.models import json_types
from surrogate.models.call_cost import CallCost, CallKey
from surrogate.models.requirements import FILE as REQUIREMENTS_FILE, Requirements
from surrogate.models.support import Support
from surrogate.uncertainty.domain import Domain, ReferenceKey
from surrogate.uncertainty.intervals import UnmeasuredGpuErrors, Widths

if TYPE_CHECKING:
    from surrogate.dataset.described import KernelColumns
    from surrogate.models import TimeModel
    from surrogate.models.times import BoostedArrays, Correction

BUNDLE_SCHEMA = 5
"""Version of the folder's layout. History: 1 and 2, only convolutions; 3, a model for each family; 4, a hash of the
index itself; 5, errors on unmeasured GPUs by vendor and element type."""
INDEX = "bundle.json"
OWN_HASH = "index_sha256"
NO_HASH = 64 * "0"
MAX_BYTES = 512 << 20
"""Maximum size of all files of a bundle together."""
MAX_JSON_BYTES = 40 << 20
"""Maximum size of a JSON file, enough for two million hashes of shapes. A byte may need 25 bytes of
memory when it is parsed."""
MAX_WIDTH = 600.0
"""Maximum half width in log time. With it, the ends of an interval are still finite numbers."""
Parameter = bool | int | float | str | None
"""A hyperparameter as a JSON value."""


@dataclass(frozen=True)
class StoredModel:
    """A fitted model in its files. It is loaded when it is needed; predictions of single problems may not need it."""

    name: str
    params: Mapping[str, Parameter]
    files: Mapping[str, bytes]

    def load(self) -> "TimeModel":
        """Return the model. Raises `InputError` if the files do not hold such a model."""
        from surrogate.models import model_class

        with json_types.input_error_if_damaged(f"the bundle's {self.name}"):
            return model_class(self.name).from_files(self.params, self.files)

    def boosted_arrays(self) -> "BoostedArrays | None":
        """Return the model as arrays for numpy, or None if it is not a single ensemble of trees."""
        from surrogate.models.times import LABELS, TREES_FILE, BoostedArrays, arrays_from_files

        with json_types.input_error_if_damaged(f"the bundle's {self.name}"):
            if LABELS in self.files:
                return arrays_from_files(self.files)[0]
            return BoostedArrays.from_files(self.files) if TREES_FILE in self.files else self.load().boosted_arrays()


class CandidateKey(NamedTuple):
    """A candidate: the values of `Family.candidate_key` without the algorithm; ``solver`` is None without solvers."""

    library: str
    candidate_values: tuple[str, ...]
    algorithm: str
    solver: str | None = None

    @classmethod
    def from_text(cls, text: str, family: Family) -> Self:
        """Return the key of a text from `name`. Raises `InputError` if the text has more or fewer names."""
        library, *rest = text.split("|")
        count = len(family.candidate_key) - 1
        if len(rest) - count not in (1, 2):
            raise InputError(f"candidate {text!r} is not library, {', '.join(family.candidate_key)}")
        return cls(library, tuple(rest[:count]), *rest[count:])

    @property
    def name(self) -> str:
        """The candidate's name in `Rows.candidate` and in models."""
        return json_types.key_text(self)


@dataclass(frozen=True)
class HarnessFloor:
    """A candidate whose times on a GPU in these settings are at least ``limit_us``, which its harness adds."""

    gpu: str
    library: str
    algorithm: str
    settings: Mapping[str, str]
    limit_us: json_types.Microseconds


@dataclass(frozen=True)
class FamilyModel:
    """The model of one family in a bundle, with support, interval widths and domain."""

    family: Family
    fitted: "TimeModel | StoredModel"
    support: Support
    widths: Widths
    domain: Domain
    unmeasured_gpu: UnmeasuredGpuErrors = field(default_factory=UnmeasuredGpuErrors)
    """Errors on unmeasured GPUs, and the ranking source there."""
    candidates: frozenset[CandidateKey] = frozenset()
    """Candidates that ran in the training data."""
    row_counts: Mapping[ReferenceKey, int] = field(default_factory=dict)
    """Number of training rows per reference key, on each GPU and on all of them."""
    min_us: Mapping[CallKey, float] = field(default_factory=dict)
    """Lower bounds of predicted times, in µs."""
    floors: tuple["HarnessFloor", ...] = ()
    requirements: Requirements | None = None
    """The workspaces and the determinism that the training data state."""

    @cached_property
    def boosted_arrays(self) -> "BoostedArrays | None":
        """The model as arrays for numpy, or None if it is not a single ensemble of trees.

        Raises `InputError` if a stored model is damaged.
        """
        arrays = self.fitted.boosted_arrays()
        if arrays and isinstance(self.fitted, StoredModel):
            with json_types.input_error_if_damaged(f"the bundle's {self.fitted.name}"):
                arrays.check(self.family)
        return arrays

    @cached_property
    def model(self) -> "TimeModel":
        """The fitted model."""
        return self.fitted.load() if isinstance(self.fitted, StoredModel) else self.fitted

    @property
    def corrections(self) -> "Mapping[str, Correction]":
        """Device → correction of its calibration."""
        return self.boosted_arrays.corrections if self.boosted_arrays else getattr(self.model, "corrections", {})

    def is_calibrated(self, gpu: str) -> bool:
        """Return whether all measurements of a GPU come from a calibration."""
        trained = {key.gpu for key in self.row_counts}
        return bool(trained) and gpu in self.domain.gpus and gpu not in trained


@dataclass(frozen=True)
class Bundle:
    """Fitted models of one or several families.

    Attributes
    ----------
    family_models : mapping
        Family → its model.
    candidate : {"algorithm", "solver"}
        Whether algorithms or solvers are chosen.
    call_costs : mapping
        GPU and library → call cost, the time of a call that is not the kernel's.
    devices : mapping
        Name → GPU that is not registered.
    card : mapping
        The model card: data, GPUs, ranges, held-out errors, licence notices.
    """

    family_models: Mapping[str, FamilyModel]
    candidate: str = "algorithm"
    call_costs: Mapping[CallKey, CallCost] = field(default_factory=dict)
    devices: Mapping[str, Gpu] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    @property
    def described_family(self) -> DescribedFamily | None:
        """The described kernel of the bundle; None for a bundle of built-in families."""
        if len(self.family_models) != 1:
            return None
        (family_model,) = self.family_models.values()
        return family_model.family if isinstance(family_model.family, DescribedFamily) else None

    @property
    def kernel(self) -> "KernelColumns | None":
        """The columns of the described kernel's tables; None for a bundle of built-in families."""
        if self.described_family is None:
            return None
        from surrogate.dataset.described import KernelColumns

        return KernelColumns.of_description(self.described_family.description)

    @cached_property
    def fitted_gpus(self) -> frozenset[str]:
        """Registry names of the GPUs in training or calibration data."""
        return frozenset().union(*(family_model.domain.gpus for family_model in self.family_models.values()))

    def has_measured(self, gpu: str) -> bool:
        """Return whether a kernel of any family was measured on a GPU (registry name)."""
        return gpu in self.fitted_gpus

    @property
    def libraries(self) -> frozenset[str]:
        """The libraries of all families."""
        return frozenset().union(*(each.domain.libraries for each in self.family_models.values()))

    def family_model(
        self, family: Family, gpu: str = "", values: tuple[str, ...] = (), library: str | None = None
    ) -> FamilyModel:
        """Return the model of a family, for problems of ``values`` (`Family.setting_names`) on a GPU (registry name).

        If several models have the family, a model of the ``library`` is preferred. Raises `InputError` if the bundle
        lacks the family.
        """
        if family.name not in self.family_models:
            fitted_on = f"it was fitted on {', '.join(self.family_models)}"
            raise InputError(f"the bundle has no {family.name}; {fitted_on}: give another bundle or another library")
        settings = {**dict(zip(family.setting_names, values, strict=False)), "library": library or ""}
        return self._family_model_for(family.name, settings, gpu)

    def operator_times(self, gpu: str) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        """Return a function that gives the times of operators without candidates on a GPU; None: they have no time."""
        return None

    def _family_model_for(self, name: str, settings: Mapping[str, str], gpu: str) -> FamilyModel:
        """Return the model of a family in the bundle. A subclass may hold several models of one family."""
        return self.family_models[name]

    def default_math(self, family: Family, dtype: str, device: Gpu) -> str:
        """Return the only math type that the GPU was measured in with the element type, else PyTorch's default."""
        position = {name: i for i, name in enumerate(family.setting_names)}
        settings = self.family_models[family.name].domain.settings if family.name in self.family_models else ()
        values = (key.setting_values for key in settings if key.gpu == device.name)
        measured = {each[position["math"]] for each in values if each[position["dtype"]] == dtype}
        return measured.pop() if len(measured) == 1 else family.default_math(dtype, device)

    def origin_of(self, family_model: FamilyModel) -> "tuple[str, Bundle] | None":
        """Return the shipped bundle of a model with its name; None for a model of this bundle."""
        return None

    def fastest_model(self, family: Family, device: Gpu) -> FamilyModel | None:
        """Return the model of the times of `FASTEST`, for GPUs without measurements of each candidate, or None."""
        return None

    def __repr__(self) -> str:
        data = self.card.get("data", {})
        models = ", ".join(f"{name}: {family_model.fitted.name}" for name, family_model in self.family_models.items())
        return f"Bundle({models}; {data.get('rows', '?')} rows, {len(data.get('gpus', []))} GPUs)"

    def to_dict(self) -> dict[str, object]:
        """Return the model card."""
        return dict(self.card)

    def save(self, path: str | Path) -> None:
        """Write the bundle's folder, completely or not at all.

        Parameters
        ----------
        path
            The folder. An older bundle there is replaced.

        Raises
        ------
        InputError
            If the path exists and is not a bundle, or if it cannot be written.
        """
        path = Path(path)
        if path.exists() and not (path / INDEX).is_file():
            raise InputError(f"{path}: exists and is not a bundle; choose another name, or remove it first")
        files: dict[str, bytes] = {}
        parts = {}
        for name, family_model in self.family_models.items():
            family = family_model.family
            files |= {f"{name}/model/{file}": content for file, content in family_model.model.to_files().items()}
            tables = {"support": family_model.support, "widths": family_model.widths, "domain": family_model.domain}
            files |= {f"{name}/{table}.json": content.to_json() for table, content in tables.items()}
            if family_model.requirements is not None:
                files[f"{name}/{REQUIREMENTS_FILE}"] = family_model.requirements.to_bytes()
            # A calibrated model stores the parameters of its base in its own files.
            parts[name] = StoredFamilyModel(
                model=family_model.model.name,
                params={k: v for k, v in family_model.model.get_params(deep=False).items() if isinstance(v, Parameter)},
                features=family.version,
                unseen_gpu=family_model.unmeasured_gpu,
                candidates=tuple(sorted(map(json_types.key_text, family_model.candidates))),
                row_counts={json_types.key_text(key): count for key, count in family_model.row_counts.items()},
                least_us=family_model.min_us,
                kernel=family.description.to_dict() if isinstance(family, DescribedFamily) else None,
                floors=family_model.floors,
            )
        hashes = {name: _sha256(content) for name, content in files.items()}
        devices = {name: replace(gpu, aliases=()) for name, gpu in self.devices.items()}
        index = Index(
            BUNDLE_SCHEMA, parts, self.candidate, self.call_costs, devices=devices, card=self.card, sha256=hashes
        )
        write_folder(path, {**files, INDEX: index_file(cast(dict[str, Any], json_types.to_json_types(index)))})


class CardData(TypedDict, total=False):
    """The part of a model card with the name and GPUs of the training data."""

    name: str
    gpus: tuple[str, ...]


class Card(TypedDict, total=False):
    """The parts of a model card that the program reads."""

    data: CardData
    calibration: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StoredFamilyModel:
    """A `FamilyModel` in ``bundle.json``; ``features`` is the version of the family's columns."""

    model: str
    params: Mapping[str, Parameter]
    features: int
    unseen_gpu: UnmeasuredGpuErrors
    candidates: Annotated[tuple[str, ...], Meta(min_length=1)]
    row_counts: Mapping[str, json_types.Count]
    least_us: json_types.Keyed[CallKey, json_types.Microseconds]
    kernel: Mapping[str, Any] | None
    """The `Description` of a described kernel."""
    floors: tuple[HarnessFloor, ...]


@dataclass(frozen=True)
class Index:
    """The content of ``bundle.json``; ``sha256``: file → its hash."""

    schema: int
    parts: Mapping[str, StoredFamilyModel]
    candidate: Annotated[str, Meta(pattern="^(algorithm|solver)$")]
    launches: json_types.Keyed[CallKey, CallCost]
    devices: Mapping[str, Gpu]
    card: Mapping[str, Any]
    sha256: Mapping[str, str]


save = Bundle.save


def index_file(index: Mapping[str, Any]) -> bytes:
    """Return the content of ``bundle.json`` with its SHA-256, computed while zeros replace the hash."""
    content = json.dumps({**index, OWN_HASH: NO_HASH}, indent=1, sort_keys=True)
    return content.replace(NO_HASH, _sha256(content.encode())).encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def load(path: str | Path) -> Bundle:
    """Return the bundle of a folder. Every file's hash is checked before the file is parsed, and no file executes.

    Raises `InputError` if the bundle is missing, newer, truncated or changed.
    """
    path = Path(path)
    index = stored_index(path)[1]
    files: dict[str, bytes] = {}
    remaining = MAX_BYTES
    for name, digest in index.sha256.items():
        maximum = min(remaining, MAX_JSON_BYTES) if name.endswith(".json") else remaining
        files[name] = checked_file(path, name, digest, max_bytes=maximum, remedy=json_types.REMEDY)
        remaining -= len(files[name])
    with json_types.input_error_if_damaged(str(path)):
        models = {name: _family_model(_stored_family(name, each), each, files) for name, each in index.parts.items()}
    return Bundle(models, index.candidate, call_costs=index.launches, devices=index.devices, card=index.card)


def stored_index(path: Path) -> tuple[dict[str, Any], Index]:
    """Return ``bundle.json`` of a folder as JSON and as an `Index`.

    Raises `InputError` if it is missing or this release cannot read it.
    """
    try:
        content = read_bounded(path / INDEX, MAX_JSON_BYTES)
    except OSError:
        raise InputError(f"{path}: no bundle there (no {INDEX}); train one with `seer train DATA -o BUNDLE`") from None
    with json_types.input_error_if_damaged(f"{path}: {INDEX} is damaged or incomplete"):
        index = json_types.from_json_types(Mapping[str, Any], json.loads(content), INDEX)
        schema = json_types.from_json_types(int, index["schema"], "schema")
    if schema != BUNDLE_SCHEMA:
        remedy = "upgrade seer-surrogate" if schema > BUNDLE_SCHEMA else json_types.REMEDY
        raise InputError(f"{path}: the bundle has schema {schema}, but this release reads {BUNDLE_SCHEMA}; {remedy}")
    with json_types.input_error_if_damaged(f"{path}: {INDEX} is damaged or incomplete"):
        stated = json_types.from_json_types(str, index.get(OWN_HASH, NO_HASH), OWN_HASH)
        if _sha256(content.replace(stated.encode(), NO_HASH.encode())) != stated:
            raise InputError("it differs from its hash")
        stored = json_types.from_json_types(Index, index, INDEX)
        json_types.from_json_types(Card, stored.card, "card")
        for name, model in stored.parts.items():
            _stored_family(name, model)
        for device in stored.devices.values():
            _check_device(device)
        return index, stored


def _stored_family(name: str, stored: StoredFamilyModel) -> Family:
    """Return the family of a stored model: built-in or described. Raises `InputError` for an unknown family."""
    if stored.kernel is None:
        check_choice("family", name, FAMILIES)
        return FAMILIES[name]
    description = description_of(stored.kernel, f"{INDEX}: kernel")
    if description.name != name:
        raise InputError(f"{INDEX}: the part {name} describes {description.name}")
    return FAMILIES.from_description(description)


def _check_device(gpu: Gpu) -> None:
    """Raise `InputError` for a device without the figures that a roofline needs."""
    figures = (gpu.sms, gpu.cores_per_sm, gpu.boost_mhz, gpu.dram_gbs, gpu.l2_bytes)
    numbers = [each for each in (*asdict(gpu).values(), *gpu.measured.values()) if isinstance(each, int | float)]
    if min(figures) <= 0 or not all(0 <= each <= json_types.MAX_NUMBER for each in numbers):
        raise InputError(f"device {gpu.name!r} has a figure that is not positive")


def _family_model(family: Family, stored: StoredFamilyModel, files: Mapping[str, bytes]) -> FamilyModel:
    """Return a family's model. Raises `InputError` if its files contradict each other."""
    from surrogate.models.times import TREES_FILE

    if stored.features != family.version:
        fitted_on = f"the bundle has version {stored.features} of {family.name}'s columns"
        raise InputError(f"{fitted_on}, but this release has {family.version}; {json_types.REMEDY}")
    model_files = json_types.files_below(f"{family.name}/model/", files)
    with json_types.input_error_if_damaged(f"{family.name}/domain.json"):
        domain = Domain.from_json(files[f"{family.name}/domain.json"], family)
    with json_types.input_error_if_damaged(f"{family.name}/support.json"):
        support = Support.from_json(files[f"{family.name}/support.json"], family)
    with json_types.input_error_if_damaged(f"{family.name}/widths.json"):
        widths = Widths.from_json(files[f"{family.name}/widths.json"], domain.libraries)
        if widths.max_half_width > MAX_WIDTH:
            raise InputError(f"a half width is above {MAX_WIDTH} in log time")
    with json_types.input_error_if_damaged(f"{family.name}/{REQUIREMENTS_FILE}"):
        stated = files.get(f"{family.name}/{REQUIREMENTS_FILE}")
        requirements = None if stated is None else Requirements.from_bytes(stated)
    family_model = FamilyModel(
        family=family,
        fitted=StoredModel(stored.model, stored.params, model_files),
        support=support,
        widths=widths,
        domain=domain,
        unmeasured_gpu=stored.unseen_gpu,
        candidates=frozenset(CandidateKey.from_text(text, family) for text in stored.candidates),
        row_counts={ReferenceKey.from_text(text, family): count for text, count in stored.row_counts.items()},
        min_us=stored.least_us,
        floors=stored.floors,
        requirements=requirements,
    )
    if TREES_FILE in model_files:
        _ = family_model.boosted_arrays  # damaged arrays raise now
    return family_model
