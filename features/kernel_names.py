"""Kernel names of cuDNN, cuBLAS and CUTLASS, read: algorithm, tile, family, hardware generation."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


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
    rules, generations = _table()
    for pattern, algorithm, family in rules:
        match = pattern.search(name)
        if match is None:
            continue
        found = match.groupdict()
        if found.get("log_m"):
            tile_m, tile_n = 2 ** int(found["log_m"]), 2 ** int(found["log_n"])
        else:
            tile_m, tile_n = int(found.get("m") or 0), int(found.get("n") or 0)
        generation = found.get("arch") or generations.get(found.get("sm") or "", "")
        return KernelName(algorithm, tile_m, tile_n, family, generation)
    return None


_DECISIVE = (
    "WINOGRAD_NONFUSED", "WINOGRAD", "FFT_TILING", "FFT", "GEMM", "IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM",
)  # fmt: skip


def identify_call(kernel_names: Iterable[str]) -> str | None:
    """The algorithm of one library call from the names of all its kernels; None where none of them tells.

    The rarer mark decides: index kernels make an implicit GEMM a precomputed one, and so on.
    """
    seen = {found.algorithm for found in map(identify, kernel_names) if found}
    return next((algorithm for algorithm in _DECISIVE if algorithm in seen), None)


@lru_cache(maxsize=1)
def _table() -> tuple[list[tuple[re.Pattern[str], str | None, str]], dict[str, str]]:
    """The compiled rules, and the generations by number, of `kernel_names.toml`."""
    content = tomllib.loads(Path(__file__).with_name("kernel_names.toml").read_text(encoding="utf-8"))
    rules = []
    for pattern, algorithm, family in content["rules"]:
        for name, part in content["parts"].items():
            pattern = pattern.replace(f"{{{name}}}", part)
        rules.append((re.compile(pattern), algorithm or None, family))
    return rules, content["generations"]
