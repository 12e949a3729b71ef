"""SEER's fits for operators other than convolutions: `seer-polynomials`, and `gradient-ratio` for their gradients.

Source: SEER (PACT 2021) and its repository. S = n·c·h·w of input or output, M = multiply-adds.

- Max pooling: a·S_out·k + b·S_in + c·S_out + d.
- Gradient of max pooling: a·S_out·k + b·S_in + c.
- Layout transform: a·S_in + b. Here the form is also used for every other operator that accesses each element.
- 1×1 convolution with K ≤ 128 (K rounded up to 32): a·S_in + b·S_out + c·M + d. For K > 128: a·M + b. Here the forms
  are used for every product.

Fits are least squares on the relative residual. The time of a backward pass is a ratio times its forward pass. The
ratio comes from a regression tree, as in the paper for the gradients of convolutions. A table of convolutions covers
one candidate, like the paper's ``Other-ops-*`` workbooks.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from surrogate.dataset.problems import by_setting, joined, problems_of
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.elementwise import Number, round_up
from surrogate.features.families import CONV
from surrogate.features.families.gemm import Gemm
from surrogate.features.families.pool import MaxPool, MaxPoolBackward
from surrogate.features.problem import ConvColumns
from surrogate.features.terms import out_h, out_w
from surrogate.models.base import TimeModel
from surrogate.models.least_squares import relative_fit
from surrogate.models.seer.trees import tuned_tree

NARROW = 128
SUFFIX = "_backward"
EVALUATIONS = 10
"""Number of minimum leaf sizes that are tried for the tree of ratios."""
RATIO_COLUMNS = (
    *("log2_n", "log2_c", "log2_h", "log2_w", "log2_window", "log2_window_w", "log2_stride"),
    *("log2_elements", "itemsize"),
)
CONV_RATIO_COLUMNS = ("log2_n", "log2_c", "log2_h", "log2_k", "log2_out_h", "log2_r", "stride_h")


def terms(op: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the terms (rows, coefficients) of the problems, and the fit (rows,) of each row."""
    if isinstance(op, Gemm):
        return _product_terms(op.batch * op.m * op.k, op.batch * op.m, op.n, op.k)
    if isinstance(op, ConvColumns):
        depth = op.r * op.s * op.c
        matrix, which = _product_terms(op.n * op.c * op.h * op.w, op.n * out_h(op) * out_w(op), op.k, depth)
        return matrix, which + 2 * np.asarray(depth > op.c)  # larger filters have a fit of their own
    if isinstance(op, MaxPool):
        width = np.sqrt(op.window * op.window_w)  # SEER's windows are square
        columns = [op.outputs * width, op.elements]
        if not isinstance(op, MaxPoolBackward):
            columns.append(op.outputs)
    else:
        columns = [getattr(op, "elements", op.dram_bytes)]
    columns.append(np.ones(len(columns[0])))
    matrix = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    return matrix, np.zeros(len(matrix), dtype=int)


def _product_terms(inputs: Number, m: Number, n: Number, k: Number) -> tuple[np.ndarray, np.ndarray]:
    """Return both forms in one matrix, for ``inputs`` elements and m × n outputs. Wide rows have 0 for the narrow
    form's terms."""
    wide = np.asarray(n > NARROW)
    outputs = m * np.where(wide, n, round_up(n, 32)).astype(np.float64)
    columns = [np.where(wide, 0.0, inputs), np.where(wide, 0.0, outputs), outputs * k, np.ones(len(wide))]
    return np.column_stack(columns), wide.astype(int)


class SeerPolynomials(TimeModel):
    """One fit per GPU, library, operator, variant, dtype and math; NaN without a fit.

    A fit needs as many rows as coefficients. A negative prediction is replaced by the minimum training time.
    """

    name: ClassVar[str] = "seer-polynomials"

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        self.fits_ = {
            key: (relative_fit(matrix, time_us[positions]), float(time_us[positions].min()))
            for key, matrix, positions in _forms(rows)
            if len(positions) >= matrix.shape[1]
        }

    def _predict(self, rows: Rows) -> np.ndarray:
        out = np.full(len(rows), np.nan)
        for key, matrix, positions in _forms(rows):
            if key in self.fits_:
                coefficients, min_us = self.fits_[key]
                value = matrix @ coefficients
                out[positions] = np.where(value > 0, value, min_us)
        return out


Key = tuple[str | int, ...]


def _forms(rows: Rows) -> Iterator[tuple[Key, np.ndarray, np.ndarray]]:
    """Yield (key, terms, positions) of every fit that the rows belong to."""
    for key, positions in by_setting(rows.frame, rows.family):
        matrix, which = terms(problems_of(rows.frame.iloc[positions], rows.family, key[2:]))
        for form in np.unique(which):
            yield (*key, int(form)), matrix[which == form], positions[which == form]


class GradientRatio(TimeModel):
    """A tree per GPU, library, backward operator and setting. Forward times come from `SeerPolynomials`.

    A tree needs both passes of two problems. The prediction is NaN for operators without a gradient, and without a
    tree.
    """

    name: ClassVar[str] = "gradient-ratio"

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        self.forward_ = SeerPolynomials().fit(rows, time_us)
        ratio = time_us / forward_times(rows, time_us)
        paired = np.flatnonzero(_is_gradient(rows) & np.isfinite(ratio))
        pairs, self.trees_ = rows.take(paired), {}
        for key, positions in by_setting(pairs.frame, pairs.family):
            if len(positions) > 1:
                x, y = pairs.take(positions).columns(_ratio_columns(rows)), ratio[paired[positions]]
                self.trees_[key] = tuned_tree(x, y, classify=False, seed=self.random_state, evaluations=EVALUATIONS)

    def _predict(self, rows: Rows) -> np.ndarray:
        out = np.full(len(rows), np.nan)
        gradients = np.flatnonzero(_is_gradient(rows))
        if not len(gradients):
            return out
        part = rows.take(gradients)
        forward_us = self.forward_.predict(rows_of(_forward(part), rows.family))
        for key, positions in by_setting(part.frame, part.family):
            if key in self.trees_:
                ratio = self.trees_[key].predict(part.take(positions).columns(_ratio_columns(rows)))
                out[gradients[positions]] = ratio * forward_us[positions]
        return out


def forward_times(rows: Rows, time_us: np.ndarray) -> np.ndarray:
    """Return the measured time (rows,) of each gradient's forward pass, or a forward operator's own time; NaN without
    one."""
    time_of = pd.Series(time_us, index=joined(rows.frame, rows.family.row_key)).groupby(level=0).mean()
    return joined(_forward(rows), rows.family.row_key).map(time_of).to_numpy(dtype=np.float64)


def _ratio_columns(rows: Rows) -> tuple[str, ...]:
    return CONV_RATIO_COLUMNS if rows.family is CONV else RATIO_COLUMNS


def _is_gradient(rows: Rows) -> np.ndarray:
    """Return True (rows,) for gradients whose forward operator belongs to the same family."""
    if rows.family is CONV:
        return (rows.frame["direction"] != "fwd").to_numpy()
    operator, operators = rows.frame["operator"], rows.family.settings["operator"]
    return (operator.str.endswith(SUFFIX) & operator.str.removesuffix(SUFFIX).isin(operators)).to_numpy()


def _forward(rows: Rows) -> pd.DataFrame:
    """Return the rows' problems with the forward operator instead of its gradient."""
    frame = rows.frame
    if rows.family is CONV:
        return frame.assign(direction="fwd")
    forward = frame["operator"].str.removesuffix(SUFFIX)
    return frame.assign(operator=forward.where(_is_gradient(rows), frame["operator"]))
