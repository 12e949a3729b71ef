"""The TOML layout of GPU files (`gpus.toml` and users' own): checked text → values of `surrogate.features.gpu.Gpu`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .errors import InputError, nearest, read_bounded

GIB, MIB, KIB = 2**30, 2**20, 2**10
_GREATEST = 1e12
"""Above any figure of a GPU; below it, products of figures stay finite."""
MAX_FILE_BYTES = 4 * MIB
"""Most bytes of a GPU file: thousands of GPUs."""


class _Kind(NamedTuple):
    wish: str
    accepts: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _GREATEST


def _is_text(value: Any) -> bool:
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
    "memory_bus_bits": _COUNT,
    "checked": _FLAG, "measured": _FIGURES,
}  # fmt: skip


def read_gpu_file(
    path: Path, known: Mapping[str, Mapping[str, Any]], schema: int
) -> tuple[dict[str, Mapping[str, Any]], list[dict[str, Any]]]:
    """Architectures (``known`` ones first) and one dict of `Gpu` fields per row of ``[gpu]``.

    Raises `InputError`: unreadable file, other ``schema``, or keys missing, unknown or ill-typed (all named).
    """
    content = _parse(path)
    named = content.get("schema", schema)
    if named != schema:
        raise InputError(f"{path}: schema is {named!r}; this version reads schema {schema}; update the program or file")
    stray = sorted(set(content) - {"schema", "architecture", "gpu"})
    if stray:
        raise InputError(f"{path}: unknown section {', '.join(stray)}; known: schema, architecture, gpu")
    architectures = dict(known)
    for name, row in _section(path, content, "architecture").items():
        _check(f"{path}: architecture.{name}", row, _SHARED, _RATIOS)
        architectures[name] = row
    rows = []
    for name, row in _section(path, content, "gpu").items():
        where = f"{path}: gpu.{name}"
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise InputError(f"{where}: a GPU's name is lower-case letters and digits joined by '-', as in my-gpu-16gb")
        inherited = architectures.get(row.get("architecture", "")) if isinstance(row, dict) else None
        if isinstance(row, dict) and _is_text(row.get("architecture")) and inherited is None:
            wrong = row["architecture"]
            raise InputError(f"{where}: architecture {wrong!r} is unknown{nearest(wrong, architectures)}; "
                             f"known: {', '.join(architectures)}")  # fmt: skip
        _check(where, row, _OWN, _SHARED | _RATIOS | _OPTIONAL)
        rows.append(_fields(name, {**(inherited or {}), **row}))
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


def _section(path: Path, content: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = content.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"{path}: {name} is {section!r}; a table of rows is needed, as in [{name}.NAME]")
    return section


def _check(where: str, row: Any, needed: Mapping[str, _Kind], allowed: Mapping[str, _Kind]) -> None:
    """Names everything wrong with a row in one `InputError`."""
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


def _fields(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """The `Gpu` fields of a checked row; peaks it lacks follow from fp32 or the tensor peak by ratio."""
    fp32 = row["sms"] * row["cores_per_sm"] * 2 * row["boost_mhz"] / 1e6
    tensor = row["fp16_tensor_tflops"]
    return {
        "name": name,
        "aliases": tuple(row["aliases"]),
        **{key: row[key] for key in ("vendor", "architecture", "sms", "cores_per_sm", "source")},
        **{key: float(row[key]) for key in ("compute_capability", "boost_mhz", "dram_gbs", "pcie_gbs")},
        "fp64_tflops": float(row.get("fp64_tflops", fp32 * row["fp64_per_fp32"])),
        "fp16_tflops": float(row.get("fp16_tflops", fp32 * row["fp16_per_fp32"])),
        "fp16_tensor_tflops": float(tensor),
        "bf16_tensor_tflops": float(row.get("bf16_tensor_tflops", tensor * row["bf16_per_tensor"])),
        "tf32_tflops": float(row.get("tf32_tflops", tensor * row["tf32_per_tensor"])),
        "fp32_matrix_tflops": float(row.get("fp32_matrix_tflops", fp32 * row["fp32_matrix_per_fp32"])),
        **{
            f"{unit}_tensor_tflops": float(
                row.get(f"{unit}_tensor_tflops", tensor * row.get(f"{unit}_per_tensor", 0.0))
            )
            for unit in ("fp8", "fp4", "int8")
        },
        **{key: float(row[key]) for key in (*_SUSTAINED, "board_watts") if key in row},
        "l2_bytes": round(row["l2_mib"] * MIB),
        "shared_per_sm_bytes": round(row["shared_per_sm_kib"] * KIB),
        "memory_bytes": round(row["memory_gib"] * GIB),
        **{key: float(row.get(key, 0.0)) for key in ("link_gbs", "tensor_pj_per_flop")},
        "memory_bus_bits": row.get("memory_bus_bits", 0),
        "checked": row.get("checked", True),
        "measured_figures": tuple((key, float(value)) for key, value in row.get("measured", {}).items()),
    }
