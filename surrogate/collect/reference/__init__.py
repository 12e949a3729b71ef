"""The reference device: seven convolution algorithms on the CPU, as different in method as cuDNN's."""

from collections.abc import Mapping
from types import MappingProxyType

from surrogate.collect.reference import (
    fft,
    fft_tiling,
    gemm,
    implicit_gemm,
    precomp_gemm,
    rules,
    winograd,
)
from surrogate.collect.reference.algorithm import ReferenceAlgorithm

__all__ = ["ALGORITHMS", "ReferenceAlgorithm"]

ALGORITHMS: Mapping[str, ReferenceAlgorithm] = MappingProxyType(
    {
        algorithm.name: algorithm
        for algorithm in (
            ReferenceAlgorithm("IMPLICIT_GEMM", 0, implicit_gemm.buffers, implicit_gemm.kernel),
            ReferenceAlgorithm("IMPLICIT_PRECOMP_GEMM", 1, precomp_gemm.buffers, precomp_gemm.kernel),
            ReferenceAlgorithm("GEMM", 2, gemm.buffers, gemm.kernel),
            ReferenceAlgorithm("FFT", 4, fft.buffers, fft.kernel, rules.fft),
            ReferenceAlgorithm("FFT_TILING", 5, fft_tiling.buffers, fft_tiling.kernel, rules.fft_tiling),
            ReferenceAlgorithm("WINOGRAD", 6, winograd.fused_buffers, winograd.fused_kernel, rules.winograd),
            ReferenceAlgorithm(
                "WINOGRAD_NONFUSED",
                7,
                winograd.nonfused_buffers,
                winograd.nonfused_kernel,
                rules.winograd_nonfused,
            ),
        )
    }
)
"""Name → algorithm, in the order of cudnnConvolutionFwdAlgo_t (3, DIRECT, is in no library)."""
