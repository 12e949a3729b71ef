"""Kernel names of cuDNN, cuBLAS and CUTLASS, read: algorithm, tile, family, hardware generation."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


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


_GENERATIONS = {
    "35": "kepler", "50": "maxwell", "52": "maxwell", "60": "pascal", "61": "pascal", "70": "volta",
    "75": "turing", "80": "ampere", "86": "ampere", "89": "ada", "90": "hopper", "100": "blackwell",
    "120": "blackwell",
}  # fmt: skip
_ARCH = r"(?:(?P<arch>kepler|maxwell|pascal|volta|turing|ampere|hopper)_)?(?:fp16_)?"
_TILE = r"(?P<m>\d+)x(?P<n>\d+)"
_LOG_TILE = r"<[a-z_ ]+,(?: *(?:[a-z_]+),)? *\d+, *(?P<log_m>\d), *(?P<log_n>\d)"

# First match wins. An auxiliary kernel (offsets, transforms) carries the algorithm that alone launches it.
_RULES: tuple[tuple[str, str | None, str], ...] = (
    (_ARCH + r"[a-z]\d*cudnn_winograd_" + _TILE, "WINOGRAD", "scudnn_winograd"),
    (r"generatewinogradtileskernel", "WINOGRAD", "winograd_filter"),
    (
        r"winograd(?:forward|backward|wgrad|bwd)?(?:data|filter|output|delta)\d+x\d+",
        "WINOGRAD_NONFUSED", "winograd_transform",
    ),
    (_ARCH + r"[a-z]\d*cudnn(?:_[a-z]\w*?)?_" + _TILE, "IMPLICIT_PRECOMP_GEMM", "scudnn"),
    (r"compute\w*offsetskernel", "IMPLICIT_PRECOMP_GEMM", "offsets"),
    (r"precompute_indices", "IMPLICIT_PRECOMP_GEMM", "offsets"),
    (r"precomputed_convolve_\w?gemm" + _LOG_TILE, "IMPLICIT_PRECOMP_GEMM", "convolve_gemm"),
    (r"implicit_convolve_\w?gemm" + _LOG_TILE, "IMPLICIT_GEMM", "convolve_gemm"),
    (r"explicit_convolve_\w?gemm" + _LOG_TILE, "GEMM", "convolve_gemm"),
    (r"im2col", "GEMM", "im2col"),
    (r"(?:dgrad_engine|wgrad_alg0_engine)" + _LOG_TILE, "IMPLICIT_GEMM", "engine"),
    (r"(?:dgrad\w*_alg1_\w+|wgrad_alg1_engine)" + _LOG_TILE, "IMPLICIT_PRECOMP_GEMM", "engine"),
    (r"fft2d_(?:r2c|c2r)_32x32", "FFT_TILING", "fft"),
    (r"fft[12]d_(?:r2c|c2r)_\d+", "FFT", "fft"),
    (r"flip_filter|region_transform", None, "fft_filter"),
    (r"sm(?P<sm>\d+)_xmma_(?:fprop|dgrad|wgrad)\w*?_tilesize" + _TILE, "IMPLICIT_PRECOMP_GEMM", "xmma"),
    (r"xmma\w*::implicit_gemm", "IMPLICIT_PRECOMP_GEMM", "xmma_setup"),
    (
        r"cutlass_(?:(?P<sm>\d+)_)?(?:tensorop|simt)_[a-z0-9]*(?:fprop|dgrad|wgrad)\w*?_" + _TILE,
        "IMPLICIT_PRECOMP_GEMM", "cutlass",
    ),
    (r"sm(?P<sm>\d+)_xmma_gemm\w*?_tilesize" + _TILE, None, "gemm"),
    (r"cutlass_(?:(?P<sm>\d+)_)?(?:tensorop|simt|wmma)_\w*?gemm\w*?_" + _TILE, None, "gemm"),
    (_ARCH + r"(?:gc|c|z)gemm\w*?_" + _TILE, None, "complex_gemm"),
    (_ARCH + r"[a-z]\d*gemm\w*?_" + _TILE, None, "gemm"),
    (r"conv2d_grouped_direct|dgrad2d_grouped_direct|wgrad2d_grouped_direct", None, "grouped_direct"),
    (r"splitkreduce|gemmsn_|gemmk1_|gemv", None, "small_gemm"),
    (r"nchwtonhwc|nhwctonchw", None, "layout"),
)  # fmt: skip


@lru_cache(maxsize=4096)
def identify(kernel_name: str) -> KernelName | None:
    """What the name of one kernel says; None for what is no convolution, GEMM or helper of one."""
    name = kernel_name.lower()
    for pattern, algorithm, family in _compiled():
        match = pattern.search(name)
        if match is None:
            continue
        found = match.groupdict()
        if found.get("log_m"):
            tile_m, tile_n = 2 ** int(found["log_m"]), 2 ** int(found["log_n"])
        else:
            tile_m, tile_n = int(found.get("m") or 0), int(found.get("n") or 0)
        generation = found.get("arch") or _GENERATIONS.get(found.get("sm") or "", "")
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
def _compiled() -> tuple[tuple[re.Pattern[str], str | None, str], ...]:
    return tuple((re.compile(pattern), algorithm, family) for pattern, algorithm, family in _RULES)
