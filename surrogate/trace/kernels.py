"""Kernels aggregated as nvprof prints them, by name, layer, layer type or for the whole model, with their bounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from surrogate.features.errors import InputError, nearest
from surrogate.features.gpu import Gpu
from surrogate.features.occupancy import LIMITS, MAX_REGISTERS_PER_THREAD, WARP_THREADS, occupancy
from surrogate.features.roofline import COMPUTE_BOUND, MEMORY_BOUND, compute_us, memory_us, peak_tflops
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints
from surrogate.trace.layers import OUTSIDE
from surrogate.trace.profiling import Profile
from surrogate.trace.result import ResultTable, Row

LATENCY_BOUND = "latency-bound"
WELL_USED = 0.6
"""Below this share of both peaks a kernel is latency-bound (NVIDIA's profiling guide for `nvvp`)."""
_TENSOR_MARKS = (
    "884", "1688", "16816", "tensorop", "hmma", "imma", "wgmma", "_tf32", "tf32tf32", "f16f16_", "bf16bf16", "wmma",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Shares of the peaks that a kernel reached, and the bound that follows."""

    compute_share: float
    memory_share: float
    bound: str


@dataclass(frozen=True, slots=True)
class LaunchUse:
    """Theoretical occupancy of a launch in %, what limits it, and how often the grid fills the whole GPU."""

    occupancy_pct: float
    limited_by: str
    waves: float


def verdict(flops: float, dram_bytes: float, time_us: float, peak: float, dram_gbs: float) -> Verdict | None:
    """Whether arithmetic (peak in TFLOP/s) or memory (GB/s) is the limit; latency where both stay under 60 %.

    None for a time or peaks of 0.
    """
    if time_us <= 0 or peak <= 0 or dram_gbs <= 0:
        return None
    compute, memory = compute_us(flops, peak) / time_us, memory_us(dram_bytes, dram_gbs) / time_us
    if max(compute, memory) < WELL_USED:
        return Verdict(compute, memory, LATENCY_BOUND)
    return Verdict(compute, memory, COMPUTE_BOUND if compute >= memory else MEMORY_BOUND)


def peak_of(device: Gpu, dtype: str, kernel_name: str) -> float:
    """The peak in TFLOP/s for a kernel: tensor cores where its name says that it uses them."""
    return peak_tflops(device, dtype, uses_tensor_cores(kernel_name))


@lru_cache(maxsize=4096)
def uses_tensor_cores(kernel_name: str) -> bool:
    """True where the name carries a tensor-core instruction (884, 1688, 16816, wgmma), a tensor-op or TF32 mark."""
    lower = kernel_name.lower()
    return any(mark in lower for mark in _TENSOR_MARKS) and "ffma" not in lower


@lru_cache(maxsize=8192)
def launch_use(
    compute_capability: float, sms: int, blocks: int, threads: int, registers: int, shared_bytes: int
) -> LaunchUse | None:
    """Occupancy of a launch by `surrogate.features.occupancy`; None for an unknown launch or compute capability."""
    known = compute_capability in LIMITS and threads > 0 and 0 <= registers <= MAX_REGISTERS_PER_THREAD
    if not known or shared_bytes < 0 or blocks < 1:
        return None
    try:
        found = occupancy(compute_capability, threads, registers, shared_bytes)
    except InputError:
        return None
    resident = found.blocks_per_sm
    if resident < 1:
        return None
    warps = -(-threads // WARP_THREADS)
    waves = blocks / (resident * sms) if sms else 0.0
    limits = ", ".join(found.limiting)
    if sms and blocks < resident * sms:
        limits = f"grid ({blocks:,} blocks)"
    return LaunchUse(100.0 * resident * warps / LIMITS[compute_capability].warps, limits, waves)


GROUPINGS = ("name", "layer", "type", "model")


def kernel_table(profile: Profile, by: str = "name") -> ResultTable:
    """Time %, total, calls, average, minimum, maximum of the kernels of each group, the longest total first.

    Beside them the launch of the group's longest kernel with its occupancy and what limits it, and where the work
    is known FLOPs, bytes, arithmetic intensity, the shares of the peaks and the bound (under 60 % of both:
    latency-bound; the talk in NVIDIA's profiling practice). Shares are of all kernel time. ``by``: `GROUPINGS`.

    Raises `InputError` for another grouping.
    """
    if by not in GROUPINGS:
        raise InputError(
            f"kernels cannot be grouped by {by!r}; known: {', '.join(GROUPINGS)}{nearest(by, GROUPINGS)}"
        )
    activities = profile.trace.activities
    kernels = np.flatnonzero(activities.kind == kinds.KERNEL)
    labels, group = _groups(profile, kernels, by)
    total = float(activities.time_us[kernels].sum())
    order = np.argsort(group, kind="stable")
    _, starts = np.unique(group[order], return_index=True)
    rows = [
        _row(profile, labels[int(group[members[0]])], kernels[members], total)
        for members in (np.split(order, starts[1:]) if len(order) else [])
    ]
    rows.sort(key=lambda row: -row["total_us"])
    title = f"Kernels by {by}: {len(kernels):,}, {total / 1e3:.3f} ms"
    return ResultTable(title, tuple(rows), _notes(profile, rows))


def _groups(profile: Profile, kernels: Ints, by: str) -> tuple[Sequence[str], Ints]:
    """Labels and the label's place for each kernel."""
    if by == "name":
        return profile.trace.names, profile.trace.activities.name[kernels]
    if by == "model":
        return ["whole model"], np.zeros(len(kernels), np.int64)
    names = profile.layers.name if by == "layer" else profile.layers.type
    labels = [*dict.fromkeys(names), OUTSIDE]
    place = {label: at for at, label in enumerate(labels)}
    of_layer = np.array([*(place[name] for name in names), place[OUTSIDE]], dtype=np.int64)
    return labels, of_layer[profile.layers.of_activity[kernels]]


def _row(profile: Profile, label: str, members: Ints, total: float) -> Row:
    activities = profile.trace.activities
    time = activities.time_us[members]
    longest = int(members[time.argmax()])
    grid, block = activities.grid[longest], activities.block[longest]
    use = launch_use(
        profile.compute_capability, profile.sms, int(grid.prod()), int(block.prod()),
        int(activities.registers[longest]), int(activities.shared_bytes[longest]),
    )  # fmt: skip
    return {
        "kernel": label,
        "time_pct": 100 * float(time.sum()) / total if total else 0.0,
        "total_us": float(time.sum()),
        "calls": len(members),
        "avg_us": float(time.mean()),
        "min_us": float(time.min()),
        "max_us": float(time.max()),
        "bound": None,
        **_work(profile, members),
        "grid": "x".join(map(str, grid.tolist())) if grid.all() else None,
        "block": "x".join(map(str, block.tolist())) if block.all() else None,
        "registers": _known(int(activities.registers[longest])),
        "shared_bytes": _known(int(activities.shared_bytes[longest])),
        "occupancy_pct": use.occupancy_pct if use else None,
        "limited_by": use.limited_by if use else None,
        "waves": use.waves if use else None,
    }


def _work(profile: Profile, members: Ints) -> Row:
    """FLOPs and bytes of those members whose work is known, over the time of the same members."""
    empty: Row = dict.fromkeys(
        ("gflop", "dram_mb", "flop_per_byte", "tflops", "dram_gbs", "compute_pct", "memory_pct")
    )
    known = members[np.isfinite(profile.flops[members])]
    if not len(known):
        return empty
    time_us = float(profile.trace.activities.time_us[known].sum())
    flops, moved = float(profile.flops[known].sum()), float(profile.dram_bytes[known].sum())
    found = {
        "gflop": flops / 1e9,
        "dram_mb": moved / 1e6,
        "flop_per_byte": flops / moved if moved else None,
        "tflops": flops / time_us / 1e6 if time_us else None,
        "dram_gbs": moved / time_us / 1e3 if time_us else None,
    }
    if profile.gpu is None:
        return empty | found
    judged = verdict(flops, moved, time_us, _peak(profile, known), profile.gpu.dram_gbs)
    if judged is None:
        return empty | found
    shares = {"compute_pct": 100 * judged.compute_share, "memory_pct": 100 * judged.memory_share}
    return empty | found | shares | {"bound": judged.bound}


def _peak(profile: Profile, members: Ints) -> float:
    """The peak for a mixed group: total FLOPs over the time that each member's own peak would need."""
    assert profile.gpu is not None
    names = profile.trace.activities.name[members].tolist()
    peaks = np.array(
        [
            peak_of(profile.gpu, profile.dtype[m], profile.trace.names[n])
            for m, n in zip(members.tolist(), names, strict=True)
        ]
    )
    flops = profile.flops[members]
    whole = float(flops.sum())
    return whole / float((flops / peaks).sum()) if whole > 0 else float(peaks.mean())


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _notes(profile: Profile, rows: Sequence[Row]) -> tuple[str, ...]:
    activities = profile.trace.activities
    kernels = activities.kind == kinds.KERNEL
    time = activities.time_us
    whole = float(time[kernels].sum())
    notes = []
    if whole:
        covered = float(time[kernels & np.isfinite(profile.flops)].sum()) / whole
        notes.append(
            f"work is known for {covered:.0%} of the kernel time; bytes are the least traffic, not measured"
        )
    if any((row["compute_pct"] or 0) > 100 for row in rows):
        notes.append(
            "FLOPs are the direct convolution's; Winograd and FFT need fewer, so they can pass the peak"
        )
    if profile.gpu is None:
        notes.append("no peaks: the device is not in the registry; name it with --gpu")
    return tuple(notes)
