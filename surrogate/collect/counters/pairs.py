"""The pairs to count: a stratified part of what a run measured, and the file that names them to the child."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surrogate.collect.plan import problem_key
from surrogate.collect.records import conv_of
from surrogate.dataset.atomic import write_text
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError

MAX_PAIRS = 30_000
"""Markers carry a pair's number in their grid; more than this would cost more than the pairs themselves."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem run by one algorithm."""

    conv: Conv
    algorithm: str

    @property
    def key(self) -> str:
        """Names the pair in one line; also its NVTX range."""
        return f"{problem_key(self.conv)} {self.algorithm}"


def measured_pairs(records: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """The pairs that a run's records show as ok, each once, in their order."""
    found: dict[str, Pair] = {}
    for record in records:
        if record["kind"] == "measure" and record["result"]["status"] == "ok":
            pair = Pair(conv_of(record["problem"]), record["algorithm"])
            found.setdefault(pair.key, pair)
    return list(found.values())


def stratified(pairs: Sequence[Pair], count: int, seed: int = 0) -> list[Pair]:
    """Up to ``count`` pairs, spread evenly over the strata (algorithm, filter, stride, decade of FLOPs).

    Whole rounds over the strata: each gives its next pair (in a random order that ``seed`` draws) until there
    are enough, so that a rare algorithm is counted as often as a common one.
    """
    strata: dict[tuple[Any, ...], list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: _rank(seed, pair)):
        strata.setdefault(stratum(pair), []).append(pair)
    chosen: list[Pair] = []
    turn = 0
    while len(chosen) < min(count, len(pairs)):
        chosen += [members[turn] for _, members in sorted(strata.items()) if turn < len(members)]
        turn += 1
    return chosen[:count]


def stratum(pair: Pair) -> tuple[Any, ...]:
    """What pairs are spread over."""
    conv = pair.conv
    decade = int(math.log10(max(conv.flops, 1)))
    return pair.algorithm, min(conv.r, 7), min(conv.stride_h, 2), conv.groups > 1, decade


def write_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """The list for the child: one JSON object a line, in order. `InputError` for none or too many."""
    if not 1 <= len(pairs) <= MAX_PAIRS:
        raise InputError(f"{len(pairs)} pairs to count; give 1 to {MAX_PAIRS}")
    lines = [json.dumps({"conv": pair.conv.to_dict(), "algorithm": pair.algorithm}) for pair in pairs]
    write_text(path, "\n".join(lines) + "\n")


def read_pairs(path: Path) -> list[Pair]:
    """The inverse of `write_pairs`."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [Pair(Conv(**row["conv"]), row["algorithm"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no list of pairs ({error}); `write_pairs` writes one") from None


def _rank(seed: int, pair: Pair) -> bytes:
    return hashlib.sha256(f"{seed} {pair.key}".encode()).digest()
