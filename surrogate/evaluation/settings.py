"""Hyperparameters as a file: what `seer tune -o` writes and `seer train --params` reads."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from surrogate.dataset.files import require_readable, write_text
from surrogate.features.errors import InputError, nearest, read_bounded
from surrogate.models import model_class

SETTINGS_SCHEMA = 1
"""Version of the settings file. History: 1, the first."""
MAX_SETTINGS_BYTES = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of one model and where they come from: ``found`` says by which search, for people to read."""

    model: str
    params: dict[str, object]
    found: dict[str, object]


def write_settings(settings: Settings, path: str | Path) -> None:
    """Write the file atomically. Raises `InputError` where it cannot be written."""
    content = {"schema": SETTINGS_SCHEMA, **asdict(settings)}
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_settings(path: str | Path) -> Settings:
    """What `write_settings` wrote, or a hand-written file with at least ``model`` and ``params``.

    Raises `InputError` for a missing, unreadable or newer file, an unknown model, and settings that it does not have.
    """
    path = Path(path)
    remedy = "write one with `seer tune -o`"
    try:
        content = json.loads(read_bounded(path, MAX_SETTINGS_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: no JSON; {remedy}") from None
    if not isinstance(content, dict) or not isinstance(content.get("params"), dict) or "model" not in content:
        raise InputError(f"{path}: a settings file needs `model` and `params`; {remedy}")
    require_readable(path, content.get("schema", SETTINGS_SCHEMA), SETTINGS_SCHEMA)
    model, params = str(content["model"]), content["params"]
    stored = model_class(model)().get_params()
    for name, value in params.items():
        if name not in stored:
            known = f"it has {', '.join(stored) or 'none'}{nearest(name, stored)}"
            raise InputError(f"{path}: {model} has no setting {name!r}; {known}")
        if not _alike(value, stored[name]):
            raise InputError(f"{path}: {name} is {value!r}; {model} needs a value like {stored[name]!r}")
    search = content.get("found")
    return Settings(model, params, search if isinstance(search, dict) else {})


def _alike(value: object, stored: object) -> bool:
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return isinstance(value, type(stored))
    whole = isinstance(value, int) or (isinstance(stored, float) and isinstance(value, float))
    return whole and not isinstance(value, bool)
