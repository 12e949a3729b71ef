"""Least squares on the relative residual, one fit per group of rows: behind the formulas of SEER and of Li et al."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from surrogate.dataset.rows import Rows

SEPARATOR = "|"


def key_columns(rows: "Rows") -> dict[str, np.ndarray]:
    """Columns (rows,) of text: ``gpu``, ``version``, ``candidate`` (with its setting), ``grouping``."""
    from surrogate.dataset.problems import device_names, kernel_groups

    frame = rows.frame
    columns = {
        "gpu": device_names(frame),
        "version": frame["library_version"],
        "candidate": rows.candidate,
        "grouping": kernel_groups(frame, rows.family),
        **{name: frame[name] for name in rows.family.setting_names},
    }
    texts = {name: np.array([str(v) for v in values], dtype=object) for name, values in columns.items()}
    return {**texts, "candidate": joined(texts, ("candidate", *rows.family.setting_names))}


def joined(columns: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """(rows,) the named columns' texts, one key per row."""
    key = columns[names[0]]
    for name in names[1:]:
        key = key + SEPARATOR + columns[name]
    return key


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
