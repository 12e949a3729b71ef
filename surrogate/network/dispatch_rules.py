"""Rules: the problems of each operator, derived from its arguments; one rule serves ATen and ONNX.

A rule yields a layer for every kernel that a framework launches for the call. Source of the meanings: PyTorch's
``native_functions.yaml`` and the ONNX operator specification (opsets 1 to 23).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, log2, prod

import numpy as np

from surrogate.features.families import operator
from surrogate.features.families.attention import Attention, AttentionBackward
from surrogate.features.families.embedding import UNSHARED, USUAL_ROWS_PER_BLOCK, EmbeddingBag, EmbeddingBagBackward
from surrogate.features.families.operator import CAST, REDUCE, Streamed
from surrogate.features.families.recurrent import Recurrent
from surrogate.features.families.rowwise import CHANNELS_LAST, POINTWISE_CLASSES, GroupNorm, LayerNorm, RmsNorm
from surrogate.features.families.transfer import Concat
from surrogate.features.problem import DTYPES, INPUT, WEIGHT
from surrogate.network import operators
from surrogate.network.aten_call import DISPATCH, PRODUCT_TYPES, UNKNOWN, Call, Shape, Tensor, UnsupportedError, require
from surrogate.network.dispatch_convolutions import Layers, gradient_problem, window_of
from surrogate.network.network import PART_3D

SAME_SIZE_OPERATORS = frozenset(DISPATCH["same_size"]["ops"])
"""Copying operators with a result as large as the largest argument."""


def matmul(call: Call) -> Layers:
    """Yield the product of mm, addmm, bmm, baddbmm, mv, dot, matmul and linear, and each product that addbmm sums.

    If the second operand has no batch, the batch becomes rows of one product. A product of complex values takes four
    real ones.
    """
    data = next((name for name in ("input", "mat1", "mat", "batch1", "self") if name in call.arguments), "")
    names = ("weight", "mat2", "batch2", "other", "vec", "tensor")
    weight = next((name for name in names if name in call.arguments), "")
    left = call.shape(data)
    right = call.shape(weight)
    right = right[::-1] if call.op == "linear" else right
    left = (*left[:-2], *left[:-3:-1]) if call.number("transA", 0) else left
    right = (*right[:-2], *right[:-3:-1]) if call.number("transB", 0) else right
    if call.op.startswith("_weight_int"):  # its columns and rows are packed
        right = (left[-1], call.required_output_shape()[-1])
    left = (1, *left) if len(left) == 1 else left
    right = (*right, 1) if len(right) == 1 else right
    require(min(len(left), len(right)) > 1 and left[-1] == right[-2], "operands do not fit")
    bias = call.op in ("addmm", "_addmm_activation") or isinstance(call.arguments.get("bias"), Tensor)
    # If all products share the second operand, the rows of the batch form one product.
    try:
        batch = prod(np.broadcast_shapes(left[:-2], right[:-2])) if prod(right[:-2]) > 1 else 1
    except ValueError:
        raise UnsupportedError("operands do not fit") from None
    m = left[-2] if batch > 1 else prod(left[:-1])
    dtype = _product_type(call)
    dtype = "int8_wo" if dtype == "int4_wo" and call.number("bits", 4) > 4 else dtype
    n, k = right[-1], left[-1]
    if dtype == "fp64" and not call.tensor(data).floating and call.op.islower():  # CUDA multiplies no integers
        n, k, dtype = 2 * n, 2 * k, "fp32"
    added = call.arguments.get("self") if call.op in ("addmm", "baddbmm", "addmv") else None
    is_matrix = isinstance(added, Tensor) and len(added.shape or ()) > (call.op != "addmv")
    if is_matrix and call.arguments.get("beta") != 0:  # the library's product adds to a copy
        copied = operators.elementwise("copy", call.output_shape or call.shape("self"), dtype)
        yield replace(call.layer(copied, part="copy"), gradients=())
    repeats, batch = (batch, 1) if call.op == "addbmm" else (1, batch)
    problem = operators.gemm(m, n, k, batch=batch, dtype=dtype, bias=bias or call.op == "addbmm")
    weights = (weight, "bias", "self") if call.op == "addmm" else (weight, "bias")
    yield from [call.layer(problem, data=data, weights=weights)] * repeats


def _product_type(call: Call) -> str:
    """Return the element type of a product's kernel; the scales of a quantised product may determine it."""
    recipes, default = call.arguments.get("recipe_a"), PRODUCT_TYPES.get(call.op, call.dtype)
    if default != "fp8":
        return default
    recipe = str(recipes[0]) if isinstance(recipes, list | tuple) and recipes else ""
    return "nvfp4" if call.tensor().values_per_byte > 1 else DISPATCH["scaled_types"].get(recipe, default)


def grouped_matmul(call: Call) -> Layers:
    """Yield a product of groups of rows, each with its own matrix, as products of equal size.

    If both operands are matrices, the groups divide the summed dimension: this is the gradient of the matrices.
    """
    left, right, result = call.shape("self"), call.shape("mat2"), call.required_output_shape()
    groups = next((shape[0] for shape in (right, left, result) if len(shape) == 3), 0)
    require(groups and left[-1] == right[-2], "operands do not fit")
    m, n, k = left[-2], right[-1], left[-1]
    if len(left) != len(right):
        groups = min(groups, m if len(left) == 2 else n)  # no more groups than rows
    divided = [len(left) == 2 < len(right), len(right) == 2 < len(left), len(left) == len(right) == 2]
    m, n, k = (-(-size // groups) if part else size for size, part in zip((m, n, k), divided, strict=True))
    yield call.layer(operators.gemm(m, n, k, batch=groups, dtype=_product_type(call)), data="self", weights=("mat2",))


def attention(call: Call, *, is_fused: bool = True) -> Layers:
    """Yield scaled dot-product attention as the fused kernel, else as two products and a softmax.

    Types without a fused kernel take the second form.
    """
    if is_fused and (fused := _fused_attention(call)):
        # One query of each request reads the whole context, as when a server generates a token.
        layer = call.layer(fused)
        is_generation = fused.query_length == 1 and not layer.gradients
        yield replace(layer, problem=replace(fused, phase="generation")) if is_generation else layer
        return
    batch, sizes = _unfused_attention(call)
    for part in ("scores", "softmax", "values"):
        problem = operators.softmax((batch, *sizes["scores"][:2]), -1, call.dtype)
        if part != "softmax":
            problem = operators.gemm(*sizes[part], batch=batch, dtype=call.dtype)
        layer = call.layer(problem, part=part, data="query")
        has_two_inputs = layer.gradients and part != "softmax"
        yield replace(layer, gradients=(INPUT, WEIGHT)) if has_two_inputs else layer


def _unfused_attention(call: Call) -> tuple[int, dict[str, tuple[int, int, int]]]:
    """Return the batch of attention's products, forward and backward, and the sizes m, n and k of each."""
    query, key, value = (call.shape(name) for name in ("query", "key", "value"))
    (*batches, rows, depth), columns, width = query, key[-2], value[-1]
    return prod(batches), {
        "scores": (rows, columns, depth),
        "values": (rows, width, columns),
        "grad_value": (columns, width, rows),
        "grad_weights": (rows, columns, width),
        "grad_query": (rows, depth, columns),
        "grad_key": (columns, depth, rows),
    }


def _fused_attention(call: Call) -> Attention | None:
    """Return the problem of the fused kernel; None if no fused kernel takes the call."""
    query, key = call.shape("query"), call.shape("key")
    if call.dtype not in Attention.CHOICES["dtype"] or len(query) != 4 or query[-2] > key[-2]:
        return None
    return Attention(
        phase="context" if call.arguments.get("is_causal") else "encoder",
        batch=query[0],
        heads=query[1],
        kv_heads=key[1],
        head_dim=(query[-1] + call.shape("value")[-1] + 1) // 2,  # the products have this mean width
        query_length=query[-2],
        context_length=key[-2],
        window=max(0, call.number("window", 0)),
        dtype=call.dtype,
    )


def attention_backward(call: Call) -> Layers:
    """Yield the gradient of attention: one fused call, else the scores again, four products and a softmax gradient."""
    if fused := _fused_attention(call):
        sizes = {**fused.sizes, "dtype": fused.dtype, "phase": fused.phase}
        yield call.layer(AttentionBackward(**sizes), part="grad")
        return
    batch, sizes = _unfused_attention(call)
    rows, columns, _ = sizes["scores"]
    for part in ("scores", "grad_value", "grad_weights", "grad_query", "grad_key"):
        yield call.layer(operators.gemm(*sizes[part], batch=batch, dtype=call.dtype), part=part)
    yield call.layer(operator("softmax_backward", n=batch * rows, c=columns, dtype=call.dtype), part="softmax")


def batch_norm(call: Call) -> Layers:
    """Yield batch norm by stored statistics or by the batch's own, or its gradient.

    An unrecorded training flag counts as true.
    """
    training = call.op == "_batch_norm_with_update" or bool(call.arguments.get("training"))
    kind = "batch_norm" if training else "batch_norm_inference"
    n, c, h, w = operators.nchw_sizes(call.shape())
    if backward := call.op.endswith("backward"):
        kind = "batch_norm_backward"
    by_batch = training or backward
    variant = CHANNELS_LAST if by_batch and any(tensor.channels_last for tensor in call.tensors()) else ""
    problem = operator(kind, n=n, c=c, h=h, w=w, dtype=call.dtype, variant=variant)
    yield call.layer(problem, weights=() if backward else ("weight", "bias"))


def norm(call: Call) -> Layers:
    """Yield layer, RMS, Lp, group or instance norm, or its gradient."""
    size: Shape = call.shape()
    require(size, "0-D")
    op = call.op.lower()
    is_gradient = op.endswith("backward")
    normalized_shape = call.arguments.get("normalized_shape")
    weight, statistics = call.arguments.get("weight"), call.arguments.get("rstd")
    operator_class = RmsNorm if "rms" in op or call.op == "SimplifiedLayerNormalization" else LayerNorm
    if "group" in op or "instance" in op:
        operator_class = GroupNorm
        if call.tensor().channels_last and not is_gradient:  # CUDA's kernel reads and writes NCHW images
            transform = call.layer(operators.elementwise("layout_transform", size, call.dtype), part="nchw")
            yield replace(transform, gradients=())
        channels = size[1] if len(size) > 1 else 1
        rows = prod(size[:1]) * call.number("group", call.number("num_groups", channels))
    elif isinstance(statistics, Tensor) and statistics.shape:  # a gradient has one deviation per row
        rows = prod(statistics.shape)
    elif isinstance(normalized_shape, list | tuple):
        rows = prod(size) // max(prod(normalized_shape), 1)
    elif normalized_shape is UNKNOWN and isinstance(weight, Tensor) and weight.shape:
        rows = prod(size) // max(prod(weight.shape), 1)
    else:
        call.value("normalized_shape")
        rows = prod(size[: call.number("dim", -1) % len(size)])
    problem = operator_class(n=rows, c=prod(size) // max(rows, 1), dtype=call.dtype)
    weights = () if is_gradient else ("weight", "bias")
    yield call.layer(gradient_problem(problem, INPUT)[1] if is_gradient else problem, weights=weights)


def pool(call: Call) -> Layers:
    """Yield pooling of 1-D to 3-D images, by a window, by the result's size (adaptive), or over the whole image."""
    backward = call.op.endswith("backward")
    size = call.shape("self") if backward else call.shape()
    result = call.shape("grad_output") if backward else call.output_shape
    # ATen's name contains the number of axes; an image without a batch has one size less.
    rank = next((int(letter) for letter in call.op if letter.isdigit()), len(size) - 2)
    if len(size) == rank + 1:
        size = (1, *size)
        result = None if result is None else (1, *result)
    require(1 <= rank == len(size) - 2, f"{rank}-D pooling of {len(size)} sizes")
    require(result is None or len(result) == len(size), f"a result of {len(result or ())} sizes, not {len(size)}")
    pad = (0,) * rank
    if "adaptive" in call.op or call.op.startswith("Global"):  # windows of ⌈in / out⌉ at strides of ⌊in / out⌋
        result = result or (*size[:2], *call.numbers("output_size", rank, 1))
        pairs = [(extent, max(count, 1)) for extent, count in zip(size[2:], result[2:], strict=True)]
        kernel = tuple(-(-extent // count) for extent, count in pairs)
        stride = tuple(max(1, extent // count) for extent, count in pairs)
    else:
        kernel = call.numbers("kernel_size", rank, 1)
        require(call.is_recorded("stride", "padding"), "window, stride and padding")
        pooled = call if call.value("stride") else replace(call, arguments={**call.arguments, "stride": kernel})
        begin, end, stride, _ = window_of(pooled, size[2:], kernel, None)
        pad = tuple(map(min, begin, end))
    kind = "max" if "max" in call.op.lower() else "average"
    problem = operators.pool(kind, size, result, kernel, stride, pad, call.dtype)
    yield call.layer(gradient_problem(problem, INPUT)[1] if backward else problem, part=PART_3D if rank == 3 else "")


def softmax(call: Call) -> Layers:
    """Yield softmax, log_softmax, or their gradients.

    If the dimension is not recorded, a matrix is reduced along its rows. Before opset 13, ONNX's operators flatten the
    dimensions from ``dim`` on.
    """
    size = call.shape()
    if call.number("opset", 13) < 13:
        axis = call.number("dim", 1)
        size, call = (prod(size[:axis]), prod(size[axis:])), replace(call, arguments={**call.arguments, "dim": 1})
    require(call.is_recorded("dim") or len(size) < 3, "the dimension that it reduces")
    axis = call.number("dim", -1) if call.is_recorded("dim") else -1
    require(-len(size) <= axis < len(size), f"axis {axis}")
    problem = operators.softmax(size, axis, call.dtype)
    yield call.layer(gradient_problem(problem, INPUT)[1] if "backward" in call.op else problem)


def embedding(call: Call) -> Layers:
    """Yield embedding or embedding_bag; the bag size is the number of indices / the number of bags."""
    table = call.shape("weight")
    lookups = prod(call.shape("indices"))
    bag = 1
    require(len(table) == 2, "operands do not fit")
    if "bag" in call.op:
        bags = call.shape("offsets")[0] if call.output_shape is None else prod(call.output_shape[:-1])
        require(call.output_shape is not None or lookups % max(bags, 1) == 0, "size of a bag")
        bag = max(1, lookups // max(1, bags))
    rows, dim = table
    batch = max(1, lookups // bag)
    yield call.layer(EmbeddingBag(batch=batch, rows=rows, bag=bag, dim=dim, dtype=call.dtype), weights=("weight",))


def embedding_backward(call: Call) -> Layers:
    """Yield the gradient of an embedding's table."""
    grad = call.shape("grad_output", "grad")
    lookups = prod(call.shape("indices"))
    dim = (grad or (1,))[-1]
    bag = max(1, lookups * dim // max(1, prod(grad)))
    rows = call.number("num_weights", 1)
    yield call.layer(EmbeddingBagBackward(batch=max(1, lookups // bag), rows=rows, bag=bag, dim=dim, dtype=call.dtype))


def lookup(call: Call, kind: str) -> Layers:
    """Yield a lookup in several tables at once, or its update, which has the gradient in the result's place.

    A trace marks kernels without shared memory as ``unshared``, and updates by Adagrad as ``adagrad``.

    The result is (batch, tables · dimension) or (batch, tables, dimension); rows, bag and dimension are means over the
    tables. FBGEMM's plain Adagrad counts as the row-wise one.
    """
    weights = call.shape("weights")
    tables = call.shape("D_offsets")[0] - 1 if "D_offsets" in call.arguments else call.shape("table_offsets")[0]
    batch = (call.shape("offsets")[0] - 1) // max(tables, 1)
    lookups = prod(call.shape("indices"))
    width = prod(call.output_shape[1:]) if call.output_shape else 0
    if not width:
        width = tables * weights[1] if len(weights) == 2 else call.number("total_D", 0)
    is_of_batch = not call.output_shape or call.output_shape[0] == batch
    require(batch > 0 and width > 0 and width % tables == 0 and is_of_batch, "sizes of the tables")
    elements = sum(prod(call.shape(name)) for name in ("weights", "uvm_weights") if name in call.arguments)
    rows_per_block = call.number("rows_per_block", USUAL_ROWS_PER_BLOCK)
    bag = max(1, round(lookups / (batch * tables)))
    table = {"tables": tables, "rows": max(1, elements // width), "dim": width // tables}
    launch = {"rows_per_block": rows_per_block, "variant": UNSHARED * call.number("unshared", 0)}
    if call.number("adagrad", 0) and not kind.endswith("_adagrad"):
        kind = f"{kind}_adagrad"
    yield call.layer(operator(kind, batch=batch, bag=bag, dtype=call.dtype, **table, **launch))


def single_pass(call: Call) -> Layers:
    """Yield one pass that reads every tensor and writes the results; unknown results are as large as the inputs.

    Linear attention multiplies a state of keys × values by the key and by the query of every token, and a causal
    convolution multiplies by its filter.

    This serves operators on jagged indices (permute, cumulative sum, bounds check) and the cells of recurrent networks.
    """
    tensors = [tensor.shape or () for tensor in call.tensors()]
    shapes = [tensor.shape for tensor in call.outputs if tensor.shape is not None]
    results = shapes if shapes and len(shapes) == len(call.outputs) else tensors
    is_jagged = any(tensor.shape is None for tensor in call.tensors())
    require(not (is_jagged and call.op[0].isupper()), "shape unknown")  # ONNX has no jagged tensors
    work = 2 * call.shape("weight")[-1] if call.op == "CausalConvWithState" else 1
    if call.op == "LinearAttention":
        work = 4 * (call.shape("query")[-1] // max(1, call.number("q_num_heads", 1)))
    yield call.layer(operators.streamed(call.op, tensors, results, call.dtype, work=work))


def unpacked(call: Call) -> Layers:
    """Yield the unpacking of quantised weights, and the product of unpacked weights if the call computes it.

    The pass reads packed weights and scales. bitsandbytes unpacks before products of over 1,536 rows; fewer rows may be
    faster.
    """
    result, dtype = call.required_output_shape(), call.outputs[0].dtype
    is_product = call.op.endswith("gemm_4bit")
    weight = call.numbers("shapeB", 2, 1) if is_product else result
    packed = call.tensors()[is_product:]
    read = -(-sum(tensor.bytes for tensor in packed) // DTYPES[dtype])
    yield call.layer(operators.streamed("unpack", [(read,)], [weight], dtype), part="unpack")
    if is_product:
        yield call.layer(operators.gemm(prod(result[:-1]), *weight, dtype=dtype))


def recurrent(call: Call) -> Layers:
    """Yield each layer and direction of an LSTM, GRU or plain recurrent network over all steps, or its gradients."""
    size = call.shape("input", "data", "X")
    packed = call.arguments.get("batch_sizes")
    lengths = packed.shape if isinstance(packed, Tensor) else (len(packed),) if isinstance(packed, list) else ()
    if lengths and lengths[0]:  # packed sequences: the values of each step, one step after the other
        size = (lengths[0], -(-size[0] // lengths[0]), size[-1])
    elif len(size) == 2:
        size = (size[0], 1, size[1])
    require(len(size) == 3, f"an input of {len(size)} sizes")
    first_is_batch = call.value("batch_first", False) is True or call.value("layout", 0) == 1
    batch, steps = size[:2] if first_is_batch else size[1::-1]
    backward = call.op.endswith("backward")
    for index, (rows, inputs, hidden) in enumerate(_recurrent_weights(call)):
        problem = Recurrent(steps=steps, batch=batch, inputs=inputs, hidden=hidden, rows=rows, dtype=call.dtype)
        layer = call.layer(problem, part=str(index))
        if not backward:
            needs_gradient = any(tensor.parameter or tensor.needs_gradient for tensor in call.tensors())
            parameters = (problem.weights + 2 * rows) * any(tensor.parameter for tensor in call.tensors())
            yield replace(layer, gradients=(INPUT, WEIGHT), parameters=parameters) if needs_gradient else layer
            continue
        for operand in (INPUT, WEIGHT):
            for name, part in problem.gradients(operand):
                yield call.layer(part, part=f"{index}.{name}")


def _recurrent_weights(call: Call) -> Iterator[Shape]:
    """Yield rows, inputs and hidden values of the weights of each layer and direction."""
    if "W" in call.arguments:  # ONNX: one layer, its directions together
        directions, rows, inputs = call.shape("W")
        yield from [(rows, inputs, call.shape("R")[2])] * directions
        return
    values = call.arguments.get("weight", call.arguments.get("params"))
    weights = values if isinstance(values, list) else []
    matrices = [each.shape for each in weights if isinstance(each, Tensor) and each.shape and len(each.shape) == 2]
    count = call.number("num_layers", 1) * (1 + (call.value("bidirectional", False) is True))
    require(matrices and len(matrices) % count == 0, "shapes of its weights")
    for start in range(0, len(matrices), len(matrices) // count):  # a projection adds a third matrix
        (rows, inputs), (_, hidden) = matrices[start : start + 2]
        yield rows, inputs, hidden


def collective(call: Call, kind: str) -> Layers:
    """Yield a collective among ``ranks`` devices.

    An all-gather has a device's share as its argument, all others the whole message.
    """
    ranks = call.number("ranks", 0)
    elements = prod(call.shape()) * (ranks if kind == "all_gather" else 1)
    yield call.layer(operator(kind, elements=elements, ranks=ranks, dtype=call.dtype))


def gather(call: Call) -> Layers:
    """Yield ONNX's Gather: an embedding if it reads rows of a stored table, else a copy."""
    table = call.tensor("weight")
    if table.constant and len(table.shape or ()) == 2 and call.number("dim", 0) == 0:
        yield from embedding(call)
    else:
        yield from copy(call)


def reduction(call: Call) -> Layers:
    """Yield sums, means, extremes and losses: a pass that reads the floating-point tensors and writes the result.

    An unknown result counts as one number.
    """
    size = call.shape()
    result = call.output_shape
    axes = call.arguments.get("dim")
    if result is None:
        axes = [axes] if isinstance(axes, int) else axes if isinstance(axes, list) else []
        reduced = {axis % len(size) for axis in axes if isinstance(axis, int)} if size else set()
        result = tuple(length for axis, length in enumerate(size) if axis not in reduced) if reduced else ()
    reads = [tensor.shape or () for tensor in call.tensors() if tensor.floating] or [size]
    others = -(-sum(tensor.bytes for tensor in call.outputs[1:]) // DTYPES[call.dtype])  # such as positions
    flops = -(-prod(size) // max(prod(result), 1))
    yield call.layer(operators.streamed(REDUCE, [*reads, (others,)], [result], call.dtype, work=flops))


def loss(call: Call) -> Layers:
    """Yield a loss of every element, then the kernel that reads these losses for their mean or sum."""
    reads = [tensor.shape or () for tensor in call.tensors() if tensor.floating]
    size = call.shape()
    yield call.layer(operators.streamed(call.op, reads, [size], call.dtype, work=3))
    if call.output_shape != size:
        yield call.layer(operators.streamed(REDUCE, [size], [()], call.dtype, work=prod(size)), part="reduced")


def scan(call: Call) -> Layers:
    """Yield operators that pass over the values of an axis: cumulative sums and extremes, Fourier transforms, LRN.

    Local response normalisation across ``size`` channels takes a square, a sum over the channels, a power and a
    product. A Fourier transform of n values takes 5 log₂ n operations per value (Van Loan, 1992).
    """
    size = call.shape()
    flops = call.number("size", 5) + 12 if call.op == "LRN" else 1
    result = size
    if call.op in DISPATCH["estimates"]["fourier"]:
        result = call.required_output_shape()
        flops = 5 * ceil(log2(max(2, *size, *result)))
    yield call.layer(operators.streamed(call.op.lower(), [size], [result], call.dtype, work=flops))


def concat(call: Call) -> Layers:
    """Yield cat and stack."""
    parts = [tensor.shape for tensor in call.tensors()]
    require(call.output_shape is not None or (parts and None not in parts), "shapes of its tensors")
    shape = (sum(prod(part or ()) for part in parts),) if call.output_shape is None else call.output_shape
    yield call.layer(Concat(elements=prod(shape), dtype=call.dtype))


def copy(call: Call) -> Layers:
    """Yield a copy of data: the bytes read equal the bytes written, because a slice does not read the rest."""
    given, target = call.arguments.get("src"), call.outputs[:1]
    source = [given] if call.op == "copy" and isinstance(given, Tensor) else call.tensors()[:1]
    is_cast = source and target and source[0].dtype != target[0].dtype
    if is_cast and (source[0].shape == target[0].shape or (source[0].floating and target[0].floating)):
        yield call.layer(operators.cast(prod(call.required_output_shape()), source[0].dtype, target[0].dtype))
        return
    if call.op in SAME_SIZE_OPERATORS and source and target and source[0].channels_last != target[0].channels_last:
        yield call.layer(operators.elementwise("layout_transform", call.required_output_shape(), call.dtype))
        return
    if call.op == "TensorScatter":  # it writes into the cache
        shapes = [call.shape("update")]
    elif call.outputs:
        shapes = [tensor.shape for tensor in call.outputs]
    elif call.op == "index_select":
        size = call.shape("self")
        shapes = [(*call.shape("index"), prod(size) // max(size[call.number("dim", 0)], 1))]
    else:
        largest = max((t.shape or () for t in call.tensors()), key=prod, default=None)
        shapes = [largest if call.op in SAME_SIZE_OPERATORS else None]
    sizes = [shape for shape in shapes if shape is not None]
    require(len(sizes) == len(shapes), "shape unknown")
    copied = sizes[0] if len(sizes) == 1 else (sum(map(prod, sizes)),)
    yield call.layer(operators.elementwise("copy", copied, call.dtype))


def fill(call: Call) -> Layers:
    """Yield the fill of a tensor with one value, or with a series; ONNX's operators read its shape from elsewhere.

    If tensors give the moments of a normal distribution, torch multiplies by the deviation and adds the mean.
    """
    shape = call.shape() if call.output_shape is None and not call.op[0].isupper() else call.required_output_shape()
    dtype = call.outputs[0].dtype if call.outputs else call.dtype
    yield call.layer(operators.elementwise("fill", shape, dtype))
    moments = {name: call.arguments.get(name) for name in ("std", "mean") if call.op == "normal"}
    for name, kind in (("std", "mul"), ("mean", "add")) if any(isinstance(x, Tensor) for x in moments.values()) else ():
        given = moments[name]
        if isinstance(given, Tensor) or name == "mean":
            size = given.shape if isinstance(given, Tensor) and given.shape else (1,)
            yield call.layer(operators.pointwise(kind, [shape, size], shape, dtype), part=name)


def elementwise(call: Call, kind: str) -> Layers:
    """Yield an element-wise pass: each tensor is read once at its own size, and the result is written once."""
    if kind == CAST and call.outputs:  # a quantisation, too
        source, target = call.tensor(), call.outputs[0].dtype
        problem = operators.cast(prod(call.required_output_shape()), source.dtype, target)
        yield call.layer(replace(problem, reads=-(-problem.reads // source.values_per_byte)))
        return
    by_argument = {name: value for name, value in call.arguments.items() if isinstance(value, Tensor) and name != "out"}
    tensors = list(by_argument.values())
    reads = [tensor.shape for tensor in tensors if tensor.shape is not None]
    require(reads and len(reads) == len(tensors), "shape unknown" if tensors else "shapes of its tensors")
    if kind in POINTWISE_CLASSES and call.op != "Sum":  # without masks, small bounds and a trace's tensor of out=
        count, size = POINTWISE_CLASSES[kind].ACCESSES - 1, call.output_shape
        further = list(by_argument.items())[count:]
        bounds = [
            x for name, x in further if DTYPES[x.dtype] > 1 and x.shape == size and not name.startswith("argument ")
        ]
        tensors = [*tensors[:count], *bounds]
        reads = [tensor.shape or () for tensor in tensors]
    try:
        shape = np.broadcast_shapes(*reads) if call.output_shape is None else call.output_shape
    except ValueError:
        raise UnsupportedError("operands do not fit") from None
    if len(reads) == 1 and any(name in call.arguments for name in ("other", "exponent")):
        reads.append((1,))  # a number: the kind's scalar form
    problem = operators.pointwise(kind, reads, shape, call.dtype)
    if len({DTYPES[each.dtype] for each in (*tensors, *call.outputs[:1]) if each.shape == shape}) > 1:
        problem = operators.streamed(kind, reads, [shape], call.dtype)
    if isinstance(problem, Streamed):  # masks, indices and values of mixed types have sizes of their own
        size, results = DTYPES[call.dtype], sum(tensor.bytes for tensor in call.outputs)
        operands = sum(tensor.bytes for tensor in tensors[: len(reads)]) + size * max(0, len(reads) - len(tensors))
        writes = -(-results // size) if results else problem.writes
        problem = replace(problem, reads=-(-operands // size), writes=writes)
    yield call.layer(problem)
