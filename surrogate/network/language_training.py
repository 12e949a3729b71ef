"""Build a training iteration of a language model: forward pass, loss, backward pass and optimizer, with its memory.

The kernels are a prompt's kernels as `surrogate.network.language_step` has them, with these differences. Attention is
causal and keeps no cache, norms and sums with the residual are separate kernels, and the head computes the logits of
all positions. Each problem declares its gradients. Source of what autograd keeps: Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models" (2022), section 4.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

from surrogate.features.elementwise import ceil_div, checked_int
from surrogate.features.families import Operator, operator_class
from surrogate.features.families.attention import TRITON, AttentionOperator
from surrogate.features.families.gemm import Bmm, Gemm
from surrogate.features.families.operator import Image, Streamed
from surrogate.features.problem import DTYPES, ELEMENTS, INPUT, QUANTISED, WEIGHT
from surrogate.network.language import Decoder, Deployment, LayerKind
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import MAX_REQUESTS, Requests, Step, StepKernel
from surrogate.network.memory import LARGE, segment_bytes
from surrogate.network.network import TEXTS, Layer, Network, NetworkBuilder, ReadOptions, refuse
from surrogate.network.operators import cast, elementwise, softmax, streamed
from surrogate.network.optimizers import OPTIMIZER, add_step, step_text, trained_weights
from surrogate.network.parallel import cluster_of, with_cluster
from surrogate.network.runtime import with_runtime
from surrogate.network.training import CAST, RECOMPUTED, backward, with_accumulation

TRAINED_DTYPES = ("bf16", "fp16", "fp32")
"""Element types of trained weights."""
FROZEN_DTYPES = ("int4_wo", "int8_wo")
"""Element types of frozen weights that are unpacked before their products, as bitsandbytes does."""
REFUSED_OPTIONS = ("prefill", "decode", "routing", "kv_dtype", "dims", "math", "layout")
"""Options that do not apply to the training of a language model."""
NOTES = TEXTS["notes"]
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
    residual
        Element type of the kept residual stream: fp32 under autocast, which sums products onto an fp32 embedding.
        FSDP casts the embedding's weights, too. Its sums and norms are timed in the compute type.
    """

    master: str
    rank: int = 0
    frozen: str = ""
    residual: str

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
        itemsize = DTYPES[self.residual] if name == "norm" else itemsize
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
        hidden_bytes, itemsize = self.tokens * self.decoder.hidden * DTYPES[self.residual], DTYPES[self.dtype]
        saved = [sum(map(self.saved_bytes, block)) for block in blocks]
        inner = saved[1:-1]
        kept = len(inner) * hidden_bytes + max(inner) if checkpointing else sum(inner)
        # The gradients of the widest tensor, as read and as written.
        products = [each.problem for block in blocks[1:-1] for each in block if isinstance(each.problem, Gemm)]
        transient = 2 * max(each.batch * each.m * each.n for each in products) * itemsize
        # A fused loss has the logits and their gradients, PyTorch's also three tensors in fp32.
        per_logit = 2 * itemsize if self.decoder.family.fused_loss else itemsize + 3 * DTYPES["fp32"]
        logits = self.tokens * self.decoder.vocabulary * per_logit
        inputs = 2 * INDEX_BYTES * self.tokens
        return inputs + kept + saved[-1] + max(logits, transient), inputs + max(inner) + transient


def read_training(path: Path, options: ReadOptions) -> Network:
    """Return the training iteration of a ``config.json``.

    Parameters
    ----------
    path
        The ``config.json``.
    options
        ``batch`` (default: 1) samples of ``sequence`` tokens are a microbatch. With ``amp``, products run in this type
        and trained weights, their gradients and states are fp32; else all of them have ``dtype`` (default: the model's
        own). The options ``optimizer``, ``accumulate``, ``checkpointing``, ``lora``, ``runtime`` and ``host`` apply.

    Returns
    -------
    Network
        Forward pass, backward pass and optimizer on one GPU. Layers of the backward pass state the number of weights
        with complete gradients.

    Raises
    ------
    InputError
        If the file is invalid, or an option or the model cannot be trained.
    """
    decoder = read_decoder(path)
    step = _training_step(path, decoder, options)
    optimizer = options.optimizer or OPTIMIZER
    blocks = step.blocks()
    builder = NetworkBuilder()
    builder.add(chain.from_iterable(blocks))
    forward_layers = len(builder.layers)
    for index, block in reversed(list(enumerate(blocks))):
        if options.checkpointing and 0 < index < len(blocks) - 1:
            builder.add(step.recomputed(block))
        for layer in reversed(block):
            builder.add(step.gradient_layers(layer))
    trained = sum(layer.parameters for block in blocks for layer in block)
    weights = list(trained_weights(layer for block in blocks for layer in block))
    state_bytes = add_step(builder, weights, optimizer, step.master)
    network = builder.network(
        f"{decoder.name}, {step.tokens // (options.batch or 1)} tokens",
        options.batch or 1,
        training=True,
        forward_layers=forward_layers,
        is_long=True,
        tokens=step.tokens,
        **_memory_fields(step, blocks, trained, options),
        state_bytes=state_bytes,
    )
    version = " 1 in Triton" if decoder.attention else ""
    notes = [*decoder.notes, NOTES["language_training"].format(optimizer=step_text(optimizer), version=version)]
    if decoder.experts:
        notes.append(NOTES["batched_experts"])
    if (stored := decoder.main_dtype(None)) in QUANTISED and not step.frozen:
        notes.append(f"the file stores weights in {stored}; they are unpacked once, and trained in {step.master}")
    if step.rank:
        absent = "up_proj" if decoder.family.gated else "gate_up_proj"
        products = ", ".join(name for name in ADAPTED if name != absent)
        notes.append(NOTES["adapters"].format(rank=step.rank, products=products, parameters=trained))
    network = with_accumulation(replace(network, notes=tuple(notes)), options.accumulate)
    return with_runtime(with_cluster(network, cluster_of(str(path), options)), options.runtime, options.host)


def _training_step(path: Path, decoder: Decoder, options: ReadOptions) -> TrainingStep:
    """Return the forward pass. Raises `InputError` for options and models that are not trained."""
    option = next((name.replace("_", "-") for name in REFUSED_OPTIONS if getattr(options, name)), "")
    heads, widths = {kind.heads for kind in decoder.layers}, {kind.inter for kind in decoder.layers if kind.inter}
    parts = {
        decoder.mixer.name if decoder.mixer else "": decoder.mixer,
        "latent attention (MLA)": decoder.family.latent,
        "sparse attention": decoder.index_topk,
        "attention with gates": any(each and each.gates for each in heads),
        "a layer with heads or a width of its own": len(heads) > 1 or len(widths) > 1,
        "an MLP beside experts": decoder.family.dense_beside and decoder.experts,
        "an MLP beside attention": decoder.family.parallel,
        "an embedding of every layer": decoder.layer_inputs,
        "a limit of scores or logits (softcapping)": decoder.is_capped,
    }
    part = next((name for name, has in parts.items() if has), "")
    sequence, rank, is_frozen = options.sequence or 0, options.lora or 0, options.dtype in FROZEN_DTYPES
    refusals = {
        "untrainable": option,
        "part": part,
        "routed_adapters": decoder.experts and rank,
        "attention": decoder.attention not in ("", TRITON),
        "sequence": not sequence,
    }
    refuse(refusals, source=path, option=option, part=part, attention=decoder.attention)
    decoder.require_context(sequence)
    batch = checked_int(str(path), "batch", options.batch or 1, maximum=MAX_REQUESTS)
    dtype = options.amp or (decoder.dtype if is_frozen else options.dtype) or decoder.dtype
    refusals = {
        "frozen": is_frozen and not rank,
        "frozen_shards": is_frozen and options.fsdp > 1,
        "amp_and_dtype": options.amp and options.dtype and not is_frozen,
        "trained_dtype": dtype not in TRAINED_DTYPES,
    }
    refuse(refusals, source=path, dtype=options.dtype if is_frozen else dtype)
    is_autocast = options.amp and options.fsdp == 1 and not rank
    return TrainingStep(
        decoder=decoder,
        groups=[Requests(batch, sequence, sequence)],
        deployment=Deployment(dtype=dtype),
        tokens=batch * sequence,
        master="fp32" if options.amp else dtype,
        rank=rank,
        frozen=options.dtype if options.dtype and is_frozen else "",
        residual="fp32" if is_autocast else dtype,
    )


def _memory_fields(
    step: TrainingStep, blocks: Sequence[Sequence[Layer]], trained: int, options: ReadOptions
) -> dict[str, int]:
    """Return the fields of `Network` on memory.

    Gradients grow during the backward pass while activations are released, so the peak is at its beginning or its end.
    With several microbatches, gradients exist at both.
    """
    master, itemsize = DTYPES[step.master], DTYPES[step.dtype]
    sizes = [step.decoder.other_weights * itemsize]  # bytes of each stored tensor
    parameters, largest = step.decoder.other_weights, 0
    for prefix, kernel in step.kernels():
        packed = step.is_packed(prefix, kernel.name)
        width = master if step.trains(kernel.name) else itemsize
        sizes.append(round(kernel.weights * (ELEMENTS[step.frozen].weight_bytes if packed else width)))
        parameters += kernel.weights
        largest = max(largest, packed * kernel.weights * itemsize)
    copies = trained * itemsize if step.master != step.dtype and options.fsdp == 1 else 0  # FSDP casts shards
    gradients = trained * master
    begin, end = step.activation_bytes(blocks, checkpointing=options.checkpointing)
    at_begin = gradients if options.accumulate > 1 else 0
    return {
        "parameters": parameters,
        "weights_bytes": sum(sizes),
        "activation_bytes": max(begin + at_begin, end + gradients) + copies + largest,
        "peak_activation_bytes": max(begin, end) + copies + largest,
        "gradient_bytes": gradients if end + gradients > begin + at_begin else at_begin,
        "rounding_bytes": sum(segment_bytes(size) - size for size in sizes if size >= LARGE),
    }
