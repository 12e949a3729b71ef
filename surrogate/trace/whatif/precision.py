"""Automatic mixed precision: the published rule, the kernels that tensor cores can run, and a roofline factor each."""

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.kernels import identify
from surrogate.features.roofline import peak_tflops, roofline_us
from surrogate.trace.graph.tasks import KERNEL, Graph, Mask
from surrogate.trace.whatif.primitives import scale, select
from surrogate.trace.whatif.setting import Change, Setting

MATRIX, OTHER = 3.0, 2.0
OPTIMIZER = r"^(?:Optimizer|Optim)"
_MATRIX_NAME = r"gemm|conv|wgrad|dgrad|fprop|winograd"
_AUXILIARY = {
    "offsets",
    "layout",
    "xmma_setup",
    "fft_filter",
    "winograd_filter",
    "winograd_transform",
    "im2col",
}


def amp(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Kernels with sgemm or wgrad in their name ÷3, every other kernel ÷2, copies and CPU unchanged (Daydream, 5.1)."""
    del setting, value
    kernels = select(graph, kind="kernel")
    matrix = select(graph, kind="kernel", name="sgemm|wgrad")
    return Change(scale(graph, kernels, np.where(matrix, 1 / MATRIX, 1 / OTHER)))


def amp_tensor(graph: Graph, setting: Setting, value: float | None) -> Change:
    """As `amp`, but ÷3 for all matrix products and convolutions, and the optimizer stays: its weights are fp32."""
    del setting, value
    changed = select(graph, kind="kernel") & ~select(graph, layer=OPTIMIZER)
    return Change(scale(graph, changed, np.where(matrix_kernels(graph), 1 / MATRIX, 1 / OTHER)))


def matrix_kernels(graph: Graph) -> Mask:
    """Kernels of a matrix product or a convolution, those that prepare them (layout, offsets, transforms) left out."""
    plain = select(graph, kind="kernel", name=_MATRIX_NAME)
    auxiliary = np.array(
        [(found := identify(n)) is not None and found.family in _AUXILIARY for n in graph.names]
    )
    return plain & ~auxiliary[graph.name]


def amp_roofline(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Every fp32 kernel of known work by the ratio of its rooflines in fp16 (tensor cores, half the bytes) and fp32.

    The GPU is the target's, else the trace's own. Kernels of unknown work ÷2 where elementwise (a tensor's kernel
    moves half the bytes), else unchanged; the optimizer stays. Raises `InputError` for a GPU without fp16 tensor cores.
    """
    del value
    profile, device = setting.profile, setting.target or setting.own_gpu
    fast = peak_tflops(device, "fp16", True)
    if not device.fp16_tensor_tflops:
        raise InputError(f"{device.name} has no fp16 tensor cores; amp-roofline needs them, amp does not")
    rows = np.flatnonzero((graph.kind == KERNEL) & (graph.row >= 0) & ~select(graph, layer=OPTIMIZER))
    activity = graph.row[rows]
    flops, moved = profile.flops[activity], profile.dram_bytes[activity]
    fp32 = np.array([profile.dtype[a] == "fp32" for a in activity.tolist()], np.bool_)
    known = fp32 & (moved > 0)
    matrix = matrix_kernels(graph)[rows]
    slow = peak_tflops(device, "fp32", False)
    before = roofline_us(flops, moved, slow, device.dram_gbs)
    after = roofline_us(flops, moved / 2, np.where(matrix, fast, 2 * slow), device.dram_gbs)
    elementwise = np.array(["elementwise" in name for name in graph.names])[graph.name[rows]]
    factor = np.ones(len(graph))
    with np.errstate(invalid="ignore", divide="ignore"):
        factor[rows] = np.where(known, after / before, np.where(elementwise & ~fp32, 0.5, 1.0))
    left = int((~known & ~elementwise).sum())
    notes = (f"{left:,} of {len(rows):,} kernels have unknown work and stay as they are",) if left else ()
    return Change(scale(graph, select(graph, kind="kernel"), np.nan_to_num(factor, nan=1.0)), notes=notes)
