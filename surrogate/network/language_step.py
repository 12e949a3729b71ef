"""Build one step of a language model on one of its GPUs: the kernels of prompts, of decoded tokens, or of both.

Sources: the kernels are the ones that vLLM and SGLang launch. One product computes query, key and value, and one
computes gate and up. The residual is fused with the norm; quantisation is fused with the norm or the activation that
writes the values. Sums over GPUs follow each half of a layer: Shoeybi et al., "Megatron-LM" (2019).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from surrogate.features.elementwise import ceil_div, checked_int
from surrogate.features.errors import InputError
from surrogate.features.families import Operator
from surrogate.features.families.attention import LATENT, NOPE, ROPE, VALUE, Attention, AttentionOperator, Mla
from surrogate.features.families.gemm import Bmm, Gemm
from surrogate.features.families.moe import NONGATED, Moe
from surrogate.features.families.rowwise import Quantise
from surrogate.features.families.transfer import AllGather, AllReduce, AllToAll, Memcpy, ReduceScatter, Transfer
from surrogate.features.problem import ELEMENTS, QUANTISED
from surrogate.network.checkpoint import Checkpoint
from surrogate.network.language import AttentionHeads, Decoder, Deployment, LayerKind, arithmetic_of
from surrogate.network.language_config import read_decoder
from surrogate.network.language_mixers import Mixer
from surrogate.network.memory import MAX_BATCHED_TOKENS, with_chain_memory
from surrogate.network.network import Layer, Network, NetworkBuilder, ReadOptions
from surrogate.network.operators import Scores, elementwise, streamed

MAX_REQUESTS = 1 << 20
GAP_US = 3.1
"""Time in µs between two kernels of a CUDA graph; it includes sampling and small kernels that are not listed. Source:
the decoded tokens of zksainx/pipeweave's 40 runs, median of the time that kernels do not explain."""
PRODUCTS, EXPERTS, ATTENTION = "products", "experts", "attention"
COMMUNICATION, OTHERS = "communication", "small kernels"
PARTS = (PRODUCTS, EXPERTS, ATTENTION, COMMUNICATION, OTHERS)
"""The parts of a step's time."""
BOUNDED_PARTS = (PRODUCTS, EXPERTS, ATTENTION)
"""Parts with a lower bound from peak rates, since no cache keeps their operands between steps."""


class Requests(NamedTuple):
    """``size`` requests, each with ``new`` tokens and ``context`` positions, the new tokens included."""

    size: int
    new: int
    context: int

    def keys(self, window: int = 0) -> int:
        """Return the mean number of positions that a new token sees in a window (0: all)."""
        seen = Attention(heads=1, head_dim=1, query_length=self.new, context_length=self.context, window=window)
        return ceil_div(int(seen.key_counts[2]), self.new)


class StepKernel(NamedTuple):
    """The name of a kernel, its problem, and the number of its weights."""

    name: str
    problem: Operator
    weights: int = 0


def part_of(problem: object) -> str:
    """Return the part of a step (`PARTS`) that a kernel belongs to."""
    kinds = ((Gemm, PRODUCTS), (Moe, EXPERTS), (AttentionOperator, ATTENTION), (Transfer, COMMUNICATION))
    return next((part for kind, part in kinds if isinstance(problem, kind)), OTHERS)


def read_language(path: Path, options: ReadOptions, deployment: Deployment) -> Network:
    """Return the step of a ``config.json`` for equal requests.

    The options ``prefill``, ``decode`` and ``batch`` (default: one request) apply. Raises `InputError` if the file is
    invalid, or unless exactly one of ``prefill`` and ``decode`` is given.
    """
    prefill, decode = options.prefill, options.decode
    batch = checked_int(str(path), "batch", options.batch or 1, maximum=MAX_REQUESTS)
    decoder = read_decoder(path)
    if (prefill is None) == (decode is None):
        raise InputError(f"{path}: a step needs --prefill TOKENS or --decode CONTEXT; give one of them")
    requests = Requests(batch, prefill or 1, prefill or decode or 1)
    decoder.require_context(requests.context)
    tokens = batch * requests.new
    network = Step(decoder, [requests], deployment, tokens).network
    step = f"prefill {prefill}" if prefill else f"decode at {decode}"
    return replace(network, name=f"{decoder.name}, {step}", tokens=tokens)


@dataclass(frozen=True)
class Step:
    """The kernels of one step on one GPU; ``tokens`` is the number of new tokens of its groups of requests."""

    decoder: Decoder
    groups: Sequence[Requests]
    deployment: Deployment
    tokens: int

    def __post_init__(self) -> None:
        self.deployment.check(self.decoder)
        self.checkpoint.product_dtype("lm_head")  # raises if the checkpoint cannot be timed

    @property
    def dtype(self) -> str:
        """The element type of all values that are not quantised."""
        return self.checkpoint.base_dtype

    @property
    def other_weights(self) -> int:
        """The weights on a GPU that no step uses; vLLM divides encoders of images, too."""
        return self.decoder.other_weights // self.deployment.tensor_parallel

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The arithmetic of the products."""
        return arithmetic_of(self.decoder, self.deployment.dtype)[0]

    @cached_property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, in order."""
        return arithmetic_of(self.decoder, self.deployment.dtype)[1]

    @property
    def kv_dtype(self) -> str:
        """The element type of the cache; "" means the same as `dtype`."""
        return self.deployment.kv_dtype or self.checkpoint.kv_dtype

    @cached_property
    def network(self) -> Network:
        """The step as a network, with the memory of a server."""
        builder, stages = NetworkBuilder(), self.deployment.pipeline_parallel
        for prefix, (name, problem, weights) in self.kernels():
            builder.add([Layer(f"{prefix}{name}", name, problem, parameters=weights)])
        network = with_chain_memory(builder.network(self.decoder.name, sum(size for size, _, _ in self.groups)))
        return replace(
            network,
            parameters=ceil_div((network.parameters or 0) + self.other_weights, stages),
            stages=stages,
            gap_us=GAP_US,
            activation_bytes=self.reserved_bytes,
            state_bytes=self.kv_bytes,
            weights_bytes=ceil(self.weights_bytes()),
            notes=(*self.decoder.notes, *self.deployment.notes()),
        )

    @cached_property
    def by_kind(self) -> dict[LayerKind, list[StepKernel]]:
        """The kernels of each kind of layer."""
        return {kind: list(self.layer(kind)) for kind in dict.fromkeys(self.layers)}

    def kernels(self) -> Iterator[tuple[str, StepKernel]]:
        """Yield the prefix of the layer's name and the kernel, for every kernel of the step in order."""
        yield from (("", kernel) for kernel in self.first_kernels())
        for number, kind in enumerate(self.layers):
            yield from ((f"layers.{number}.", kernel) for kernel in self.by_kind[kind])
        yield from (("", kernel) for kernel in self.last_kernels())

    def kernel_counts(self) -> Counter[Operator]:
        """Return how often each distinct problem runs."""
        counts: Counter[Operator] = Counter()
        for kind, layers in Counter(self.layers).items():
            for kernel in self.by_kind[kind]:
                counts[kernel.problem] += layers
        counts.update(kernel.problem for kernel in chain(self.first_kernels(), self.last_kernels()))
        return counts

    @property
    def stage(self) -> Counter[LayerKind]:
        """The number of layers of each kind on a GPU: of the last stage of the pipeline, if it has several."""
        return Counter(self.layers[-ceil_div(len(self.layers), self.deployment.pipeline_parallel) :])

    def weights_bytes(self) -> float:
        """Return the bytes of a GPU's weights; a stage of a pipeline has the embedding or the head."""
        inside = sum(count * self.stored_bytes(self.by_kind[kind]) for kind, count in self.stage.items())
        others = self.other_weights * ELEMENTS[self.dtype].weight_bytes
        ends = others + self.stored_bytes(self.first_kernels()), self.stored_bytes(self.last_kernels())
        return inside + (max if self.deployment.pipeline_parallel > 1 else sum)(ends)

    def stored_bytes(self, kernels: Iterable[StepKernel]) -> float:
        """Return the bytes of the kernels' weights; 4-bit weights include the checkpoint's additional scales."""
        scales = {"int4_wo": self.checkpoint.quantisation.scale_bytes}
        sizes = ((kernel.weights, kernel.problem.dtype) for kernel in kernels)
        return sum(weights * (ELEMENTS[dtype].weight_bytes + scales.get(dtype, 0.0)) for weights, dtype in sizes)

    @property
    def reserved_bytes(self) -> int:
        """The bytes that a server reserves for activations: of the kernel with most in a step of `MAX_BATCHED_TOKENS`.

        Attention groups share these tokens. If the step has more tokens, it counts itself.
        """
        tokens = ceil_div(MAX_BATCHED_TOKENS, self.deployment.data_parallel)
        full = replace(self, groups=[Requests(1, tokens, tokens)], tokens=tokens)
        peak = max(self, full, key=lambda step: step.tokens)
        kernels = chain.from_iterable(peak.by_kind.values())
        return round(max(kernel.problem.dram_bytes - self.stored_bytes([kernel]) for kernel in kernels))

    @property
    def kv_bytes(self) -> int:
        """The bytes of keys, values and states on a GPU after the step; a window limits its layers' positions."""
        d, total = self.decoder, 0.0
        itemsize = ELEMENTS[self.kv_dtype or self.dtype].activation_bytes
        for kind, layers in self.stage.items():
            for count, _, context in self.groups:
                if kind.mixes and d.mixer:
                    total += layers * count * d.mixer.state_bytes(self.deployment.tensor_parallel, self.dtype)
                if kind.heads is None or not kind.heads.projected:
                    continue
                kept = min(context, kind.window or context)
                kv_heads = ceil_div(kind.heads.keys, self.deployment.tensor_parallel)
                own = kv_heads * (kind.heads.dim + kind.heads.value_dim * (not d.family.compressed))  # values are keys
                values = (LATENT + ROPE if d.family.latent else own) * itemsize
                compressed = context // kind.compress if kind.compress else 0
                index = (compressed or kept) * d.index_dim * (kind.indexer == "full")  # in fp8
                # In fp32, the keys and gates of windows that are not yet complete.
                pooled = 4 * kind.compress * self.pooled(kind) * (2 if kind.indexer else 1)
                total += layers * count * ((kept + compressed) * values + index + pooled)
        return round(total)

    def first_kernels(self) -> Iterator[StepKernel]:
        """Yield the embedding."""
        d = self.decoder
        table = 0 if d.tied else ceil_div(d.vocabulary, self.deployment.tensor_parallel) * d.hidden
        yield self.streaming("embedding", d.hidden, max(d.streams, 1) * d.hidden, table)
        if d.learned_positions:
            summed = elementwise("add", (self.tokens, d.hidden), self.dtype)
            yield StepKernel("positions", summed, d.learned_positions * d.hidden)
        if width := d.layer_inputs * len(d.layers):
            weights = d.layer_vocabulary * width
            yield self.streaming("layer_input.embedding", width, width, weights)
            yield from self.product("layer_input.model_projection", d.hidden, width, layer=None)

    def last_kernels(self) -> Iterator[StepKernel]:
        """Yield the head over each request's last token, sampling, and the transfers between stages of the pipeline."""
        d = self.decoder
        batch = sum(count for count, _, _ in self.groups)
        yield from (*self.collapsed(d.streams), self.norm())
        own_vocabulary = ceil_div(d.vocabulary, self.deployment.tensor_parallel)
        yield from self.product("lm_head", d.hidden, own_vocabulary, layer=None, rows=batch)
        yield StepKernel("sampling", streamed("sampling", [(batch, d.vocabulary)], [(batch, 1)], "fp32"))
        send = AllToAll(elements=2 * self.tokens * d.hidden, ranks=2, dtype=self.dtype)  # half of it crosses the link
        yield from [StepKernel("send", send)] * (self.deployment.pipeline_parallel - 1)

    def layer(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield a layer: attention, a mixer or both, then the MLP or the experts, each with its sum over GPUs."""
        d = self.decoder
        post = [self.norm()] * d.family.post_norms
        collapsed = [*self.collapsed(d.streams * (d.streams + 2)), self.norm()]
        if d.streams:  # hyper-connections: every part has a weighted sum of the streams, and is added to all of them
            post.append(self.streaming("mix", (d.streams + 1) * d.hidden, d.streams * d.hidden))
        if kind.mixes or kind.heads:
            yield from collapsed
        if kind.mixes and d.mixer:
            yield from (*self.mixer(d.mixer, kind), *self.all_reduced())
        if kind.heads:  # a parallel MLP has the same input, and one sum with attention
            yield from (*self.attention(kind), *([] if d.family.parallel else self.all_reduced()))
        yield from post if kind.mixes or kind.heads else ()
        if kind.inter or kind.routes:
            yield from [] if d.family.parallel else collapsed
        if kind.inter:
            yield from self.dense("", kind.inter, kind)
        if kind.routes:
            yield from [self.norm()] * (3 if kind.inter else 0)  # of the experts' input, and of both results
            yield from self.expert_kernels(kind)
        elif kind.inter:
            yield from self.all_reduced()
        yield from post if kind.inter or kind.routes else ()
        yield from self.layer_input(kind)

    def layer_input(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield the sum with a layer's own embedding of the tokens, if the model has one."""
        d = self.decoder
        if d.layer_inputs:
            yield from self.product("layer_input.gate", d.hidden, d.layer_inputs, layer=None)
            yield self.streaming("layer_input.activation", 2 * d.layer_inputs, d.layer_inputs)
            yield from self.product("layer_input.projection", d.layer_inputs, d.hidden, layer=None)
            yield self.norm()

    def norm(self) -> StepKernel:
        """Return the norm of the sum with the residual; hyper-connections add it up in passes of their own."""
        hidden = self.decoder.hidden
        moved = hidden if self.decoder.streams else 2 * hidden
        return self.streaming("norm", moved, moved, hidden)

    def collapsed(self, weights: int) -> Iterator[StepKernel]:
        """Yield the ``weights`` of hyper-connections for each token, and the weighted sum of the streams.

        On H200 and B200, measured times are 1.1 to 1.4 times the model's for 1,024 tokens or more (medians by
        framework; 1.1 for the mix of the streams). Source: the tables mhc of ai-dynamo/aiconfigurator.
        """
        width = self.decoder.streams * self.decoder.hidden
        if width:
            moved = [(self.tokens, width), (2 * weights, width)], [(self.tokens, weights)]  # weights in fp32
            yield StepKernel("stream_weights", streamed("stream_weights", *moved, self.dtype), weights * (width + 1))
            yield self.streaming("collapse", width, self.decoder.hidden)

    def product(
        self, name: str, inputs: int, outputs: int, *, layer: int | None, rows: int = 0, fused: bool = True
    ) -> Iterator[StepKernel]:
        """Yield the product (rows × inputs) · (inputs × outputs) in the arithmetic of a ``layer`` (None: no layer).

        Activations are quantised in an additional pass, unless the kernel that writes them does it (``fused``).
        """
        dtype = self.checkpoint.product_dtype(name, layer)
        rows = rows or self.tokens
        if dtype in QUANTISED and QUANTISED[dtype].activation_bytes < 2 and not fused:
            yield StepKernel(f"{name}.quantise", Quantise(n=rows, c=inputs, dtype=self.dtype))
        weights = (inputs + (name in self.decoder.biases)) * outputs
        yield StepKernel(name, Gemm(m=rows, n=outputs, k=inputs, dtype=dtype, math="default"), weights)

    def streaming(self, name: str, reads: int, writes: int, weights: int = 0) -> StepKernel:
        """Return a streaming kernel with ``reads`` and ``writes`` values per token."""
        moved = [(self.tokens, reads)], [(self.tokens, writes)]
        return StepKernel(name, streamed(name.rpartition(".")[2], *moved, self.dtype), weights)

    def attention(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield the projections, and the attention of each group of requests."""
        d = self.decoder
        if d.family.latent or d.family.compressed:
            yield from self.latent_attention(kind) if d.family.latent else self.compressed_attention(kind)
            return
        of_layer = kind.heads or AttentionHeads(d.heads, d.kv_heads, d.head_dim, d.head_dim)
        heads = of_layer.queries // self.deployment.tensor_parallel
        kv_heads = ceil_div(of_layer.keys, self.deployment.tensor_parallel)
        queries, keys = heads * of_layer.dim, kv_heads * of_layer.dim * (of_layer.projected > 0)
        values = kv_heads * of_layer.value_dim * (of_layer.projected > 1)
        width = queries + keys + values + heads * of_layer.gates
        yield from self.product("qkv_proj", d.hidden, width, layer=kind.same_as)
        if d.family.query_norm:
            weights = 2 * of_layer.dim if d.family.query_norm == "head" else queries + keys
            yield self.streaming("query_norm", queries + keys, queries + keys, weights)
        # The GPUs add up the sums of squares of queries and keys.
        if d.family.query_norm == "layer" and self.deployment.tensor_parallel > 1:
            yield self.collective("norm_sum", AllReduce, 2 * self.tokens, self.deployment.tensor_parallel)
        if d.rotates:
            yield self.rope(queries, keys)
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": of_layer.dim, "window": kind.window}
        yield from self.index_kernels(kind)
        for group in self.groups:
            seen = min(group.context, d.index_topk) if kind.indexer and group.new == 1 else group.context
            yield self.attention_kernel(Attention, group._replace(context=seen), sizes)
        outputs = heads * of_layer.value_dim
        yield from self.gate("gate", outputs, of_layer.gates > 0)
        yield from self.product("o_proj", outputs, d.hidden, layer=kind.same_as, fused=False)

    def gate(self, name: str, width: int, passes: int) -> Iterator[StepKernel]:
        """Yield passes that multiply a result of ``width`` values per token by a gate."""
        yield from [self.streaming(name, 2 * width, width)] * passes

    def rope(self, queries: int, keys: int) -> StepKernel:
        """Return the rotation of queries and keys, which also writes keys and values into the cache."""
        return self.streaming("rope", queries + 2 * keys, queries + 2 * keys)

    def latent_attention(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield multi-head latent attention.

        In decoding, a product per head before and after attention replaces the expansion of keys and values. Sparse
        attention reads the best ``index_topk`` positions of each token in the same way, in prompts, too. For 1,024
        tokens or more on H200 and B200, measured times of its layers are 0.8 to 2.1 times the model's (medians by
        framework, contexts of 8,192 or more). Source: the tables dsa_context of ai-dynamo/aiconfigurator.
        """
        d = self.decoder
        heads = d.heads // self.deployment.tensor_parallel
        queries = heads * (d.nope_dim + ROPE)
        product = partial(self.product, layer=kind.same_as)
        if d.query_rank:
            yield from product("qkv_a_proj", d.hidden, d.query_rank + LATENT + ROPE)
            yield from product("q_b_proj", d.query_rank, queries)
        else:
            yield from product("q_proj", d.hidden, queries)
            yield from product("kv_a_proj", d.hidden, LATENT + ROPE)
        rotated = queries * d.rotates + LATENT + ROPE  # the pass also writes the cache
        yield self.streaming("rope", rotated, rotated)
        yield from self.index_kernels(kind)
        is_measured = (d.nope_dim, d.value_dim) == (NOPE, VALUE)  # DeepSeek's sizes; other sizes use plain attention
        for group in self.groups:
            count, new, context = group
            if new > 1 and not kind.indexer:  # the latent prefix is expanded, too
                yield from product("kv_b_proj", LATENT, heads * (d.nope_dim + d.value_dim), rows=count * context)
                expanded = {"kv_heads": heads, "head_dim": d.value_dim, "kv_dtype": ""}
                kind_of, sizes = (Mla, {}) if is_measured else (Attention, expanded)
                yield self.attention_kernel(kind_of, group, {"heads": heads, **sizes})
                continue
            selected = Requests(count * new, 1, group.keys(d.index_topk if kind.indexer else 0))
            counted = group is self.groups[0] if kind.indexer else len(self.groups) == 1
            yield self.head_product("absorbed_keys", heads, LATENT, d.nope_dim, count * new, counted)
            yield self.attention_kernel(Mla, selected, {"heads": heads})
            yield self.head_product("absorbed_values", heads, d.value_dim, LATENT, count * new, counted)
        if kind.heads and kind.heads.gates:
            yield from product("g_proj", d.hidden, heads * d.value_dim)
            yield from self.gate("gate", heads * d.value_dim, 1)
        yield from product("o_proj", heads * d.value_dim, d.hidden, fused=False)

    def compressed_attention(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield DeepSeek-V4's attention over a window and compressed positions, whose keys are their values.

        Each token reads its own selection, in prompts, too, as FlashMLA's sparse kernel does. Measured times of these
        layers are 1.0 to 1.3 times the model's for prompts and 0.8 to 1.4 for decoded tokens on H200 and B200 (medians
        by framework; 0.2 for vLLM on B200, whose block products are mostly launches). Source: the tables dsv4 of
        ai-dynamo/aiconfigurator.
        """
        d, gpus = self.decoder, self.deployment.tensor_parallel
        heads, dim, groups = d.heads // gpus, d.head_dim, ceil_div(d.output_groups, gpus)
        queries, ranked = heads * dim, d.query_rank + dim
        product = partial(self.product, layer=kind.same_as)
        yield from product("qkv_a_proj", d.hidden, ranked)
        yield from product("q_b_proj", d.query_rank, queries)
        yield self.streaming("rope", queries + dim, queries + dim, heads + ranked)
        if kind.compress:
            pooled, kept = self.pooled(kind), dim + d.index_dim * bool(kind.indexer)
            yield from self.product("compressor", d.hidden, pooled + d.index_heads * bool(kind.indexer), layer=None)
            moved = [(self.tokens, pooled)], [(ceil_div(self.tokens, kind.compress), kept)]
            yield StepKernel("compress", streamed("compress", *moved, self.dtype), kind.compress * pooled // 2 + kept)
        yield from self.index_kernels(kind)
        far = d.index_topk * kind.compress if kind.indexer else 0
        for group in self.groups:
            read = group.keys(kind.window) + (ceil_div(group.keys(far), kind.compress) if kind.compress else 0)
            yield self.attention_kernel(Mla, Requests(group.size * group.new, 1, read), {"heads": heads})
        yield self.streaming("inverse_rope", queries, queries)
        yield from product("o_a_proj", queries // groups, groups * d.output_rank)
        yield from product("o_b_proj", groups * d.output_rank, d.hidden, fused=False)

    def pooled(self, kind: LayerKind) -> int:
        """Return the widths of a token's keys and gates, from which a layer pools compressed keys and their index.

        With an indexer, windows overlap, and a token has keys and gates for two windows.
        """
        dim = self.decoder.head_dim
        return 4 * (dim + self.decoder.index_dim) if kind.indexer else 2 * dim

    def attention_kernel(self, kind: type[AttentionOperator], group: Requests, sizes: Mapping[str, Any]) -> StepKernel:
        """Return the attention of a group of requests; ``sizes`` are the fields of ``kind`` that the group lacks."""
        count, new, context = group
        shared = {"batch": count, "query_length": new, "context_length": context}
        return StepKernel("attention", kind(**{**shared, "dtype": self.dtype, "kv_dtype": self.kv_dtype, **sizes}))

    def head_product(self, name: str, heads: int, outputs: int, inputs: int, rows: int, counted: bool) -> StepKernel:
        """Return the products of all heads as one batched product."""
        problem = Bmm(batch=heads, m=rows, n=outputs, k=inputs, dtype=self.dtype, math="default")
        return StepKernel(name, problem, heads * outputs * inputs * counted)

    def index_kernels(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield the indexer: scores of all positions by a small attention with one key head, and the best positions.

        Their times follow from the bytes that they move, with keys in fp8, and from the products. A selection reads the
        scores about three times. Measured times are 1.0 to 1.8 times the model's for contexts of 8,192 or more. Source:
        the tables glm5 of ai-dynamo/aiconfigurator on H200 and B200.
        """
        d = self.decoder
        if kind.indexer != "full":
            return
        rank, keys = d.query_rank or d.hidden, d.index_dim + d.index_heads * d.family.latent
        yield from self.product("indexer.q_proj", rank, d.index_heads * d.index_dim, layer=kind.same_as)
        if not kind.compress:  # else the compressor has these keys
            yield from self.product("indexer.k_proj", d.hidden, keys, layer=None)
        groups = [group._replace(context=ceil_div(group.context, kind.compress or 1)) for group in self.groups]
        scored = sum(count * new * context for count, new, context in groups)
        read = sum(count * context * d.index_dim for count, _, context in groups)
        scores = {"reads": read // 2 + 1, "writes": 2 * scored, "work": d.index_heads * d.index_dim}  # in fp8 and fp32
        yield StepKernel("indexer.scores", Scores(**scores, dtype="bf16", math="default", variant="scores"))
        yield StepKernel("indexer.best", streamed("best", [(3 * scored,)], [(self.tokens, d.index_topk)], "fp32"))

    def mixer(self, mixer: Mixer, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield a mixer: its products, the short convolution, the scan, and gates of the result.

        GPUs add up a product of inner values at once, unless it is the last one.
        """
        gpus, hidden = self.deployment.tensor_parallel, self.decoder.hidden
        weights, products = mixer.weights(gpus), mixer.products(gpus, hidden)
        values = products[-1][1]
        for name, inputs, outputs in products[:-1]:
            yield from self.product(name, inputs, outputs, layer=kind.same_as)
            if inputs == values and gpus > 1:
                yield self.collective("mixer_sum", AllReduce, self.tokens * outputs, gpus)
        for count, new, _ in self.groups:
            for name, problem in mixer.kernels(count, new, gpus, self.dtype):
                yield StepKernel(name, problem, weights)
                weights = 0  # counted once
        yield from self.gate("gated_norm", values, mixer.row.gates)
        yield from self.product("out_proj", values, hidden, layer=kind.same_as)

    def dense(self, prefix: str, inter: int, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield an MLP: gate and up in one product, activation, down."""
        width = ceil_div(inter, self.deployment.tensor_parallel)
        name, inputs = ("gate_up_proj", 2 * width) if self.decoder.family.gated else ("up_proj", width)
        yield from self.product(f"{prefix}{name}", self.decoder.hidden, inputs, layer=kind.same_as)
        yield from self.activation(prefix, width)
        yield from self.product(f"{prefix}down_proj", width, self.decoder.hidden, layer=kind.same_as)

    def activation(self, prefix: str, width: int) -> Iterator[StepKernel]:
        """Yield the activation of an MLP, with its gate if there is one."""
        yield self.streaming(f"{prefix}activation", (1 + self.decoder.family.gated) * width, width)

    def expert_kernels(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield the experts; with several attention groups, their tokens are gathered before and scattered after."""
        d, deployment = self.decoder, self.deployment
        yield from self.product("router", d.hidden, d.experts, layer=None)
        hidden = d.expert_hidden or d.hidden
        if d.expert_hidden:
            yield from self.product("latent_in_proj", d.hidden, hidden, layer=kind.same_as)
        elements = self.tokens * deployment.data_parallel * d.hidden
        if deployment.data_parallel > 1:
            yield self.collective("gather", AllGather, elements, deployment.ranks)
        problem = Moe(
            tokens=self.tokens * deployment.data_parallel,
            hidden=hidden,
            inter=d.expert_inter,
            topk=d.topk,
            experts=d.experts,
            tensor_parallel=deployment.ranks // deployment.expert_parallel,
            expert_parallel=deployment.expert_parallel,
            dtype=self.checkpoint.product_dtype("experts", kind.same_as),
            routing=deployment.routing,
            variant="" if d.family.gated else NONGATED,
        )
        yield StepKernel("experts", problem, problem.local_experts * problem.matrices * hidden * problem.width)
        if d.expert_hidden:
            yield from self.product("latent_out_proj", hidden, d.hidden, layer=kind.same_as)
        if d.shared_inter:
            yield from self.dense("shared.", d.shared_inter, kind)
        if deployment.data_parallel > 1:
            yield self.collective("scatter", ReduceScatter, elements, deployment.ranks)
            yield from self.network_transfer(deployment.ranks, elements)
        else:
            yield from self.all_reduced()

    def all_reduced(self) -> Iterator[StepKernel]:
        """Yield the sum over the GPUs of a group: first within NVLink domains, then over the domains."""
        ranks, elements = self.deployment.tensor_parallel, self.tokens * self.decoder.hidden
        if ranks > 1:
            yield self.collective("all_reduce", AllReduce, elements, ranks)
            yield from self.network_transfer(ranks, elements)

    def collective(self, name: str, kind: type[AllReduce], elements: int, ranks: int) -> StepKernel:
        """Return a collective of ``ranks`` GPUs within their NVLink domains."""
        return StepKernel(name, kind(elements=elements, ranks=min(ranks, self.deployment.node), dtype=self.dtype))

    def network_transfer(self, ranks: int, elements: int) -> Iterator[StepKernel]:
        """Yield the transfer between NVLink domains: each GPU's share of a ring all-reduce, at the rate of PCIe."""
        nodes = ceil_div(ranks, self.deployment.node)
        if nodes > 1:
            crossing = ceil_div(2 * elements * (nodes - 1), nodes * self.deployment.node)
            yield StepKernel("network", Memcpy(elements=crossing, variant="device_to_host", dtype=self.dtype))
