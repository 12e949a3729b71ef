"""The probe's result as Markdown for a person."""

from collections.abc import Mapping
from typing import Any

SHOWN = ("compute_capability", "sms", "memory_bytes", "l2_bytes", "boost_khz", "timer", "cupti_missing")


def markdown(found: Mapping[str, Any]) -> str:
    """The whole report; a step that failed shows its reason."""
    device = found["device"]
    parts = [
        f"# Probe of {device['gpu']}",
        _table(("what", "version"), {device["library"]: device["library_version"], **device["versions"]}.items()),
        _table(("property", "value"), _known(device["properties"], SHOWN)),
        "## Timers", _pairs(found["timers"]),
        "## Rate", _section(found, "rate", _pairs),
        "## Counters", _section(found, "counters", _pairs),
        "## Numerics: largest relative error against float64", _section(found, "numerics", _errors),
        "## Support", _section(found, "support", _support),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _section(found: Mapping[str, Any], name: str, write: Any) -> str:
    part = found.get(name)
    if part is None:
        return "not taken on this device"
    return f"failed: {part['error']}" if "error" in part else write(part)


def _known(values: Mapping[str, Any], names: tuple[str, ...]) -> list[tuple[str, Any]]:
    return [(name, values[name]) for name in names if values.get(name) is not None]


def _pairs(values: Mapping[str, Any]) -> str:
    return _table(("what", "value"), ((name, _text(value)) for name, value in values.items()))


def _errors(part: Mapping[str, Any]) -> str:
    rows = [
        (setting, algorithm, f"{error:.1e}")
        for setting, errors in part["largest"].items()
        for algorithm, error in errors.items()
    ]
    verdict = f"{len(part['beyond'])} of {part['checked']} results are beyond what is expected."
    return f"{verdict}\n\n{_table(('setting', 'algorithm', 'error'), rows)}"


def _support(part: Mapping[str, Any]) -> str:
    """Per setting a table: algorithms down, shapes across; ``+`` ran, ``-`` not supported, else the status."""
    tables = []
    for setting, shapes in part.items():
        algorithms = dict.fromkeys(name for statuses in shapes.values() for name in statuses)
        rows = [
            (name, *(_mark(statuses.get(name, "")) for statuses in shapes.values())) for name in algorithms
        ]
        tables.append(f"### {setting}\n\n" + _table(("algorithm", *shapes), rows))
    return "\n\n".join(tables)


def _mark(status: str) -> str:
    word = status.split(" ")[0].rstrip(":")
    return {"ok": "+", "not_supported": "-", "": "?"}.get(word, word)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
