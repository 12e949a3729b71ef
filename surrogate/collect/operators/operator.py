"""One operator problem: its kind and its sizes; and problems drawn log-uniformly, every kind as often as any other."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from math import prod

import numpy as np

from surrogate.features.errors import InputError, require_known

IMAGE = ("n", "c", "h", "w")
POOL = (*IMAGE, "window", "stride")
GEMM = ("batch", "m", "n", "k")
EMBEDDING = ("batch", "rows", "tables", "bag", "dim", "rows_per_block")
KINDS: Mapping[str, tuple[str, ...]] = {
    "max_pool": POOL,
    "max_pool_backward": POOL,
    "batch_norm": IMAGE,
    "relu": IMAGE,
    "add": IMAGE,
    "layout_transform": IMAGE,
    "softmax": ("n", "c"),
    "gemm": GEMM,
    "embedding_bag": EMBEDDING,
    "embedding_bag_backward": EMBEDDING,
}
"""Kind → the names of its sizes. Everything is fp32 (indices int32), images NCHW."""
MIN_BYTES, MAX_BYTES = 1 << 12, 4 << 30
"""Bounds of the drawn problems."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One problem. ``sizes`` are in the order of `KINDS`. Raises `InputError` for an unknown kind or a bad size.

    gemm: C (batch, m, n) = A (batch, m, k) · B (batch, k, n). max_pool: a square window without padding. An
    embedding bag sums ``bag`` rows of ``dim`` from each of ``tables`` tables of ``rows``, for ``batch``
    samples; the backward kinds add the gradient (SGD) into the tables, or spread it over the pooled input.
    """

    kind: str
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        require_known("operator", self.kind, KINDS)
        names = KINDS[self.kind]
        if len(self.sizes) != len(names) or min(self.sizes) < 1:
            raise InputError(
                f"{self.kind} with sizes {self.sizes}; whole numbers of at least 1 are needed for {', '.join(names)}"
            )
        if "window" in names and self["window"] > min(self["h"], self["w"]):
            raise InputError(f"{self.kind}: window {self['window']} exceeds the image; give a smaller one")

    @classmethod
    def of(cls, kind: str, **sizes: int) -> "Operator":
        """By named sizes, as in ``Operator.of("softmax", n=32, c=1000)``."""
        names = KINDS.get(kind, tuple(sizes))
        if set(names) != set(sizes):
            raise InputError(f"{kind} needs {', '.join(names)}; {', '.join(sizes) or 'nothing'} came")
        return cls(kind, tuple(sizes[name] for name in names))

    def __getitem__(self, name: str) -> int:
        return self.sizes[KINDS[self.kind].index(name)]

    @property
    def named(self) -> dict[str, int]:
        """Size name → size."""
        return dict(zip(KINDS[self.kind], self.sizes, strict=True))

    @property
    def key(self) -> str:
        """Names the problem in one line, as in ``softmax n=32 c=1000``."""
        return " ".join([self.kind, *(f"{name}={size}" for name, size in self.named.items())])

    @property
    def pooled(self) -> tuple[int, int]:
        """Output height and width of a pooling: ⌊(size − window) / stride⌋ + 1."""
        return tuple((self[axis] - self["window"]) // self["stride"] + 1 for axis in "hw")  # type: ignore[return-value]

    @property
    def bytes(self) -> int:
        """Bytes of all operands and results together, each held once."""
        if self.kind == "gemm":
            batch, m, n, k = self.sizes
            return 4 * batch * (m * k + k * n + m * n)
        if self.kind.startswith("embedding"):
            batch, rows, tables, bag, dim, _ = self.sizes
            return 4 * tables * (rows * dim + batch * bag + batch * dim)
        held = prod(self.sizes[:4]) if "h" in KINDS[self.kind] else prod(self.sizes)
        if self.kind.startswith("max_pool"):
            output = self["n"] * self["c"] * prod(self.pooled)
            return (4 if self.kind == "max_pool" else 8) * (held + output)
        return 4 * held * (3 if self.kind == "add" else 2)


def parse(key: str) -> Operator:
    """The inverse of `Operator.key`."""
    kind, *words = key.split(" ")
    return Operator.of(kind, **{name: int(size) for name, size in (word.split("=") for word in words)})


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
