"""Kernels of cuDNN, cuBLAS and CUTLASS: what their names say (`kernel_names.toml`), known launches (`kernels.toml`).

A name tells algorithm, tile, family and hardware generation; a launch, the resident blocks per SM of a tile variant.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .gpu import Gpu
from .occupancy import LIMITS, occupancy


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
    content = tomllib.loads(Path(__file__).with_name("kernel_names.toml").read_text(encoding="utf-8"))
    rules = []
    for pattern, algorithm, family in content["rules"]:
        for name, part in content["parts"].items():
            pattern = pattern.replace(f"{{{name}}}", part)
        rules.append((re.compile(pattern), algorithm or None, family))
    marks = (re.compile("|".join(content[name])) for name in ("tensor", "types", "wrappers"))
    return rules, content["generations"], *marks


_CONTENT = tomllib.loads(Path(__file__).with_name("kernels.toml").read_text(encoding="utf-8"))
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


def resident_blocks(gpu: Gpu, algorithm: str, tile_m: int, tile_n: int) -> float:
    """Resident blocks per SM of an algorithm's tile variant (fp32 FMA, forward) on any GPU. Never raises.

    From the occupancy of a launch seen on the GPU's own architecture, else of one seen on an older one; else
    the Titan Xp's value (on AMD always): that of the nearest tile where its table lacks this one.
    """
    return _resident(gpu.architecture, gpu.compute_capability, algorithm, int(tile_m), int(tile_n))


@lru_cache(maxsize=4096)
def _resident(architecture: str, compute_capability: float, algorithm: str, tile_m: int, tile_n: int) -> float:
    if compute_capability in LIMITS:
        known = [
            launch
            for launch in launches()
            if _serves(launch, algorithm, tile_m, tile_n)
            and any(_SEEN_ON[seen] <= compute_capability for seen in launch.architectures)
        ]
        same_architecture = [launch for launch in known if architecture in launch.architectures]
        blocks = sorted(launch.blocks_per_sm(compute_capability) for launch in same_architecture or known)
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
