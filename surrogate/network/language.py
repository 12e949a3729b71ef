"""A language model's step from its Hugging Face ``config.json``: the kernels of a prefill, or of one decoded token.

Read are decoders by their ``model_type`` (`FAMILIES`): dense ones, mixtures of experts, and those with DeepSeek's
multi-head latent attention (MLA). Sources: the configurations' fields as ``transformers`` documents them; the kernels
as vLLM and SGLang launch them (query, key and value in one product, gate and up in one, residual and norm fused);
Shoeybi et al., "Megatron-LM" (2019), for tensor parallelism with an all-reduce behind either half of a layer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from surrogate.features.elementwise import ceil_div
from surrogate.features.errors import InputError, read_bounded, require_known
from surrogate.features.families import Operator
from surrogate.features.families.attention import LATENT, NOPE, ROPE, VALUE, Attention, Mla
from surrogate.features.families.gemm import Bmm, Gemm
from surrogate.features.families.moe import Moe
from surrogate.features.families.rowwise import Quantise
from surrogate.features.families.transfer import AllReduce
from surrogate.features.problem import QUANTISED
from surrogate.features.whole import MAX_INT32, whole
from surrogate.network.checkpoint import Checkpoint, read_checkpoint
from surrogate.network.memory import chained
from surrogate.network.network import Layer, Network, Tally
from surrogate.network.work import streamed

MAX_BYTES = 1 << 20
MAX_LAYERS = 1000
MAX_REQUESTS = 1 << 20
DENSE = ("llama", "mistral", "qwen2", "qwen3")
LATENT_EXPERTS = ("deepseek_v2", "deepseek_v3", "kimi_k2")
FAMILIES = (*DENSE, "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", *LATENT_EXPERTS)
"""The ``model_type`` of every decoder that is read."""
GAP_US = 3.1
"""Time in µs from one kernel of a CUDA graph to the next, a step's sampling and small kernels that are not listed
included. Source: decoded tokens of zksainx/pipeweave's 40 runs, median of what kernels leave open."""
LATENT_SIZES = {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE, "v_head_dim": VALUE}
"""The only sizes of latent attention that were measured."""
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Sizes of a decoder. ``windows`` has each layer's attention window (0: none), ``sparse`` whether it routes.

    ``checkpoint`` has the arithmetic of every product, ``dtype`` is that of everything else. Of a decoder without
    experts ``experts`` is 0; ``latent``: attention is MLA, whose queries have rank ``query_rank`` (0: full).
    """

    name: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    windows: tuple[int, ...]
    sparse: tuple[bool, ...]
    dtype: str
    checkpoint: Checkpoint
    tied: bool
    experts: int = 0
    topk: int = 0
    expert_inter: int = 0
    shared_inter: int = 0
    latent: bool = False
    query_rank: int = 0
    positions: int = 0
    """Tokens that the model was made for; 0 where the file does not say."""


def read_decoder(path: Path) -> Decoder:
    """The decoder that a ``config.json`` describes.

    Raises `InputError` for what is no such file, an unknown ``model_type``, and sizes that are missing or wrong.
    """
    try:
        config = json.loads(read_bounded(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no JSON"
        raise InputError(f"{path}: cannot be read ({reason}); give a Hugging Face config.json") from None
    kind = str(config.get("model_type") if isinstance(config, dict) else None)
    require_known(f"{path}: model_type", kind, FAMILIES)
    sizes = _Sizes(path, config)
    hidden = sizes.of("hidden_size")
    heads = sizes.of("num_attention_heads")
    layers = sizes.of("num_hidden_layers", most=MAX_LAYERS)
    latent = kind in LATENT_EXPERTS
    for name, size in LATENT_SIZES.items() if latent else ():
        if sizes.of(name) != size:
            raise InputError(f"{path}: {name} is {sizes.of(name)}; latent attention is known for {size} alone")
    experts = sizes.of("num_local_experts", "num_experts", "n_routed_experts") if kind not in DENSE else 0
    own_inter = sizes.of("moe_intermediate_size", "intermediate_size") if experts else 0
    shared = sizes.maybe("shared_expert_intermediate_size") or own_inter * sizes.maybe("n_shared_experts")
    dtype = TYPES.get(str(config.get("torch_dtype", config.get("dtype"))), "bf16")
    return Decoder(
        name=path.parent.name if path.stem == "config" and path.parent.name else path.stem,
        hidden=hidden, vocabulary=sizes.of("vocab_size"), inter=sizes.of("intermediate_size"),
        heads=heads, kv_heads=sizes.maybe("num_key_value_heads") or heads,
        head_dim=sizes.maybe("head_dim") or hidden // heads, windows=_windows(sizes, kind, layers),
        sparse=tuple(experts > 0 and _routes(sizes, layer) for layer in range(layers)),
        dtype=dtype, checkpoint=read_checkpoint(path, config, dtype),
        tied=bool(config.get("tie_word_embeddings", False)), experts=experts,
        topk=sizes.of("num_experts_per_tok", "experts_per_token") if experts else 0,
        expert_inter=own_inter, shared_inter=shared,
        latent=latent, query_rank=sizes.maybe("q_lora_rank") if latent else 0,
        positions=sizes.maybe("max_position_embeddings"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sizes:
    path: Path
    config: Mapping[str, object]

    def of(self, *names: str, most: int = MAX_INT32) -> int:
        """The first of these fields that is there, a whole number above 0."""
        name = next((name for name in names if self.config.get(name) is not None), names[0])
        return whole(str(self.path), name, self.config.get(name), 1, most)

    def maybe(self, name: str) -> int:
        """The same; 0 where the field is missing, null or 0."""
        return self.of(name) if self.config.get(name) else 0


def _windows(sizes: _Sizes, kind: str, layers: int) -> tuple[int, ...]:
    """By ``layer_types`` where there are any; else all layers have the window, in Qwen's only if it is switched on."""
    config = sizes.config
    window = sizes.maybe("sliding_window")
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    used = config.get("use_sliding_window", not kind.startswith("qwen"))
    first = sizes.maybe("max_window_layers") if used else layers
    return tuple(window if layer >= first else 0 for layer in range(layers))


def _routes(sizes: _Sizes, layer: int) -> bool:
    """Whether a layer of a mixture of experts routes; DeepSeek's first ones and those that Qwen lists do not."""
    listed = sizes.config.get("mlp_only_layers")
    dense = layer < sizes.maybe("first_k_dense_replace") or (isinstance(listed, list) and layer in listed)
    return not dense and (layer + 1) % (sizes.maybe("decoder_sparse_step") or 1) == 0


def language_network(
    decoder: Decoder, requests: Sequence[tuple[int, int]], *, dtype: str | None = None, tensor_parallel: int = 1
) -> Network:
    """One step on one of ``tensor_parallel`` GPUs: each request is (new tokens, positions with them).

    Requests of several lengths attend as equally many that need the same work together. ``dtype`` replaces the
    arithmetic: a quantised one that of the products inside layers alone. Raises `InputError` where the heads or widths
    cannot be divided among the GPUs.
    """
    if decoder.heads % tensor_parallel or decoder.vocabulary < tensor_parallel:
        raise InputError(
            f"{decoder.name}: {decoder.heads} heads cannot be divided among {tensor_parallel} GPUs;"
            " --tensor-parallel takes a divisor of them"
        )
    plain = dtype if dtype and dtype not in QUANTISED else decoder.dtype
    checkpoint = decoder.checkpoint.all_in(dtype, plain) if dtype else decoder.checkpoint
    step = _Step(decoder, requests, plain, checkpoint, tensor_parallel)
    tally = Tally()
    for prefix, (word, work, weights) in step.kernels():
        tally.add([Layer(f"{prefix}{word}", word, work, parameters=weights)])
    network = chained(checkpoint.with_scales(tally.network(decoder.name, len(requests))))
    return replace(network, gap_us=GAP_US, state_bytes=kv_cache_bytes(network))


def read_language(
    path: Path, *, prefill: int | None = None, decode: int | None = None, tensor_parallel: int | None = None,
    batch: int | None = None, dtype: str | None = None,
) -> Network:  # fmt: skip
    """`language_network` of a ``config.json`` for ``batch`` equal requests (default: one).

    Raises `InputError` for a bad file, and unless one of ``prefill`` and ``decode`` is given.
    """
    decoder = read_decoder(path)
    if (prefill is None) == (decode is None):
        raise InputError(f"{path}: a step is --prefill TOKENS or --decode CONTEXT; give one of them")
    if (batch or 1) > MAX_REQUESTS:
        raise InputError(f"{path}: a batch of {batch}; steps of up to {MAX_REQUESTS} requests are known")
    request = (prefill, prefill) if prefill else (1, decode or 1)
    requests = [request] * (batch or 1)
    network = language_network(decoder, requests, dtype=dtype, tensor_parallel=tensor_parallel or 1)
    step = f"prefill {prefill}" if prefill else f"decode at {decode}"
    most = prefill or decode or 0
    beyond = f"{most} tokens are beyond the {decoder.positions} positions that {decoder.name} was made for"
    notes = (beyond,) if 0 < decoder.positions < most else ()
    return replace(network, name=f"{decoder.name}, {step}", notes=notes)


_Kernel = tuple[str, Operator, int]
"""Its word, what it computes, and the weights that it holds."""


@dataclass(frozen=True, slots=True)
class _Step:
    decoder: Decoder
    requests: Sequence[tuple[int, int]]
    dtype: str
    checkpoint: Checkpoint
    ranks: int
    number: int | None = None
    """Of the layer; None outside all layers."""

    @property
    def tokens(self) -> int:
        return sum(new for new, _ in self.requests)

    def kernels(self) -> Iterator[tuple[str, _Kernel]]:
        """The prefix of the layer's name and the kernel, for every kernel of the step in order."""
        d = self.decoder
        own_vocabulary = ceil_div(d.vocabulary, self.ranks)
        norm = ("norm", self.moved("norm", 2 * d.hidden, 2 * d.hidden), d.hidden)
        table = 0 if d.tied else own_vocabulary * d.hidden
        yield "", ("embedding", self.moved("embedding", d.hidden, d.hidden), table)
        for number, (window, routes) in enumerate(zip(d.windows, d.sparse, strict=True)):
            layer = replace(self, number=number)
            mixing = layer.mla() if d.latent else layer.attention(window)
            feeding = layer.routed() if routes else layer.dense("", d.inter)
            for part in (mixing, feeding):
                for kernel in (norm, *part, *self.reduced()):
                    yield f"layers.{number}.", kernel
        batch = len(self.requests)
        head = self.product("lm_head", d.hidden, own_vocabulary, rows=batch)
        logits = streamed("sampling", [(batch, d.vocabulary)], [(batch, 1)], "fp32")
        for kernel in (norm, *head, ("sampling", logits, 0)):
            yield "", kernel

    def product(self, word: str, inputs: int, outputs: int, *, rows: int = 0) -> Iterator[_Kernel]:
        """rows × inputs · inputs × outputs; activations that are quantised cost a pass of their own."""
        dtype = self.checkpoint.of(word, self.number)
        rows = rows or self.tokens
        if dtype in QUANTISED and QUANTISED[dtype].activation_bytes < 2:
            yield f"{word}.quantise", Quantise(n=rows, c=inputs, dtype=self.dtype), 0
        yield word, Gemm(m=rows, n=outputs, k=inputs, dtype=dtype, math="default"), inputs * outputs

    def moved(self, word: str, reads: int, writes: int) -> Operator:
        """A kernel that reads and writes so many values a token."""
        return streamed(word, [(self.tokens, reads)], [(self.tokens, writes)], self.dtype)

    def attended(self) -> tuple[int, int, int]:
        """Batch, query and context of requests as equal ones: causal pairs grow with the square of a prompt."""
        batch = len(self.requests)
        query = round((sum(new**2 for new, _ in self.requests) / batch) ** 0.5)
        before = round(sum(context - new for new, context in self.requests) / batch)
        return batch, query, query + before

    def attention(self, window: int) -> Iterator[_Kernel]:
        d = self.decoder
        heads = d.heads // self.ranks
        kv_heads = ceil_div(d.kv_heads, self.ranks)
        queries, keys = heads * d.head_dim, kv_heads * d.head_dim
        yield from self.product("qkv_proj", d.hidden, queries + 2 * keys)
        yield "rope", self.moved("rope", queries + 2 * keys, queries + 2 * keys), 0
        batch, query, context = self.attended()
        work = Attention(
            batch=batch, heads=heads, kv_heads=kv_heads, head_dim=d.head_dim, window=window, query_length=query,
            context_length=context, dtype=self.dtype, kv_dtype=self.checkpoint.kv_dtype,
        )  # fmt: skip
        yield "attention", work, 0
        yield from self.product("o_proj", queries, d.hidden)

    def mla(self) -> Iterator[_Kernel]:
        """In decoding the key and value expansions are absorbed: products per head before and behind attention."""
        d = self.decoder
        heads = d.heads // self.ranks
        queries = heads * (NOPE + ROPE)
        if d.query_rank:
            yield from self.product("qkv_a_proj", d.hidden, d.query_rank + LATENT + ROPE)
            yield from self.product("q_b_proj", d.query_rank, queries)
        else:
            yield from self.product("q_proj", d.hidden, queries)
            yield from self.product("kv_a_proj", d.hidden, LATENT + ROPE)
        yield "rope", self.moved("rope", queries + LATENT + ROPE, queries + LATENT + ROPE), 0
        batch, query, context = self.attended()
        work = Mla(
            batch=batch, heads=heads, query_length=query, context_length=context, dtype=self.dtype,
            kv_dtype=self.checkpoint.kv_dtype,
        )  # fmt: skip
        if work.phase == "generation":
            yield self.per_head("absorbed_keys", heads, LATENT, NOPE)
        else:
            yield from self.product("kv_b_proj", LATENT, heads * (NOPE + VALUE))
        yield "attention", work, 0
        if work.phase == "generation":
            yield self.per_head("absorbed_values", heads, VALUE, LATENT)
        yield from self.product("o_proj", heads * VALUE, d.hidden)

    def per_head(self, word: str, heads: int, outputs: int, inputs: int) -> _Kernel:
        work = Bmm(batch=heads, m=self.tokens, n=outputs, k=inputs, dtype=self.dtype, math="default")
        return word, work, heads * outputs * inputs

    def dense(self, prefix: str, inter: int) -> Iterator[_Kernel]:
        width = ceil_div(inter, self.ranks)
        yield from self.product(f"{prefix}gate_up_proj", self.decoder.hidden, 2 * width)
        yield f"{prefix}activation", self.moved("activation", 2 * width, width), 0
        yield from self.product(f"{prefix}down_proj", width, self.decoder.hidden)

    def routed(self) -> Iterator[_Kernel]:
        d = self.decoder
        yield from self.product("router", d.hidden, d.experts)
        work = Moe(
            tokens=self.tokens, hidden=d.hidden, inter=d.expert_inter, topk=d.topk, experts=d.experts,
            tensor_parallel=self.ranks, dtype=self.checkpoint.of("experts", self.number),
        )  # fmt: skip
        yield "experts", work, d.experts * work.matrices * d.hidden * work.width
        if d.shared_inter:
            yield from self.dense("shared.", d.shared_inter)

    def reduced(self) -> Iterator[_Kernel]:
        """The sum over the GPUs behind either half of a layer."""
        work = AllReduce(elements=self.tokens * self.decoder.hidden, ranks=self.ranks, dtype=self.dtype)
        yield from [("all_reduce", work, 0)] * (self.ranks > 1)


def kv_cache_bytes(network: Network) -> int:
    """Bytes of keys and values that one GPU holds once the step is done; a window bounds a layer's."""
    total = 0.0
    for work in (layer.work for layer in network.layers):
        if isinstance(work, Attention):
            tokens = min(work.context_length, work.window or work.context_length)
            total += 2 * work.batch * work.kv_heads * work.head_dim * tokens * work.kv_itemsize
        elif isinstance(work, Mla):
            total += work.batch * (LATENT + ROPE) * work.context_length * work.kv_itemsize
    return round(total)
