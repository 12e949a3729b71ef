"""The family of mixtures of experts: each token is multiplied by the few experts that a router selects for it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..caches import BoundedCache
from ..elementwise import Number, ceil_div, log2, maximum, minimum, round_up
from ..errors import refusal
from ..problem import ELEMENTS, MATHS, Size
from ..roofline import Machine, waves_of
from .operator import Choices, Misfit, Operator, register_operator
from .operator_family import FamilyDeclaration

BALANCED = "balanced"
_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")
NONGATED = "nongated"
"""The variant with two products per expert (up, down) instead of three (gate, up, down)."""
TILE = 128
"""Rows and columns of a grouped product's tile."""
DRAWS = 32
"""Number of random routings for a mean load."""
MAX_DRAWN_BYTES = 1 << 20
"""Maximum size of the random draws that are kept."""


class ExpertLoad(NamedTuple):
    """The load of the busiest rank.

    ``pairs`` are its (token, expert) pairs, ``used_experts`` its experts with a pair, ``max_pairs`` the pairs of its
    busiest expert, and ``tiles`` its tiles of `TILE` rows. Under a power law, all four are means of random draws.
    """

    pairs: Number
    used_experts: Number
    max_pairs: Number
    tiles: Number


_UNIFORM: BoundedCache[int, np.ndarray] = BoundedCache(MAX_DRAWN_BYTES, attrgetter("nbytes"))


def _uniform(experts: int) -> np.ndarray:
    """Return `DRAWS` uniform draws for each expert, (draws, experts)."""
    kept = _UNIFORM.get(experts)
    return _UNIFORM.put(experts, np.random.default_rng(0).random((DRAWS, experts))) if kept is None else kept


@lru_cache(maxsize=16_384)
def _drawn(exponent: float, tokens: int, topk: int, experts: int, ranks: int) -> ExpertLoad:
    """Return `Moe.load` under a power law: the mean of random draws."""
    # Draw loads with the density x^−exponent between 1 and e^log_range: invert the distribution at uniform draws.
    pairs = tokens * topk
    a = 1.0 - exponent
    log_range = np.log(max(0.8 * tokens, 1.01) if pairs > experts else 2.0 / 0.01)
    share = np.exp(np.log1p(_uniform(experts) * np.expm1(a * log_range)) / a if a else _uniform(experts) * log_range)
    loads = np.rint(share * (pairs / share.sum(axis=1, keepdims=True)))
    # Correct the sum after rounding: add 1 to each of the largest loads, or subtract the surplus from the largest load.
    # Of equal loads the one with the largest share before rounding counts as the largest.
    keys = loads + _uniform(experts)
    ordered = np.sort(keys, axis=1)
    missing = pairs - loads.sum(axis=1, keepdims=True)
    first = np.clip(experts - missing, 0, experts - 1).astype(np.int64)
    loads += (keys >= np.take_along_axis(ordered, first, axis=1)) & (missing > 0)
    loads += (keys == ordered[:, -1:]) * np.minimum(missing, 0.0)
    # (draws, ranks, experts of a rank): take the rank with most pairs in each draw.
    parts = loads.reshape(DRAWS, ranks, -1)
    busiest = parts[np.arange(DRAWS), parts.sum(axis=2).argmax(axis=1)]
    totals = busiest.sum(axis=1), (busiest > 0).sum(axis=1), busiest.max(axis=1), np.ceil(busiest / TILE).sum(axis=1)
    return ExpertLoad(*np.stack(totals).mean(axis=1).tolist())


_LETTERS = {"t": "tokens", "h": "hidden", "i": "inter", "k": "topk", "e": "experts"}


# 4 tokens with 2 of 8 experts each are 8 pairs, one per expert. An expert has three matrices of 16 × 32 values.
# Activations: 4 tokens of 16 and 8 inner rows of 32 values, read and written.
@register_operator(
    "moe:t4h16i32k2e8", flops=2 * 3 * 8 * 16 * 32, dram_bytes=2 * (3 * 8 * 16 * 32 + 2 * (64 + 256)), blocks=8
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Moe(Operator):
    """``tokens`` tokens of ``hidden`` values; each goes to ``topk`` of ``experts`` experts of width ``inter``.

    ``tokens`` counts the tokens of all ranks. Experts are split over ``expert_parallel`` ranks, and each expert's width
    over ``tensor_parallel``. FLOPs and bytes describe the rank with most work. ``routing`` is deterministic:

    - ``balanced``: all experts get equally many tokens. If there are fewer (token, expert) pairs than experts, each
      pair has an expert of its own.
    - ``power_law_A``: loads of the experts are drawn with a density x^−A between 1 and 0.8·tokens (0.01 and 2 if there
      are fewer pairs than experts). They are scaled to the sum tokens·topk and rounded. The collectors of
      ai-dynamo/aiconfigurator do the same. The load is the mean of draws with a fixed seed.
    """

    FAMILY: ClassVar[str] = "moe"
    BATCH: ClassVar[str] = "tokens"
    MULTIPLIES: ClassVar[bool] = True
    CHOICES: ClassVar[Choices] = {"dtype": tuple(ELEMENTS), "math": MATHS}
    LETTERS: ClassVar[Mapping[str, str]] = {**_LETTERS, "tp": "tensor_parallel", "ep": "expert_parallel"}

    dtype: str = "bf16"
    math: str = "default"
    routing: Annotated[str, "how tokens spread over experts: balanced, or power_law_1.2"] = BALANCED
    tokens: Annotated[int, Size("tokens of all ranks")]
    hidden: Annotated[int, Size("values of a token")]
    inter: Annotated[int, Size("width of an expert's inner layer, over all ranks")]
    topk: Annotated[int, Size("experts of a token")]
    experts: Annotated[int, Size("experts of all ranks")]
    tensor_parallel: Annotated[int, Size("ranks that share the width of an expert")] = 1
    expert_parallel: Annotated[int, Size("ranks that share the experts")] = 1
    _load: ExpertLoad | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self.routing != BALANCED and not _POWER_LAW.fullmatch(self.routing):
            raise refusal("routing", routing=self.routing)
        Operator.__post_init__(self)

    @classmethod
    def misfits(cls, sizes: Mapping[str, Number]) -> list[Misfit]:
        """Return where ``topk`` exceeds the experts, and where ranks would have different numbers of experts."""
        return [
            ("topk", sizes["topk"] > sizes["experts"], "it is at most experts"),
            ("expert_parallel", sizes["experts"] % sizes["expert_parallel"] != 0, "it divides experts"),
        ]

    @property
    def stratum(self) -> str:
        """``balanced`` or ``power_law``."""
        return BALANCED if self.routing == BALANCED else "power_law"

    @property
    def exponent(self) -> float:
        """The power law's A; 0 for equal loads."""
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
    def load(self) -> ExpertLoad:
        """Load of the busiest rank."""
        load = self._load
        if load is None:
            load = self._expected_load()
            object.__setattr__(self, "_load", load)
        return load

    def _expected_load(self) -> ExpertLoad:
        pairs = 1.0 * self.tokens * self.topk
        share = 1.0 / self.expert_parallel
        if self.routing == BALANCED:
            routed = maximum(pairs * share, 1.0)
            used = maximum(minimum(pairs, self.experts) * share, 1.0)
            return ExpertLoad(routed, used, routed / used, used * ceil_div(routed / used, TILE))
        sizes = np.broadcast_arrays(self.tokens, self.topk, self.experts, self.expert_parallel)
        if not sizes[0].ndim:
            return _drawn(self.exponent, *map(int, sizes))
        distinct, index = np.unique(np.stack(sizes), axis=1, return_inverse=True)
        drawn = np.array([_drawn(self.exponent, *each) for each in distinct.T.tolist()])
        return ExpertLoad(*drawn.reshape(-1, len(ExpertLoad._fields))[index.ravel()].T)

    @property
    def flops(self) -> Number:
        """2·matrices·pairs·hidden·width."""
        return 2 * self.matrices * self.load.pairs * self.hidden * self.width

    @property
    def multiply_adds(self) -> int:
        """matrices·tokens·topk·hidden·width, divided by the ranks: a rank's share if loads were equal."""
        products = self.matrices * self.tokens * self.topk * self.hidden * self.width
        return int(products) // int(self.expert_parallel)

    @property
    def weight_bytes(self) -> Number:
        """Bytes of all matrices of the used experts."""
        return self.matrices * self.load.used_experts * self.hidden * self.width * self.element.weight_bytes

    @property
    def activation_bytes(self) -> Number:
        """Bytes of the rank's tokens, read and written, and of the inner layer, written and read."""
        pairs = self.load.pairs
        both = self.element.activation_bytes + self.element.output_bytes
        return (minimum(pairs, self.tokens) * self.hidden + pairs * self.width) * both

    @property
    def dram_bytes(self) -> Number:
        """Bytes of the used experts' weights and of activations."""
        return self.weight_bytes + self.activation_bytes

    @property
    def blocks(self) -> Number:
        """One block per 128 × 128 tile of the first product."""
        return self.load.tiles * ceil_div((self.matrices - 1) * self.width, TILE)


def moe_columns(op: Moe, m: Machine) -> tuple[Number, ...]:
    """Return the family's columns of a mixture of experts on a machine: tiles of 128 × 128, one tile per SM at a time.

    Sizes of the whole layer are excluded. With them trees memorise the layers of the training data and fail on new
    ones.
    """
    pairs, used_experts, max_pairs, tiles = op.load
    weights = 1.0 * op.weight_bytes
    columns = []
    for outputs, length in (((op.matrices - 1) * op.width, op.hidden), (op.hidden, op.width)):
        waves, use, rounded_up = waves_of(tiles * ceil_div(outputs, TILE), m)
        tile_us = 2.0 * TILE * TILE * length * m.sms / (m.peak_tflops * 1e6)
        columns += [waves, use, log2(rounded_up * tile_us)]
    return (
        *map(log2, (op.tokens, op.hidden, op.topk, op.local_experts, op.width, pairs, used_experts)),
        used_experts / op.local_experts,
        *map(log2, (pairs / used_experts, max_pairs, pairs * op.expert_parallel / (op.tokens * op.topk))),
        *map(log2, (weights, weights / (m.dram_gbs * 1e3), op.activation_bytes)),
        op.element.activation_bytes,
        op.exponent,
        op.matrices,
        pairs / (tiles * TILE),
        op.width / round_up(op.width, TILE),
        *columns,
    )


MOE = FamilyDeclaration.of("moe", moe_columns)
