"""`Call`: one call of an ATen operator or one node of an ONNX graph, with the known values of its arguments.

Every reader fills the same object. A recorded module and an exported program know all arguments by name. An ONNX node
knows its inputs by position and its attributes by name; `onnx_file` translates both to the names used here. A trace
knows shapes, element types and at best the values of scalar arguments by position
(`surrogate.trace.calls.recorded_call`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from surrogate.features import DTYPES, INPUT, WEIGHT, read_toml
from surrogate.features.families import NetworkProblem
from surrogate.network.network import Layer

Shape = tuple[int, ...]


class UnsupportedError(Exception):
    """The problem of a call cannot be derived; the text names the missing or wrong part."""


def require(fits: object, reason: str) -> None:
    """Raise `UnsupportedError` with the ``reason`` unless the arguments of a call fit."""
    if not fits:
        raise UnsupportedError(reason)


class Unknown(Enum):
    """The value of an argument that the call had but that was not recorded; a missing key means the default value."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN
IN_PLACE = "in place"
"""The `Tensor.buffer` of a recorded result that has the memory of the first argument."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument or result.

    Parameters
    ----------
    shape
        Its sizes; None if unknown.
    dtype
        Its element type; an integer type is given as the type of the same width.
    floating
        False for integers.
    constant
        Whether it is stored in the model or computed from stored tensors alone.
    needs_gradient
        Whether a gradient flows into it.
    parameter
        Whether it is a weight that training changes.
    buffer
        Name of its memory; a view has the same name as its source.
    channels_last
        Whether its channels are innermost in memory; False if it has only one pixel or one channel.
    values_per_byte
        Above 1 for types of less than 8 bits, which have the type int8 here.
    """

    shape: Shape | None = None
    dtype: str = "fp32"
    floating: bool = True
    constant: bool = False
    needs_gradient: bool = False
    parameter: bool = False
    buffer: str = ""
    channels_last: bool = False
    values_per_byte: int = 1

    @property
    def bytes(self) -> int:
        """Its bytes; 0 if its shape is unknown."""
        return -(-prod(self.shape) * DTYPES[self.dtype] // self.values_per_byte) if self.shape is not None else 0

    @property
    def is_nchw(self) -> bool:
        """True for images or filters with innermost pixels; a kernel for NHWC needs a layout transform of them."""
        return not self.channels_last and self.shape is not None and min(self.shape[1], prod(self.shape[2:])) > 1


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``op`` without namespace and overload, ``arguments`` by name in order, and its results if known.

    An argument is a `Tensor`, a list of them, a number, a list of numbers, a text, None, or `UNKNOWN`. Missing
    arguments have their default values. ``name`` is the name of the layer if the source has one.
    """

    op: str
    arguments: Mapping[str, object]
    outputs: tuple[Tensor, ...] = ()
    name: str = ""

    def tensor(self, *names: str) -> Tensor:
        """Return the first of these arguments that is a tensor; without names the first tensor of the call.

        Raises `UnsupportedError` if there is none, or if its shape is unknown.
        """
        for value in [self.arguments.get(name) for name in names] if names else self.tensors():
            if isinstance(value, Tensor):
                if value.shape is None:
                    raise UnsupportedError("shape unknown")
                return value
        raise UnsupportedError(f"no {names[0]}" if names else "shape unknown")

    def shape(self, *names: str) -> Shape:
        """Return the shape of `tensor`."""
        return self.tensor(*names).shape or ()

    def tensors(self) -> list[Tensor]:
        """Return all tensors among the arguments in order, including those in lists."""
        groups = (value if isinstance(value, list | tuple) else [value] for value in self.arguments.values())
        return [value for group in groups for value in group if isinstance(value, Tensor)]

    @property
    def output_shape(self) -> Shape | None:
        """The shape of the first result; None if unknown."""
        return self.outputs[0].shape if self.outputs else None

    def required_output_shape(self) -> Shape:
        """Return the shape of the first result. Raises `UnsupportedError` if it is unknown."""
        if self.output_shape is None:
            raise UnsupportedError("shape unknown")
        return self.output_shape

    def value(self, name: str, default: object = None) -> object:
        """Return an argument that is no tensor; None gives ``default``. Raises `UnsupportedError` if unrecorded."""
        value = self.arguments.get(name)
        if value is UNKNOWN:
            raise UnsupportedError(f"{name} unknown")
        return default if value is None else value

    def number(self, name: str, default: int) -> int:
        """Return an integer argument. Raises `UnsupportedError` for any other value."""
        value = self.value(name, default)
        if not isinstance(value, int):
            raise UnsupportedError(f"{name} unknown")
        return int(value)

    def numbers(self, name: str, count: int, default: int) -> Shape:
        """Return ``count`` integers; a single one is repeated. Raises `UnsupportedError` for any other value."""
        value = self.value(name, default)
        values: Sequence[object] = value if isinstance(value, list | tuple) else (value,)
        values = values or (default,)
        numbers = tuple(number for number in values if isinstance(number, int) and not isinstance(number, bool))
        if len(values) == 1:
            numbers *= count
        require(len(numbers) == count and len(values) in (1, count), f"{name} unknown")
        return numbers

    def is_recorded(self, *names: str) -> bool:
        """Return False if one of these arguments is `UNKNOWN`, else True."""
        return all(self.arguments.get(name) is not UNKNOWN for name in names)

    @property
    def dtype(self) -> str:
        """The element type of the arithmetic.

        It is the half-precision type among the floating-point tensors, else the wider of the first argument's and the
        first result's. Tensors without dimensions (numbers), indices and masks count only if there are no others.
        """
        tensors = self.tensors() or list(self.outputs)
        floats = [tensor.dtype for tensor in tensors if tensor.floating and tensor.shape != ()]
        half = [dtype for dtype in floats if dtype in ("bf16", "fp16")]
        others = [tensor.dtype for tensor in (*tensors[:1], *self.outputs[:1])]
        return next(iter([*half, *floats]), None) or max(others, key=DTYPES.__getitem__, default="fp32")

    def layer(self, problem: NetworkProblem, *, part: str = "", data: str = "", weights: Sequence[str] = ()) -> Layer:
        """Return a layer of this call.

        A gradient may flow into ``data`` (by default any tensor that is no parameter, or the first one if there are
        ``weights``) and into the first of ``weights``. The layer trains the parameters among ``weights``. Without
        ``weights`` and ``part`` it trains all parameters of the call.
        """
        tensors = self.tensors()
        inputs = (tensor for tensor in tensors if not tensor.parameter and (tensor.needs_gradient or weights))
        first = next(inputs, None)
        source = self.arguments.get(data) if data else first
        weight = self.arguments.get(weights[0]) if weights else None
        gradients = (INPUT,) if isinstance(source, Tensor) and source.needs_gradient else ()
        if isinstance(weight, Tensor) and (weight.parameter or weight.needs_gradient):
            gradients = (*gradients, WEIGHT)
        candidates = [self.arguments.get(name) for name in weights] if weights or part else tensors
        parameters = sum(prod(t.shape or ()) for t in candidates if isinstance(t, Tensor) and t.parameter)
        suffix = f".{part}" if part else ""
        return Layer(f"{self.name or self.op}{suffix}", f"{self.op}{suffix}", problem, gradients, parameters)


DISPATCH = read_toml(__file__, "dispatch.toml")
"""The table of operators; the file explains its sections."""
PRODUCT_TYPES: Mapping[str, str] = DISPATCH["product_types"]
"""Product of 8-bit or packed values → the element type of its kernel."""
LOOKUP_BACKWARD: Mapping[str, str] = {lookup["forward"]: lookup["backward"] for lookup in DISPATCH["lookups"]}
"""Lookup in several embedding tables → the autograd node that updates the tables.

The profiler records only the gradient among the arguments of that node.
"""
SIGNATURES: Mapping[str, Sequence[str]] = {
    op: names.split() for ops, names in DISPATCH["signatures"].items() for op in ops.split()
} | {lookup[way]: lookup["arguments"].split() for lookup in DISPATCH["lookups"] for way in ("forward", "backward")}
"""Operator → its arguments in order, as far as rules use them by name."""


def operator_name(target: str) -> str:
    """Return ``add`` for ``aten::add_.Tensor``, ``torch.ops.aten.add_.Tensor`` or ``aten.add_.Tensor``."""
    name = target.removeprefix("torch.ops.").replace("::", ".")
    namespace, _, rest = name.partition(".")
    operator = rest.split(".")[0] if namespace == "aten" else name
    return operator.rstrip("_") if not operator.startswith("__") else operator


def argument_name(op: str, position: int) -> str:
    """Return the name of an operator's argument, or its position as text if no rule uses its name."""
    names = SIGNATURES.get(op, [])
    return names[position] if position < len(names) else f"argument {position + 1}"
