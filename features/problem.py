"""What a formula may ask of a convolution problem: one `Conv`, or columns of many (`ConvColumns`)."""

import tomllib
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SIZE_COLUMNS = (
    "n",
    "c",
    "h",
    "w",
    "k",
    "r",
    "s",
    "pad_h",
    "pad_w",
    "stride_h",
    "stride_w",
    "dilation_h",
    "dilation_w",
    "groups",
)
"""The problem columns of a dataset, in order: input n, c, h, w; output channels k; filter r × s; and so on."""

FLAGS = ("itemsize", "is_bwd_data", "is_bwd_filter", "is_nhwc", "uses_tensor_cores")
"""What else of a problem the formulas read: bytes of an element, and booleans."""
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
DTYPES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Element type whose values all take the same bytes → bytes per element."""
HALF = ("fp16", "bf16")
"""Half precision."""


class Element(NamedTuple):
    """What values of an arithmetic cost: bytes of an activation, of a weight and of an output value, scales included.

    ``unit`` names the tensor-core peak that its products reach: ``bf16``, ``fp8``, ``fp4`` or ``int8``; empty for the
    element types of `DTYPES`, which `surrogate.features.roofline` treats one by one.
    """

    activation_bytes: float
    weight_bytes: float
    output_bytes: float
    unit: str = ""


_TABLE = tomllib.loads(Path(__file__).with_name("problem.toml").read_text(encoding="utf-8"))
QUANTISED: dict[str, Element] = {name: Element(*row) for name, row in _TABLE["quantised"].items()}
"""Arithmetic on quantised values: E4M3 with one scale per tensor (fp8); with an fp32 scale per 128 activations and per
128 × 128 weights (fp8_block, as DeepSeek-V3 does); 4 bits with an fp8 scale per 16 (nvfp4); weights alone quantised
(int8_wo, int4_wo, w4a16_mxfp4: products run at bf16's peak); SmoothQuant's W8A8 (int8_sq); 4-bit weights with 8-bit
activations, whose products run at fp8's peak. Outputs are bf16 or fp16."""
ELEMENTS: dict[str, Element] = {**{name: Element(size, size, size) for name, size in DTYPES.items()}, **QUANTISED}
"""Every element type that an operator may name."""
DTYPE_ALIASES: dict[str, str] = _TABLE["dtype_aliases"]
"""What people call an element type, such as PyTorch's names of them → its name here."""
MATHS = ("fma", "default", "tensor_op", "tensor_op_allow_conversion")
"""cudnnMathType_t, by the field's short names; ``default`` may use TF32 for fp32 data on compute capability ≥ 8.0."""
LAYOUTS = ("NCHW", "NHWC")
LAYOUT_ALIASES = {"channels_last": "NHWC", "nhwc": "NHWC", "nchw": "NCHW"}


def setting(name: str, value: object) -> str:
    """A setting's value by its name here, whatever people call it: ``torch.float16``, ``half``, ``channels_last``."""
    text = str(value).removeprefix("torch.")
    aliases = DTYPE_ALIASES if name.endswith("dtype") else LAYOUT_ALIASES if name == "layout" else {}
    return aliases.get(text.lower(), text)


def may_use_tensor_cores(dtype: str, math: str) -> bool:
    """True where the math type lets matrix units run (fp32 data: only TF32, or AMD's fp32 units, under ``default``).

    Quantised values have no other arithmetic.
    """
    if dtype in QUANTISED:
        return True
    return math != "fma" and dtype != "fp64" and not (dtype == "fp32" and math == "tensor_op")


Problem = Any
"""What every formula of a convolution reads: a `Conv` of numbers, `ConvColumns` of arrays, or either with its sizes.

``n`` … ``groups`` are the sizes of `SIZE_COLUMNS`; ``itemsize`` is in bytes; flags are booleans.
"""


class ConvColumns(namedtuple("ConvColumns", (*SIZE_COLUMNS, *FLAGS))):
    """Columns of many problems: int64 sizes of one length, and flags derived from the text columns.

    Sizes are widened to int64 before any product, so narrow integer columns cannot overflow.
    """

    __slots__ = ()

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
        flags = itemsize, directions == "bwd_data", directions == "bwd_filter", layouts == "NHWC", tensor_cores
        return cls(*columns, *flags)
