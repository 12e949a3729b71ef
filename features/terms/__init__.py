"""The analytical terms of one algorithm on one problem: what a kernel's time is made of.

One function per mechanism, each for a number or an array, all returning the same `KernelTerms`. ``b_max`` is three
numbers (or arrays): how many blocks of the mechanism's small, middle and large tile the GPU holds at once.
"""

from ..terms.fft import fft, fft_tiling
from ..terms.gemm import direct, explicit_gemm, implicit_gemm, precomp_gemm
from ..terms.kernel import TILES, KernelTerms, Launch, Sized, sized
from ..terms.winograd import winograd, winograd_nonfused

__all__ = ["MECHANISM_TERMS", "TILES", "KernelTerms", "Launch", "Sized", "sized"]

MECHANISM_TERMS = {
    "direct": direct,
    "implicit_gemm": implicit_gemm,
    "precomp_gemm": precomp_gemm,
    "gemm": explicit_gemm,
    "fft": fft,
    "fft_tiling": fft_tiling,
    "winograd": winograd,
    "winograd_nonfused": winograd_nonfused,
}
"""Mechanism → function (problem, b_max) → `KernelTerms`."""
