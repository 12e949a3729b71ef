"""Passes of BERT, GPT-2 and OPT as layers, from their configurations: what PyTorch's eager mode launches for them.

The measured programs are the models of the library transformers with eager attention in fp32: inference without
gradients, or a forward and a backward pass whose gradients are added to those of the step before; no optimizer. BERT
infers as a classifier and trains with its pre-training heads. Under ``fused`` (`torch.compile`) a run of pointwise
operators is one kernel, and is part of a softmax or layer norm that follows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from surrogate.features.families import Operator
from surrogate.features.families.gemm import Bmm, Linear
from surrogate.features.families.pointwise import Pointwise
from surrogate.features.families.rowwise import BiasBackward, LayerNorm, Softmax
from surrogate.network.network import INPUT, WEIGHT, Layer, Network, Tally
from surrogate.network.training import backward
from surrogate.network.work import Shape, Streamed, elementwise, pointwise

GELU_NEW = ["pow_scalar", "mul_scalar", "add", "mul_scalar", "tanh", "add_scalar", "mul_scalar", "mul"]
"""Kernels of GPT-2's activation, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))."""


@dataclass(frozen=True)
class Sizes:
    """What the configurations of the three models say, under one name each."""

    kind: str
    layers: int
    heads: int
    hidden: int
    inner: int
    vocabulary: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Sizes":
        """From a ``config.json``."""
        get = lambda *names: next(config[name] for name in names if name in config)  # noqa: E731
        hidden = get("n_embd", "hidden_size")
        inner = config.get("intermediate_size") or config.get("ffn_dim") or 4 * hidden
        layers, heads = get("n_layer", "num_hidden_layers"), get("n_head", "num_attention_heads")
        return cls(config["model_type"], layers, heads, hidden, inner, config["vocab_size"])


@dataclass
class _Pass:
    """Layers in the order of their launch; ``pending`` pointwise operators wait to be fused."""

    fused: bool
    tally: Tally = field(default_factory=Tally)
    pending: list[Operator] = field(default_factory=list)

    def add(self, work: Operator, parameters: int = 0) -> None:
        if self.fused and isinstance(work, Pointwise | Streamed):
            self.pending.append(work)
            return
        if self.pending and not isinstance(work, Softmax | LayerNorm):
            size = max(each.dram_bytes for each in self.pending) // 8
            self.tally.add([Layer("fused", "fused", Streamed(reads=size, writes=size, variant="fused"))])
        self.pending = []
        gradients = (INPUT, WEIGHT) if isinstance(work, Bmm) or parameters else (INPUT,)
        self.tally.add([Layer(work.kind, work.kind, work, gradients, parameters)])

    def each(self, shape: Shape, *kinds: str) -> None:
        """Pointwise operators over a tensor."""
        for kind in kinds:
            self.add(elementwise(kind, shape, "fp32"))

    def linear(self, rows: int, inputs: int, outputs: int) -> None:
        self.add(Linear(m=rows, n=outputs, k=inputs), inputs * outputs)


def forward(s: Sizes, sequence: int, batch: int, *, training: bool, fused: bool = False) -> _Pass:
    """The forward pass."""
    run, rows, depth = _Pass(fused), batch * sequence, s.hidden // s.heads
    plain, wide, groups = (rows, s.hidden), (rows, s.inner), batch * s.heads
    scores, drop = (groups, sequence, sequence), ("dropout",) if training else ()
    bert, opt = s.kind == "bert", s.kind == "opt"

    def normalise() -> None:
        run.add(LayerNorm(n=rows, c=s.hidden), 2 * s.hidden)

    # 1. Rows of the tables of words and positions (BERT: and of segments), added.
    run.each(plain, *(("copy",) * (3 if bert else 2)), *(("add",) * (2 if bert else 1)))
    if bert:
        normalise()
    run.each(plain, *drop)
    for _ in range(s.layers):
        # 2. Attention. Heads of a larger batch are laid out anew before they are multiplied.
        if not bert:
            normalise()
        if s.kind == "gpt2":
            run.linear(rows, s.hidden, 3 * s.hidden)
        else:
            for _ in range(3):
                run.linear(rows, s.hidden, s.hidden)
        run.each(plain, *(("mul_scalar",) if opt else ()), *(("copy",) * (3 if batch > 1 or opt else 0)))
        run.add(Bmm(batch=groups, m=sequence, n=sequence, k=depth))
        # 3. Scale and mask: BERT and OPT add a mask that the heads share, GPT-2 and OPT choose the larger of two.
        if not opt:
            run.each(scores, "div_scalar")
        mask = (batch, sequence, sequence) if opt else (sequence, sequence)
        run.add(pointwise("where" if s.kind == "gpt2" else "add", [scores, mask], scores, "fp32"))
        run.each(scores, *(("relu",) if opt else ()))
        run.add(Softmax(n=groups * sequence, c=sequence))
        run.each(scores, *drop)
        run.add(Bmm(batch=groups, m=sequence, n=depth, k=sequence))
        run.each(plain, "copy")
        run.linear(rows, s.hidden, s.hidden)
        run.each(plain, *drop, "add")
        # 4. The two wide layers.
        normalise()
        run.linear(rows, s.hidden, s.inner)
        run.each(wide, *(GELU_NEW if s.kind == "gpt2" else ("gelu" if bert else "relu",)))
        run.linear(rows, s.inner, s.hidden)
        run.each(plain, *drop, "add")
        if bert:
            normalise()
    # 5. Heads: BERT's classifier reads one token of a sample and is left out.
    if bert and training:
        run.linear(rows, s.hidden, s.hidden)
        run.each(plain, "gelu")
    if not bert or training:
        normalise()
        run.linear(rows, s.hidden, s.vocabulary)
    return run


def transformer(
    name: str, config: Mapping[str, Any], sequence: int, batch: int, *, training: bool, fused: bool = False
) -> Network:
    """One pass of a model on ``batch`` samples of ``sequence`` tokens."""
    sizes = Sizes.of(config)
    tally = forward(sizes, sequence, batch, training=training, fused=fused).tally
    if training:
        # Gradients of the loss, of every layer, and of the table of words; each is added to the step's before.
        layers, loss = list(tally.layers), (batch * sequence, sizes.vocabulary)
        extra: list[Operator] = [Softmax(n=loss[0], c=loss[1]), elementwise("mul_scalar", loss, "fp32")]
        for layer in reversed(layers):
            tally.add(backward(layer))
            if isinstance(layer.work, Linear):
                extra.append(BiasBackward(n=layer.work.m, c=layer.work.n))
            if layer.parameters:
                extra.append(elementwise("add", (layer.parameters,), "fp32"))
        table = (sizes.vocabulary * sizes.hidden,)
        extra += [elementwise(kind, table, "fp32") for kind in ("fill", "copy", "add")]
        tally.add(Layer("gradient", work.kind, work) for work in extra)
    return tally.network(name, batch, training)
