"""Correlation by the discrete Fourier transform: transforms along the two leading axes, one complex GEMM per frequency.

With the frequencies leading, the spectra are stacks of matrices as they come: (images × c) · (c × k) at each frequency.
"""

from dataclasses import dataclass

import numpy as np
import scipy.fft

from features.conv import Conv
from surrogate.collect.reference.buffers import Buffer, Buffers


@dataclass(frozen=True, slots=True)
class Size:
    """Length of the transforms: ``rows`` (complex) × ``columns`` (real, ``columns // 2 + 1`` frequencies)."""

    rows: int
    columns: int

    @property
    def frequencies(self) -> int:
        """Frequencies along the columns' axis."""
        return self.columns // 2 + 1


def filter_buffers(conv: Conv, size: Size) -> Buffers:
    """The three stages of the filter: its taps, their row spectra, the whole spectrum."""
    return {
        "filter_taps": Buffer((conv.r, size.columns, conv.c, conv.k)),
        "filter_rows": Buffer((conv.r, size.frequencies, conv.c, conv.k), "complex64"),
        "filter": Buffer((size.rows, size.frequencies, conv.c, conv.k), "complex64"),
    }


def filter_spectrum(w: np.ndarray, conv: Conv, size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stages of `filter_buffers`; the last is the conjugate spectrum (rows, frequencies, c, k).

    The conjugate turns the circular convolution into a correlation. Only the filter's own rows are transformed along
    the columns, the others being zero.
    """
    taps = filter_buffers(conv, size)["filter_taps"].zeros()
    taps[:, : conv.s] = w.transpose(2, 3, 1, 0)
    rows = scipy.fft.rfft(taps, axis=1)
    spectrum = scipy.fft.fft(rows, n=size.rows, axis=0)
    return taps, rows, np.conjugate(spectrum, out=spectrum)


def inverse(product: np.ndarray, size: Size, rows: int) -> np.ndarray:
    """The first ``rows`` rows of the real inverse (rows, size.columns, …) of ``product``, which is overwritten."""
    columns = scipy.fft.ifft(product, axis=0, overwrite_x=True)
    return scipy.fft.irfft(columns[:rows], n=size.columns, axis=1)
