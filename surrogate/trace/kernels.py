"""Kernels aggregated as nvprof prints them, by name, layer, layer type or for the whole model, with their bounds.

Hardware counters of another run of the same program are joined to them (XSP, IPDPS 2020, III-C). Counting replays
kernels and so falsifies their times: the times stay the trace's, the counters come from Nsight Compute or nvprof. A
program launches the same kernels in the same order in both runs, so the n-th launch of a name in one is the n-th of
that name in the other.
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
from surrogate.features.errors import InputError, check_choice
from surrogate.features.gpu import Gpu
from surrogate.features.kernels import LIMITS, WARP_THREADS, occupancy, uses_tensor_cores
from surrogate.features.roofline import COMPUTE_BOUND, MEMORY_BOUND, bound, compute_us, memory_us, peak_tflops
from surrogate.formats import FORMATS
from surrogate.formats.foreign_file import read_lines
from surrogate.formats.nvprof import GPU_ACTIVITIES
from surrogate.trace import events
from surrogate.trace.events.tables import Floats, Ints, grouped
from surrogate.trace.profiling import Profile, TraceSource
from surrogate.trace.profiling import profile as profiled
from surrogate.trace.result import ResultTable, Row, short_names

GROUPINGS = ("name", "layer", "type", "model")
LATENCY_BOUND, BELOW_PEAKS, COMMUNICATION = "latency-bound", "below both peaks", "communication"
WELL_USED = 0.6
"""From this share of a peak on a kernel is bound by it (NVIDIA's profiling guide for `nvvp`)."""
DRAM_LATENCY_US = 0.5
"""A load from DRAM: 400 to 800 cycles (CUDA C++ Programming Guide, 5.2.3) at 1.0 to 1.7 GHz."""
FULL_WAVE = 0.8
"""Share of a wave that counts as a full one: clusters and persistent kernels leave some places of the device free."""
_WORK = ("bound", "unit", "gflop", "dram_mb", "flop_per_byte", "tflops", "dram_gbs", "compute_pct", "memory_pct")
_JUDGED = ("flop_per_byte", "compute_pct", "memory_pct", "bound")


def kernel_table(given: TraceSource, by: str = "name") -> ResultTable:
    """Time %, total, calls, average, minimum, maximum of the kernels of each group, the longest total first.

    Beside them the launch of the group's longest kernel with its occupancy and what limits it, and where the work is
    known FLOPs, bytes, arithmetic intensity, the shares of the peaks and the bound (`verdict`). Shares are of all
    kernel time. ``by``: `GROUPINGS`.

    Raises `InputError` for another grouping.
    """
    profile = profiled(given)
    check_choice("grouping of kernels", by, GROUPINGS)
    activities = profile.trace.activities
    kernels = np.flatnonzero(activities.kind == events.KERNEL)
    labels, of_kernel = _groups(profile, kernels, by)
    total = float(activities.time_us[kernels].sum())
    groups = grouped(of_kernel, np.arange(len(kernels)))
    heading = "kernel" if by == "name" else by
    rows = [{heading: labels[i], **_row(profile, labels[i], kernels[members], total)} for i, members in groups]
    rows.sort(key=lambda row: -row["total_us"])
    title = f"Kernels by {by}: {len(kernels):,}, {total / 1e3:.3f} ms"
    short = short_names(row[heading] for row in rows) if by == "name" else {}
    return ResultTable(title, tuple(rows), _notes(profile, kernels, rows), short)


def _groups(profile: Profile, kernels: Ints, by: str) -> tuple[list[str], Ints]:
    """The labels, and the label (by its index) of each kernel."""
    if by == "name":
        return list(profile.trace.names), profile.trace.activities.name[kernels]
    if by == "model":
        return ["whole model"], np.zeros(len(kernels), np.int64)
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
    return {
        "time_pct": 100 * float(time.sum()) / total if total else 0.0,
        "total_us": float(time.sum()),
        "calls": len(members),
        "avg_us": float(time.mean()),
        "min_us": float(time.min()),
        "max_us": float(time.max()),
        **_work(profile, members, use["waves"]),
        **({"bound": COMMUNICATION} if events.COLLECTIVE_NAME.search(label) else {}),
        **({} if profile.counters is None else measured(profile.counters, activities.time_us, members, profile.gpu)),
        **{name: "x".join(map(str, part.tolist())) if part.all() else None for name, part in launch.items()},
        **{name: size if size >= 0 else None for name, size in sizes.items()},
        **use,
    }


def _work(profile: Profile, members: Ints, waves: float | None) -> Row:
    """FLOPs and bytes of those members whose work is known, over the time of the same members."""
    rated = members[np.isfinite(profile.flops[members])]
    if not len(rated):
        return dict.fromkeys(_WORK)
    flops, moved, time_us = (
        column[rated] for column in (profile.flops, profile.dram_bytes, profile.trace.activities.time_us)
    )
    gflop = float(flops.sum()) / 1e9
    dram_mb = float(moved.sum()) / 1e6
    whole_us = float(time_us.sum())
    rates = {"tflops": gflop / whole_us * 1e3, "dram_gbs": dram_mb / whole_us * 1e3} if whole_us else {}
    peaks = None if profile.gpu is None else _peaks(profile, profile.gpu, rated)
    judged = _judged(flops, moved, time_us, peaks=peaks, gpu=profile.gpu, waves=waves)
    unit = _unit(profile, int(rated[time_us.argmax()]))
    return {**dict.fromkeys(_WORK), "unit": unit, "gflop": gflop, "dram_mb": dram_mb, **rates, **judged}


def measured(counters: pd.DataFrame, time_us: Floats, members: Ints, gpu: Gpu | None) -> Row:
    """What the counters say of those members that they count, all columns one entry per launch.

    The occupancy is the mean by time, the intensity and the bound those of members whose FLOPs and bytes are known.
    """
    counted = counters.iloc[members].assign(time_us=time_us[members])
    counted["moved"] = counted["read_bytes"] + counted["write_bytes"]
    by_time = counted.dropna(subset="occupancy_pct")
    busy_us = by_time["time_us"].sum()
    weighted_us = (by_time["occupancy_pct"] * by_time["time_us"]).sum()
    rated = counted.dropna(subset=["flops", "moved"])
    flops, moved, rated_us = (rated[name].to_numpy(float) for name in ("flops", "moved", "time_us"))
    peaks = None
    if gpu is not None and len(rated):
        peaks = np.array([peak_tflops(gpu, dtype) for dtype in ("fp16", "fp32", "fp64")])[rated["width"].astype(int)]
    judged = {**dict.fromkeys(_JUDGED), **_by_levels(counted), **_judged(flops, moved, rated_us, peaks=peaks, gpu=gpu)}
    return {
        "counted": int((counted["row"] >= 0).sum()),
        "measured_gflop": _total(counted["flops"], 1e9),
        "read_mb": _total(counted["read_bytes"], 1e6),
        "write_mb": _total(counted["write_bytes"], 1e6),
        "measured_occupancy_pct": float(weighted_us / busy_us) if busy_us else None,
        **{f"measured_{name}": judged[name] for name in _JUDGED},
    }


def _by_levels(counted: pd.DataFrame) -> Row:
    """The shares of the peaks and the bound as the units' utilisation says, the mean by time; empty where none was."""
    rated = counted.dropna(subset=["units_pct", "dram_pct"])
    busy_us = rated["time_us"].sum()
    if not busy_us:
        return {}
    units, dram = ((rated[name] * rated["time_us"]).sum() / busy_us for name in ("units_pct", "dram_pct"))
    limit = LATENCY_BOUND if max(units, dram) < 100 * WELL_USED else COMPUTE_BOUND if units >= dram else MEMORY_BOUND
    return {"compute_pct": float(units), "memory_pct": float(dram), "bound": limit}


def _total(column: pd.Series, unit: float) -> float | None:
    return float(column.sum()) / unit if column.notna().any() else None


def _judged(
    flops: Floats, moved: Floats, time_us: Floats, peaks: Floats | None, gpu: Gpu | None, waves: float | None = None
) -> Row:
    """The arithmetic intensity of several launches, and their `verdict` where the GPU and so their peaks are known."""
    flop = float(flops.sum())
    byte = float(moved.sum())
    row: Row = {"flop_per_byte": flop / byte if byte else None}
    if peaks is None or gpu is None:
        return row
    # The peak for a mixed group: total FLOPs over the time that each member's own peak would need.
    peak = flop / float((flops / peaks).sum()) if flop > 0 else float(peaks.mean())
    return row | verdict(flop, byte, float(time_us.sum()), peak, gpu.dram_gbs, launches=len(flops), waves=waves)


def _peaks(profile: Profile, gpu: Gpu, members: Ints) -> Floats:
    """The peak of each member, by its data and the units that its name tells."""
    names = [profile.trace.names[name] for name in profile.trace.activities.name[members].tolist()]
    dtypes = [profile.dtype[member] for member in members.tolist()]
    return np.array(
        [peak_tflops(gpu, dtype, uses_tensor_cores(name)) for dtype, name in zip(dtypes, names, strict=True)]
    )


def _unit(profile: Profile, member: int) -> str:
    """What computes: ``fp32``, ``tf32``, ``fp16 tensor``; fp32 data on tensor cores are TF32's where there is TF32."""
    is_tensor = uses_tensor_cores(profile.trace.name_of(profile.trace.activities, member))
    dtype = profile.dtype[member]
    is_tf32 = is_tensor and dtype == "fp32" and profile.gpu is not None and profile.gpu.tf32_tflops
    return "tf32" if is_tf32 else dtype + " tensor" * is_tensor


def _notes(profile: Profile, kernels: Ints, rows: Sequence[Row]) -> tuple[str, ...]:
    time = profile.trace.activities.time_us[kernels]
    notes = []
    if whole := float(time.sum()):
        covered = float(time[np.isfinite(profile.flops[kernels])].sum()) / whole
        notes.append(f"work is known for {covered:.0%} of the kernel time; bytes are the least traffic")
    if any((row["compute_pct"] or 0) > 100 for row in rows):
        notes.append("FLOPs are the direct convolution's; Winograd and FFT need fewer, so they can pass the peak")
    if any((row["compute_pct"] or 0) > 110 and ("tf32" in row["unit"] or "tensor" in row["unit"]) for row in rows):
        notes.append("rates above the peak of matrix units: the GPU's name or the shapes are doubtful (--gpu)")
    if profile.counters is not None:
        joined = profile.counters["row"].to_numpy()[kernels] >= 0
        notes.append(
            f"counters of {profile.counters['launches'].max():,.0f} launches joined to {joined.sum():,} of"
            f" {len(kernels):,} kernels, {float(time[joined].sum()) / (whole or 1):.0%} of their time"
        )
    if profile.gpu is None:
        notes.append("no peaks: the device is not in the registry; name it with --gpu")
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
    """Shares of the peaks (TFLOP/s and GB/s) of ``launches`` in percent, and what bounds them.

    From 60 % of a peak on it is that peak. Below it a launch is latency-bound for too few bytes (or FLOPs) where they
    take less than 0.6 / (1 - 0.6) times the latency of a load from DRAM, for no launch is shorter than that latency: by
    Little's law bandwidth × latency, 0.45 MB at 900 GB/s, are in flight, and fewer than 0.675 MB cannot reach 60 %. It
    is so for too few blocks where they do not fill a wave: all run at once, and the kernel takes as long as one block.
    Else a full launch is below both peaks, held up by its own instructions or accesses. Empty for a time of 0.
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
    """Theoretical occupancy of a launch in %, what limits it, and how often the grid fills the whole GPU.

    All None for an unknown launch or compute capability.
    """
    unknown: Row = dict.fromkeys(("occupancy_pct", "limited_by", "waves"))
    try:
        held = occupancy(compute_capability, threads, registers, shared_bytes)
    except InputError:
        return unknown
    resident = held.blocks_per_sm
    if resident < 1 or blocks < 1:
        return unknown
    warps = -(-threads // WARP_THREADS)
    fills = resident * sms
    return {
        "occupancy_pct": 100.0 * resident * warps / LIMITS[compute_capability].warps,
        "limited_by": f"grid ({blocks:,} blocks)" if blocks < fills else ", ".join(held.limiting),
        "waves": blocks / fills if fills else 0.0,
    }


SECTOR_BYTES = 32
_UNITS = [
    "fp32_utilization_pct",
    *(f"{unit}_fu_utilization_pct" for unit in ("half_precision", "double_precision", "tensor_precision", "special")),
]
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
    kernels = np.flatnonzero(activities.kind == events.KERNEL)
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
        "flops": flops,
        "width": width,
        "read_bytes": _bytes(counted, "read"),
        "write_bytes": _bytes(counted, "write"),
        "occupancy_pct": _of(counted, "achieved_occupancy_pct"),
        "launches": len(counted),
        "units_pct": counted.reindex(columns=_UNITS).max(axis=1),
        "dram_pct": _of(counted, "dram_utilization_pct"),
    }
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
