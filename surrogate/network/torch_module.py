"""A torch module, run on fake tensors: no memory, no arithmetic, every ATen call recorded with its shapes.

``module:callable`` imports the user's own module on purpose, as ``python -m`` would: its code runs.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from surrogate.features.errors import InputError
from surrogate.network.call import Call, Tensor, base_name
from surrogate.network.calls import tell
from surrogate.network.network import Network, Tally

REMEDY = "pip install 'seer-surrogate[torch]'"
CONTRACT = "it must return (module, inputs), inputs being a tuple of tensors; a parameter named batch is given --batch"
DTYPES = {
    "torch.float32": "fp32", "torch.float64": "fp64", "torch.float16": "fp16", "torch.bfloat16": "bf16",
    "torch.int64": "fp64", "torch.int32": "fp32", "torch.int16": "fp16", "torch.int8": "int8", "torch.uint8": "int8",
    "torch.bool": "int8", "torch.complex64": "fp64",
}  # fmt: skip
"""torch's element types → ours; other integers stand as the type of their width."""


class Recorded(NamedTuple):
    """One call: ``target`` as ``aten::add.Tensor``, arguments by their schema's names (defaults included)."""

    target: str
    module: str
    arguments: dict[str, Any]
    results: list[Any]


def read_module(
    source: str, *, batch: int | None = None, training: bool = False, dtype: str | None = None
) -> Network:
    """The network that ``module:callable`` builds, and what one pass over its inputs calls.

    Forward only, or under ``training`` forward and backward as autograd runs them, and the optimizer's step.
    ``dtype`` replaces the floating-point type. Raises `InputError` where torch is missing, or the callable or the
    module fails.
    """
    try:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise InputError(f"{source}: running a module needs torch; {REMEDY}") from None
    build = imported_callable(source, CONTRACT)
    with FakeTensorMode(allow_non_fake_inputs=True), in_one_line(source):
        module, inputs = _built(source, build, batch)
        calls = list(_calls(module, inputs, training, dtype))
    tally = Tally()
    for call in calls:
        tell(_as_call(call), tally, training=training)
    if training:
        from surrogate.network.training import optimizer_step

        tally.add(optimizer_step(sum(p.numel() for p in module.parameters() if p.requires_grad)))
    if not tally.layers and not tally.unsupported:
        raise InputError(
            f"{source}: the module calls no operator that costs time; give one that computes something"
        )
    first = next((one for one in inputs if isinstance(one, torch.Tensor) and one.dim()), None)
    return tally.network(source.rpartition(":")[2], first.shape[0] if first is not None else batch, training)


def _built(source: str, build: Callable[..., Any], batch: int | None) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs at the wanted batch."""
    import torch

    takes = "batch" in inspect.signature(build).parameters
    made = build(batch=batch) if takes and batch is not None else build()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise InputError(f"{source}: returned {type(made).__name__}; {CONTRACT}")
    module, inputs = made
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    if batch is not None and not takes:
        inputs = tuple(
            one.new_empty((batch, *one.shape[1:])) if isinstance(one, torch.Tensor) and one.dim() else one
            for one in inputs
        )
    return module, inputs


def _calls(module: Any, inputs: tuple[Any, ...], training: bool, dtype: str | None) -> Iterator[Recorded]:
    import torch
    from torch.utils._pytree import tree_leaves

    module.train(training)
    with torch.set_grad_enabled(training), recording(_plain(dtype)) as calls:
        result = module(*inputs)
        if training:
            leaves = tree_leaves(result)
            losses = [
                one.float().sum() for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad
            ]
            if not losses:
                raise InputError("the module's result needs no gradient; --training needs trained weights")
            torch.stack(losses).sum().backward()
    yield from calls


def _plain(dtype: str | None) -> Callable[[Any], Any]:
    """A function that puts shapes in the place of tensors; ``dtype`` replaces floating-point types."""
    import torch

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            kind = DTYPES.get(str(value.dtype), "fp32")
            wanted = dtype if dtype and value.dtype.is_floating_point else kind
            shape = tuple(int(size) for size in value.shape)
            floating = value.dtype.is_floating_point
            return Tensor(shape, wanted, floating, parameter=isinstance(value, torch.nn.Parameter))
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    return plain


def _as_call(recorded: Recorded) -> Call:
    op = base_name(recorded.target)
    outputs = tuple(one for one in recorded.results if isinstance(one, Tensor))
    name = f"{recorded.module}.{op}" if recorded.module else op
    return Call(op, recorded.arguments, outputs, name)


@contextmanager
def recording(plain: Callable[[Any], Any]) -> Iterator[list[Recorded]]:
    """The calls made inside, in order; in a backward pass the module is that of the forward call.

    ``plain`` turns every argument into something without tensors: a tensor held here would make autograd copy it.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.module_tracker import ModuleTracker

    calls: list[Recorded] = []
    tracker = ModuleTracker()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            given = {name: plain(value) for name, value in _named(func, args, kwargs or {}).items()}
            results = plain(list(result) if isinstance(result, list | tuple) else [result])
            calls.append(Recorded(func.name(), _deepest(tracker.parents), given, results))
            return result

    with tracker, Recorder():
        yield calls


def _deepest(names: set[str]) -> str:
    """The innermost module's path without its root's class name; nothing outside all modules."""
    deepest = max(names, key=lambda name: (name.count("."), name != "Global"), default="Global")
    return deepest.partition(".")[2]


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = func._schema.arguments
    found = {one.name: one.default_value for one in arguments if one.has_default_value()}
    found |= {one.name: value for one, value in zip(arguments, args, strict=False)}
    return found | kwargs


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
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    if not callable(found):
        raise InputError(f"{source}: is a {type(found).__name__}, not callable; {contract}")
    return found


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
