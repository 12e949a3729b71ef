"""FLOPs and least DRAM traffic of operators by their shapes; what cannot be derived stays unknown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from surrogate.trace.events.tables import Trace

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operands:
    """What is known of an operator call: its tensor arguments and its output.

    ``shapes`` holds () for an argument that is no tensor, ``element_bytes`` fits it; ``output`` is None where
    unknown; ``inputs`` are the values of scalar arguments as text, () where unknown.
    """

    operator: str
    shapes: tuple[Shape, ...]
    element_bytes: tuple[int, ...]
    output: Shape | None = None
    inputs: tuple[str, ...] = ()

    def size(self, *places: int) -> float:
        """Bytes of the arguments in ``places``."""
        return float(sum(prod(self.shapes[p]) * self.element_bytes[p] for p in places if self.shapes[p]))


Rule = Callable[[Operands], tuple[float, float] | None]


def flops_and_bytes(operands: Operands) -> tuple[float, float] | None:
    """(FLOPs, DRAM bytes) of one call; None where no rule exists or a size is missing."""
    rule = RULES.get(operands.operator)
    try:
        found = rule(operands) if rule is not None else None
    except (IndexError, ValueError):
        return None  # fewer arguments than this operator has
    return found if found is not None and found[1] > 0 else None


def _convolution(o: Operands) -> tuple[float, float] | None:
    """Forward: input, weight; the output as recorded, or from padding, stride and dilation."""
    image, weight = o.shapes[0], o.shapes[1]
    output = o.output or _output_shape(image, weight, o)
    if output is None or not len(image) == len(weight) == len(output):
        return None
    return 2.0 * prod(output) * prod(weight[1:]), o.size(0, 1) + prod(output) * o.element_bytes[0]


def _gradient(o: Operands) -> tuple[float, float] | None:
    """One backward product of a convolution: input, gradient of the output, weight; each read or written once."""
    image, gradient, weight = o.shapes[:3]
    if not len(image) == len(gradient) == len(weight) >= 3:
        return None
    return 2.0 * prod(gradient) * prod(weight[1:]), o.size(0, 1, 2)


def _both_gradients(o: Operands) -> tuple[float, float] | None:
    """``convolution_backward``: gradient, input, weight; both products unless the output mask leaves one out."""
    gradient, image, weight = o.shapes[:3]
    if not len(image) == len(gradient) == len(weight) >= 3:
        return None
    mask = o.inputs[-1].lower().strip("[] ").replace(" ", "").split(",")[:2] if o.inputs else []
    products = 2 - mask.count("false")
    return 2.0 * products * prod(gradient) * prod(weight[1:]), products * o.size(0, 1, 2)


def _output_shape(image: Shape, weight: Shape, o: Operands) -> Shape | None:
    """A 2-D convolution's output; cuDNN's operators list padding before stride, the general ones after it."""
    lists = [found for text in o.inputs if (found := _numbers(text)) is not None]
    if len(image) != 4 or len(weight) != 4 or len(lists) < 3:
        return None
    pairs = [pair * 2 if len(pair) == 1 else pair for pair in lists[:3]]
    padding, stride, dilation = (
        pairs if "cudnn" in o.operator or "miopen" in o.operator else (pairs[1], pairs[0], pairs[2])
    )
    if min(map(len, pairs)) < 2 or min(*stride, *dilation) < 1:
        return None
    sides = [
        (image[2 + i] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
        for i in (0, 1)
    ]
    return (image[0], weight[0], *sides) if min(sides) > 0 else None


def _numbers(text: str) -> tuple[int, ...] | None:
    parts = text.strip("[] ").split(",") if text.startswith("[") else []
    try:
        return tuple(int(part) for part in parts) or None
    except ValueError:
        return None


def _product(left: int, right: int, *, batched: bool = False) -> Rule:
    def rule(o: Operands) -> tuple[float, float] | None:
        a, b = o.shapes[left], o.shapes[right]
        if len(a) != len(b) or len(a) != (3 if batched else 2) or a[-1] != b[-2]:
            return None
        output = (*a[:-1], b[-1])
        return 2.0 * prod(output) * a[-1], o.size(left, right) + prod(output) * o.element_bytes[left]

    return rule


def _linear(o: Operands) -> tuple[float, float] | None:
    x, weight = o.shapes[0], o.shapes[1]
    if len(weight) != 2 or not x or x[-1] != weight[1]:
        return None
    output = (*x[:-1], weight[0])
    return 2.0 * prod(output) * x[-1], o.size(0, 1) + prod(output) * o.element_bytes[0]


def _pool_backward(o: Operands) -> tuple[float, float] | None:
    """Gradient and indices read, the gradient of the input (as large as the input) written."""
    return float(prod(o.shapes[0])), o.size(0, len(o.shapes) - 1) + o.size(1)


def _pointwise(flops: float, writes: int = 1, reads: tuple[int, ...] | None = None) -> Rule:
    """``flops`` per element of the largest argument; every argument (or ``reads``) once, ``writes`` outputs."""

    def rule(o: Operands) -> tuple[float, float] | None:
        sizes = [prod(s) for s in o.shapes if s]
        if not sizes:
            return None
        largest = max(range(len(o.shapes)), key=lambda p: prod(o.shapes[p]) if o.shapes[p] else 0)
        read = o.size(*(range(len(o.shapes)) if reads is None else reads))
        return flops * max(sizes), read + writes * prod(o.shapes[largest]) * o.element_bytes[largest]

    return rule


_IN_PLACE_UNARY = _pointwise(1.0, reads=(0,))
RULES: dict[str, Rule] = {
    "aten::cudnn_convolution": _convolution,
    "aten::miopen_convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution": _convolution,
    "aten::conv2d": _convolution,
    "aten::cudnn_convolution_backward_input": _gradient,
    "aten::cudnn_convolution_backward_weight": _gradient,
    "aten::convolution_backward": _both_gradients,
    "aten::mm": _product(0, 1),
    "aten::addmm": _product(1, 2),
    "aten::bmm": _product(0, 1, batched=True),
    "aten::baddbmm": _product(1, 2, batched=True),
    "aten::linear": _linear,
    **dict.fromkeys(("aten::relu", "aten::relu_", "aten::clamp_min", "aten::clamp_min_"), _IN_PLACE_UNARY),
    **dict.fromkeys(("aten::sqrt", "aten::sqrt_", "aten::neg", "aten::rsqrt", "aten::abs"), _IN_PLACE_UNARY),
    **dict.fromkeys(("aten::add", "aten::sub", "aten::mul", "aten::div", "aten::maximum"), _pointwise(1.0)),
    **dict.fromkeys(
        ("aten::threshold_backward", "aten::where", "aten::native_dropout_backward"), _pointwise(1.0)
    ),
    **dict.fromkeys(("aten::add_", "aten::sub_", "aten::mul_", "aten::div_"), _pointwise(2.0)),
    **dict.fromkeys(("aten::addcmul_", "aten::addcdiv_", "aten::addcmul", "aten::addcdiv"), _pointwise(3.0)),
    **dict.fromkeys(("aten::fill_", "aten::zero_"), _pointwise(0.0, reads=())),
    "aten::copy_": _pointwise(0.0, reads=(1,)),
    **dict.fromkeys(("aten::sigmoid", "aten::silu"), _pointwise(4.0)),
    "aten::max_pool2d_with_indices_backward": _pool_backward,
    "aten::tanh": _pointwise(180.0),
    "aten::gelu": _pointwise(175.0),
    **dict.fromkeys(("aten::_softmax", "aten::_log_softmax"), _pointwise(174.0)),
    **dict.fromkeys(
        ("aten::cudnn_batch_norm", "aten::native_batch_norm", "aten::native_layer_norm"), _pointwise(4.0)
    ),
    **dict.fromkeys(("aten::cudnn_batch_norm_backward", "aten::native_batch_norm_backward"), _pointwise(8.0)),
    **dict.fromkeys(("aten::sum", "aten::mean"), _pointwise(1.0, writes=0)),
}
"""Operator → (FLOPs, bytes). Per element: relu, add, mul 1, sigmoid 4, softmax 174, gelu 175, tanh 180 (Lin et al.)."""


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
