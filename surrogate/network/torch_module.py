"""A torch module, run on fake tensors: no memory, no arithmetic, every ATen call recorded with its shapes.

`time_module` times a live module where it stands; `read_module` reads one that a function builds.

``module:callable`` imports the user's own module on purpose, as ``python -m`` would: its code runs.
"""

import copy
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from surrogate.features.errors import InputError, imported_callable, in_one_line, require_known
from surrogate.features.problem import DTYPES
from surrogate.network.allocator import Allocator
from surrogate.network.call import TABLE, Call, Tensor, base_name
from surrogate.network.calls import add_call
from surrogate.network.memory import OPTIMIZER_STATES, tensor_bytes
from surrogate.network.network import Network, Tally
from surrogate.network.predict import load_predictors
from surrogate.network.result import NetworkTime
from surrogate.network.runtime import HOSTS, RUNTIMES, launched
from surrogate.network.torch_gpu import AMP, gpu_calls
from surrogate.network.training import completed, optimizer_step

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import Module

REMEDY = "pip install 'seer-surrogate[torch]'"
CONTRACT = "it must return (module, inputs), inputs being a tuple of tensors; a parameter named batch is given --batch"
KINDS: Mapping[str, str] = TABLE["types"]["torch"]
"""torch's element types → ours; other integers stand as the type of their width."""


def read_module(
    source: str, *, batch: int | None = None, training: bool = False, dtype: str | None = None, amp: str | None = None
) -> Network:
    """The network that ``module:callable`` builds, and what one pass over its inputs calls.

    Forward only, or under ``training`` forward and backward as autograd runs them, and the optimizer's step.
    ``dtype`` replaces the floating-point type; ``amp`` runs the forward pass under autocast to that type. The module is
    built without memory, too; where that fails, since its constructor asks for values that it computed, it is built for
    real. Raises `InputError` where torch is missing, or the callable or the module fails.
    """
    fake = _fake_mode(source)
    build = imported_callable(source, CONTRACT)
    with in_one_line(source):
        try:
            with fake:
                module, inputs = _built(source, build, batch)
                return _network(source, module, inputs, training, dtype, amp, batch)
        except Exception:
            module, inputs = _built(source, build, batch)
            with fake:
                module._apply(fake.from_tensor)
                return _network(source, module, inputs, training, dtype, amp, batch)


def _fake_mode(source: str) -> "FakeTensorMode":
    """Torch's mode of tensors without memory. Raises `InputError` where torch is missing."""
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise InputError(f"{source}: running a module needs torch; {REMEDY}") from None
    return FakeTensorMode(allow_non_fake_inputs=True)


def module_network(
    module: "Module", inputs: object, *, training: bool = False, dtype: str | None = None, amp: str | None = None
) -> Network:
    """What one pass of a live ``module`` over ``inputs`` (a tensor, or a tuple of arguments) calls.

    A copy without memory runs in its place: the module's weights, gradients and mode stay as they are, on whatever
    device they lie. Raises `InputError` where torch is missing or the module fails.
    """
    name = type(module).__name__
    fake = _fake_mode(name)
    from torch._subclasses.fake_tensor import FakeCopyMode
    from torch.nn import Module

    if not isinstance(module, Module):
        raise InputError(f"{name} is no torch.nn.Module; give the module and a tuple of its inputs")
    with in_one_line(name):
        with FakeCopyMode(fake):
            copied, copied_inputs = copy.deepcopy((module, inputs if isinstance(inputs, tuple) else (inputs,)))
        with fake:
            return _network(name, copied, copied_inputs, training, dtype, amp, None)


def time_module(
    module: "Module", inputs: object, gpu: str, *, training: bool = False, dtype: str | None = None,
    amp: str | None = None, runtime: str = "eager", host: str = HOSTS[0], bundle: str | Path | None = None,
    workspace_limit: int | None = None, deterministic: bool = False,
) -> NetworkTime:  # fmt: skip
    """The predicted time of one pass of ``module`` over ``inputs`` on ``gpu``, which need not be in this machine.

    ``inputs`` is a tensor or the tuple of the module's arguments. The module runs on a copy without memory, so that
    its weights, gradients and mode stay. ``training`` times forward, backward and the optimizer's step; ``dtype``
    replaces the floating-point type (``fp16``), ``amp`` runs the forward pass under autocast to that type; ``runtime``
    is ``eager``, ``compiled`` or ``graphs`` on a ``usual``, ``fast`` or ``slow`` host, as in `seer network`. Every
    convolution takes the fastest algorithm whose workspace is at most ``workspace_limit`` bytes; the result's
    ``layers`` name it, with its workspace, time and interval in µs. Raises `InputError` where torch is missing, the
    module fails, or the GPU is unknown.
    """
    require_known("runtime", runtime, tuple(RUNTIMES))
    require_known("host", host, HOSTS)
    if amp is not None:
        require_known("amp", amp, AMP)
    network = module_network(module, inputs, training=training, dtype=dtype, amp=amp)
    network = launched(completed(network, training), runtime, host)
    predictors = load_predictors(gpu, bundle)
    return predictors.time(network, workspace_limit=workspace_limit, deterministic=deterministic)


def _network(
    source: str, module: "Module", inputs: tuple[object, ...], training: bool, dtype: str | None, amp: str | None,
    batch: int | None,
) -> Network:  # fmt: skip
    """The calls of one pass on fake tensors as layers, with the optimizer's step and what is held in memory."""
    import torch

    module.train(training)
    forward, backward, activation_bytes, rounding_bytes = recorded_calls(module, inputs, training, dtype, amp)
    tally = Tally()
    for call in forward:
        add_call(call, tally, training=training)
    forward_layers = len(tally.layers)
    for call in backward:
        add_call(call, tally, training=training)
    weights = [_shape_of(weight, dtype) for weight in (*module.parameters(), *module.buffers())]
    trained = [_shape_of(weight, dtype) for weight in module.parameters() if training and weight.requires_grad]
    tally.add(optimizer_step(sum(prod(weight.shape or ()) for weight in trained)))
    if not tally.layers and not tally.unsupported:
        raise InputError(f"{source}: the module calls no operator that costs time; give one that computes something")
    tensors: list[torch.Tensor] = [value for value in inputs if isinstance(value, torch.Tensor)]
    first = next((tensor for tensor in tensors if tensor.dim()), None)
    network = tally.network(
        source.rpartition(":")[2], first.shape[0] if first is not None else batch, training,
        parameters=sum(weight.numel() for weight in module.parameters()), weights_bytes=sum(map(tensor_bytes, weights)),
        activation_bytes=activation_bytes, rounding_bytes=rounding_bytes,
        state_bytes=OPTIMIZER_STATES * sum(map(tensor_bytes, trained)),
    )  # fmt: skip
    return replace(network, forward_layers=forward_layers) if training else network


def _built(source: str, build: Callable[..., object], batch: int | None) -> "tuple[Module, tuple[object, ...]]":
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
            _at_batch(value, batch) if isinstance(value, torch.Tensor) and value.dim() else value for value in inputs
        )
    return module, inputs


def _at_batch(tensor: "torch.Tensor", batch: int) -> "torch.Tensor":
    """A tensor of another batch in the same memory format."""
    import torch

    form = _memory_format(tensor) or torch.contiguous_format
    return tensor.new_empty((batch, *tensor.shape[1:])).contiguous(memory_format=form)


def recorded_calls(
    module: "Module", inputs: tuple[object, ...], training: bool, dtype: str | None = None, amp: str | None = None
) -> tuple[list[Call], list[Call], int, int]:
    """Every ATen call that a GPU would run of the forward and, under ``training``, of the backward pass.

    A dispatch mode under autograd sees them, in the backward pass with the module of the forward call. And the most
    bytes that their results and the inputs took at once, and what an allocator keeps beyond them.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.module_tracker import ModuleTracker
    from torch.utils.weak import WeakIdKeyDictionary

    allocator = Allocator()
    storages = WeakIdKeyDictionary()  # storage → its block

    def hold(tensors: object) -> None:
        """Take a block for every storage of tensors that is new, until it is freed."""
        for tensor in (leaf for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)):
            storage = tensor.untyped_storage()
            if storage not in storages:
                elements = storage.nbytes() // tensor.element_size()
                storages[storage] = allocator.take(elements * DTYPES[_shape_of(tensor, dtype).dtype])
                weakref.finalize(storage, allocator.give, storages[storage])

    calls: list[Call] = []
    tracker = ModuleTracker()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: "OpOverload", types: object, args: Sequence[object] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:  # fmt: skip
            result = func(*args, **(kwargs or {}))
            hold(result)
            arguments = {name: _plain(value, dtype) for name, value in _named(func, args, kwargs or {}).items()}
            results = [_plain(value, dtype) for value in (result if isinstance(result, list | tuple) else [result])]
            outputs = tuple(value for value in results if isinstance(value, Tensor))
            op = base_name(func.name())
            path = _deepest(tracker.parents)
            calls.append(Call(op, arguments, outputs, f"{path}.{op}" if path else op))
            return result

    hold([*module.parameters(), *module.buffers()])
    trained = [weight for weight in module.parameters() if training and weight.requires_grad]
    for weight in trained * OPTIMIZER_STATES:
        allocator.take(tensor_bytes(_shape_of(weight, dtype)))
    lasting_bytes = allocator.held
    hold(inputs)
    if not training:
        module.requires_grad_(False)  # without gradients the tracker's hooks refuse views of trained weights
    with torch.set_grad_enabled(training), tracker, Recorder():
        with gpu_calls(amp):
            result = module(*inputs)
        forward_calls = len(calls)
        if training:
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            losses = [leaf.float().sum() for leaf in leaves if leaf.requires_grad]
            if not losses:
                raise InputError("the module's result needs no gradient; --training needs trained weights")
            torch.stack(losses).sum().backward()
    return (
        calls[:forward_calls], calls[forward_calls:], allocator.peak - lasting_bytes,
        allocator.reserved - allocator.peak,
    )  # fmt: skip


def _shape_of(tensor: "torch.Tensor", dtype: str | None) -> Tensor:
    """What stands for a tensor: one held here would make autograd copy it. ``dtype`` replaces floating types."""
    import torch

    floating = tensor.dtype.is_floating_point
    kind = dtype if dtype and floating else KINDS.get(str(tensor.dtype), "fp32")
    shape = tuple(int(size) for size in tensor.shape)
    parameter = isinstance(tensor, torch.nn.Parameter)
    return Tensor(shape, kind, floating, parameter=parameter, channels_last=_memory_format(tensor) is not None)


def _memory_format(tensor: "torch.Tensor") -> "torch.memory_format | None":
    """The format of images or volumes whose channels lie innermost; None for any other."""
    import torch

    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    nhwc = form is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=form)
    return form if nhwc else None


def _plain(value: object, dtype: str | None) -> object:
    """An argument with shapes in the place of its tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return _shape_of(value, dtype)
    return [_plain(inner, dtype) for inner in value] if isinstance(value, list | tuple) else value


def _deepest(names: set[str]) -> str:
    """The innermost module's path without its root's class name; nothing outside all modules."""
    deepest = max(names, key=lambda name: (name.count("."), name != "Global", name), default="Global")
    return deepest.partition(".")[2]


def _named(func: "OpOverload", args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Arguments by the names of the operator's schema, defaults included."""
    arguments = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    return {**defaults, **given, **kwargs}
