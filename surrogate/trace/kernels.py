"""Kernels aggregated as nvprof prints them, by name, layer, layer type or for the whole model, with their bounds."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError, require_known
from surrogate.features.gpu import Gpu
from surrogate.features.kernels import uses_tensor_cores
from surrogate.features.occupancy import LIMITS, WARP_THREADS, occupancy
from surrogate.features.roofline import bound, compute_us, memory_us, peak_tflops
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Floats, Ints, grouped
from surrogate.trace.profiling import Profile
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


def kernel_table(profile: Profile, by: str = "name") -> ResultTable:
    """Time %, total, calls, average, minimum, maximum of the kernels of each group, the longest total first.

    Beside them the launch of the group's longest kernel with its occupancy and what limits it, and where the work is
    known FLOPs, bytes, arithmetic intensity, the shares of the peaks and the bound (`verdict`). Shares are of all
    kernel time. ``by``: `GROUPINGS`.

    Raises `InputError` for another grouping.
    """
    require_known("grouping of kernels", by, GROUPINGS)
    activities = profile.trace.activities
    kernels = np.flatnonzero(activities.kind == kinds.KERNEL)
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
    grid = activities.grid[longest]
    block = activities.block[longest]
    registers = int(activities.registers[longest])
    shared = int(activities.shared_bytes[longest])
    use = launch_use(
        profile.fact("compute_capability"), int(profile.fact("sms")), blocks=int(grid.prod()),
        threads=int(block.prod()), registers=registers, shared_bytes=shared,
    )  # fmt: skip
    return {
        "time_pct": 100 * float(time.sum()) / total if total else 0.0, "total_us": float(time.sum()),
        "calls": len(members), "avg_us": float(time.mean()), "min_us": float(time.min()), "max_us": float(time.max()),
        **_work(profile, members, use["waves"]),
        **({"bound": COMMUNICATION} if kinds.COLLECTIVE_NAME.search(label) else {}),
        **({} if profile.counters is None else measured(profile.counters, activities.time_us, members, profile.gpu)),
        "grid": "x".join(map(str, grid.tolist())) if grid.all() else None,
        "block": "x".join(map(str, block.tolist())) if block.all() else None,
        "registers": registers if registers >= 0 else None, "shared_bytes": shared if shared >= 0 else None, **use,
    }  # fmt: skip


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
    judged = {**dict.fromkeys(_JUDGED), **_judged(flops, moved, rated_us, peaks=peaks, gpu=gpu)}
    return {
        "counted": int((counted["row"] >= 0).sum()), "measured_gflop": _total(counted["flops"], 1e9),
        "read_mb": _total(counted["read_bytes"], 1e6), "write_mb": _total(counted["write_bytes"], 1e6),
        "measured_occupancy_pct": float(weighted_us / busy_us) if busy_us else None,
        **{f"measured_{name}": judged[name] for name in _JUDGED},
    }  # fmt: skip


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
    flops: float, dram_bytes: float, time_us: float, peak: float, dram_gbs: float, *, launches: int = 1,
    waves: float | None = None,
) -> Row:  # fmt: skip
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
    least_us = max(compute, memory) * time_us / launches
    limit = bound(flops, dram_bytes, peak, dram_gbs)
    if max(compute, memory) < WELL_USED:
        if least_us < WELL_USED / (1 - WELL_USED) * DRAM_LATENCY_US:
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
