"""`seer-polynomials`: SEER's linear fits for operators other than convolutions.

Source: SEER (PACT 2021) and its repository. S = n·c·h·w of input or output, M = multiply-adds:
max pooling a·S_out·k + b·S_in + c·S_out + d; its gradient a·S_out·k + b·S_in + c; layout transform a·S_in + b, here
also for every other operator that touches each element; 1×1 convolution, here every product, for K ≤ 128 (K rounded up
to 32) a·S_in + b·S_out + c·M + d, for K > 128 a·M + b. Least squares on the relative residual.
"""

from typing import ClassVar, Self

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.features.elementwise import round_up
from surrogate.features.operators import Gemm, MaxPool, MaxPoolBackward, Operator
from surrogate.models.seer.fits import relative_fit
from surrogate.operators.table import OperatorTable

NARROW = 128
KEY = ("gpu", "library", "kind", "variant", "dtype", "math")


def terms(op: Operator) -> tuple[np.ndarray, np.ndarray]:
    """(rows, coefficients) of the operator's form, and (rows,) which of two fits a row belongs to (0 or 1)."""
    if isinstance(op, Gemm):
        return _product_terms(op)
    if isinstance(op, MaxPool):
        width = np.sqrt(op.window * op.window_w)  # SEER's windows are square
        columns = [op.outputs * width, op.elements]
        if not isinstance(op, MaxPoolBackward):
            columns.append(op.outputs)
    else:
        columns = [getattr(op, "elements", op.dram_bytes)]
    matrix = np.column_stack(
        [*(np.asarray(column, dtype=np.float64) for column in columns), np.ones(len(columns[0]))]
    )
    return matrix, np.zeros(len(matrix), dtype=int)


def _product_terms(op: Gemm) -> tuple[np.ndarray, np.ndarray]:
    """Both forms in one matrix; a wide row has zeros where its form has no term."""
    wide = np.asarray(op.n > NARROW)
    n = np.where(wide, op.n, round_up(op.n, 32)).astype(np.float64)
    inputs, outputs = op.batch * op.m * op.k * 1.0, op.batch * op.m * n
    columns = [np.where(wide, 0.0, inputs), np.where(wide, 0.0, outputs), outputs * op.k, np.ones(len(n))]
    return np.column_stack(columns), wide.astype(int)


class SeerPolynomials:
    """One fit per GPU, library, kind, variant, dtype and math."""

    name: ClassVar[str] = "seer-polynomials"
    handles_new_gpus: ClassVar[bool] = False

    def __init__(self) -> None:
        self._fits: dict[str, tuple[np.ndarray, float]] = {}

    def fit(self, table: OperatorTable, *, seed: int = 0) -> Self:
        """Fits with at least as many rows as coefficients."""
        del seed
        fitted = type(self)()
        for key, matrix, rows in _forms(table):
            if len(rows) >= matrix.shape[1]:
                target = table.time_us[rows]
                fitted._fits[key] = relative_fit(matrix, target), float(target.min())
        return fitted

    def predict_us(self, table: OperatorTable) -> np.ndarray:
        """Times in µs, (rows,), the least training time where a fit turns negative; NaN where none was made."""
        out = np.full(len(table), np.nan)
        for key, matrix, rows in _forms(table):
            if key in self._fits:
                coefficients, least_us = self._fits[key]
                value = matrix @ coefficients
                out[rows] = np.where(value > 0, value, least_us)
        return out


def _forms(table: OperatorTable) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(key, terms, positions) of every fit that the table's rows fall into."""
    found = []
    for _, op, positions in table.groups():
        matrix, which = terms(op)
        names = joined(table.frame.iloc[positions], KEY).to_numpy()
        for name in np.unique(names):
            for form in (0, 1):
                mine = (names == name) & (which == form)
                if mine.any():
                    found.append((f"{name}|{form}", matrix[mine], positions[mine]))
    return found
