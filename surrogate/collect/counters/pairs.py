"""The pairs to count, the file that names them to the profiled child, and which pair a profiled launch belongs to.

A launch belongs to the pair whose marker was launched last before it.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pandas as pd

from surrogate.collect.log import Entry, conv_of
from surrogate.collect.plan import problem_key
from surrogate.dataset.files import write_text
from surrogate.features.conv import Conv
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.formats.imported import Imported

MAX_PAIRS = 30_000
"""Markers carry a pair's number in their grid; more than this would cost more than the pairs themselves."""
MARKER = "seer_marker"
"""The empty kernel that is launched before each pair, with grid x = the pair's number + 1."""
SETTINGS = ("direction", "dtype", "math", "layout")
KEY = (*SETTINGS, *SIZE_COLUMNS, "algorithm", "kernel_index")
"""What a counted kernel is joined by."""
_IGNORED = ("gpu", "run", "kernel_index", "start_us", "stream", "cc", "device")


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem run by one algorithm."""

    conv: Conv
    algorithm: str

    @property
    def key(self) -> str:
        """Names the pair in one line; also its NVTX range."""
        return f"{problem_key(self.conv)} {self.algorithm}"


Stratum = tuple[str, int, int, bool, int]
"""What pairs are spread over: algorithm, filter, stride, whether there are groups, decade of FLOPs."""


def measured_pairs(records: Iterable[Entry]) -> list[Pair]:
    """The pairs that a run's records show as ok, each once, in their order."""
    pairs: dict[str, Pair] = {}
    for record in records:
        if record["kind"] == "measure" and record["result"]["status"] == "ok":
            pair = Pair(conv_of(record["problem"]), record["algorithm"])
            pairs.setdefault(pair.key, pair)
    return list(pairs.values())


def stratified(pairs: Sequence[Pair], count: int, seed: int = 0) -> list[Pair]:
    """Up to ``count`` pairs, and never more than `MAX_PAIRS`, spread evenly over the strata.

    Whole rounds over the strata: each gives its next pair (in a random order that ``seed`` draws) until there
    are enough, so that a rare algorithm is counted as often as a common one.
    """
    strata: dict[Stratum, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: hashlib.sha256(f"{seed} {pair.key}".encode()).digest()):
        strata.setdefault(stratum(pair), []).append(pair)
    rounds = zip_longest(*(members for _, members in sorted(strata.items())))
    return [pair for members in rounds for pair in members if pair][: min(count, MAX_PAIRS)]


def stratum(pair: Pair) -> Stratum:
    """The stratum of a pair; filters of 7 and more are alike, and strides of 2 and more."""
    conv = pair.conv
    decade = int(math.log10(max(conv.flops, 1)))
    return pair.algorithm, min(conv.r, 7), min(conv.stride_h, 2), conv.groups > 1, decade


def write_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """The list for the child: one JSON object a line, in order."""
    lines = [json.dumps({"conv": pair.conv.to_dict(), "algorithm": pair.algorithm}) for pair in pairs]
    write_text(path, "\n".join(lines) + "\n")


def read_pairs(path: Path) -> list[Pair]:
    """The inverse of `write_pairs`."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Pair(Conv(**row["conv"]), row["algorithm"]) for row in rows]


def attribute(imported: Imported, pairs: Sequence[Pair]) -> pd.DataFrame:
    """A row per kernel of one profiled run, with `KEY`, ``kernel_name`` and its numbers.

    ``imported``: what `surrogate.formats` reads, its launches in order. A launch before the first marker, or after a
    marker that names no pair, is left out. ``kernel_index`` counts a pair's kernels from 0.
    """
    launches = imported.kernels
    assert launches is not None  # a profiler's file without a launch is refused by its reader
    is_marker = launches["kernel_name"].str.startswith(MARKER)
    numbers = (launches["grid_x"].where(is_marker) - 1).ffill()
    is_owned = ~is_marker & (numbers < len(pairs))
    owner = numbers[is_owned].astype("int64")
    owned = launches[is_owned].drop(columns=list(_IGNORED), errors="ignore").reset_index(drop=True)
    rows = [pairs[number].conv.to_dict() | {"algorithm": pairs[number].algorithm} for number in owner]
    keys = pd.DataFrame(rows, columns=pd.Index(KEY[:-1]))
    keys["kernel_index"] = owner.groupby(owner).cumcount().to_numpy()
    return pd.concat([keys, owned], axis=1)


def join_passes(passes: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, list[str]]:
    """One row per kernel with the counters of all passes; a value that an earlier pass has stays.

    Rows join by `KEY` and only where the kernel names agree: a pass in which cuDNN ran other kernels, or which
    was cut short, adds nothing for them, and the notes tell how many.
    """
    joined = passes[0].set_index([*KEY, "kernel_name"])
    notes: list[str] = []
    for number, other in enumerate(passes[1:], 2):
        extra = other.set_index([*KEY, "kernel_name"])
        missed = int((~joined.index.isin(extra.index)).sum())
        if missed:
            notes.append(f"pass {number} counted nothing for {missed} of {len(joined)} kernels")
        joined = joined.combine_first(extra.reindex(joined.index))
    return joined.reset_index(), notes
