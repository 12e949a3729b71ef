"""Families of large language models' kernels: attention, multi-head latent attention, mixtures of experts."""

from typing import Any

from ..elementwise import Number, ceil_div, log2, round_up
from ..machine import Machine
from ..operators.attention import PHASES, QUERY_ROWS
from ..operators.moe import BALANCED, TILE
from .operators import OperatorFamily

PAIR_NAMES = (
    "log2_batch", "log2_heads", "log2_query_length", "log2_context_length", "log2_keys", "log2_pairs_per_sm",
    "log2_kv_bytes", "log2_kv_share", "log2_kv_us", "log2_key_groups_per_sm", "kv_itemsize", "is_context",
    "is_generation", "log2_waves", "wave_use", "log2_quantised_us", "query_tile_use",
)  # fmt: skip
ATTENTION_NAMES = (
    *PAIR_NAMES, "log2_kv_heads", "log2_head_dim", "log2_window", "is_windowed", "log2_group", "head_dim_use_64",
    "head_dim_use_128", "group_use_16",
)  # fmt: skip
MOE_NAMES = (
    "log2_tokens", "log2_hidden", "log2_topk", "log2_local_experts", "log2_width", "log2_pairs", "log2_touched",
    "touched_share", "log2_pairs_per_touched", "log2_largest_load", "log2_skew", "log2_weight_bytes",
    "log2_weight_us", "log2_activation_bytes", "activation_itemsize", "exponent", "matrices", "row_use", "width_use",
    "log2_up_waves", "up_wave_use", "log2_up_quantised_us", "log2_down_waves", "down_wave_use",
    "log2_down_quantised_us",
)  # fmt: skip
"""Sizes of a whole layer are left out: trees would learn the layers by heart, where new ones are asked about."""


def _waves(blocks: Number, m: Machine) -> tuple[Number, Number, Number]:
    """log2 of the waves of blocks on all SMs, their useful share, and their whole number."""
    waves = blocks / m.sms
    whole = -(-waves // 1.0)
    return log2(waves), waves / whole, whole


def pair_columns(op: Any, m: Machine) -> tuple[Number, ...]:
    """`PAIR_NAMES` of attention on a machine: one block per SM at a time, each block as long as the average one."""
    kv_bytes = 1.0 * op.kv_bytes
    _, keys, pairs = op.seen
    flops, blocks = op.flops, op.blocks
    waves, use, whole = _waves(blocks, m)
    groups = op.batch * getattr(op, "kv_heads", 1)
    return (
        log2(op.batch), log2(op.heads), log2(op.query_length), log2(op.context_length), log2(keys),
        log2(op.batch * op.heads * pairs / m.sms), log2(kv_bytes), log2(kv_bytes / op.dram_bytes),
        log2(kv_bytes / (m.dram_gbs * 1e3)), log2(groups / m.sms), op.kv_itemsize,
        float(op.phase == "context"), float(op.phase == "generation"), waves, use,
        log2(whole * (flops / blocks) * m.sms / (m.peak_tflops * 1e6)),
        op.query_length / round_up(op.query_length, QUERY_ROWS),
    )  # fmt: skip


def attention_columns(op: Any, m: Machine) -> tuple[Number, ...]:
    """`ATTENTION_NAMES` of attention on a machine."""
    group, span = op.heads // op.kv_heads, op.seen[0]
    return (
        *pair_columns(op, m), log2(op.kv_heads), log2(op.head_dim), log2(span), 1.0 * (span < op.context_length),
        log2(group), op.head_dim / round_up(op.head_dim, 64), op.head_dim / round_up(op.head_dim, 128),
        group / round_up(group, 16),
    )  # fmt: skip


def moe_columns(op: Any, m: Machine) -> tuple[Number, ...]:
    """`MOE_NAMES` of a mixture of experts on a machine; tiles of 128 × 128, a tile per SM at a time."""
    pairs, touched, largest, tiles = op.load
    weights = 1.0 * op.weight_bytes
    columns = []
    for outputs, length in (((op.matrices - 1) * op.width, op.hidden), (op.hidden, op.width)):
        waves, use, whole = _waves(tiles * ceil_div(outputs, TILE), m)
        tile_us = 2.0 * TILE * TILE * length * m.sms / (m.peak_tflops * 1e6)
        columns += [waves, use, log2(whole * tile_us)]
    return (
        log2(op.tokens), log2(op.hidden), log2(op.topk), log2(op.local_experts), log2(op.width), log2(pairs),
        log2(touched), touched / op.local_experts, log2(pairs / touched), log2(largest),
        log2(pairs * op.expert_parallel / (op.tokens * op.topk)), log2(weights), log2(weights / (m.dram_gbs * 1e3)),
        log2(op.activation_bytes), op.element.activation_bytes, op.exponent, op.matrices, pairs / (tiles * TILE),
        op.width / round_up(op.width, TILE), *columns,
    )  # fmt: skip


_SIZES = ("log2_batch", "log2_heads", "log2_query_length", "log2_context_length")
_PHASED = (*_SIZES, "kv_itemsize", "is_context", "is_generation")

ATTENTION = OperatorFamily(
    "attention", ("attention",), attention_columns, ATTENTION_NAMES,
    (*_PHASED, "log2_kv_heads", "log2_head_dim", "log2_window"), ("batch", "query_length", "context_length"),
    strata=PHASES, candidate_key=("phase", "variant", "algorithm"),
    counted=("batch", "heads", "head_dim", "query_length", "context_length"),
    lines=(
        {"heads": 1}, {"kv_heads": 1}, {"heads": 1, "kv_heads": 1}, {"batch": 1, "heads": -1, "kv_heads": -1},
    ),
    ticks=("batch", "query_length", "context_length"),
)  # fmt: skip
MLA = OperatorFamily(
    "mla", ("mla",), pair_columns, PAIR_NAMES, _PHASED, ("batch",), strata=PHASES[:2],
    candidate_key=("phase", "variant", "algorithm"),
    lines=({"heads": 1}, {"batch": 1, "heads": -1}, {"context_length": 1}, {"query_length": 1, "context_length": 1}),
    ticks=("batch", "query_length", "context_length"),
)  # fmt: skip
MOE = OperatorFamily(
    "moe", ("moe",), moe_columns, MOE_NAMES, (*MOE_NAMES[:5], "exponent", "activation_itemsize"),
    ("tokens", "tensor_parallel", "expert_parallel"), strata=(BALANCED, "power_law"),
    candidate_key=("variant", "algorithm"), counted=("tokens", "topk", "hidden", "inter"),
    lines=(
        {"inter": 1}, {"inter": 1, "tensor_parallel": 1}, {"hidden": 1}, {"experts": 1},
        {"experts": 1, "expert_parallel": 1}, {"topk": 1}, {"topk": 1, "tokens": -1},
    ),
    ticks=("tokens",),
)  # fmt: skip
