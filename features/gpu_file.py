"""The TOML layout of GPU files (`gpus.toml` and users' own): checked text → rows for `surrogate.features.gpu.Gpu`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeGuard, TypeVar

from .errors import InputError, nearest, read_bounded

SCHEMA = 1
_GREATEST = 1e12
"""Above any figure of a GPU; below it, products of figures stay finite."""
MAX_FILE_BYTES = 4 * 2**20
"""Most bytes of a GPU file: thousands of GPUs."""
Row = Mapping[str, object]
"""A row of a GPU file as TOML gives it: an architecture's keys, or a GPU's."""
V = TypeVar("V")


class GpuRow(NamedTuple):
    """One checked row of ``[gpu]`` with the keys of its architecture, the values sorted by what they are."""

    name: str
    texts: Mapping[str, str]
    lists: Mapping[str, list[str]]
    figures: Mapping[str, float]
    flags: Mapping[str, bool]
    tables: Mapping[str, Mapping[str, float]]


class _Kind(NamedTuple):
    wish: str
    accepts: Callable[[object], bool]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _GREATEST


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


_TEXT = _Kind("a text", _is_text)
_TEXTS = _Kind("a list of texts", lambda v: isinstance(v, list) and all(map(_is_text, v)))
_VENDOR = _Kind('"nvidia", "amd" or "intel"', lambda v: v in ("nvidia", "amd", "intel"))
_COUNT = _Kind("a whole number of at least 1", lambda v: _is_number(v) and isinstance(v, int) and v >= 1)
_POSITIVE = _Kind("a number above 0", lambda v: _is_number(v) and v > 0)
_AMOUNT = _Kind("a number of at least 0", lambda v: _is_number(v) and v >= 0)
_FLAG = _Kind("true or false", lambda v: isinstance(v, bool))
_FIGURES = _Kind(
    "a table of numbers above 0", lambda v: isinstance(v, dict) and all(_is_number(x) and x > 0 for x in v.values())
)

_SHARED = {
    "vendor": _VENDOR, "compute_capability": _AMOUNT, "cores_per_sm": _COUNT, "shared_per_sm_kib": _POSITIVE,
    "fp64_per_fp32": _AMOUNT, "fp16_per_fp32": _AMOUNT, "fp32_matrix_per_fp32": _AMOUNT,
    "tf32_per_tensor": _AMOUNT, "bf16_per_tensor": _AMOUNT, "pcie_gbs": _POSITIVE,
}  # fmt: skip
"""Keys of an architecture; all are needed."""
_SUSTAINED = ("fp32_sustained_share", "fp32_gflops_per_watt", "dram_share")
_RATIOS = {f"{unit}_per_tensor": _AMOUNT for unit in ("fp8", "fp4", "int8")} | dict.fromkeys(_SUSTAINED, _POSITIVE)
"""Keys that an architecture may have; without one it has no such unit."""
_OWN = {
    "architecture": _TEXT, "aliases": _TEXTS, "sms": _COUNT, "boost_mhz": _POSITIVE,
    "fp16_tensor_tflops": _AMOUNT, "dram_gbs": _POSITIVE, "l2_mib": _POSITIVE, "memory_gib": _POSITIVE,
    "source": _TEXT,
}  # fmt: skip
"""Keys of a GPU; all are needed."""
_OPTIONAL = {
    "fp64_tflops": _AMOUNT, "fp16_tflops": _AMOUNT, "tf32_tflops": _AMOUNT, "bf16_tensor_tflops": _AMOUNT,
    "fp32_matrix_tflops": _AMOUNT, "fp8_tensor_tflops": _AMOUNT, "fp4_tensor_tflops": _AMOUNT,
    "int8_tensor_tflops": _AMOUNT, "board_watts": _POSITIVE, "tensor_pj_per_flop": _AMOUNT, "link_gbs": _AMOUNT,
    "memory_bus_bits": _COUNT, "checked": _FLAG, "measured": _FIGURES, "datasheet": _FIGURES,
}  # fmt: skip


def read_gpu_file(path: Path, inherited: Mapping[str, Row]) -> tuple[dict[str, Row], list[GpuRow]]:
    """Architectures (``inherited`` ones first) and the rows of ``[gpu]``.

    Raises `InputError`: unreadable file, another schema, or keys missing, unknown or ill-typed (all named).
    """
    content = _parse(path)
    schema = content.get("schema", SCHEMA)
    if schema != SCHEMA:
        raise InputError(f"{path}: schema is {schema!r}; this version reads {SCHEMA}; update the program or the file")
    stray = sorted(set(content) - {"schema", "architecture", "gpu"})
    if stray:
        raise InputError(f"{path}: unknown section {', '.join(stray)}; known: schema, architecture, gpu")
    architectures = dict(inherited)
    for name, row in _section(path, content, "architecture").items():
        architectures[name] = _checked(f"{path}: architecture.{name}", row, _SHARED, _RATIOS)
    rows = []
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
        own = _checked(where, row, _OWN, _SHARED | _RATIOS | _OPTIONAL)
        rows.append(_sorted_by_type(name, {**architectures[str(own["architecture"])], **own}))
    return architectures, rows


def _parse(path: Path) -> dict[str, object]:
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


def _sorted_by_type(name: str, row: Row) -> GpuRow:
    """A checked row as `GpuRow`; the keys' types are those that `_checked` has ensured."""

    def of(kind: type[V]) -> dict[str, V]:
        return {key: value for key, value in row.items() if isinstance(value, kind)}

    figures = {key: float(value) for key, value in row.items() if _is_number(value)}
    return GpuRow(name, texts=of(str), lists=of(list), figures=figures, flags=of(bool), tables=of(dict))
