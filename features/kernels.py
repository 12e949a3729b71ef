"""Kernels of cuDNN, cuBLAS and CUTLASS: their names, known launches, and how many blocks of a launch are resident.

A name (`kernel_names.toml`) tells algorithm, tile, family and hardware generation; a known launch (`kernels.toml`), the
resident blocks per SM of a tile variant. Occupancy is how many blocks of a launch are resident on one SM, and on the
whole GPU (SEER's B_max). Source of its formula and of `LIMITS`: NVIDIA's occupancy calculator (cuda_occupancy.h of
CUDA 13.0) and the CUDA programming guide's technical specifications per compute capability.
"""

import re
from collections import namedtuple
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .elementwise import Number, ceil_div, maximum, minimum, round_up, where
from .errors import InputError, read_table
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
_TABLE = read_table("occupancy.toml")
BLOCK_LIMITS: dict[str, float] = _TABLE["block"]
"""Device attribute → its value on every NVIDIA GPU since compute capability 3.0."""


SmLimits = namedtuple(
    "SmLimits", "warps blocks shared_bytes optin_bytes reserved_bytes shared_unit_bytes partitions header_partitions"
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


def sm_limits(compute_capability: float) -> SmLimits:
    """`LIMITS` of a compute capability. Raises `InputError` for one that is not known."""
    if compute_capability not in LIMITS:
        known = ", ".join(map(str, LIMITS))
        raise InputError(
            f"compute capability {compute_capability!r} has no occupancy rules here; known (NVIDIA only): {known}"
        )
    return LIMITS[compute_capability]


def occupancy(
    compute_capability: float,
    threads: Number,
    registers_per_thread: Number,
    shared_bytes: Number,
    dynamic_shared_bytes: Number = 0,
) -> Occupancy:
    """Resident blocks per SM of a launch; a launch that the device refuses has 0.

    ``threads`` is per block, ``shared_bytes`` the static and ``dynamic_shared_bytes`` the dynamic shared
    memory of a block: whole numbers, or arrays of one common length.

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


def _check(name: str, value: Number, minimum: int, maximum: int | None) -> None:
    """Raises `InputError` unless ``value`` (every element of it) lies within the bounds."""
    array = isinstance(value, np.ndarray)
    if array and not value.size:
        return
    low, high = (value.min(), value.max()) if array else (value, value)
    if not (low >= minimum and (maximum is None or high <= maximum)):
        rule = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise InputError(f"{name} is {low if not low >= minimum else high}; it must be {rule}")


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


@dataclass(frozen=True, slots=True)
class KernelName:
    """What a kernel's name says.

    ``algorithm`` is the cuDNN forward algorithm of the same method, None where only the whole call tells (a
    GEMM, a layout change). ``tile_m`` × ``tile_n`` is the block's tile of the (implicit) GEMM, 0 where the
    name has none. ``architecture`` is the generation that the kernel was written for, else "".
    """

    algorithm: str | None
    tile_m: int
    tile_n: int
    family: str
    architecture: str


@lru_cache(maxsize=4096)
def identify(kernel_name: str) -> KernelName | None:
    """What the name of one kernel says; None for what is no convolution, GEMM or helper of one."""
    name = kernel_name.lower()
    rules, generations, *_ = _table()
    for pattern, algorithm, family in rules:
        match = pattern.search(name)
        if match is None:
            continue
        groups = match.groupdict()
        if groups.get("log_m"):
            tile_m, tile_n = (2 ** int(groups[name]) for name in ("log_m", "log_n"))
        else:
            tile_m, tile_n = (int(groups.get(name) or 0) for name in ("m", "n"))
        generation = groups.get("arch") or generations.get(groups.get("sm") or "", "")
        return KernelName(algorithm, tile_m, tile_n, family, generation)
    return None


@lru_cache(maxsize=4096)
def uses_tensor_cores(kernel_name: str) -> bool:
    """True where the name tells of tensor cores; with fp32 data these compute in TF32 (from Ampere on)."""
    name = kernel_name.lower()
    return "ffma" not in name and _table()[2].search(name) is not None


@lru_cache(maxsize=4096)
def word_rank(word: str) -> int:
    """How little a word of a kernel's template arguments tells: 0 for a function, 1 for a type, 2 for a wrapper."""
    types, wrappers = _table()[3:]
    return 2 if wrappers.fullmatch(word) else 1 if types.fullmatch(word) else 0


_DECISIVE = ("WINOGRAD_NONFUSED", "WINOGRAD", "FFT_TILING", "FFT", "GEMM", "IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM")


def identify_call(kernel_names: Iterable[str]) -> str | None:
    """The algorithm of one library call from the names of all its kernels; None where none of them tells.

    The rarer mark decides: index kernels make an implicit GEMM a precomputed one, and so on.
    """
    seen = {kernel.algorithm for kernel in map(identify, kernel_names) if kernel}
    return next((algorithm for algorithm in _DECISIVE if algorithm in seen), None)


@lru_cache(maxsize=1)
def _table() -> tuple[Any, ...]:
    """`kernel_names.toml`: compiled rules, generations by number; tensor cores, types and wrappers, a pattern each."""
    content = read_table("kernel_names.toml")
    rules = []
    for pattern, algorithm, family in content["rules"]:
        for name, part in content["parts"].items():
            pattern = pattern.replace(f"{{{name}}}", part)
        rules.append((re.compile(pattern), algorithm or None, family))
    marks = (re.compile("|".join(content[name])) for name in ("tensor", "types", "wrappers"))
    return rules, content["generations"], *marks


_CONTENT = read_table("kernels.toml")
TITAN_XP_BLOCKS: dict[str, dict[tuple[int, int], float]] = {
    algorithm: {(tile_m, tile_n): blocks for tile_m, tile_n, blocks in rows}
    for algorithm, rows in _CONTENT["titan_xp_blocks"].items()
}
"""Resident blocks per SM on a Titan Xp: SEER's B_max (PACT 2021) over its 30 SMs."""

_SEEN_ON = {"volta": 7.0, "turing": 7.5, "hopper": 9.0}
"""Compute capability of the architectures in the file: older ones cannot run what was built for these."""

UNKNOWN_BLOCKS = 2.0
"""For an algorithm without a known launch (FFT and its tiling): blocks of half an SM's registers each."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel's launch as a trace recorded it: sizes per block, shared memory in bytes.

    ``pattern`` is a part of the kernel's name in lower case; ``algorithm`` is "" for a GEMM that several
    callers share; ``tensor`` marks tensor-core kernels; ``architectures`` are names as in `Gpu.architecture`.
    """

    pattern: str
    algorithm: str
    direction: str
    tile_m: int
    tile_n: int
    threads: int
    registers_per_thread: int
    architectures: tuple[str, ...]
    source: str
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    tensor: bool = False

    def blocks_per_sm(self, compute_capability: float) -> int:
        """Resident blocks per SM on a compute capability of `occupancy.LIMITS`."""
        launch = (self.threads, self.registers_per_thread, self.static_shared_bytes, self.dynamic_shared_bytes)
        return occupancy(compute_capability, *launch).blocks_per_sm


@lru_cache(maxsize=4096)
def resident_blocks(gpu: Gpu, algorithm: str, tile_m: int, tile_n: int) -> float:
    """Resident blocks per SM of an algorithm's tile variant (fp32 FMA, forward) on any GPU. Never raises.

    From the occupancy of a launch seen on the GPU's own architecture, else of one seen on an older one; else
    the Titan Xp's value (on AMD always): that of the nearest tile where its table lacks this one.
    """
    if gpu.compute_capability in LIMITS:
        known = [
            launch
            for launch in launches()
            if _serves(launch, algorithm, tile_m, tile_n)
            and any(_SEEN_ON[seen] <= gpu.compute_capability for seen in launch.architectures)
        ]
        same_architecture = [launch for launch in known if gpu.architecture in launch.architectures]
        blocks = sorted(launch.blocks_per_sm(gpu.compute_capability) for launch in same_architecture or known)
        # The kernels of one tile differ a little in registers: the middle one, never one that cannot run.
        if blocks and blocks[len(blocks) // 2] > 0:
            return float(blocks[len(blocks) // 2])
    table = TITAN_XP_BLOCKS.get(algorithm, {})
    if not table:
        return UNKNOWN_BLOCKS
    return table[min(table, key=lambda tile: (abs(tile[0] * tile[1] - tile_m * tile_n), tile))]


def _serves(launch: KernelLaunch, algorithm: str, tile_m: int, tile_n: int) -> bool:
    """True where the launch is a plain fp32 forward kernel (NCHW) of that algorithm's main step and tile."""
    if launch.tensor or launch.direction != "fwd" or not launch.tile_m or "nhwc" in launch.pattern:
        return False
    if algorithm == "WINOGRAD":
        return launch.algorithm == algorithm
    # The GEMM inside non-fused Winograd is cuBLAS's, whoever calls it, and its tile is named in either order.
    if algorithm == "WINOGRAD_NONFUSED" and "gemm" in launch.pattern and launch.algorithm in (algorithm, ""):
        return (tile_m, tile_n) in ((launch.tile_m, launch.tile_n), (launch.tile_n, launch.tile_m))
    return launch.algorithm == algorithm and (launch.tile_m, launch.tile_n) == (tile_m, tile_n)


@lru_cache(maxsize=1)
def launches() -> tuple[KernelLaunch, ...]:
    """The known launches."""
    rows = ({**row, "architectures": tuple(row["architectures"])} for row in _CONTENT["launch"])
    return tuple(KernelLaunch(**{**row, "source": _CONTENT["source"][row["source"]]}) for row in rows)
