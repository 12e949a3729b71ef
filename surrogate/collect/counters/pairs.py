"""The pairs to count, the file that names them to the profiled child, and which pair a profiled launch belongs to.

A launch belongs to the pair whose marker was launched last before it.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.collect.log import conv_of
from surrogate.collect.plan import problem_key
from surrogate.dataset.files import write_text
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.formats.imported import Imported, plural

MAX_PAIRS = 30_000
"""Markers carry a pair's number in their grid; more than this would cost more than the pairs themselves."""
MARKER = "seer_marker"
"""The empty kernel that is launched before each pair, with grid x = the pair's number + 1."""
SETTINGS = ("direction", "dtype", "math", "layout")
KEY = (*SETTINGS, *SIZE_COLUMNS, "algorithm", "kernel_index")
"""What a counted kernel is joined by."""
_IDENTITY = ("gpu", "run", "kernel_index", "kernel_name")
_IGNORED = ("start_us", "stream", "cc", "device")


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
    pairs: dict[str, Pair] = {}
    for record in records:
        if record["kind"] == "measure" and record["result"]["status"] == "ok":
            pair = Pair(conv_of(record["problem"]), record["algorithm"])
            pairs.setdefault(pair.key, pair)
    return list(pairs.values())


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
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Pair(Conv(**row["conv"]), row["algorithm"]) for row in rows]


def _rank(seed: int, pair: Pair) -> bytes:
    return hashlib.sha256(f"{seed} {pair.key}".encode()).digest()


def attribute(imported: Imported, pairs: Sequence[Pair]) -> tuple[pd.DataFrame, list[str]]:
    """(a row per kernel with `KEY`, ``kernel_name`` and its numbers; notes) of one profiled run.

    ``imported``: what `surrogate.formats` reads, its launches in order. A launch before the first marker,
    or after a marker that names no pair, is left out and told in the notes. ``kernel_index`` counts a pair's
    kernels from 0.
    """
    launches = imported.kernels
    assert launches is not None  # a profiler's file without a launch is refused by its reader
    is_marker = launches["kernel_name"].str.startswith(MARKER)
    numbers = (launches["grid_x"].where(is_marker) - 1).ffill()
    known = ~is_marker & numbers.notna() & (numbers < len(pairs))
    kept = launches[known]
    owner = numbers[known].astype("int64")
    left_out = int((~is_marker & ~known).sum())
    notes = [f"{plural(left_out, 'launch')} of no pair left out"] if left_out else []
    rows = [
        {**{name: getattr(pairs[number].conv, name) for name in (*SETTINGS, *SIZE_COLUMNS)},
         "algorithm": pairs[number].algorithm}
        for number in owner
    ]  # fmt: skip
    keys = pd.DataFrame(rows, index=kept.index, columns=pd.Index(KEY[:-1]))
    keys["kernel_index"] = owner.groupby(owner).cumcount().astype("int64")
    values = kept.drop(columns=[name for name in (*_IDENTITY, *_IGNORED) if name in kept])
    named = keys.assign(kernel_name=kept["kernel_name"])
    return pd.concat([named, values], axis=1).reset_index(drop=True), notes


def join_passes(passes: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, list[str]]:
    """One row per kernel with the counters of all passes; a value that an earlier pass has stays.

    Rows join by `KEY` and only where the kernel names agree: a pass in which cuDNN ran other kernels, or which
    was cut short, adds nothing for them, and the notes tell how many.
    """
    joined, notes = passes[0].set_index([*KEY, "kernel_name"]), list[str]()
    for number, other in enumerate(passes[1:], 2):
        extra = other.set_index([*KEY, "kernel_name"])
        missed = int((~joined.index.isin(extra.index)).sum())
        if missed:
            notes.append(f"pass {number} counted nothing for {missed} of {len(joined)} kernels")
        joined = joined.combine_first(extra.reindex(joined.index))
    return joined.reset_index(), notes
