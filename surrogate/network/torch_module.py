"""Read a torch module as a network: it runs on fake tensors, without memory or arithmetic, and its calls are recorded.

`time_module` predicts a live module; `read_module` reads a module that a function builds.

``module:callable`` imports the user's own module on purpose, as ``python -m`` does: its code runs.
"""

import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import surrogate
from surrogate.features import HALF, MAX_INT32, checked_int, element_type, imported_callable
from surrogate.features.errors import InputError, one_line_errors
from surrogate.network import torch_gpu
from surrogate.network.dispatch import add_call
from surrogate.network.network import DEFAULTS, TEXTS, Layer, Network, NetworkBuilder, ReadOptions, refuse, with_fields
from surrogate.network.optimizers import OPTIMIZER, TrainedWeight, add_step
from surrogate.network.parallel import cluster_of, unit_of
from surrogate.network.predict import AlgorithmLimits, largest_batch, load_predictors
from surrogate.network.result import GpuComparison, NetworkTime, compare_gpus
from surrogate.network.runtime import with_options, with_runtime
from surrogate.network.torch_recording import Arguments, Recording, memory_format, record_calls, tensor_info, tensors_in

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import Module
    from torch.overrides import TorchFunctionMode

INSTALL_COMMAND = "pip install 'seer-surrogate[torch]'"
CONTRACT = TEXTS["notes"]["contract"]
TRAINING_DTYPES = ("fp64", "fp32", "fp16", "bf16")
"""Element types in which torch trains and runs modules."""
OPTIONS = TEXTS["fields"]["module_options"].split()
"""Fields of `ReadOptions` that apply to a live module."""
TOKENS_INPUT = "input_ids"
"""The argument with the tokens of a batch. Source: transformers, the forward pass of its language models."""
SHARDED = "FSDP", "FullyShardedDataParallel"
"""How the names of modules begin that torch sharded."""
EVAL_NOTE = TEXTS["notes"]["eval_mode"]


def read_module(source: str, options: ReadOptions) -> Network:
    """Read the network that ``module:callable`` builds, from the calls of one pass over its inputs.

    The pass is forward only; in training it is forward and backward as autograd runs them, plus the optimizer's step.
    The module is built without memory, too. If that fails, because its constructor needs values that it computed, the
    module is built with real tensors. Raises `InputError` if torch is missing, or if the callable or the module fails.
    """
    fake = _fake_mode(source)
    with torch_gpu.cuda_autocast():
        build = imported_callable(source, CONTRACT)
    with _one_line_errors(source), torch_gpu.cuda_autocast():
        default = getattr(_parameters(build).get("batch"), "default", None)
        if options.batch is None and isinstance(default, int):
            options = replace(options, batch=default)
        try:
            with fake:
                with _copied_without_memory(), _tied_weights_stay_tied():
                    module, inputs = _build(source, build, options.batch)
                return _network(source, module, inputs, options)
        except InputError:
            raise
        except Exception:
            module, inputs = _build(source, build, options.batch)
            module, inputs = torch_gpu.without_memory(fake, module, inputs)
            with fake:
                return _network(source, module, inputs, options)


@contextmanager
def _one_line_errors(source: str) -> Iterator[None]:
    """Raise errors of torch and of the user's code as an `InputError` of one line that begins with ``source``."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        log as torch_log,
    )

    with one_line_errors(source):
        was_silent, torch_log.disabled = torch_log.disabled, True  # it logs a stack for every wrong shape
        try:
            yield
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            parts = source, *getattr(error, "__notes__", ()), *_user_line(error)
            where = "".join(f"{part}: " for part in parts if part)
            raise InputError(TEXTS["refusals"]["values"].format(where=where, operator=error.func)) from None
        finally:
            torch_log.disabled = was_silent


def _user_line(error: Exception) -> list[str]:
    """Return the file and line of the innermost code outside torch and this package, if there is any."""
    import torch

    packages = tuple(f"{Path(file).parent}/" for file in (torch.__file__, surrogate.__file__) if file)
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{each.filename}:{each.lineno}" for each in frames if not each.filename.startswith(packages)][-1:]


def _fake_mode(source: str) -> "FakeTensorMode":
    """Return torch's mode of tensors without memory. Raises `InputError` if torch is missing."""
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise InputError(f"{source}: running a module needs torch; {INSTALL_COMMAND}") from None
    return FakeTensorMode(allow_non_fake_inputs=True)


def _copied_without_memory() -> "TorchFunctionMode":
    """Return a mode in which `copy.deepcopy` clones tensors.

    torch copies a tensor's memory, and crashes if there is none.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Copied(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
            if func is not torch.Tensor.__deepcopy__:
                return func(*args, **(kwargs or {}))
            tensor, memo = args
            copied = tensor.detach().clone()
            is_weight = isinstance(tensor, torch.nn.Parameter)
            copied = torch.nn.Parameter(copied, tensor.requires_grad) if is_weight else copied
            memo[id(tensor)] = copied
            return copied

    return Copied()


@contextmanager
def _tied_weights_stay_tied() -> Iterator[None]:
    """Let conversions of modules, such as ``.to(dtype)``, keep the identity of weights without memory.

    torch replaces such weights one by one. It refuses shared weights, and unties weights that get no memory.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    def apply(part: "Module", function: Callable[[Any], Any], recurse: bool = True) -> "Module":
        for child in part.children() if recurse else ():
            child._apply(function)
        with torch.no_grad():
            for name, weight in part._parameters.items():
                if isinstance(weight, FakeTensor):
                    weight.data = function(weight)
                elif weight is not None:
                    part._parameters[name] = function(weight)
            for name, value in part._buffers.items():
                part._buffers[name] = None if value is None else function(value)
        return part

    with torch_gpu.overridden(torch.nn.Module, _apply=apply):
        yield


def module_network(module: "Module", inputs: object, options: ReadOptions = DEFAULTS) -> Network:
    """Read the network of a live ``module`` from one pass over ``inputs``, given as for `time_module`.

    A copy without memory runs instead of the module: its weights, gradients and mode do not change, on any device.
    Raises `InputError` if torch is missing or the module fails.
    """
    original, is_compiled = _original_module(module)
    name = type(original).__name__
    fake = _fake_mode(name)
    from torch.nn import Module

    if not isinstance(module, Module):
        raise InputError(f"{name} is not a torch.nn.Module; give a module and its inputs")
    refuse({"sharded": any(type(part).__name__.startswith(SHARDED) for part in original.modules())}, source=name)
    with _one_line_errors(name):
        copied, arguments = torch_gpu.without_memory(fake, original, _arguments(inputs))
        with fake:
            network = _network(name, copied, _at_batch(arguments, options.batch), options)
    return replace(network, runtime="compiled" if is_compiled else "eager")


@overload
def time_module(module: "Module", inputs: object, gpu: str, **options: Any) -> NetworkTime: ...
@overload
def time_module(
    module: "Module", inputs: object, gpu: str | None = None, *, gpus: Sequence[str], **options: Any
) -> GpuComparison: ...
def time_module(
    module: "Module",
    inputs: object,
    gpu: str | None = None,
    *,
    gpus: Sequence[str] | None = None,
    max_batch: bool = False,
    bundle: str | Path | None = None,
    workspace_limit: int | None = None,
    deterministic: bool = False,
    **overrides: Any,
) -> NetworkTime | GpuComparison:
    """Predict the time of one pass of ``module`` over ``inputs`` on ``gpu``, which need not be in this machine.

    Parameters
    ----------
    module
        A live module. A copy without memory runs; the module's weights, gradients and mode do not change.
    inputs
        A tensor, a tuple or list of the module's arguments, a dict of arguments by name, or (tuple, dict).
    gpu
        A GPU by registry name or alias.
    gpus
        GPUs to compare, after ``gpu`` if it is given.
    max_batch
        Whether to take the largest batch that fits the GPU's memory.
    bundle
        Folder of a bundle; None: the shipped one.
    workspace_limit, deterministic
        Limits of the algorithms of convolutions: bytes of workspace, and whether two runs must give the same bits.
    overrides
        Fields of `ReadOptions` by name: ``batch``, ``training``, ``optimizer``, ``accumulate``, ``data_parallel``,
        ``fsdp``, ``gpus_per_node``, ``node_gbps``, ``dtype``, ``amp``, ``math``, ``layout``, ``runtime`` (by default
        ``compiled`` for a module returned by `torch.compile`) and ``host``.

    Returns
    -------
    NetworkTime or, with ``gpus``, GpuComparison
        Its ``layers`` give each convolution's fastest algorithm within the limits, its workspace in bytes, and times
        and intervals in µs. A comparison has the ``times`` by GPU and the ``refused`` GPUs with their reasons.

    Raises
    ------
    InputError
        If torch is missing, the module fails, or the GPU or an option is unknown.
    """
    name = type(module).__name__
    options = with_fields(DEFAULTS, overrides, allowed=OPTIONS)
    cluster_of(name, options)
    refusals = {"optimizer": options.optimizer and not options.training, "amp_and_dtype": options.amp and options.dtype}
    refuse(refusals, source=name, optimizer=options.optimizer)
    if options.batch is not None:
        checked_int(name, "batch", options.batch, maximum=MAX_INT32)
    limits: AlgorithmLimits = {"workspace_limit": workspace_limit, "deterministic": deterministic}
    names = [*([gpu] if gpu is not None else []), *(gpus or ())]
    if not names or isinstance(gpus, str) or isinstance(gpu, list | tuple):
        raise InputError(f"{name}: gpu is {gpu!r} and gpus is {gpus!r}; give a GPU, or gpus=[…] with several")

    @cache
    def read(size: int | None) -> Network:
        network = with_options(module_network(module, inputs, replace(options, batch=size)), options)
        return with_runtime(network, options.runtime, options.host)

    def predict(gpu_name: str) -> NetworkTime:
        predictors = load_predictors(gpu_name, bundle)
        batch = largest_batch(read, predictors, **limits) if max_batch else options.batch
        return predictors.time(read(batch), **limits)

    return predict(names[0]) if gpus is None else compare_gpus(names, predict)


def _network(source: str, module: "Module", inputs: Arguments, options: ReadOptions) -> Network:
    """Return the layers of one pass on fake tensors, with the optimizer's step and the memory.

    Layers are in the order in which they run: forward, backward, optimizer. The exchange of gradients and the fusion of
    chains depend on this order; `surrogate.network.runtime.with_options` describes the next steps.
    """
    dtype = element_type("dtype", options.dtype, TRAINING_DTYPES)
    options = replace(options, dtype=dtype, amp=element_type("amp", options.amp, HALF) or torch_gpu.current_autocast())
    module, is_compiled = _original_module(module)
    module._compiled_call_impl = None
    inputs = torch_gpu.on_cpu(module, inputs)
    has_eval_parts = options.training and not all(part.training for part in module.modules())
    module.train(options.training)
    recorded = record_calls(module, inputs, options)
    unit_weights: Counter[str] = Counter()
    for name, weight in module.named_parameters():
        unit_weights[unit_of(name)] += torch_gpu.stored_values(weight)
    builder, forward_layers = _layers(recorded, unit_weights, options.training)
    weights = [tensor_info(weight, dtype) for weight in (*module.parameters(), *module.buffers())]
    trained = _trained_weights(module, dtype) if options.training else {"fp32": []}
    state_bytes = sum(add_step(builder, trained[kind], options.optimizer or OPTIMIZER, kind) for kind in trained)
    if not builder.layers and not builder.unsupported:
        raise InputError(f"{source}: the module launches no kernel; give a module that computes something")
    first = next((tensor.shape[0] for tensor in tensors_in(tuple(inputs)) if tensor.dim()), None)
    network = builder.network(
        source.rpartition(":")[2],
        first if options.batch is None else options.batch,
        options.training,
        parameters=sum(map(torch_gpu.stored_values, module.parameters())),
        weights_bytes=sum(tensor.bytes for tensor in weights),
        **recorded.allocator.peak_fields(recorded.persistent_bytes),
        tf32=torch_gpu.tf32_operations(),
        state_bytes=state_bytes,
        forward_layers=forward_layers if options.training else 0,
        is_long=options.training and _is_language(builder.layers),
        runtime="compiled" if is_compiled else "eager",
        tokens=next((tensor.numel() for tensor in tensors_in(inputs.by_name.get(TOKENS_INPUT))), None),
    )
    texts = EVAL_NOTE, TEXTS["notes"]["routing"], TEXTS["notes"]["own_kernels"]
    notes = compress(texts, (has_eval_parts, recorded.routing.is_used, network.is_long))
    return replace(network, notes=(*network.notes, *notes))


def _is_language(layers: Sequence[Layer]) -> bool:
    """Return whether the layers are a language model's: attention is causal, and no layer is a convolution."""
    phases = {getattr(layer.problem, "phase", "") for layer in layers}
    return "context" in phases and not any(layer.problem.HAS_ALGORITHMS for layer in layers)


def _trained_weights(module: "Module", dtype: str | None) -> dict[str, list[TrainedWeight]]:
    """Return the trained weights by type; weights of embeddings and of the last linear layer are no inner ones.

    ``dtype`` replaces the type of all weights.
    """
    from torch import nn

    parts = list(module.modules())
    last = [part for part in parts if isinstance(part, nn.Linear)][-1:]
    outer = {id(part.weight) for part in [*last, *parts] if isinstance(part, nn.Embedding) or part in last}
    trained: dict[str, list[TrainedWeight]] = {}
    for weight in module.parameters():
        if weight.requires_grad:
            same_type = trained.setdefault(tensor_info(weight, dtype).dtype, [])
            same_type.append(TrainedWeight(tuple(weight.shape), id(weight) not in outer))
    return trained or {"fp32": []}


def _layers(recorded: Recording, unit_weights: Counter[str], training: bool) -> tuple[NetworkBuilder, int]:
    """Return the layers of both passes, and the number of layers of the forward pass.

    ``parameters`` of a layer of the backward pass counts the weights that have a complete gradient after it. In the
    forward pass, the first layer of each unit has its ``unit_weights``.
    """
    builder = NetworkBuilder()
    for call in recorded.forward:
        add_call(call, builder, training=training)
    forward_layers = len(builder.layers)
    ready: Counter[int] = Counter()
    for index, layer in enumerate(builder.layers if training else ()):
        ready[index] = unit_weights.pop(unit_of(layer.name), 0)
    for index, call in enumerate(recorded.backward):
        add_call(call, builder, training=training)
        ready[len(builder.layers) - 1] += recorded.ready[index]
    for index in ready:
        builder.layers[index] = replace(builder.layers[index], parameters=ready[index])
    return builder, forward_layers


def _original_module(module: Any) -> "tuple[Module, bool]":
    """Return the module that `torch.compile` was given, and whether the module was compiled."""
    is_compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    return getattr(module, "_orig_mod", module), is_compiled


def _parameters(build: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a callable. In Python 3.14, annotations may use names that only type checkers import."""
    options: Any = {"annotation_format": 4} if sys.version_info >= (3, 14) else {}  # annotationlib.Format.STRING
    return inspect.signature(build, **options).parameters


def _build(source: str, build: Callable[..., object], batch: int | None) -> "tuple[Module, Arguments]":
    """Return the module and its inputs at the requested batch."""
    import torch

    takes_batch = "batch" in _parameters(build)
    result = build(batch=batch) if takes_batch and batch is not None else build()
    if not (isinstance(result, tuple) and len(result) in (2, 3) and isinstance(result[0], torch.nn.Module)):
        raise InputError(f"{source}: returned {type(result).__name__}; {CONTRACT}")
    arguments = _arguments(result[1] if len(result) == 2 else result[1:])
    return result[0], arguments if takes_batch else _at_batch(arguments, batch)


def _arguments(inputs: object) -> Arguments:
    """Return the inputs as arguments: a dict by name, a tuple or list by position, or a pair of both."""
    match inputs:
        case dict():
            return Arguments((), inputs)
        case (tuple() | list() as by_place, dict() as by_name):
            return Arguments(tuple(by_place), by_name)
        case tuple() | list():
            return Arguments(tuple(inputs), {})
    return Arguments((inputs,), {})


def _at_batch(arguments: Arguments, batch: int | None) -> Arguments:
    """Return the arguments with tensors of another batch in the same memory format."""
    import torch

    def resized(value: Any) -> object:
        if batch is None or not isinstance(value, torch.Tensor) or not value.dim():
            return value
        kept_format = memory_format(value) or torch.contiguous_format
        return value.new_empty((batch, *value.shape[1:])).contiguous(memory_format=kept_format)

    by_name = {name: resized(value) for name, value in arguments.by_name.items()}
    return Arguments(tuple(map(resized, arguments.by_place)), by_name)
