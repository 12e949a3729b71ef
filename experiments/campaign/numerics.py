"""A child process that tells which arithmetic ran and what events say: ``python -m experiments.campaign.numerics``.

Prints one JSON line per (problem, algorithm): relative error against float64, and the time by CUDA events with
CUPTI off, in µs.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from surrogate.collect.cudnn.device import CudnnDevice
from surrogate.collect.cudnn.gpu import GpuFaultError
from surrogate.collect.cudnn.library import CudnnError
from surrogate.collect.plan import GIB
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv

SHAPES = tuple(
    Conv(n=n, c=c, h=h, k=k, r=r, pad_h=r // 2, stride_h=u)
    for n, c, h, k, r, u in (
        (1, 64, 28, 64, 3, 1), (4, 32, 14, 64, 3, 2), (2, 128, 14, 32, 1, 1), (1, 3, 64, 32, 7, 2),
        (2, 48, 20, 16, 5, 1), (8, 16, 9, 40, 3, 1), (1, 256, 7, 64, 3, 1), (2, 64, 32, 8, 1, 2),
        (1, 24, 33, 17, 9, 1), (3, 33, 15, 65, 3, 1),
    )
)  # fmt: skip
"""Small enough for a float64 convolution on the CPU."""
SETTINGS = (
    {"dtype": "fp32", "math": "fma", "layout": "NCHW"},
    {"dtype": "fp32", "math": "default", "layout": "NCHW"},
    {"dtype": "fp16", "math": "tensor_op", "layout": "NHWC"},
    {"dtype": "bf16", "math": "tensor_op", "layout": "NHWC"},
    {"dtype": "fp16", "math": "default", "layout": "NCHW"},
)
"""Ten shapes under five settings: the spot check of 50 problems."""
EXPECTED_BELOW = {("fp32", "fma"): 1e-5, ("fp32", "default"): 2e-3, ("fp16", ""): 5e-3, ("bf16", ""): 3e-2}
"""Relative error that a right result stays below; fp32 FMA at 1e-5 excludes TF32 (about 3e-4)."""


def problems() -> list[Conv]:
    """The spot check's problems."""
    return [Conv(**{**shape.to_dict(), **setting}) for shape in SHAPES for setting in SETTINGS]


def limit_of(dtype: str, math: str, algorithm: str) -> float:
    """What the relative error is expected to stay below; Winograd's larger tiles lose digits."""
    base = EXPECTED_BELOW.get((dtype, math), EXPECTED_BELOW.get((dtype, ""), 1.0))
    return base * (10.0 if algorithm.startswith("WINOGRAD") else 1.0)


def checked(device: Any, convs: Sequence[Conv]) -> Iterator[dict[str, Any]]:
    """One entry per (problem, algorithm) that runs: ``relative_error`` and ``events_us``."""
    for conv in convs:
        for algorithm in device.candidates(conv):
            try:
                error = device.relative_error(conv, algorithm)
            except (CudnnError, MemoryError, GpuFaultError):
                continue
            timed = device.measure(conv, algorithm, RepeatPolicy())
            named = {"problem": str(conv), "dtype": conv.dtype, "math": conv.math, "layout": conv.layout}
            events_us = sorted(timed.times_us)[len(timed.times_us) // 2] if timed.times_us else None
            yield {**named, "algorithm": algorithm, "relative_error": error, "events_us": events_us}


def main() -> None:
    """Check every problem; a failure of one algorithm is left out, a lost device ends the child."""
    no_activity = (None, "events are what is measured here")
    device = CudnnDevice(max_workspace_bytes=GIB, max_tensor_bytes=GIB // 4, activity=no_activity)
    for entry in checked(device, problems()):
        sys.stdout.write(json.dumps(entry) + "\n")
        sys.stdout.flush()
    device.close()


if __name__ == "__main__":
    main()
