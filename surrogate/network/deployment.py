"""How a language model is spread over GPUs, what is refused, and the arithmetic of its products there."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from surrogate.features.errors import InputError, require_known
from surrogate.features.families.attention import KV_DTYPES
from surrogate.features.problem import QUANTISED
from surrogate.network.checkpoint import Checkpoint, Names
from surrogate.network.language import Decoder, LayerKind

ROUTING = "power_law_1.01"
"""How tokens spread over experts unless a caller says otherwise: nearly even, but some experts have none. It is the
flattest of those that ai-dynamo/aiconfigurator measured beside an exactly even one, which no prompts are."""
NODE = 8
"""GPUs of one NVLink domain, unless a `Deployment` says otherwise."""
DOMAINS = {"gb200": 72, "gb300": 72}
"""GPUs that NVLink joins where they are more. Source: NVIDIA's data sheets of GB200 NVL72 and GB300 NVL72."""


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
            require_known("kv_dtype", self.kv_dtype, KV_DTYPES)

    def notes(self) -> tuple[str, ...]:
        """What a reader must know of it."""
        ranks = self.tensor_parallel * self.data_parallel
        beyond = f"{ranks} GPUs are more than the {self.node} that NVLink joins; sums beyond them cross a network"
        return (beyond,) if ranks > self.node else ()


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
