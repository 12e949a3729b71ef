"""Correlation by Fourier transforms along the two leading axes and one complex GEMM per frequency.

With the frequencies leading, the spectra are stacks of matrices as they come: (images × c) · (c × k) at
each frequency.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.fft

from surrogate.collect.reference.buffers import Buffer, Buffers
from surrogate.features.conv import Conv


@dataclass(frozen=True, slots=True)
class Size:
    """Length of the transforms: ``rows`` (complex) × ``columns`` (real, ``columns // 2 + 1`` frequencies)."""

    rows: int
    columns: int

    @property
    def frequencies(self) -> int:
        """Frequencies along the columns' axis."""
        return self.columns // 2 + 1


def fft(array: np.ndarray, *, n: int | None = None, overwrite: bool = False) -> np.ndarray:
    """Complex transform along axis 0, zero-padded to length ``n``; ``overwrite`` lets it run in place."""
    return cast(Any, scipy.fft.fft(array, n=n, axis=0, overwrite_x=overwrite))


def ifft(array: np.ndarray) -> np.ndarray:
    """Inverse complex transform along axis 0, in place."""
    return cast(Any, scipy.fft.ifft(array, axis=0, overwrite_x=True))


def rfft(array: np.ndarray) -> np.ndarray:
    """Real transform along axis 1."""
    return cast(Any, scipy.fft.rfft(array, axis=1))


def irfft(array: np.ndarray, n: int) -> np.ndarray:
    """Inverse real transform along axis 1, to length ``n``."""
    return cast(Any, scipy.fft.irfft(array, n=n, axis=1))


def filter_buffers(conv: Conv, size: Size) -> Buffers:
    """The three stages of the filter: its taps, their row spectra, the whole spectrum."""
    return {
        "filter_taps": Buffer((conv.r, size.columns, conv.c, conv.k)),
        "filter_rows": Buffer((conv.r, size.frequencies, conv.c, conv.k), "complex64"),
        "filter": Buffer((size.rows, size.frequencies, conv.c, conv.k), "complex64"),
    }


def filter_spectrum(w: np.ndarray, conv: Conv, size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stages of `filter_buffers`; the last is the conjugate spectrum (rows, frequencies, c, k).

    The conjugate turns the circular convolution into a correlation. Only the filter's own rows are
    transformed along the columns, the others being zero.
    """
    taps = filter_buffers(conv, size)["filter_taps"].zeros()
    taps[:, : conv.s] = w.transpose(2, 3, 1, 0)
    rows = rfft(taps)
    spectrum = fft(rows, n=size.rows)
    return taps, rows, np.conjugate(spectrum, out=spectrum)


def inverse(product: np.ndarray, size: Size, rows: int) -> np.ndarray:
    """The first ``rows`` rows of the real inverse (rows, size.columns, …); ``product`` is overwritten."""
    return irfft(ifft(product)[:rows], size.columns)
