"""Rules of convolutions of any rank, of transposed convolutions, and of their gradients.

If a trace did not record a window, it is solved from the sizes of image, filter and output.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from surrogate.features import INPUT, WEIGHT, Conv
from surrogate.features.families import NetworkProblem
from surrogate.features.families.rowwise import BiasBackward
from surrogate.network import operators
from surrogate.network.aten_call import PRODUCT_TYPES, Call, Shape, Tensor, UnsupportedError, require
from surrogate.network.network import PART_3D, Layer

Layers = Iterator[Layer]


def solve_stride_and_padding(
    size: int, extent: int, output: int, *, stride: int | None = None, pad: int | None = None
) -> tuple[int, int]:
    """Return (stride, padding) of one axis of a convolution from ``size`` to ``output`` elements.

    ``extent`` is the filter's extent with dilation; the padding is smaller. A given ``stride`` or ``pad`` is kept. If
    there is a single output, all possible strides are the same problem, and the smallest is returned. Raises
    `UnsupportedError` unless exactly one pair fits the sizes.
    """
    solutions: dict[int, range] = {}  # padding → strides
    for padding in range(extent) if pad is None else (pad,):
        span = size + 2 * padding - extent  # how far the filter moves
        if span < 0:
            continue
        # Strides with ⌊span / stride⌋ + 1 = output; over a single output all that are longer than the span.
        strides = range(span // output + 1, span // (output - 1) + 1) if output > 1 else range(span + 1, span + 2)
        if stride is not None:
            strides = range(stride, stride + 1) if span // stride + 1 == output else range(0)
        if strides:
            solutions[padding] = strides
    require(list(map(len, solutions.values())) == [1], "stride and padding of the convolution")
    padding, strides = next(iter(solutions.items()))
    return strides[0], padding


def window_of(call: Call, size: Shape, kernel: Shape, output: Shape | None) -> operators.Steps:
    """Return the window of a convolution or pooling over ``size``; unknown values are solved from ``output``.

    An unknown dilation counts as 1, because a 3 × 3 filter fits the same sizes with and without dilation.
    """
    rank = len(kernel)
    # Values per axis; None if they are not recorded.
    dilation = call.numbers("dilation", rank, 1) if call.is_recorded("dilation") else (1,) * rank
    stride = call.numbers("stride", rank, 1) if call.is_recorded("stride") else None
    require(min((*dilation, *(stride or (1,)))) > 0 and len(size) == rank, "attributes do not fit the filter")
    # Elements that a dilated filter spans.
    extents = [step * (width - 1) + 1 for step, width in zip(dilation, kernel, strict=True)]
    if stride is not None and call.is_recorded("padding"):
        return operators.Steps(*_padding(call, size, extents, stride), stride, dilation)
    if output is None or len(output) != rank or min(output) < 1:
        raise UnsupportedError("output of the convolution")
    padding = call.numbers("padding", rank, 0) if call.is_recorded("padding") else (None,) * rank
    axes = zip(size, extents, output, stride or (None,) * rank, padding, strict=True)
    solutions = [solve_stride_and_padding(*sizes, stride=step, pad=pad) for *sizes, step, pad in axes]
    pads = tuple(pad for _, pad in solutions)
    return operators.Steps(pads, pads, tuple(step for step, _ in solutions), dilation)


def _padding(call: Call, size: Shape, extents: list[int], stride: Shape) -> tuple[Shape, Shape]:
    """Return the elements before and after each axis, from one number each, from ONNX's single list, or by name."""
    rank = len(extents)
    padding = call.value("padding")
    mode = str(call.value("auto_pad", padding if isinstance(padding, str) else ""))
    if mode.lower().startswith("same"):
        # There are ⌈length / stride⌉ outputs; ``total`` is how far their windows reach past the image.
        axes = zip(size, stride, extents, strict=True)
        total = [max(0, (-(-length // step) - 1) * step + extent - length) for length, step, extent in axes]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (large, small) if mode == "SAME_LOWER" else (small, large)
    if isinstance(padding, str) or padding is None:
        return (0,) * rank, (0,) * rank
    both = isinstance(padding, list | tuple) and len(padding) == 2 * rank  # ONNX: all begins, then all ends
    pads = call.numbers("padding", 2 * rank if both else rank, 0)
    return pads[:rank], pads[-rank:]


def _convolution(call: Call) -> Conv:
    """Return the problem of a convolution or transposed convolution of any rank."""
    image = call.shape("input", "self")
    filters = call.shape("weight")
    require(len(filters) == len(image), "without batch")
    transposed = call.arguments.get("transposed") is True or "transpose" in call.op.lower()
    output = call.shape("grad_output") if "grad_output" in call.arguments else call.output_shape
    if transposed:  # it is the gradient of the convolution from its output to its input
        image, output = call.required_output_shape() if output is None else output, image
    require(len(image) == len(filters), f"a result of {len(image)} sizes, not {len(filters)}")
    groups = image[1] // max(filters[1], 1)
    if call.is_recorded("groups"):
        groups = call.number("groups", 1)
    elif groups * filters[1] != image[1]:
        raise UnsupportedError("groups of the convolution")
    require(output is None or (output[:1], output[1:2]) == (image[:1], filters[:1]), "output does not fit the filter")
    window = window_of(call, image[2:], filters[2:], None if output is None else output[2:])
    forward = operators.convolution(image, filters, window, groups=groups, dtype=PRODUCT_TYPES.get(call.op, call.dtype))
    layout = "NHWC" if any(tensor.channels_last for tensor in _images(call).values()) else "NCHW"
    return replace(forward, layout=layout, direction="bwd_data" if transposed else "fwd")


def _images(call: Call) -> dict[str, Tensor]:
    """Return the tensors of a convolution that have channels and pixels, by the names of the arguments."""
    names = ("grad_output", "input", "self", "weight")
    arguments = {name: call.arguments[name] for name in names if name in call.arguments}
    return {name: tensor for name, tensor in arguments.items() if isinstance(tensor, Tensor)}


def _layout_transforms(call: Call) -> Layers:
    """Yield the transforms to NHWC that PyTorch adds if some but not all tensors are in NHWC."""
    images = _images(call)
    if any(tensor.channels_last for tensor in images.values()):
        for name, tensor in images.items():
            if tensor.is_nchw:
                problem = operators.elementwise("layout_transform", tensor.shape or (), call.dtype)
                yield replace(call.layer(problem, part=f"{name}.nhwc"), gradients=())


def gradient_problem(problem: NetworkProblem, operand: str) -> tuple[str, NetworkProblem]:
    """Return the name and the problem of an operand's gradient.

    Raises `UnsupportedError` if the problem declares none.
    """
    for part, gradient in problem.gradients(operand):
        return part, gradient
    raise UnsupportedError(f"the gradient of a {problem.kind}'s {operand}")


def conv(call: Call) -> Layers:
    """Yield a forward convolution; the bias is a separate kernel, as frameworks launch it."""
    yield from _layout_transforms(call)
    if "offset" in call.arguments:  # a deformable convolution first samples the columns of the image
        filters, result = call.shape("weight"), call.required_output_shape()
        columns = (*result[:1], prod(filters[1:]), *result[2:], call.number("groups", 1))
        reads = [call.shape("input"), call.shape("offset")]
        yield call.layer(operators.streamed("deformable_columns", reads, [columns], call.dtype, work=8), part="columns")
    yield call.layer(_convolution(call), part=PART_3D if len(call.shape("weight")) == 5 else "", weights=("weight",))
    if isinstance(call.arguments.get("bias"), Tensor) and call.op not in PRODUCT_TYPES:
        result = call.required_output_shape()
        problem = operators.pointwise("add", [result, result[1:2]], result, call.dtype)
        yield call.layer(problem, part="bias", weights=("bias",))


def conv_backward(call: Call) -> Layers:
    """Yield the gradients of convolution_backward that its mask requests.

    If the mask is not known, these are the gradients of input and filter.
    """
    problem = _convolution(call)
    mask = call.value("output_mask", (True, True, False)) if call.is_recorded("output_mask") else (True, True)
    requested = tuple(mask) if isinstance(mask, list | tuple) else ()
    yield from _layout_transforms(call)
    for is_requested, operand in zip(requested, (INPUT, WEIGHT), strict=False):
        if is_requested:
            part, gradient = gradient_problem(problem, operand)
            yield call.layer(gradient, part=f"{part}.{PART_3D}" if len(call.shape("weight")) == 5 else part)
    if len(requested) > 2 and requested[2]:
        n, c, h, w = operators.nchw_sizes(call.shape("grad_output"))
        yield call.layer(BiasBackward(n=n, c=c, h=h, w=w, dtype=call.dtype), part="bias")


def conv_half(call: Call) -> Layers:
    """Yield one of the two gradients of ``cudnn_convolution_backward``, from the arguments of the latter."""
    yield call.layer(gradient_problem(_convolution(call), WEIGHT if call.op.endswith("weight") else INPUT)[1])
