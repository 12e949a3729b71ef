"""The kernels of a language model's forward pass in training, their gradients, and the tensors that autograd keeps.

The kernels are a prompt's kernels as `surrogate.network.language_step` has them, with these differences. Attention is
causal and keeps no cache, norms and sums with the residual are separate kernels, and the head computes the logits of
all positions. Each problem declares its gradients. Source of what autograd keeps: Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models" (2022), section 4.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from surrogate.features.elementwise import ceil_div
from surrogate.features.families import Operator, operator_class
from surrogate.features.families.attention import AttentionOperator
from surrogate.features.families.gemm import Bmm, Gemm
from surrogate.features.families.operator import Image, Streamed
from surrogate.features.problem import DTYPES, ELEMENTS, INPUT, WEIGHT
from surrogate.network.language import LayerKind
from surrogate.network.language_step import Requests, Step, StepKernel
from surrogate.network.network import Layer
from surrogate.network.operators import cast, elementwise, softmax, streamed
from surrogate.network.training import CAST, RECOMPUTED, backward

ADAPTED = ("qkv_proj", "o_proj", "gate_up_proj", "up_proj", "down_proj")
"""Products with adapters: all products of a layer, as peft's ``target_modules="all-linear"``."""
METRICS = 2
"""Cross-entropies that the training code computes from the logits as metrics.

Source: mosaicml/llm-foundry, ``use_train_metrics``: LanguageCrossEntropy and LanguagePerplexity.
"""
UNPACK = "unpack_weights"
INDEX_BYTES = 8
"""Bytes of a token's number and of its label, each an int64."""


@dataclass(frozen=True, kw_only=True)
class TrainingStep(Step):
    """The kernels of a forward pass in training.

    Attributes
    ----------
    master
        Element type of trained weights, their gradients and their states.
    rank
        Rank of the adapters that are trained instead of the weights; 0: all weights are trained.
    frozen
        Element type of the layers' frozen weights, if they are unpacked before their products; else "".
    """

    master: str
    rank: int = 0
    frozen: str = ""

    def blocks(self) -> list[list[Layer]]:
        """Return the layers of the forward pass: the embedding, each decoder layer, and the head with the loss."""
        return [
            self._block("", list(self.first_kernels())),
            *(self._block(f"layers.{number}.", self.by_kind[kind]) for number, kind in enumerate(self.layers)),
            self._block("", list(self.last_kernels())),
        ]

    def _block(self, prefix: str, kernels: Sequence[StepKernel]) -> list[Layer]:
        """Return the layers of kernels, with the passes that prepare their weights in front."""
        layers = []
        trained = sum(kernel.weights for kernel in kernels if self.trains(kernel.name))
        unpacked = sum(kernel.weights for kernel in kernels if self.is_packed(prefix, kernel.name))
        if trained and self.master != self.dtype:
            layers.append(Layer(f"{prefix}{CAST}", CAST, cast(trained, self.master, self.dtype), (INPUT,)))
        if unpacked:
            packed = ceil_div(round(unpacked * ELEMENTS[self.frozen].weight_bytes), DTYPES[self.dtype])
            layers.append(Layer(f"{prefix}{UNPACK}", UNPACK, streamed(UNPACK, [(packed,)], [(unpacked,)], self.dtype)))
        for name, problem, weights in kernels:
            is_trained = self.trains(name) and weights > 0
            gradients = (INPUT, WEIGHT) if is_trained else (INPUT,)
            layers.append(Layer(f"{prefix}{name}", name, problem, gradients, weights * is_trained))
        return layers

    def trains(self, name: str) -> bool:
        """Return whether the weights of a kernel are trained."""
        return not self.rank or ".lora_" in name

    def is_packed(self, prefix: str, name: str) -> bool:
        """Return whether the weights of a kernel are stored in `frozen`."""
        return bool(self.frozen and prefix) and name in ADAPTED

    def layer(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield a layer: attention and MLP, each after a norm and followed by the sum with the residual."""
        post = [self.norm()] * self.decoder.family.post_norms
        residual = StepKernel("residual", elementwise("add", (self.tokens, self.decoder.hidden), self.dtype))
        mlp = self.expert_kernels(kind) if kind.routes else self.dense("", self.decoder.inter, kind)
        yield from (self.norm(), *self.attention(kind), *post, residual)
        yield from (self.norm(), *mlp, *post, residual)

    def expert_kernels(self, kind: LayerKind) -> Iterator[StepKernel]:
        """Yield the router, and the experts as batched products; every expert gets the same number of tokens.

        The tokens are gathered by expert before, and summed with the router's weights after.
        """
        d, chosen = self.decoder, self.tokens * self.decoder.topk
        rows, width = ceil_div(chosen, d.experts), d.expert_inter * (1 + d.family.gated)
        products = partial(Bmm, batch=d.experts, m=rows, dtype=self.dtype, math="default")
        yield from self.product("router", d.hidden, d.experts, layer=None)
        yield StepKernel("experts.gather", elementwise("copy", (chosen, d.hidden), self.dtype))
        yield StepKernel("experts.up_proj", products(n=width, k=d.hidden), d.experts * d.hidden * width)
        yield from self.activation("experts.", d.expert_inter, chosen)
        down = products(n=d.hidden, k=d.expert_inter)
        yield StepKernel("experts.down_proj", down, d.experts * d.hidden * d.expert_inter)
        summed = streamed("sum", [(chosen, d.hidden)], [(self.tokens, d.hidden)], self.dtype)
        yield StepKernel("experts.sum", summed)
        if d.shared_inter:
            yield from self.dense("shared.", d.shared_inter, kind)

    def attention_kernel(self, kind: type[AttentionOperator], group: Requests, sizes: Mapping[str, Any]) -> StepKernel:
        """Return causal attention in the decoder's variant."""
        return Step.attention_kernel(self, kind, group, {**sizes, "variant": self.decoder.attention})

    def norm(self) -> StepKernel:
        """Return a norm."""
        fields: dict[str, Any] = {"n": self.tokens, "c": self.decoder.hidden, "dtype": self.dtype}
        problem = operator_class(self.decoder.family.norm)(**fields)
        return StepKernel("norm", problem, self.decoder.hidden)

    def rope(self, queries: int, keys: int) -> StepKernel:
        """Return the rotation of queries and keys."""
        return StepKernel("rope", elementwise("copy", (self.tokens, queries + keys), self.dtype))

    def activation(self, prefix: str, width: int, rows: int = 0) -> Iterator[StepKernel]:
        """Yield the activation of an MLP, and its product with the gate's other half."""
        family, shape = self.decoder.family, (rows or self.tokens, width)
        yield StepKernel(f"{prefix}activation", elementwise(family.activation, shape, self.dtype))
        if family.gated:
            yield StepKernel(f"{prefix}gate", elementwise("mul", shape, self.dtype))

    def product(
        self, name: str, inputs: int, outputs: int, *, layer: int | None, rows: int = 0, fused: bool = True
    ) -> Iterator[StepKernel]:
        """Yield a product in the compute type and, if it has adapters, their two products, scale and sum."""
        rows = rows or self.tokens
        product = Gemm(m=rows, n=outputs, k=inputs, dtype=self.dtype, math="default")
        yield StepKernel(name, product, (inputs + (name in self.decoder.biases)) * outputs)
        for part, width in enumerate(self._adapted_widths(name, outputs) if self.rank else ()):
            prefix = f"{name}.lora_"
            for letter, m, k in (("a", self.rank, inputs), ("b", width, self.rank)):
                small = Gemm(m=rows, n=m, k=k, dtype=self.dtype, math="default")
                yield StepKernel(f"{prefix}{letter}.{part}", small, m * k)
            yield StepKernel(f"{prefix}scale.{part}", elementwise("mul_scalar", (rows, width), self.dtype))
            yield StepKernel(f"{prefix}sum.{part}", elementwise("add", (rows, width), self.dtype))

    def _adapted_widths(self, name: str, outputs: int) -> list[int]:
        """Return the widths of the products with adapters that one kernel computes; empty without adapters."""
        d = self.decoder
        if name not in ADAPTED:
            return []
        keys = d.kv_heads * d.head_dim
        qkv = [outputs] if d.family.fused_qkv else [outputs - 2 * keys, keys, keys]
        return {"qkv_proj": qkv, "gate_up_proj": [d.inter] * 2}.get(name, [outputs])

    def last_kernels(self) -> Iterator[StepKernel]:
        """Yield the last norm, the logits of all positions and the loss: a fused kernel, or PyTorch's own in fp32."""
        vocabulary = self.decoder.vocabulary
        logits = (self.tokens, vocabulary)
        yield self.norm()
        yield from self.product("lm_head", self.decoder.hidden, vocabulary, layer=None)
        if self.decoder.family.fused_loss:
            yield StepKernel("loss", streamed("cross_entropy", [logits], [(self.tokens, 1)], self.dtype))
            for _ in range(METRICS):
                yield from self.cross_entropy("metric.", self.master)
        else:
            yield from self.cross_entropy("", "fp32")

    def cross_entropy(self, prefix: str, dtype: str) -> Iterator[StepKernel]:
        """Yield PyTorch's loss over the vocabulary, computed in ``dtype``."""
        logits = (self.tokens, self.decoder.vocabulary)
        if self.dtype != dtype:
            yield StepKernel(f"{prefix}logits", cast(prod(logits), self.dtype, dtype))
        yield StepKernel(f"{prefix}log_softmax", softmax(logits, -1, dtype))
        yield StepKernel(f"{prefix}loss", streamed("nll_loss", [(self.tokens, 1)], [(1,)], dtype))

    def gradient_layers(self, layer: Layer) -> list[Layer]:
        """Return the layers of a layer's gradients; the last one has the number of weights with complete gradients."""
        d, name, parameters = self.decoder, layer.operator, layer.parameters
        replaced = self._replaced_gradients(layer)
        layers = list(backward(layer)) if replaced is None else []
        for problem in [*(replaced or ()), *self._further_gradients(layer)]:
            layers.append(Layer(f"{layer.name}.grad_{problem.kind}", f"{name}.grad_{problem.kind}", problem))
        if d.tied and not self.rank:  # the gradient of a tied table is complete after the embedding's gradient
            parameters = {"lm_head": 0, "embedding": d.vocabulary * d.hidden}.get(name, parameters)
        return [*layers[:-1], replace(layers[-1], parameters=parameters)] if layers else []

    def _replaced_gradients(self, layer: Layer) -> list[Operator] | None:
        """Return the backward pass of a layer if it is not the one of its problem; else None."""
        name, problem = layer.operator, layer.problem
        if name == "loss" and not self.decoder.family.fused_loss:  # zeros, except at each position's label
            return [elementwise("fill", (self.tokens, self.decoder.vocabulary), "fp32")]
        if name in (CAST, UNPACK, "logits") and isinstance(problem, Operator):
            return [problem]  # a cast back has the same traffic; unpacked weights were not kept
        if self.rank and name in ("embedding", "positions"):  # frozen
            return []
        # A metric has no gradient; the gradient of an adapter's sum is added where both branches begin.
        return [] if ".lora_sum." in name or name.startswith("metric.") else None

    def _further_gradients(self, layer: Layer) -> list[Operator]:
        """Return autograd's further kernels: copies into one tensor, empty gradients, and sums of two gradients."""
        d, name = self.decoder, layer.operator
        if name == "attention":  # the gradients of queries, keys and values
            return [elementwise("copy", (self.tokens, (d.heads + 2 * d.kv_heads) * d.head_dim), self.dtype)]
        if name == "embedding" and not self.rank:
            table = (d.vocabulary, d.hidden)
            return [elementwise(kind, table, self.dtype) for kind in ("fill", "add")[: 1 + d.tied]]
        if name in d.biases and not self.rank:  # the bias's gradient is a sum over the tokens
            width = getattr(layer.problem, "n", 1)
            return [streamed("sum", [(self.tokens, width)], [(1, width)], self.dtype)]
        if ".lora_a." in name:
            return [elementwise("add", (self.tokens, getattr(layer.problem, "k", 1)), self.dtype)]
        return []

    def saved_bytes(self, layer: Layer) -> int:
        """Return the bytes of activations that autograd keeps for the gradients of a layer; each tensor counts once."""
        problem, itemsize = layer.problem, DTYPES[self.dtype]
        name = layer.operator.removeprefix("experts.").removeprefix("shared.")
        if isinstance(problem, AttentionOperator):  # queries, keys, values, the result, and a sum per row in fp32
            return round(problem.dram_bytes + 4 * problem.batch * problem.heads * problem.query_length)
        if isinstance(problem, Gemm):  # attention keeps its own result, and the frozen product an adapter's input
            is_kept = name == "o_proj" or ".lora_a." in name
            return 0 if is_kept else problem.batch * problem.m * problem.k * itemsize
        if isinstance(problem, Streamed) and name == "query_norm":
            return problem.reads * itemsize
        tensors = {"norm": 1, "activation": 1, "gate": 2}.get(name, 0) if isinstance(problem, Image) else 0
        return tensors * getattr(problem, "elements", 0) * itemsize

    def recomputed(self, block: Sequence[Layer]) -> list[Layer]:
        """Return the layers of a block that its backward pass computes again, under checkpointing.

        They end before the last layer that keeps a tensor: then all kept tensors exist. Source: PyTorch,
        ``torch.utils.checkpoint``, ``set_checkpoint_early_stop``.
        """
        last = max(index for index, layer in enumerate(block) if self.saved_bytes(layer))
        return [replace(each, name=f"{each.name}{RECOMPUTED}", gradients=(), parameters=0) for each in block[:last]]

    def activation_bytes(self, blocks: Sequence[Sequence[Layer]], *, checkpointing: bool) -> tuple[int, int]:
        """Return the bytes of activations and of their gradients at the beginning and at the end of the backward pass.

        ``blocks`` are `blocks`. At the beginning it has the kept tensors of all blocks, and the logits with their
        gradients. At the end it has those of the first blocks.
        """
        hidden_bytes, itemsize = self.tokens * self.decoder.hidden * DTYPES[self.dtype], DTYPES[self.dtype]
        saved = [sum(map(self.saved_bytes, block)) for block in blocks]
        inner = saved[1:-1]
        kept = len(inner) * hidden_bytes + max(inner) if checkpointing else sum(inner)
        # The gradients of the widest tensor, as read and as written.
        products = [each.problem for block in blocks[1:-1] for each in block if isinstance(each.problem, Gemm)]
        transient = 2 * max(each.batch * each.m * each.n for each in products) * itemsize
        # A fused loss has the logits and their gradients, PyTorch's also three tensors in fp32.
        logits = (
            self.tokens
            * self.decoder.vocabulary
            * (2 * itemsize if self.decoder.family.fused_loss else itemsize + 3 * DTYPES["fp32"])
        )
        inputs = 2 * INDEX_BYTES * self.tokens
        return inputs + kept + saved[-1] + max(logits, transient), inputs + max(inner) + transient
