"""Rules of operators that run as several kernels: passes over whole tensors, products, softmax, copies.

`passes` reads the kernels from the table ``passes`` of `dispatch.toml`. Source of the kernels: PyTorch 2.13,
``aten/src/ATen/native`` and its folder ``cuda``. Source of ONNX's operators: the ONNX operator specification (opsets 1
to 28) and ONNX Runtime's contributed operators. Operators without a measured kernel take the roofline time of their
traffic.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from math import ceil, factorial, log2, prod
from string import ascii_lowercase

from surrogate.features.families.operator import REDUCE, Streamed
from surrogate.features.families.transfer import Concat
from surrogate.features.problem import DTYPES
from surrogate.network import operators
from surrogate.network.aten_call import DISPATCH, IN_PLACE, PRODUCT_TYPES, Call, Shape, Tensor, require
from surrogate.network.dispatch_convolutions import Layers
from surrogate.network.dispatch_rules import attention

MIN_PRODUCT_ROWS = 26
"""Rows from which torch computes Euclidean distances by a product. Source: ``native/Distance.cpp``."""
PASS_VALUES = 4096
"""Complex values that one kernel transforms: 32 KiB of shared memory. Source: Tolmachev, "VkFFT" (2023)."""
MAX_RADIX = 127
"""Largest prime factor of a length that cuFFT transforms directly. Source: cuFFT's documentation, "Accuracy"."""
SELECTIONS = ("topk", "kthvalue", "median", "nanmedian")
"""Operators that select values but do not sort them."""


def passes(call: Call) -> Layers:
    """Yield the kernels of an operator by their traffic: a kernel's text is ``tensors read > tensors written``.

    A tensor is the name of an argument, ``out`` or ``out2`` (a result), or a number of values. ``3*name`` is three
    times its size, and ``a@b`` is a row of ``b`` for each value of ``a``. ``self > new`` copies the argument, unless
    the operator changes it in place. A kernel after ``name:`` runs only if this argument is a tensor or true.
    """
    kernels = DISPATCH["passes"]["_euclidean_dist" if call.op == "cdist" else call.op]
    for number, text in enumerate(kernels):
        condition, _, kernel = text.rpartition(": ")
        value = call.arguments.get(condition)
        if condition and not (value is True or isinstance(value, Tensor)):
            continue
        if kernel == "self > new":
            if call.outputs and call.outputs[0].buffer != IN_PLACE:
                yield call.layer(operators.elementwise("copy", call.shape("self"), call.dtype), part="copy")
            continue
        reads, writes = (sum(_bytes(call, term) for term in side.split()) for side in kernel.split(">"))
        problem = _streamed(call, reads, writes)
        if kernel.startswith(">"):
            problem = operators.elementwise("fill", (problem.writes,), call.dtype)
        yield call.layer(problem, part=str(number) if len(kernels) > 1 else "")


def _streamed(call: Call, read_bytes: int, written_bytes: int, work: int = 1) -> Streamed:
    """Return a pass with this traffic, counted in values of the call's type."""
    reads, writes = (-(-part // DTYPES[call.dtype]) for part in (read_bytes, written_bytes))
    return Streamed(reads=reads, writes=max(1, writes), work=work, dtype=call.dtype, variant=call.op)


def _bytes(call: Call, term: str) -> int:
    """Return the bytes of a term of `passes`. Raises `UnsupportedError` if a size is unknown."""
    count, _, tensor_name = term.rpartition("*")
    rows, _, name = tensor_name.rpartition("@")
    if name.isdigit():
        return int(count or 1) * (prod(call.shape(rows)) if rows else 1) * int(name) * DTYPES[call.dtype]
    results = {f"out{number}".removesuffix("1"): result for number, result in enumerate(call.outputs, 1)}
    value = call.arguments.get(name, results.get(name))
    values = value if isinstance(value, list | tuple) else [value]
    tensors = [each for each in values if isinstance(each, Tensor)]
    # A trace may lack a list of indices, and it may lack the names of arguments.
    is_optional = name[:3] != "out" and not any(key.startswith("argument ") for key in call.arguments)
    is_known = tensors or name in call.arguments or is_optional
    require(is_known and all(tensor.shape is not None for tensor in tensors), "shape unknown")
    size = sum(tensor.bytes for tensor in tensors)
    if rows:
        size = prod(call.shape(rows)) * size // max(1, prod((tensors[0].shape or ())[:-1]))
    return int(count or 1) * size


def fourier(call: Call) -> Layers:
    """Yield the passes of a Fourier transform along each axis, then its scaling.

    An axis of n values takes 5 n log₂ n operations, and a pass for every `PASS_VALUES` times that its length grows.
    Axes with others between them are first copied, and so is the argument of a transform to real values.
    """
    source, result = call.tensor("self"), call.outputs[0]
    is_to_real, is_mirrored = call.op == "_fft_c2r", call.value("onesided", True) is False
    shape, axes = (result if is_to_real else source).shape or (), _axes(call, "dim")
    lengths = [shape[axis] for axis in axes]
    is_direct = all(pow(factorial(MAX_RADIX), length.bit_length(), length) == 0 for length in lengths)
    require(is_direct, f"a length with a prime factor above {MAX_RADIX}")
    others = sorted(set(range(len(shape))) - {axis % len(shape) for axis in axes})
    if is_to_real or (others and others[-1] - others[0] >= len(others)):
        yield call.layer(_streamed(call, source.bytes, source.bytes, 0), part="copy")
    result_bytes = result.bytes // (2 if is_mirrored else 1)
    between = source.bytes if is_to_real else result_bytes
    steps = [length for length in lengths for _ in range(ceil(log2(max(2, length)) / log2(PASS_VALUES)))]
    for number, length in enumerate(steps):
        reads = source.bytes if number == 0 else between
        writes = result_bytes if number == len(steps) - 1 else between
        work = ceil(5 * log2(max(2, length)) * DTYPES[call.dtype] / 8)  # of 8 bytes, a complex value
        yield call.layer(_streamed(call, reads, writes, work), part=str(number))
    if is_mirrored:  # the transform gives half of the values
        yield call.layer(_streamed(call, result_bytes, result_bytes, 0), part="mirror")
    if call.number("normalization", 0):
        yield call.layer(_streamed(call, result.bytes, result.bytes), part="scale")


def _axes(call: Call, name: str) -> Shape:
    """Return the axes in an argument, which may be none."""
    values = call.value(name)
    return call.numbers(name, len(values), 0) if isinstance(values, list | tuple) and values else ()


def distances(call: Call) -> Layers:
    """Yield distances between all rows of two tensors: by a product, or by one kernel that reads each pair of rows."""
    first, second, result = call.shape("x1"), call.shape("x2"), call.required_output_shape()
    (rows, depth), columns, mode = first[-2:], second[-2], call.value("compute_mode", 0)
    is_euclidean = call.value("p", 2) == 2 and (mode == 1 or (mode == 0 and max(rows, columns) >= MIN_PRODUCT_ROWS))
    if is_euclidean or call.op == "_euclidean_dist":
        product = operators.gemm(rows, columns, depth + 2, batch=prod(result[:-2]), dtype=call.dtype)
        yield call.layer(product, part="product")
        yield from passes(call)
        return
    reads, writes = prod(first) + prod(second), prod(result)
    yield call.layer(operators.Scores(reads=reads, writes=writes, work=3 * depth, dtype=call.dtype, variant=call.op))


def trilinear(call: Call) -> Layers:
    """Yield the products of three tensors as torch computes them: those of an equation for each unrolled index.

    The axes of a term, without its expanded ones, are letters of the equation.
    """
    terms: dict[str, Tensor] = {}
    equation, counts, letters = [], [1], ascii_lowercase
    unrolled, summed = call.number("unroll_dim", 1), _axes(call, "sumdim")
    for number in "123":
        tensor, expanded = call.tensor(f"i{number}"), _axes(call, f"expand{number}")
        axes = [axis for axis in range(len(tensor.shape or ()) + len(expanded)) if axis not in expanded]
        sizes = dict(zip(axes, tensor.shape or (), strict=True))
        counts.append(sizes.pop(unrolled, 1))
        equation.append("".join(letters[axis] for axis in sizes))
        terms[number] = replace(tensor, shape=tuple(sizes.values()))
    result = sorted(set("".join(equation)) - {letters[axis] for axis in summed})
    arguments = {**terms, "equation": f"{','.join(equation)}->{''.join(result)}"}
    products, count = tuple(einsum(replace(call, arguments=arguments))), max(counts)
    added = (prod(call.required_output_shape()) // (1 if unrolled in summed else count),)
    yield call.layer(operators.elementwise("fill", call.required_output_shape(), call.dtype), part="fill")
    for _ in range(count):
        yield from (*products, call.layer(operators.pointwise("add", [added, added], added, call.dtype), part="sum"))


def attention_with_heads(call: Call) -> Layers:
    """Yield attention with all heads side by side or apart, packed or not, after the join of cached keys and values.

    Results beside the first and the cache are the scores; only separate kernels write them.
    """
    heads = call.number("q_num_heads", call.number("num_heads", 0))
    kv_heads = call.number("kv_num_heads", heads)
    tensors: dict[str, Tensor] = {}
    query = call.tensor("query")
    for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
        tensor = call.arguments.get(name)
        tensor = tensor if isinstance(tensor, Tensor) else tensors.get("key", query)  # packed with the one before
        shape = tuple(tensor.shape or ())
        if len(shape) == 5:  # (batch, length, heads, query, key and value, values)
            shape = (shape[0], shape[2], shape[1], shape[4])
        elif len(shape) == 3 and count:
            columns = heads + 2 * kv_heads if "key" not in call.arguments else count
            shape = (shape[0], count, shape[1], shape[2] // columns)
        past = call.arguments.get(f"past_{name}")
        if isinstance(past, Tensor) and past.shape and len(past.shape) == len(shape) == 4:
            length, width = shape[-2:]
            shape = (*shape[:2], length + past.shape[2], width)
        require(len(shape) == 4 and 0 not in shape, "operands do not fit")
        tensors[name] = replace(tensor, shape=shape)
    has_scores = len(call.outputs) in (2, 4)
    if len(call.outputs) > 2 and call.op == "Attention":
        cached = sum(prod(tensors[name].shape or ()) for name in ("key", "value"))
        yield call.layer(Concat(elements=cached, dtype=call.dtype), part="cache")
    is_causal = call.number("is_causal", 0) == 1 or "causal" in call.op.lower() or "Group" in call.op
    inner = replace(call, arguments={**call.arguments, **tensors, "is_causal": is_causal})
    yield from attention(inner, is_fused=not has_scores)


def projected_attention(call: Call) -> Layers:
    """Yield the product that gives query, key and value of all heads, then their attention."""
    (batch, length, width), columns = call.shape("input"), call.shape("weight")[-1]
    heads = call.number("num_heads", 1)
    dtype = PRODUCT_TYPES.get(call.op, call.dtype)
    problem = operators.gemm(batch * length, columns, width, dtype=dtype, bias=True)
    yield call.layer(problem, part="projection", weights=("weight", "bias"))
    past = call.arguments.get("past")
    cached = past.shape[-2] if isinstance(past, Tensor) and past.shape else 0
    query = replace(call.outputs[0], shape=(batch, heads, length, columns // (3 * heads)))
    key = replace(query, shape=(batch, heads, length + cached, columns // (3 * heads)))
    is_causal = call.number("unidirectional", 0) == 1
    yield from attention(replace(call, arguments={"query": query, "key": key, "value": key, "is_causal": is_causal}))


def einsum(call: Call) -> Layers:
    """Yield the products of an equation's terms from left to right, then a sum or a copy that gives the result."""
    shapes = [call.shape(name) for name, value in call.arguments.items() if isinstance(value, Tensor)]
    source, arrow, target = str(call.value("equation", "")).replace(" ", "").partition("->")
    sizes: dict[str, int] = {}

    def axes(term: str, rank: int) -> list[str]:
        head, dots, tail = term.partition("...")
        return [*head, *(f"…{axis}" for axis in range(len(head) + len(tail) - rank, 0) if dots), *tail]

    def extent(labels: Iterable[str]) -> int:
        return prod(sizes[label] for label in set(labels))

    terms = [axes(term, len(shape)) for term, shape in zip(source.split(","), shapes, strict=False)]
    require(list(map(len, terms)) == list(map(len, shapes)), "operands do not fit")
    for label, size in zip(chain(*terms), chain(*shapes), strict=True):
        sizes[label] = max(size, sizes.get(label, 1))
    counts = Counter(chain(*terms))
    dotted = sorted(label for label in counts if label[0] == "…")
    result = [label for label in counts if label in target] + dotted * ("..." in target)
    if not arrow:  # labels that occur once
        result = [*dotted, *(label for label in counts if counts[label] == 1)]
    first, *others = terms
    for number, second in enumerate(others):
        kept = {*result, *chain(*others[number + 1 :])}
        common = set(first) & set(second)
        shared, summed = common & kept, common - kept
        joined = (set(first) | set(second)) - summed
        rows, columns = (extent(set(a) - set(b)) for a, b in ((first, second), (second, first)))
        problem = operators.gemm(rows, columns, extent(summed), batch=extent(shared), dtype=call.dtype)
        if not summed:
            problem = operators.pointwise("mul", [(extent(first),), (extent(second),)], (extent(joined),), call.dtype)
        names = list(call.arguments)
        yield call.layer(problem, part=f"product{number}", data=names[0], weights=(names[number + 1],))
        first = [*joined]
    if extent(first) > extent(result):
        problem = operators.streamed(REDUCE, [(extent(first),)], [(extent(result),)], call.dtype)
        yield call.layer(problem, part="reduced")
    elif not others:
        yield call.layer(operators.elementwise("copy", (extent(result),), call.dtype))


def class_loss(call: Call) -> Layers:
    """Yield the loss of classes: a softmax if the operator includes it, then a pass that reads one score per label."""
    size, labels = call.shape("input"), call.tensor("target")
    if call.op.startswith("Softmax"):
        yield call.layer(operators.softmax(size, 1, call.dtype), part="softmax")
    scores = labels.shape or ()
    stored = (-(-labels.bytes // DTYPES[call.dtype]),)
    problem = operators.streamed(REDUCE, [scores, stored], [call.output_shape or ()], call.dtype)
    yield call.layer(problem, part="loss")


def selection(call: Call) -> Layers:
    """Yield a selection or a sort by radix: a pass for each byte of a value; a sort also writes values and positions.

    Source: Merrill and Grimshaw, "High Performance and Scalable Radix Sorting" (2011).
    """
    elements, itemsize = prod(call.shape()), DTYPES[call.dtype]
    results = [tensor.shape for tensor in call.outputs if tensor.shape is not None]
    reads, writes = [(itemsize, elements)], results or [(elements,)]
    if call.op.lower() not in SELECTIONS:
        positions = -(-8 * elements // itemsize)
        reads = writes = [(itemsize, elements + positions)]
    yield call.layer(operators.streamed(call.op.lower(), reads, writes, call.dtype))
