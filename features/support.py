"""Which problems an algorithm accepts, as its library documents it: rules per library, direction and algorithm.

Sources: cuDNN API reference, "supported algorithms" of cudnnConvolutionForward, BackwardData and BackwardFilter;
statuses of cuDNN 7.5 to 7.6.4. Where a release or a device differs, statuses in the data win
(surrogate.models.support).
"""

from collections.abc import Callable
from typing import NamedTuple

from .algorithms import algorithm
from .elementwise import Number
from .gpu import gpu
from .problem import DIRECTIONS, Problem


class Rule(NamedTuple):
    """A condition that must hold, and what is said where it does not. ``holds`` takes (problem, compute capability)."""

    reason: str
    holds: Callable[[Problem, float], Number]


UNIT_STRIDE = Rule("stride must be 1", lambda p, cc: (p.stride_h == 1) & (p.stride_w == 1))
UNIT_DILATION = Rule("dilation must be 1", lambda p, cc: (p.dilation_h == 1) & (p.dilation_w == 1))
FILTER_OVER_PAD = Rule("the filter must exceed the padding", lambda p, cc: (p.r > p.pad_h) & (p.s > p.pad_w))
FITS_256 = Rule(
    "the padded input must be at most 256", lambda p, cc: (p.h + 2 * p.pad_h <= 256) & (p.w + 2 * p.pad_w <= 256)
)
FILTER_32 = Rule("the filter must be at most 32", lambda p, cc: (p.r <= 32) & (p.s <= 32))
TILED_STRIDE = Rule(
    "stride must be 1, or 2 with a filter above 1×1",
    lambda p, cc: (
        ((p.stride_h == 1) & (p.stride_w == 1)) | ((p.stride_h <= 2) & (p.stride_w <= 2) & (p.r > 1) & (p.s > 1))
    ),
)
THREE = Rule("the filter must be 3×3", lambda p, cc: (p.r == 3) & (p.s == 3))
THREE_OR_FIVE = Rule("the filter must be 3×3 or 5×5", lambda p, cc: (p.r == p.s) & ((p.r == 3) | (p.r == 5)))
THREE_ONLY_HALF = Rule("half precision needs a 3×3 filter", lambda p, cc: (p.itemsize != 2) | (p.r == 3))
FULL_PRECISION = Rule("the element type must be fp32", lambda p, cc: p.itemsize == 4)
AT_LEAST_SINGLE = Rule("the element type must be fp32 or fp64", lambda p, cc: p.itemsize >= 4)
HALF_OR_SINGLE = Rule("the element type must be fp32 or fp16", lambda p, cc: (p.itemsize == 4) | (p.itemsize == 2))
CHANNELS_FIRST = Rule("the layout must be NCHW", lambda p, cc: p.is_nhwc == 0)
BEFORE_HOPPER = Rule("not on compute capability 9.0 or newer", lambda p, cc: (cc < 9.0) & (p.n > 0))
UNGROUPED = Rule("groups must be 1", lambda p, cc: p.groups == 1)
NEVER = Rule("no release implements it", lambda p, cc: p.n < 0)

_FFT = (UNIT_STRIDE, UNIT_DILATION, FITS_256, FILTER_OVER_PAD, FULL_PRECISION, CHANNELS_FIRST)
_FFT_TILING = (TILED_STRIDE, UNIT_DILATION, FILTER_32, FILTER_OVER_PAD, FULL_PRECISION, CHANNELS_FIRST)
_WINOGRAD = (THREE, UNIT_STRIDE, UNIT_DILATION, FULL_PRECISION, BEFORE_HOPPER)
_NONFUSED = (THREE_OR_FIVE, UNIT_STRIDE, UNIT_DILATION, HALF_OR_SINGLE, THREE_ONLY_HALF)

_COMMON = {"FFT": _FFT, "FFT_TILING": _FFT_TILING, "WINOGRAD": _WINOGRAD, "WINOGRAD_NONFUSED": _NONFUSED}
RULES: dict[tuple[str, str, str], tuple[Rule, ...]] = {
    **{("cudnn", direction, name): rules for direction in DIRECTIONS for name, rules in _COMMON.items()},
    ("cudnn", "fwd", "GEMM"): (AT_LEAST_SINGLE, CHANNELS_FIRST),
    ("cudnn", "fwd", "DIRECT"): (NEVER,),
    ("cudnn", "bwd_data", "ALGO_0"): (AT_LEAST_SINGLE,),
    ("cudnn", "bwd_filter", "ALGO_0"): (AT_LEAST_SINGLE,),
    ("cudnn", "bwd_filter", "ALGO_3"): (AT_LEAST_SINGLE,),
    ("cudnn", "bwd_filter", "WINOGRAD"): (NEVER,),
    ("miopen", "fwd", "FFT"): (UNIT_STRIDE, UNIT_DILATION, UNGROUPED),
    ("reference", "fwd", "FFT"): (*_FFT, UNGROUPED),
    ("reference", "fwd", "FFT_TILING"): (UNIT_STRIDE, UNIT_DILATION, FILTER_32, FILTER_OVER_PAD, UNGROUPED),
    ("reference", "fwd", "WINOGRAD"): (THREE, UNIT_STRIDE, UNIT_DILATION),
    ("reference", "fwd", "WINOGRAD_NONFUSED"): (THREE, UNIT_STRIDE, UNIT_DILATION),
}
"""(library, direction, algorithm) → its rules; an algorithm without a row accepts every problem."""


def unsupported_reason(
    name: str, problem: Problem, *, library: str = "cudnn", direction: str = "fwd", gpu_name: str = ""
) -> str | None:
    """Why the library refuses ``problem`` (a `Conv`) with this algorithm, or None where it takes it.

    Raises `InputError` for an unknown algorithm.
    """
    algorithm(name, library, direction)
    capability = gpu(gpu_name).compute_capability if gpu_name and library == "cudnn" else 0.0
    for rule in RULES.get((library, direction, name), ()):
        if not rule.holds(problem, capability):
            return rule.reason
    return None
