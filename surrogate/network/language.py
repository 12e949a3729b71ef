"""Describe the decoder of a language model, and check how it is spread over GPUs.

There are dense decoders, mixtures of experts, decoders with DeepSeek's multi-head latent attention (MLA, also sparse),
and hybrids, whose other layers have a state instead of attention (`language_mixers`). `language_config` reads them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from surrogate.features.errors import check_choice, read_toml
from surrogate.features.families.attention import KV_DTYPES
from surrogate.features.problem import QUANTISED
from surrogate.network.checkpoint import Checkpoint, ModuleNames
from surrogate.network.language_mixers import Mixer
from surrogate.network.network import refusal, refuse

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
    mixer: str = ""
    local: int = 0
    switched_window: bool = False
    query_norm: str = ""
    biases: Sequence[str] = field(default=(), compare=False)
    post_norms: bool = False
    parallel: bool = False
    dense_beside: bool = False
    head_gate: bool = False
    compressed: bool = False
    learned_positions: bool = False
    mlp_ratio: int = 0
    norm: str = "rms_norm"
    activation: str = "silu"
    gated: bool = True
    fused_qkv: bool = False
    fused_loss: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict, compare=False)


TABLE = read_toml(__file__)
_ROWS = {name: TABLE[row] if isinstance(row, str) else row for name, row in TABLE.items()}
FAMILIES: Mapping[str, DecoderFamily] = {name: DecoderFamily(**row) for name, row in _ROWS.items()}
"""``model_type`` → family, for every supported decoder."""
DENSE = DecoderFamily()


class AttentionHeads(NamedTuple):
    """The heads of a layer's attention.

    ``dim`` and ``value_dim`` are the widths of a key and of a value. ``projected`` is 2 if keys and values have
    projections of their own, 1 if values are the keys, and 0 if the layer reads the cache of an earlier layer.
    ``gates`` is the number of gates of a head's output.
    """

    queries: int
    keys: int
    dim: int
    value_dim: int
    projected: int = 2
    gates: int = 0


class LayerKind(NamedTuple):
    """The properties that decide a layer's kernels.

    ``heads`` is None for a layer without attention, ``window`` is the attention window (0: none), and ``inter`` is the
    width of an MLP (0: none). ``routes`` is True for a mixture of experts, and ``mixes`` for the decoder's mixer.
    With sparse attention, ``indexer`` is "full", or "shared" for a layer that uses the positions of an earlier layer.
    ``compress`` is the number of tokens of a compressed position (0: all positions are kept).
    ``same_as`` is the number of the first layer with the same arithmetic.
    """

    heads: AttentionHeads | None = None
    window: int = 0
    inter: int = 0
    routes: bool = False
    mixes: bool = False
    indexer: str = ""
    compress: int = 0
    same_as: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The sizes of a decoder.

    ``layers`` has the kind of every layer, in order. ``checkpoint`` has the arithmetic of every product, and ``dtype``
    is the element type of everything else. The field ``experts`` is 0 if the decoder has no experts. With latent
    attention, ``query_rank`` is the rank of queries (0: full rank).
    """

    name: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    layers: tuple[LayerKind, ...]
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
    output_groups: int = 0
    output_rank: int = 0
    """Groups of heads whose results have a product of their own, and the width of its result."""
    streams: int = 0
    """Parallel residuals that hyper-connections mix; 0: one residual."""
    mixer: Mixer | None = None
    """The mixer with a state, in a hybrid."""
    expert_hidden: int = 0
    """Width of the experts' input, if two products change it."""
    positions: int = 0
    """Maximum tokens of a request; 0 if the file does not have it."""
    rotates: bool = True
    """Whether queries and keys are rotated by their positions."""
    attention: str = ""
    """The variant of attention in training: "" for today's FlashAttention, or `TRITON`."""
    learned_positions: int = 0
    """Number of positions with a learned vector that is added to the embedding."""
    layer_inputs: int = 0
    layer_vocabulary: int = 0
    """Width of the embedding that every layer adds, and its number of tokens; 0: there is none."""
    other_weights: int = 0
    """Weights of parts that no step runs, such as an encoder of images."""
    is_capped: bool = False
    """Whether scores or logits are limited by a tanh."""
    biases: tuple[str, ...] = ()
    """Names of the products with a bias."""
    notes: tuple[str, ...] = ()
    """Assumptions for values that the file lacks."""

    def main_dtype(self, dtype: str | None) -> str:
        """Return the arithmetic of most products: of the last layer's experts or, if it does not route, of its MLP.

        ``dtype`` replaces the checkpoint's arithmetic.
        """
        product = "experts" if self.layers[-1].routes else "gate_up_proj"
        return arithmetic_of(self, dtype)[0].product_dtype(product, len(self.layers) - 1)

    def require_context(self, tokens: int) -> None:
        """Raise `InputError` if a request has more tokens than the model supports, as servers do."""
        if 0 < self.positions < tokens:
            raise refusal("context", source=self.name, tokens=tokens, positions=self.positions)


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
        of_layers = {(kind.heads.queries, "heads") for kind in decoder.layers if kind.heads}
        of_mixer = {(mixer.heads, f"heads of {mixer.name}") for mixer in [decoder.mixer] if mixer}
        experts, layers = decoder.experts, len(decoder.layers)
        fields = {"source": decoder.name, "experts": experts, "layers": layers, "ranks": self.ranks, **asdict(self)}
        for heads, kind in sorted(of_layers) + sorted(of_mixer):
            is_uneven = heads % self.tensor_parallel or decoder.vocabulary < self.tensor_parallel
            refuse({"heads": is_uneven}, heads=heads, kind=kind, **fields)
        refusals = {
            "routed": not experts and self.routing != ROUTING,
            "no_experts": not experts and (self.expert_parallel > 1 or self.data_parallel > 1),
            "experts": experts and (self.ranks % self.expert_parallel or experts % self.expert_parallel),
            "stages": self.pipeline_parallel > layers,
        }
        refuse(refusals, **fields)
        if self.kv_dtype:
            check_choice("kv_dtype", self.kv_dtype, KV_DTYPES)

    def notes(self) -> tuple[str, ...]:
        """Return the notes for answers with this deployment."""
        network = (
            f"{self.ranks} GPUs are more than the {self.node} that NVLink joins; sums over all of them use a network"
        )
        stages = "pipeline stages were not compared with measured servers"
        return (*(network,) * (self.ranks > self.node), *(stages,) * (self.pipeline_parallel > 1))


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
    if kind.mixes and decoder.mixer:
        yield from (name for name, *_ in decoder.mixer.products(1, decoder.hidden))
    if kind.heads and decoder.family.compressed:
        yield from ("qkv_a_proj", "q_b_proj", "o_a_proj", "o_b_proj")
    elif kind.heads and not decoder.family.latent:
        yield from ("qkv_proj", "o_proj")
    elif kind.heads:
        yield from ("qkv_a_proj", "q_b_proj") if decoder.query_rank else ("q_proj", "kv_a_proj")
        yield from ("kv_b_proj", "o_proj")
    if kind.indexer == "full":
        yield "indexer.q_proj"
    if kind.routes:
        yield "experts"
    for prefix, inter in (("", kind.inter), ("shared.", kind.routes and decoder.shared_inter)):
        yield from (f"{prefix}gate_up_proj", f"{prefix}down_proj") if inter else ()
