"""`Bundle`: fitted models with all that serving them needs, and its folder on disk.

The folder holds ``bundle.json`` (schema, model card, SHA-256 of every file) and, for each family of kernels, the fitted
model, its support, interval widths and domain: JSON, UBJ and NumPy arrays, nothing that executes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surrogate.dataset.files import checked_file, write_folder
from surrogate.features.errors import InputError, read_bounded
from surrogate.features.families import FAMILIES, Family
from surrogate.features.gpu import Gpu
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.intervals import UnseenGpu, Widths

if TYPE_CHECKING:
    from surrogate.models import Support, TimeModel
    from surrogate.models.launch import Launch
    from surrogate.models.trees import BoostedTimes

BUNDLE_SCHEMA = 3
"""Version of the folder's layout. History: 1 and 2 held convolutions alone; 3, a part for each family."""
INDEX = "bundle.json"
REMEDY = "train the bundle again with `seer train`"
MAX_FILE_BYTES = 512 << 20


@dataclass(frozen=True)
class StoredModel:
    """A fitted model as its files, not loaded yet: answering single problems may not need it."""

    name: str
    params: Mapping[str, Any]
    files: Mapping[str, bytes]

    def load(self) -> "TimeModel":
        """The model. Raises `InputError` where its files are no such model's."""
        from surrogate.models import model_class

        try:
            return model_class(self.name).from_files(self.params, self.files)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            raise InputError(f"the bundle's {self.name} cannot be read ({reason}); {REMEDY}") from None

    def times(self) -> "BoostedTimes | None":
        """The model as arrays that numpy answers from, None for a model that is not one ensemble of trees."""
        from surrogate.models.neighbours import LABELS, times_from_files
        from surrogate.models.trees import ARRAYS, BoostedTimes

        if LABELS in self.files:
            return times_from_files(self.files)[0]
        return BoostedTimes.from_files(self.files) if ARRAYS in self.files else self.load().times()


@dataclass(frozen=True)
class Part:
    """What a bundle knows of one family: the fitted model, support, interval widths and domain."""

    family: Family
    fitted: "TimeModel | StoredModel"
    support: "Support"
    widths: Widths
    domain: Domain
    unseen_gpu: UnseenGpu = field(default_factory=UnseenGpu)
    """What half widths are multiplied by on a GPU that training never saw."""
    candidates: frozenset[str] = frozenset()
    """What training saw run, as `Rows.candidate` names it."""
    row_counts: Mapping[str, int] = field(default_factory=dict)
    """`Domain.reference_key`, and ``gpu|`` before it → training rows: how much is known of a kind of problem."""
    least_us: Mapping[str, float] = field(default_factory=dict)
    """``gpu|library``, ``|library`` or "" → the time in µs below which nothing is predicted."""

    @cached_property
    def times(self) -> "BoostedTimes | None":
        """The model as arrays that numpy answers from, None for a model that is not one ensemble of trees."""
        return self.fitted.times()

    @cached_property
    def model(self) -> "TimeModel":
        """The fitted model."""
        return self.fitted.load() if isinstance(self.fitted, StoredModel) else self.fitted


@dataclass(frozen=True)
class Bundle:
    """Fitted models of one or several families. ``candidate``: algorithms or solvers are chosen among.

    ``launches``: ``gpu|library`` → what of a call's time is not the kernel; ``devices`` that no registry knows.
    """

    parts: Mapping[str, Part]
    candidate: str = "algorithm"
    launches: Mapping[str, "Launch"] = field(default_factory=dict)
    devices: Mapping[str, Gpu] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def fitted_gpus(self) -> frozenset[str]:
        """Registry names of the GPUs that training or a calibration saw."""
        return frozenset().union(*(part.domain.gpus for part in self.parts.values()))

    def part(self, family: Family, gpu: str = "", values: tuple[str, ...] = ()) -> Part:
        """The part of a family; of several that ship, the one for problems of ``values`` (`Family.setting_names`).

        Raises `InputError` where the bundle has none.
        """
        if family.name not in self.parts:
            raise InputError(
                f"the bundle knows no {family.name}; it was fitted on {', '.join(self.parts)}: give another bundle or"
                " another library"
            )
        dtype = dict(zip(family.setting_names, values, strict=False)).get("dtype", "")
        return self.parts.get(f"{family.name}|{dtype}|{gpu}") or self.parts[family.name]

    def __repr__(self) -> str:
        data = self.card.get("data", {})
        models = ", ".join(f"{name}: {part.fitted.name}" for name, part in self.parts.items())
        return f"Bundle({models}; {data.get('rows', '?')} rows, {len(data.get('gpus', []))} GPUs)"

    def to_dict(self) -> dict[str, Any]:
        """The model card."""
        return dict(self.card)


def save(bundle: Bundle, path: str | Path) -> None:
    """Write the folder, whole or not at all; an older bundle of that name is replaced.

    Raises `InputError` where ``path`` is something other than a bundle or cannot be written.
    """
    path = Path(path)
    if path.exists() and not (path / INDEX).is_file():
        raise InputError(f"{path}: exists and is no bundle; choose another name, or remove it first")
    files: dict[str, bytes] = {}
    parts = {}
    for name, part in bundle.parts.items():
        files |= {f"{name}/model/{file}": content for file, content in part.model.to_files().items()}
        files[f"{name}/support.json"] = part.support.to_json()
        files[f"{name}/widths.json"] = part.widths.to_json()
        files[f"{name}/domain.json"] = part.domain.to_json()
        parts[name] = {
            "model": part.model.name,
            "params": _plain_params(part.model),
            "features": part.family.version,
            "unseen_gpu": asdict(part.unseen_gpu),
            "candidates": sorted(part.candidates),
            "row_counts": dict(part.row_counts),
            "least_us": dict(part.least_us),
        }
    index = {
        "schema": BUNDLE_SCHEMA,
        "parts": parts,
        "candidate": bundle.candidate,
        "launches": {key: asdict(launch) for key, launch in bundle.launches.items()},
        "devices": {name: _gpu_row(gpu) for name, gpu in bundle.devices.items()},
        "card": dict(bundle.card),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    write_folder(path, {**files, INDEX: json.dumps(index, indent=1, sort_keys=True).encode()})


def _plain_params(model: "TimeModel") -> dict[str, Any]:
    """Hyperparameters as JSON; a calibrated model keeps those of its base with its own files."""
    params = model.get_params(deep=False)
    return {key: value for key, value in params.items() if isinstance(value, int | float | str | None)}


def load(path: str | Path) -> Bundle:
    """The bundle in a folder. Every file's hash is checked before it is parsed; nothing in a bundle executes.

    Raises `InputError` for a missing, newer, truncated or changed bundle.
    """
    path = Path(path)
    index = read_index(path)
    files = {
        name: checked_file(path, name, digest, max_bytes=MAX_FILE_BYTES, remedy=REMEDY)
        for name, digest in index["sha256"].items()
    }
    try:
        return _parsed(index, files)
    except InputError:
        raise
    except Exception as error:  # whatever a file holds instead makes its parser raise: one line
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"{path}: the bundle cannot be read ({reason}); {REMEDY}") from None


def read_index(path: Path) -> dict[str, Any]:
    """``bundle.json`` of the folder. Raises `InputError` where there is none, or this release cannot read it."""
    try:
        index = json.loads(read_bounded(path / INDEX, MAX_FILE_BYTES))
        schema = int(index["schema"])
        for name in ("sha256", "card", "devices"):
            index[name].items()
    except OSError:
        raise InputError(f"{path}: no bundle there (no {INDEX}); make one with `seer train DATA -o BUNDLE`") from None
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        raise InputError(f"{path}: {INDEX} is damaged or incomplete; {REMEDY}") from None
    if schema != BUNDLE_SCHEMA:
        remedy = "upgrade seer-surrogate" if schema > BUNDLE_SCHEMA else REMEDY
        raise InputError(f"{path}: bundle schema {schema}, this release reads {BUNDLE_SCHEMA}; {remedy}")
    return index


def _parsed(index: Mapping[str, Any], files: Mapping[str, bytes]) -> Bundle:
    from surrogate.models.launch import Launch

    parts = {name: _part(name, row, files) for name, row in index["parts"].items()}
    devices = {name: Gpu(**{**row, "aliases": (), "measured_figures": ()}) for name, row in index["devices"].items()}
    launches = {key: Launch(**values) for key, values in index["launches"].items()}
    return Bundle(parts, index["candidate"], launches, devices, index["card"])


def _part(name: str, row: Mapping[str, Any], files: Mapping[str, bytes]) -> Part:
    from surrogate.models.support import Support
    from surrogate.models.trees import ARRAYS

    family = FAMILIES[name]
    if row["features"] != family.version:
        raise InputError(f"fitted on version {row['features']} of {name}'s columns, not {family.version}; {REMEDY}")
    folder = f"{name}/model/"
    model_files = {file.removeprefix(folder): content for file, content in files.items() if file.startswith(folder)}
    part = Part(
        family,
        StoredModel(row["model"], row["params"], model_files),
        Support.from_json(files[f"{name}/support.json"]),
        Widths.from_json(files[f"{name}/widths.json"]),
        Domain.from_json(files[f"{name}/domain.json"]),
        UnseenGpu(**row["unseen_gpu"]),
        frozenset(row["candidates"]),
        row["row_counts"],
        row["least_us"],
    )
    if ARRAYS in model_files:
        _ = part.times  # damaged arrays are told now
    return part


def _gpu_row(gpu: Gpu) -> dict[str, Any]:
    """A device's fields as JSON, without names that belong to a registry."""
    left_out = ("aliases", "measured_figures")
    return {f.name: getattr(gpu, f.name) for f in fields(gpu) if f.name not in left_out}
