"""The TOML layout of GPU files (`gpus.toml` and users' own): checked text → rows for `surrogate.features.gpu.Gpu`."""

import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from .errors import InputError, nearest, read_bounded

SCHEMA = 1
_GREATEST = 1e12
"""Above any figure of a GPU; below it, products of figures stay finite."""
MAX_FILE_BYTES = 4 * 2**20
"""Most bytes of a GPU file: thousands of GPUs."""
Row = Mapping[str, Any]
"""A row of a GPU file as TOML gives it: an architecture's keys, or a GPU's."""


class _Kind(NamedTuple):
    wish: str
    accepts: Callable[[object], bool]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _GREATEST


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


_KINDS = {
    "text": _Kind("a text", _is_text),
    "texts": _Kind("a list of texts", lambda v: isinstance(v, list) and all(map(_is_text, v))),
    "vendor": _Kind('"nvidia", "amd" or "intel"', lambda v: v in ("nvidia", "amd", "intel")),
    "count": _Kind("a whole number of at least 1", lambda v: _is_number(v) and isinstance(v, int) and v >= 1),
    "positive": _Kind("a number above 0", lambda v: _is_number(v) and v > 0),
    "amount": _Kind("a number of at least 0", lambda v: _is_number(v) and v >= 0),
    "flag": _Kind("true or false", lambda v: isinstance(v, bool)),
    "figures": _Kind(
        "a table of numbers above 0", lambda v: isinstance(v, dict) and all(_is_number(x) and x > 0 for x in v.values())
    ),
}
"""What `gpu_keys.toml` says that a key's value must be."""


def read_gpu_file(path: Path, inherited: Mapping[str, Row]) -> tuple[dict[str, Row], dict[str, Row]]:
    """Architectures (``inherited`` ones first) and the GPUs of ``[gpu]``, each with the keys of its architecture.

    Raises `InputError`: unreadable file, another schema, or keys missing, unknown or ill-typed (all named).
    """
    content = _parse(path)
    keys = {
        section: {key: _KINDS[kind] for key, kind in listed.items()}
        for section, listed in _parse(Path(__file__).with_name("gpu_keys.toml")).items()
    }
    schema = content.get("schema", SCHEMA)
    if schema != SCHEMA:
        raise InputError(f"{path}: schema is {schema!r}; this version reads {SCHEMA}; update the program or the file")
    stray = sorted(set(content) - {"schema", "architecture", "gpu"})
    if stray:
        raise InputError(f"{path}: unknown section {', '.join(stray)}; known: schema, architecture, gpu")
    architectures = dict(inherited)
    for name, row in _section(path, content, "architecture").items():
        where = f"{path}: architecture.{name}"
        architectures[name] = _checked(where, row, keys["architecture"], keys["architecture-may-have"])
    rows = {}
    for name, row in _section(path, content, "gpu").items():
        where = f"{path}: gpu.{name}"
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise InputError(f"{where}: a GPU's name is lower-case letters and digits joined by '-', as in my-gpu-16gb")
        architecture = row.get("architecture") if isinstance(row, dict) else None
        if _is_text(architecture) and architecture not in architectures:
            hint = nearest(architecture, architectures)
            raise InputError(
                f"{where}: architecture {architecture!r} is unknown{hint}; known: {', '.join(architectures)}"
            )
        own = _checked(where, row, keys["gpu"], ChainMap(*keys.values()))
        rows[name] = {**architectures[own["architecture"]], **own}
    return architectures, rows


def _parse(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        content = read_bounded(path, MAX_FILE_BYTES)
    except OSError as error:
        raise InputError(f"GPU file {path} cannot be read: {error.strerror}; check the path") from error
    try:
        return tomllib.loads(content.decode("utf-8-sig").replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"GPU file {path} is not TOML: {error}") from error


def _section(path: Path, content: Row, name: str) -> dict[str, object]:
    section = content.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"{path}: {name} is {section!r}; a table of rows is needed, as in [{name}.NAME]")
    return section


def _checked(where: str, row: object, needed: Mapping[str, _Kind], allowed: Mapping[str, _Kind]) -> Row:
    """The row itself; raises one `InputError` that names everything wrong with it."""
    if not isinstance(row, dict):
        raise InputError(f"{where} is {row!r}; a table of keys is needed: {', '.join(needed)}")
    kinds = {**needed, **allowed}
    faults = [f"{key} is missing" for key in needed if key not in row]
    for key, value in row.items():
        if key not in kinds:
            faults.append(f"{key} is unknown{nearest(key, kinds, count=1)}")
        elif not kinds[key].accepts(value):
            faults.append(f"{key} is {value!r}, must be {kinds[key].wish}")
    if faults:
        raise InputError(f"{where}: {'; '.join(faults)}")
    return row
