"""Which arithmetic really ran: a result's relative error against float64 tells FMA from TF32 and from half sums.

‖y − reference‖ / ‖reference‖ is below 1e-5 for fp32 with FMA and about 3e-4 with TF32 (10 mantissa bits).
"""

from collections.abc import Sequence

import numpy as np

from surrogate.features.conv import Conv

SELF_CHECK = {math: Conv(n=2, c=64, h=14, k=32, r=3, pad_h=1, math=math) for math in ("fma", "default")}
"""Problems whose errors stand in every run's header; forward, fp32, small enough for a CPU's float64."""


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes (uint8) of ``dtype`` as float64 values, flat; bf16 is the upper half of a float32."""
    if dtype == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.view({"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}[dtype]).astype(np.float64)


def as_nchw(flat: np.ndarray, dims: Sequence[int], layout: str) -> np.ndarray:
    """A flat tensor of NCHW sizes ``dims``, stored in ``layout``, as an NCHW array; filters (KCRS) likewise."""
    if layout == "NCHW":
        return flat.reshape(tuple(dims))
    n, c, h, w = dims
    return flat.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def forward_error(conv: Conv, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> float:
    """Relative error of the forward result ``y`` on operands ``x`` and ``w``, each raw bytes in ``conv``'s layout."""
    from surrogate.collect.reference.direct import direct, relative_error

    dims = {
        "x": (conv.n, conv.c, conv.h, conv.w),
        "w": (conv.k, conv.c // conv.groups, conv.r, conv.s),
        "y": (conv.n, conv.k, conv.out_h, conv.out_w),
    }
    found = {
        role: as_nchw(decode(raw, conv.dtype), dims[role], conv.layout)
        for role, raw in (("x", x), ("w", w), ("y", y))
    }
    return relative_error(found["y"], direct(found["x"], found["w"], conv))
