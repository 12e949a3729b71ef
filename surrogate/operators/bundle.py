"""A fitted operator model on disk: a folder of JSON and UBJ files, hashed before anything parses them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.atomic import write_folder
from surrogate.dataset.checked_file import checked_file
from surrogate.dataset.problems import joined
from surrogate.features.errors import InputError
from surrogate.features.regular_file import read_bounded
from surrogate.operators.baselines.roofline import roofline_us
from surrogate.operators.blended import BlendedOperators
from surrogate.operators.columns import COLUMNS_VERSION
from surrogate.operators.intervals import ALL, OperatorDomain, OperatorWidths
from surrogate.operators.launch import Launch, launch_of
from surrogate.operators.table import OperatorTable

OPERATOR_BUNDLE_SCHEMA = 1
"""Version of the folder's layout. History: 1, the first."""
INDEX = "operators.json"
MAX_FILE_BYTES = 64 * 2**20
MAX_NUMBER = 2.0**53
_TYPES = {"schema": int, "columns_version": int, "params": dict, "card": dict, "sha256": dict}
"""Field of the index → its type; all are needed."""
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
    """Write the folder, whole or not at all; an older bundle of that name is replaced (see `write_folder`).

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
    write_folder(path, files)


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
        return _parsed(index, files)
    except Exception as error:  # whatever nonsense a file holds makes its parser raise, it is one line
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        reason = reason.splitlines()[0][:120]
        raise InputError(
            f"{path}: the operator bundle is incomplete or damaged ({reason}); {REFIT}"
        ) from None


def _parsed(index: Mapping[str, Any], files: Mapping[str, bytes]) -> OperatorBundle:
    _check_numbers(files)
    return OperatorBundle(
        BlendedOperators.load(index["params"], files),
        OperatorWidths.from_json(files["widths.json"]),
        OperatorDomain.from_json(files["domain.json"]),
        {key: Launch(**values) for key, values in json.loads(files["launches.json"]).items()},
        index["card"],
    )


def _check_numbers(files: Mapping[str, bytes]) -> None:
    """Raises `ValueError` where a number is none: a file may carry the right hash and still hold nonsense."""
    facts, widths = json.loads(files["facts.json"]), json.loads(files["widths.json"])["widths"]
    launches = {
        f"{key} {name}": value
        for key, fields in json.loads(files["launches.json"]).items()
        for name, value in fields.items()
    }
    shares = json.loads(files["shares.json"])
    for name, numbers in (("widths", widths), ("shares", shares), ("facts", facts["call_us"])):
        _require_numbers(f"{name}.json", numbers, 0.0)
    _require_numbers("facts.json", facts["labels"], 0.0)
    _require_numbers("launches.json", launches, -MAX_NUMBER)
    if ALL not in widths or max(shares.values(), default=0.0) > 1.0:
        raise ValueError("widths.json or shares.json: no width over all rows, or a share above 1")


def _require_numbers(name: str, numbers: Mapping[str, Any], least: float) -> None:
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < MAX_NUMBER:
            raise ValueError(f"{name}: {key} is {value!r}")


def _read_index(path: Path) -> dict[str, Any]:
    """``operators.json``, with versions and keys checked."""
    try:
        index = json.loads(read_bounded(path / INDEX, MAX_FILE_BYTES))
    except InputError:
        raise
    except OSError:
        raise InputError(f"{path}: no operator bundle there (no {INDEX}); {REFIT}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: {INDEX} is damaged; {REFIT}") from None
    if not isinstance(index, dict) or any(type(index.get(name)) is not kind for name, kind in _TYPES.items()):
        raise InputError(f"{path}: {INDEX} is incomplete; {REFIT}")
    if not all(isinstance(digest, str) for digest in index["sha256"].values()):
        raise InputError(f"{path}: {INDEX} names a hash that is no text; {REFIT}")
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
