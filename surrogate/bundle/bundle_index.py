"""``bundle.json``: which files a bundle has, what it says of itself, and whether this release can read it."""

import json
import stat
from math import isfinite
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError
from surrogate.features.table import FEATURE_VERSION

BUNDLE_SCHEMA = 2
"""Version of the folder's layout. History: 1, the first; 2, widths by distance and predicted time."""
INDEX = "bundle.json"
MAX_INDEX_BYTES = 16 * 2**20
CANDIDATES = ("algorithm", "solver")
_TYPES = {
    "schema": int, "feature_version": int, "model": str, "params": dict, "candidate": str, "devices": dict,
    "card": dict, "sha256": dict,
}  # fmt: skip
"""Field → its type; all are needed."""


def read_index(path: Path) -> dict[str, Any]:
    """``bundle.json`` of the folder, with versions, keys and types checked. Raises `InputError` in one line."""
    index = _parsed(path)
    if not isinstance(index, dict) or not _TYPES.keys() <= index.keys():
        raise InputError(f"{path}: {INDEX} is incomplete; train the bundle again with `seer train`")
    if type(index["schema"]) is int and index["schema"] > BUNDLE_SCHEMA:
        raise InputError(
            f"{path}: written with bundle schema {index['schema']}, this release reads up to {BUNDLE_SCHEMA};"
            " upgrade seer-surrogate"
        )
    wrong = [name for name, kind in _TYPES.items() if type(index[name]) is not kind] or _wrong_within(index)
    if wrong:
        raise InputError(
            f"{path}: {wrong[0]} in {INDEX} is not what this release writes; train the bundle again with `seer train`"
        )
    if index["feature_version"] != FEATURE_VERSION:
        raise InputError(
            f"{path}: fitted on feature version {index['feature_version']}, this release computes {FEATURE_VERSION};"
            " train the bundle again with `seer train`"
        )
    return index


def _parsed(path: Path) -> Any:
    file = path / INDEX
    try:
        state = file.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_INDEX_BYTES:
            raise InputError(
                f"{path}: {INDEX} is no file of at most {MAX_INDEX_BYTES} bytes; do not use this bundle"
            )
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, OSError):
            raise InputError(
                f"{path}: no bundle there (no {INDEX}); make one with `seer train DATA -o {path}`"
            ) from None
        raise InputError(f"{path}: {INDEX} is damaged; train the bundle again with `seer train`") from None


def _wrong_within(index: dict[str, Any]) -> list[str]:
    """Names of fields whose content has a wrong type or value."""
    card = index["card"]
    checks = {
        "candidate": index["candidate"] in CANDIDATES,
        "sha256": all(type(digest) is str for digest in index["sha256"].values()),
        "devices": all(type(row) is dict for row in index["devices"].values()),
        "params": all(isfinite(value) for value in index["params"].values() if type(value) is float),
        "card.data": type(card.get("data", {})) is dict,
        "card.calibration": type(card.get("calibration", {})) is dict,
        "card.unseen_gpu_factor": _positive(card.get("unseen_gpu_factor", 1.0)),
    }
    return [name for name, right in checks.items() if not right]


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")
