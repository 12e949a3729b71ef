"""Scaled dot-product attention, fused in PyTorch, as the products and softmax it stands for."""

from dataclasses import replace
from math import prod

from surrogate.features.operators import SoftmaxBackward
from surrogate.network import work as make
from surrogate.network.aten_call import Call, Layers
from surrogate.network.network import INPUT, WEIGHT


def attention(call: Call) -> Layers:
    """Scaled dot-product attention as its two products and a softmax (a fused kernel moves less)."""
    query, key, value = (call.shape(name) for name in ("query", "key", "value"))
    batch, rows, columns = prod(query[:-2]), query[-2], key[-2]
    for part, work in (
        ("scores", make.gemm(rows, columns, query[-1], batch=batch, dtype=call.dtype)),
        ("softmax", make.softmax((batch, rows, columns), -1, call.dtype)),
        ("values", make.gemm(rows, value[-1], columns, batch=batch, dtype=call.dtype)),
    ):
        layer = call.layer(work, part=part, data="query")
        yield replace(
            layer, gradients=(INPUT, WEIGHT) if layer.gradients and part != "softmax" else layer.gradients
        )


def attention_backward(call: Call) -> Layers:
    """Its gradient: the scores again, four products, a softmax gradient."""
    query, key, value = (call.shape(name) for name in ("query", "key", "value"))
    batch, rows, columns = prod(query[:-2]), query[-2], key[-2]
    depth, width = query[-1], value[-1]
    sizes = {
        "scores": (rows, columns, depth),
        "grad_value": (columns, width, rows),
        "grad_weights": (rows, columns, width),
        "grad_query": (rows, depth, columns),
        "grad_key": (columns, depth, rows),
    }
    for part, (m, n, k) in sizes.items():
        yield call.layer(make.gemm(m, n, k, batch=batch, dtype=call.dtype), part=part)
    yield call.layer(SoftmaxBackward(n=batch * rows, c=columns, dtype=call.dtype), part="softmax")
