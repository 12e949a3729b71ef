"""A language model as its Hugging Face ``config.json`` describes it: sizes, kinds of layers, and element types; how it
is spread over GPUs, what is refused, and the arithmetic of its products there.

Read are decoders by their ``model_type`` (`FAMILIES`): dense ones, mixtures of experts, those with DeepSeek's
multi-head latent attention (MLA, also sparse), and those most of whose layers are gated delta nets. Of a model for
several media the decoder of text counts. Source: the configurations' fields as ``transformers`` documents them.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from surrogate.bundled import NETWORKS
from surrogate.features.elementwise import MAX_INT32, checked_int
from surrogate.features.errors import InputError, check_choice, nearest, read_bounded
from surrogate.features.families.attention import KV_DTYPES, LATENT, ROPE
from surrogate.features.problem import QUANTISED
from surrogate.network.checkpoint import Checkpoint, Names, read_checkpoint

MAX_BYTES = 1 << 20
MAX_LAYERS = 1000
NEAR = 0.75
"""How near a known name must be to be meant: gpt2 is no gpt_oss."""
LATENT_SIZES = {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE}
"""The only sizes of a latent cache that were measured."""
STATED = ("su", "longrope", "llama3")
"""Ways to scale positions that a configuration's number of them includes."""
MAX_FACTOR = 1e6
OF_LATENT = {"nope": "qk_nope_head_dim", "value": "v_head_dim"}
OF_SPARSE = {"index_heads": "index_n_heads", "index_dim": "index_head_dim", "index_topk": "index_topk"}
"""Field of a `Decoder` → what the configuration calls it."""
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
ROUTING = "power_law_1.01"
"""How tokens spread over experts unless a caller says otherwise: nearly even, but some experts have none. It is the
flattest of those that ai-dynamo/aiconfigurator measured beside an exactly even one, which no prompts are."""
NODE = 8
"""GPUs of one NVLink domain, unless a `Deployment` says otherwise."""
DOMAINS = {"gb200": 72, "gb300": 72}
"""GPUs that NVLink joins where they are more. Source: NVIDIA's data sheets of GB200 NVL72 and GB300 NVL72."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """What a ``model_type`` says that its configuration does not; `language.toml` says what the fields are."""

    experts: str = ""
    latent: bool = False
    sparse: bool = False
    recurrent: bool = False
    local: bool = False
    query_norm: str = ""
    post_norms: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict, compare=False)


FAMILIES: Mapping[str, DecoderFamily] = {
    name: DecoderFamily(**row)
    for name, row in tomllib.loads(Path(__file__).with_name("language.toml").read_text(encoding="utf-8")).items()
}
"""The family of every decoder that is read, by its ``model_type``."""
PLAIN = DecoderFamily()


class LinearHeads(NamedTuple):
    """Heads of a gated delta net: of keys and of values, values of each, and positions of its short convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int


class LayerKind(NamedTuple):
    """What decides a layer's kernels: its window, whether it routes, whether it is recurrent, and the first layer whose
    products compute alike."""

    window: int
    routes: bool
    recurrent: bool
    like: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Sizes of a decoder. ``windows`` has each layer's attention window (0: none), ``sparse`` whether it routes.

    ``checkpoint`` has the arithmetic of every product, ``dtype`` is that of everything else. Of a decoder without
    experts ``experts`` is 0; where the ``family``'s attention is latent, queries have rank ``query_rank`` (0: full).
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
    family: DecoderFamily = PLAIN
    nope: int = 0
    value: int = 0
    """A head's key part without positions, and its value, where attention is latent."""
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0
    """Of sparse attention: what scores all positions, and of how many the best are attended to."""
    query_rank: int = 0
    linear: LinearHeads | None = None
    recurrent: tuple[bool, ...] = ()
    """Which layers are gated delta nets with ``linear`` heads, in the place of attention."""
    positions: int = 0
    """Tokens that the model was made for; 0 where the file does not say."""
    notes: tuple[str, ...] = ()
    """What was assumed where the file does not say."""

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, in order."""
        recurrent = self.recurrent or (False,) * len(self.windows)
        return tuple(map(LayerKind, self.windows, self.sparse, recurrent))

    def require_context(self, tokens: int) -> None:
        """Raise `InputError` for more tokens of a request than the model was made for, as servers do."""
        if 0 < self.positions < tokens:
            raise InputError(
                f"{self.name}: {tokens} tokens are beyond the {self.positions} positions that it was made for"
                " (max_position_embeddings), and servers refuse them; give fewer, or a config.json that extends them"
            )


def read_decoder(source: str | Path | Mapping[str, object]) -> Decoder:
    """The decoder that a ``config.json``, the one in a folder, its content, or the name of one that ships describes.

    Raises `InputError` for what is no such file, an unknown ``model_type``, and sizes that are missing or wrong.
    """
    path, stated = _stated(source)
    text = stated.get("text_config")
    config = stated | text if isinstance(text, dict) else stated
    kind = str(config.get("model_type")).removesuffix("_text")
    if kind not in FAMILIES:
        near = nearest(kind, FAMILIES, cutoff=NEAR)
        raise InputError(f"{path}: model_type {kind!r} is unknown; known: {', '.join(FAMILIES)}{near}")
    family = FAMILIES[kind]
    sizes = _Sizes(path, {**family.defaults, **{name: value for name, value in config.items() if value is not None}})
    hidden = sizes.of("hidden_size")
    heads = sizes.of("num_attention_heads")
    layers = sizes.of("num_hidden_layers", maximum=MAX_LAYERS)
    for name, size in LATENT_SIZES.items() if family.latent else ():
        if sizes.of(name) != size:
            raise InputError(f"{path}: {name} is {sizes.of(name)}; latent attention is known for {size} alone")
    experts = _experts(sizes, kind) if family.experts else {}
    stated_type = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    check_choice(f"{path}: torch_dtype", stated_type, TYPES)
    groups = sizes.maybe("num_key_value_heads")
    if not family.latent and heads % (groups or heads):
        raise InputError(f"{path}: num_key_value_heads {groups} is no divisor of {heads} num_attention_heads; give one")
    assumed = f"{path}: num_key_value_heads is missing; {heads} are assumed, as many as heads"
    return Decoder(
        name=path.parent.name if path.stem == "config" and path.parent.name else path.stem,
        hidden=hidden,
        vocabulary=sizes.of("vocab_size"),
        inter=_dense_inter(sizes, experts.get("expert_inter", 0)),
        heads=heads,
        kv_heads=groups or heads,
        head_dim=sizes.maybe("head_dim") or hidden // heads,
        windows=_windows(sizes, kind, layers),
        sparse=tuple("experts" in experts and _routes(sizes, layer) for layer in range(layers)),
        dtype=TYPES[stated_type],
        checkpoint=read_checkpoint(path, stated, TYPES[stated_type]),
        tied=bool(sizes.config.get("tie_word_embeddings", False)),
        family=family,
        query_rank=sizes.maybe("q_lora_rank") if family.latent else 0,
        linear=_linear(sizes) if family.recurrent else None,
        recurrent=_recurrent(sizes, layers) if family.recurrent else (),
        **experts,
        **{field: sizes.of(name) for field, name in OF_LATENT.items() if family.latent},
        **{field: sizes.of(name) for field, name in OF_SPARSE.items() if family.sparse},
        positions=_positions(sizes, kind),
        notes=() if groups or family.latent else (assumed,),
    )


def _stated(source: object) -> tuple[Path, dict[str, object]]:
    """The path that names a configuration in errors, and its content."""
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
    """The fields of a mixture of experts' `Decoder`."""
    experts = sizes.of("num_local_experts", "num_experts", "n_routed_experts")
    inter = sizes.of(FAMILIES[kind].experts)
    topk = sizes.of("num_experts_per_tok", "experts_per_token")
    if topk > experts:
        raise InputError(
            f"{sizes.path}: a token goes to {topk} experts (num_experts_per_tok), of {experts}; give as many at most"
        )
    shared = sizes.maybe("shared_expert_intermediate_size") or inter * sizes.maybe("n_shared_experts")
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
            f" {', '.join(names)}{nearest(str(path), names, cutoff=NEAR)}"
        ) from None
    return config if isinstance(config, dict) else {}


@dataclass(frozen=True, slots=True)
class _Sizes:
    path: Path
    config: Mapping[str, object]

    def of(self, *names: str, maximum: int = MAX_INT32) -> int:
        """The first of these fields that is there, a whole number above 0."""
        name = next((name for name in names if self.config.get(name) is not None), None)
        if name is None:
            raise InputError(f"{self.path}: {' or '.join(names)} is missing; add it, a whole number above 0")
        return checked_int(str(self.path), name, self.config[name], 1, maximum)

    def kinds_of(self, layers: int) -> list[object]:
        """The kind of every layer; empty where they are not listed."""
        kinds = self.config.get("layer_types")
        return kinds if isinstance(kinds, list) and len(kinds) == layers else []

    def maybe(self, name: str) -> int:
        """The same; 0 where the field is missing, null or 0."""
        return self.of(name) if self.config.get(name) else 0


def _positions(sizes: _Sizes, kind: str) -> int:
    """Tokens of a request at most. Source: vLLM's rule, by which a scaled position counts with its factor, YaRN's from
    the original positions, and the stated number holds for those that were trained at it."""
    scaling = sizes.config.get("rope_scaling") or sizes.config.get("rope_parameters")
    rope = _Sizes(sizes.path, scaling if isinstance(scaling, dict) else {})
    stated = sizes.maybe("max_position_embeddings")
    word = rope.config.get("rope_type", rope.config.get("type"))
    factor = rope.config.get("factor")
    if kind == "gemma3" or word in STATED or not (isinstance(factor, int | float) and 1 <= factor < MAX_FACTOR):
        return stated
    original = rope.maybe("original_max_position_embeddings") if word == "yarn" else stated
    return max(stated, int(original * factor))


def _windows(sizes: _Sizes, kind: str, layers: int) -> tuple[int, ...]:
    """By ``layer_types`` where there are any; else all layers have the window, in Qwen's only if it is switched on."""
    config = sizes.config
    window = sizes.maybe("sliding_window")
    if kinds := sizes.kinds_of(layers):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if FAMILIES[kind].local:  # every sixth, or fourth, layer sees all; Llama's others see a chunk
        window = window or sizes.maybe("attention_chunk_size")
        interval = sizes.maybe("sliding_window_pattern") or 4
        return tuple(0 if (layer + 1) % interval == 0 else window for layer in range(layers))
    used = config.get("use_sliding_window", not kind.startswith("qwen"))
    first = sizes.maybe("max_window_layers") if used else layers
    return tuple(window if layer >= first else 0 for layer in range(layers))


def _routes(sizes: _Sizes, layer: int) -> bool:
    """Whether a layer of a mixture of experts routes; DeepSeek's first ones and those that Qwen lists do not."""
    listed = sizes.config.get("mlp_only_layers")
    dense = layer < sizes.maybe("first_k_dense_replace") or (isinstance(listed, list) and layer in listed)
    interval = sizes.maybe("decoder_sparse_step") or sizes.maybe("interleave_moe_layer_step") or 1
    return not dense and (layer + 1) % interval == 0


def _dense_inter(sizes: _Sizes, own_inter: int) -> int:
    """The width of layers that do not route; Llama 4 has a name of its own for it, and models without such none."""
    inter = sizes.maybe("intermediate_size_mlp") or sizes.maybe("intermediate_size") or own_inter
    return inter or sizes.of("intermediate_size")


def _linear(sizes: _Sizes) -> LinearHeads:
    """The heads of a gated delta net."""
    fields = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    return LinearHeads(*(sizes.of(f"linear_{field}") for field in fields))


def _recurrent(sizes: _Sizes, layers: int) -> tuple[bool, ...]:
    """All layers but every ``full_attention_interval``-th, where ``layer_types`` does not say."""
    if kinds := sizes.kinds_of(layers):
        return tuple(kind == "linear_attention" for kind in kinds)
    interval = sizes.of("full_attention_interval")
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How a model is spread over GPUs, and the types that it computes in.

    ``tensor_parallel`` GPUs share heads and widths; ``data_parallel`` such groups attend to requests of their own and
    share the experts, of which ``expert_parallel`` GPUs hold different ones and the others parts of the same;
    ``pipeline_parallel`` such sets hold different layers. ``dtype`` replaces the model's arithmetic: a quantised one
    that of the products inside layers alone. ``routing`` says how tokens spread over experts; ``node`` GPUs are joined
    by NVLink, further ones by a network.
    """

    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    dtype: str | None = None
    kv_dtype: str | None = None
    routing: str = ROUTING
    node: int = NODE

    @property
    def gpus(self) -> int:
        """GPUs that hold the model once."""
        return self.tensor_parallel * self.data_parallel * self.pipeline_parallel

    def check(self, decoder: Decoder) -> None:
        """Raise `InputError` for what cannot be divided so."""
        ranks = self.tensor_parallel * self.data_parallel
        of_linear = decoder.linear.value_heads if decoder.linear else 0
        for heads, kind in ((decoder.heads, "heads"), (of_linear, "heads of linear attention")):
            if heads % self.tensor_parallel or decoder.vocabulary < self.tensor_parallel:
                raise InputError(
                    f"{decoder.name}: {heads} {kind} cannot be divided among {self.tensor_parallel} GPUs;"
                    " --tensor-parallel takes a divisor of them"
                )
        if not decoder.experts and self.routing != ROUTING:
            raise InputError(f"{decoder.name} has no experts; leave out --routing")
        if not decoder.experts and (self.expert_parallel > 1 or self.data_parallel > 1):
            raise InputError(
                f"{decoder.name} has no experts; leave out --expert-parallel and --attention-parallel (a further"
                " replica serves as well)"
            )
        if decoder.experts and (ranks % self.expert_parallel or decoder.experts % self.expert_parallel):
            raise InputError(
                f"{decoder.name}: {decoder.experts} experts on {ranks} GPUs cannot be divided in"
                f" {self.expert_parallel}; --expert-parallel takes a divisor of both"
            )
        if self.pipeline_parallel > len(decoder.windows):
            raise InputError(
                f"{decoder.name}: {len(decoder.windows)} layers cannot be divided in {self.pipeline_parallel} stages;"
                " give a smaller --pipeline-parallel"
            )
        if self.kv_dtype:
            check_choice("kv_dtype", self.kv_dtype, KV_DTYPES)

    def notes(self) -> tuple[str, ...]:
        """What a reader must know of it."""
        ranks = self.tensor_parallel * self.data_parallel
        crossing = f"{ranks} GPUs are more than the {self.node} that NVLink joins; sums beyond them cross a network"
        return (crossing,) if ranks > self.node else ()


@lru_cache(maxsize=64)
def arithmetic_of(decoder: Decoder, dtype: str | None) -> tuple[Checkpoint, tuple[LayerKind, ...]]:
    """The arithmetic of products where ``dtype`` replaces a checkpoint's own, and the kinds of layers that it makes.

    NVIDIA's nvfp4 checkpoints of mixtures of experts leave attention as it was, and so does nvfp4 in another's place.
    """
    plain = dtype if dtype and dtype not in QUANTISED else decoder.dtype
    checkpoint = decoder.checkpoint.all_in(dtype, plain) if dtype else decoder.checkpoint
    if dtype == "nvfp4" and decoder.experts:
        checkpoint = replace(checkpoint, read=checkpoint.read._replace(kept=Names(["self_attn", "linear_attn"])))
    first: dict[tuple[object, ...], int] = {}
    kinds = []
    for number, kind in enumerate(decoder.layers):
        arithmetic = tuple(checkpoint.of(word, number) for word in _words(decoder, kind))
        kinds.append(kind._replace(like=first.setdefault((kind, arithmetic), number)))
    return checkpoint, tuple(kinds)


def _words(decoder: Decoder, kind: LayerKind) -> Iterator[str]:
    """The products of a layer that a checkpoint may quantise."""
    if kind.recurrent:
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


def main_dtype(decoder: Decoder, dtype: str | None) -> str:
    """The arithmetic of most products, those of the last layer's experts or dense part, as `arithmetic_of` has it."""
    kind = decoder.layers[-1]
    return arithmetic_of(decoder, dtype)[0].of("experts" if kind.routes else "gate_up_proj", len(decoder.layers) - 1)
