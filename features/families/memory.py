"""Columns of the families that memory traffic dominates: one set, whatever an operator passes over."""

from functools import partial

from ..elementwise import Number, log2, maximum
from ..machine import Machine
from .operator import MemoryBound
from .operator_family import Declaration

IMAGE_NAMES = ("log2_n", "log2_c", "log2_h", "log2_w")
MEMORY_NAMES = (
    *IMAGE_NAMES, "log2_elements", "log2_window", "log2_window_w", "log2_stride", "pad", "log2_outputs_per_input",
    "c_remainder_4", "elements_remainder_4", "c_padding", "log2_tables", "log2_bag", "log2_rows",
)  # fmt: skip


def memory_columns(op: MemoryBound, m: Machine) -> tuple[Number, ...]:
    """`MEMORY_NAMES` of an operator, from its `Extents`."""
    e = op.extents
    outputs = e.elements if e.outputs is None else e.outputs
    return (
        log2(e.n), log2(e.c), log2(e.h), log2(e.w), log2(e.elements),
        log2(e.window), log2(e.window_w), log2(e.stride), e.pad,
        log2(maximum(outputs, 1) / e.elements), e.c % 4, e.elements % 4,
        2.0 ** -((-log2(e.c)) // 1) / e.c,  # what a power of two above c would waste
        log2(e.tables), log2(e.bag), log2(e.rows),
    )  # fmt: skip


memory_family = partial(Declaration, columns=memory_columns, column_names=MEMORY_NAMES)
"""The declaration of a family with these columns; it takes the other fields of `Declaration`."""
