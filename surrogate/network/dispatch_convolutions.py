"""Convolutions of any rank, transposed or not, and their gradients: what each call of theirs computes.

Their windows are solved from the sizes of image, filter and output where a trace did not record them.
"""

from collections.abc import Iterator
from dataclasses import replace

from surrogate.features.conv import Conv
from surrogate.features.families import NetworkProblem
from surrogate.features.families.rowwise import BiasBackward
from surrogate.features.problem import INPUT, WEIGHT
from surrogate.network import operators as make
from surrogate.network.aten_call import Call, Shape, Tensor, UnsupportedError
from surrogate.network.network import PART_3D, Layer

Layers = Iterator[Layer]


def solve_stride_and_padding(
    size: int, extent: int, output: int, *, stride: int | None = None, pad: int | None = None
) -> tuple[int, int]:
    """(stride, padding) of one axis of a convolution from ``size`` to ``output`` elements; None: to be found.

    ``extent`` is that of the filter, dilation included; padding is below it. Raises `UnsupportedError` unless the sizes
    leave one answer. Strides over a single output are all the same problem; the least stands for them.
    """
    answers: dict[int, range] = {}  # padding → strides
    for padding in range(extent) if pad is None else (pad,):
        span = size + 2 * padding - extent  # how far the filter moves
        if span < 0:
            continue
        # Strides with ⌊span / stride⌋ + 1 = output; over a single output all that are longer than the span.
        strides = range(span // output + 1, span // (output - 1) + 1) if output > 1 else range(span + 1, span + 2)
        if stride is not None:
            strides = range(stride, stride + 1) if span // stride + 1 == output else range(0)
        if strides:
            answers[padding] = strides
    if len(answers) != 1 or max(map(len, answers.values())) != 1:
        raise UnsupportedError("stride and padding of the convolution")
    padding, strides = next(iter(answers.items()))
    return strides[0], padding


def window_of(call: Call, size: Shape, kernel: Shape, output: Shape | None) -> make.Steps:
    """The window of a convolution or pooling over ``size``; what is unknown is solved from ``output``.

    An unknown dilation counts as
    1: two 3 × 3 filters, plain and dilated, fit the same sizes.
    """
    rank = len(kernel)
    # What the call says, per axis; None for what its record does not.
    dilation = call.numbers("dilation", rank, 1) if call.knows("dilation") else (1,) * rank
    stride = call.numbers("stride", rank, 1) if call.knows("stride") else None
    if min((*dilation, *(stride or (1,)))) < 1 or len(size) != rank:
        raise UnsupportedError("attributes do not fit the filter")
    # Elements that a filter spans with its gaps.
    extents = [step * (width - 1) + 1 for step, width in zip(dilation, kernel, strict=True)]
    if stride is not None and call.knows("padding"):
        return make.Steps(*_padding(call, size, extents, stride), stride, dilation)
    if output is None or len(output) != rank or min(output) < 1:
        raise UnsupportedError("output of the convolution")
    padding = call.numbers("padding", rank, 0) if call.knows("padding") else (None,) * rank
    answers = [
        solve_stride_and_padding(*sizes, stride=step, pad=pad)
        for *sizes, step, pad in zip(size, extents, output, stride or (None,) * rank, padding, strict=True)
    ]
    pads = tuple(pad for _, pad in answers)
    return make.Steps(pads, pads, tuple(step for step, _ in answers), dilation)


def _padding(call: Call, size: Shape, extents: list[int], stride: Shape) -> tuple[Shape, Shape]:
    """Elements before and after each axis: a number each, both in a row (ONNX), or by name."""
    rank = len(extents)
    padding = call.value("padding")
    mode = str(call.value("auto_pad", padding if isinstance(padding, str) else ""))
    if mode.lower().startswith("same"):
        # As many outputs as ⌈length / stride⌉: the last window may reach past the end by so much in all.
        total = [
            max(0, (-(-length // step) - 1) * step + extent - length)
            for length, step, extent in zip(size, stride, extents, strict=True)
        ]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (large, small) if mode == "SAME_LOWER" else (small, large)
    if isinstance(padding, str) or padding is None:
        return (0,) * rank, (0,) * rank
    both = isinstance(padding, list | tuple) and len(padding) == 2 * rank  # ONNX: all begins, then all ends
    pads = call.numbers("padding", 2 * rank if both else rank, 0)
    return pads[:rank], pads[-rank:]


def _convolution(call: Call) -> Conv:
    """The problem of a (transposed) convolution of any rank, whichever operator names it."""
    image = call.shape("input", "self")
    filters = call.shape("weight")
    if len(filters) != len(image):
        raise UnsupportedError("without batch")
    transposed = call.arguments.get("transposed") is True or "transpose" in call.op.lower()
    output = call.shape("grad_output") if "grad_output" in call.arguments else call.output
    if transposed:  # the gradient of the convolution that maps its output to its input
        image, output = call.result() if output is None else output, image
    if len(image) != len(filters):
        raise UnsupportedError(f"a result of {len(image)} sizes where {len(filters)} are due")
    groups = image[1] // max(filters[1], 1)
    if call.knows("groups"):
        groups = call.number("groups", 1)
    elif groups * filters[1] != image[1]:
        raise UnsupportedError("groups of the convolution")
    if output is not None and (output[:1], output[1:2]) != (image[:1], filters[:1]):
        raise UnsupportedError("output does not fit the filter")
    window = window_of(call, image[2:], filters[2:], None if output is None else output[2:])
    forward = make.convolution(image, filters, window, groups=groups, dtype=call.dtype)
    layout = "NHWC" if any(tensor.channels_last for tensor in _images(call).values()) else "NCHW"
    return replace(forward, layout=layout, direction="bwd_data" if transposed else "fwd")


def _images(call: Call) -> dict[str, Tensor]:
    """The tensors of a convolution that have channels and pixels, by the arguments' names."""
    names = ("grad_output", "input", "self", "weight")
    given = {name: call.arguments[name] for name in names if name in call.arguments}
    return {name: tensor for name, tensor in given.items() if isinstance(tensor, Tensor)}


def _transposed(call: Call) -> Layers:
    """Where one tensor's channels lie innermost, PyTorch computes so, and moves the others' there first."""
    images = _images(call)
    if any(tensor.channels_last for tensor in images.values()):
        for name, tensor in images.items():
            if tensor.is_nchw:
                work = make.elementwise("layout_transform", tensor.shape or (), call.dtype)
                yield replace(call.layer(work, part=f"{name}.nhwc"), gradients=())


def gradient(problem: NetworkProblem, of: str) -> tuple[str, NetworkProblem]:
    """The name and the problem of a gradient. Raises `UnsupportedError` where it declares none."""
    for part, work in problem.gradients(of):
        return part, work
    raise UnsupportedError(f"the gradient of a {problem.kind}'s {of}")


def conv(call: Call) -> Layers:
    """Any forward convolution; the bias is a kernel of its own, as frameworks launch it."""
    part = PART_3D if len(call.shape("weight")) == 5 else ""
    yield from _transposed(call)
    yield call.layer(_convolution(call), part=part, weights=("weight",))
    if isinstance(call.arguments.get("bias"), Tensor):
        result = call.result()
        work = make.pointwise("add", [result, result[1:2]], result, call.dtype)
        yield call.layer(work, part="bias", weights=("bias",))


def conv_backward(call: Call) -> Layers:
    """convolution_backward: as many gradients as its mask asks for; input and filter where it is not known."""
    problem = _convolution(call)
    mask = call.value("output_mask", (True, True, False)) if call.knows("output_mask") else (True, True)
    asked = tuple(mask) if isinstance(mask, list | tuple) else ()
    yield from _transposed(call)
    for wanted, of in zip(asked, (INPUT, WEIGHT), strict=False):
        if wanted:
            part, work = gradient(problem, of)
            yield call.layer(work, part=f"{part}.{PART_3D}" if len(call.shape("weight")) == 5 else part)
    if len(asked) > 2 and asked[2]:
        n, c, h, w = make.image(call.shape("grad_output"))
        yield call.layer(BiasBackward(n=n, c=c, h=h, w=w, dtype=call.dtype), part="bias")


def conv_half(call: Call) -> Layers:
    """One of the two gradients that ``cudnn_convolution_backward`` asks for, from the arguments of the latter."""
    yield call.layer(gradient(_convolution(call), WEIGHT if call.op.endswith("weight") else INPUT)[1])
