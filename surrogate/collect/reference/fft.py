"""FFT: the whole padded image in one transform, as cuDNN's algorithm 4 (hence its bound of 256 per axis)."""

from typing import Any, cast

import numpy as np
import scipy.fft

from surrogate.collect.reference import spectral
from surrogate.collect.reference.buffers import Buffer, Buffers
from surrogate.collect.reference.spectral import Size
from surrogate.features.conv import Conv

MAX_PADDED = 256
"""Largest padded image per axis."""


def size(conv: Conv) -> Size:
    """Transform lengths: the padded image, rounded up to lengths with small prime factors."""
    return Size(
        rows=_fast_length(conv.h + 2 * conv.pad_h, real=False),
        columns=_fast_length(conv.w + 2 * conv.pad_w, real=True),
    )


def buffers(conv: Conv) -> Buffers:
    """The stages of the filter, the input and the output."""
    length = size(conv)
    rows = conv.h + conv.pad_h
    return {
        **spectral.filter_buffers(conv, length),
        "image": Buffer((rows, length.columns, conv.n, conv.c)),
        "image_rows": Buffer((rows, length.frequencies, conv.n, conv.c), "complex64"),
        "spectrum": Buffer((length.rows, length.frequencies, conv.n, conv.c), "complex64"),
        "product": Buffer((length.rows, length.frequencies, conv.n, conv.k), "complex64"),
        "output": Buffer((conv.out_h, length.columns, conv.n, conv.k)),
    }


def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray, conv: Conv) -> None:
    """Write the convolution of ``x`` (n, c, h, w) and ``w`` (k, c, r, s) to ``y`` (n, k, p, q).

    No output wraps around: the length covers the padded image, and only outputs that lie wholly inside are
    read.
    """
    length = size(conv)
    planned = buffers(conv)
    stages = spectral.filter_spectrum(w, conv, length)
    image = planned["image"].zeros()
    image[conv.pad_h :, conv.pad_w : conv.pad_w + conv.w] = x.transpose(2, 3, 0, 1)
    rows = spectral.rfft(image)
    spectrum = spectral.fft(rows, n=length.rows)
    product = np.matmul(spectrum, stages[-1], out=planned["product"].empty())
    output = spectral.inverse(product, length, conv.out_h)
    y[...] = output[:, : conv.out_w].transpose(2, 3, 0, 1)


def _fast_length(least: int, real: bool) -> int:
    """The next length of at least ``least`` that SciPy transforms fast."""
    return cast(Any, scipy.fft.next_fast_len(least, real))
