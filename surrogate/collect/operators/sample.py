"""Operator problems drawn log-uniformly, every kind as often as any other, in a random order of the seed's."""

import math
from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np

from surrogate.collect.operators.operator import KINDS, Operator
from surrogate.features.errors import InputError

MAX_BYTES = 4 << 30
MIN_BYTES = 1 << 12


def sampled(count: int, seed: int, max_bytes: int = MAX_BYTES) -> list[Operator]:
    """``count`` distinct problems of at most ``max_bytes``; the same for the same arguments."""
    if count < 1:
        raise InputError(f"{count} operator problems are none; give at least 1")
    random = np.random.Generator(np.random.PCG64(seed))
    found: dict[Operator, None] = {}
    for kind in cycle(KINDS):
        found[next(_drawn(kind, random, max_bytes))] = None
        if len(found) == count:
            return list(found)
    raise AssertionError("cycle never ends")


def _drawn(kind: str, random: np.random.Generator, max_bytes: int) -> Iterator[Operator]:
    """Problems of one kind within the bytes, without end."""
    while True:
        operator = _DRAWS.get(kind, _image)(kind, random)
        if operator is not None and MIN_BYTES <= operator.bytes <= max_bytes:
            yield operator


def _log_uniform(random: np.random.Generator, low: int, high: int) -> int:
    return round(math.exp(random.uniform(math.log(low), math.log(high))))


def _image(kind: str, random: np.random.Generator) -> Operator:
    n, c, h = (_log_uniform(random, *span) for span in ((1, 256), (1, 2048), (4, 256)))
    return Operator(kind, (n, c, h, h))


def _pool(kind: str, random: np.random.Generator) -> Operator | None:
    window = int(random.choice([2, 3, 3, 5, 7]))
    stride = int(random.choice([1, 2, 2, window]))
    image = _image("relu", random)
    return Operator(kind, (*image.sizes, window, stride)) if window <= image["h"] else None


def _softmax(kind: str, random: np.random.Generator) -> Operator:
    return Operator(kind, (_log_uniform(random, 1, 16384), _log_uniform(random, 8, 65536)))


def _gemm(kind: str, random: np.random.Generator) -> Operator:
    batch = 1 if random.random() < 0.6 else _log_uniform(random, 2, 512)
    return Operator(kind, (batch, *(_log_uniform(random, 8, 8192) for _ in range(3))))


def _embedding(kind: str, random: np.random.Generator) -> Operator:
    spans = ((64, 8192), (1000, 2_000_000), (1, 64), (1, 128))
    dim = int(random.choice([16, 32, 64, 128]))
    sizes = (*(_log_uniform(random, *span) for span in spans), dim)
    return Operator(kind, (*sizes, int(random.choice([4, 32]))))


_DRAWS: dict[str, Callable[[str, np.random.Generator], Operator | None]] = {
    "max_pool": _pool,
    "max_pool_backward": _pool,
    "softmax": _softmax,
    "gemm": _gemm,
    "embedding_bag": _embedding,
    "embedding_bag_backward": _embedding,
}
