"""The operands of an operator call as a trace gives them: shapes, element sizes, and the output's shape by detour."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.trace.events.tables import Trace
from surrogate.trace.work import RULES, Operands, Shape, flops_and_bytes

_BYTES = {
    "double": 8, "float": 4, "c10::half": 2, "half": 2, "c10::bfloat16": 2, "bfloat16": 2, "long int": 8, "long": 8,
    "int": 4, "short int": 2, "short": 2, "signed char": 1, "unsigned char": 1, "char": 1, "bool": 1,
}  # fmt: skip
_FORWARD = ("aten::cudnn_convolution", "aten::miopen_convolution")
_HALVES = ("aten::cudnn_convolution_backward_input", "aten::cudnn_convolution_backward_weight")
_WHOLE = "aten::cudnn_convolution_backward"
_GRADIENT = {_WHOLE: 1, "aten::convolution_backward": 0}
_LOOK_AHEAD = 12


@dataclass(frozen=True, slots=True)
class Work:
    """What one operator call computes and moves; ``row`` in ``trace.ranges``, ``dtype`` as in `features.problem`."""

    row: int
    flops: float
    dram_bytes: float
    dtype: str


class WorkFinder:
    """The work of the operators of one trace; equal calls are derived once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._known = np.array([name in RULES for name in trace.names] or [False])
        self._gradients = _gradient_shapes(trace)
        self._cache: dict[tuple[Any, ...], tuple[float, float, str] | None] = {}

    def of(self, row: int) -> Work | None:
        """The work of the innermost operator with a rule at or around ``row``; None where it cannot be derived."""
        ranges = self.trace.ranges
        while row >= 0 and not self._known[ranges.name[row]]:
            row = int(ranges.parent[row])
        if row < 0:
            return None
        operands = self._operands(row)
        if operands is None:
            return None
        key = (operands.operator, operands.shapes, operands.element_bytes, operands.output, operands.inputs)
        if key not in self._cache:
            found = flops_and_bytes(operands)
            self._cache[key] = None if found is None else (*found, self._dtype(row))
        found = self._cache[key]
        return None if found is None else Work(row, *found)

    def _operands(self, row: int) -> Operands | None:
        trace, source = self.trace, row
        name = trace.name_of(trace.ranges, row)
        if (
            name in _HALVES
        ):  # one of their tensors is given by its size alone; the operator around them has all
            source = int(trace.ranges.parent[row])
            if source < 0 or trace.name_of(trace.ranges, source) != _WHOLE:
                return None
        shapes = trace.shapes_of(source)
        if shapes is None:
            return None
        types = self._types(source)
        flat = tuple(s if _is_shape(s) else () for s in shapes)
        sizes = tuple(_BYTES.get(types[p].lower(), 0) if p < len(types) else 4 for p in range(len(flat)))
        if any(shape and not size for shape, size in zip(flat, sizes, strict=True)):
            return None  # a tensor of unknown element size
        at = int(trace.ranges.inputs[row])
        inputs = trace.inputs[at] if at >= 0 else ()
        return Operands(name, flat, sizes, self._output(row, flat, bool(inputs)), inputs)

    def _output(self, row: int, shapes: Sequence[Shape], computable: bool) -> Shape | None:
        """Recorded; or, of a convolution, its gradient's shape in the backward pass; or the next operator's input."""
        ranges, trace = self.trace.ranges, self.trace
        at = int(ranges.outputs[row])
        if at >= 0:
            first = trace.shapes[at][0] if trace.shapes[at] else ()
            return first if first and _is_shape(first) else None
        if computable or trace.name_of(ranges, row) not in _FORWARD or len(shapes) < 2:
            return None
        image, weight = shapes[0], shapes[1]
        wanted = (image[:1], weight[:1])
        around = row
        while around >= 0:
            found = self._gradients.get(int(ranges.sequence[around]))
            if found and (found[:1], found[1:2]) == wanted:
                return found
            around = int(ranges.parent[around])
        thread, end = ranges.thread[row], ranges.end_ns[row]
        for later in range(row + 1, min(row + 1 + _LOOK_AHEAD, len(ranges))):
            if ranges.thread[later] != thread or ranges.start_ns[later] < end:
                continue
            following = trace.shapes_of(later)
            first = following[0] if following else ()
            if _is_shape(first) and len(first) == len(image) and (first[:1], first[1:2]) == wanted:
                return first
        return None

    def _types(self, row: int) -> tuple[str, ...]:
        at = int(self.trace.ranges.types[row])
        return self.trace.types[at] if at >= 0 else ()

    def _dtype(self, row: int) -> str:
        """The floating type of the tensor arguments, the narrowest: a mixed product runs at its rate."""
        types = [
            t.lower() for t, s in zip(self._types(row), self.trace.shapes_of(row) or (), strict=False) if s
        ]
        if any("bfloat16" in t for t in types):
            return "bf16"
        if any("half" in t for t in types):
            return "fp16"
        return "fp64" if "double" in types else "fp32"


def _gradient_shapes(trace: Trace) -> dict[int, Shape]:
    """Autograd sequence number → shape of the gradient that its backward convolution got: the forward's output."""
    ranges = trace.ranges
    place = np.array([_GRADIENT.get(name, -1) for name in trace.names] or [-1])[ranges.name]
    found: dict[int, Shape] = {}
    for row in np.flatnonzero(place >= 0).tolist():
        shapes, around = trace.shapes_of(row), row
        while around >= 0 and ranges.sequence[around] < 0:
            around = int(ranges.parent[around])
        if around >= 0 and shapes is not None and len(shapes) > place[row] and _is_shape(shapes[place[row]]):
            found[int(ranges.sequence[around])] = shapes[place[row]]
    return found


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, int) and v >= 0 for v in value)
