"""Tests of minimum kernel times, and that operators with equal work take about as long on every registered GPU."""

from collections import defaultdict

import numpy as np
import pytest

from surrogate.features.families import OPERATORS, Operator, operator
from surrogate.features.families.rowwise import POINTWISE_CLASSES
from surrogate.features.gpu import gpus
from surrogate.models.call_cost import MIN_KERNEL_US, CallKey
from surrogate.network.operators import streamed
from surrogate.prediction.shipped import bundle_for, load, load_operators, shipped

ELEMENTS = (1, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 27)
DEFAULT_GPUS = ("k80", "p100-sxm2-16gb", "v100-sxm2-16gb", "a100-sxm4-80gb", "h100-sxm", "mi100", "mi250x")
"""GPUs of the default suite; the others are slow tests."""


@pytest.mark.parametrize(
    "gpu",
    [pytest.param(device.name, marks=[] if device.name in DEFAULT_GPUS else pytest.mark.slow) for device in gpus()],
)
def test_operators_of_equal_bytes_and_flops_take_about_as_long(gpu: str) -> None:
    """Pointwise operators, and operators known by their traffic alone, agree within a factor of two."""
    problems: list[Operator] = [kind(n=n, c=1, h=1, w=1) for n in ELEMENTS for kind in POINTWISE_CLASSES.values()]
    problems += [streamed("rsqrt", [(n,)], [(n,)], "fp32") for n in ELEMENTS]
    times = defaultdict(list)
    for answer in load_operators(gpu).kernel_times(problems):
        assert answer.time_us >= MIN_KERNEL_US
        times[answer.problem.flops, answer.problem.dram_bytes].append(answer.time_us)
    assert max(max(equal_work) / min(equal_work) for equal_work in times.values()) < 2.0


def test_no_time_is_below_the_minimum_kernel_time() -> None:
    """Tested with the smallest operator of every kind and the smallest convolution on every measured GPU."""
    smallest = [operator(kind, **dict.fromkeys(cls.size_names(), 1)) for kind, cls in OPERATORS.items()]
    for name in DEFAULT_GPUS:
        served = load_operators(name)
        assert min(answer.time_us for answer in served.kernel_times(smallest)) >= MIN_KERNEL_US
        minimum = [part.min_us for part in (served.bundle.family_models[name] for name in ("pointwise", "gemm"))]
        assert all(0 < value < 200 for floors in minimum for value in floors.values())
    for bundle in shipped():
        for name in sorted(bundle.gpus if "conv" in bundle.families else ()):
            if bundle_for(next(device for device in gpus() if device.name == name)) == bundle.path:
                times = load(name).predict({"n": [1], "c": [1], "h": [1], "k": [1], "r": [1]})
                assert np.nanmin(times.time_us) >= load(name).bundle.family_models["conv"].min_us[CallKey("", "")]
