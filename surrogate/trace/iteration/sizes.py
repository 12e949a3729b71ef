"""Sizes of an operator call in a trace as problems for the predictors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.operators import Addmm, Bmm, EmbeddingBag, Gemm, LayerNorm, Operator, operator
from surrogate.trace.events.tables import Trace
from surrogate.trace.work import Shape

_FLOATS = {
    "float": "fp32", "double": "fp64", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16", "bfloat16": "bf16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """An operator call: tensor shapes (() for what is no tensor), types and scalar inputs ((), where not recorded)."""

    name: str
    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    inputs: tuple[str, ...]
    dtype: str
    math: str

    def tensor(self, place: int) -> Shape:
        """The shape of a tensor argument. Raises `LackingError` where there is none."""
        if place >= len(self.shapes) or not self.shapes[place]:
            raise LackingError(f"shape of argument {place + 1}")
        return self.shapes[place]

    @property
    def largest(self) -> Shape:
        """The largest tensor argument. Raises `LackingError` without one."""
        found = max(self.shapes, key=prod, default=())
        if not found:
            raise LackingError("shapes of its tensors")
        return found


class LackingError(Exception):
    """What the trace does not say of a call."""


def call_of(trace: Trace, row: int, math: str) -> Call:
    """The call in a row of ``trace.ranges``. Raises `LackingError` without shapes or floats."""
    name, shapes = trace.name_of(trace.ranges, row), trace.shapes_of(row)
    if shapes is None:
        raise LackingError("shapes")
    flat = tuple(
        s if isinstance(s, tuple) and all(isinstance(v, int) and v > 0 for v in s) else () for s in shapes
    )
    at, held = int(trace.ranges.types[row]), int(trace.ranges.inputs[row])
    types = trace.types[at] if at >= 0 else ()
    named = [types[p].lower() if p < len(types) else "float" for p, s in enumerate(flat) if s]
    floats = [_FLOATS[one] for one in named if one in _FLOATS]
    if named and not floats:
        raise LackingError(f"rate of elements of type {named[0]}")
    half = next((one for one in ("bf16", "fp16") if one in floats), None)
    dtype = half or (floats[0] if floats else "fp32")
    return Call(
        name,
        flat,
        types,
        trace.inputs[held] if held >= 0 else (),
        dtype,
        math if dtype == "fp32" else "tensor_op",
    )


MAX_STRIDE = 8


@dataclass(frozen=True, slots=True)
class Arguments:
    """Where an operator has its tensors and lists; ``directions`` that it computes; ``around`` has its shapes."""

    directions: tuple[str, ...]
    image: int = 0
    weight: int = 1
    gradient: int | None = None
    padding: int | None = None
    stride: int | None = None
    dilation: int | None = None
    around: str = ""


_WHOLE = "aten::cudnn_convolution_backward"
_GRADIENTS = {"image": 0, "gradient": 1, "weight": 2, "around": _WHOLE}
CONVOLUTIONS: dict[str, Arguments] = {
    **dict.fromkeys(
        ("aten::cudnn_convolution", "aten::miopen_convolution"),
        Arguments(("fwd",), padding=2, stride=3, dilation=4),
    ),
    "aten::cudnn_convolution_backward_input": Arguments(("bwd_data",), **_GRADIENTS),
    "aten::cudnn_convolution_backward_weight": Arguments(("bwd_filter",), **_GRADIENTS),
    "aten::convolution_backward": Arguments(
        ("bwd_data", "bwd_filter"), image=1, weight=2, gradient=0, stride=4, padding=5, dilation=6
    ),
}
"""Innermost operators of a convolution → their arguments, as PyTorch declares them."""


def convolutions(call: Call, at: Arguments, flops: float | None) -> tuple[Conv, ...]:
    """One problem per direction, named by its forward problem. ``flops`` of a forward call tell its output's size.

    Raises `LackingError` where image or filter is missing, or several strides and paddings fit the sizes.
    """
    image, weight = call.tensor(at.image), call.tensor(at.weight)
    if len(image) != 4 or len(weight) != 4:
        raise LackingError("two-dimensional image and filter")
    n, c, h, w = image
    k, per_group, r, s = weight
    if per_group > c or c % per_group:
        raise LackingError("groups of the convolution")
    lists = [_numbers(call, place) for place in (at.stride, at.padding, at.dilation)]
    if all(lists):
        (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w) = (one or (1, 1) for one in lists)
    else:
        outputs = _output_pixels(call, at, weight, n, flops)
        stride_h, pad_h = solved(h, w, r, s, outputs)
        stride_w, pad_w, dilation_h, dilation_w = stride_h, pad_h, 1, 1
    mask = call.inputs[-1].lower().strip("[] ").replace(" ", "").split(",") if call.inputs else []
    wanted = [
        direction
        for place, direction in enumerate(at.directions)
        if len(at.directions) == 1 or place >= len(mask) or mask[place] != "false"
    ]
    return tuple(
        Conv(
            n=n, c=c, h=h, w=w, k=k, r=r, s=s, pad_h=pad_h, pad_w=pad_w, stride_h=stride_h, stride_w=stride_w,
            dilation_h=dilation_h, dilation_w=dilation_w, groups=c // per_group, dtype=call.dtype, math=call.math,
            direction=direction,
        )
        for direction in wanted
    )  # fmt: skip


def solved(h: int, w: int, r: int, s: int, outputs: int) -> tuple[int, int]:
    """(stride, padding), alike both ways and without dilation, that give ``outputs`` pixels; padding < filter.

    Raises `LackingError` unless exactly one pair does (of several strides that leave one row, the least).
    """
    found = {
        pad: stride
        for stride in range(MAX_STRIDE, 0, -1)
        for pad in range(min(r, s))
        if _size(h, r, stride, pad) * _size(w, s, stride, pad) == outputs
    }
    if len(found) != 1:
        raise LackingError("stride and padding of the convolution")
    pad, stride = next(iter(found.items()))
    if outputs > 1 and sum(
        _size(h, r, one, pad) * _size(w, s, one, pad) == outputs for one in range(1, MAX_STRIDE + 1)
    ) != 1:  # fmt: skip
        raise LackingError("stride and padding of the convolution")
    return stride, pad


def _output_pixels(call: Call, at: Arguments, weight: Shape, n: int, flops: float | None) -> int:
    if at.gradient is not None:
        gradient = call.tensor(at.gradient)
        return prod(gradient[2:])
    if flops is None:
        raise LackingError("output of the convolution")
    return round(flops / (2 * n * prod(weight)))


def _size(size: int, filter_size: int, stride: int, pad: int) -> int:
    return max((size + 2 * pad - filter_size) // stride + 1, 0)


def _numbers(call: Call, place: int | None) -> tuple[int, int] | None:
    """A pair of whole numbers among the scalar inputs; one stands for both."""
    text = call.inputs[place] if place is not None and place < len(call.inputs) else ""
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    if not text.startswith("[") or not all(part.isdigit() for part in parts) or len(parts) > 2:
        return None
    return int(parts[0]), int(parts[-1])


Problem = Conv | Operator


def problems(
    trace: Trace, row: int, *, conv_math: str, gemm_math: str, flops: float | None
) -> tuple[Problem, ...]:
    """What the operator in ``row`` computes. ``flops`` are its forward convolution's, where derived.

    Raises `LackingError` where a size is not in the trace or makes no problem.
    """
    name = trace.name_of(trace.ranges, row)
    try:
        if name in CONVOLUTIONS:
            around, halves = row, CONVOLUTIONS[name]
            if halves.around:  # one of its tensors is given by its size alone; the operator around it has all
                around = int(trace.ranges.parent[row])
                if around < 0 or trace.name_of(trace.ranges, around) != halves.around:
                    raise LackingError("shapes of the convolution around it")
            call = call_of(trace, around, conv_math)
            return convolutions(call, halves, flops)
        return (RULES[name](call_of(trace, row, gemm_math)),)
    except InputError as error:
        raise LackingError(f"sizes that make sense ({error})") from None


def _addmm(call: Call) -> Operator:
    left, right = call.tensor(1), call.tensor(2)
    return Addmm(m=left[0], k=left[1], n=right[1], dtype=call.dtype, math=call.math)


def _mm(call: Call) -> Operator:
    left, right = call.tensor(0), call.tensor(1)
    return Gemm(m=left[0], k=left[1], n=right[1], dtype=call.dtype, math=call.math)


def _bmm(call: Call, first: int = 0) -> Operator:
    left, right = call.tensor(first), call.tensor(first + 1)
    return Bmm(batch=left[0], m=left[1], k=left[2], n=right[2], dtype=call.dtype, math=call.math)


def _image(kind: str, place: int | None = 0) -> Callable[[Call], Operator]:
    """A tensor n × c × h × w; of other ranks, n and c first, the rest in h."""

    def rule(call: Call) -> Operator:
        shape = call.largest if place is None else call.tensor(place)
        n, c, h, w = _four(shape)
        return operator(kind, n=n, c=c, h=h, w=w, dtype=call.dtype)

    return rule


def _binary(kind: str) -> Callable[[Call], Operator]:
    """Two tensors of one shape, a tensor and one value per channel (``bias``), or a tensor and a number."""

    def rule(call: Call) -> Operator:
        shape, other = call.largest, call.shapes[1] if len(call.shapes) > 1 else ()
        n, c, h, w = _four(shape)
        whole = prod(other) == prod(shape) and bool(other)
        chosen = (
            kind if whole else "bias" if other and prod(other) > 1 and kind == "add" else f"{kind}_scalar"
        )
        return operator(chosen, n=n, c=c, h=h, w=w, dtype=call.dtype)

    return rule


def _rows(kind: str, place: int = 0) -> Callable[[Call], Operator]:
    """Reduced along the last dimension; every row before it is independent."""

    def rule(call: Call) -> Operator:
        shape = call.tensor(place)
        return operator(kind, n=prod(shape[:-1]), c=shape[-1], dtype=call.dtype)

    return rule


def _softmax(kind: str) -> Callable[[Call], Operator]:
    """Along the last dimension unless the inputs name another."""

    def rule(call: Call) -> Operator:
        shape = call.tensor(0)
        at = 2 if kind.endswith("backward") else 1
        text = call.inputs[at] if len(call.inputs) > at else ""
        if len(shape) > 2 and not text.lstrip("-").isdigit():
            raise LackingError("the dimension that it reduces")
        along = int(text) % len(shape) if text.lstrip("-").isdigit() else len(shape) - 1
        return operator(kind, n=prod(shape) // shape[along], c=shape[along], dtype=call.dtype)

    return rule


def _layer_norm(call: Call) -> Operator:
    shape, weight = call.tensor(0), call.tensor(2)
    return LayerNorm(n=prod(shape) // prod(weight), c=prod(weight), dtype=call.dtype)


def _pool(kind: str, image: int, first: int) -> Callable[[Call], Operator]:
    """Window, stride and padding are values of scalar arguments, which not every trace records."""

    def rule(call: Call) -> Operator:
        n, c, h, w = _four(call.tensor(image))
        pairs = [_pair(call, first + step) for step in range(3)]
        (window, window_w), (stride, stride_w), (pad, pad_w) = pairs
        return operator(
            kind, n=n, c=c, h=h, w=w, window=window, window_w=window_w, stride=stride, stride_w=stride_w, pad=pad,
            pad_w=pad_w, dtype=call.dtype,
        )  # fmt: skip

    return rule


def _pair(call: Call, place: int) -> tuple[int, int]:
    text = call.inputs[place].strip("[] ") if place < len(call.inputs) else ""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        raise LackingError("window, stride and padding")
    return int(parts[0]), int(parts[-1])


def _embedding_bag(call: Call) -> Operator:
    """Weight (rows × dim), indices, offsets (a bag each); bags of one size only."""
    weight, indices, offsets = call.tensor(0), call.tensor(1), call.tensor(2)
    if len(weight) != 2 or indices[0] % offsets[0]:
        raise LackingError("size of a bag")
    bag = indices[0] // offsets[0]
    return EmbeddingBag(batch=offsets[0], rows=weight[0], bag=bag, dim=weight[1], dtype=call.dtype)


def _four(shape: Sequence[int]) -> tuple[int, int, int, int]:
    n, c, *rest = (*shape, 1) if len(shape) == 1 else shape
    return (n, c, rest[0], rest[1]) if len(rest) == 2 else (n, c, prod(rest), 1)


UNARY = ("sigmoid", "tanh", "gelu", "silu", "exp", "sqrt")
RULES: dict[str, Callable[[Call], Operator]] = {
    "aten::addmm": _addmm,
    "aten::mm": _mm,
    "aten::bmm": _bmm,
    "aten::baddbmm": lambda call: _bmm(call, 1),
    "aten::_embedding_bag": _embedding_bag,
    **dict.fromkeys(("aten::relu", "aten::relu_", "aten::clamp_min", "aten::clamp_min_"), _image("relu")),
    **{f"aten::{name}{end}": _image(name) for name in UNARY for end in ("", "_")},
    **{f"aten::{name}{end}": _binary(name) for name in ("add", "sub", "mul", "div") for end in ("", "_")},
    "aten::threshold_backward": _image("relu_backward"),
    "aten::sigmoid_backward": _image("sigmoid_backward"),
    "aten::tanh_backward": _image("tanh_backward"),
    "aten::gelu_backward": _image("gelu_backward"),
    "aten::native_dropout": _image("dropout"),
    "aten::native_dropout_backward": _image("dropout_backward"),
    **dict.fromkeys(("aten::fill_", "aten::zero_"), _image("fill")),
    "aten::copy_": _image("copy"),
    **dict.fromkeys(("aten::_softmax", "aten::_log_softmax"), _softmax("softmax")),
    **dict.fromkeys(
        ("aten::_softmax_backward_data", "aten::_log_softmax_backward_data"), _softmax("softmax_backward")
    ),
    **dict.fromkeys(("aten::cudnn_batch_norm", "aten::native_batch_norm"), _image("batch_norm")),
    **dict.fromkeys(
        ("aten::cudnn_batch_norm_backward", "aten::native_batch_norm_backward"), _image("batch_norm_backward")
    ),
    "aten::native_layer_norm": _layer_norm,
    "aten::max_pool2d_with_indices": _pool("max_pool", 0, 1),
    "aten::avg_pool2d": _pool("avg_pool", 0, 1),
    "aten::max_pool2d_with_indices_backward": _pool("max_pool_backward", 1, 2),
    "aten::avg_pool2d_backward": _pool("avg_pool_backward", 1, 2),
}  # fmt: skip
"""Operator → its problem; addmm, bmm and embeddings as in Lin et al. (HiPC 2022)."""


def known_names(trace: Trace) -> np.ndarray:
    """Which names of the trace have a rule."""
    return np.array([name in RULES or name in CONVOLUTIONS for name in trace.names] or [False])


def rebatched(problem: Problem, old: int, new: int, *, in_optimizer: bool) -> Problem:
    """The problem with batch ``new`` where it had ``old``; what has no such size, such as a weight's update, stays.

    Raises `LackingError` where more than one size may be the batch, or a multiple of it.
    """
    if old == new or in_optimizer:
        return problem
    if isinstance(problem, Conv):
        if problem.n % old:
            raise LackingError("batch dimension")
        return replace(problem, n=problem.n // old * new)
    names = ("batch", "m", "k", "n") if isinstance(problem, Gemm) else (problem.BATCH,)
    equal = [name for name in names if problem.sizes.get(name) == old]
    if len(equal) == 1:
        return replace(problem, **{equal[0]: new})
    multiples = [name for name in names if problem.sizes.get(name, 1) % old == 0]
    if equal or multiples:
        raise LackingError("batch dimension")
    return problem
