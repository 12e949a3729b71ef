"""The records of a log by kind, and the reading of a problem's key back into the problem."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from surrogate.collect.device import Choice, Measurement
from surrogate.collect.plan import PlannedProblem
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.text import parse

_FIELDS: Mapping[str, Mapping[str, type]] = {
    "problem": {"problem": str, "origin": str, "networks": list, "candidates": list, "heuristic": list},
    "measure": {"problem": str, "algorithm": str, "result": dict},
    "done": {"problem": str, "find": list, "conditions": dict},
    "operator": {"problem": str, "result": dict, "conditions": dict},
}
"""Kind of record → what it needs."""
_TEXTS = ("networks", "candidates")
"""Lists of texts."""


def check_record(record: Any, *, first: bool) -> None:
    """Raise `ValueError` where ``record`` is no record of a log; the ``first`` is the header, of any kind."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise ValueError("not a record")
    if first:
        return
    if record["kind"] not in _FIELDS:
        raise ValueError(f"kind {record['kind']!r} is unknown")
    for name, kind in _FIELDS[record["kind"]].items():
        if not isinstance(record.get(name), kind):
            raise ValueError(f"{record['kind']} record without {name}")
        if name in _TEXTS and not all(isinstance(text, str) for text in record[name]):
            raise ValueError(f"{record['kind']} record whose {name} are no texts")


def problem_record(
    problem: PlannedProblem, candidates: Sequence[str], heuristic: Sequence[Choice]
) -> dict[str, Any]:
    """Written before a problem's first measurement."""
    return {
        "kind": "problem",
        "problem": problem.key,
        "origin": problem.origin,
        "networks": list(problem.networks),
        "candidates": list(candidates),
        "heuristic": [choice.to_dict() for choice in heuristic],
    }


def measure_record(
    problem: PlannedProblem, algorithm: str, result: Measurement, at_s: float
) -> dict[str, Any]:
    """One measurement; ``at_s`` is Unix time."""
    return {
        "kind": "measure",
        "problem": problem.key,
        "algorithm": algorithm,
        "at_s": round(at_s, 3),
        "result": result.to_dict(),
    }


def done_record(
    problem: PlannedProblem, found: Sequence[Choice], conditions: Mapping[str, float]
) -> dict[str, Any]:
    """Written when every candidate of a problem has been measured."""
    return {
        "kind": "done",
        "problem": problem.key,
        "find": [choice.to_dict() for choice in found],
        "conditions": dict(conditions),
    }


def key_without_visit(key: str) -> str:
    """The problem with its settings: what all visits share."""
    return key.partition(" #")[0]


@lru_cache(maxsize=8192)
def conv_of(key: str) -> Conv:
    """The problem that a key names; `InputError` where it names none."""
    parts = key_without_visit(key).split(" ")
    if len(parts) != 5:
        raise InputError(f"problem {key!r} is not readable; it is PROBLEM dtype math layout direction")
    text, dtype, math, layout, direction = parts
    return parse(text, dtype=dtype, math=math, layout=layout, direction=direction)
