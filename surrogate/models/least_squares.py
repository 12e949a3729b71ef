"""Least squares on the relative residual, one fit per group of rows: behind the formulas of SEER and of Li et al."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined, kernel_groups
from surrogate.dataset.rows import Rows


def key_columns(rows: Rows) -> pd.DataFrame:
    """Columns that name groups: ``gpu``, ``version``, ``candidate`` (with its setting), ``grouping``."""
    frame = rows.frame.assign(candidate=rows.candidate)
    candidate = joined(frame, ("candidate", *rows.family.setting_names))
    grouping = kernel_groups(rows.frame, rows.family)
    return frame[["gpu"]].assign(version=frame["library_version"], candidate=candidate, grouping=grouping)


class GroupLevel(NamedTuple):
    """Groups of rows: ``codes`` (rows,) number the ``names`` of their keys."""

    codes: np.ndarray
    names: list[str]

    @classmethod
    def of(cls, keys: np.ndarray) -> Self:
        """From the key of every row, (rows,) texts."""
        names, codes = np.unique(keys.astype(str), return_inverse=True)
        return cls(codes, names.tolist())

    def groups(self, members: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (key, positions) of every group among the rows at ``members``, which are in order."""
        codes = self.codes[members]
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for group in np.split(order, starts[1:]) if len(starts) else ():
            yield self.names[codes[group[0]]], members[group]


def fitted_groups(
    levels: Sequence[GroupLevel], least_rows: int, members: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (key, positions) of every group to fit among the rows at ``members``: of each level those with
    ``least_rows`` rows or more, of the last level all."""
    for number, level in enumerate(levels, 1):
        for key, group in level.groups(members):
            if number == len(levels) or len(group) >= least_rows:
                yield key, group


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
