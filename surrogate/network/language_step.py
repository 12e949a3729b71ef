"""One step of a language model on one of the GPUs that share it: kernels of prompts, of decoded tokens, or of both.

Sources: the kernels as vLLM and SGLang launch them (query, key and value in one product, gate and up in one, residual
and norm fused, and with norm or activation the quantisation of what they write); Shoeybi et al., "Megatron-LM" (2019),
for sums over GPUs behind either half of a layer; Yang et al., "Gated Delta Networks" (2024), for linear attention.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from surrogate.features.elementwise import ceil_div
from surrogate.features.errors import InputError
from surrogate.features.families import Operator
from surrogate.features.families.attention import LATENT, NOPE, ROPE, VALUE, Attending, Attention, Mla
from surrogate.features.families.gemm import Bmm, Gemm
from surrogate.features.families.moe import Moe
from surrogate.features.families.rowwise import Quantise
from surrogate.features.families.transfer import AllGather, AllReduce, AllToAll, Memcpy, ReduceScatter, Transfer
from surrogate.features.problem import ELEMENTS, QUANTISED
from surrogate.network.checkpoint import Checkpoint
from surrogate.network.language import Decoder, Deployment, LayerKind, LinearHeads, arithmetic_of, read_decoder
from surrogate.network.memory import with_chain_memory
from surrogate.network.network import Layer, Network, Tally
from surrogate.network.operators import streamed

MAX_REQUESTS = 1 << 20
GAP_US = 3.1
"""Time in µs from one kernel of a CUDA graph to the next, a step's sampling and small kernels that are not listed
included. Source: decoded tokens of zksainx/pipeweave's 40 runs, median of what kernels leave open."""
STEPS_DIFFER = (
    "`seer serving` takes for each product the fastest kernel that any framework has on the GPU, without gaps, as fits"
    f" measured servers; `seer network` takes one framework's own kernels (--library), {GAP_US:g} µs apart, so that its"
    " steps are longer"
)
STATE = "fp32"
"""Element type of a delta net's state."""
CHUNK = 64
"""Positions that a delta net's prompt kernels take at once."""


PRODUCTS, EXPERTS, ATTENTION = "products", "experts", "attention"
COMMUNICATION, OTHERS = "communication", "small kernels"
PARTS = (PRODUCTS, EXPERTS, ATTENTION, COMMUNICATION, OTHERS)
"""What the kernels of a step are for."""


class Requests(NamedTuple):
    """``size`` requests, each with ``new`` tokens, and ``context`` positions with them."""

    size: int
    new: int
    context: int


class StepKernel(NamedTuple):
    """Its word, what it computes, and the weights that it holds."""

    word: str
    work: Operator
    weights: int = 0


def part_of(work: Operator) -> str:
    """The one of `PARTS` that a kernel belongs to."""
    kinds = ((Gemm, PRODUCTS), (Moe, EXPERTS), (Attending, ATTENTION), (Transfer, COMMUNICATION))
    return next((part for kind, part in kinds if isinstance(work, kind)), OTHERS)


def language_network(decoder: Decoder, groups: Sequence[Requests], deployment: Deployment, tokens: int = 0) -> Network:
    """One step of ``groups`` of equal requests on one of the GPUs of a ``deployment``; ``tokens``: the new ones of all,
    where they are not the groups'.

    Raises `InputError` where the model cannot be divided so.
    """
    step = Step(decoder, groups, deployment, tokens or sum(size * new for size, new, _ in groups))
    tally = Tally()
    for prefix, (word, work, weights) in step.kernels():
        tally.add([Layer(f"{prefix}{word}", word, work, parameters=weights)])
    network = with_chain_memory(tally.network(decoder.name, sum(size for size, _, _ in groups)))
    stages = deployment.pipeline_parallel
    held = -(-round(step.weights_bytes()) // stages)
    return replace(
        network,
        gap_us=GAP_US,
        state_bytes=-(-step.kv_bytes // stages),
        weights_bytes=held,
        notes=(*decoder.notes, *deployment.notes()),
    )


def read_language(
    path: Path,
    *,
    prefill: int | None = None,
    decode: int | None = None,
    batch: int | None = None,
    deployment: Deployment | None = None,
) -> Network:
    """`language_network` of a ``config.json`` for ``batch`` equal requests (default: one).

    Raises `InputError` for a bad file, and unless one of ``prefill`` and ``decode`` is given.
    """
    decoder = read_decoder(path)
    if (prefill is None) == (decode is None):
        raise InputError(f"{path}: a step is --prefill TOKENS or --decode CONTEXT; give one of them")
    if (batch or 1) > MAX_REQUESTS:
        raise InputError(f"{path}: a batch of {batch}; steps of up to {MAX_REQUESTS} requests are known")
    requests = Requests(batch or 1, prefill or 1, prefill or decode or 1)
    decoder.require_context(requests.context)
    network = language_network(decoder, [requests], deployment or Deployment())
    step = f"prefill {prefill}" if prefill else f"decode at {decode}"
    return replace(network, name=f"{decoder.name}, {step}", notes=(*network.notes, STEPS_DIFFER))


@dataclass(frozen=True)
class Step:
    """The kernels of one step on one GPU; ``tokens`` are the new ones of its groups of requests."""

    decoder: Decoder
    groups: Sequence[Requests]
    how: Deployment
    tokens: int

    def __post_init__(self) -> None:
        self.how.check(self.decoder)
        self.arithmetic.of("lm_head")  # a checkpoint that cannot be timed is refused here

    @property
    def dtype(self) -> str:
        """The arithmetic of what is not quantised."""
        return self.arithmetic.plain

    @cached_property
    def arithmetic(self) -> Checkpoint:
        """That of the products."""
        return arithmetic_of(self.decoder, self.how.dtype)[0]

    @cached_property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, in order."""
        return arithmetic_of(self.decoder, self.how.dtype)[1]

    @property
    def kv_dtype(self) -> str:
        """Element type of the cache, "" for that of the rest."""
        return self.how.kv_dtype or self.arithmetic.kv_dtype

    @property
    def ranks(self) -> int:
        """GPUs that share a layer."""
        return self.how.tensor_parallel * self.how.data_parallel

    @cached_property
    def by_kind(self) -> dict[LayerKind, list[StepKernel]]:
        """The kernels of each kind of layer."""
        return {kind: list(self.layer(kind)) for kind in dict.fromkeys(self.layers)}

    def kernels(self) -> Iterator[tuple[str, StepKernel]]:
        """The prefix of the layer's name and the kernel, for every kernel of the step in order."""
        yield from (("", kernel) for kernel in self.before())
        for number, kind in enumerate(self.layers):
            yield from ((f"layers.{number}.", kernel) for kernel in self.by_kind[kind])
        yield from (("", kernel) for kernel in self.behind())

    def counted(self) -> Counter[Operator]:
        """How often each distinct kernel runs."""
        counts: Counter[Operator] = Counter()
        for kind, layers in Counter(self.layers).items():
            for kernel in self.by_kind[kind]:
                counts[kernel.work] += layers
        counts.update(kernel.work for kernel in chain(self.before(), self.behind()))
        return counts

    def weights_bytes(self) -> float:
        """Bytes of all weights that a GPU holds of the layers, over all stages of a pipeline."""
        layers = Counter(self.layers)
        inside = sum(count * self.stored(self.by_kind[kind]) for kind, count in layers.items())
        return inside + self.stored(chain(self.before(), self.behind()))

    def stored(self, kernels: Iterable[StepKernel]) -> float:
        """Bytes of these kernels' weights, with the scales of 4-bit ones beyond those that their type has."""
        scales = {"int4_wo": self.arithmetic.read.scale_bytes}
        return sum(
            kernel.weights * (ELEMENTS[kernel.work.dtype].weight_bytes + scales.get(kernel.work.dtype, 0.0))
            for kernel in kernels
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys, values and states that a GPU holds once the step is done, over all stages of a pipeline; a
        window bounds a layer's."""
        d, total = self.decoder, 0.0
        itemsize = ELEMENTS[self.kv_dtype or self.dtype].activation_bytes
        for kind, layers in Counter(self.layers).items():
            for count, _, context in self.groups:
                if kind.recurrent and d.linear:
                    heads = ceil_div(d.linear.value_heads, self.how.tensor_parallel)
                    state = heads * d.linear.key_dim * d.linear.value_dim * ELEMENTS[STATE].activation_bytes
                    total += layers * count * state
                    continue
                kept = min(context, kind.window or context)
                a_token = (
                    LATENT + ROPE
                    if d.family.latent
                    else 2 * d.head_dim * ceil_div(d.kv_heads, self.how.tensor_parallel)
                )
                total += layers * count * kept * (a_token * itemsize + d.index_dim)  # an index is kept in fp8
        return round(total)

    def before(self) -> Iterator[StepKernel]:
        """The embedding."""
        d = self.decoder
        table = 0 if d.tied else ceil_div(d.vocabulary, self.how.tensor_parallel) * d.hidden
        yield StepKernel("embedding", self.moved("embedding", d.hidden, d.hidden), table)

    def behind(self) -> Iterator[StepKernel]:
        """The head over each request's last token, and what passes from stage to stage of a pipeline."""
        d = self.decoder
        batch = sum(count for count, _, _ in self.groups)
        yield self.norm()
        own_vocabulary = ceil_div(d.vocabulary, self.how.tensor_parallel)
        yield from self.product("lm_head", d.hidden, own_vocabulary, layer=None, rows=batch)
        yield StepKernel("sampling", streamed("sampling", [(batch, d.vocabulary)], [(batch, 1)], "fp32"))
        send = AllToAll(elements=2 * self.tokens * d.hidden, ranks=2, dtype=self.dtype)  # half of it crosses the link
        yield from [StepKernel("send", send)] * (self.how.pipeline_parallel - 1)

    def layer(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Attention or what stands for it, then products of the token alone, with the sums over GPUs behind either."""
        d = self.decoder
        mixing = self.recurrent(d.linear, kind) if kind.recurrent and d.linear else self.attention(kind)
        post = [self.norm()] * d.family.post_norms
        yield from (self.norm(), *mixing, *self.summed(self.how.tensor_parallel), *post, self.norm())
        if not kind.routes:
            yield from (*self.dense("", d.inter, kind), *self.summed(self.how.tensor_parallel), *post)
        else:
            yield from self.routed(kind)

    def norm(self) -> StepKernel:
        """The sum with the residual, normed."""
        hidden = self.decoder.hidden
        return StepKernel("norm", self.moved("norm", 2 * hidden, 2 * hidden), hidden)

    def product(
        self, word: str, inputs: int, outputs: int, *, layer: int | None, rows: int = 0, fused: bool = True
    ) -> Iterator[StepKernel]:
        """rows × inputs · inputs × outputs, of a ``layer`` (None: outside all) whose arithmetic it has; quantised
        activations cost a pass of their own unless what writes them does it (``fused``)."""
        dtype = self.arithmetic.of(word, layer)
        rows = rows or self.tokens
        if dtype in QUANTISED and QUANTISED[dtype].activation_bytes < 2 and not fused:
            yield StepKernel(f"{word}.quantise", Quantise(n=rows, c=inputs, dtype=self.dtype))
        yield StepKernel(word, Gemm(m=rows, n=outputs, k=inputs, dtype=dtype, math="default"), inputs * outputs)

    def moved(self, word: str, reads: int, writes: int) -> Operator:
        """A kernel that reads and writes so many values a token."""
        return streamed(word, [(self.tokens, reads)], [(self.tokens, writes)], self.dtype)

    def attention(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Projections, and attention of each group of requests."""
        if self.decoder.family.latent:
            yield from self.latent(kind)
            return
        d = self.decoder
        heads = d.heads // self.how.tensor_parallel
        kv_heads = ceil_div(d.kv_heads, self.how.tensor_parallel)
        queries, keys = heads * d.head_dim, kv_heads * d.head_dim
        yield from self.product("qkv_proj", d.hidden, (1 + d.family.recurrent) * queries + 2 * keys, layer=kind.like)
        if d.family.query_norm:
            yield StepKernel("query_norm", self.moved("query_norm", queries + keys, queries + keys))
        if d.family.query_norm == "layer" and self.how.tensor_parallel > 1:  # the squares' sums of queries and of keys
            ranks = min(self.how.tensor_parallel, self.how.node)
            yield StepKernel("norm_sum", AllReduce(elements=2 * self.tokens, ranks=ranks, dtype=self.dtype))
        yield StepKernel("rope", self.moved("rope", queries + 2 * keys, queries + 2 * keys))
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": d.head_dim, "window": kind.window}
        for group in self.groups:
            yield self.attending(Attention, group, sizes)
        yield from [StepKernel("gate", self.moved("gate", 2 * queries, queries))] * d.family.recurrent
        yield from self.product("o_proj", queries, d.hidden, layer=kind.like, fused=False)

    def latent(self, kind: LayerKind) -> Iterator[StepKernel]:
        """In decoding the key and value expansions are absorbed: products per head before and behind attention.

        Sparse attention reads the best ``index_topk`` positions; of a prompt all are counted.
        """
        d = self.decoder
        heads = d.heads // self.how.tensor_parallel
        queries = heads * (d.nope + ROPE)
        product = partial(self.product, layer=kind.like)
        if d.query_rank:
            yield from product("qkv_a_proj", d.hidden, d.query_rank + LATENT + ROPE)
            yield from product("q_b_proj", d.query_rank, queries)
        else:
            yield from product("q_proj", d.hidden, queries)
            yield from product("kv_a_proj", d.hidden, LATENT + ROPE)
        yield StepKernel("rope", self.moved("rope", queries + LATENT + ROPE, queries + LATENT + ROPE))
        if d.index_topk:
            yield from self.indexed(kind)
        is_measured = (d.nope, d.value) == (NOPE, VALUE)  # DeepSeek's sizes; others go by plain attention
        for group in self.groups:
            count, new, context = group
            if new > 1:
                yield from product("kv_b_proj", LATENT, heads * (d.nope + d.value), rows=count * new)
                plain = {"kv_heads": heads, "head_dim": d.value, "kv_dtype": ""}
                kind_of, sizes = (Mla, {}) if is_measured else (Attention, plain)
                yield self.attending(kind_of, group, {"heads": heads, **sizes})
                continue
            yield self.per_head("absorbed_keys", heads, LATENT, d.nope, count)
            seen = group._replace(context=min(context, d.index_topk or context))
            yield self.attending(Mla, seen, {"heads": heads})
            yield self.per_head("absorbed_values", heads, d.value, LATENT, count)
        yield from product("o_proj", heads * d.value, d.hidden, fused=False)

    def attending(self, kind: type[Attending], group: Requests, sizes: Mapping[str, Any]) -> StepKernel:
        """Attention of a group of requests by a kernel of other ``sizes``."""
        count, new, context = group
        shared = {"batch": count, "query_length": new, "context_length": context}
        return StepKernel("attention", kind(**{**shared, "dtype": self.dtype, "kv_dtype": self.kv_dtype, **sizes}))

    def per_head(self, word: str, heads: int, outputs: int, inputs: int, rows: int) -> StepKernel:
        """A product for each head."""
        work = Bmm(batch=heads, m=rows, n=outputs, k=inputs, dtype=self.dtype, math="default")
        return StepKernel(word, work, heads * outputs * inputs if len(self.groups) == 1 else 0)

    def indexed(self, kind: LayerKind) -> Iterator[StepKernel]:
        """The scores of all positions by a small attention with one key head, and the choice of the best.

        No table has them apart: scores go by what is moved, as an fp8 cache of keys.
        """
        d = self.decoder
        width = d.index_heads * d.index_dim
        yield from self.product("indexer.q_proj", d.query_rank, width, layer=kind.like)
        yield from self.product("indexer.k_proj", d.hidden, d.index_dim + d.index_heads, layer=None)
        scored = sum(count * new * context for count, new, context in self.groups)
        read = sum(count * context * d.index_dim for count, _, context in self.groups)
        yield StepKernel("indexer.scores", streamed("scores", [(read // 4 + 1,)], [(scored,)], "fp32"))
        yield StepKernel("indexer.best", streamed("best", [(scored,)], [(self.tokens, d.index_topk)], "fp32"))

    def recurrent(self, linear: LinearHeads, kind: LayerKind) -> Iterator[StepKernel]:
        """A gated delta net: a short convolution, then a state of a matrix per head.

        A decoded token reads and writes each request's state; a prompt does so once per `CHUNK` positions, beside 7
        rows of values a token: queries, keys, values, their products and the state's updates.
        """
        d = self.decoder
        share = self.how.tensor_parallel
        value_heads, key_heads = linear.value_heads // share, ceil_div(linear.key_heads, share)
        keys, values = key_heads * linear.key_dim, value_heads * linear.value_dim
        yield from self.product("in_proj", d.hidden, 2 * keys + 2 * values, layer=kind.like)
        yield from self.product("gates", d.hidden, 2 * value_heads, layer=None)
        mixed = 2 * keys + values
        yield StepKernel("convolution", self.moved("convolution", mixed * linear.taps // 2, mixed), mixed * linear.taps)
        matrix = linear.key_dim * linear.value_dim * value_heads
        for count, new, _ in self.groups:
            states = count * ceil_div(new, CHUNK) * matrix
            rows = (count * new, mixed if new == 1 else 7 * values)
            yield StepKernel("delta", streamed("delta", [(states,), rows], [(states,), (count * new, values)], STATE))
        yield StepKernel("norm", self.moved("gated_norm", 2 * values, values))
        yield from self.product("out_proj", values, d.hidden, layer=kind.like)

    def dense(self, prefix: str, inter: int, kind: LayerKind) -> Iterator[StepKernel]:
        """Gate and up, activation, down."""
        width = ceil_div(inter, self.how.tensor_parallel)
        yield from self.product(f"{prefix}gate_up_proj", self.decoder.hidden, 2 * width, layer=kind.like)
        yield StepKernel(f"{prefix}activation", self.moved("activation", 2 * width, width))
        yield from self.product(f"{prefix}down_proj", width, self.decoder.hidden, layer=kind.like)

    def routed(self, kind: LayerKind) -> Iterator[StepKernel]:
        """The experts of all groups' tokens, which are gathered before and sent back behind where there are several."""
        d, how = self.decoder, self.how
        yield from self.product("router", d.hidden, d.experts, layer=None)
        elements = self.tokens * how.data_parallel * d.hidden
        if how.data_parallel > 1:
            yield StepKernel("gather", AllGather(elements=elements, ranks=min(self.ranks, how.node), dtype=self.dtype))
        work = Moe(
            tokens=self.tokens * how.data_parallel,
            hidden=d.hidden,
            inter=d.expert_inter,
            topk=d.topk,
            experts=d.experts,
            tensor_parallel=self.ranks // how.expert_parallel,
            expert_parallel=how.expert_parallel,
            dtype=self.arithmetic.of("experts", kind.like),
            routing=how.routing,
        )
        own = work.local_experts * work.matrices * d.hidden * work.width
        yield StepKernel("experts", work, own)
        if d.shared_inter:
            yield from self.dense("shared.", d.shared_inter, kind)
        if how.data_parallel > 1:
            yield StepKernel(
                "scatter", ReduceScatter(elements=elements, ranks=min(self.ranks, how.node), dtype=self.dtype)
            )
            yield from self.across_nodes(self.ranks, elements)
        else:
            yield from self.summed(how.tensor_parallel)

    def summed(self, ranks: int) -> Iterator[StepKernel]:
        """The sum over GPUs: within an NVLink domain, then of the domains' sums."""
        elements = self.tokens * self.decoder.hidden
        if ranks > 1:
            yield StepKernel(
                "all_reduce", AllReduce(elements=elements, ranks=min(ranks, self.how.node), dtype=self.dtype)
            )
            yield from self.across_nodes(ranks, elements)

    def across_nodes(self, ranks: int, elements: int) -> Iterator[StepKernel]:
        """What crosses a network between NVLink domains: each GPU's share of a ring's sum, at PCIe's rate."""
        nodes = ceil_div(ranks, self.how.node)
        if nodes > 1:
            crossing = ceil_div(2 * elements * (nodes - 1), nodes * self.how.node)
            yield StepKernel("network", Memcpy(elements=crossing, variant="device_to_host", dtype=self.dtype))
