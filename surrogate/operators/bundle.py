"""A fitted operator model on disk: a folder of JSON and UBJ files, hashed before anything parses them."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from features.errors import InputError
from surrogate.checked_file import checked_file
from surrogate.dataset.problems import joined
from surrogate.operators.baselines.roofline import roofline_us
from surrogate.operators.blended import BlendedOperators
from surrogate.operators.columns import COLUMNS_VERSION
from surrogate.operators.intervals import OperatorDomain, OperatorWidths
from surrogate.operators.launch import Launch, launch_of
from surrogate.operators.table import OperatorTable

OPERATOR_BUNDLE_SCHEMA = 1
"""Version of the folder's layout. History: 1, the first."""
INDEX = "operators.json"
MAX_FILE_BYTES = 64 * 2**20
REFIT = "fit it again with `python -m experiments.fit_operators`"


@dataclass(frozen=True)
class OperatorBundle:
    """A fitted operator model with interval widths, domain and model card."""

    model: BlendedOperators
    widths: OperatorWidths
    domain: OperatorDomain
    launches: Mapping[str, Launch] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def predict(self, table: OperatorTable) -> pd.DataFrame:
        """Columns ``predicted_us lower_us upper_us in_domain``: isolated calls, in the order of the table's rows.

        NaN where the model does not know the operator's family under its library.
        """
        predicted = self.model.predict_us(table)
        factor = np.exp(self.widths.of(table, self.domain))
        return pd.DataFrame(
            {
                "predicted_us": predicted,
                "lower_us": predicted / factor,
                "upper_us": predicted * factor,
                "in_domain": self.domain.contains(table),
            }
        )

    def kernel_us(self, table: OperatorTable, predicted_us: np.ndarray) -> np.ndarray:
        """(rows,) the kernel's own share of predicted call times; see `surrogate.operators.launch`."""
        out, roofs = np.array(predicted_us, dtype=float), roofline_us(table)
        keys = joined(table.frame, ("gpu", "library")).to_numpy()
        for key in np.unique(keys):
            mine = keys == key
            gpu, _, library = key.partition("|")
            out[mine] = launch_of(self.launches, gpu, library).kernel_us(out[mine], roofs[mine])
        return out

    @property
    def known_libraries(self) -> tuple[str, ...]:
        """Libraries whose operators training held."""
        return tuple(sorted({label.partition("|")[0] for label in self.model.known}))

    def __repr__(self) -> str:
        data = self.card.get("data", {})
        return f"OperatorBundle({data.get('rows', '?')} rows, {len(data.get('gpus', []))} GPUs)"

    def to_dict(self) -> dict[str, Any]:
        """The model card."""
        return dict(self.card)


def save_operators(bundle: OperatorBundle, path: str | Path) -> None:
    """Write the folder: complete under a temporary name, then renamed; an older bundle of that name is replaced.

    Raises `InputError` where ``path`` is something else or cannot be written.
    """
    path = Path(path)
    if path.exists() and not (path / INDEX).is_file():
        raise InputError(f"{path}: exists and is no operator bundle; choose another name, or remove it first")
    files = {
        **bundle.model.save(),
        "widths.json": bundle.widths.to_json(),
        "domain.json": bundle.domain.to_json(),
        "launches.json": json.dumps(
            {key: asdict(one) for key, one in bundle.launches.items()}, sort_keys=True
        ).encode(),
    }
    index = {
        "schema": OPERATOR_BUNDLE_SCHEMA,
        "columns_version": COLUMNS_VERSION,
        "params": dict(bundle.model.params),
        "card": dict(bundle.card),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    files[INDEX] = json.dumps(index, indent=1, sort_keys=True).encode()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        folder.chmod(0o755)
        if path.exists():
            old = folder / "old"
            path.rename(old)
            shutil.rmtree(old)
        folder.rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load_operators(path: str | Path) -> OperatorBundle:
    """The bundle in a folder. Every file's hash is checked before it is parsed; nothing in a bundle executes.

    Raises `InputError` for a missing, newer, truncated or changed bundle.
    """
    path = Path(path)
    index = _read_index(path)
    files = {
        name: checked_file(path, name, digest, index=INDEX, max_bytes=MAX_FILE_BYTES, remedy=REFIT)
        for name, digest in index["sha256"].items()
    }
    try:
        return OperatorBundle(
            BlendedOperators.load(index["params"], files),
            OperatorWidths.from_json(files["widths.json"]),
            OperatorDomain.from_json(files["domain.json"]),
            {key: Launch(**values) for key, values in json.loads(files["launches.json"]).items()},
            index["card"],
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: the operator bundle is incomplete ({error}); {REFIT}") from None


def _read_index(path: Path) -> dict[str, Any]:
    """``operators.json``, with versions and keys checked."""
    try:
        index = json.loads((path / INDEX).read_bytes())
    except OSError:
        raise InputError(f"{path}: no operator bundle there (no {INDEX}); {REFIT}") from None
    except ValueError:
        raise InputError(f"{path}: {INDEX} is damaged; {REFIT}") from None
    if not isinstance(index, dict) or not {"schema", "columns_version", "params", "card", "sha256"} <= set(
        index
    ):
        raise InputError(f"{path}: {INDEX} is incomplete; {REFIT}")
    if index["schema"] > OPERATOR_BUNDLE_SCHEMA:
        raise InputError(
            f"{path}: written with operator bundle schema {index['schema']}, this release reads up to"
            f" {OPERATOR_BUNDLE_SCHEMA}; upgrade seer-surrogate"
        )
    if index["columns_version"] != COLUMNS_VERSION:
        raise InputError(
            f"{path}: fitted on columns version {index['columns_version']}, this release computes"
            f" {COLUMNS_VERSION}; {REFIT}"
        )
    return index
