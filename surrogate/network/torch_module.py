"""A torch module, run on fake tensors: no memory, no arithmetic, every ATen call recorded with its shapes.

`time_module` times a live module where it stands; `read_module` reads one that a function builds.

``module:callable`` imports the user's own module on purpose, as ``python -m`` would: its code runs.
"""

import copy
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.features.errors import InputError, imported_callable, in_one_line
from surrogate.features.problem import DTYPES, HALF
from surrogate.features.whole import MAX_INT32, whole
from surrogate.network.allocator import Allocator
from surrogate.network.call import TABLE, Call, Tensor, base_name
from surrogate.network.calls import OF_ONE_TYPE, add_call
from surrogate.network.memory import OPTIMIZER, OPTIMIZERS, tensor_bytes
from surrogate.network.network import TRAINED, Network, Tally, element_type, with_settings
from surrogate.network.predict import Allowed, largest_batch, load_predictors
from surrogate.network.result import NetworkTime
from surrogate.network.runtime import HOSTS, launched
from surrogate.network.torch_gpu import autocast_around, cuda_autocast, gpu_calls, in_tf32
from surrogate.network.training import completed, optimizer_step, require_data_parallel

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import Module
    from torch.overrides import TorchFunctionMode

REMEDY = "pip install 'seer-surrogate[torch]'"
CONTRACT = (
    "it must return (module, inputs), inputs being a tensor, a tuple or list of arguments, a dict of keyword arguments,"
    " or a tuple and a dict; a parameter named batch is given --batch"
)
KINDS: Mapping[str, str] = TABLE["types"]["torch"]
"""torch's element types → ours; other integers stand as the type of their width."""
EVAL_NOTE = (
    "the module, or a part of it, is in eval mode; the iteration is timed in train mode, with dropout and batch norm"
)


class Arguments(NamedTuple):
    """What a module is called with: by place and by name."""

    by_place: tuple[object, ...]
    by_name: dict[str, object]


class Recorded(NamedTuple):
    """The calls of a pass, the most bytes that its results and inputs took at once, those of weights' gradients among
    them, and what an allocator keeps beyond.

    ``ready`` counts the weights whose gradients are complete after a call of the backward pass, by its place.
    """

    forward: list[Call]
    backward: list[Call]
    activation_bytes: int
    gradient_bytes: int
    rounding_bytes: int
    ready: Mapping[int, int]


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
    with cuda_autocast():
        build = imported_callable(source, CONTRACT)
    with _told(source), cuda_autocast():
        try:
            with fake:
                with _copied_without_memory():
                    module, inputs = _built(source, build, batch)
                return _network(source, module, inputs, training, dtype, amp, batch)
        except InputError:
            raise
        except Exception:
            module, inputs = _built(source, build, batch)
            with fake:
                module._apply(fake.from_tensor)
                return _network(source, module, inputs, training, dtype, amp, batch)


@contextmanager
def _told(source: str) -> Iterator[None]:
    """What torch or the user's code raises, as an `InputError` of one line that ``source`` begins."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch._subclasses.fake_tensor import log as torch_log

    with in_one_line(source):
        was_silent, torch_log.disabled = torch_log.disabled, True  # it logs a stack for every shape that does not fit
        try:
            yield
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise InputError(
                f"{source}: {error.func} asks for the values of a tensor, and a prediction has shapes alone; leave that"
                " part out of the module (.item(), nonzero, masks as indices, `if` on a tensor)"
            ) from None
        finally:
            torch_log.disabled = was_silent


def _fake_mode(source: str) -> "FakeTensorMode":
    """Torch's mode of tensors without memory. Raises `InputError` where torch is missing."""
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise InputError(f"{source}: running a module needs torch; {REMEDY}") from None
    return FakeTensorMode(allow_non_fake_inputs=True)


def _copied_without_memory() -> "TorchFunctionMode":
    """A mode in which `copy.deepcopy` clones a tensor: torch copies its memory, and crashes where there is none."""
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


def module_network(
    module: "Module",
    inputs: object,
    *,
    batch: int | None = None,
    training: bool = False,
    dtype: str | None = None,
    amp: str | None = None,
) -> Network:
    """What one pass of a live ``module`` over ``inputs`` calls, which are those of `time_module`.

    A copy without memory runs in its place: the module's weights, gradients and mode stay as they are, on whatever
    device they lie. Raises `InputError` where torch is missing or the module fails.
    """
    plain, is_compiled = _uncompiled(module)
    name = type(plain).__name__
    fake = _fake_mode(name)
    from torch._subclasses.fake_tensor import FakeCopyMode
    from torch.nn import Module

    if not isinstance(module, Module):
        raise InputError(f"{name} is no torch.nn.Module; give the module and its inputs")
    with _told(name):
        with FakeCopyMode(fake):
            copied, arguments = copy.deepcopy((plain, _arguments(inputs)))
        with fake:
            network = _network(name, copied, _at_batch(arguments, batch), training, dtype, amp, batch)
    return replace(network, runtime="compiled" if is_compiled else "eager")


def time_module(
    module: "Module",
    inputs: object,
    gpu: str,
    *,
    training: bool = False,
    dtype: str | None = None,
    amp: str | None = None,
    batch: int | None = None,
    max_batch: bool = False,
    layout: str | None = None,
    optimizer: str = OPTIMIZER,
    data_parallel: int = 1,
    runtime: str | None = None,
    host: str = HOSTS[0],
    bundle: str | Path | None = None,
    workspace_limit: int | None = None,
    deterministic: bool = False,
) -> NetworkTime:
    """The predicted time of one pass of ``module`` over ``inputs`` on ``gpu``, which need not be in this machine.

    ``inputs`` is a tensor, a tuple or list of the module's arguments, a dict of those by name, or (tuple, dict). The
    module runs on a copy without memory, so that its weights, gradients and mode stay. ``training`` times forward,
    backward and the step of ``optimizer`` (one of `OPTIMIZERS`), on ``data_parallel`` GPUs with the sum of their
    gradients; ``dtype`` replaces the floating-point type (``fp16``), ``amp`` runs the forward pass under autocast to
    that type. ``batch`` replaces the first size of all inputs, ``max_batch`` by the largest that fits; ``layout`` is
    that of convolutions. ``runtime`` is ``eager``, ``compiled`` (the default of what `torch.compile` gave) or
    ``graphs`` on a ``usual``, ``fast`` or ``slow`` host, as in `seer network`. Every convolution takes the fastest
    algorithm whose workspace is at most ``workspace_limit`` bytes; the result's ``layers`` name it, with its
    workspace, time and interval in µs. Raises `InputError` where torch is missing, the module fails, or the GPU or a
    word is unknown.
    """
    name = type(module).__name__
    require_data_parallel(name, data_parallel, training=training)
    if batch is not None:
        whole(name, "batch", batch, most=MAX_INT32)
    predictors = load_predictors(gpu, bundle)
    limits: Allowed = {"workspace_limit": workspace_limit, "deterministic": deterministic}

    def read(size: int | None) -> Network:
        network = module_network(module, inputs, batch=size, training=training, dtype=dtype, amp=amp)
        network = with_settings(completed(network, training, optimizer), None, layout)
        return launched(replace(network, gpus=data_parallel), runtime, host)

    return predictors.time(read(largest_batch(read, predictors, **limits) if max_batch else batch), **limits)


def _network(
    source: str,
    module: "Module",
    inputs: Arguments,
    training: bool,
    dtype: str | None,
    amp: str | None,
    batch: int | None,
) -> Network:
    """The calls of one pass on fake tensors as layers, with the optimizer's step and what is held in memory."""
    import torch
    from torch.utils._pytree import tree_leaves

    dtype, amp = element_type("dtype", dtype, TRAINED), element_type("amp", amp, HALF) or autocast_around()
    module, is_compiled = _uncompiled(module)
    module._compiled_call_impl = None
    evaluated = training and not all(part.training for part in module.modules())
    module.train(training)
    recorded = recorded_calls(module, inputs.by_place, training, dtype, amp, inputs.by_name)
    tally = Tally()
    for call in recorded.forward:
        add_call(call, tally, training=training)
    forward_layers = len(tally.layers)
    ready: Counter[int] = Counter()  # layer → weights whose gradients are complete behind it
    for index, call in enumerate(recorded.backward):
        add_call(call, tally, training=training)
        ready[len(tally.layers) - 1] += recorded.ready.get(index, 0)
    tally.layers[forward_layers:] = [
        replace(layer, parameters=ready[index])
        for index, layer in enumerate(tally.layers[forward_layers:], forward_layers)
    ]
    weights = [_shape_of(weight, dtype) for weight in (*module.parameters(), *module.buffers())]
    trained = [_shape_of(weight, dtype) for weight in module.parameters() if training and weight.requires_grad]
    tally.add(optimizer_step(sum(prod(weight.shape or ()) for weight in trained)))
    if not tally.layers and not tally.unsupported:
        raise InputError(f"{source}: the module calls no operator that costs time; give one that computes something")
    leaves = tree_leaves(tuple(inputs))
    first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()), None)
    network = tally.network(
        source.rpartition(":")[2],
        first.shape[0] if first is not None else batch,
        training,
        parameters=sum(weight.numel() for weight in module.parameters()),
        weights_bytes=sum(map(tensor_bytes, weights)),
        activation_bytes=recorded.activation_bytes,
        gradient_bytes=recorded.gradient_bytes,
        rounding_bytes=recorded.rounding_bytes,
        tf32=in_tf32(),
        state_bytes=OPTIMIZERS[OPTIMIZER].states * sum(map(tensor_bytes, trained)),
        forward_layers=forward_layers if training else 0,
        runtime="compiled" if is_compiled else "eager",
    )
    return replace(network, notes=(*network.notes, EVAL_NOTE)) if evaluated else network


def _uncompiled(module: Any) -> "tuple[Module, bool]":
    """The module that `torch.compile` was given, and whether it was."""
    is_compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    return getattr(module, "_orig_mod", module), is_compiled


def _built(source: str, build: Callable[..., object], batch: int | None) -> "tuple[Module, Arguments]":
    """The module and its inputs at the wanted batch."""
    import torch

    takes = "batch" in inspect.signature(build).parameters
    built = build(batch=batch) if takes and batch is not None else build()
    if not (isinstance(built, tuple) and len(built) in (2, 3) and isinstance(built[0], torch.nn.Module)):
        raise InputError(f"{source}: returned {type(built).__name__}; {CONTRACT}")
    arguments = _arguments(built[1] if len(built) == 2 else built[1:])
    return built[0], arguments if takes else _at_batch(arguments, batch)


def _arguments(inputs: object) -> Arguments:
    """A dict as arguments by name, a tuple or a list as those by place, or both as a pair."""
    match inputs:
        case dict():
            return Arguments((), inputs)
        case (tuple() | list() as by_place, dict() as by_name):
            return Arguments(tuple(by_place), by_name)
        case tuple() | list():
            return Arguments(tuple(inputs), {})
    return Arguments((inputs,), {})


def _at_batch(arguments: Arguments, batch: int | None) -> Arguments:
    """Tensors of another batch in the same memory format."""
    import torch

    def resized(value: Any) -> object:
        if batch is None or not isinstance(value, torch.Tensor) or not value.dim():
            return value
        form = _memory_format(value) or torch.contiguous_format
        return value.new_empty((batch, *value.shape[1:])).contiguous(memory_format=form)

    by_name = {name: resized(value) for name, value in arguments.by_name.items()}
    return Arguments(tuple(map(resized, arguments.by_place)), by_name)


def recorded_calls(
    module: "Module",
    inputs: tuple[object, ...],
    training: bool,
    dtype: str | None = None,
    amp: str | None = None,
    named_inputs: Mapping[str, object] | None = None,
) -> Recorded:
    """Every ATen call that a GPU would run of the forward and, under ``training``, of the backward pass.

    A dispatch mode under autograd sees them, with the module that runs; in the backward pass it is the module whose
    forward call made the node of the gradient. Raises `InputError` for a product of different floating-point types.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
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
    modules = {part: name for name, part in module.named_modules()}
    running: list[str] = []  # modules whose forward call has begun, the innermost last
    makers: dict[int, str] = {}  # number of a node of autograd → the module whose call made it
    owners = {weight: name.rpartition(".")[0] for name, weight in module.named_parameters()}

    def leave(part: "Module", *_: object) -> None:
        path = running.pop()
        error = sys.exc_info()[1]  # torch leaves a module that failed within the handler of its error
        if error is not None and path and not hasattr(error, "__notes__"):
            error.add_note(f"layer {path} ({type(part).__name__})")

    def running_module() -> str:
        node: Any = torch._C._current_autograd_node()
        if node is None or running:  # a backward pass runs a module again where activations are recomputed
            path = running[-1] if running else ""
            made = torch.autograd._get_sequence_nr() - 1  # pyright: ignore[reportPrivateImportUsage]
            makers.setdefault(made, path)
            return path
        return owners.get(getattr(node, "variable", node)) or makers.get(node._sequence_nr(), "")

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: "OpOverload",
            types: object,
            args: Sequence[object] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            path = running_module()
            result = func(*args, **(kwargs or {}))
            hold(result)
            arguments = {name: _plain(value, dtype) for name, value in _named(func, args, kwargs or {}).items()}
            results = [_plain(value, dtype) for value in (result if isinstance(result, list | tuple) else [result])]
            outputs = tuple(value for value in results if isinstance(value, Tensor))
            op = base_name(func.name())
            calls.append(Call(op, arguments, outputs, f"{path}.{op}" if path else op))
            _require_one_type(calls[-1])
            return result

    hold([*module.parameters(), *module.buffers()])
    trained = [weight for weight in module.parameters() if training and weight.requires_grad]
    for weight in trained * OPTIMIZERS[OPTIMIZER].states:
        allocator.take(tensor_bytes(_shape_of(weight, dtype)))
    lasting_bytes = allocator.held
    hold((inputs, named_inputs))
    if not training:
        module.requires_grad_(False)  # what needs a gradient is folded into other products
    ready: Counter[int] = Counter()

    def accumulated(weight: Any) -> None:
        ready[len(calls) - 1] += weight.numel()
        hold(weight.grad)
        allocator.mark(storages[weight.grad.untyped_storage()])

    hooks = [
        register_module_forward_pre_hook(lambda part, _: running.append(modules.get(part, ""))),
        register_module_forward_hook(leave, always_call=True),
        *(weight.register_post_accumulate_grad_hook(accumulated) for weight in trained),
    ]
    try:
        with torch.set_grad_enabled(training), Recorder():
            with gpu_calls(amp):
                result = module(*inputs, **(named_inputs or {}))
            forward_calls = len(calls)
            if training:
                leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
                losses = [leaf.float().sum() for leaf in leaves if leaf.requires_grad]
                if not losses:
                    raise InputError("the module's result needs no gradient; --training needs trained weights")
                with gpu_calls():  # activations that were not kept are computed again, as on a GPU, too
                    torch.stack(losses).sum().backward()
    finally:
        for hook in hooks:
            hook.remove()
    of_backward = {index - forward_calls: weights for index, weights in ready.items()}
    return Recorded(
        calls[:forward_calls],
        calls[forward_calls:],
        allocator.peak - lasting_bytes,
        allocator.peak_gradients,
        allocator.reserved - allocator.peak,
        of_backward,
    )


def _require_one_type(call: Call) -> None:
    """Raises `InputError` for a product whose operands torch would refuse, as fake tensors do not."""
    types = {tensor.dtype for tensor in call.tensors() if tensor.floating}
    if call.op in OF_ONE_TYPE and len(types) > 1:
        raise InputError(
            f"{call.name}: operands in {' and '.join(sorted(types))}, which torch refuses; cast the inputs to the"
            " type of the weights (.half(), .to(dtype)), or keep weights in fp32 and give amp (--amp)"
        )


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


def _named(func: "OpOverload", args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Arguments by the names of the operator's schema, defaults included."""
    arguments = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    return {**defaults, **given, **kwargs}
