"""The family of recurrent layers (LSTM, GRU and simple ones), if a library runs all time steps in one call."""

from typing import Annotated, Any, ClassVar

from .. import roofline
from ..elementwise import Number, ceil_div, log2, maximum
from ..gpu import Gpu
from ..problem import INPUT, WEIGHT, Gradients, Size
from ..roofline import Machine
from .gemm import Gemm
from .operator import Operator, register_operator
from .operator_family import FamilyDeclaration

STEP_US = 9.5
"""Usual minimum time in µs of a time step: a product and a cell, for which the next step waits.

Source: KernelBench's LSTM of 3,072 steps and its bidirectional GRU of 6,144 steps. It is the median over 12 boards; a
step takes 5.5 to 38 µs.
"""


@register_operator("recurrent:steps3batch2inputs4hidden5rows20", flops=2160, dram_bytes=1896, blocks=3)
class Recurrent(Operator):
    """One layer in one direction over ``steps``.

    The product of the inputs covers all steps at once. Then each step multiplies the state by the weights and computes
    the cell. ``rows`` are the rows of the weights: gates × cells, with 4 gates for an LSTM, 3 for a GRU, 1 for a simple
    layer. ``hidden`` is the width of the state; with a projection it is smaller than the number of cells.
    """

    FAMILY: ClassVar[str] = "recurrent"
    BATCH: ClassVar[str] = "batch"
    MULTIPLIES: ClassVar[bool] = True
    MIN_SHARE: ClassVar[float] = 0.55

    steps: Annotated[int, Size("time steps, one after another", per_doubling=1.0)]
    batch: Annotated[int, Size("sequences")]
    inputs: Annotated[int, Size("values of a step's input")]
    hidden: Annotated[int, Size("values of the state")]
    rows: Annotated[int, Size("rows of the weights: gates × cells")]

    @property
    def flops(self) -> Number:
        """FLOPs of both products over all steps."""
        return 2 * self.steps * self.batch * self.rows * (self.inputs + self.hidden)

    @property
    def dram_bytes(self) -> Number:
        """Bytes of all accesses.

        Weights and inputs are read once, states are written once, and the inputs of gates are written and read.
        """
        step_values = self.steps * self.batch * (self.inputs + self.hidden + 2 * self.rows)
        return self.itemsize * (self.weights + step_values)

    @property
    def weights(self) -> int:
        """Elements of both matrices, without biases."""
        return self.rows * (self.inputs + self.hidden)

    @property
    def multiply_adds(self) -> int:
        """Half of `flops`."""
        return self.flops // 2

    @property
    def blocks(self) -> Number:
        """One block for 32 rows of a step's product, over all steps."""
        return self.steps * ceil_div(self.rows, 32)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Return the time in µs of the inputs' product, plus the steps: products with weights from DRAM, at least
        `STEP_US`."""
        peak = self.peak_tflops(gpu, self.dtype, self.math)
        input_flops = 2 * self.steps * self.batch * self.rows * self.inputs
        inputs_us = roofline.roofline_us(input_flops, self.dram_bytes, peak, gpu.dram_gbs)
        state_weights = self.rows * self.hidden
        state_flops = 2 * self.batch * state_weights
        step_us = roofline.roofline_us(state_flops, self.itemsize * state_weights, peak, gpu.dram_gbs)
        return inputs_us + self.steps * maximum(step_us, STEP_US)

    def gradients(self, of: str) -> Gradients:
        """Return the gradient: for the input the same steps backwards; for the weights one product per matrix, over all
        steps."""
        if of == INPUT:
            return (("backward", self),)
        if of != WEIGHT:
            return ()
        widths = {"inputs": self.inputs, "state": self.hidden}
        fixed: dict[str, Any] = {"k": self.steps * self.batch, "dtype": self.dtype, "math": self.math}
        return tuple((f"grad_{name}", Gemm(m=self.rows, n=width, **fixed)) for name, width in widths.items())


def columns(op: Any, m: Machine) -> tuple[Number, ...]:
    """Return the family's columns: its sizes."""
    return log2(op.steps), log2(op.batch), log2(op.inputs), log2(op.hidden), log2(op.rows)


RECURRENT = FamilyDeclaration.of("recurrent", columns)
