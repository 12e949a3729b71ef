"""A fitted model on disk: a folder of JSON, UBJ and NumPy files whose hashes are checked before any is parsed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.bundle.bundle_check import check_model, check_parts
from surrogate.bundle.bundle_index import BUNDLE_SCHEMA, INDEX, read_index
from surrogate.dataset.atomic import write_folder
from surrogate.dataset.checked_file import checked_file
from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import rows_of
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.features.table import FEATURE_VERSION
from surrogate.models import Model, Support, model_class
from surrogate.uncertainty.conformal import UNSEEN_GPU_FACTOR, Widths
from surrogate.uncertainty.domain import SETTINGS, Domain

REMEDY = "train the bundle again with `seer train`"
MAX_FILE_BYTES = 512 * 2**20
WRITERS = 5
"""Times that another process may replace a bundle while it is read."""


@dataclass(frozen=True)
class Bundle:
    """A fitted model with all that serving it needs: support, interval widths, domain, and its model card."""

    model: Model
    support: Support
    widths: Widths
    domain: Domain
    candidate: str = "algorithm"
    devices: Mapping[str, Gpu] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def predict(self, frame: pd.DataFrame, devices: Mapping[str, Gpu] | None = None) -> pd.DataFrame:
        """Predictions for the rows of a normalised frame, in order and with its index.

        ``devices`` are known beside the registry's GPUs and those the bundle was fitted on.
        Columns: ``predicted_us``, ``lower_us`` and ``upper_us`` (90 % interval, wider by `unseen_gpu_factor` on a GPU
        that training never saw), ``in_domain``, ``supported``.
        Raises `InputError` for an unknown GPU, or where solvers are chosen and the frame names none.
        """
        if self.candidate == "solver" and "solver" not in frame:
            raise InputError("the bundle chooses among solvers, and the table has no `solver` column; add it")
        seen = frame if self.candidate == "solver" else frame.drop(columns="solver", errors="ignore")
        rows = rows_of(seen, {**self.devices, **(devices or {})})
        predicted = self.model.predict_us(rows)
        distance = self.domain.distances(seen)
        half_width = self.widths.of(seen, distance, predicted)
        fitted = np.isin(device_names(seen).astype(str), list(self.fitted_gpus))
        factor = np.exp(half_width * np.where(fitted, 1.0, self.unseen_gpu_factor))
        return pd.DataFrame(
            {
                "predicted_us": predicted,
                "lower_us": predicted / factor,
                "upper_us": predicted * factor,
                "in_domain": self.domain.contains(seen, distance),
                "supported": self.support.supported(rows),
            },
            index=frame.index,
        )

    @property
    def fitted_gpus(self) -> frozenset[str]:
        """Registry names of the GPUs that training or a calibration saw."""
        return frozenset(text.partition("|")[0] for text in self.domain.settings)

    @property
    def unseen_gpu_factor(self) -> float:
        """What half widths are multiplied by on any other GPU."""
        return float(self.card.get("unseen_gpu_factor", UNSEEN_GPU_FACTOR))

    def __repr__(self) -> str:
        trained = self.card.get("data", {})
        return (
            f"Bundle({self.model.name}, {trained.get('rows', '?')} rows, {len(trained.get('gpus', []))} GPUs)"
        )

    def to_dict(self) -> dict[str, Any]:
        """The model card."""
        return dict(self.card)


def save(bundle: Bundle, path: str | Path) -> None:
    """Write the folder, whole or not at all; an older bundle of that name is replaced (see `write_folder`).

    Raises `InputError` where ``path`` is something other than a bundle or cannot be written.
    """
    path = Path(path)
    if path.exists() and not (path / INDEX).is_file():
        raise InputError(f"{path}: exists and is no bundle; choose another name, or remove it first")
    files = {
        **{f"model/{name}": content for name, content in bundle.model.save().items()},
        "support.json": bundle.support.to_json(),
        "widths.json": bundle.widths.to_json(),
        "domain.json": bundle.domain.to_json(),
    }
    index = {
        "schema": BUNDLE_SCHEMA,
        "feature_version": FEATURE_VERSION,
        "model": bundle.model.name,
        "params": dict(bundle.model.params),
        "candidate": bundle.candidate,
        "devices": {name: _gpu_row(gpu) for name, gpu in bundle.devices.items()},
        "card": dict(bundle.card),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    files[INDEX] = json.dumps(index, indent=1, sort_keys=True).encode()
    write_folder(path, files)


def load(path: str | Path) -> Bundle:
    """The bundle in a folder. Every file's hash is checked before it is parsed; nothing in a bundle executes.

    Raises `InputError` for a missing, newer, truncated or changed bundle.
    """
    path = Path(path)
    index = read_index(path)
    for _ in range(WRITERS):
        try:
            return _read(path, index)
        except InputError:
            newer = read_index(path)
            if newer["sha256"] == index["sha256"]:
                raise
            index = newer
    return _read(path, index)


def _read(path: Path, index: Mapping[str, Any]) -> Bundle:
    files = {
        name: checked_file(path, name, digest, index=INDEX, max_bytes=MAX_FILE_BYTES, remedy=REMEDY)
        for name, digest in index["sha256"].items()
    }
    try:
        return _parsed(index, files)
    except InputError:
        raise
    except Exception as error:  # whatever nonsense a file holds makes its parser raise, it is one line
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"{path}: the bundle cannot be read ({reason}); {REMEDY}") from None


def _parsed(index: Mapping[str, Any], files: Mapping[str, bytes]) -> Bundle:
    model_files = {n.removeprefix("model/"): c for n, c in files.items() if n.startswith("model/")}
    fitted = model_class(index["model"]).load(index["params"], model_files)
    check_model(fitted, model_files)
    support = Support.from_json(files["support.json"])
    widths = Widths.from_json(files["widths.json"])
    domain = Domain.from_json(files["domain.json"])
    check_parts(support, widths, domain)
    devices = {
        name: Gpu(**{**row, "aliases": (), "measured_figures": ()}) for name, row in index["devices"].items()
    }
    bundle = Bundle(fitted, support, widths, domain, index["candidate"], devices, index["card"])
    if set(model_files) == {"coefficients.json"}:  # nothing else checks that they fit one another
        _ask_once(bundle)
    return bundle


def _ask_once(bundle: Bundle) -> None:
    """One problem in every setting of training: a model whose coefficients do not fit one another fails here."""
    frame = pd.DataFrame(
        [dict(zip(SETTINGS, s.split("|"), strict=True)) for s in sorted(bundle.domain.settings)]
    )
    sizes = {name: 3 if name in ("r", "s") else 1 for name in SIZE_COLUMNS} | dict.fromkeys("hw", 8)
    try:
        rows = rows_of(frame.assign(library_version="", **sizes), bundle.devices)
    except InputError:  # a GPU of a user's own file that is not named now
        return
    with np.errstate(all="ignore"):
        bundle.model.predict_us(rows)


def _gpu_row(gpu: Gpu) -> dict[str, Any]:
    """A device's fields as JSON, without names that belong to a registry."""
    return {
        f.name: getattr(gpu, f.name) for f in fields(gpu) if f.name not in ("aliases", "measured_figures")
    }


__all__ = ["BUNDLE_SCHEMA", "INDEX", "Bundle", "load", "read_index", "save"]
