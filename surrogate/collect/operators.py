"""Operator problems to measure: their name in a log, the bytes they hold, and problems drawn log-uniformly.

Every kind is drawn as often as any other. Everything is fp32 (indices int32), images are NCHW, pooling windows square
and not padded.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.families import Operator, operator

IMAGE = ("n", "c", "h", "w")
POOL = (*IMAGE, "window", "stride")
GEMM = ("batch", "m", "n", "k")
EMBEDDING = ("batch", "rows", "tables", "bag", "dim", "rows_per_block")
SOFTMAX = ("n", "c")
KINDS: Mapping[str, tuple[str, ...]] = {
    "max_pool": POOL,
    "max_pool_backward": POOL,
    "batch_norm": IMAGE,
    "relu": IMAGE,
    "add": IMAGE,
    "layout_transform": IMAGE,
    "softmax": SOFTMAX,
    "gemm": GEMM,
    "embedding_bag": EMBEDDING,
    "embedding_bag_backward": EMBEDDING,
}
"""Kind → the sizes that its name holds; others have their defaults."""
MIN_BYTES, MAX_BYTES = 1 << 12, 4 << 30
"""Bounds of the drawn problems."""


def key_of(problem: Operator) -> str:
    """Names the problem in one line, as in ``softmax n=32 c=1000``."""
    return " ".join([problem.kind, *(f"{name}={getattr(problem, name)}" for name in KINDS[problem.kind])])


def parse(key: str) -> Operator:
    """The inverse of `key_of`."""
    kind, *words = key.split(" ")
    return operator(kind, **{name: int(size) for name, size in (word.split("=") for word in words)})


def held_bytes(problem: Operator) -> int:
    """Bytes of all operands and results together, each held once."""
    size = problem.sizes
    if "bag" in size:
        a_table = size["rows"] * size["dim"] + size["batch"] * (size["bag"] + size["dim"])
        return 4 * size["tables"] * a_table
    held: Any = problem.dram_bytes
    return held // 3 * 2 if problem.kind == "batch_norm" else held  # which reads its image twice


def sampled(count: int, seed: int, max_bytes: int = MAX_BYTES) -> list[Operator]:
    """``count`` distinct problems of at most ``max_bytes``; the same for the same arguments."""
    if count < 1:
        raise InputError(f"{count} operator problems are none; give at least 1")
    random = np.random.Generator(np.random.PCG64(seed))
    drawn: dict[Operator, None] = {}
    kinds = cycle(KINDS)
    while len(drawn) < count:
        drawn[next(_drawn(next(kinds), random, max_bytes))] = None
    return list(drawn)


def _drawn(kind: str, random: np.random.Generator, max_bytes: int) -> Iterator[Operator]:
    """Problems of one kind within the bytes, without end."""
    while True:
        sizes = _DRAWS[KINDS[kind]](random)
        if "window" in KINDS[kind] and sizes[4] > sizes[2]:
            continue
        problem = operator(kind, **dict(zip(KINDS[kind], sizes, strict=True)))
        if MIN_BYTES <= held_bytes(problem) <= max_bytes:
            yield problem


def _log_uniform(random: np.random.Generator, *spans: tuple[int, int]) -> tuple[int, ...]:
    return tuple(round(math.exp(random.uniform(math.log(low), math.log(high)))) for low, high in spans)


def _image(random: np.random.Generator) -> tuple[int, ...]:
    n, c, h = _log_uniform(random, (1, 256), (1, 2048), (4, 256))
    return n, c, h, h


def _pool(random: np.random.Generator) -> tuple[int, ...]:
    window = int(random.choice([2, 3, 3, 5, 7]))
    stride = int(random.choice([1, 2, 2, window]))
    return *_image(random), window, stride


def _softmax(random: np.random.Generator) -> tuple[int, ...]:
    return _log_uniform(random, (1, 16384), (8, 65536))


def _gemm(random: np.random.Generator) -> tuple[int, ...]:
    batch = (1,) if random.random() < 0.6 else _log_uniform(random, (2, 512))
    return *batch, *_log_uniform(random, *[(8, 8192)] * 3)


def _embedding(random: np.random.Generator) -> tuple[int, ...]:
    dim = int(random.choice([16, 32, 64, 128]))
    sizes = _log_uniform(random, (64, 8192), (1000, 2_000_000), (1, 64), (1, 128))
    return *sizes, dim, int(random.choice([4, 32]))


_DRAWS: dict[tuple[str, ...], Callable[[np.random.Generator], tuple[int, ...]]] = {
    IMAGE: _image,
    POOL: _pool,
    SOFTMAX: _softmax,
    GEMM: _gemm,
    EMBEDDING: _embedding,
}
