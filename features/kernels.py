"""Kernels of cuDNN, cuBLAS and CUTLASS: their names, recorded launches, and occupancy.

A name (`kernel_names.toml`) shows the algorithm, the tile, the family and the hardware generation. A recorded launch
(`kernels.toml`) gives the resident blocks per SM of a tile variant. Occupancy is the number of blocks of a launch that
are resident on one SM, or on the whole GPU (SEER's B_max). Source of its formula and of `LIMITS`: NVIDIA's occupancy
calculator (cuda_occupancy.h of CUDA 13.0) and the CUDA programming guide's technical specifications per compute
capability.
"""

import re
from collections import namedtuple
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .caches import cached_texts
from .elementwise import Number, ceil_div, maximum, minimum, round_up, where
from .errors import InputError, read_toml, refusal
from .gpu import Gpu

WARP_THREADS = 32
MAX_THREADS = 1024
REGISTERS_PER_SM = 65536
REGISTERS_PER_WARP_UNIT = 256
NO_LIMIT = -1
MAX_REGISTERS_PER_THREAD = 255
CONCURRENT_KERNELS = {5.2: 32, 6.1: 32}
"""Compute capability → grids that may be resident on the device, if not 128."""
_TABLE = read_toml(__file__, "occupancy.toml")
BLOCK_LIMITS: dict[str, float] = _TABLE["block"]
"""Device attribute → its value on every NVIDIA GPU since compute capability 3.0."""


SmLimits = namedtuple(
    "SmLimits", "warps blocks shared_bytes optin_bytes reserved_bytes shared_unit_bytes partitions header_partitions"
)
"""Limits of one SM: warps, blocks, shared memory and its allocation rules, register-file partitions."""
LIMITS = {
    float(capability): SmLimits(warps, blocks, 1024 * kib, 1024 * optin_kib, *rest)
    for capability, (warps, blocks, kib, optin_kib, *rest) in _TABLE["limits"].items()
}
"""Compute capability → limits of one SM."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks per SM and the four limits that determine them (`NO_LIMIT` for an unused resource).

    Values are numbers for one launch, arrays for columns. A launch that cannot run has 0 blocks, and the limit that
    forbids it is 0.
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
    """Return the occupancy of numbers or arrays. Inputs are not checked; see `occupancy`."""
    warps = ceil_div(threads, WARP_THREADS)
    # Registers are allocated to a warp in units of REGISTERS_PER_WARP_UNIT.
    per_warp = round_up(registers_per_thread * WARP_THREADS, REGISTERS_PER_WARP_UNIT)
    # Check whether one block fits. The hardware fills the partitions of the register file evenly, so the block's warps
    # are rounded up to full partitions. The header has its own number of partitions, which differs on Pascal's GP100.
    per_block = maximum(round_up(warps, sm.partitions), round_up(warps, sm.header_partitions)) * per_warp
    # Count the blocks that fit. Each partition holds complete warps in its share of the registers. The warps of all
    # partitions make blocks. maximum(..., 1) avoids a division by 0 if no registers are used.
    by_registers = REGISTERS_PER_SM // sm.partitions // maximum(per_warp, 1) * sm.partitions // warps
    limit_registers = where(registers_per_thread == 0, NO_LIMIT, where(per_block > REGISTERS_PER_SM, 0, by_registers))
    # Shared memory of a block: static, dynamic and what the driver reserves, in whole allocation units.
    shared = round_up(shared_bytes + dynamic_bytes + sm.reserved_bytes, sm.shared_unit_bytes)
    # A block above the opt-in maximum cannot run (0). Without shared memory there is no limit.
    optin = sm.optin_bytes + sm.reserved_bytes
    limit_shared = where(shared == 0, NO_LIMIT, where(shared > optin, 0, sm.shared_bytes // maximum(shared, 1)))
    # The SM's warp slots. A block of more than MAX_THREADS threads cannot run (0).
    limit_warps = where(threads > MAX_THREADS, 0, sm.warps // warps)
    # Take the smallest limit. NO_LIMIT is negative, so the SM's block slots replace it.
    blocks = minimum(limit_warps, sm.blocks)
    blocks = minimum(blocks, where(limit_registers == NO_LIMIT, sm.blocks, limit_registers))
    blocks = minimum(blocks, where(limit_shared == NO_LIMIT, sm.blocks, limit_shared))
    return Occupancy(blocks, limit_registers, limit_shared, limit_warps, limit_blocks=sm.blocks)


def sm_limits(compute_capability: float) -> SmLimits:
    """Return the `LIMITS` of a compute capability. Raises `InputError` if there are none."""
    if compute_capability not in LIMITS:
        raise refusal("capability", capability=compute_capability, listed=", ".join(map(str, LIMITS)))
    return LIMITS[compute_capability]


def max_shared_bytes(gpu: Gpu) -> int:
    """Return the most shared memory of a block in bytes; 0 if unknown. AMD's workgroups may use all of a CU's LDS."""
    limits = LIMITS.get(gpu.compute_capability)
    return limits.optin_bytes if limits else gpu.shared_per_sm_bytes if gpu.vendor == "amd" else 0


def occupancy(
    compute_capability: float,
    threads: Number,
    registers_per_thread: Number,
    shared_bytes: Number,
    dynamic_shared_bytes: Number = 0,
) -> Occupancy:
    """Return the resident blocks per SM of a launch: 0 if the device cannot run it.

    ``threads`` is per block. ``shared_bytes`` is the static and ``dynamic_shared_bytes`` the dynamic shared memory of a
    block. All are whole numbers, or arrays of one common length.

    Raises `InputError` for a compute capability outside `LIMITS` (AMD's 0.0 included), fewer than 1 thread, more than
    255 registers per thread, or a negative size.
    """
    sm = sm_limits(compute_capability)
    _check("threads", threads, 1, None)
    _check("registers_per_thread", registers_per_thread, 0, MAX_REGISTERS_PER_THREAD)
    _check("shared_bytes", shared_bytes, 0, None)
    _check("dynamic_shared_bytes", dynamic_shared_bytes, 0, None)
    return resident(sm, threads, registers_per_thread, shared_bytes, dynamic_shared_bytes)


def launch_b_max(
    gpu: Gpu, threads: Number, registers_per_thread: Number, shared_bytes: Number, dynamic_shared_bytes: Number = 0
) -> Number:
    """Return the blocks that the whole GPU holds at once: resident blocks per SM × SMs (SEER's B_max)."""
    launch = (threads, registers_per_thread, shared_bytes, dynamic_shared_bytes)
    return occupancy(gpu.compute_capability, *launch).blocks_per_sm * gpu.sms


def _check(name: str, value: Number, minimum: int, maximum: int | None) -> None:
    """Raise `InputError` if a value lies outside the bounds."""
    array = isinstance(value, np.ndarray)
    if array and not value.size:
        return
    low, high = (value.min(), value.max()) if array else (value, value)
    if not (low >= minimum and (maximum is None or high <= maximum)):
        rule = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise InputError(f"{name} is {low if not low >= minimum else high}; it must be {rule}")


def device_attributes(gpu: Gpu) -> dict[str, float | None]:
    """Return further attributes of a GPU, each name ending in its unit; None if unknown.

    Limits of an SM and of a block follow from the compute capability (`LIMITS`). A block may use more shared memory
    than ``shared_per_block_bytes``, up to ``shared_per_block_optin_bytes``, if the kernel opts in.
    ``fp16_unpacked_tflops`` is the rate of half-precision instructions on single values, as NVIDIA's visual profiler
    reports it: half the rate of instructions on pairs (``fp16_tflops``).
    """
    limits = LIMITS.get(gpu.compute_capability)
    fixed = BLOCK_LIMITS if gpu.vendor == "nvidia" else dict.fromkeys(BLOCK_LIMITS)
    return {
        "memory_clock_mhz": gpu.memory_clock_mhz,
        "fp16_unpacked_tflops": gpu.fp16_tflops / 2,
        **fixed,
        "shared_per_block_optin_bytes": max_shared_bytes(gpu) or None,
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
    """The facts in a kernel's name.

    ``algorithm`` is the cuDNN forward algorithm of the same method. It is None if only the complete call determines it
    (a GEMM, a layout change). ``tile_m`` × ``tile_n`` is the block's tile of the (implicit) GEMM; 0 if the name has
    none. ``architecture`` is the generation that the kernel was written for, or "".
    """

    algorithm: str | None
    tile_m: int
    tile_n: int
    family: str
    architecture: str


@cached_texts(4096)
def identify(kernel_name: str) -> KernelName | None:
    """Return the facts in a kernel's name, or None if the kernel belongs to no convolution or GEMM."""
    name = kernel_name.lower()
    patterns = _name_patterns()
    for pattern, algorithm, family in patterns.rules:
        match = pattern.search(name)
        if match is None:
            continue
        groups = match.groupdict()
        if groups.get("log_m"):
            tile_m, tile_n = (2 ** int(groups[name]) for name in ("log_m", "log_n"))
        else:
            tile_m, tile_n = (int(groups.get(name) or 0) for name in ("m", "n"))
        generation = groups.get("arch") or patterns.generations.get(groups.get("sm") or "", "")
        return KernelName(algorithm, tile_m, tile_n, family, generation)
    return None


def kernel_family(kernel_name: str) -> str:
    """Return the family in a kernel's name, or "" if the kernel belongs to no convolution or GEMM."""
    kernel = identify(kernel_name)
    return kernel.family if kernel else ""


@cached_texts(4096)
def uses_tensor_cores(kernel_name: str) -> bool:
    """Return True if the kernel's name implies tensor cores. With fp32 data they compute in TF32 (from Ampere on)."""
    name = kernel_name.lower()
    return "ffma" not in name and _name_patterns().tensor.search(name) is not None


@cached_texts(4096)
def word_rank(word: str) -> int:
    """Return the rank of a word in a kernel's template arguments: 0 for a function, 1 for a type, 2 for a wrapper."""
    patterns = _name_patterns()
    return 2 if patterns.wrappers.fullmatch(word) else 1 if patterns.types.fullmatch(word) else 0


_DECISIVE = ("WINOGRAD_NONFUSED", "WINOGRAD", "FFT_TILING", "FFT", "GEMM", "IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM")


def identify_call(kernel_names: Iterable[str]) -> str | None:
    """Return the algorithm of a library call from the names of its kernels, or None if no name shows it.

    If the kernels belong to several algorithms, the first of `_DECISIVE` is returned: a call with an index kernel is
    IMPLICIT_PRECOMP_GEMM, although its main kernel is an implicit GEMM's.
    """
    found = {kernel.algorithm for kernel in map(identify, kernel_names) if kernel}
    return next((algorithm for algorithm in _DECISIVE if algorithm in found), None)


class _NamePatterns(NamedTuple):
    """The content of `kernel_names.toml`.

    A rule is a pattern, its algorithm (None if it has none) and its family. ``generations`` maps the SM number in a
    name to the architecture. The other patterns match marks of tensor cores, and words of template arguments.
    """

    rules: list[tuple[re.Pattern[str], str | None, str]]
    generations: Mapping[str, str]
    tensor: re.Pattern[str]
    types: re.Pattern[str]
    wrappers: re.Pattern[str]


@lru_cache(maxsize=1)
def _name_patterns() -> _NamePatterns:
    """Return the compiled content of `kernel_names.toml`."""
    content = read_toml(__file__, "kernel_names.toml")
    rules = []
    for pattern, algorithm, family in content["rules"]:
        for name, part in content["parts"].items():
            pattern = pattern.replace(f"{{{name}}}", part)
        rules.append((re.compile(pattern), algorithm or None, family))
    joined = {name: re.compile("|".join(content[name])) for name in ("tensor", "types", "wrappers")}
    return _NamePatterns(rules, content["generations"], **joined)


_LOOKUPS: dict[str, str] = read_toml(__file__, "kernel_names.toml")["lookups"]
LOOKUP_KERNELS = {name: re.compile(pattern).search for name, pattern in _LOOKUPS.items()}
"""Whether a kernel's name is of a lookup in embedding tables, of one without shared memory, or of Adagrad's update."""
_CONTENT = read_toml(__file__)
TITAN_XP_BLOCKS: dict[str, dict[tuple[int, int], float]] = {
    algorithm: {(tile_m, tile_n): blocks for tile_m, tile_n, blocks in rows}
    for algorithm, rows in _CONTENT["titan_xp_blocks"].items()
}
"""Resident blocks per SM on a Titan Xp: SEER's B_max (PACT 2021) over its 30 SMs."""

_RECORDED_ON = {"volta": 7.0, "turing": 7.5, "hopper": 9.0}
"""Compute capability of the architectures in the file. Older GPUs cannot run kernels built for them."""

UNKNOWN_BLOCKS = 2.0
"""Resident blocks of an algorithm without a recorded launch (FFT and its tiling): each takes half an SM's registers."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel's launch from a trace: sizes per block, shared memory in bytes.

    ``pattern`` is a part of the kernel's name in lower case. ``algorithm`` is "" for a GEMM that several callers share.
    ``tensor`` marks tensor-core kernels. ``architectures`` are names as in `Gpu.architecture`.
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
        """Return the resident blocks per SM on a compute capability of `LIMITS`."""
        launch = (self.threads, self.registers_per_thread, self.static_shared_bytes, self.dynamic_shared_bytes)
        return occupancy(compute_capability, *launch).blocks_per_sm


@lru_cache(maxsize=1024)
def resident_blocks(gpu: Gpu, algorithm: str, tile_m: int, tile_n: int) -> float:
    """Return the resident blocks per SM of an algorithm's tile variant (fp32 FMA, forward) on any GPU. Never raises.

    The value is the occupancy of a launch recorded on the GPU's architecture, or else on an older one. If there is
    none, and always on AMD, it is the Titan Xp's value for the tile, or for the nearest tile in its table.
    """
    if gpu.compute_capability in LIMITS:
        older = {name for name, capability in _RECORDED_ON.items() if capability <= gpu.compute_capability}
        matching = [launch for launch in launches() if _matches(launch, algorithm, tile_m, tile_n)]
        recorded = [launch for launch in matching if not older.isdisjoint(launch.architectures)]
        same_architecture = [launch for launch in recorded if gpu.architecture in launch.architectures]
        blocks = sorted(launch.blocks_per_sm(gpu.compute_capability) for launch in same_architecture or recorded)
        # The kernels of one tile differ slightly in registers: take the median, unless it cannot run.
        if blocks and blocks[len(blocks) // 2] > 0:
            return float(blocks[len(blocks) // 2])
    table = TITAN_XP_BLOCKS.get(algorithm, {})
    if not table:
        return UNKNOWN_BLOCKS
    return table[min(table, key=lambda tile: (abs(tile[0] * tile[1] - tile_m * tile_n), tile))]


def _matches(launch: KernelLaunch, algorithm: str, tile_m: int, tile_n: int) -> bool:
    """Return True if the launch is an fp32 forward kernel (NCHW) of the algorithm's main step and tile."""
    if launch.tensor or launch.direction != "fwd" or not launch.tile_m or "nhwc" in launch.pattern:
        return False
    if algorithm == "WINOGRAD":
        return launch.algorithm == algorithm
    # Non-fused Winograd runs a GEMM of cuBLAS, whatever call recorded it; its name has the tile in either order.
    if algorithm == "WINOGRAD_NONFUSED" and "gemm" in launch.pattern and launch.algorithm in (algorithm, ""):
        return (tile_m, tile_n) in ((launch.tile_m, launch.tile_n), (launch.tile_n, launch.tile_m))
    return launch.algorithm == algorithm and (launch.tile_m, launch.tile_n) == (tile_m, tile_n)


@lru_cache(maxsize=1)
def launches() -> tuple[KernelLaunch, ...]:
    """Return the recorded launches."""
    rows = ({**row, "architectures": tuple(row["architectures"])} for row in _CONTENT["launch"])
    return tuple(KernelLaunch(**{**row, "source": _CONTENT["source"][row["source"]]}) for row in rows)
