"""The roofline, a GPU's peaks, and the figures of a GPU in formulas, for one problem or for columns of a table.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from collections import namedtuple
from functools import lru_cache

import numpy as np

from .algorithms import MECHANISM_ROWS, Mechanism
from .elementwise import Number, ceil_div, log2, maximum, where
from .gpu import Gpu
from .kernels import resident_blocks
from .problem import DTYPES, ELEMENTS, QUANTISED
from .terms import TILES

COMPUTE_BOUND = "compute-bound"
MEMORY_BOUND = "memory-bound"
UNDER_UTILISED = "under-utilised"


def compute_us(flops: Number, peak_tflops: Number) -> Number:
    """Return the time in µs of ``flops`` operations (2 per multiply-add) at a peak in TFLOP/s."""
    return flops / (peak_tflops * 1e6)


def memory_us(dram_bytes: Number, dram_gbs: Number) -> Number:
    """Return the time in µs of ``dram_bytes`` at a bandwidth in GB/s (1e9 bytes per second)."""
    return dram_bytes / (dram_gbs * 1e3)


def roofline_us(flops: Number, dram_bytes: Number, peak_tflops: Number, dram_gbs: Number) -> Number:
    """Return the larger of compute and memory time, in µs."""
    return maximum(compute_us(flops, peak_tflops), memory_us(dram_bytes, dram_gbs))


def exponentials_us(per_sm: Number, boost_mhz: Number, compute_capability: Number) -> Number:
    """Return the time in µs of ``per_sm`` exponentials on each SM.

    Source: NVIDIA, CUDA C++ Programming Guide, throughput of arithmetic instructions: 16 per clock. "Inside NVIDIA
    Blackwell Ultra" (2025): twice as many.
    """
    return per_sm / (16 * where(compute_capability >= 10.3, 2, 1) * boost_mhz)


def ridge_flops_per_byte(peak_tflops: Number, dram_gbs: Number) -> Number:
    """Return the arithmetic intensity (FLOP per DRAM byte) at which compute and memory take equally long."""
    return peak_tflops * 1e3 / dram_gbs


def bound(flops: Number, dram_bytes: Number, peak_tflops: Number, dram_gbs: Number) -> str | np.ndarray:
    """Return ``compute-bound`` or ``memory-bound`` (on the ridge: compute-bound); an array for arrays."""
    computes = compute_us(flops, peak_tflops) >= memory_us(dram_bytes, dram_gbs)
    return where(computes, COMPUTE_BOUND, MEMORY_BOUND)


def seer_class(waves: float, flops: float, dram_bytes: float, peak_tflops: float, dram_gbs: float) -> str:
    """Return SEER's class of a kernel without counters.

    It is `UNDER_UTILISED` below one wave of thread blocks; else the longer of arithmetic and memory traffic decides.
    """
    return UNDER_UTILISED if waves < 1 else str(bound(flops, dram_bytes, peak_tflops, dram_gbs))


def peak_tflops(gpu: Gpu, dtype: str, uses_tensor_cores: bool = False) -> float:
    """Return the peak in TFLOP/s for data of ``dtype`` on the GPU; see `peak_flops_table`."""
    return peak_flops_table(gpu)[dtype, bool(uses_tensor_cores)]


def missing_units(gpu: Gpu, dtype: str, math: str = "default") -> str | None:
    """Return the units that the GPU lacks for products of a type and math, as in "t4 has no fp8 units", or None.

    Kernels unpack weight-only quantised values to half precision, so they need only its units. Source: the peaks of
    `gpus.toml`.
    """
    unit = ELEMENTS[dtype].unit or dtype
    half = gpu.bf16_tensor_tflops or gpu.fp16_tensor_tflops
    peaks = {"fp8": gpu.fp8_tensor_tflops, "fp4": gpu.fp4_tensor_tflops, "int8": gpu.int8_tensor_tflops, "bf16": half}
    peak = peaks.get(unit) if dtype in QUANTISED else {"bf16": gpu.bf16_tensor_tflops}.get(dtype, 1.0)
    lacks = f"{unit} units" if not peak else "tensor cores" if math.startswith("tensor_op") and not half else ""
    return f"{gpu.name} has no {lacks}" if lacks else None


@lru_cache(maxsize=256)
def peak_flops_table(gpu: Gpu) -> dict[tuple[str, bool], float]:
    """Return (dtype, uses tensor cores) → peak in TFLOP/s, for every dtype of `DTYPES` and `QUANTISED`.

    Without tensor cores:

    - fp64, fp32: the vector rates.
    - fp16: the packed rate, but at least fp32's: GPUs without a faster rate convert to fp32.
    - int8: from compute capability 6.1 on, four multiply-adds on each lane for integers (`__dp4a`); else fp32's rate.
      An SM of 7.0 or later has 64 such lanes.
    - bf16, quantised types: fp32's rate.

    With tensor cores:

    - fp16, bf16: their tensor peaks.
    - fp32: TF32's peak, or else AMD's fp32 matrix peak.
    - int8: its peak. The base of fitted times is fp16's (`Gemm.peak_tflops`).
    - fp64: the vector rate.
    - Quantised types: the peak of their `Element.unit`. If the GPU lacks the unit, kernels unpack to bf16 (before
      Ampere to fp16).

    If a unit is missing, the value without tensor cores is used, so a tensor peak is never below it.
    """
    fp32 = gpu.fp32_tflops
    lanes = 1 if gpu.compute_capability < 7.0 else 64 / gpu.cores_per_sm
    int8 = fp32 * (4 * lanes if gpu.compute_capability >= 6.1 else 1)
    vector = {"fp64": gpu.fp64_tflops, "fp32": fp32, "fp16": max(gpu.fp16_tflops, fp32), "bf16": fp32, "int8": int8}
    tensor = {
        "fp64": 0.0,
        "fp32": gpu.tf32_tflops or gpu.fp32_matrix_tflops,
        "fp16": gpu.fp16_tensor_tflops,
        "bf16": gpu.bf16_tensor_tflops,
        "int8": gpu.int8_tensor_tflops,
    }
    half = gpu.bf16_tensor_tflops or gpu.fp16_tensor_tflops or fp32
    units = {"bf16": half, "fp8": gpu.fp8_tensor_tflops, "fp4": gpu.fp4_tensor_tflops, "int8": gpu.int8_tensor_tflops}
    return {
        **{(dtype, False): fp32 for dtype in QUANTISED},
        **{(dtype, True): units[element.unit] or half for dtype, element in QUANTISED.items()},
        **{(dtype, False): vector[dtype] for dtype in DTYPES},
        **{(dtype, True): max(vector[dtype], tensor[dtype]) for dtype in DTYPES},
    }


Machine = namedtuple(
    "Machine",
    "sms peak_tflops fp32_tflops dram_gbs l2_bytes shared_per_sm_bytes"
    " compute_capability cores_per_sm boost_mhz is_amd",
)
"""The figures of a GPU in formulas: numbers for one GPU, arrays over rows for many.

``peak_tflops`` is the peak of the problem's element type and math; the other figures do not depend on the problem.
"""
_LOG2_FIGURES = ("peak_tflops", "fp32_tflops", "dram_gbs", "l2_bytes")
"""Figures that enter as logarithms."""
MACHINE_NAMES = tuple(f"log2_{name}" if name in _LOG2_FIGURES else name for name in Machine._fields)
"""The columns of a machine, in the order of `machine_features`."""


def machine_features(m: Machine) -> tuple[Number, ...]:
    """Return the `MACHINE_NAMES` values of a machine."""
    return tuple(log2(value) if name in _LOG2_FIGURES else value for name, value in m._asdict().items())


@lru_cache(maxsize=1024)
def machine(gpu: Gpu, dtype: str = "fp32", tensor_cores: bool = False) -> Machine:
    """Return the figures of a GPU for an element type and math."""
    return Machine(
        sms=float(gpu.sms),
        peak_tflops=peak_tflops(gpu, dtype, tensor_cores),
        fp32_tflops=gpu.fp32_tflops,
        dram_gbs=gpu.dram_gbs,
        l2_bytes=float(gpu.l2_bytes),
        shared_per_sm_bytes=float(gpu.shared_per_sm_bytes),
        compute_capability=gpu.compute_capability,
        cores_per_sm=float(gpu.cores_per_sm),
        boost_mhz=gpu.boost_mhz,
        is_amd=float(gpu.vendor == "amd"),
    )


@lru_cache(maxsize=1024)
def mechanism_b_max(gpu: Gpu, mechanism: Mechanism) -> tuple[float, ...]:
    """Return B_max, the blocks resident on the whole GPU, of the mechanism's small, middle and large tile."""
    kernel = MECHANISM_ROWS[mechanism]["kernel"]
    return tuple(max(resident_blocks(gpu, kernel, *tile), 1.0) * gpu.sms for tile in TILES[mechanism])


def waves_of(blocks: Number, m: Machine) -> tuple[Number, Number, Number]:
    """Return log2 of the waves, their useful share, and the rounded-up waves.

    A wave is one block on every SM.
    """
    waves = blocks / m.sms
    rounded_up = ceil_div(waves, 1.0)
    return log2(waves), waves / rounded_up, rounded_up
