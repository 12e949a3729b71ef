"""Read a language model from its Hugging Face ``config.json``, and check how it is spread over GPUs.

The ``model_type`` selects the family (`FAMILIES`). There are dense decoders, mixtures of experts, decoders with
DeepSeek's multi-head latent attention (MLA, also sparse), and decoders with mostly gated delta nets. In a multimodal
model, only the text decoder is read. Source: the fields of the configurations, as ``transformers`` documents them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from surrogate.bundled import NETWORKS
from surrogate.features.elementwise import MAX_INT32, checked_int
from surrogate.features.errors import InputError, check_choice, nearest, read_bounded, read_toml
from surrogate.features.families.attention import KV_DTYPES, LATENT, ROPE, TRITON
from surrogate.features.problem import QUANTISED
from surrogate.network.checkpoint import Checkpoint, ModuleNames, read_checkpoint

MAX_BYTES = 1 << 20
MAX_LAYERS = 1000
NAME_CUTOFF = 0.75
"""Minimum similarity of a name that an error suggests; gpt2 is not similar to gpt_oss."""
LATENT_SIZES = {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE}
"""The only measured sizes of a latent cache."""
SCALED_TYPES = ("su", "longrope", "llama3")
"""Scaling types for which ``max_position_embeddings`` is the number of positions after the scaling."""
MAX_FACTOR = 1e6
LATENT_FIELDS = {"nope_dim": "qk_nope_head_dim", "value_dim": "v_head_dim"}
SPARSE_FIELDS = {"index_heads": "index_n_heads", "index_dim": "index_head_dim", "index_topk": "index_topk"}
"""Field of a `Decoder` → name in the configuration."""
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
ROUTING = "power_law_1.01"
"""The default distribution of tokens over experts: nearly even, but some experts have no tokens. It is the flattest
distribution that ai-dynamo/aiconfigurator measured, except the exactly even one, which no real prompts have."""
NVLINK_GPUS = 8
"""Default number of GPUs in one NVLink domain."""
NVLINK_DOMAINS = {"gb200": 72, "gb300": 72}
"""GPU → larger number of GPUs in its NVLink domain. Source: NVIDIA's datasheets of GB200 NVL72 and GB300 NVL72."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """The properties of a ``model_type`` that its configuration does not have; `language.toml` explains the fields."""

    experts: str = ""
    latent: bool = False
    sparse: bool = False
    delta_nets: bool = False
    local: bool = False
    query_norm: str = ""
    qkv_bias: bool = False
    post_norms: bool = False
    norm: str = "rms_norm"
    activation: str = "silu"
    gated: bool = True
    fused_qkv: bool = False
    fused_loss: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict, compare=False)


FAMILIES: Mapping[str, DecoderFamily] = {name: DecoderFamily(**row) for name, row in read_toml(__file__).items()}
"""``model_type`` → family, for every supported decoder."""
DENSE = DecoderFamily()
BIASES = {"attention_bias": ("qkv_proj", "o_proj"), "mlp_bias": ("gate_up_proj", "down_proj")}
"""Field of a configuration → products that have a bias if it is true. Source: transformers, ``modeling_llama.py``."""


class DeltaNetHeads(NamedTuple):
    """The numbers of key and value heads of a gated delta net, their widths, and the taps of its short convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int


class LayerKind(NamedTuple):
    """The properties that decide a layer's kernels.

    ``window`` is the attention window (0: none), ``routes`` is True for a mixture of experts, and ``is_delta_net``
    for a gated delta net. ``same_as`` is the number of the first layer with the same arithmetic.
    """

    window: int
    routes: bool
    is_delta_net: bool
    same_as: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The sizes of a decoder.

    ``windows`` has each layer's attention window (0: none), and ``routed_layers`` is True for layers with routed
    experts. ``checkpoint`` has the arithmetic of every product, and ``dtype`` is the element type of everything else.
    The field ``experts`` is 0 if the decoder has no experts. With latent attention, ``query_rank`` is the rank of
    queries (0: full rank).
    """

    name: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    windows: tuple[int, ...]
    routed_layers: tuple[bool, ...]
    dtype: str
    checkpoint: Checkpoint
    tied: bool
    experts: int = 0
    topk: int = 0
    expert_inter: int = 0
    shared_inter: int = 0
    family: DecoderFamily = DENSE
    nope_dim: int = 0
    value_dim: int = 0
    """Widths of a head's key part without positions and of its value, with latent attention."""
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0
    """Heads and their width in the indexer of sparse attention, and the number of positions that it selects."""
    query_rank: int = 0
    delta_net: DeltaNetHeads | None = None
    delta_net_layers: tuple[bool, ...] = ()
    """True for layers that are gated delta nets with these heads instead of attention."""
    positions: int = 0
    """Maximum tokens of a request; 0 if the file does not have it."""
    rotates: bool = True
    """Whether queries and keys are rotated by their positions."""
    attention: str = ""
    """The variant of attention in training: "" for today's FlashAttention, or `TRITON`."""
    learned_positions: int = 0
    """Number of positions with a learned vector that is added to the embedding."""
    biases: tuple[str, ...] = ()
    """Names of the products with a bias."""
    notes: tuple[str, ...] = ()
    """Assumptions for values that the file lacks."""

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, in order."""
        delta_net_layers = self.delta_net_layers or (False,) * len(self.windows)
        return tuple(map(LayerKind, self.windows, self.routed_layers, delta_net_layers))

    def main_dtype(self, dtype: str | None) -> str:
        """Return the arithmetic of most products: of the last layer's experts or, if it does not route, of its MLP.

        ``dtype`` replaces the checkpoint's arithmetic.
        """
        product = "experts" if self.layers[-1].routes else "gate_up_proj"
        return arithmetic_of(self, dtype)[0].product_dtype(product, len(self.layers) - 1)

    def require_context(self, tokens: int) -> None:
        """Raise `InputError` if a request has more tokens than the model supports, as servers do."""
        if 0 < self.positions < tokens:
            raise InputError(
                f"{self.name}: a request has {tokens} tokens, but the model supports {self.positions}"
                " (max_position_embeddings); give fewer tokens, or a config.json with more positions"
            )


def read_decoder(source: str | Path | Mapping[str, object]) -> Decoder:
    """Return the decoder of a ``config.json``: its path, its folder, its content, or the name of a shipped one.

    Raises `InputError` if the file cannot be read, the ``model_type`` is unknown, or sizes are missing or wrong.
    """
    path, raw_config = _raw_config(source)
    text = raw_config.get("text_config")
    config = raw_config | text if isinstance(text, dict) else raw_config
    kind = str(config.get("model_type")).removesuffix("_text")
    if kind not in FAMILIES:
        near = nearest(kind, FAMILIES, cutoff=NAME_CUTOFF)
        raise InputError(f"{path}: model_type {kind!r} is unknown; known: {', '.join(FAMILIES)}{near}")
    family = FAMILIES[kind]
    config = _mpt_config(path, config) if kind == "mpt" else config
    sizes = _Sizes(path, {**family.defaults, **{name: value for name, value in config.items() if value is not None}})
    hidden = sizes.required("hidden_size")
    heads = sizes.required("num_attention_heads")
    layers = sizes.required("num_hidden_layers", maximum=MAX_LAYERS)
    for name, size in LATENT_SIZES.items() if family.latent else ():
        if sizes.required(name) != size:
            raise InputError(f"{path}: {name} is {sizes.required(name)}; latent attention was measured for {size} only")
    experts = _experts(sizes, kind) if family.experts else {}
    dtype_name = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    check_choice(f"{path}: torch_dtype", dtype_name, TYPES)
    groups = sizes.optional("num_key_value_heads")
    if not family.latent and heads % (groups or heads):
        raise InputError(f"{path}: num_key_value_heads is {groups}; give a divisor of num_attention_heads, {heads}")
    biases = [name for field, names in BIASES.items() if config.get(field) for name in names]
    assumed = f"{path}: num_key_value_heads is missing; {heads} are assumed, the number of heads"
    return Decoder(
        name=path.parent.name if path.stem == "config" and path.parent.name else path.stem,
        hidden=hidden,
        vocabulary=sizes.required("vocab_size"),
        inter=_dense_inter(sizes, experts.get("expert_inter", 0)),
        heads=heads,
        kv_heads=groups or heads,
        head_dim=sizes.optional("head_dim") or hidden // heads,
        windows=_windows(sizes, kind, layers),
        routed_layers=tuple("experts" in experts and _routes(sizes, layer) for layer in range(layers)),
        dtype=TYPES[dtype_name],
        checkpoint=read_checkpoint(path, raw_config, TYPES[dtype_name]),
        tied=bool(sizes.config.get("tie_word_embeddings", False)),
        family=family,
        query_rank=sizes.optional("q_lora_rank") if family.latent else 0,
        delta_net=_delta_net_heads(sizes) if family.delta_nets else None,
        delta_net_layers=_delta_net_layers(sizes, layers) if family.delta_nets else (),
        **experts,
        **{field: sizes.required(name) for field, name in LATENT_FIELDS.items() if family.latent},
        **{field: sizes.required(name) for field, name in SPARSE_FIELDS.items() if family.sparse},
        positions=_positions(sizes, kind),
        rotates=bool(sizes.config.get("rope", True)),
        learned_positions=sizes.optional("learned_positions"),
        attention=str(sizes.config.get("attention", "")),
        biases=tuple(biases) or ("qkv_proj",) * family.qkv_bias,
        notes=() if groups or family.latent else (assumed,),
    )


def _raw_config(source: object) -> tuple[Path, dict[str, object]]:
    """Return the path for errors, and the content of a configuration."""
    if isinstance(source, Mapping):
        return Path(str(source.get("_name_or_path") or source.get("model_type")), "config.json"), dict(source)
    if not isinstance(source, str | Path):
        raise InputError(
            f"config is a {type(source).__name__}; give the path of a config.json, its folder, or its content as a dict"
            " (transformers: config.to_dict())"
        )
    path = Path(source) if Path(source).exists() else NETWORKS.get(str(source), Path(source))
    path = path / "config.json" if path.is_dir() else path
    return path, _json_of(path)


def _experts(sizes: "_Sizes", kind: str) -> dict[str, int]:
    """Return the fields of a `Decoder` that is a mixture of experts."""
    experts = sizes.required("num_local_experts", "num_experts", "n_routed_experts")
    inter = sizes.required(FAMILIES[kind].experts)
    topk = sizes.required("num_experts_per_tok", "experts_per_token")
    if topk > experts:
        raise InputError(
            f"{sizes.path}: num_experts_per_tok is {topk}, but there are {experts} experts; give at most {experts}"
        )
    shared = sizes.optional("shared_expert_intermediate_size") or inter * sizes.optional("n_shared_experts")
    shared = inter if kind == "llama4" else shared
    return {"experts": experts, "topk": topk, "expert_inter": inter, "shared_inter": shared}


def _json_of(path: Path) -> dict[str, object]:
    try:
        config = json.loads(read_bounded(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no JSON"
        names = [name for name, shipped in NETWORKS.items() if shipped.suffix == ".json"]
        raise InputError(
            f"{path}: cannot be read ({reason}); give the path of a model's config.json from Hugging Face, or one of"
            f" {', '.join(names)}{nearest(str(path), names, cutoff=NAME_CUTOFF)}"
        ) from None
    return config if isinstance(config, dict) else {}


@dataclass(frozen=True, slots=True)
class _Sizes:
    path: Path
    config: Mapping[str, object]

    def required(self, *names: str, maximum: int = MAX_INT32) -> int:
        """Return the first of these fields that exists, a whole number above 0."""
        name = next((name for name in names if self.config.get(name) is not None), None)
        if name is None:
            raise InputError(f"{self.path}: {' or '.join(names)} is missing; add it, a whole number above 0")
        return checked_int(str(self.path), name, self.config[name], 1, maximum)

    def kinds_of(self, layers: int) -> list[object]:
        """Return the kind of every layer; empty if the configuration does not list them."""
        kinds = self.config.get("layer_types")
        return kinds if isinstance(kinds, list) and len(kinds) == layers else []

    def optional(self, name: str) -> int:
        """Return a field as `required`; 0 if it is missing, null or 0."""
        return self.required(name) if self.config.get(name) else 0


def _mpt_config(path: Path, config: Mapping[str, object]) -> dict[str, object]:
    """Return the configuration of an MPT under the usual names of fields; its embedding is tied.

    Missing fields have the defaults of transformers' ``MptConfig``. Raises `InputError` for biases, other MLPs,
    and norms or limits of queries and keys.
    """
    sizes = _Sizes(path, {"expansion_ratio": 4, "max_seq_len": 2048, **config})
    sections = (config.get(name) for name in ("attn_config", "ffn_config"))
    attention, mlp = (section if isinstance(section, dict) else {} for section in sections)
    supported = {"ffn_type": "mptmlp", "no_bias": True, "qk_ln": False, "clip_qkv": None}
    found = {**supported, **config, **attention, **mlp}
    for name, value in supported.items():
        if found[name] != value:
            raise InputError(f"{path}: {name} is {found[name]!r}; only an MPT with {value!r} is predicted")
    hidden, heads, positions = (sizes.required(name) for name in ("d_model", "n_heads", "max_seq_len"))
    is_multiquery = attention.get("attn_type") == "multiquery_attention"
    is_learned = config.get("learned_pos_emb", True) and not attention.get("alibi", True) and not attention.get("rope")
    return {
        **config,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": sizes.required("n_layers", maximum=MAX_LAYERS),
        "num_key_value_heads": 1 if is_multiquery else attention.get("kv_n_heads") or heads,
        "intermediate_size": hidden * sizes.required("expansion_ratio"),
        "max_position_embeddings": positions,
        "rope": bool(attention.get("rope")),
        # The default of llm-foundry when most of these models were trained.
        "attention": {"flash": ""}.get(name := attention.get("attn_impl", TRITON), name),
        "learned_positions": positions if is_learned else 0,
        "tie_word_embeddings": True,
    }


def _positions(sizes: _Sizes, kind: str) -> int:
    """Return the maximum tokens of a request.

    Source: vLLM's rule. The scaling factor multiplies the positions; YaRN multiplies the original positions. Types in
    `SCALED_TYPES` state the number after the scaling.
    """
    scaling = sizes.config.get("rope_scaling") or sizes.config.get("rope_parameters")
    rope = _Sizes(sizes.path, scaling if isinstance(scaling, dict) else {})
    stated = sizes.optional("max_position_embeddings")
    word = rope.config.get("rope_type", rope.config.get("type"))
    factor = rope.config.get("factor")
    if kind == "gemma3" or word in SCALED_TYPES or not (isinstance(factor, int | float) and 1 <= factor < MAX_FACTOR):
        return stated
    original = rope.optional("original_max_position_embeddings") if word == "yarn" else stated
    return max(stated, int(original * factor))


def _windows(sizes: _Sizes, kind: str, layers: int) -> tuple[int, ...]:
    """Return each layer's window, by ``layer_types`` if the file has them.

    Otherwise all layers have the window; Qwen's models have it only if the file switches it on.
    """
    window = sizes.optional("sliding_window")
    if kinds := sizes.kinds_of(layers):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if FAMILIES[kind].local:  # every sixth or fourth layer has no window; Llama's other layers have a chunk
        window = window or sizes.optional("attention_chunk_size")
        interval = sizes.optional("sliding_window_pattern") or 4
        return tuple(0 if (layer + 1) % interval == 0 else window for layer in range(layers))
    used = sizes.config.get("use_sliding_window", not kind.startswith("qwen"))
    first = sizes.optional("max_window_layers") if used else layers
    return tuple(window if layer >= first else 0 for layer in range(layers))


def _routes(sizes: _Sizes, layer: int) -> bool:
    """Return whether a layer routes; DeepSeek's first layers and the layers that Qwen lists do not."""
    listed = sizes.config.get("mlp_only_layers")
    dense = layer < sizes.optional("first_k_dense_replace") or (isinstance(listed, list) and layer in listed)
    interval = sizes.optional("decoder_sparse_step") or sizes.optional("interleave_moe_layer_step") or 1
    return not dense and (layer + 1) % interval == 0


def _dense_inter(sizes: _Sizes, own_inter: int) -> int:
    """Return the width of layers that do not route; Llama 4 has its own field, and models without such layers none."""
    inter = sizes.optional("intermediate_size_mlp") or sizes.optional("intermediate_size") or own_inter
    return inter or sizes.required("intermediate_size")


def _delta_net_heads(sizes: _Sizes) -> DeltaNetHeads:
    """Return the heads of a gated delta net."""
    fields = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    return DeltaNetHeads(*(sizes.required(f"linear_{field}") for field in fields))


def _delta_net_layers(sizes: _Sizes, layers: int) -> tuple[bool, ...]:
    """Return which layers are delta nets: by ``layer_types``, else all but every ``full_attention_interval``-th."""
    if kinds := sizes.kinds_of(layers):
        return tuple(kind == "linear_attention" for kind in kinds)
    interval = sizes.required("full_attention_interval")
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The distribution of a model over GPUs, and its element types.

    Attributes
    ----------
    tensor_parallel
        GPUs of a group, which share heads and widths.
    data_parallel
        Groups that process the attention of their own requests and share the experts.
    expert_parallel
        GPUs with different experts; the other GPUs of a set hold parts of the same experts.
    pipeline_parallel
        Sets of groups with different layers.
    dtype, kv_dtype
        Element types instead of the model's own. A quantised ``dtype`` applies to the products inside layers only.
    routing
        The distribution of tokens over experts.
    node
        GPUs that NVLink joins; a network joins further GPUs.
    """

    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    dtype: str | None = None
    kv_dtype: str | None = None
    routing: str = ROUTING
    node: int = NVLINK_GPUS

    @property
    def ranks(self) -> int:
        """The number of GPUs that share a layer."""
        return self.tensor_parallel * self.data_parallel

    @property
    def gpus(self) -> int:
        """The number of GPUs that hold the model once."""
        return self.ranks * self.pipeline_parallel

    def check(self, decoder: Decoder) -> None:
        """Raise `InputError` if the model cannot be divided in this way."""
        delta_net_heads = decoder.delta_net.value_heads if decoder.delta_net else 0
        for heads, kind in ((decoder.heads, "heads"), (delta_net_heads, "heads of linear attention")):
            if heads % self.tensor_parallel or decoder.vocabulary < self.tensor_parallel:
                raise InputError(
                    f"{decoder.name}: {heads} {kind} cannot be divided among {self.tensor_parallel} GPUs;"
                    f" give --tensor-parallel a divisor of {heads}"
                )
        if not decoder.experts and self.routing != ROUTING:
            raise InputError(f"{decoder.name} has no experts; leave out --routing")
        if not decoder.experts and (self.expert_parallel > 1 or self.data_parallel > 1):
            raise InputError(
                f"{decoder.name} has no experts; leave out --expert-parallel and --attention-parallel, or add replicas"
            )
        if decoder.experts and (self.ranks % self.expert_parallel or decoder.experts % self.expert_parallel):
            raise InputError(
                f"{decoder.name}: {decoder.experts} experts on {self.ranks} GPUs cannot be divided into"
                f" {self.expert_parallel} parts; give --expert-parallel a divisor of both"
            )
        if self.pipeline_parallel > len(decoder.windows):
            raise InputError(
                f"{decoder.name}: {len(decoder.windows)} layers cannot be divided into {self.pipeline_parallel} stages;"
                " give a smaller --pipeline-parallel"
            )
        if self.kv_dtype:
            check_choice("kv_dtype", self.kv_dtype, KV_DTYPES)

    def notes(self) -> tuple[str, ...]:
        """Return the notes for answers with this deployment."""
        gpus = f"{self.ranks} GPUs are more than the {self.node} that NVLink joins"
        return (f"{gpus}; sums over all of them use a network",) if self.ranks > self.node else ()


@lru_cache(maxsize=64)
def arithmetic_of(decoder: Decoder, dtype: str | None) -> tuple[Checkpoint, tuple[LayerKind, ...]]:
    """Return the arithmetic of products and the kinds of layers; ``dtype`` replaces the checkpoint's arithmetic.

    NVIDIA's nvfp4 checkpoints of mixtures of experts do not quantise attention. So ``dtype`` nvfp4 keeps it, too.
    """
    base_dtype = dtype if dtype and dtype not in QUANTISED else decoder.dtype
    checkpoint = decoder.checkpoint.all_in(dtype, base_dtype) if dtype else decoder.checkpoint
    if dtype == "nvfp4" and decoder.experts:
        attention = ModuleNames(["self_attn", "linear_attn"])
        checkpoint = replace(checkpoint, quantisation=checkpoint.quantisation._replace(unquantised=attention))
    first: dict[tuple[object, ...], int] = {}
    kinds = []
    for number, kind in enumerate(decoder.layers):
        arithmetic = tuple(checkpoint.product_dtype(product, number) for product in _quantised_products(decoder, kind))
        kinds.append(kind._replace(same_as=first.setdefault((kind, arithmetic), number)))
    return checkpoint, tuple(kinds)


def _quantised_products(decoder: Decoder, kind: LayerKind) -> Iterator[str]:
    """Yield the names of a layer's products that a checkpoint may quantise."""
    if kind.is_delta_net:
        yield from ("in_proj", "out_proj")
    elif not decoder.family.latent:
        yield from ("qkv_proj", "o_proj")
    else:
        yield from ("qkv_a_proj", "q_b_proj") if decoder.query_rank else ("q_proj", "kv_a_proj")
        yield from ("kv_b_proj", "o_proj", *(("indexer.q_proj",) if decoder.index_topk else ()))
    prefix = "shared." if kind.routes else ""
    if kind.routes:
        yield "experts"
    if not kind.routes or decoder.shared_inter:
        yield from (f"{prefix}gate_up_proj", f"{prefix}down_proj")
