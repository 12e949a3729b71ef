"""The operators in NumPy, on this CPU: what they compute, and a device for machines without a GPU."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import softmax

from surrogate.collect.cpu.algorithms import LIBRARY
from surrogate.collect.device import DeviceInfo, Measurement
from surrogate.collect.operators.operator import Operator
from surrogate.collect.protocol import RepeatPolicy

LEARNING_RATE = np.float32(0.01)
EPSILON = np.float32(1e-5)


class CpuOperators:
    """Wall-clock times of the NumPy operators."""

    def __init__(self, spec: Mapping[str, Any] | None = None, seed: int = 0) -> None:
        """``spec``: facts of the CPU for the header; measured (about 2 s) where not given."""
        if spec is None:
            from surrogate.collect.cpu.spec import measure_spec

            spec = measure_spec()
        self._spec = dict(spec)
        self._random = np.random.Generator(np.random.PCG64(seed))

    def describe(self) -> DeviceInfo:
        """The CPU's name and NumPy's version."""
        name = str(self._spec.get("name") or "CPU")
        return DeviceInfo(name, LIBRARY, f"numpy {np.__version__}", {}, self._spec)

    def measure(self, operator: Operator, policy: RepeatPolicy) -> Measurement:
        """Warm once, then repeat; what fails is a status."""
        try:
            call = prepared(operator, self._random)
            warm_us = _call_us(call)
            times_us = tuple(_call_us(call) for _ in range(policy.repeats_for(warm_us)))
        except MemoryError as error:
            return Measurement("failed", str(error) or "out of memory")
        return Measurement("ok", "", times_us, times_us, "wall")

    def conditions(self) -> Mapping[str, float]:
        """None are known."""
        return {}

    def close(self) -> None:
        """Nothing to give back."""


def prepared(operator: Operator, random: np.random.Generator) -> Callable[[], Any]:
    """A call that runs ``operator`` on random operands, and returns its result."""
    kind = operator.kind
    if kind == "gemm":
        batch, m, n, k = operator.sizes
        a, b = _normal(random, batch, m, k), _normal(random, batch, k, n)
        return lambda: a @ b
    if kind.startswith("embedding"):
        return _embedding(operator, random)
    if kind == "softmax":
        scores = _normal(random, *operator.sizes)
        return lambda: softmax(scores, axis=1)
    x = _normal(random, *operator.sizes[:4])
    if kind == "add":
        other = _normal(random, *operator.sizes)
        return lambda: x + other
    if kind == "max_pool_backward":
        gradient = _normal(random, operator["n"], operator["c"], *operator.pooled)
        return lambda: max_pool_backward(x, gradient, operator["window"], operator["stride"])
    return {
        "relu": lambda: np.maximum(x, 0),
        "layout_transform": lambda: np.ascontiguousarray(x.transpose(0, 2, 3, 1)),
        "batch_norm": lambda: batch_norm(x),
        "max_pool": lambda: max_pool(x, operator["window"], operator["stride"]),
    }[kind]


def batch_norm(x: np.ndarray) -> np.ndarray:
    """x (n, c, h, w) with mean 0 and variance 1 per channel: training's forward pass, scale 1 and bias 0."""
    axes = (0, 2, 3)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPSILON)


def max_pool(x: np.ndarray, window: int, stride: int) -> np.ndarray:
    """The largest value of each window of x (n, c, h, w)."""
    return _windows(x, window, stride).max(axis=(-2, -1))


def max_pool_backward(x: np.ndarray, gradient: np.ndarray, window: int, stride: int) -> np.ndarray:
    """``gradient`` (n, c, p, q) given to the first largest value of each window; shaped like x."""
    windows = _windows(x, window, stride)
    p, q = windows.shape[2:4]
    chosen = windows.reshape(*windows.shape[:4], -1).argmax(axis=-1)
    result = np.zeros_like(x)
    rows = np.arange(p)[:, None] * stride + chosen // window
    columns = np.arange(q) * stride + chosen % window
    images, channels = np.ogrid[: x.shape[0], : x.shape[1]]
    np.add.at(result, (images[..., None, None], channels[..., None, None], rows, columns), gradient)
    return result


def embedding_bag(tables: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Sums (t, batch, dim) of the rows of ``tables`` (t, rows, dim) that ``indices`` (t, batch, bag) name."""
    return np.stack([table[chosen].sum(axis=1) for table, chosen in zip(tables, indices, strict=True)])


def embedding_bag_backward(tables: np.ndarray, indices: np.ndarray, gradient: np.ndarray) -> None:
    """SGD in place: every row named takes −rate · its sample's ``gradient`` (t, batch, dim), as often as named."""
    for table, chosen, slope in zip(tables, indices, gradient, strict=True):
        step = np.broadcast_to((LEARNING_RATE * slope)[:, None, :], (*chosen.shape, slope.shape[-1]))
        np.subtract.at(table, chosen, step)


def _embedding(operator: Operator, random: np.random.Generator) -> Callable[[], Any]:
    batch, rows, tables, bag, dim, _ = operator.sizes
    weights = _normal(random, tables, rows, dim)
    indices = random.integers(0, rows, (tables, batch, bag), dtype=np.int32)
    if operator.kind == "embedding_bag":
        return lambda: embedding_bag(weights, indices)
    gradient = _normal(random, tables, batch, dim)
    return lambda: embedding_bag_backward(weights, indices, gradient)


def _windows(x: np.ndarray, window: int, stride: int) -> np.ndarray:
    view = np.lib.stride_tricks.sliding_window_view(x, (window, window), axis=(2, 3))
    return view[:, :, ::stride, ::stride]


def _normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32)


def _call_us(call: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - began_s)
