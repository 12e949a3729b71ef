"""What the formulas need of a GPU, as numbers for one problem or as columns for a table."""

from collections import namedtuple
from functools import cache

from .algorithms import MECHANISM_ROWS, Mechanism
from .elementwise import Number, ceil_div, log2
from .gpu import Gpu
from .kernels import resident_blocks
from .roofline import peak_tflops
from .terms import TILES

Machine = namedtuple(
    "Machine",
    (
        "sms",
        "peak_tflops",
        "fp32_tflops",
        "dram_gbs",
        "l2_bytes",
        "shared_per_sm_bytes",
        "compute_capability",
        "cores_per_sm",
        "boost_mhz",
        "is_amd",
    ),
)
"""A GPU as the formulas see it: numbers for one, arrays over rows for many.

``peak_tflops`` is that of the problem's element type and math; the rest does not depend on the problem.
"""
MACHINE_NAMES = (
    "sms",
    "log2_peak_tflops",
    "log2_fp32_tflops",
    "log2_dram_gbs",
    "log2_l2_bytes",
    "shared_per_sm_bytes",
    "compute_capability",
    "cores_per_sm",
    "boost_mhz",
    "is_amd",
)
"""A machine's columns, as `machine_features` gives them."""


def machine_features(m: Machine) -> tuple[Number, ...]:
    """`MACHINE_NAMES` of a machine."""
    return (
        m.sms,
        log2(m.peak_tflops),
        log2(m.fp32_tflops),
        log2(m.dram_gbs),
        log2(m.l2_bytes),
        m.shared_per_sm_bytes,
        m.compute_capability,
        m.cores_per_sm,
        m.boost_mhz,
        m.is_amd,
    )


@cache
def machine(gpu: Gpu, dtype: str = "fp32", tensor_cores: bool = False) -> Machine:
    """The numbers of one GPU for an element type and math."""
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


@cache
def b_max(gpu: Gpu, mechanism: Mechanism) -> tuple[float, float, float]:
    """B_max, blocks resident on the whole GPU, of the mechanism's small, middle and large tile."""
    small, middle, large = (
        max(resident_blocks(gpu, MECHANISM_ROWS[mechanism]["kernel"], tile_m, tile_n), 1.0) * gpu.sms
        for tile_m, tile_n in TILES[mechanism]
    )
    return small, middle, large


def waves_of(blocks: Number, m: Machine) -> tuple[Number, Number, Number]:
    """Waves of ``blocks`` thread blocks over all SMs, a block on each at a time: log2 of the waves, their useful share,
    and their whole number."""
    waves = blocks / m.sms
    whole = ceil_div(waves, 1.0)
    return log2(waves), waves / whole, whole
