"""Which measured GPUs stand for one that was not measured in a setting: siblings lend their times, others a habit.

Kernels are compiled for a compute capability, and their times over the roofline depend on what bounds them, which is
the ratio of the peak to the bandwidth. So the nearest sibling has the compute capability and the nearest ratio.
"""

from collections.abc import Mapping
from math import log2

from surrogate.features.families import Family
from surrogate.features.gpu import Gpu

MOST_RATIO = 1.6
"""Nothing is lent between GPUs whose ratios of peak to bandwidth, for the setting's type, differ by more."""


def siblings(
    family: Family, values: tuple[str, ...], gpu: Gpu, others: Mapping[str, Gpu]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ``others`` of the GPU's architecture in a setting, the nearest first; and those of them that may lend.

    Of the same compute capability first, then by the ratio of peak to bandwidth. A GPU without an architecture has no
    siblings.
    """
    alike = {name: other for name, other in others.items() if other.architecture == gpu.architecture}
    if not alike or not gpu.architecture:
        return (), ()
    ridge = _ridge(family, values, gpu)
    apart = {name: abs(_ridge(family, values, other) - ridge) for name, other in alike.items()}
    order = sorted(apart, key=lambda name: (alike[name].compute_capability != gpu.compute_capability, apart[name]))
    return tuple(order), tuple(name for name in order if apart[name] <= log2(MOST_RATIO))


def _log2_rates(family: Family, values: tuple[str, ...], gpu: Gpu) -> tuple[float, float]:
    """Base-2 logarithms of the peak in TFLOP/s that the setting's kernels run at, and of the bandwidth in GB/s."""
    constant = dict(zip(family.constant_names, family.formula(values, gpu).constant, strict=True))
    return float(constant["log2_peak_tflops"]), float(constant["log2_dram_gbs"])


def _ridge(family: Family, values: tuple[str, ...], gpu: Gpu) -> float:
    """Base-2 logarithm of the ratio of peak to bandwidth."""
    peak, bandwidth = _log2_rates(family, values, gpu)
    return peak - bandwidth
