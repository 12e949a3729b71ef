"""What limits a kernel: occupancy of its launch, and the roofline's verdict."""

from dataclasses import dataclass
from functools import lru_cache

from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.occupancy import LIMITS, MAX_REGISTERS_PER_THREAD, WARP_THREADS, occupancy
from surrogate.features.roofline import COMPUTE_BOUND, MEMORY_BOUND, compute_us, memory_us, peak_tflops
from surrogate.trace.events.tables import Trace

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


def gpu_of(trace: Trace, device: int, name: str | None = None) -> Gpu | None:
    """The registry's GPU for a device of the trace, or the one of ``name``; None where the registry has none.

    Raises `InputError` where ``name`` is given and unknown.
    """
    if name:
        return gpu(name)
    recorded = trace.device_name(device)
    try:
        return gpu(recorded) if recorded else None
    except InputError:
        return None
