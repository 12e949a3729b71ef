"""The feature table: names, order, version; one formula serves one problem and a table of them.

Three groups: of the problem, of the machine, of the algorithm on both. Sizes enter as base-2 logarithms, so that a
tree's threshold means a ratio.
"""

from typing import Any, NamedTuple

import numpy as np

from .algorithms import FAMILIES, FAMILY_CODE, Family
from .elementwise import Number, ceil_div, log2, log2_for, maximum
from .gpu import Gpu
from .machine import Machine, b_max_columns
from .problem import ConvColumns, Problem
from .roofline import roofline_us
from .shape import is_depthwise
from .terms import FAMILY_TERMS, KernelTerms, Sized, sized

FEATURE_VERSION = 1
"""Raised whenever a name, the order or a formula below changes; bundles carry it."""

DIMENSION_NAMES = (
    "log2_n", "log2_c", "log2_h", "log2_w", "log2_k", "log2_r", "log2_s", "pad_h", "pad_w", "stride_h", "stride_w",
    "dilation_h", "dilation_w", "log2_groups", "itemsize", "is_bwd_data", "is_bwd_filter", "is_nhwc",
    "uses_tensor_cores",
)  # fmt: skip
"""The raw problem: what a model without physics would see."""

PROBLEM_NAMES = (
    "log2_channels_in", "log2_channels_out", "log2_out_h", "log2_out_w", "log2_gemm_m", "log2_gemm_n", "log2_gemm_k",
    "log2_flops", "log2_tensor_bytes", "log2_intensity", "log2_roofline_us", "is_depthwise", "log2_footprint_per_l2",
    "log2_flops_per_sm", "gemm_n_remainder_32", "gemm_n_remainder_128", "gemm_k_remainder_8",
)  # fmt: skip

MACHINE_NAMES = (
    "sms", "log2_peak_tflops", "log2_fp32_tflops", "log2_dram_gbs", "log2_l2_bytes", "shared_per_sm_bytes",
    "compute_capability", "cores_per_sm", "boost_mhz", "is_amd",
)  # fmt: skip

TILE_NAMES = ("small", "middle", "large")
ALGORITHM_NAMES = (
    "family", "log2_arithmetic_ratio", "log2_dram_ratio", "log2_operand_bytes", "log2_workspace_bytes",
    "log2_kernels", "log2_algorithm_roofline_ratio", "log2_workspace_per_l2", "log2_blocks",
    *(f"{name}_{tile}" for tile in TILE_NAMES for name in ("log2_waves", "last_wave_share", "tile_utilisation")),
    "best_efficiency", "log2_occupied_time_us",
)  # fmt: skip


class FeatureRow(NamedTuple):
    """All features in the order of `FEATURE_NAMES`, and the roofline time (µs) that a correction multiplies."""

    features: tuple[Number, ...]
    roofline_us: Number


def dimensions(p: Problem) -> tuple[Number, ...]:
    """`DIMENSION_NAMES` of a problem."""
    log2 = log2_for(p.n)
    return (
        log2(p.n), log2(p.c), log2(p.h), log2(p.w), log2(p.k), log2(p.r), log2(p.s),
        p.pad_h, p.pad_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, log2(p.groups),
        p.itemsize, p.is_bwd_data, p.is_bwd_filter, p.is_nhwc, p.uses_tensor_cores,
    )  # fmt: skip


def problem_roofline_us(p: Problem, m: Machine) -> Number:
    """The problem's roofline time in µs: direct FLOPs at the peak, or compulsory bytes at the DRAM bandwidth."""
    z = sized(p)
    return roofline_us(1.0 * z.flops, 1.0 * z.tensor_bytes, m.peak_tflops, m.dram_gbs)


def problem_features(p: Problem, m: Machine, base_us: Number) -> tuple[Number, ...]:
    """`PROBLEM_NAMES` of a problem on a machine; ``base_us`` is `problem_roofline_us`."""
    z = sized(p)
    log2 = log2_for(base_us)
    log_work, log_traffic = log2(z.flops), log2(z.tensor_bytes)
    return (
        log2(z.c_per_group), log2(z.k_per_group), log2(z.out_h), log2(z.out_w),
        log2(z.gemm_m), log2(z.gemm_n), log2(z.gemm_k),
        log_work, log_traffic, log_work - log_traffic, log2(base_us), is_depthwise(z),
        log_traffic - log2(m.l2_bytes), log_work - log2(m.sms),
        _padding_share(z.gemm_n, 32), _padding_share(z.gemm_n, 128), _padding_share(z.gemm_k, 8),
    )  # fmt: skip


def machine_features(m: Machine) -> tuple[Number, ...]:
    """`MACHINE_NAMES` of a machine."""
    return (
        m.sms, log2(m.peak_tflops), log2(m.fp32_tflops), log2(m.dram_gbs), log2(m.l2_bytes), m.shared_per_sm_bytes,
        m.compute_capability, m.cores_per_sm, m.boost_mhz, m.is_amd,
    )  # fmt: skip


def algorithm_features(
    z: Sized, m: Machine, base_us: Number, family_code: int, terms: KernelTerms
) -> tuple[Number, ...]:
    """`ALGORITHM_NAMES` of one family's terms."""
    work, traffic, operands, workspace, kernels, (small, middle, large) = terms
    own_us = roofline_us(work, traffic, m.peak_tflops, m.dram_gbs)
    log2 = log2_for(own_us)
    blocks, middle_waves, middle_last, middle_useful = middle
    _, small_waves, small_last, small_useful = small
    _, large_waves, large_last, large_useful = large
    efficiency = maximum(  # of the slots of all waves: waves / ⌈waves⌉ · utilisation
        maximum(
            small_waves / -(-small_waves // 1.0) * small_useful,
            middle_waves / -(-middle_waves // 1.0) * middle_useful,
        ),
        large_waves / -(-large_waves // 1.0) * large_useful,
    )
    held = workspace + 1.0
    return (
        family_code,
        log2(work / z.flops),
        log2(traffic / z.tensor_bytes),
        log2(operands),
        log2(held),
        log2(kernels),
        log2(own_us / base_us),
        log2(held / m.l2_bytes),
        log2(blocks),
        log2(small_waves), small_last, small_useful,
        log2(middle_waves), middle_last, middle_useful,
        log2(large_waves), large_last, large_useful,
        efficiency,
        log2(own_us / efficiency),
    )  # fmt: skip


def _padding_share(length: Number, step: int) -> Number:
    """Useful share of a length walked in steps: length / (⌈length/step⌉·step)."""
    return length / (ceil_div(length, step) * step)


FEATURE_NAMES = (*DIMENSION_NAMES, *PROBLEM_NAMES, *MACHINE_NAMES, *ALGORITHM_NAMES)
"""Every feature, in order."""


def feature_row(p: Problem, m: Machine, family: Family, b_max: tuple[float, float, float]) -> FeatureRow:
    """Features of one problem, machine and family."""
    z = sized(p)
    base_us = problem_roofline_us(z, m)
    return FeatureRow(
        (
            *dimensions(z),
            *problem_features(z, m, base_us),
            *machine_features(m),
            *algorithm_features(z, m, base_us, FAMILY_CODE[family], FAMILY_TERMS[family](z, b_max)),
        ),
        base_us,
    )


def feature_matrix(
    p: ConvColumns, m: Machine, family_codes: np.ndarray, gpus: list[Gpu], gpu_index: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Features of many rows: ``(rows, len(FEATURE_NAMES))`` float32, and the roofline times ``(rows,)`` in µs.

    ``family_codes`` (rows,) index `FAMILIES`; ``gpu_index`` (rows,) index ``gpus``.
    """
    matrix = np.empty((len(p), len(FEATURE_NAMES)), dtype=np.float32)
    base = np.empty(len(p), dtype=np.float64)
    for code in np.unique(family_codes):
        rows = np.flatnonzero(family_codes == code)
        family = FAMILIES[code]
        part = Machine(*(column[rows] for column in m))
        slots: Any = b_max_columns(gpus, gpu_index[rows], family)
        features, base[rows] = feature_row(p.take(rows), part, family, slots)
        for column, values in enumerate(features):
            matrix[rows, column] = values
    return matrix, base
