"""The sizes that SEER's formulas speak of, and the problems that they cover."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from surrogate.features.elementwise import Number
from surrogate.features.shape import output_size


class Sizes(NamedTuple):
    """N, C, K, W, O, k and the stride: numbers or arrays of one length."""

    batch: Number
    channels: Number
    outputs: Number
    width: Number
    out_width: Number
    filter_width: Number
    stride: Number

    def take(self, index: np.ndarray) -> "Sizes":
        """The rows that ``index`` selects, of arrays."""
        return Sizes(*(column[index] for column in self))


def sizes_of(frame: pd.DataFrame) -> Sizes:
    """Columns of a table of square problems, int64."""
    n, c, k, w, s, pad, stride = (
        frame[name].to_numpy(dtype=np.int64) for name in ("n", "c", "k", "w", "s", "pad_w", "stride_w")
    )
    return Sizes(n, c, k, w, output_size(w, s, pad, stride, 1), s, stride)


def in_domain(frame: pd.DataFrame) -> np.ndarray:
    """(rows,) True for what SEER models: cuDNN, forward, fp32, NCHW, square, undilated, ungrouped."""
    square = np.ones(len(frame), dtype=bool)
    for one, other in (("h", "w"), ("r", "s"), ("stride_h", "stride_w"), ("pad_h", "pad_w")):
        square &= (frame[one] == frame[other]).to_numpy()
    plain = (frame[["dilation_h", "dilation_w", "groups"]] == 1).all(axis=1).to_numpy()
    settings = {"library": "cudnn", "direction": "fwd", "dtype": "fp32", "layout": "NCHW"}
    return square & plain & np.logical_and.reduce([(frame[n] == v).to_numpy() for n, v in settings.items()])


def feasible(algorithm: str, sizes: Sizes) -> np.ndarray:
    """(rows,) True where SEER lets the algorithm run: WINOGRAD k = 3, non-fused 3 or 5, all but GEMMs at stride 1."""
    k, ones = sizes.filter_width, sizes.stride == 1
    if algorithm == "WINOGRAD":
        return ones & (k == 3)
    if algorithm == "WINOGRAD_NONFUSED":
        return ones & ((k == 3) | (k == 5))
    if algorithm == "FFT":
        return ones & (sizes.width <= 256)
    if algorithm == "FFT_TILING":
        return ones & (k <= 32)
    return ~np.zeros_like(ones)
