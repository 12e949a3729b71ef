"""FLOPs and least DRAM traffic of operators by their shapes; what cannot be derived stays unknown.

Convolutions and matrix products as counted everywhere (2 per multiply-add); for the rest one pass over each input
and output, which is the least that memory must move.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

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
