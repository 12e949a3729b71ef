"""A mixture of experts: every token's products with the few experts that a router chose for it, on one GPU."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..elementwise import Number, ceil_div, log2, maximum, minimum, where
from ..errors import InputError
from ..operators.operator import Operator
from ..problem import ELEMENTS, MATHS, may_use_tensor_cores

BALANCED = "balanced"
_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")
NONGATED = "nongated"
"""The variant with two products an expert (up, down) in place of three (gate, up, down)."""
TILE = 128
"""Rows and columns of a grouped product's tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe(Operator):
    """``tokens`` tokens of ``hidden`` values, each sent to ``topk`` of ``experts`` experts of width ``inter``.

    ``tokens`` are those of all ranks. Experts are split over ``expert_parallel`` ranks and each expert's width over
    ``tensor_parallel``; FLOPs and bytes are those of the rank with most work. Routing (token, expert) is deterministic:

    - ``balanced``: every expert gets equally many tokens; fewer tokens than experts meet different ones.
    - ``power_law_A``: loads of the experts are drawn with a density x^−A between 1 and 0.8·tokens (0.01 and 2 where
      there are fewer pairs than experts), scaled to the sum tokens·topk and rounded, as the collectors of
      ai-dynamo/aiconfigurator draw them; the formulas give expectations.
    """

    kind: ClassVar[str] = "moe"
    BATCH: ClassVar[str] = "tokens"
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
        """Experts are enough, and equally many on every rank."""
        return [
            ("topk", sizes["topk"] > sizes["experts"], "a token's experts are different ones of experts"),
            ("expert_parallel", sizes["experts"] % sizes["expert_parallel"] != 0, "it divides experts"),
        ]

    @classmethod
    def tensor_cores(cls, dtype: str, math: str) -> bool:
        """As in `surrogate.features.operators.gemm.Gemm`."""
        return may_use_tensor_cores(dtype, math)

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
    def load(self) -> tuple[Number, Number, Number]:
        """On the busiest rank: (token, expert) pairs, experts with any token, and tokens of the busiest expert."""
        load = self._load
        if load is None:
            load = self._expected_load()
            object.__setattr__(self, "_load", load)
        return load

    def _expected_load(self) -> tuple[Number, Number, Number]:
        pairs, share = 1.0 * self.tokens * self.topk, 1.0 / self.expert_parallel
        distinct = minimum(pairs, self.experts)
        if not self.exponent:
            mine, touched = maximum(pairs * share, 1.0), maximum(distinct * share, 1.0)
            return mine, touched, mine / touched
        many = pairs > self.experts
        low, high = where(many, 1.0, 0.01), where(many, maximum(0.8 * self.tokens, 1.01), 2.0)
        a = 1.0 - self.exponent - 1e-6  # the integrals below have no closed form where a is 0, −1 or −2
        floor, reach = low**a, high**a - low**a
        # Mean and variance of the density, then what one unit of it is in tokens.
        mean = (high ** (a + 1) - low ** (a + 1)) * a / ((a + 1) * reach)
        spread = maximum((high ** (a + 2) - low ** (a + 2)) * a / ((a + 2) * reach) - mean * mean, 0.0) ** 0.5
        unit = pairs / self.experts / mean
        # A load below half a token is rounded to none; few pairs meet experts as if they were drawn uniformly.
        rounded = minimum(maximum(((0.5 / unit) ** a - floor) / reach, 0.0), 1.0)
        silent = where(many, rounded, math.e ** (-pairs / self.experts))
        touched = minimum(maximum((1.0 - silent) * self.experts, self.topk), distinct)
        largest = minimum((floor + reach * self.experts / (self.experts + 1)) ** (1 / a) * unit, self.tokens)
        # The busiest of p ranks: p sums of many loads (their expected largest lies z(p) deviations above the mean), or
        # the largest expert among average ones, whichever is more.
        doublings = log2(self.expert_parallel)
        z = 0.617 * doublings / (1 + 0.0937 * doublings)
        local = self.local_experts
        summed = pairs * share + z * unit * spread * (1.0 * local) ** 0.5
        single = largest + (local - 1) * pairs / self.experts
        most = minimum(pairs, 1.0 * self.tokens * minimum(self.topk, local))
        mine = minimum(maximum(maximum(summed, single), 1.0), most)
        return mine, minimum(maximum(touched * share, 1.0), mine), minimum(largest, mine)

    @property
    def tiles(self) -> Number:
        """Tiles of 128 rows over the busiest rank's experts: ⌈load/128⌉ summed, loads that vary half a tile more."""
        mine, touched, _ = self.load
        if not self.exponent:
            return touched * ceil_div(mine / touched, TILE)
        return maximum(touched, mine / TILE + touched / 2)

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
        return self.tiles * ceil_div((self.matrices - 1) * self.width, TILE)
