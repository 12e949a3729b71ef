"""Least squares on the relative residual, one fit per group of rows: behind the formulas of SEER and of Li et al."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.dataset.rows import Rows


def key_columns(rows: "Rows") -> "pd.DataFrame":
    """Columns that name groups: ``gpu``, ``version``, ``candidate`` (with its setting), ``grouping``."""
    from surrogate.dataset.problems import joined, kernel_groups

    frame = rows.frame.assign(candidate=rows.candidate)
    candidate = joined(frame, ("candidate", *rows.family.setting_names))
    grouping = kernel_groups(rows.frame, rows.family)
    return frame[["gpu"]].assign(version=frame["library_version"], candidate=candidate, grouping=grouping)


def fitted_groups(levels: "Sequence[pd.Series]", least_rows: int) -> Iterator[tuple[str, np.ndarray]]:
    """(key, positions) of every group to fit: of each level's keys (rows,) those with ``least_rows`` rows or more.

    The last level takes what there is.
    """
    for number, keys in enumerate(levels, 1):
        for key, members in keys.groupby(keys).indices.items():
            if number == len(levels) or len(members) >= least_rows:
                yield str(key), np.asarray(members)


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
    scaled = relative / scale
    ones = np.ones(len(target))
    if not nonnegative:
        return np.linalg.lstsq(scaled, ones, rcond=None)[0] / scale
    from scipy.optimize import nnls

    # The triangle of a QR factorisation poses the same problem with as many rows as columns.
    q, r = np.linalg.qr(scaled)
    return nnls(r, q.T @ ones)[0] / scale


def relative_loss(terms: np.ndarray, target: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Squared relative residual of each row, (rows,)."""
    return (terms @ coefficients / target - 1) ** 2
