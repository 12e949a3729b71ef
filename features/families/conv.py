"""The family of convolutions: their columns, candidates, support rules and strata.

Columns come in three groups: of the problem, of an algorithm on it, and of setting and machine. Sizes enter as base-2
logarithms, so that a tree's threshold means a ratio.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import support
from ..algorithms import CUDNN_GRAPH, MECHANISM_CODE, algorithms, mechanism_of
from ..conv import Conv
from ..elementwise import Number, ceil_div, log2_for, maximum, where
from ..errors import InputError
from ..gpu import Gpu, gpu
from ..machine import MACHINE_NAMES, Machine, b_max, machine, machine_features
from ..problem import DIRECTIONS, DTYPES, FLAGS, LAYOUTS, MATHS, SIZE_COLUMNS, ConvColumns, Problem
from ..roofline import missing_units, roofline_us
from ..shape import fits, is_depthwise
from ..size import declared_sizes
from ..terms import MECHANISM_TERMS, KernelTerms, Sized, sized
from ..text import parse
from .family import DECLARED, Candidate, Family, Formula, ProblemTerms

_DECLARED = DECLARED["conv"]


def dimensions(p: Problem) -> tuple[Number, ...]:
    """``size_names`` of a problem (all names of columns: `families.toml`)."""
    log2 = log2_for(p.n)
    return (
        log2(p.n),
        log2(p.c),
        log2(p.h),
        log2(p.w),
        log2(p.k),
        log2(p.r),
        log2(p.s),
        p.pad_h,
        p.pad_w,
        p.stride_h,
        p.stride_w,
        p.dilation_h,
        p.dilation_w,
        log2(p.groups),
    )


def problem_roofline_us(p: Problem, m: Machine) -> Number:
    """The problem's roofline time in µs: direct FLOPs at the peak, or compulsory bytes at the DRAM bandwidth."""
    z = sized(p)
    return roofline_us(1.0 * z.flops, 1.0 * z.tensor_bytes, m.peak_tflops, m.dram_gbs)


def problem_features(p: Problem, m: Machine, base_us: Number) -> tuple[Number, ...]:
    """``term_names`` of a problem on a machine; ``base_us`` is `problem_roofline_us`."""
    z = sized(p)
    log2 = log2_for(base_us)
    log_work = log2(z.flops)
    log_traffic = log2(z.tensor_bytes)
    return (
        log2(z.c_per_group),
        log2(z.k_per_group),
        log2(z.out_h),
        log2(z.out_w),
        log2(z.gemm_m),
        log2(z.gemm_n),
        log2(z.gemm_k),
        log_work,
        log_traffic,
        log_work - log_traffic,
        log2(base_us),
        is_depthwise(z),
        log_traffic - log2(m.l2_bytes),
        log_work - log2(m.sms),
        _padding_share(z.gemm_n, 32),
        _padding_share(z.gemm_n, 128),
        _padding_share(z.gemm_k, 8),
    )


def algorithm_features(
    z: Sized, m: Machine, base_us: Number, mechanism_code: int, terms: KernelTerms
) -> tuple[Number, ...]:
    """``candidate_names`` of one mechanism's terms."""
    work, traffic, operands, workspace, kernels, (small, middle, large) = terms
    own_us = roofline_us(work, traffic, m.peak_tflops, m.dram_gbs)
    log2 = log2_for(own_us)
    blocks, middle_waves, middle_last, middle_useful = middle
    _, small_waves, small_last, small_useful = small
    _, large_waves, large_last, large_useful = large
    # Of the slots of all waves: waves / ⌈waves⌉ · utilisation.
    small_use = small_waves / -(-small_waves // 1.0) * small_useful
    middle_use = middle_waves / -(-middle_waves // 1.0) * middle_useful
    large_use = large_waves / -(-large_waves // 1.0) * large_useful
    efficiency = maximum(maximum(small_use, middle_use), large_use)
    held = workspace + 1.0
    return (
        mechanism_code,
        log2(work / z.flops),
        log2(traffic / z.tensor_bytes),
        log2(operands),
        log2(held),
        log2(kernels),
        log2(own_us / base_us),
        log2(held / m.l2_bytes),
        log2(blocks),
        log2(small_waves),
        small_last,
        small_useful,
        log2(middle_waves),
        middle_last,
        middle_useful,
        log2(large_waves),
        large_last,
        large_useful,
        efficiency,
        log2(own_us / efficiency),
    )


def _padding_share(length: Number, step: int) -> Number:
    """Useful share of a length walked in steps: length / (⌈length/step⌉·step)."""
    return length / (ceil_div(length, step) * step)


class ConvFamily(Family[Problem]):
    """Convolutions: cuDNN's and MIOpen's algorithms, each with its own arithmetic and traffic."""

    name = "conv"
    kinds: Mapping[str, type[Problem]] = {"conv": Conv}
    sizes = declared_sizes(Conv)
    settings: Mapping[str, tuple[str, ...]] = {
        "direction": DIRECTIONS,
        "dtype": tuple(DTYPES),
        "math": MATHS,
        "layout": LAYOUTS,
    }
    setting_defaults: Mapping[str, str] = {"direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    batch = ("n",)
    strata = ("1x1s1", "1x1s2", "3x3s1", "grouped", "other")
    primary = "ungrouped"
    candidate_key = ("direction", "algorithm")
    problem_names = (*_DECLARED["size_names"], *_DECLARED["term_names"])
    candidate_names = (*_DECLARED["candidate_names"],)
    setting_columns = FLAGS
    dimension_names = (*_DECLARED["size_names"], *FLAGS, *MACHINE_NAMES)
    distance_units: Mapping[str, float] = _DECLARED["distance_units"]
    own_roofline = "log2_algorithm_roofline_ratio"
    tensor_core_mechanism = "precomp_gemm"
    has_call_cost = False
    halves_alike = False  # libraries choose other algorithms for bf16

    def read(self, kind: str, body: str, settings: Mapping[str, str]) -> Conv:
        """The convolution that a text names; see `surrogate.features.text.parse`."""
        return parse(body, **settings)

    def problem(self, sizes: Mapping[str, Number], setting: Mapping[str, str]) -> Problem:
        """A `Conv` of numbers, or `ConvColumns` of arrays."""
        settings: dict[str, Any] = {name: setting[name] for name in self.settings if name in setting}
        if any(isinstance(value, np.ndarray) for value in sizes.values()):
            return ConvColumns.of([sizes[name] for name in SIZE_COLUMNS], **settings)
        return Conv(**sizes, **settings)

    def setting_of(self, problem: Problem) -> tuple[str, ...]:
        """Direction, dtype, math, layout."""
        return problem.direction, problem.dtype, problem.math, problem.layout

    def sizes_of(self, problem: Problem) -> tuple[Number, ...]:
        """The 14 sizes."""
        return problem.sizes

    def formula(self, setting: tuple[str, ...], gpu: Gpu) -> Formula:
        """The terms of every mechanism, with B_max looked up once."""
        direction, dtype, math, layout = setting
        flags = Conv(n=1, c=1, h=1, k=1, r=1, dtype=dtype, math=math, layout=layout, direction=direction)
        m = machine(gpu, dtype, flags.uses_tensor_cores)
        constants = (flags.itemsize, flags.is_bwd_data, flags.is_bwd_filter, flags.is_nhwc, flags.uses_tensor_cores)
        slots = {mechanism: b_max(gpu, mechanism) for mechanism in MECHANISM_CODE}

        def problem(p: Problem) -> ProblemTerms:
            z = sized(p)
            base_us = problem_roofline_us(z, m)
            return ProblemTerms(dimensions(z) + problem_features(z, m, base_us), base_us, z)

        def candidate(terms: ProblemTerms, mechanism: str) -> tuple[tuple[Number, ...], Number]:
            kernel = MECHANISM_TERMS[mechanism](terms.sized, slots[mechanism])
            code = MECHANISM_CODE[mechanism]
            return (algorithm_features(terms.sized, m, terms.roofline_us, code, kernel), kernel.workspace_bytes)

        return Formula((*map(float, (*constants, *machine_features(m))),), problem, candidate)

    def stratum(self, problem: Problem) -> np.ndarray:
        """Filter and stride; grouped (depthwise too) before all, dilated and the rest under ``other``."""
        p = problem
        ones = (p.r == 1) & (p.s == 1)
        threes = (p.r == 3) & (p.s == 3) & (p.dilation_h == 1) & (p.dilation_w == 1)
        stride_1 = (p.stride_h == 1) & (p.stride_w == 1)
        stride_2 = (p.stride_h == 2) & (p.stride_w == 2)
        return np.select(
            [p.groups > 1, ones & stride_1, ones & stride_2, threes & stride_1],
            ["grouped", "1x1s1", "1x1s2", "3x3s1"],
            "other",
        )

    def kernel_group(self, problem: Problem) -> np.ndarray:
        """Depthwise and grouped problems run kernels of their own."""
        p = problem
        return np.select([p.groups == 1, p.groups == p.c], ["ungrouped", "depthwise"], "grouped")

    def in_grouping(self, stratum: np.ndarray, grouping: str) -> np.ndarray:
        """``ungrouped`` is everything but ``grouped``."""
        return stratum != "grouped" if grouping == "ungrouped" else super().in_grouping(stratum, grouping)

    def candidates(self, library: str, setting: tuple[str, ...]) -> tuple[Candidate, ...]:
        """The library's algorithms in the direction. Raises `InputError` for a library whose engines no model knows."""
        if library == CUDNN_GRAPH:
            algorithms(library)
        try:
            known = algorithms(library, setting[0])
        except InputError:
            return ()
        return tuple(Candidate(a.name, a.deterministic, a.implemented) for a in known)

    def mechanism(self, library: str, setting: tuple[str, ...], algorithm: str) -> str:
        """What arithmetic the algorithm does."""
        return mechanism_of(algorithm, library, setting[0])

    def default_math(self, dtype: str, gpu: Gpu | None = None) -> str:
        """fp32 by TF32 where there is any (``torch.backends.cudnn.allow_tf32``); MIOpen's tables say fma of all."""
        if gpu is not None and gpu.vendor == "amd":
            return "fma"
        tf32 = dtype == "fp32" and gpu is not None and gpu.tf32_tflops
        return "default" if tf32 else super().default_math(dtype, gpu)

    def has_tensor_kernels(self, mechanism: str) -> bool:
        """Source: NVIDIA, cuDNN Developer Guide, Tensor Core Operations: prerequisites of convolutions."""
        return mechanism in ("precomp_gemm", "winograd_nonfused")

    def traits(self, problem: Problem) -> tuple[Number, ...]:
        """Filter, stride, dilation, groups (1 none, 2 some, 3 depthwise), padding against filter, and size over 256."""
        p = problem
        return (
            p.r,
            p.s,
            p.stride_h,
            p.stride_w,
            1 * ((p.dilation_h > 1) | (p.dilation_w > 1)),
            where(p.groups == 1, 1, where(p.groups == p.c, 3, 2)),
            1 * ((p.pad_h >= p.r) | (p.pad_w >= p.s)),
            1 * ((p.h + 2 * p.pad_h > 256) | (p.w + 2 * p.pad_w > 256)),
        )

    def refusal(
        self, library: str, setting: tuple[str, ...], algorithm: str, problem: Problem, gpu_name: str
    ) -> str | None:
        """The first documented rule that the problem breaks."""
        if library == "cudnn" and gpu_name and (lacks := missing_units(gpu(gpu_name), *setting[1:3])):
            return lacks
        try:
            return support.unsupported_reason(
                algorithm, problem, library=library, direction=setting[0], gpu_name=gpu_name
            )
        except InputError:  # an algorithm that the registry lacks has no rules
            return None

    def geometry(self, sizes: Mapping[str, np.ndarray], library: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
        """Groups divide the channels; the filter fits the padded input, but in MIOpen's tables, which time others."""
        p = ConvColumns.of([sizes[name] for name in SIZE_COLUMNS])
        strict = library != "miopen"
        too_large = "the filter (dilation included) exceeds the padded input"
        return [
            ("groups", (p.c % p.groups != 0) | (p.k % p.groups != 0), "it must divide c and k"),
            ("r", strict & ~fits(p.h, p.r, p.pad_h, p.dilation_h), too_large),
            ("s", strict & ~fits(p.w, p.s, p.pad_w, p.dilation_w), too_large),
        ]


CONV = ConvFamily()
