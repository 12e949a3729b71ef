"""Build a training iteration of a language model: forward pass, loss, backward pass and optimizer, with its memory."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from surrogate.features.elementwise import checked_int
from surrogate.features.errors import InputError
from surrogate.features.families.attention import TRITON
from surrogate.features.problem import DTYPES, ELEMENTS, QUANTISED
from surrogate.network.language import Decoder, Deployment
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import MAX_REQUESTS, Requests
from surrogate.network.language_training_step import ADAPTED, TrainingStep
from surrogate.network.memory import LARGE, segment_bytes
from surrogate.network.network import Layer, Network, NetworkBuilder, ReadOptions
from surrogate.network.optimizers import OPTIMIZER, add_step, step_text, trained_weights
from surrogate.network.parallel import cluster_of, with_cluster
from surrogate.network.runtime import with_runtime
from surrogate.network.training import with_accumulation

TRAINED_DTYPES = ("bf16", "fp16", "fp32")
"""Element types of trained weights."""
FROZEN_DTYPES = ("int4_wo", "int8_wo")
"""Element types of frozen weights that are unpacked before their products, as bitsandbytes does."""
REFUSED_OPTIONS = ("prefill", "decode", "routing", "kv_dtype", "dims", "math", "layout")
"""Options that do not apply to the training of a language model."""
NOTE = (
    "the iteration ends with {optimizer}; attention is causal and one fused kernel (FlashAttention{version}; PyTorch's"
    " memory-efficient one before Ampere); norms, rotations and gates are fused kernels; dropout, clipping and scaling"
    " of gradients, and the loading of data are not included"
)
EXPERTS_NOTE = "experts are batched products, and every expert gets the same number of tokens"
ADAPTER_NOTE = (
    "adapters of rank {rank} on the products {products} of every layer ({parameters:,} trained weights), without"
    " dropout; all other weights are frozen"
)


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
    notes = [
        *decoder.notes,
        NOTE.format(optimizer=step_text(optimizer), version=" 1 in Triton" if decoder.attention else ""),
    ]
    if decoder.experts:
        notes.append(EXPERTS_NOTE)
    if (stored := decoder.main_dtype(None)) in QUANTISED and not step.frozen:
        notes.append(f"the file stores weights in {stored}; they are unpacked once, and trained in {step.master}")
    if step.rank:
        absent = "up_proj" if decoder.family.gated else "gate_up_proj"
        products = ", ".join(name for name in ADAPTED if name != absent)
        notes.append(ADAPTER_NOTE.format(rank=step.rank, products=products, parameters=trained))
    network = with_accumulation(replace(network, notes=tuple(notes)), options.accumulate)
    return with_runtime(with_cluster(network, cluster_of(str(path), options)), options.runtime, options.host)


def _training_step(path: Path, decoder: Decoder, options: ReadOptions) -> TrainingStep:
    """Return the forward pass. Raises `InputError` for options and models that are not trained."""
    if option := next((name for name in REFUSED_OPTIONS if getattr(options, name)), None):
        raise InputError(f"{path}: --{option.replace('_', '-')} does not apply to training; leave it out")
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
    if part := next((name for name, has in parts.items() if has), None):
        raise InputError(f"{path}: {part} is not predicted in training; give another model")
    if decoder.experts and options.lora:
        raise InputError(
            f"{path}: adapters of routed experts are not predicted; leave out --lora, or give a dense model"
        )
    if decoder.attention not in ("", TRITON):
        raise InputError(f"{path}: attn_impl {decoder.attention!r} is not predicted in training; give flash or triton")
    if options.sequence is None:
        raise InputError(f"{path}: training needs --sequence TOKENS, the length of each sample")
    decoder.require_context(options.sequence)
    batch, rank = checked_int(str(path), "batch", options.batch or 1, maximum=MAX_REQUESTS), options.lora or 0
    is_frozen = options.dtype in FROZEN_DTYPES
    if is_frozen and not rank:
        raise InputError(f"{path}: weights in {options.dtype} are not trained; add --lora RANK for adapters")
    if is_frozen and options.fsdp > 1:
        raise InputError(f"{path}: --fsdp of weights in {options.dtype} is not predicted; give --data-parallel")
    if options.amp and options.dtype and not is_frozen:
        raise InputError("--amp keeps weights in fp32, and --dtype changes them; leave out one of the two")
    dtype = options.amp or (decoder.dtype if is_frozen else options.dtype) or decoder.dtype
    if dtype not in TRAINED_DTYPES:
        raise InputError(f"{path}: training in {dtype} is not predicted; give --amp bf16, or --dtype bf16 or fp16")
    return TrainingStep(
        decoder=decoder,
        groups=[Requests(batch, options.sequence, options.sequence)],
        deployment=Deployment(dtype=dtype),
        tokens=batch * options.sequence,
        master="fp32" if options.amp else dtype,
        rank=rank,
        frozen=options.dtype if options.dtype and is_frozen else "",
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
