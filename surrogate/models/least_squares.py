"""Least squares on the relative residual, one fit per group of rows, for the formulas of SEER and of Li et al."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined, kernel_groups, rows_by_code
from surrogate.dataset.rows import Rows


def key_columns(rows: Rows) -> pd.DataFrame:
    """Return the columns of group keys: ``gpu``, ``version``, ``candidate`` (with its setting), ``grouping``."""
    frame = rows.frame.assign(candidate=rows.candidate)
    candidate = joined(frame, ("candidate", *rows.family.setting_names))
    grouping = kernel_groups(rows.frame, rows.family)
    return frame[["gpu"]].assign(version=frame["library_version"], candidate=candidate, grouping=grouping)


class GroupLevel(NamedTuple):
    """Groups of rows. ``codes`` (rows,) number the ``names`` of their keys."""

    codes: np.ndarray
    names: list[str]

    @classmethod
    def of(cls, keys: np.ndarray) -> Self:
        """Return the groups of the key of every row, (rows,) texts."""
        names, codes = np.unique(keys.astype(str), return_inverse=True)
        return cls(codes, names.tolist())

    def groups(self, members: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (key, positions) of every group among the rows at ``members``, in order."""
        codes = self.codes[members]
        for group in rows_by_code(codes):
            yield self.names[codes[group[0]]], members[group]


def fitted_groups(levels: Sequence[GroupLevel], min_rows: int, members: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (key, positions) of every group to fit among the rows at ``members``.

    On each level these are the groups with ``min_rows`` rows or more, on the last level all groups.
    """
    for number, level in enumerate(levels, 1):
        for key, group in level.groups(members):
            if number == len(levels) or len(group) >= min_rows:
                yield key, group


def relative_fit(terms: np.ndarray, target: np.ndarray, *, nonnegative: bool = False) -> np.ndarray:
    """Return the coefficients (terms,) that minimise Σ(terms · coefficients / target − 1)².

    The terms differ by a factor of 1e9, so rows are divided by their target and columns by their norm before solving.
    If the rows do not determine the coefficients, the result is the least-norm solution in scaled columns.

    Parameters
    ----------
    terms
        (rows, terms).
    target
        (rows,) positive.
    nonnegative
        If True, no coefficient is negative (Lawson & Hanson 1974, "Solving least squares problems").

    References
    ----------
    SEER (PACT 2021) and its public repository.
    """
    relative = terms / target[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    scaled = relative / scale
    ones = np.ones(len(target))
    if not nonnegative:
        return np.linalg.lstsq(scaled, ones, rcond=None)[0] / scale
    from scipy.optimize import nnls

    # The R factor of a QR factorisation gives the same problem with as many rows as columns.
    q, r = np.linalg.qr(scaled)
    return nnls(r, q.T @ ones)[0] / scale


def relative_loss(terms: np.ndarray, target: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return the squared relative residual of each row, (rows,)."""
    return (terms @ coefficients / target - 1) ** 2
