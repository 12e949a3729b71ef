"""Tuned settings as a file: JSON that ``seer tune -o`` writes and ``seer train --params`` reads."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surrogate.dataset.atomic import write_text
from surrogate.features.errors import InputError, nearest
from surrogate.features.regular_file import read_bounded
from surrogate.models import model_class

MAX_BYTES = 1 << 20
SETTINGS_SCHEMA = 1
"""Version of the file. History: 1, the first."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters of one model and where they come from: ``found`` says by which search, for people to read."""

    model: str
    params: dict[str, Any]
    found: dict[str, Any]


def write_settings(settings: Settings, path: str | Path) -> None:
    """Write the file atomically. Raises `InputError` where it cannot be written."""
    content = {"schema": SETTINGS_SCHEMA, **asdict(settings)}
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_settings(path: str | Path) -> Settings:
    """What `write_settings` wrote, or a hand-written file with at least ``model`` and ``params``.

    Raises `InputError` for a missing, unreadable or newer file, an unknown model, and settings that it does not have.
    """
    remedy = "write one with `seer tune -o`"
    try:
        content = json.loads(read_bounded(path, MAX_BYTES))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: no JSON; {remedy}") from None
    if not isinstance(content, dict) or not isinstance(content.get("params"), dict) or "model" not in content:
        raise InputError(f"{path}: a settings file needs `model` and `params`; {remedy}")
    schema = content.get("schema", SETTINGS_SCHEMA)
    if not isinstance(schema, int) or schema > SETTINGS_SCHEMA:
        raise InputError(
            f"{path}: written with settings schema {schema}, this release reads up to {SETTINGS_SCHEMA};"
            " upgrade seer-surrogate"
        )
    model, params = str(content["model"]), content["params"]
    _check(model, params, path)
    found = content.get("found")
    return Settings(model, params, found if isinstance(found, dict) else {})


def _check(model: str, params: dict[str, Any], path: str | Path) -> None:
    """Every setting is one that the model has, of the kind of its stored value."""
    stored = model_class(model)().params
    for name, value in params.items():
        if name not in stored:
            raise InputError(
                f"{path}: {model} has no setting {name!r}; it has {', '.join(stored) or 'none'}{nearest(name, stored)}"
            )
        if not _alike(value, stored[name]):
            raise InputError(f"{path}: {name} is {value!r}; {model} needs a value like {stored[name]!r}")


def _alike(value: Any, stored: Any) -> bool:
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return isinstance(value, type(stored))
    whole = isinstance(value, int) or (isinstance(stored, float) and isinstance(value, float))
    return whole and not isinstance(value, bool)
