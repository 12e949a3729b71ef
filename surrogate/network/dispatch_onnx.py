"""Rules of operators that ONNX has as one node: attention with its heads, Einsum, losses, selections, transforms.

Operators without a measured kernel take the roofline time of their traffic. Source of the meanings: the ONNX operator
specification (opsets 1 to 28) and ONNX Runtime's contributed operators.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from math import prod

from surrogate.features.families.operator import REDUCE
from surrogate.features.families.transfer import Concat
from surrogate.features.problem import DTYPES
from surrogate.network import operators
from surrogate.network.aten_call import PRODUCT_TYPES, Call, Tensor, require
from surrogate.network.dispatch_convolutions import Layers
from surrogate.network.dispatch_rules import attention

SELECTIONS = ("topk", "kthvalue", "median", "nanmedian")
"""Operators that select values but do not sort them."""


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
