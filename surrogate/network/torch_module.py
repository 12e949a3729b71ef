"""A torch module, run on fake tensors: no memory, no arithmetic, every ATen call recorded with its shapes.

`time_module` times a live module where it stands; `read_module` reads one that a function builds.

``module:callable`` imports the user's own module on purpose, as ``python -m`` would: its code runs.
"""

import copy
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError, require_known
from surrogate.features.problem import DTYPES
from surrogate.network.call import Call, Tensor, base_name
from surrogate.network.calls import add_call
from surrogate.network.fusion import compiled
from surrogate.network.memory import OPTIMIZER_STATES, tensor_bytes
from surrogate.network.network import Network, Tally
from surrogate.network.predict import load_predictors
from surrogate.network.read import completed
from surrogate.network.result import NetworkTime
from surrogate.network.training import optimizer_step

REMEDY = "pip install 'seer-surrogate[torch]'"
CONTRACT = "it must return (module, inputs), inputs being a tuple of tensors; a parameter named batch is given --batch"
RUNTIMES = ("eager", "compiled")
KINDS = {
    "torch.float32": "fp32", "torch.float64": "fp64", "torch.float16": "fp16", "torch.bfloat16": "bf16",
    "torch.int64": "fp64", "torch.int32": "fp32", "torch.int16": "fp16", "torch.int8": "int8", "torch.uint8": "int8",
    "torch.bool": "int8", "torch.complex64": "fp64",
}  # fmt: skip
"""torch's element types → ours; other integers stand as the type of their width."""


def read_module(source: str, *, batch: int | None = None, training: bool = False, dtype: str | None = None) -> Network:
    """The network that ``module:callable`` builds, and what one pass over its inputs calls.

    Forward only, or under ``training`` forward and backward as autograd runs them, and the optimizer's step.
    ``dtype`` replaces the floating-point type. The module is built without memory, too; where that fails, since its
    constructor asks for values that it computed, it is built for real. Raises `InputError` where torch is missing, or
    the callable or the module fails.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise InputError(f"{source}: running a module needs torch; {REMEDY}") from None
    build = imported_callable(source, CONTRACT)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with in_one_line(source):
        try:
            with fake:
                module, inputs = _built(source, build, batch)
                return _network(source, module, inputs, training, dtype, batch)
        except Exception:
            module, inputs = _built(source, build, batch)
            with fake:
                module._apply(fake.from_tensor)
                return _network(source, module, inputs, training, dtype, batch)


def module_network(module: Any, inputs: Any, *, training: bool = False, dtype: str | None = None) -> Network:
    """What one pass of a live ``module`` over ``inputs`` (a tensor, or a tuple of arguments) calls.

    A copy without memory runs in its place: the module's weights, gradients and mode stay as they are, on whatever
    device they lie. Raises `InputError` where torch is missing or the module fails.
    """
    name = type(module).__name__
    try:
        from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
        from torch.nn import Module
    except ImportError:
        raise InputError(f"{name}: running a module needs torch; {REMEDY}") from None
    if not isinstance(module, Module):
        raise InputError(f"{name} is no torch.nn.Module; give the module and a tuple of its inputs")
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with in_one_line(name):
        with FakeCopyMode(fake):
            copied, copied_inputs = copy.deepcopy((module, inputs if isinstance(inputs, tuple) else (inputs,)))
        with fake:
            return _network(name, copied, copied_inputs, training, dtype, None)


def time_module(
    module: Any,
    inputs: Any,
    gpu: str,
    *,
    training: bool = False,
    dtype: str | None = None,
    runtime: str = "eager",
    bundle: str | Path | None = None,
    workspace_limit: int | None = None,
    deterministic: bool = False,
) -> NetworkTime:
    """The predicted time of one pass of ``module`` over ``inputs`` on ``gpu``, which need not be in this machine.

    ``inputs`` is a tensor or the tuple of the module's arguments. The module runs on a copy without memory, so that
    its weights, gradients and mode stay. ``training`` times forward, backward and the optimizer's step; ``dtype``
    replaces the floating-point type (``fp16``); ``runtime`` is ``eager``, or of a forward pass ``compiled``, as in
    `seer network`. Every convolution takes the fastest algorithm whose workspace is at most ``workspace_limit`` bytes;
    the result's ``layers`` name it, with its workspace, time and interval in µs. Raises `InputError` where torch is
    missing, the module fails, or the GPU is unknown.
    """
    require_known("runtime", runtime, RUNTIMES)
    network = completed(module_network(module, inputs, training=training, dtype=dtype), training)
    predictors = load_predictors(gpu, bundle)
    return predictors.time(
        compiled(network) if runtime == "compiled" else network,
        workspace_limit=workspace_limit,
        deterministic=deterministic,
    )


def _network(
    source: str, module: Any, inputs: tuple[Any, ...], training: bool, dtype: str | None, batch: int | None
) -> Network:
    """The calls of one pass on fake tensors as layers, with the optimizer's step and what is held in memory."""
    import torch

    calls, activation_bytes = recorded_calls(module, inputs, training, dtype)
    tally = Tally()
    for call in calls:
        add_call(call, tally, training=training)
    weights = [_plain(weight, dtype) for weight in (*module.parameters(), *module.buffers())]
    trained = [_plain(weight, dtype) for weight in module.parameters() if training and weight.requires_grad]
    tally.add(optimizer_step(sum(prod(weight.shape) for weight in trained)))
    if not tally.layers and not tally.unsupported:
        raise InputError(f"{source}: the module calls no operator that costs time; give one that computes something")
    first = next((value for value in inputs if isinstance(value, torch.Tensor) and value.dim()), None)
    return tally.network(
        source.rpartition(":")[2],
        first.shape[0] if first is not None else batch,
        training,
        parameters=sum(weight.numel() for weight in module.parameters()),
        weights_bytes=sum(map(tensor_bytes, weights)),
        activation_bytes=activation_bytes,
        state_bytes=OPTIMIZER_STATES * sum(map(tensor_bytes, trained)),
    )


def _built(source: str, build: Callable[..., Any], batch: int | None) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs at the wanted batch."""
    import torch

    takes = "batch" in inspect.signature(build).parameters
    built = build(batch=batch) if takes and batch is not None else build()
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)):
        raise InputError(f"{source}: returned {type(built).__name__}; {CONTRACT}")
    module, inputs = built
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    if batch is not None and not takes:
        inputs = tuple(
            value.new_empty((batch, *value.shape[1:])) if isinstance(value, torch.Tensor) and value.dim() else value
            for value in inputs
        )
    return module, inputs


def recorded_calls(module: Any, inputs: tuple[Any, ...], training: bool, dtype: str | None) -> tuple[list[Call], int]:
    """Every ATen call of one pass: a dispatch mode under autograd sees them, in the backward pass with the module of
    the forward call. And the most bytes that their results and the inputs took at once."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.module_tracker import ModuleTracker
    from torch.utils.weak import WeakIdKeyDictionary

    storages = WeakIdKeyDictionary()  # storage → its bytes; those of weights are counted elsewhere
    storages.update({weight.untyped_storage(): 0 for weight in (*module.parameters(), *module.buffers())})
    taken = peak = 0

    def hold(tensors: Any) -> None:
        """Count the storages of tensors that are new, until they are freed."""
        nonlocal taken, peak
        for tensor in (leaf for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)):
            storage = tensor.untyped_storage()
            if storage not in storages:
                elements = storage.nbytes() // tensor.element_size()
                storages[storage] = elements * DTYPES[_plain(tensor, dtype).dtype]
                taken += storages[storage]
                weakref.finalize(storage, release, storages[storage])
        peak = max(peak, taken)

    def release(size: int) -> None:
        nonlocal taken
        taken -= size

    calls: list[Call] = []
    tracker = ModuleTracker()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            hold(result)
            arguments = {name: _plain(value, dtype) for name, value in _named(func, args, kwargs or {}).items()}
            results = _plain(list(result) if isinstance(result, list | tuple) else [result], dtype)
            outputs = tuple(value for value in results if isinstance(value, Tensor))
            op, path = base_name(func.name()), _deepest(tracker.parents)
            calls.append(Call(op, arguments, outputs, f"{path}.{op}" if path else op))
            return result

    hold(inputs)
    module.train(training)
    if not training:
        module.requires_grad_(False)  # without gradients the tracker's hooks refuse views of trained weights
    with torch.set_grad_enabled(training), tracker, Recorder():
        result = module(*inputs)
        if training:
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            losses = [leaf.float().sum() for leaf in leaves if leaf.requires_grad]
            if not losses:
                raise InputError("the module's result needs no gradient; --training needs trained weights")
            torch.stack(losses).sum().backward()
    return calls, peak


def _plain(value: Any, dtype: str | None) -> Any:
    """Shapes in the place of tensors: one held here would make autograd copy it. ``dtype`` replaces floating types."""
    import torch

    if isinstance(value, torch.Tensor):
        floating = value.dtype.is_floating_point
        kind = dtype if dtype and floating else KINDS.get(str(value.dtype), "fp32")
        shape = tuple(int(size) for size in value.shape)
        return Tensor(shape, kind, floating, parameter=isinstance(value, torch.nn.Parameter))
    return [_plain(inner, dtype) for inner in value] if isinstance(value, list | tuple) else value


def _deepest(names: set[str]) -> str:
    """The innermost module's path without its root's class name; nothing outside all modules."""
    deepest = max(names, key=lambda name: (name.count("."), name != "Global", name), default="Global")
    return deepest.partition(".")[2]


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names of the operator's schema, defaults included."""
    arguments = func._schema.arguments
    named = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    named |= {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    return named | kwargs


def imported_callable(source: str, contract: str) -> Callable[..., Any]:
    """The callable that ``source`` names; modules of the current folder count, too.

    Raises `InputError`, with ``contract`` as the remedy, where there is none or importing it fails.
    """
    module, _, name = source.partition(":")
    if not module or not name:
        raise InputError(f"{source!r} names no function; write module:callable; {contract}")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        with in_one_line(source):
            target: Any = importlib.import_module(module)
            for part in name.split("."):
                target = getattr(target, part)
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    if not callable(target):
        raise InputError(f"{source}: is a {type(target).__name__}, not callable; {contract}")
    return target


@contextmanager
def in_one_line(source: str) -> Iterator[None]:
    """What the user's code raises becomes an `InputError` of one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        text = text if len(text) <= 200 else f"{text[:199]}…"
        raise InputError(f"{source}: {type(error).__name__}: {text or 'no reason given'}") from None
