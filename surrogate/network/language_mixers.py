"""Mixers of layers with a constant state instead of attention: their sizes, their state, and the kernels of their scan.

Gated delta nets (Yang et al., 2024), Kimi delta attention (Kimi Team, 2025), Mamba (Gu & Dao, 2023), Mamba-2 (Dao & Gu,
2024), lightning attention (MiniMax, 2025) and short convolutions (LFM2) differ in `MIXERS`, a table of widths. A state
is a matrix per head. A decoded token reads and writes each request's state, a prompt does so once per chunk of
positions, and every product and pass is one kernel.

The times follow from traffic and products, and no table has measurements of these kernels. Gated delta nets were judged
by the tables of ai-dynamo/aiconfigurator, with kernels of at least 10 µs on H100, H200 and B200. Median measured time,
divided by the model's:

- Scans of decoded tokens: 1.05 to 1.2.
- Scans of prompts: 0.5 to 0.8 for vLLM (FlashInfer, 0.2 for long prompts on H100), 1.8 to 3.2 for SGLang (Triton).
- Short convolutions: 0.9 to 1.8 in prompts, 1.0 to 2.5 in decoding.

These tables have no scan of Mamba or Mamba-2. The exponentials of Mamba's scan are not counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from surrogate.features.elementwise import ceil_div, round_up
from surrogate.features.errors import read_toml
from surrogate.features.families import Operator
from surrogate.features.families.operator import Streamed
from surrogate.features.problem import DTYPES
from surrogate.network.language_fields import ConfigFields
from surrogate.network.network import refusal
from surrogate.network.operators import streamed

Json = Mapping[str, Any]
Terms = Mapping[str, int]
STATE = "fp32"
"""Default element type of states, as the files of Nemotron and Qwen state it; scans compute in this type."""
CONVOLUTION_READS = 2
"""Values that the short convolution of a prompt reads for each result; fits the tables of ai-dynamo/aiconfigurator."""
ATTENTION, MIXER, BOTH, MLP, EXPERTS = "full_attention", "linear_attention", "hybrid", "mlp", "moe"
"""Words for layers, as transformers has them; a layer with `BOTH` adds attention to the mixer."""
MLP_KINDS = (MLP, EXPERTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerRow:
    """The properties of a mixer; `language_mixers.toml` explains the fields."""

    sizes: Mapping[str, Sequence[str]]
    products: Sequence[tuple[str, str, Terms]]
    convolved: Terms
    marks: Sequence[str] = ()
    defaults: Json = field(default_factory=dict)
    weights: Terms = field(default_factory=dict)
    moved: Terms = field(default_factory=dict)
    passes: int = 1
    blocks: int = 0
    gates: int = 0


TABLE = read_toml(__file__)
MIXERS = {name: MixerRow(**row) for name, row in TABLE["mixers"].items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScan(Streamed):
    """A prompt's scan with the traffic of one kernel per step; a fused kernel moves a fraction of it."""

    MIN_SHARE: ClassVar[float] = 0.2

    @property
    def uses_tensor_cores(self) -> bool:
        """True: the products of a chunk run on matrix units."""
        return True


class Mixer(NamedTuple):
    """The name and sizes of a mixer.

    Each of ``heads`` has a state of ``key_dim`` × ``value_dim`` values, stored in ``state_dtype``. Keys exist once per
    group. ``taps`` is the length of the short convolution, ``chunk`` the positions that a prompt's scan processes at
    once, and ``rank`` the width between two small products.
    """

    name: str
    heads: int
    value_dim: int
    groups: int = 0
    key_dim: int = 0
    taps: int = 0
    chunk: int = 1
    rank: int = 0
    state_dtype: str = STATE

    @property
    def row(self) -> MixerRow:
        """The mixer's row of the table."""
        return MIXERS[self.name]

    def size(self, terms: Terms, gpus: int, hidden: int = 0) -> int:
        """Return a sum of widths on one of ``gpus`` GPUs, which divide heads and groups; a state counts as fp32."""
        heads = self.heads // gpus
        widths = {
            "hidden": hidden,
            "heads": heads,
            "keys": ceil_div(self.groups, gpus) * self.key_dim,
            "values": heads * self.value_dim,
            "state": heads * self.key_dim * self.value_dim * DTYPES[self.state_dtype] // DTYPES[STATE],
            "rank": self.rank,
            "value_dim": self.value_dim,
        }
        return sum(count * widths[name] for name, count in terms.items())

    def products(self, gpus: int, hidden: int) -> list[tuple[str, int, int]]:
        """Return the name and the widths of every product."""
        return [
            (name, self.size({inputs: 1}, gpus, hidden), self.size(outputs, gpus, hidden))
            for name, inputs, outputs in self.row.products
        ]

    def weights(self, gpus: int) -> int:
        """Return the number of weights that belong to no product."""
        row = self.row
        return self.taps * self.size(row.convolved, gpus) + self.size(row.weights, gpus)

    def state_bytes(self, gpus: int, dtype: str) -> int:
        """Return the bytes of a request's state and of the last inputs of its short convolution."""
        convolved = self.size(self.row.convolved, gpus)
        return self.size({"state": 1}, gpus) * DTYPES[STATE] + max(self.taps - 1, 0) * convolved * DTYPES[dtype]

    def kernels(self, requests: int, new: int, gpus: int, dtype: str) -> Iterator[tuple[str, Operator]]:
        """Yield the short convolution and the scan of ``requests`` with ``new`` tokens each."""
        row, tokens = self.row, requests * new
        convolved, values = self.size(row.convolved, gpus), self.size({"values": 1}, gpus)
        decodes = new == 1
        if self.taps:  # a decoded token reads and writes the last inputs
            reads, writes = (self.taps, self.taps) if decodes else (CONVOLUTION_READS, 1)
            moved = [(tokens, reads * convolved)], [(tokens, writes * convolved)]
            yield "convolution", streamed("convolution", *moved, dtype)
        if self.key_dim:
            chunk = min(self.chunk, new)
            states = requests * self.size({"state": 1}, gpus)
            states *= 1 if decodes else row.passes * ceil_div(new, chunk)
            reads = convolved if decodes else self.size(row.moved, gpus)
            # A token's scores and values in its chunk, and its products with the state.
            pairs = 2 * row.blocks * chunk * (self.key_dim + self.value_dim) + 4 * self.key_dim * self.value_dim
            work = round(tokens * (self.heads // gpus) * pairs / (states + tokens * values))
            reads, writes = states + tokens * reads, states + tokens * values
            kind = Streamed if decodes else PromptScan
            yield "scan", kind(reads=reads, writes=writes, work=work, dtype=STATE, variant="scan")


def hybrid_values(fields: ConfigFields, name: str, max_layers: int) -> dict[str, Any]:
    """Return the fields of a hybrid that follow from its others, under their usual names.

    ``layer_types`` has a word for every layer, ``mlp_layer_types`` says which layers route, and ``enable_moe_block`` is
    False if none does. Raises `InputError` if the layers are missing or contradictory.
    """
    fields.used.update(TABLE["other"])
    linear = fields.get("linear_attn_config")
    linear = {f"linear_{key}": value for key, value in linear.items()} if isinstance(linear, dict) else {}
    fields = fields.with_values({**MIXERS[name].defaults, **fields.config, **linear})
    hidden, found = fields.required("hidden_size"), dict(fields.config)
    if fields.get("block_auto_adjust_ff_dim"):
        factor = fields.get("block_ffn_dim_multiplier")
        width = 2 * fields.required("intermediate_size") // 3
        width = int(width * factor) if isinstance(factor, float) and 0 < factor < width else width
        found["intermediate_size"] = round_up(width, fields.required("block_multiple_of"))
    found["mamba_inner"] = fields.optional("mamba_d_ssm") or (fields.optional("mamba_expand") or 1) * hidden
    if fields.get("mamba_d_head") in (None, "auto") and (heads := fields.optional("mamba_n_heads")):
        found["mamba_d_head"] = found["mamba_inner"] // heads
    if fields.get("mamba_dt_rank") == "auto":
        found["mamba_dt_rank"] = ceil_div(hidden, 16)
    found["head_dim"] = fields.optional("head_dim") or hidden // fields.required("num_attention_heads")
    words = found["layer_types"] = _layer_words(fields, max_layers)
    found["num_hidden_layers"] = len(words)
    if period := fields.optional("expert_layer_period"):
        first = fields.optional("expert_layer_offset")
        found["mlp_layer_types"] = [EXPERTS if layer % period == first else MLP for layer in range(len(words))]
    elif not set(MLP_KINDS).isdisjoint(words):
        found["mlp_layer_types"] = [EXPERTS if word == EXPERTS else MLP for word in words]
    if fields.get("num_experts") in (0, 1) or (MLP in words and EXPERTS not in words):  # one expert is an MLP
        inter = fields.optional("shared_expert_intermediate_size") or found.get("intermediate_size")
        found |= {"enable_moe_block": False, "intermediate_size": inter}
    return found


def _layer_words(fields: ConfigFields, max_layers: int) -> list[str]:
    """Return the word of every layer: by a list or a pattern, by the numbers of some layers, or by a period."""
    meanings = TABLE["words"]
    if name := next((name for name in TABLE["lists"] if fields.get(name)), ""):
        listed = fields.get(name)
        words = [meanings.get(str(word), "") for word in listed] if isinstance(listed, str | list) else []
        count = fields.optional("num_hidden_layers") or len(words)
        if "" in words or len(words) != count or not 0 < count <= max_layers:
            counts = {"given": len(words), "count": count, "maximum": max_layers}
            raise refusal("words", source=fields.path, name=name, meanings=", ".join(meanings), **counts)
        return words
    count = fields.required("num_hidden_layers", maximum=max_layers)
    if word := fields.get("every_layer"):
        return [str(word)] * count
    for name, first in TABLE["indices"].items():
        if isinstance(listed := fields.get(name), list):
            return [ATTENTION if layer + first in listed else MIXER for layer in range(count)]
    period = fields.required("attn_layer_period", "full_attention_interval")
    offset = fields.optional("attn_layer_offset") if fields.get("attn_layer_period") else period - 1
    return [ATTENTION if layer % period == offset else MIXER for layer in range(count)]
