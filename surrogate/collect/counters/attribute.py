"""Which pair a profiled launch belongs to: the one whose marker was launched last before it."""

from collections.abc import Sequence

import pandas as pd

from surrogate.collect.counters.pairs import Pair
from surrogate.collect.counters.workload import MARKER
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.formats.imported import plural

SETTINGS = ("direction", "dtype", "math", "layout")
KEY = (*SETTINGS, *SIZE_COLUMNS, "algorithm", "kernel_index")
"""What a counted kernel is joined by; the device's columns (gpu, library, version) join in front."""
_IDENTITY = ("gpu", "run", "kernel_index", "kernel_name")
_IGNORED = ("start_us", "stream", "cc", "device")


def attribute(launches: pd.DataFrame, pairs: Sequence[Pair]) -> tuple[pd.DataFrame, list[str]]:
    """(a row per kernel with `KEY`, ``kernel_name`` and its numbers; notes) of one profiled run.

    ``launches``: the table that `surrogate.formats` reads, in launch order. A launch before the first marker,
    or after a marker that names no pair, is left out and told in the notes. ``kernel_index`` counts a pair's
    kernels from 0.
    """
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


def add_counters(kernels: pd.DataFrame, counters: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """``kernels`` (a dataset's kernel table) with the counters of the same rows; (the table, rows that got any).

    Joined by `KEY`, where the kernel names agree too. A column that the table has keeps its values; what it
    lacks, or has empty, comes from the counters. ``counted_time_us`` is the time under the profiler.
    """
    index = [*KEY, "kernel_name"]
    known = counters.rename(columns={"time_us": "counted_time_us"}).drop_duplicates(index).set_index(index)
    keyed = kernels.set_index(index)
    found = known.reindex(keyed.index)
    merged = keyed.copy()
    for column in known.columns:
        filled = (
            found[column]
            if column not in merged
            else merged[column].where(merged[column].notna(), found[column])
        )
        merged[column] = filled
    hit = int(keyed.index.isin(known.index).sum())
    leading = list(kernels.columns)
    merged = merged.reset_index()
    return merged[[*leading, *(name for name in merged.columns if name not in leading)]], hit
