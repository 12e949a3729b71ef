"""Hardware counters of another run of the same program, joined to the kernels of a trace (XSP, IPDPS 2020, III-C).

Counting replays kernels and so falsifies their times: the times stay the trace's, the counters come from Nsight Compute
or nvprof. A program launches the same kernels in the same order in both runs, so the n-th launch of a name in one is
the n-th of that name in the other.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.collect.device import demangled
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.kernels import uses_tensor_cores
from surrogate.formats import FORMATS
from surrogate.formats.foreign_file import read_lines
from surrogate.formats.nvprof import GPU_ACTIVITIES
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Floats, Ints
from surrogate.trace.kernels import measured
from surrogate.trace.profiling import Profile
from surrogate.trace.result import ResultTable, Row

SECTOR_BYTES = 32
_SPELLINGS = {
    r"\([a-z_ ]+\)(?=-?\d)": "",
    r"\btrue\b": "1",
    r"\bfalse\b": "0",
    r"\b(\d+)[ul]+\b": r"\1",
    "^void | ": "",
}
_LINES_LOOKED_AT = 10_000


def with_counters(profile: Profile, paths: Sequence[str | Path]) -> Profile:
    """``profile`` with the counters of ``paths``: files of Nsight Compute, or of nvprof, of one program.

    Names join as profilers spell them differently, then by the function's name alone. Of a run of fewer iterations each
    launch counts for several of the trace where it divides their number, so an average over all launches of a name
    counts for each of them. Launches whose grids differ do not join. Raises `InputError` for a file of another kind, or
    where no kernel joins.
    """
    trace = profile.trace
    activities = profile.trace.activities
    kernels = np.flatnonzero(activities.kind == kinds.KERNEL)
    names = [trace.names[name] for name in activities.name[kernels].tolist()]
    return replace(profile, counters=_joined(names, activities.grid[kernels], paths, kernels, len(activities)))


def summary_table(records: Sequence[Row], counters: Sequence[str | Path] = (), gpu: Gpu | None = None) -> ResultTable:
    """nvprof's summary (`surrogate.formats.nvprof.read_summary`) as a kernel table, its API calls among the rows.

    A summary holds times alone: with files of ``counters``, and a ``gpu`` for the bound, kernels get what was counted.
    """
    rows = [dict(record) for record in records]
    notes = ["a summary holds neither launches nor work; --counters adds it"]
    if counters:
        calls = [row["calls"] * (row["type"] == GPU_ACTIVITIES and row["kernel"][:1] != "[") for row in rows]
        of_row = np.repeat(np.arange(len(rows)), calls)
        names = [rows[i]["kernel"] for i in of_row.tolist()]
        counted = _joined(names, np.zeros((len(names), 3), np.int64), counters, np.arange(len(names)), len(names))
        time_us = np.array([rows[i]["avg_us"] for i in of_row.tolist()])
        for i, row in enumerate(rows):
            row |= measured(counted, time_us, np.flatnonzero(of_row == i), gpu)
        joined = (counted["row"] >= 0).sum()
        notes = [f"counters of {counted['launches'].max():,.0f} launches joined to {joined:,} of {len(names):,}"]
    return ResultTable("nvprof's summary", tuple(rows), tuple(notes))


def _joined(names: Sequence[str], grids: Ints, paths: Sequence[str | Path], places: Ints, size: int) -> pd.DataFrame:
    """Counters of ``size`` activities, of which those in ``places`` are kernels of these names and grids.

    ``row`` is the counted launch that stands for the activity, -1 for none, ``launches`` how many there are. ``flops``
    count 2 per multiply-add, most of them of ``width`` (0, 1, 2: half, single, double precision), the bytes are those
    of the DRAM, ``occupancy_pct`` is the achieved occupancy.
    """
    counted = _counted(paths)
    row = np.full(size, -1, np.int64)
    row[places] = joined_rows(names, grids, counted)
    if not (row >= 0).any():
        raise InputError(
            f"{paths[0]}: none of its {len(counted):,} kernels has the name and grid of one that ran;"
            " count the same program"
        )
    flops, width = _flops(counted)
    columns = {
        "flops": flops, "width": width, "read_bytes": _bytes(counted, "read"), "write_bytes": _bytes(counted, "write"),
        "occupancy_pct": _of(counted, "achieved_occupancy_pct"), "launches": len(counted),
    }  # fmt: skip
    return pd.DataFrame(columns).reindex(row).reset_index(names="row")


def _counted(paths: Sequence[str | Path]) -> pd.DataFrame:
    """A row per counted launch, or per name where a log holds averages; of several files the first that has a value."""
    first = Path(paths[0])
    # Nsight Compute's tables name a column ``Kernel Name``; nvprof's do not.
    head = () if first.suffix == ".ncu-rep" else islice(read_lines(first), _LINES_LOOKED_AT)
    is_nvprof = first.suffix != ".ncu-rep" and not any("Kernel Name" in line for _, line in head)
    table = FORMATS["nvprof" if is_nvprof else "ncu"].read(paths).kernels
    assert table is not None  # a profiler's file without a launch is refused by its reader
    return table.groupby(["kernel_index", "kernel_name"], sort=False).first().reset_index()


def joined_rows(names: Sequence[str], grids: Ints, counted: pd.DataFrame) -> Ints:
    """For each kernel (name, and grid of shape (kernels, 3)) the row of ``counted`` that is its launch, -1 for none."""
    rows = np.full(len(names), -1, np.int64)
    counted_names = counted["kernel_name"].tolist()
    for spelled in (_signature, _function):
        free = sorted(set(range(len(counted))) - set(rows.tolist()))
        launches = _places(free, counted_names, spelled)
        for name, kernels in _places(np.flatnonzero(rows < 0).tolist(), names, spelled).items():
            same = launches.get(name, [])
            if same and len(kernels) % len(same) == 0:
                same = same * (len(kernels) // len(same))
            count = min(len(kernels), len(same))
            rows[kernels[:count]] = same[:count]
    grid = np.stack([_of(counted, f"grid_{axis}") for axis in "xyz"], axis=1)[rows]
    differ = (grid != grids).any(axis=1) & np.isfinite(grid).all(axis=1) & (grids > 0).all(axis=1)
    return np.where(differ, -1, rows)


def _places(rows: Sequence[int], names: Sequence[str], spelled: Callable[[str], str]) -> dict[str, list[int]]:
    """Spelled name → those of ``rows`` that have it, in their order."""
    spellings = {name: spelled(name) for name in {names[row] for row in rows}}
    places: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        places[spellings[names[row]]].append(row)
    return places


def _signature(name: str) -> str:
    """The demangled name without what profilers write differently: ``(int)128``, ``128u`` for 128, ``true`` for 1."""
    text = demangled(name)
    for pattern, spelling in _SPELLINGS.items():
        text = re.sub(pattern, spelling, text)
    return text


def _function(name: str) -> str:
    """The function alone: without result, namespaces, template arguments and arguments."""
    text = re.sub(r"\(anonymous namespace\)|<unnamed>", "", demangled(name)).removeprefix("void ")
    return re.split(r"[<(]", text, maxsplit=1)[0].rpartition("::")[2]


def _of(counted: pd.DataFrame, column: str) -> Floats:
    return counted[column].to_numpy(float) if column in counted else np.full(len(counted), np.nan)


def _flops(counted: pd.DataFrame) -> tuple[Floats, Ints]:
    """(FLOPs as nvprof counts them, else 2 per multiply-add of the instructions; the width of most of them).

    NaN for tensor cores, whose own FLOPs neither of these counters holds.
    """
    parts = []
    for nvprof, ncu in ("hp", "h"), ("sp", "f"), ("dp", "d"):
        weights = pd.Series({f"{ncu}add_instructions": 1, f"{ncu}mul_instructions": 1, f"{ncu}fma_instructions": 2})
        weighted = counted.reindex(columns=list(weights.index)).mul(weights).sum(axis=1, min_count=1)
        parts.append(counted.get(f"flop_count_{nvprof}", weighted).fillna(weighted).to_numpy(float))
    known = np.nan_to_num(parts)
    tensor = counted["kernel_name"].map(uses_tensor_cores).to_numpy(bool)
    unknown = tensor | (_of(counted, "tensor_pipe_instructions") > 0) | np.isnan(parts).all(axis=0)
    return np.where(unknown, np.nan, known.sum(axis=0)), known.argmax(axis=0)


def _bytes(counted: pd.DataFrame, way: str) -> Floats:
    """DRAM bytes read or written, from nvprof's own figure or 32 per sector."""
    whole, sectors = _of(counted, f"dram_{way}_bytes"), _of(counted, f"dram_{way}_transactions")
    return np.where(np.isfinite(whole), whole, sectors * SECTOR_BYTES)
