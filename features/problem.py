"""What a formula may ask of a convolution problem: one `Conv`, or columns of many (`ConvColumns`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

SIZE_COLUMNS = (
    "n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups",
)  # fmt: skip
"""The problem columns of a dataset, in order: input n, c, h, w; output channels k; filter r × s; and so on."""

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
DTYPES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Element type → bytes per element."""
MATHS = ("fma", "default", "tensor_op", "tensor_op_allow_conversion")
"""cudnnMathType_t, by the field's short names; ``default`` may use TF32 for fp32 data on compute capability ≥ 8.0."""
LAYOUTS = ("NCHW", "NHWC")


def may_use_tensor_cores(dtype: str, math: str) -> bool:
    """True where the math type lets matrix units run (fp32 data: only TF32, or AMD's fp32 units, under ``default``)."""
    return math != "fma" and dtype != "fp64" and not (dtype == "fp32" and math == "tensor_op")


class Problem(Protocol):
    """A convolution problem as the formulas see it: every attribute is a number, or an array of one common length."""

    @property
    def n(self) -> Any:
        """Batch."""

    @property
    def c(self) -> Any:
        """Input channels."""

    @property
    def h(self) -> Any:
        """Input height."""

    @property
    def w(self) -> Any:
        """Input width."""

    @property
    def k(self) -> Any:
        """Output channels."""

    @property
    def r(self) -> Any:
        """Filter height."""

    @property
    def s(self) -> Any:
        """Filter width."""

    @property
    def pad_h(self) -> Any:
        """Zeros above and below."""

    @property
    def pad_w(self) -> Any:
        """Zeros left and right."""

    @property
    def stride_h(self) -> Any:
        """Vertical stride."""

    @property
    def stride_w(self) -> Any:
        """Horizontal stride."""

    @property
    def dilation_h(self) -> Any:
        """Vertical dilation."""

    @property
    def dilation_w(self) -> Any:
        """Horizontal dilation."""

    @property
    def groups(self) -> Any:
        """Groups of channels."""

    @property
    def itemsize(self) -> Any:
        """Bytes per element."""

    @property
    def is_bwd_data(self) -> Any:
        """True where the input's gradient is computed."""

    @property
    def is_bwd_filter(self) -> Any:
        """True where the filter's gradient is computed."""

    @property
    def is_nhwc(self) -> Any:
        """True where the channels lie innermost."""

    @property
    def uses_tensor_cores(self) -> Any:
        """True where the math type lets matrix units run."""


@dataclass(frozen=True, slots=True)
class ConvColumns:
    """Columns of many problems: int64 sizes of one length, and flags derived from the text columns.

    Sizes are widened to int64 before any product, so narrow integer columns cannot overflow.
    """

    n: np.ndarray
    c: np.ndarray
    h: np.ndarray
    w: np.ndarray
    k: np.ndarray
    r: np.ndarray
    s: np.ndarray
    pad_h: np.ndarray
    pad_w: np.ndarray
    stride_h: np.ndarray
    stride_w: np.ndarray
    dilation_h: np.ndarray
    dilation_w: np.ndarray
    groups: np.ndarray
    itemsize: np.ndarray
    is_bwd_data: np.ndarray
    is_bwd_filter: np.ndarray
    is_nhwc: np.ndarray
    uses_tensor_cores: np.ndarray

    @classmethod
    def of(
        cls,
        sizes: Sequence[Any],
        *,
        dtype: Any = "fp32",
        math: Any = "fma",
        layout: Any = "NCHW",
        direction: Any = "fwd",
    ) -> "ConvColumns":
        """Columns from 14 sequences of sizes in the order of `SIZE_COLUMNS` and four text columns (or constants)."""
        columns = [np.asarray(size).astype(np.int64) for size in sizes]
        length = len(columns[0])

        def text(values: Any) -> np.ndarray:
            return np.broadcast_to(np.asarray(values, dtype=object), (length,))

        dtypes, directions, maths, layouts = text(dtype), text(direction), text(math), text(layout)
        tensor_cores = np.zeros(length, dtype=bool)
        for pair in {*zip(dtypes.tolist(), maths.tolist(), strict=True)}:
            if may_use_tensor_cores(*pair):
                tensor_cores |= (dtypes == pair[0]) & (maths == pair[1])
        itemsize = np.full(length, 4, dtype=np.int64)
        for name, size in DTYPES.items():
            itemsize[dtypes == name] = size
        return cls(
            *columns,
            itemsize=itemsize,
            is_bwd_data=directions == "bwd_data",
            is_bwd_filter=directions == "bwd_filter",
            is_nhwc=layouts == "NHWC",
            uses_tensor_cores=tensor_cores,
        )

    def __len__(self) -> int:
        return len(self.n)
