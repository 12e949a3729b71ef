"""Kernel tables like nvprof's, by name, layer, layer type, label or for the whole model, with each group's bound.

Hardware counters of another run of the same program can be joined to the kernels (XSP, IPDPS 2020, III-C). Counting
replays each kernel, which falsifies its time. So times come from the trace, and counters from Nsight Compute or nvprof.
A program launches the same kernels in the same order in both runs. So the n-th launch of a name in one run is the n-th
launch of that name in the other run.
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
from surrogate.features.errors import InputError, check_choice, read_toml
from surrogate.features.gpu import Gpu
from surrogate.features.kernels import LIMITS, WARP_THREADS, occupancy, uses_tensor_cores
from surrogate.features.roofline import COMPUTE_BOUND, MEMORY_BOUND, bound, compute_us, memory_us, peak_tflops
from surrogate.formats import FORMATS
from surrogate.formats.foreign_file import read_lines
from surrogate.formats.ncu import is_ncu
from surrogate.formats.nvprof import GPU_ACTIVITIES
from surrogate.trace import events, profiling
from surrogate.trace.events.phases import whole_graphs
from surrogate.trace.events.tables import Floats, Ints, grouped
from surrogate.trace.labels import find_labels
from surrogate.trace.profiling import NO_DEVICE, Profile, TraceSource
from surrogate.trace.result import ResultTable, Row, short_names

GROUPINGS = ("name", "layer", "type", "label", "model")
LATENCY_BOUND, BELOW_PEAKS, COMMUNICATION = "latency-bound", "below both peaks", "communication"
WELL_USED = 0.6
"""A kernel that reaches this share of a peak is bound by that peak (NVIDIA's profiling guide for `nvvp`)."""
DRAM_LATENCY_US = 0.5
"""Latency of a load from DRAM: 400 to 800 cycles (CUDA C++ Programming Guide, 5.2.3) at 1.0 to 1.7 GHz."""
FULL_WAVE = 0.8
"""Share of a wave that counts as full. Clusters and persistent kernels leave some block slots of the device free."""
_WORK = ("bound", "unit", "gflop", "dram_mb", "flop_per_byte", "tflops", "dram_gbs", "compute_pct", "memory_pct")
_BOUNDS = ("flop_per_byte", "compute_pct", "memory_pct", "bound")


def kernel_table(source: TraceSource, by: str = "name") -> ResultTable:
    """Return the time of each group of kernels, its launch, its work and its bound, the longest total first.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.
    by : str
        One of `GROUPINGS`: name, layer, type, label (the innermost one) or model.

    Returns
    -------
    ResultTable
        One row per group. A CUDA graph without recorded kernels counts as a kernel. Times are in µs; ``time_pct`` is
        the group's share of all kernel time. The launch and its occupancy belong to the group's longest kernel. If the
        work is known, the row has FLOPs, bytes, arithmetic intensity, the shares of the peaks and the bound
        (`verdict`).

    Raises
    ------
    InputError
        If ``by`` is not a grouping, or ``source`` is no trace.
    """
    profile = profiling.profile(source)
    check_choice("grouping of kernels", by, GROUPINGS)
    kernels = np.flatnonzero(np.isin(profile.trace.activities.kind, (events.KERNEL, events.GRAPH)))
    labels, of_kernel = _groups(profile, kernels, by)
    total = float(profile.trace.activities.time_us[kernels].sum())
    groups = grouped(of_kernel, np.arange(len(kernels)))
    heading = "kernel" if by == "name" else by
    rows = [{heading: labels[i], **_row(profile, labels[i], kernels[members], total)} for i, members in groups]
    rows.sort(key=lambda row: -row["total_us"])
    title = f"Kernels by {by}: {len(kernels):,}, {total / 1e3:,.3f} ms"
    short = short_names(row[heading] for row in rows) if by == "name" else {}
    return ResultTable(title, tuple(rows), _notes(profile, kernels, rows), short)


def _groups(profile: Profile, kernels: Ints, by: str) -> tuple[list[str], Ints]:
    """Return the labels, and for each kernel the index of its label."""
    if by == "name":
        return list(profile.trace.names), profile.trace.activities.name[kernels]
    if by == "model":
        return ["whole model"], np.zeros(len(kernels), np.int64)
    if by == "label":
        found = find_labels(profile.trace)
        return list(found.names), found.name[found.of_activity[kernels]]
    labels, of_layer = profile.layers.labels(by)
    return labels, of_layer[profile.layers.of_activity[kernels]]


def _row(profile: Profile, label: str, members: Ints, total: float) -> Row:
    activities = profile.trace.activities
    time = activities.time_us[members]
    longest = int(members[time.argmax()])
    launch = {"grid": activities.grid[longest], "block": activities.block[longest]}
    sizes = {name: int(getattr(activities, name)[longest]) for name in ("registers", "shared_bytes")}
    blocks, threads = (int(part.prod()) for part in launch.values())
    use = launch_use(profile.fact("compute_capability"), int(profile.fact("sms")), blocks, threads, **sizes)
    counters = profile.counters
    total_us = float(time.sum())
    return {
        **{"time_pct": 100 * total_us / total if total else 0.0, "total_us": total_us, "calls": len(members)},
        **{"avg_us": float(time.mean()), "min_us": float(time.min()), "max_us": float(time.max())},
        **_work(profile, members, use["waves"]),
        **({"bound": COMMUNICATION} if events.COLLECTIVE_NAME.search(label) else {}),
        **({} if counters is None else counter_columns(counters, activities.time_us, members, profile.gpu)),
        **{name: "x".join(map(str, part.tolist())) if part.all() else None for name, part in launch.items()},
        **{name: size if size >= 0 else None for name, size in sizes.items()},
        **use,
    }


def _work(profile: Profile, members: Ints, waves: float | None) -> Row:
    """Return FLOPs, bytes and rates of the members with known work; rates use the time of the same members."""
    rows = members[np.isfinite(profile.flops[members])]
    if not len(rows):
        return dict.fromkeys(_WORK)
    columns = profile.flops, profile.dram_bytes, profile.trace.activities.time_us
    flops, moved, time_us = (column[rows] for column in columns)
    gflop, dram_mb, total_us = float(flops.sum()) / 1e9, float(moved.sum()) / 1e6, float(time_us.sum())
    rates = {"tflops": gflop / total_us * 1e3, "dram_gbs": dram_mb / total_us * 1e3} if total_us else {}
    peaks = None if profile.gpu is None else _peaks(profile, profile.gpu, rows)
    bounds = _bounds(flops, moved, time_us, peaks=peaks, gpu=profile.gpu, waves=waves)
    unit = _unit(profile, int(rows[time_us.argmax()]))
    return {**dict.fromkeys(_WORK), "unit": unit, "gflop": gflop, "dram_mb": dram_mb, **rates, **bounds}


def counter_columns(counters: pd.DataFrame, time_us: Floats, members: Ints, gpu: Gpu | None) -> Row:
    """Return the counters of the members that were counted; every column has one entry per launch.

    The occupancy is the mean weighted by time. The intensity and the bound use only members with known FLOPs and bytes.
    """
    rows = counters.iloc[members].assign(time_us=time_us[members])
    rows["moved"] = rows["read_bytes"] + rows["write_bytes"]
    work = rows.dropna(subset=["flops", "moved"])
    flops, moved, work_us = (work[name].to_numpy(float) for name in ("flops", "moved", "time_us"))
    by_width = [peak_tflops(gpu, dtype) for dtype in ("fp16", "fp32", "fp64")] if gpu else []
    peaks = np.array(by_width)[work["width"].astype(int)] if gpu and len(work) else None
    computed = _bounds(flops, moved, work_us, peaks=peaks, gpu=gpu)
    bounds = {**dict.fromkeys(_BOUNDS), **_bounds_by_utilisation(rows), **computed}
    return {
        "counted": int((rows["row"] >= 0).sum()),
        "measured_gflop": _total(rows["flops"], 1e9),
        "read_mb": _total(rows["read_bytes"], 1e6),
        "write_mb": _total(rows["write_bytes"], 1e6),
        "measured_occupancy_pct": next(iter(_means(rows, "occupancy_pct")), None),
        **{f"measured_{name}": bounds[name] for name in _BOUNDS},
    }


def _bounds_by_utilisation(counted: pd.DataFrame) -> Row:
    """Return shares of the peaks and the bound from the units' utilisation (mean weighted by time); {} without it."""
    if not (means := _means(counted, "units_pct", "dram_pct")):
        return {}
    units, dram = means
    limit = LATENCY_BOUND if max(means) < 100 * WELL_USED else COMPUTE_BOUND if units >= dram else MEMORY_BOUND
    return {"compute_pct": units, "memory_pct": dram, "bound": limit}


def _means(counted: pd.DataFrame, *columns: str) -> list[float]:
    """Return the means of columns weighted by time, over the rows that have them all; [] without such rows."""
    used = counted.dropna(subset=list(columns))
    busy_us = used["time_us"].sum()
    return [float((used[name] * used["time_us"]).sum() / busy_us) for name in columns] if busy_us else []


def _total(column: pd.Series, unit: float) -> float | None:
    return float(column.sum()) / unit if column.notna().any() else None


def _bounds(
    flops: Floats, moved: Floats, time_us: Floats, peaks: Floats | None, gpu: Gpu | None, waves: float | None = None
) -> Row:
    """Return the arithmetic intensity of several launches, and their `verdict` if the GPU's peaks are known."""
    flop = float(flops.sum())
    byte = float(moved.sum())
    row: Row = {"flop_per_byte": flop / byte if byte else None}
    if peaks is None or gpu is None:
        return row
    # The peak for a mixed group: total FLOPs over the time that each member's own peak would need.
    peak = flop / float((flops / peaks).sum()) if flop > 0 else float(peaks.mean())
    return row | verdict(flop, byte, float(time_us.sum()), peak, gpu.dram_gbs, launches=len(flops), waves=waves)


def _peaks(profile: Profile, gpu: Gpu, members: Ints) -> Floats:
    """Return the peak of each member in TFLOP/s, by its dtype and the compute units that its name shows."""
    names = [profile.trace.names[name] for name in profile.trace.activities.name[members].tolist()]
    dtypes = [profile.dtype[member] for member in members.tolist()]
    return np.array([peak_tflops(gpu, *pair) for pair in zip(dtypes, map(uses_tensor_cores, names), strict=True)])


def _unit(profile: Profile, member: int) -> str:
    """Return the compute unit: ``fp32``, ``tf32``, ``fp16 tensor``; fp32 on tensor cores is TF32 if the GPU has it."""
    is_tensor = uses_tensor_cores(profile.trace.name_of(profile.trace.activities, member))
    dtype = profile.dtype[member]
    is_tf32 = is_tensor and dtype == "fp32" and profile.gpu is not None and profile.gpu.tf32_tflops
    return "tf32" if is_tf32 else dtype + " tensor" * is_tensor


def _notes(profile: Profile, kernels: Ints, rows: Sequence[Row]) -> tuple[str, ...]:
    time = profile.trace.activities.time_us[kernels]
    notes = whole_graphs(profile.trace)
    if total_us := float(time.sum()):
        covered = float(time[np.isfinite(profile.flops[kernels])].sum()) / total_us
        notes.append(events.text("known_work", share=covered))
    if any((row["compute_pct"] or 0) > 100 for row in rows):
        notes.append(events.text("direct"))
    if any((row["compute_pct"] or 0) > 110 and ("tf32" in row["unit"] or "tensor" in row["unit"]) for row in rows):
        notes.append(events.text("above_peak"))
    if profile.counters is not None:
        joined = profile.counters["row"].to_numpy()[kernels] >= 0
        counts = {"launches": profile.counters["launches"].max(), "joined": joined.sum(), "kernels": len(kernels)}
        notes.append(events.text("counted", **counts, share=float(time[joined].sum()) / (total_us or 1)))
        notes += profile.counters.attrs["notes"]
    if not len(profile.trace.activities):
        notes.append(f"{profile.trace.source}: {NO_DEVICE}")
    elif profile.gpu is None:
        notes.append(events.text("no_peaks"))
    return tuple(notes)


def verdict(
    flops: float,
    dram_bytes: float,
    time_us: float,
    peak: float,
    dram_gbs: float,
    *,
    launches: int = 1,
    waves: float | None = None,
) -> Row:
    """Return the shares of the peaks (TFLOP/s and GB/s) that ``launches`` reach, in percent, and their bound.

    A launch that reaches 60 % of a peak is bound by that peak. All other launches fall into three classes:

    - Latency-bound by too few bytes (or FLOPs), if they take less than 0.6 / (1 - 0.6) times the latency of a DRAM
      load. No launch is shorter than that latency. By Little's law bandwidth × latency (0.45 MB at 900 GB/s) are in
      flight, so a launch with less than 0.675 MB cannot reach 60 %.
    - Latency-bound by too few blocks, if they do not fill a wave. All blocks run at once, and the kernel takes as long
      as one block.
    - Below both peaks: a full launch, limited by its own instructions or accesses.

    The row is empty if the time is 0.
    """
    if not time_us:
        return {}
    compute = compute_us(flops, peak) / time_us
    memory = memory_us(dram_bytes, dram_gbs) / time_us
    min_us = max(compute, memory) * time_us / launches
    limit = bound(flops, dram_bytes, peak, dram_gbs)
    if max(compute, memory) < WELL_USED:
        if min_us < WELL_USED / (1 - WELL_USED) * DRAM_LATENCY_US:
            limit = f"{LATENCY_BOUND} ({'FLOPs' if compute > memory else 'bytes'})"
        else:
            limit = f"{LATENCY_BOUND} (blocks)" if waves is not None and waves < FULL_WAVE else BELOW_PEAKS
    return {"compute_pct": 100 * compute, "memory_pct": 100 * memory, "bound": limit}


def launch_use(
    compute_capability: float, sms: int, blocks: int, threads: int, registers: int, shared_bytes: int
) -> Row:
    """Return a launch's theoretical occupancy in %, its limiting resources, and the waves: how often it fills the GPU.

    All three are None if the launch or the compute capability is unknown.
    """
    unknown: Row = dict.fromkeys(("occupancy_pct", "limited_by", "waves"))
    try:
        limits = occupancy(compute_capability, threads, registers, shared_bytes)
    except InputError:
        return unknown
    resident = limits.blocks_per_sm
    if resident < 1 or blocks < 1:
        return unknown
    warps = -(-threads // WARP_THREADS)
    fills = resident * sms
    return {
        "occupancy_pct": 100.0 * resident * warps / LIMITS[compute_capability].warps,
        "limited_by": f"grid ({blocks:,} blocks)" if blocks < fills else ", ".join(limits.limiting),
        "waves": blocks / fills if fills else 0.0,
    }


SECTOR_BYTES = 32
_TABLE = read_toml(__file__)
_HEADER_LINES = 10_000


def with_counters(profile: Profile, paths: Sequence[str | Path]) -> Profile:
    """Return ``profile`` with hardware counters of another run of the same program.

    Kernels join by their full names, in a spelling that profilers share, then by the function's name without arguments.
    If the counted run has fewer iterations and its launches divide the trace's, each of them counts for several
    launches. So an average over all launches of a name counts for each launch. Launches with different grids do not
    join.

    Parameters
    ----------
    profile : Profile
        The profile of the trace.
    paths : sequence of str or Path
        Files of Nsight Compute, or files of nvprof.

    Returns
    -------
    Profile
        A copy with ``counters``: one row per device activity, NaN if the run did not count it.

    Raises
    ------
    InputError
        If a file has another format, or no kernel joins.
    """
    activities = profile.trace.activities
    kernels = np.flatnonzero(activities.kind == events.KERNEL)
    names = [profile.trace.names[name] for name in activities.name[kernels].tolist()]
    return replace(profile, counters=_joined(names, activities.grid[kernels], paths, kernels, len(activities)))


def summary_table(
    title: str, records: Sequence[Row], counters: Sequence[str | Path] = (), gpu: Gpu | None = None
) -> ResultTable:
    """Return a summary (`surrogate.formats.nvprof.read_summary`) as a kernel table, with rows for API calls.

    A summary holds only times. Files of ``counters`` add counted work to its kernels, and a ``gpu`` adds the bound.
    """
    rows = [dict(record) for record in records]
    notes = [events.text("summary_only")]
    if counters:
        calls = [row["calls"] * (row["type"] == GPU_ACTIVITIES and row["kernel"][:1] != "[") for row in rows]
        of_row = np.repeat(np.arange(len(rows)), calls)
        names = [rows[i]["kernel"] for i in of_row.tolist()]
        counted = _joined(names, np.zeros((len(names), 3), np.int64), counters, np.arange(len(names)), len(names))
        time_us = np.array([rows[i]["avg_us"] for i in of_row.tolist()])
        for i, row in enumerate(rows):
            row |= counter_columns(counted, time_us, np.flatnonzero(of_row == i), gpu)
        counts = {"launches": counted["launches"].max(), "joined": (counted["row"] >= 0).sum(), "kernels": len(names)}
        notes = [events.text("counted_summary", **counts), *counted.attrs["notes"]]
    return ResultTable(title, tuple(rows), tuple(notes))


def _joined(names: Sequence[str], grids: Ints, paths: Sequence[str | Path], places: Ints, size: int) -> pd.DataFrame:
    """Return the counters of ``size`` activities; ``places`` are the rows of the kernels with these names and grids.

    ``row`` is the counted launch that joins the activity, or -1; ``launches`` is the number of counted launches.
    ``flops`` count 2 per multiply-add; ``width`` is the commonest precision (0, 1, 2: half, single, double). Bytes are
    DRAM bytes, and ``occupancy_pct`` is the achieved occupancy. The attribute ``notes`` has the reader's notes.
    """
    counted = _counted(paths)
    row = np.full(size, -1, np.int64)
    row[places] = joined_rows(names, grids, counted)
    if not (row >= 0).any():
        raise events.refusal("no_join", path=paths[0], count=len(counted))
    flops, width = _flops(counted)
    columns = {f"{name}_bytes": _bytes(counted, name) for name in ("read", "write")}
    columns["occupancy_pct"] = _column(counted, "achieved_occupancy_pct")
    columns["dram_pct"] = _column(counted, "dram_utilization_pct")
    table = pd.DataFrame({"flops": flops, "width": width, **columns, "launches": len(counted)})
    table["units_pct"] = counted.reindex(columns=_TABLE["units"]).max(axis=1)
    if table.drop(columns=["width", "launches"]).isna().all(axis=None):
        raise events.refusal("no_counters", path=paths[0])
    table = table.reindex(row).reset_index(names="row")
    table.attrs["notes"] = counted.attrs["notes"]
    return table


def _counted(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Return one row per counted launch, or per name if a log holds averages; the first file with a value wins."""
    first = Path(paths[0])
    head = () if first.suffix == ".ncu-rep" else islice(read_lines(first), _HEADER_LINES)
    is_nvprof = first.suffix != ".ncu-rep" and not any(is_ncu(line) for _, line in head)
    imported = FORMATS["nvprof" if is_nvprof else "ncu"].read(paths)
    assert imported.kernels is not None  # a profiler's file without a launch is refused by its reader
    table = imported.kernels.groupby(["kernel_index", "kernel_name"], sort=False).first().reset_index()
    table.attrs["notes"] = imported.notes
    return table


def joined_rows(names: Sequence[str], grids: Ints, counted: pd.DataFrame) -> Ints:
    """Return for each kernel the row of ``counted`` that is its launch, or -1; ``grids`` has shape (kernels, 3)."""
    rows = np.full(len(names), -1, np.int64)
    counted_names = counted["kernel_name"].tolist()
    for normalise in (_signature, _function):
        free = sorted(set(range(len(counted))) - set(rows.tolist()))
        launches_by_name = _rows_by_name(free, counted_names, normalise)
        for name, kernels in _rows_by_name(np.flatnonzero(rows < 0).tolist(), names, normalise).items():
            launches = launches_by_name.get(name, [])
            if launches and len(kernels) % len(launches) == 0:
                launches = launches * (len(kernels) // len(launches))
            count = min(len(kernels), len(launches))
            rows[kernels[:count]] = launches[:count]
    grid = np.stack([_column(counted, f"grid_{axis}") for axis in "xyz"], axis=1)[rows]
    differ = (grid != grids).any(axis=1) & np.isfinite(grid).all(axis=1) & (grids > 0).all(axis=1)
    return np.where(differ, -1, rows)


def _rows_by_name(rows: Sequence[int], names: Sequence[str], normalise: Callable[[str], str]) -> dict[str, list[int]]:
    """Return normalised name → the ``rows`` with this name, in their order."""
    normalised = {name: normalise(name) for name in {names[row] for row in rows}}
    rows_by_name: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        rows_by_name[normalised[names[row]]].append(row)
    return rows_by_name


def _signature(name: str) -> str:
    """Return the demangled name in one spelling: profilers write ``(int)128``, ``128u`` or 128, and ``true`` or 1."""
    text = demangled(name)
    for pattern, spelling in _TABLE["spellings"].items():
        text = re.sub(pattern, spelling, text)
    return text


def _function(name: str) -> str:
    """Return only the function's name, without result, namespaces, template arguments and arguments."""
    text = re.sub(r"\(anonymous namespace\)|<unnamed>", "", demangled(name)).removeprefix("void ")
    return re.split(r"[<(]", text, maxsplit=1)[0].rpartition("::")[2]


def _column(counted: pd.DataFrame, column: str) -> Floats:
    return counted[column].to_numpy(float) if column in counted else np.full(len(counted), np.nan)


def _flops(counted: pd.DataFrame) -> tuple[Floats, Ints]:
    """Return nvprof's FLOPs, else FLOPs from instructions (2 per multiply-add), and the commonest precision.

    FLOPs are NaN for kernels on tensor cores, because neither counter includes tensor-core FLOPs.
    """
    parts = []
    for nvprof, ncu in ("hp", "h"), ("sp", "f"), ("dp", "d"):
        weights = pd.Series({f"{ncu}add_instructions": 1, f"{ncu}mul_instructions": 1, f"{ncu}fma_instructions": 2})
        weighted = counted.reindex(columns=list(weights.index)).mul(weights).sum(axis=1, min_count=1)
        parts.append(counted.get(f"flop_count_{nvprof}", weighted).fillna(weighted).to_numpy(float))
    counts = np.nan_to_num(parts)
    tensor = counted["kernel_name"].map(uses_tensor_cores).to_numpy(bool)
    unknown = tensor | (_column(counted, "tensor_pipe_instructions") > 0) | np.isnan(parts).all(axis=0)
    return np.where(unknown, np.nan, counts.sum(axis=0)), counts.argmax(axis=0)


def _bytes(counted: pd.DataFrame, direction: str) -> Floats:
    """Return DRAM bytes read or written: nvprof's figure, else 32 bytes per sector."""
    moved, sectors = _column(counted, f"dram_{direction}_bytes"), _column(counted, f"dram_{direction}_transactions")
    return np.where(np.isfinite(moved), moved, sectors * SECTOR_BYTES)
