"""The families of attention over a cache of keys and values: shared heads (MHA, GQA, MQA) and latent attention (MLA).

Sources: Dao, "FlashAttention-2" (2023), for tiles of 128 query rows; DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1,
for latent attention and its absorbed form.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from ..elementwise import Number, ceil_div, log2, minimum, round_up, where
from ..gpu import Gpu
from ..problem import ELEMENTS, INPUT, MATHS, Gradients, Size
from ..roofline import Machine, memory_us, waves_of
from .operator import Choices, Misfit, Operator, operator_class, register_operator
from .operator_family import FamilyDeclaration

PHASES = ("context", "generation", "encoder")
"""A prompt with a causal mask; one or few tokens after a filled cache; all positions without a mask."""
KV_DTYPES = ("bf16", "fp16", "fp8", "fp32", "mxfp8")
"""Element types of a cache."""
QUERY_ROWS = 128
"""Query rows of a thread block."""
LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
"""DeepSeek's sizes: the compressed key and value, the rotary part, and the other key part and value part of a head."""
TRITON = "triton"
"""The variant of FlashAttention's first version in Triton, which many language models of 2023 were trained with."""
TRITON_FLOP_PER_CLOCK = {"ampere-ga100": 720.0, "hopper": 880.0}
"""Architecture → operations of an SM per clock cycle in its kernels, forward and backward.

Other architectures have the smallest rate. Source: fitted to training steps of MPT-350m and MPT-3b on A100 80GB and
H100 (mosaicml/llm-foundry, benchmarking).
"""
DECODE_ROWS = 64
"""Query heads of a thread block that reads the latent cache (FlashMLA's tile)."""
_LETTERS = {"b": "batch", "h": "heads", "q": "query_length", "k": "context_length"}


def causal_pairs(query: Number, context: Number, window: Number) -> Number:
    """Return the (query, key) pairs of the last ``query`` of ``context`` positions; position p sees min(p, window)
    keys."""

    def up_to(position: Number) -> Number:
        filled = minimum(position, window)
        return filled * (filled + 1) // 2 + (position - filled) * window

    return up_to(context) - up_to(context - query)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOperator(Operator):
    """The common part of both forms: the phase, the type of the cache, and the pairs of queries and keys.

    ``phase`` defaults to context if a query has several tokens, else to generation. ``kv_dtype`` defaults to ``dtype``.
    """

    BATCH: ClassVar[str] = "batch"
    MULTIPLIES: ClassVar[bool] = True
    CHOICES: ClassVar[Choices] = {"dtype": KV_DTYPES, "math": MATHS, "phase": PHASES, "kv_dtype": KV_DTYPES}

    dtype: str = "bf16"
    math: str = "default"
    phase: Annotated[str, "context (a prompt), generation (tokens after a cache) or encoder"] = ""
    kv_dtype: Annotated[str, "element type of the cached keys and values: bf16, fp16, fp8, fp32 or mxfp8"] = ""
    batch: Annotated[int, Size("samples")] = 1
    heads: Annotated[int, Size("query heads on the GPU")]
    query_length: Annotated[int, Size("new tokens of a sample", "tokens")]
    context_length: Annotated[
        int, Size("all tokens of a sample, the new ones included", "tokens", follows="query_length")
    ] = 0
    _key_counts: tuple[Number, Number, Number] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if not self.phase:
            one_token = np.max(self.query_length) == 1 and "generation" in self.CHOICES["phase"]
            object.__setattr__(self, "phase", "generation" if one_token else "context")
        if not self.kv_dtype:
            object.__setattr__(self, "kv_dtype", self.dtype)
        Operator.__post_init__(self)

    @classmethod
    def misfits(cls, sizes: Mapping[str, Number]) -> list[Misfit]:
        """Return where the context is shorter than the query, whose tokens it must include."""
        short = sizes["context_length"] < sizes["query_length"]
        return [("context_length", short, "it counts the query's own tokens, so it is at least query_length")]

    @property
    def stratum(self) -> str:
        """The phase."""
        return self.phase

    @property
    def kv_itemsize(self) -> float:
        """Bytes of a value in the cache."""
        return ELEMENTS[self.kv_dtype].activation_bytes

    @property
    def key_counts(self) -> tuple[Number, Number, Number]:
        """Counts for one head and sample: maximum keys of a query, keys of all queries, (query, key) pairs. All are
        exact."""
        key_counts = self._key_counts
        if key_counts is None:
            query = self.query_length
            context = self.context_length
            span = self._span()
            pairs = query * span if self.phase == "encoder" else causal_pairs(query, context, span)
            key_counts = span, minimum(context, span + query - 1), pairs
            object.__setattr__(self, "_key_counts", key_counts)
        return key_counts

    def _span(self) -> Number:
        """Return the maximum number of keys of a query."""
        return self.context_length

    @property
    def multiply_adds(self) -> int:
        """Half of `flops`."""
        return int(self.flops) // 2

    def gradients(self, of: str) -> Gradients:
        """Return the fused backward pass of a prompt or an encoder, for the gradients of all inputs."""
        if of != INPUT or self.phase == "generation":
            return ()
        settings = {name: getattr(self, name) for name in ("dtype", "math", "phase", "variant")}
        return (("backward", operator_class(f"{self.kind}_backward")(**self.sizes, **settings)),)

    def variant_us(self, gpu: Gpu) -> Number:
        """Return the time of Triton's kernels in µs, their arithmetic and then their traffic; 0 for all others."""
        if self.variant != TRITON:
            return 0.0
        rate = TRITON_FLOP_PER_CLOCK.get(gpu.architecture, min(TRITON_FLOP_PER_CLOCK.values()))
        return self.flops / (rate * gpu.sms * gpu.boost_mhz) + memory_us(self.dram_bytes, gpu.dram_share * gpu.dram_gbs)

    @property
    @abstractmethod
    def head_dims(self) -> tuple[Number, Number]:
        """Values of a query row and of an output row."""

    @property
    def flops(self) -> Number:
        """Two products over every pair: 2·batch·heads·pairs·(key length + value length)."""
        return 2 * self.batch * self.heads * self.key_counts[2] * sum(self.head_dims)

    @property
    @abstractmethod
    def kv_bytes(self) -> Number:
        """Bytes of the keys and values that are read."""

    @property
    def dram_bytes(self) -> Number:
        """Bytes of Q and O, each once, plus `kv_bytes`."""
        value, (key, out) = self.element, self.head_dims
        rows = self.batch * self.heads * self.query_length
        return rows * (key * value.activation_bytes + out * value.output_bytes) + self.kv_bytes


# Query p of 4 sees p of 4 keys: 1 + 2 + 3 + 4 = 10 pairs. Q and O have 2·4·4·8 values, keys and values 2·2·1·4·8.
@register_operator("attention:b2h4g1d8q4k4", flops=4 * 2 * 4 * 8 * 10, dram_bytes=2 * (2 * 256 + 128), blocks=8)
class Attention(AttentionOperator):
    """softmax(Q·Kᵀ)·V of ``heads`` heads of ``head_dim`` values; groups of heads share ``kv_heads`` key heads.

    ``context_length`` counts all keys, including the query's own (default: only those). If ``window`` is above 0, each
    query sees so many last keys. ``kv_heads`` defaults to ``heads``.
    """

    FAMILY: ClassVar[str] = "attention"
    LETTERS: ClassVar[Mapping[str, str]] = {**_LETTERS, "g": "kv_heads", "d": "head_dim", "w": "window"}

    kv_heads: Annotated[
        int, Size("heads of keys and values, each shared by heads / kv_heads query heads", follows="heads")
    ] = 0
    head_dim: Annotated[int, Size("values of a head")]
    window: Annotated[int, Size("last keys that a query sees, 0: all", "tokens", minimum=0, per_doubling=1.0)] = 0

    @classmethod
    def misfits(cls, sizes: Mapping[str, Number]) -> list[Misfit]:
        """Return where the context is shorter than the query, and where groups of heads differ in size."""
        uneven = sizes["heads"] % sizes["kv_heads"] != 0
        return [*AttentionOperator.misfits(sizes), ("kv_heads", uneven, "it divides heads")]

    def _span(self) -> Number:
        """Return the smaller of the window and the context; the context if there is no window."""
        return where(self.window == 0, self.context_length, minimum(self.window, self.context_length))

    @property
    def head_dims(self) -> tuple[Number, Number]:
        """`head_dim` for both."""
        return self.head_dim, self.head_dim

    @property
    def kv_bytes(self) -> Number:
        """Bytes of 2·batch·kv_heads·keys·head_dim values of the cache."""
        return 2 * self.batch * self.kv_heads * self.key_counts[1] * self.head_dim * self.kv_itemsize

    @property
    def blocks(self) -> Number:
        """One block per 128 query rows of a head; in generation one per key head (split-KV kernels launch several)."""
        if self.phase == "generation":
            rows = self.query_length * (self.heads // self.kv_heads)
            return self.batch * self.kv_heads * ceil_div(rows, QUERY_ROWS)
        return self.batch * self.heads * ceil_div(self.query_length, QUERY_ROWS)


# One query of 2 heads and 4 latent keys of 576 values. The first 512 values are summed.
@register_operator("mla:b1h2q1k4", flops=2 * 2 * 4 * (576 + 512), dram_bytes=2 * (2 * (576 + 512) + 4 * 576), blocks=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Mla(AttentionOperator):
    """Multi-head latent attention of one GPU's ``heads`` heads (the model's heads / its tensor parallelism).

    Generation has the absorbed form: queries of 576 values, and a latent cache of 576 values that all heads share. The
    first 512 of them are the values. Context and encoder have the expanded form: keys of 192 and values of 128 per
    head, expanded beforehand, while the cache is written. Some libraries use the absorbed form in context, too; a
    fitted correction covers the difference.
    """

    FAMILY: ClassVar[str] = "mla"
    LETTERS: ClassVar[Mapping[str, str]] = _LETTERS

    @property
    def head_dims(self) -> tuple[int, int]:
        """Values of a query row and of an output row."""
        return (LATENT + ROPE, LATENT) if self.phase == "generation" else (NOPE + ROPE, VALUE)

    @property
    def kv_bytes(self) -> Number:
        """Bytes of the latent cache; in the expanded form also of every head's keys and values."""
        cache = self.batch * self.key_counts[1] * (LATENT + ROPE) * self.kv_itemsize
        return cache if self.phase == "generation" else cache + self._expanded_bytes

    @property
    def _expanded_bytes(self) -> Number:
        """Bytes of every head's keys and values."""
        return self.batch * self.heads * self.key_counts[1] * sum(self.head_dims) * self.element.activation_bytes

    @property
    def blocks(self) -> Number:
        """One block per 128 query rows of a head; in generation one per 64 heads."""
        if self.phase == "generation":
            return self.batch * ceil_div(self.heads * self.query_length, DECODE_ROWS)
        return self.batch * self.heads * ceil_div(self.query_length, QUERY_ROWS)


class BackwardPass(AttentionOperator):
    """The gradients of attention with respect to queries, keys and values, from one fused call.

    Source: Dao, "FlashAttention-2" (2023), section 3.1.2. The scores are computed again, and four products follow.
    """

    __slots__ = ()
    CHOICES: ClassVar[Choices] = {**AttentionOperator.CHOICES, "phase": ("context", "encoder")}
    DETERMINISTIC: ClassVar[Mapping[str, bool]] = {"sdpa": False, "sdpa_deterministic": True}

    def gradients(self, of: str) -> Gradients:
        """Return nothing: it is a gradient."""
        return ()

    @property
    def flops(self) -> Number:
        """Five products over every pair: 2·batch·heads·pairs·(3·key length + 2·value length)."""
        key, out = self.head_dims
        return 2 * self.batch * self.heads * self.key_counts[2] * (3 * key + 2 * out)

    @property
    def recomputed_multiply_adds(self) -> int:
        """The product of queries and keys over every pair."""
        return int(self.batch * self.heads * self.key_counts[2] * self.head_dims[0])

    @property
    def dram_bytes(self) -> Number:
        """Bytes of Q, K, V, O and dO, which are read, and of dQ, dK and dV, which are written."""
        value, (key, out) = self.element, self.head_dims
        rows = self.batch * self.heads * self.query_length
        read = rows * (key + 2 * out) * value.activation_bytes + self.kv_bytes
        return read + (rows * key + self.kv_bytes / self.kv_itemsize) * value.output_bytes


# 10 pairs: 2·2·4·10·(3·8 + 2·8). Q, O, dO and dQ have 256 values each; keys and values, and their gradients, 128 each.
@register_operator("attention_backward:b2h4g1d8q4k4", flops=6400, dram_bytes=2 * (4 * 256 + 2 * 128), blocks=8)
class AttentionBackward(BackwardPass, Attention):
    """The gradients of ``attention``, with its sizes.

    In 8 bits the backward pass ignores the window: cuDNN 9.22's times grow with the square of the query length.
    """

    def _span(self) -> Number:
        return self.context_length if self.element.unit == "fp8" else Attention._span(self)


# 3 pairs: 2·2·3·(3·192 + 2·128). Q and dQ have 2·2·192 values, O and dO 2·2·128, keys and values 2·2·320.
@register_operator("mla_backward:h2q2", flops=9984, dram_bytes=2 * (2 * 768 + 2 * 512 + 2 * 1280), blocks=2)
class MlaBackward(BackwardPass, Mla):
    """The gradients of ``mla`` in the expanded form, with its sizes; the latent cache has no part in them."""

    @property
    def kv_bytes(self) -> Number:
        """Bytes of every head's keys and values."""
        return self._expanded_bytes


def pair_columns(op: AttentionOperator, m: Machine) -> tuple[Number, ...]:
    """Return the columns of the family mla on a machine.

    The waves assume that each SM runs one block at a time and that all blocks take equally long.
    """
    kv_bytes = 1.0 * op.kv_bytes
    _, keys, pairs = op.key_counts
    blocks = op.blocks
    waves, use, rounded_up = waves_of(blocks, m)
    return (
        *map(log2, (op.batch, op.heads, op.query_length, op.context_length, keys)),
        *map(log2, (op.batch * op.heads * pairs / m.sms, kv_bytes, kv_bytes / op.dram_bytes)),
        *map(log2, (kv_bytes / (m.dram_gbs * 1e3), op.batch * getattr(op, "kv_heads", 1) / m.sms)),
        op.kv_itemsize,
        float(op.phase == "context"),
        float(op.phase == "generation"),
        waves,
        use,
        log2(rounded_up * (op.flops / blocks) * m.sms / (m.peak_tflops * 1e6)),
        op.query_length / round_up(op.query_length, QUERY_ROWS),
    )


def attention_columns(op: Attention, m: Machine) -> tuple[Number, ...]:
    """Return the columns of the family attention on a machine: mla's columns and its own."""
    group = op.heads // op.kv_heads
    span = op.key_counts[0]
    return (
        *pair_columns(op, m),
        *map(log2, (op.kv_heads, op.head_dim, span)),
        1.0 * (span < op.context_length),
        log2(group),
        op.head_dim / round_up(op.head_dim, 64),
        op.head_dim / round_up(op.head_dim, 128),
        group / round_up(group, 16),
    )


ATTENTION = FamilyDeclaration.of("attention", attention_columns)
MLA = FamilyDeclaration.of("mla", pair_columns)
