"""Record the ATen calls that a GPU would run in the passes of a torch module on fake tensors, with their memory.

A prediction has shapes but no values, so calls that need the choices of a router are answered as if every expert got
the same number of tokens. The indices of `topk` or `argmax` choose among classes (experts). Masks and counts that are
computed from them have a known mean under balanced routing, and the mean gives the sizes of `nonzero` and of masked
selections. A call that needs other values is not answered here: torch then raises its own error.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.features import DTYPES, InputError
from surrogate.network.aten_call import DISPATCH, IN_PLACE, Call, Tensor, operator_name
from surrogate.network.dispatch import SAME_DTYPE_OPERATORS
from surrogate.network.memory import Allocator
from surrogate.network.network import TEXTS, ReadOptions, refuse
from surrogate.network.optimizers import OPTIMIZER, OPTIMIZERS
from surrogate.network.torch_gpu import dispatched_as_on_gpu
from surrogate.network.torch_values import KnownValues
from surrogate.network.training import RECOMPUTED

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload
    from torch.nn import Module

TORCH_DTYPES: Mapping[str, str] = DISPATCH["types"]["torch"]
"""torch's element types → ours; other integer types are given as the type of the same width."""
ROUTING_NOTE = TEXTS["notes"]["routing"]
ROUNDING = 1e-6
"""Tolerance of a sum of equal shares, which rounding would bring below a whole number."""
_CHOICE_AXES = {"topk": 2, "argmax": 1, "max": 1}
"""Operator that chooses among classes → position of the argument that names their axis."""
_CHANGING = (op for op, kernels in DISPATCH["passes"].items() if "self > new" in kernels)
_KEEPING = frozenset((*DISPATCH["rules"]["copy"], *_CHANGING, "gather", "take", "sort"))
"""Operators that copy values, and so keep a tensor's balance."""


class Arguments(NamedTuple):
    """The arguments of a module's call: by position and by name."""

    by_place: tuple[object, ...]
    by_name: dict[str, object]


def record_calls(module: "Module", inputs: Arguments, options: ReadOptions) -> "Recording":
    """Record every ATen call that a GPU would run in the forward pass and, in training, in the backward pass.

    The options ``training``, ``dtype`` and ``amp`` apply. Raises `InputError` for a product of different floating-point
    types.
    """
    import torch

    recording = Recording(module, options.dtype)
    recording.hold([*module.parameters(), *module.buffers()])
    trained = [weight for weight in module.parameters() if options.training and weight.requires_grad]
    for weight in trained * OPTIMIZERS[OPTIMIZER].states:
        recording.allocator.allocate(tensor_info(weight, options.dtype).bytes)
    recording.persistent_bytes = recording.allocator.allocated
    recording.hold(inputs)
    if not options.training:
        module.requires_grad_(False)  # torch.matmul computes other products if an operand needs a gradient
    values = recording.routing.values.read_by_modules()
    with _recording_hooks(recording, trained), torch.set_grad_enabled(options.training), values:
        with dispatched_as_on_gpu(options.amp):
            result = module(*inputs.by_place, **inputs.by_name)
        if options.training:
            recording.calls = recording.backward
            losses = [tensor.float().sum() for tensor in tensors_in(result) if tensor.requires_grad]
            if not losses:
                raise InputError("the module's result needs no gradient; give trained weights, or leave out --training")
            with dispatched_as_on_gpu():  # checkpointed activations are computed again, as on a GPU
                torch.stack(losses).sum().backward()
    return recording


class Recording:
    """The calls of a pass, their memory, and the module of each call.

    In the forward pass this is the running module. In the backward pass it is the module that created the gradient's
    node in its forward call.
    """

    def __init__(self, module: "Module", dtype: str | None) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.dtype = dtype
        self.forward: list[Call] = []
        self.backward: list[Call] = []
        self.calls = self.forward  # the calls of the running pass
        self.ready: Counter[int] = Counter()  # index of a backward call → weights with a complete gradient after it
        self.allocator = Allocator()
        self.routing = Routing()
        self.persistent_bytes = 0  # weights and the optimizer's state
        self._storages = WeakIdKeyDictionary()  # storage → its block
        self._modules = {part: name for name, part in module.named_modules()}
        self._owners = {weight: name.rpartition(".")[0] for name, weight in module.named_parameters()}
        self._running: list[str] = []  # modules with an open forward call, the innermost last
        self._creators: dict[int, str] = {}  # number of an autograd node → the module that created it

    def hold(self, tensors: object) -> None:
        """Take a block for every new storage of the tensors, until the storage is freed; sparse ones take none."""
        import torch

        for tensor in tensors_in(tensors):
            storage = tensor.untyped_storage() if tensor.layout == torch.strided else None
            if storage is not None and storage not in self._storages:
                elements = storage.nbytes() // tensor.element_size()
                block = self.allocator.allocate(elements * DTYPES[tensor_info(tensor, self.dtype).dtype])
                self._storages[storage] = block
                weakref.finalize(storage, self.allocator.release, block)

    def enter(self, part: "Module", _: object) -> None:
        """Note that a module's forward call begins."""
        self._running.append(self._modules.get(part, ""))

    def leave(self, part: "Module", *_: object) -> None:
        """Note that a module's forward call ends; add the module's name to its error, if it failed."""
        path = self._running.pop()
        error = sys.exc_info()[1]  # torch calls this hook while it handles the module's error
        if error is not None and path and not hasattr(error, "__notes__"):
            error.add_note(f"layer {path} ({type(part).__name__})")

    def running_module(self) -> str:
        """Return the name of the module that a call belongs to."""
        import torch

        node: Any = torch._C._current_autograd_node()
        if node is None or self._running:  # a backward pass runs a module again to recompute activations
            path = self._running[-1] if self._running else ""
            latest = torch.autograd._get_sequence_nr() - 1  # pyright: ignore[reportPrivateImportUsage]
            self._creators.setdefault(latest, path)
            return path
        return self._owners.get(getattr(node, "variable", node)) or self._creators.get(node._sequence_nr(), "")

    def add(self, path: str, func: "OpOverload", arguments: Mapping[str, object], result: object) -> None:
        """Add a call of the module ``path``. Raises `InputError` for a product that torch would refuse."""
        import torch

        self.hold(result)
        results = [_abstract(value, self.dtype) for value in (result if isinstance(result, list | tuple) else [result])]
        outputs = tuple(value for value in results if isinstance(value, Tensor))
        if outputs and func.name().partition(".")[0].endswith("_"):
            outputs = (replace(outputs[0], buffer=IN_PLACE),)
        op = operator_name(func.name())
        values = {name: _abstract(value, self.dtype) for name, value in arguments.items()}
        # Autograd computes gradients without grad mode, and activations again with it.
        is_again = torch._C._current_autograd_node() is not None and torch.is_grad_enabled()
        name = (f"{path}.{op}" if path else op) + RECOMPUTED * is_again
        self.calls.append(Call(op, values, outputs, name))
        # Torch refuses a product of different types, but fake tensors accept it.
        types = sorted({tensor.dtype for tensor in self.calls[-1].tensors() if tensor.floating})
        refuse({"mixed": op in SAME_DTYPE_OPERATORS and len(types) > 1}, name=name, types=" and ".join(types))

    def complete(self, weight: Any) -> None:
        """Note that a weight's gradient is complete."""
        self.ready[len(self.calls) - 1] += weight.numel()
        self.hold(weight.grad)
        self.allocator.mark_gradient(self._storages[weight.grad.untyped_storage()])


@contextmanager
def _recording_hooks(recording: Recording, trained: "Sequence[torch.Tensor]") -> Iterator[None]:
    """Record modules, complete gradients and the calls that autograd dispatches, during the block."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        supports_higher_order_operators = True  # such as flex_attention

        def __torch_dispatch__(
            self, func: "OpOverload", types: object, args: Sequence[object] = (), kwargs: Any = None
        ) -> object:
            path = recording.running_module()
            result = recording.routing.call(func, args, kwargs or {})
            recording.add(path, func, _named_arguments(func, args, kwargs or {}), result)
            return result

    hooks = [
        register_module_forward_pre_hook(recording.enter),
        register_module_forward_hook(recording.leave, always_call=True),
        *(weight.register_post_accumulate_grad_hook(recording.complete) for weight in trained),
    ]
    try:
        with Recorder():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def tensors_in(values: object) -> "list[torch.Tensor]":
    """Return the tensors in nested lists, tuples and dicts."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def tensor_info(tensor: "torch.Tensor", dtype: str | None) -> Tensor:
    """Return the shape and type of a tensor; ``dtype`` replaces floating-point types. A sparse one has no shape.

    The tensor itself must not be kept: autograd would then copy it.
    """
    import torch

    floating, name = tensor.dtype.is_floating_point, str(tensor.dtype)
    refuse({"element_type": name not in TORCH_DTYPES}, dtype=name)
    kind = dtype if dtype and floating else TORCH_DTYPES[name]
    packed = 2 if "float4" in name else 1
    if tensor.layout != torch.strided:
        return Tensor(None, kind, floating)
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    shape = tuple(int(size) * (packed if step == 1 else 1) for size, step in sizes)
    settings = {"parameter": isinstance(tensor, torch.nn.Parameter), "values_per_byte": packed}
    return Tensor(shape, kind, floating, channels_last=memory_format(tensor) is not None, **settings)


def memory_format(tensor: "torch.Tensor") -> "torch.memory_format | None":
    """Return the memory format of images or volumes with innermost channels; None for any other tensor."""
    import torch

    nhwc_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    nhwc = nhwc_format is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=nhwc_format)
    return nhwc_format if nhwc else None


def _abstract(value: object, dtype: str | None) -> object:
    """Return an argument with shapes instead of tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return tensor_info(value, dtype)
    return [_abstract(inner, dtype) for inner in value] if isinstance(value, list | tuple) else value


def _named_arguments(func: "OpOverload", args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments by the names of the operator's schema, including defaults."""
    if not hasattr(func, "_schema"):  # a higher-order operator
        return {f"argument {index}": value for index, value in enumerate(args)}
    arguments = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return {**defaults, **{argument.name: value for argument, value in zip(arguments, args, strict=False)}, **kwargs}


class Balance(NamedTuple):
    """The values of a tensor that a router's choice among ``classes`` determines, under balanced routing.

    ``mean`` is the expected value of a mask or count, and None if the values are class numbers. A mask selects the
    class ``first``. ``is_per_class`` is True for counts, and masks of counts, with one value per class.
    """

    classes: int
    mean: float | None = None
    first: int = 0
    is_per_class: bool = False


class Routing:
    """The balances of the tensors of a pass. ``is_used`` is True if a size or value was derived from one."""

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.is_used = False
        self.values = KnownValues()
        self._balances = WeakIdKeyDictionary()  # storage → balance
        self._is_at_least = True  # the latest comparison asked for values from a bound on

    def balance(self, value: Any) -> Balance | None:
        """Return the balance of a tensor; None if it is unknown."""
        import torch

        has_storage = isinstance(value, torch.Tensor) and value.layout == torch.strided
        return self._balances.get(value.untyped_storage()) if has_storage else None

    def call(self, func: "OpOverload", args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Return the result of a call, and note the balance of the result."""
        import torch

        op = operator_name(func.name())
        answer = _ANSWERS.get(op)
        if op == "index" and (masks := [self.balance(each) for each in args[1]]) and any(masks):
            args = [args[0], self._indices(args[1])]
        balance = self.balance(args[0]) if answer and args else None
        if op == "_local_scalar_dense" and (value := self.values.item(args[0])) is not None:
            return value
        if answer and balance:
            self.is_used = True
            result: Any = answer(args[0], balance)
        elif op in _SHAPES and (found := _SHAPES[op](*args, **kwargs)) is not None:
            self.is_used |= op == "_grouped_mm"
            result = found
        elif op == "equal" and (args[0].dim(), args[0].dtype) == (args[1].dim(), args[1].dtype) == (0, torch.bool):
            result = self._is_at_least  # a check of torch's own: values are not below a bound
        else:
            result = func(*args, **kwargs)
            self.values.note(func, args, kwargs, result)
        self._is_at_least = op == "ge" if op in ("ge", "lt") else self._is_at_least
        if (derived := self._derived(op, args, result)) is not None:
            results = result if isinstance(result, tuple | list) else (result,)
            self._balances[results[-1 if op in _CHOICE_AXES else 0].untyped_storage()] = derived
        return result

    def _indices(self, indices: "Sequence[torch.Tensor | None]") -> "list[torch.Tensor | None]":
        """Return the indices, with each mask replaced by the rows that it selects."""
        import torch

        found: list[torch.Tensor | None] = []
        for each in indices:
            balance = self.balance(each)
            if each is not None and balance and each.dtype == torch.bool:
                self.is_used = True
                found.extend(_nonzero(each, balance).unbind(1))
            else:
                found.append(each)
        return found

    def _derived(self, op: str, args: Sequence[Any], result: Any) -> Balance | None:
        """Return the balance of a result; None if it does not follow from the arguments."""
        source = next((found for each in args if (found := self.balance(each))), None)
        if op in ("topk", "argmax") or (op == "max" and isinstance(result, tuple | list)):
            given = args[_CHOICE_AXES[op] :]
            axis = given[0] if given else -1 if op == "topk" else None
            return Balance(args[0].shape[axis]) if isinstance(axis, int) and args[0].dim() else None
        if source is None:
            return None
        classes, mean = source.classes, source.mean
        if mean is None:  # class numbers
            number = args[1] if len(args) > 1 and isinstance(args[1], int) else 0
            means = {
                "eq": 1 / classes,
                "ne": 1 - 1 / classes,
                "scatter": args[2].shape[number] / classes if op == "scatter" else 0.0,
                "bincount": args[0].numel() / classes,
                "histc": args[0].numel() / classes,
            }
            if op in means:
                return Balance(classes, means[op], number if op == "eq" else 0, op in ("bincount", "histc"))
        elif op == "nonzero":
            return Balance(classes) if source.is_per_class else None
        elif op in ("gt", "ne") and args[1] == 0:
            return source._replace(mean=min(1.0, mean))
        elif op in ("sum", "any"):
            total = mean * args[0].numel() / max(result.numel(), 1)
            return Balance(classes, min(1.0, total) if op == "any" else total, source.first, op == "sum")
        return source if op in _KEEPING and source is self.balance(args[0]) else None


def _nonzero(mask: "torch.Tensor", balance: Balance) -> "torch.Tensor":
    """Return the indices of a mask's elements under balanced routing.

    The masks of all classes together select every choice once, even if a class gets less than one.
    """
    import torch

    expected, position = (balance.mean or 0.0) * mask.numel(), 0
    if balance.is_per_class:
        expected = min(1.0, balance.mean or 0.0) * min(mask.numel(), balance.classes)
    else:
        position = balance.first or mask.storage_offset() // (mask.numel() if 1 in mask.stride() else 1)
    count = _share(position, expected)
    return mask.new_empty((count, mask.dim()), dtype=torch.int64)


def _number(value: "torch.Tensor", balance: Balance) -> int | bool:
    """Return one value under balanced routing: a class, a mask's value or a count.

    Chosen classes are as far apart as possible, and the counts of all classes have the right sum.
    """
    import torch

    position, classes = value.storage_offset(), balance.classes
    if balance.mean is None:
        chosen = min(value.untyped_storage().nbytes() // value.element_size(), classes)
        return ceil((position % chosen + 1) * classes / chosen) - 1
    count = _share(balance.first or position, balance.mean)
    return count > 0 if value.dtype == torch.bool else count


def _share(position: int, mean: float) -> int:
    """Return the whole number at ``position`` of a sequence with this mean."""
    before, after = (floor(number * mean + ROUNDING) for number in (position, position + 1))
    return after - before


def _grouped_mm(
    left: "torch.Tensor", right: "torch.Tensor", offs: "torch.Tensor | None" = None, *_: Any, **__: Any
) -> "torch.Tensor":
    """Return the result of a grouped product of any type; torch refuses other types than bf16 without memory."""
    groups = [offs.numel()] if offs is not None and left.dim() == right.dim() == 2 else []
    groups = [left.shape[0]] if left.dim() == right.dim() == 3 else groups
    return left.new_empty((*groups, left.shape[-2], right.shape[-1]))


def _ctc_loss(
    log_probs: "torch.Tensor", targets: "torch.Tensor", _: Any, target_lengths: Any, *__: Any, **___: Any
) -> "tuple[torch.Tensor, ...]":
    """Return the losses of the samples, and the logarithms of all prefixes of the labels with blanks between."""
    steps, batch = log_probs.shape[:2]
    labels = max(target_lengths, default=0) if isinstance(target_lengths, list | tuple) else targets.shape[-1]
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * labels + 1))


def _recurrent_gradients(values: Any, weight: Any, stride: int, buffer: Any, hx: Any, cx: Any, *others: Any) -> Any:
    """Return gradients with the shapes of their tensors; the last argument says which are requested."""
    gradients = [each if each is None else each.new_empty(each.shape) for each in (values, hx, cx)]
    return *gradients, [each.new_empty(each.shape) for each in weight] if others[-1][3] else []


def _gru_gradients(grad_hy: "torch.Tensor", workspace: object, has_bias: bool) -> "tuple[torch.Tensor | None, ...]":
    """Return the gradients of a cell's two products, of its state, and of its biases."""
    (batch, hidden), new = grad_hy.shape, grad_hy.new_empty
    biases = [new((3 * hidden,)) if has_bias else None for _ in range(2)]
    return new((batch, 3 * hidden)), new((batch, 3 * hidden)), new(grad_hy.shape), *biases


_SHAPES: "dict[str, Callable[..., Any]]" = {
    "_grouped_mm": _grouped_mm,
    "_cudnn_rnn_backward": _recurrent_gradients,
    "_thnn_fused_gru_cell": lambda gates, hidden_gates, hx, *_, **__: (
        hx.new_empty(hx.shape),
        hx.new_empty((hx.shape[0], 5 * hx.shape[1])),
    ),
    "_thnn_fused_gru_cell_backward": _gru_gradients,
    "_ctc_loss": _ctc_loss,
    "_ctc_loss_backward": lambda _, log_probs, *__, **___: log_probs.new_empty(log_probs.shape),
    "linalg_lstsq": lambda left, right, *_, **__: (
        right.new_empty((*right.shape[:-2], left.shape[-1], right.shape[-1])),
        *(right.new_empty(0) for _ in range(3)),
    ),
    "while_loop": lambda _, __, carried, *___: tuple(carried),
    "bincount": lambda numbers, _=None, minlength=0: numbers.new_empty((minlength,)) if minlength else None,
}
"""Operator that torch does not run without memory → its result, or None if that depends on values."""
_ANSWERS: "dict[str, Callable[[torch.Tensor, Balance], object]]" = {
    "nonzero": _nonzero,
    "_local_scalar_dense": _number,
    "bincount": lambda numbers, balance: numbers.new_empty((balance.classes,)),
}
"""Operator with a result that depends on values → its answer under balanced routing."""
