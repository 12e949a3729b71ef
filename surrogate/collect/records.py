"""The records of a log by kind, and the reading of a problem's key back into the problem."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from features.conv import Conv
from features.text import parse
from surrogate.collect.device import Choice, Measurement
from surrogate.collect.plan import PlannedProblem


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
    """The problem that a key names."""
    text, dtype, math, layout, direction = key_without_visit(key).split(" ")
    return parse(text, dtype=dtype, math=math, layout=layout, direction=direction)
