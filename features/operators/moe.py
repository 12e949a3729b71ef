"""A mixture of experts: every token's products with the few experts that a router chose for it, on one GPU."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..elementwise import Number, ceil_div, maximum, minimum
from ..errors import InputError
from ..operators.operator import Operator
from ..problem import ELEMENTS, MATHS

BALANCED = "balanced"
_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")
NONGATED = "nongated"
"""The variant with two products an expert (up, down) in place of three (gate, up, down)."""
TILE = 128
"""Rows and columns of a grouped product's tile."""
DRAWS = 32
"""Routings whose mean load counts."""


@lru_cache(maxsize=65_536)
def _drawn(exponent: float, tokens: int, topk: int, experts: int, ranks: int) -> tuple[float, ...]:
    """`Moe.load` under a power law, the mean of draws."""
    pairs, a = tokens * topk, 1.0 - exponent
    low, high = (1.0, max(0.8 * tokens, 1.01)) if pairs > experts else (0.01, 2.0)
    even = np.random.default_rng(0).random((DRAWS, experts))
    share = (low**a + even * (high**a - low**a)) ** (1.0 / a)
    loads = np.rint(share * (pairs / share.sum(axis=1, keepdims=True)))
    # What rounding lost goes to the largest loads, one each; what it made comes off the largest one.
    order = np.argsort(np.argsort(-loads, axis=1, kind="stable"), axis=1)
    left = pairs - loads.sum(axis=1, keepdims=True)
    loads += (order < left) + (order == 0) * np.minimum(left, 0.0)
    parts = loads.reshape(DRAWS, ranks, -1)
    busiest = parts[np.arange(DRAWS), parts.sum(axis=2).argmax(axis=1)]
    tiles = np.ceil(busiest / TILE)
    measures = busiest.sum(axis=1), (busiest > 0).sum(axis=1), busiest.max(axis=1), tiles.sum(axis=1)
    return tuple(float(values.mean()) for values in measures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe(Operator):
    """``tokens`` tokens of ``hidden`` values, each sent to ``topk`` of ``experts`` experts of width ``inter``.

    ``tokens`` are those of all ranks. Experts are split over ``expert_parallel`` ranks and each expert's width over
    ``tensor_parallel``; FLOPs and bytes are those of the rank with most work. Routing (token, expert) is deterministic:

    - ``balanced``: every expert gets equally many tokens; fewer tokens than experts meet different ones.
    - ``power_law_A``: loads of the experts are drawn with a density x^−A between 1 and 0.8·tokens (0.01 and 2 where
      there are fewer pairs than experts), scaled to the sum tokens·topk and rounded, as the collectors of
      ai-dynamo/aiconfigurator draw them; the mean of draws that are always the same counts.
    """

    kind: ClassVar[str] = "moe"
    BATCH: ClassVar[str] = "tokens"
    MULTIPLIES: ClassVar[bool] = True
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {"dtype": tuple(ELEMENTS), "math": MATHS}
    LETTERS: ClassVar[Mapping[str, str]] = {
        "t": "tokens", "h": "hidden", "i": "inter", "k": "topk", "e": "experts", "tp": "tensor_parallel",
        "ep": "expert_parallel",
    }  # fmt: skip
    EXAMPLE: ClassVar[str] = "moe:t256h7168i2048k8e256tp1ep8"

    dtype: str = "bf16"
    math: str = "default"
    routing: str = BALANCED
    tokens: int
    hidden: int
    inter: int
    topk: int
    experts: int
    tensor_parallel: int = 1
    expert_parallel: int = 1
    _load: Any = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self.routing != BALANCED and not _POWER_LAW.fullmatch(self.routing):
            raise InputError(
                f"moe: routing {self.routing!r} is unknown; known: {BALANCED}, power_law_1.2 and other exponents"
            )
        Operator.__post_init__(self)

    @classmethod
    def misfits(cls, sizes: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
        """There are enough experts, and equally many on every rank."""
        return [
            ("topk", sizes["topk"] > sizes["experts"], "a token's experts are different ones of experts"),
            ("expert_parallel", sizes["experts"] % sizes["expert_parallel"] != 0, "it divides experts"),
        ]

    @property
    def stratum(self) -> str:
        """``balanced`` or ``power_law``."""
        return BALANCED if self.routing == BALANCED else "power_law"

    @property
    def exponent(self) -> float:
        """The power law's A; 0 where loads are equal."""
        match = _POWER_LAW.fullmatch(self.routing)
        return float(match[1]) if match else 0.0

    @property
    def matrices(self) -> int:
        """Weight matrices of an expert."""
        return 2 if self.variant == NONGATED else 3

    @property
    def local_experts(self) -> Number:
        """Experts of a rank."""
        return self.experts // self.expert_parallel

    @property
    def width(self) -> Number:
        """Values of an expert's inner layer on a rank."""
        return ceil_div(self.inter, self.tensor_parallel)

    @property
    def load(self) -> tuple[Number, Number, Number, Number]:
        """On the busiest rank: (token, expert) pairs, experts with any, pairs of its busiest one, tiles of 128 rows."""
        load = self._load
        if load is None:
            load = self._expected_load()
            object.__setattr__(self, "_load", load)
        return load

    def _expected_load(self) -> tuple[Number, Number, Number, Number]:
        pairs, share = 1.0 * self.tokens * self.topk, 1.0 / self.expert_parallel
        if not self.exponent:
            routed = maximum(pairs * share, 1.0)
            touched = maximum(minimum(pairs, self.experts) * share, 1.0)
            return routed, touched, routed / touched, touched * ceil_div(routed / touched, TILE)
        sizes = np.broadcast_arrays(self.tokens, self.topk, self.experts, self.expert_parallel)
        if not sizes[0].ndim:
            return _drawn(self.exponent, *map(int, sizes))
        distinct, index = np.unique(np.stack(sizes), axis=1, return_inverse=True)
        drawn = np.array([_drawn(self.exponent, *each) for each in distinct.T.tolist()])
        return tuple(drawn[index.ravel()].T)

    @property
    def flops(self) -> Number:
        """2·matrices·pairs·hidden·width."""
        return 2 * self.matrices * self.load[0] * self.hidden * self.width

    @property
    def weight_bytes(self) -> Number:
        """All matrices of the experts with any token."""
        return self.matrices * self.load[1] * self.hidden * self.width * self.element.weight_bytes

    @property
    def activation_bytes(self) -> Number:
        """The rank's tokens in and out, and the inner layer written and read."""
        value, pairs = self.element, self.load[0]
        both = value.activation_bytes + value.output_bytes
        return (minimum(pairs, self.tokens) * self.hidden + pairs * self.width) * both

    @property
    def dram_bytes(self) -> Number:
        """Weights of the experts touched, and activations."""
        return self.weight_bytes + self.activation_bytes

    @property
    def blocks(self) -> Number:
        """A block per 128 × 128 tile of the first product."""
        return self.load[3] * ceil_div((self.matrices - 1) * self.width, TILE)
