"""What a fitted operator model sees: columns of the operator, of the GPU, and of both together.

Two families: products (gemm, bmm, addmm, linear) and everything else, which memory traffic dominates.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.elementwise import ceil_div
from surrogate.features.gpu import Gpu
from surrogate.features.operators import Gemm, Operator
from surrogate.features.operators.gemm import TILES
from surrogate.features.roofline import peak_tflops

COLUMNS_VERSION = 1
"""Raised whenever a name, the order or a formula below changes; bundles carry it."""
GEMM, MEMORY = "gemm", "memory"
FAMILIES = (GEMM, MEMORY)
MACHINE_NAMES = (
    "sms", "log2_peak_tflops", "log2_fp32_tflops", "log2_dram_gbs", "log2_l2_bytes", "shared_per_sm_bytes",
    "compute_capability", "cores_per_sm", "boost_mhz", "is_amd",
)  # fmt: skip
COMMON_NAMES = (
    "log2_flops", "log2_dram_bytes", "log2_roofline_us", "log2_intensity", "log2_blocks_per_sm",
    "log2_bytes_per_l2", "itemsize", "uses_tensor_cores",
)  # fmt: skip
GEMM_NAMES = (
    "log2_batch", "log2_m", "log2_n", "log2_k", "m_remainder_4", "n_remainder_4", "k_remainder_4", "k_remainder_8",
    *(f"{name}_{edge}" for edge in TILES for name in ("log2_tiles_per_sm", "log2_quantised_us", "tile_utilisation")),
)  # fmt: skip
MEMORY_NAMES = (
    "log2_n", "log2_c", "log2_h", "log2_w", "log2_elements", "log2_window", "log2_window_w", "log2_stride", "pad",
    "log2_outputs_per_input", "c_remainder_4", "elements_remainder_4", "c_padding", "log2_tables", "log2_bag",
    "log2_rows",
)  # fmt: skip
FAMILY_NAMES = {
    GEMM: (*GEMM_NAMES, *COMMON_NAMES, *MACHINE_NAMES),
    MEMORY: (*MEMORY_NAMES, *COMMON_NAMES, *MACHINE_NAMES),
}
"""Family → names of its columns, in order."""


@dataclass(frozen=True)
class Design:
    """``x`` (rows, columns) float32 and ``roofline_us`` (rows,): one family's rows."""

    x: np.ndarray
    roofline_us: np.ndarray


def family_of(kind: type[Operator] | Operator) -> str:
    """The family of a kind."""
    cls = kind if isinstance(kind, type) else type(kind)
    return GEMM if issubclass(cls, Gemm) else MEMORY


def design(op: Operator, gpu: Gpu) -> Design:
    """Columns of one operator of array sizes on one GPU."""
    length = max(np.size(size) for size in op.sizes.values())
    roofline_us = _column(op.roofline_us(gpu), length)
    own = _gemm(op, gpu) if isinstance(op, Gemm) else _memory(op)
    parts = [*own, *_common(op, gpu, roofline_us), *_machine(op, gpu)]
    return Design(np.column_stack([_column(part, length) for part in parts]).astype(np.float32), roofline_us)


def _column(values: Any, length: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (length,))


def _log2(values: Any) -> np.ndarray:
    return np.log2(np.maximum(np.asarray(values, dtype=np.float64), 1e-9))


def _common(op: Operator, gpu: Gpu, roofline_us: np.ndarray) -> list[Any]:
    traffic = np.asarray(op.dram_bytes, dtype=np.float64)
    return [
        _log2(np.asarray(op.flops) + 1.0),
        _log2(traffic),
        _log2(roofline_us),
        _log2((np.asarray(op.flops) + 1.0) / traffic),
        _log2(np.asarray(op.blocks) / gpu.sms),
        _log2(traffic / gpu.l2_bytes),
        op.itemsize,
        float(op.uses_tensor_cores),
    ]


def _machine(op: Operator, gpu: Gpu) -> list[float]:
    peak = peak_tflops(gpu, op.dtype, op.uses_tensor_cores)
    logs = [np.log2(value) for value in (peak, gpu.fp32_tflops, gpu.dram_gbs, gpu.l2_bytes)]
    return [
        gpu.sms,
        *logs,
        gpu.shared_per_sm_bytes,
        gpu.compute_capability,
        gpu.cores_per_sm,
        gpu.boost_mhz,
        float(gpu.vendor == "amd"),
    ]


def _gemm(op: Gemm, gpu: Gpu) -> list[Any]:
    found = [_log2(op.batch), _log2(op.m), _log2(op.n), _log2(op.k), op.m % 4, op.n % 4, op.k % 4, op.k % 8]
    for edge in TILES:
        tiles = op.batch * ceil_div(op.m, edge) * ceil_div(op.n, edge)
        wave_us = (
            2.0 * edge * edge * op.k * gpu.sms / (peak_tflops(gpu, op.dtype, op.uses_tensor_cores) * 1e6)
        )
        utilisation = (op.m / (ceil_div(op.m, edge) * edge)) * (op.n / (ceil_div(op.n, edge) * edge))
        found += [_log2(tiles / gpu.sms), _log2(ceil_div(tiles, gpu.sms) * wave_us), utilisation]
    return found


def _memory(op: Operator) -> list[Any]:
    def size(name: str) -> Any:
        return np.asarray(getattr(op, name, 1), dtype=np.float64)

    elements = size("elements") if hasattr(op, "elements") else size("batch") * size("dim")
    c = size("dim") if hasattr(op, "dim") else size("c")
    return [
        _log2(size("n")),
        _log2(c),
        _log2(size("h")),
        _log2(size("w")),
        _log2(elements),
        _log2(size("window")),
        _log2(size("window_w")),
        _log2(size("stride")),
        getattr(op, "pad", 0),
        _log2(getattr(op, "outputs", elements) / elements),
        c % 4,
        elements % 4,
        2.0 ** np.ceil(_log2(c)) / c,
        _log2(size("tables")),
        _log2(size("bag")),
        _log2(size("rows")),
    ]
