"""The arithmetic each algorithm really does, counted from the sizes of its arrays: an oracle for formulas.

Conventions: 2 flops per multiply-add (zeros of the padding and of partial tiles count, as they are
multiplied too), 8 per complex multiply-add, 2.5·L·log2 L per real and 5·L·log2 L per complex transform of
length L (the usual nominal count of the radix-2 algorithm, as in FFTW's benchmarks). Copies, gathers and
sign changes are not arithmetic.
"""

import math
from dataclasses import astuple, dataclass

from surrogate.collect.reference import ALGORITHMS, fft, fft_tiling
from surrogate.collect.reference.algorithm import ReferenceAlgorithm
from surrogate.collect.reference.implicit_gemm import Tiling
from surrogate.collect.reference.spectral import Size
from surrogate.collect.reference.winograd import Plan, fused_plan, nonfused_plan
from surrogate.features.conv import Conv
from surrogate.features.elementwise import ceil_div


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Flops by stage: GEMMs (or pointwise products), the transforms of input and filter, and the output's.

    ``output_flops`` is the inverse transform, or the accumulation where the algorithm sums partial products.
    """

    gemm_flops: int
    input_flops: int = 0
    filter_flops: int = 0
    output_flops: int = 0

    @property
    def total_flops(self) -> int:
        """All stages together."""
        return sum(astuple(self))


def flop_count(conv: Conv, algorithm: str | ReferenceAlgorithm) -> int:
    """Flops that ``algorithm`` (or the one so named) really does on ``conv``: the total of `arithmetic`."""
    return arithmetic(conv, algorithm).total_flops


def arithmetic(conv: Conv, algorithm: str | ReferenceAlgorithm) -> Arithmetic:
    """Flops by stage. The problem is one that the algorithm takes; raises KeyError for an unknown name."""
    name = algorithm if isinstance(algorithm, str) else algorithm.name
    return _COUNTS[ALGORITHMS[name].name](conv)


def _implicit_gemm(conv: Conv) -> Arithmetic:
    """2·N·K·P·Q·(C/groups)·R·S, and one addition per output for each tap and block of channels."""
    partial_products = conv.r * conv.s * ceil_div(conv.c // conv.groups, Tiling.of(conv).c)
    outputs = conv.n * conv.k * conv.out_h * conv.out_w
    return Arithmetic(gemm_flops=conv.flops, output_flops=partial_products * outputs)


def _gemm(conv: Conv) -> Arithmetic:
    """2·N·K·P·Q·(C/groups)·R·S, in GEMMs that see the whole reduction at once."""
    return Arithmetic(gemm_flops=conv.flops)


def _fft(conv: Conv) -> Arithmetic:
    """One transform per image and channel; only rows that hold data are transformed along the columns."""
    size = fft.size(conv)
    return _fourier(conv, size, planes=conv.n, rows_in=conv.h + conv.pad_h, rows_out=conv.out_h)


def _fft_tiling(conv: Conv) -> Arithmetic:
    """One transform per tile and channel."""
    grid = fft_tiling.grid(conv)
    return _fourier(conv, fft_tiling.SIZE, grid.count(conv), rows_in=fft_tiling.TILE, rows_out=grid.step_h)


def _fourier(conv: Conv, size: Size, planes: int, rows_in: int, rows_out: int) -> Arithmetic:
    """``planes`` images or tiles, of whose rows ``rows_in`` are transformed forward and ``rows_out`` back."""
    along_columns = size.frequencies * _complex_transform(size.rows)
    return Arithmetic(
        gemm_flops=8 * size.rows * size.frequencies * planes * conv.c * conv.k,
        input_flops=round(planes * conv.c * (rows_in * _real_transform(size.columns) + along_columns)),
        filter_flops=round(conv.k * conv.c * (conv.r * _real_transform(size.columns) + along_columns)),
        output_flops=round(planes * conv.k * (rows_out * _real_transform(size.columns) + along_columns)),
    )


def _winograd(plan: Plan) -> Arithmetic:
    """Dense products: Bᵀ d B and Aᵀ M A by one axis after the other, the filter by G ⊗ G in one."""
    conv, t, m = plan.conv, plan.tile, plan.m
    tiles, filters = plan.grid.count(conv), conv.k * (conv.c // conv.groups)
    return Arithmetic(
        gemm_flops=2 * t * t * filters * tiles,
        input_flops=2 * conv.c * tiles * (t * t * t + t * t * t),
        filter_flops=2 * filters * t * t * conv.r * conv.s,
        output_flops=2 * conv.k * tiles * (m * t * t + m * m * t),
    )


def _complex_transform(length: int) -> float:
    return 5.0 * length * math.log2(length)


def _real_transform(length: int) -> float:
    return 2.5 * length * math.log2(length)


_COUNTS = {
    "IMPLICIT_GEMM": _implicit_gemm,
    "IMPLICIT_PRECOMP_GEMM": _gemm,
    "GEMM": _gemm,
    "FFT": _fft,
    "FFT_TILING": _fft_tiling,
    "WINOGRAD": lambda conv: _winograd(fused_plan(conv)),
    "WINOGRAD_NONFUSED": lambda conv: _winograd(nonfused_plan(conv)),
}
