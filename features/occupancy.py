"""Occupancy: how many blocks of a launch are resident on one SM, and on the whole GPU (SEER's B_max).

Source of the formula and of `LIMITS`: NVIDIA's occupancy calculator (cuda_occupancy.h of CUDA 13.0) and the
CUDA programming guide's technical specifications per compute capability.
"""

import tomllib
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .elementwise import Number, ceil_div, maximum, minimum, round_up, where
from .errors import InputError
from .gpu import Gpu

WARP_THREADS = 32
MAX_THREADS = 1024
DOUBLE_DATA_RATE = 2
"""Transfers in one clock of the memory, by which drivers report its rate: 11 Gbit/s on a pin are 5500 MHz."""
REGISTERS_PER_SM = 65536
REGISTERS_PER_WARP_UNIT = 256
NO_LIMIT = -1
MAX_REGISTERS_PER_THREAD = 255
CONCURRENT_KERNELS = {5.2: 32, 6.1: 32}
"""Compute capability → grids that may be resident on the device, where they are not 128."""
_TABLE = tomllib.loads(Path(__file__).with_name("occupancy.toml").read_text(encoding="utf-8"))
BLOCK_LIMITS: dict[str, float] = _TABLE["block"]
"""Device attribute → its value on every NVIDIA GPU since compute capability 3.0."""


SmLimits = namedtuple(
    "SmLimits",
    (
        "warps",
        "blocks",
        "shared_bytes",
        "optin_bytes",
        "reserved_bytes",
        "shared_unit_bytes",
        "partitions",
        "header_partitions",
    ),
)
"""What one SM holds: warps, blocks, shared memory and its allocation rules, register-file partitions."""
LIMITS = {
    float(capability): SmLimits(warps, blocks, 1024 * kib, 1024 * optin_kib, *rest)
    for capability, (warps, blocks, kib, optin_kib, *rest) in _TABLE["limits"].items()
}
"""Compute capability → limits of one SM."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks per SM and the four limits behind them (`NO_LIMIT` for a resource not used).

    Numbers for a scalar launch, arrays for columns. A launch that cannot run has 0 blocks, and 0 stands in
    the limit that refuses it.
    """

    blocks_per_sm: Number
    limit_registers: Number
    limit_shared: Number
    limit_warps: Number
    limit_blocks: Number

    @property
    def limiting(self) -> tuple[str, ...]:
        """Names of the limits that bind one launch: registers, shared, warps, blocks."""
        names = ("registers", "shared", "warps", "blocks")
        return tuple(name for name in names if getattr(self, f"limit_{name}") == self.blocks_per_sm)


def resident(
    sm: SmLimits, threads: Number, registers_per_thread: Number, shared_bytes: Number, dynamic_bytes: Number
) -> Occupancy:
    """The occupancy formula for numbers or arrays; unchecked inputs, see `occupancy`."""
    warps = ceil_div(threads, WARP_THREADS)
    # A warp's registers are handed out in units of REGISTERS_PER_WARP_UNIT.
    per_warp = round_up(registers_per_thread * WARP_THREADS, REGISTERS_PER_WARP_UNIT)
    # Whether one block fits at all: the hardware fills the partitions of the register file evenly, so the block's warps
    # are rounded up to whole partitions; the header rounds to its own number of them, which differs on Pascal's GP100.
    per_block = maximum(round_up(warps, sm.partitions), round_up(warps, sm.header_partitions)) * per_warp
    # How many fit: each partition holds whole warps in its share of the registers; all partitions' warps together make
    # blocks. maximum(..., 1) keeps the division defined where no registers are used, a case that `where` then replaces.
    by_registers = REGISTERS_PER_SM // sm.partitions // maximum(per_warp, 1) * sm.partitions // warps
    limit_registers = where(registers_per_thread == 0, NO_LIMIT, where(per_block > REGISTERS_PER_SM, 0, by_registers))
    # Shared memory of a block: static, dynamic and what the driver reserves, in whole allocation units.
    shared = round_up(shared_bytes + dynamic_bytes + sm.reserved_bytes, sm.shared_unit_bytes)
    # A block that asks for more than a block may have is refused (0); without shared memory there is no such limit.
    optin = sm.optin_bytes + sm.reserved_bytes
    limit_shared = where(shared == 0, NO_LIMIT, where(shared > optin, 0, sm.shared_bytes // maximum(shared, 1)))
    # The SM's warp slots; a block of more threads than any block may have is refused.
    limit_warps = where(threads > MAX_THREADS, 0, sm.warps // warps)
    # The smallest limit counts. NO_LIMIT is negative and must not win, so the SM's block slots stand in for it.
    blocks = minimum(limit_warps, sm.blocks)
    blocks = minimum(blocks, where(limit_registers == NO_LIMIT, sm.blocks, limit_registers))
    blocks = minimum(blocks, where(limit_shared == NO_LIMIT, sm.blocks, limit_shared))
    return Occupancy(blocks, limit_registers, limit_shared, limit_warps, limit_blocks=sm.blocks)


def sm_limits(compute_capability: Number) -> SmLimits:
    """`LIMITS` of a compute capability, or columns of them. Raises `InputError` for one that is not known."""
    if not isinstance(compute_capability, np.ndarray):
        limits = LIMITS.get(compute_capability)
        if limits is None:
            raise InputError(_unknown(compute_capability))
        return limits
    # One row of limits per distinct capability; each limit then becomes a column as long as the launches.
    capabilities, capability_of_row = np.unique(compute_capability, return_inverse=True)
    table = [sm_limits(capability) for capability in capabilities.tolist()]
    return SmLimits(*(np.array(limit, dtype=np.int64)[capability_of_row] for limit in zip(*table, strict=True)))


def occupancy(
    compute_capability: Number,
    threads: Number,
    registers_per_thread: Number,
    shared_bytes: Number,
    dynamic_shared_bytes: Number = 0,
) -> Occupancy:
    """Resident blocks per SM of a launch; a launch that the device refuses has 0.

    ``threads`` is per block, ``shared_bytes`` the static and ``dynamic_shared_bytes`` the dynamic shared
    memory of a block: whole numbers, or arrays of one common length (``compute_capability`` as in `LIMITS`).

    Raises `InputError` for a compute capability outside `LIMITS` (AMD's 0.0 included), fewer than 1 thread,
    more than 255 registers per thread, or a negative size.
    """
    sm = sm_limits(compute_capability)
    _check("threads", threads, 1, None)
    _check("registers_per_thread", registers_per_thread, 0, MAX_REGISTERS_PER_THREAD)
    _check("shared_bytes", shared_bytes, 0, None)
    _check("dynamic_shared_bytes", dynamic_shared_bytes, 0, None)
    return resident(sm, threads, registers_per_thread, shared_bytes, dynamic_shared_bytes)


def b_max(
    gpu: Gpu, threads: Number, registers_per_thread: Number, shared_bytes: Number, dynamic_shared_bytes: Number = 0
) -> Number:
    """Blocks that the whole GPU holds at once: resident blocks per SM x SMs (SEER's B_max)."""
    launch = (threads, registers_per_thread, shared_bytes, dynamic_shared_bytes)
    return occupancy(gpu.compute_capability, *launch).blocks_per_sm * gpu.sms


def _unknown(compute_capability: float) -> str:
    capabilities = ", ".join(map(str, LIMITS))
    return f"compute capability {compute_capability!r} has no occupancy rules here; known (NVIDIA only): {capabilities}"


def _check(name: str, value: Number, least: int, most: int | None) -> None:
    """Raises `InputError` unless ``value`` (every element of it) lies within the bounds."""
    array = isinstance(value, np.ndarray)
    if array and not value.size:
        return
    low, high = (value.min(), value.max()) if array else (value, value)
    if not (low >= least and (most is None or high <= most)):
        rule = f"at least {least}" if most is None else f"between {least} and {most}"
        raise InputError(f"{name} is {low if not low >= least else high}; it must be {rule}")


def device_attributes(gpu: Gpu) -> dict[str, float | None]:
    """Attributes beside the specification, each name ending in its unit; None where not known.

    Limits of an SM and a block follow from the compute capability (`LIMITS`); a block may use more shared memory than
    ``shared_per_block_bytes``, up to ``shared_per_block_optin_bytes``, where the kernel opts in.
    ``fp16_unpacked_tflops`` is the rate of half-precision instructions on one value each, as NVIDIA's visual profiler
    states it: half that of pairs (``fp16_tflops``).
    """
    limits = LIMITS.get(gpu.compute_capability)
    fixed = BLOCK_LIMITS if gpu.vendor == "nvidia" else dict.fromkeys(BLOCK_LIMITS)
    per_pin = gpu.dram_gbs * 8 / gpu.memory_bus_bits if gpu.memory_bus_bits else None
    return {
        "memory_clock_mhz": per_pin and per_pin * 1e3 / DOUBLE_DATA_RATE,
        "fp16_unpacked_tflops": gpu.fp16_tflops / 2,
        **fixed,
        "shared_per_block_optin_bytes": limits and limits.optin_bytes,
        "warps_per_sm": limits and limits.warps,
        "threads_per_sm": limits and limits.warps * WARP_THREADS,
        "blocks_per_sm": limits and limits.blocks,
        "registers_per_sm": limits and REGISTERS_PER_SM,
        "registers_per_block": limits and REGISTERS_PER_SM,
        "registers_per_thread": limits and MAX_REGISTERS_PER_THREAD,
        "concurrent_kernels": limits and CONCURRENT_KERNELS.get(gpu.compute_capability, 128),
    }
