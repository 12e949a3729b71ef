"""A torch module, run on fake tensors: no memory, no arithmetic, every ATen call recorded with its shapes.

``module:callable`` imports the user's own module on purpose, as ``python -m`` would: its code runs.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from surrogate.features.errors import InputError
from surrogate.network.aten_call import Call
from surrogate.network.aten_reader import base_name, tell
from surrogate.network.network import Network, Tally
from surrogate.network.tensor import Tensor
from surrogate.network.torch_recording import Recorded, recording
from surrogate.network.user_callable import imported_callable, in_one_line

REMEDY = "pip install 'seer-surrogate[torch]'"
CONTRACT = "it must return (module, inputs), inputs being a tuple of tensors; a parameter named batch is given --batch"
DTYPES = {
    "torch.float32": "fp32", "torch.float64": "fp64", "torch.float16": "fp16", "torch.bfloat16": "bf16",
    "torch.int64": "fp64", "torch.int32": "fp32", "torch.int16": "fp16", "torch.int8": "int8", "torch.uint8": "int8",
    "torch.bool": "int8", "torch.complex64": "fp64",
}  # fmt: skip
"""torch's element types → ours; other integers stand as the type of their width."""


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
            return Tensor(shape, wanted, parameter=isinstance(value, torch.nn.Parameter))
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    return plain


def _as_call(recorded: Recorded) -> Call:
    op = base_name(recorded.target)
    outputs = tuple(one for one in recorded.results if isinstance(one, Tensor))
    return Call(op, f"{recorded.module}.{op}" if recorded.module else op, recorded.arguments, outputs)
