"""Passes of BERT, GPT-2 and OPT as layers, from their configurations: the launches of PyTorch's eager mode.

The measured programs are the models of the library transformers with eager attention in fp32. They run inference
without gradients, or a forward and a backward pass that adds its gradients to the previous step's. They have no
optimizer. BERT runs inference as a classifier, and is trained with its pre-training heads. With ``fused``
(`torch.compile`), a sequence of pointwise operators is one kernel. It is part of a following softmax or layer norm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.sources import own_settings
from surrogate.features.families import Operator
from surrogate.features.families.gemm import Bmm, Linear
from surrogate.features.families.rowwise import BiasBackward, LayerNorm, Pointwise, Softmax
from surrogate.features.problem import INPUT, WEIGHT
from surrogate.network.network import Layer, Network, NetworkBuilder
from surrogate.network.operators import Streamed, elementwise, pointwise
from surrogate.network.training import backward

STEPS = own_settings(__file__)


def sizes_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes in a ``config.json`` of the three models, under common names."""
    get = lambda *names: next(config[name] for name in names if config.get(name))  # noqa: E731
    hidden = get("n_embd", "hidden_size")
    widths = {"hidden": hidden, "qkv": 3 * hidden, "vocabulary": config["vocab_size"]}
    widths["inner"] = config.get("intermediate_size") or config.get("ffn_dim") or 4 * hidden
    return {**widths, "layers": get("n_layer", "num_hidden_layers"), "heads": get("n_head", "num_attention_heads")}


@dataclass
class _Pass:
    """Layers in the order of their launch. ``pending`` pointwise operators wait for fusion."""

    fused: bool
    builder: NetworkBuilder = field(default_factory=NetworkBuilder)
    pending: list[Operator] = field(default_factory=list)

    def add(self, work: Operator, parameters: int = 0) -> None:
        if self.fused and isinstance(work, Pointwise | Streamed):
            self.pending.append(work)
            return
        if self.pending and not isinstance(work, Softmax | LayerNorm):
            size = max(each.dram_bytes for each in self.pending) // 8
            self.builder.add([Layer("fused", "fused", Streamed(reads=size, writes=size, variant="fused"))])
        self.pending = []
        gradients = (INPUT, WEIGHT) if isinstance(work, Bmm) or parameters else (INPUT,)
        self.builder.add([Layer(work.kind, work.kind, work, gradients, parameters)])

    def linear(self, rows: int, inputs: int, outputs: int) -> None:
        self.add(Linear(m=rows, n=outputs, k=inputs), inputs * outputs)


def forward(
    kind: str, sizes: Mapping[str, int], sequence: int, batch: int, *, training: bool, fused: bool = False
) -> NetworkBuilder:
    """Return the layers of the forward pass."""
    run, rows, groups = _Pass(fused), batch * sequence, batch * sizes["heads"]
    depth = sizes["hidden"] // sizes["heads"]
    # GPT-2 and OPT take the larger of two scores. Heads share a mask; in BERT and GPT-2, samples share it, too.
    tensors = {
        "hidden": (rows, sizes["hidden"]),
        "inner": (rows, sizes["inner"]),
        "scores": (groups, sequence, sequence),
        "mask": (sequence, sequence),
        "masks": (batch, sequence, sequence),
    }
    works: dict[str, tuple[Operator, int]] = {
        "norm": (LayerNorm(n=rows, c=sizes["hidden"]), 2 * sizes["hidden"]),
        "softmax": (Softmax(n=groups * sequence, c=sequence), 0),
        "products": (Bmm(batch=groups, m=sequence, n=sequence, k=depth), 0),
        "sums": (Bmm(batch=groups, m=sequence, n=depth, k=sequence), 0),
    }
    steps = STEPS[kind]
    head = steps["head"] + (steps["trained_head"] if training else [])
    for step in steps["embedding"] + steps["block"] * sizes["layers"] + head:
        name, *on = step.split()
        if name == "linear":
            run.linear(rows, sizes[on[0]], sizes[on[1]])
        elif name in works:
            run.add(*works[name])
        elif name == "heads":
            for _ in range(3 if batch > 1 else 0):
                run.add(elementwise("copy", tensors["hidden"], "fp32"))
        elif len(on) > 1:
            run.add(pointwise(name, [tensors[each] for each in on], tensors[on[0]], "fp32"))
        elif training or name != "dropout":
            run.add(elementwise(name, tensors[on[0]], "fp32"))
    return run.builder


def transformer(
    name: str, config: Mapping[str, Any], sequence: int, batch: int, *, training: bool, fused: bool = False
) -> Network:
    """Return one pass of a model on ``batch`` samples of ``sequence`` tokens."""
    sizes = sizes_of(config)
    builder = forward(config["model_type"], sizes, sequence, batch, training=training, fused=fused)
    if training:
        # Gradients of the loss, of every layer, and of the embedding table. Each is added to the previous gradient.
        layers, loss = list(builder.layers), (batch * sequence, sizes["vocabulary"])
        extra: list[Operator] = [Softmax(n=loss[0], c=loss[1]), elementwise("mul_scalar", loss, "fp32")]
        for layer in reversed(layers):
            builder.add(backward(layer))
            if isinstance(layer.problem, Linear):
                extra.append(BiasBackward(n=layer.problem.m, c=layer.problem.n))
            if layer.parameters:
                extra.append(elementwise("add", (layer.parameters,), "fp32"))
        table = (sizes["vocabulary"] * sizes["hidden"],)
        extra += [elementwise(kind, table, "fp32") for kind in ("fill", "copy", "add")]
        builder.add(Layer("gradient", work.kind, work) for work in extra)
    return builder.network(name, batch, training)
