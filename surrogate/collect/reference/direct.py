"""The oracle: a direct convolution in float64, and the error of a result against it."""

import numpy as np

from surrogate.features.conv import Conv


def direct(x: np.ndarray, w: np.ndarray, conv: Conv) -> np.ndarray:
    """The forward convolution (n, k, p, q) of ``x`` (n, c, h, w) and ``w`` (k, c/groups, r, s), in float64.

    The definition: y[n,k,p,q] = Σ_{c,r,s} x[n, c, p·u + r·l − pad_h, q·v + s·j − pad_w] · w[k, c, r, s].
    """
    groups, out_h, out_w = conv.groups, conv.out_h, conv.out_w
    padding = ((0, 0), (0, 0), (conv.pad_h, conv.pad_h), (conv.pad_w, conv.pad_w))
    padded = np.pad(x.astype(np.float64), padding)
    padded = padded.reshape(conv.n, groups, conv.c // groups, *padded.shape[2:])
    taps = w.astype(np.float64).reshape(groups, conv.k // groups, conv.c // groups, conv.r, conv.s)
    y = np.zeros((conv.n, groups, conv.k // groups, out_h, out_w))
    for r in range(conv.r):
        for s in range(conv.s):
            top, left = r * conv.dilation_h, s * conv.dilation_w
            rows = slice(top, top + (out_h - 1) * conv.stride_h + 1, conv.stride_h)
            columns = slice(left, left + (out_w - 1) * conv.stride_w + 1, conv.stride_w)
            y += np.einsum("gkc,ngcpq->ngkpq", taps[..., r, s], padded[..., rows, columns], optimize=True)
    return y.reshape(conv.n, conv.k, out_h, out_w)


def relative_error(y: np.ndarray, reference: np.ndarray) -> float:
    """‖y − reference‖ / ‖reference‖ (Frobenius norms, in float64).

    A zero reference gives the norm of ``y`` itself.
    """
    norm = float(np.linalg.norm(reference))
    return float(np.linalg.norm(y.astype(np.float64) - reference)) / (norm or 1.0)
