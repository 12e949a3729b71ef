"""The trained parameters of a model as its trace shows them: size, when the gradient is ready, in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from surrogate.trace.events.iterations import Iteration
from surrogate.trace.events.tables import Trace

_ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor: its elements, and the time (ns) at which the host has launched everything that makes its gradient."""

    elements: int
    ready_ns: int

    @property
    def size_bytes(self) -> float:
        """In fp32."""
        return 4.0 * self.elements


def parameters_of(trace: Trace, iteration: int, found: Sequence[Iteration]) -> list[Parameter]:
    """The parameters in the order in which one iteration's backward pass finishes them; [] without shapes.

    Autograd accumulates each gradient in a range of its own that carries the parameter's shape.
    """
    if not 0 <= iteration < len(found):
        return []
    ranges, one = trace.ranges, found[iteration]
    wanted = np.array([name == _ACCUMULATE for name in trace.names] or [False])
    rows = wanted[ranges.name] & (ranges.start_ns >= one.start_ns) & (ranges.start_ns < one.end_ns)
    parameters = []
    for row in np.flatnonzero(rows).tolist():
        shapes = trace.shapes_of(row)
        shape = shapes[0] if shapes else ()
        if isinstance(shape, tuple) and shape and all(isinstance(side, int) and side > 0 for side in shape):
            parameters.append(Parameter(prod(shape), int(ranges.start_ns[row])))
    return parameters
