"""Least squares on the relative residual: the fit behind the linear time formulas of SEER and of Li et al."""

import numpy as np


def relative_fit(terms: np.ndarray, target: np.ndarray, *, nonnegative: bool = False) -> np.ndarray:
    """Coefficients (terms,) that minimise Σ(terms · coefficients / target − 1)².

    ``terms`` (rows, terms), ``target`` (rows,) positive. Rows are divided by their target and columns by their norm
    before solving, since the terms differ by a factor of 1e9; where the rows do not determine the coefficients, the
    least-norm solution (in scaled columns) is returned. ``nonnegative`` keeps every coefficient at or above 0
    (Lawson & Hanson 1974). Source: SEER's fits (PACT 2021 and its repository).
    """
    relative = terms / target[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    scaled, ones = relative / scale, np.ones(len(target))
    if not nonnegative:
        return np.linalg.lstsq(scaled, ones, rcond=None)[0] / scale
    from scipy.optimize import nnls

    # The triangle of a QR factorisation poses the same problem with as many rows as columns.
    q, r = np.linalg.qr(scaled)
    return nnls(r, q.T @ ones)[0] / scale


def relative_loss(terms: np.ndarray, target: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Squared relative residual of each row, (rows,)."""
    return (terms @ coefficients / target - 1) ** 2
