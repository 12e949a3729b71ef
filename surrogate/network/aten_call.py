"""`Call`: one call of an ATen operator or one node of an ONNX graph, with what is known of its arguments.

Every reader fills the same object: a recorded module and an exported program know all arguments by name, an ONNX node
its inputs by place and its attributes by name (`onnx_reader` gives both the names used here), and a trace knows shapes,
element types and at best the values of scalar arguments by place (`recorded_call`).
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path

from surrogate.features.families import NetworkProblem
from surrogate.features.problem import INPUT, WEIGHT
from surrogate.network.network import Layer

Shape = tuple[int, ...]


class UnsupportedError(Exception):
    """The work of a call cannot be derived; the text names what is missing or does not fit."""


class Unknown(Enum):
    """The value of an argument that the call had and its record does not say; a missing key is the default."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Tensor:
    """``shape`` None: unknown. ``dtype`` of whole numbers: the type of their width, ``floating`` False.

    ``constant``: stored in the model or computed from what is. ``trained``: a gradient flows into it. ``parameter``: a
    weight that training changes. ``channels_last``: its channels lie innermost, and not because it has one pixel or one
    channel. ``buffer`` names the memory that it lies in, a view's that of its source.
    """

    shape: Shape | None = None
    dtype: str = "fp32"
    floating: bool = True
    constant: bool = False
    trained: bool = False
    parameter: bool = False
    buffer: str = ""
    channels_last: bool = False

    @property
    def is_nchw(self) -> bool:
        """True for images or filters whose pixels lie innermost, and which a kernel for the other order needs moved."""
        return not self.channels_last and self.shape is not None and min(self.shape[1], prod(self.shape[2:])) > 1


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``op`` without namespace and overload, ``arguments`` by name in order, its results as far as known.

    An argument is a `Tensor`, a list of them, a number, a list of numbers, a text, None, or `UNKNOWN`; those that are
    not there have their defaults. ``name`` is the layer's name where the source has one.
    """

    op: str
    arguments: Mapping[str, object]
    outputs: tuple[Tensor, ...] = ()
    name: str = ""

    def tensor(self, *names: str) -> Tensor:
        """The first of these arguments that is a tensor (without names: the first tensor of all).

        Raises `UnsupportedError` where there is none, or its shape is unknown.
        """
        values = [self.arguments.get(name) for name in names] if names else self.tensors()
        for value in values:
            if isinstance(value, Tensor):
                if value.shape is None:
                    raise UnsupportedError("shape unknown")
                return value
        raise UnsupportedError(f"no {names[0]}" if names else "shape unknown")

    def shape(self, *names: str) -> Shape:
        """The shape of `tensor`."""
        return self.tensor(*names).shape or ()

    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, in order, lists opened."""
        values = [
            inner
            for value in self.arguments.values()
            for inner in (value if isinstance(value, list | tuple) else [value])
        ]
        return [value for value in values if isinstance(value, Tensor)]

    @property
    def output(self) -> Shape | None:
        """The shape of the first result; None where it is unknown."""
        return self.outputs[0].shape if self.outputs else None

    def result(self) -> Shape:
        """The same. Raises `UnsupportedError` where it is unknown."""
        if self.output is None:
            raise UnsupportedError("shape unknown")
        return self.output

    def value(self, name: str, default: object = None) -> object:
        """An argument that is no tensor; ``default`` for none. Raises `UnsupportedError` where it is not recorded."""
        value = self.arguments.get(name)
        if value is UNKNOWN:
            raise UnsupportedError(f"{name} unknown")
        return default if value is None else value

    def number(self, name: str, default: int) -> int:
        """A whole number. Raises `UnsupportedError` for anything else."""
        value = self.value(name, default)
        if not isinstance(value, int):
            raise UnsupportedError(f"{name} unknown")
        return int(value)

    def numbers(self, name: str, count: int, default: int) -> Shape:
        """``count`` whole numbers; one stands for all. Raises `UnsupportedError` for anything else."""
        value = self.value(name, default)
        given: Sequence[object] = value if isinstance(value, list | tuple) else (value,)
        given = given or (default,)
        numbers = tuple(number for number in given if isinstance(number, int) and not isinstance(number, bool))
        if len(given) == 1:
            numbers *= count
        if len(numbers) != count or len(given) not in (1, count):
            raise UnsupportedError(f"{name} unknown")
        return numbers

    def knows(self, *names: str) -> bool:
        """True where none of these arguments is `UNKNOWN`."""
        return all(self.arguments.get(name) is not UNKNOWN for name in names)

    @property
    def dtype(self) -> str:
        """The arithmetic's element type: the half-precision one among the floating-point tensors, else the first.

        Numbers passed as tensors without dimensions do not count beside others, nor do indices and masks.
        """
        tensors = self.tensors() or list(self.outputs)
        floats = [tensor.dtype for tensor in tensors if tensor.floating and tensor.shape != ()]
        half = [dtype for dtype in floats if dtype in ("bf16", "fp16")]
        return next(iter([*half, *floats, *(tensor.dtype for tensor in tensors)]), "fp32")

    def layer(self, work: NetworkProblem, *, part: str = "", data: str = "", weights: Sequence[str] = ()) -> Layer:
        """A layer of this call.

        A gradient may flow into ``data`` (the first tensor that is no parameter, where not given) and the first of
        ``weights``; the layer trains the parameters among ``weights``, or, where those are not given and it has no
        ``part``, all of the call's.
        """
        tensors = self.tensors()
        first = next((tensor for tensor in tensors if not tensor.parameter), None)
        source = self.arguments.get(data) if data else first
        trained = self.arguments.get(weights[0]) if weights else None
        gradients = (INPUT,) if isinstance(source, Tensor) and source.trained else ()
        if isinstance(trained, Tensor) and (trained.parameter or trained.trained):
            gradients = (*gradients, WEIGHT)
        held = [self.arguments.get(name) for name in weights] if weights or part else tensors
        parameters = sum(prod(t.shape or ()) for t in held if isinstance(t, Tensor) and t.parameter)
        suffix = f".{part}" if part else ""
        return Layer(f"{self.name or self.op}{suffix}", f"{self.op}{suffix}", work, gradients, parameters)


DISPATCH_TABLE = tomllib.loads(Path(__file__).with_name("dispatch.toml").read_text(encoding="utf-8"))
"""What is known of operators; the file says what its sections are."""
LOOKUP_BACKWARD: Mapping[str, str] = {lookup["forward"]: lookup["backward"] for lookup in DISPATCH_TABLE["lookups"]}
"""Lookup in several embedding tables → the autograd node that updates them, which the profiler gives the gradient
alone."""
SIGNATURES: Mapping[str, Sequence[str]] = {
    op: names.split() for ops, names in DISPATCH_TABLE["signatures"].items() for op in ops.split()
} | {
    lookup[way]: lookup["arguments"].split() for lookup in DISPATCH_TABLE["lookups"] for way in ("forward", "backward")
}
"""Operator → its arguments in order, as far as rules ask for them by name."""

_TYPES: Mapping[str, str] = DISPATCH_TABLE["types"]["profiler"]
_WHOLE_TYPES: Mapping[str, str] = DISPATCH_TABLE["types"]["profiler_whole"]


def operator_name(target: str) -> str:
    """``aten::add_.Tensor``, ``torch.ops.aten.add_.Tensor`` or ``aten.add_.Tensor`` → ``add``."""
    name = target.removeprefix("torch.ops.").replace("::", ".")
    namespace, _, rest = name.partition(".")
    operator = rest.split(".")[0] if namespace == "aten" else name
    return operator.rstrip("_") if not operator.startswith("__") else operator


def argument_name(op: str, position: int) -> str:
    """The name of an operator's argument, a number in words where no rule asks for it."""
    names = SIGNATURES.get(op, [])
    return names[position] if position < len(names) else f"argument {position + 1}"


def recorded_call(
    name: str,
    shapes: Sequence[object],
    types: Sequence[str] = (),
    values: Sequence[str] = (),
    output: Shape | None = None,
) -> Call:
    """The call of an operator (``aten::addmm``) as a profiler records it, argument by argument.

    ``shapes`` holds () for what is no tensor and shapes within a tuple for a list of tensors; ``types`` are the
    profiler's words ("float", "c10::Half", "Scalar", …; float where there are none); ``values`` are the scalar
    arguments as text, "" for tensors and what was not recorded. Raises `UnsupportedError` for a tensor of a type that
    has no rate here.
    """
    op = operator_name(name)
    count = max(len(shapes), len(values), len(SIGNATURES.get(op, [])))
    arguments = {
        argument_name(op, position): _argument(
            shapes[position] if position < len(shapes) else (),
            types[position] if position < len(types) else "",
            values[position] if position < len(values) else "",
        )
        for position in range(count)
    }
    return Call(op, arguments, () if output is None else (Tensor(output),), name)


def _argument(shape: object, kind: str, value: str) -> object:
    """A tensor by its sizes and the profiler's word for its type, a list of them, or a value as text."""
    if isinstance(shape, tuple) and shape and all(isinstance(inner, tuple) for inner in shape):
        element = next((name for name in _TYPES if f"({name})" in kind), "float")
        return [_argument(inner, element, "") for inner in shape]
    dtype = _TYPES.get(kind) or _WHOLE_TYPES.get(kind)
    if dtype is None and shape:
        if kind:
            raise UnsupportedError(f"element type {kind}")
        dtype = "fp32"
    if dtype is None:
        return _parsed(value)
    sizes = tuple(size for size in shape if isinstance(size, int) and size >= 0) if isinstance(shape, tuple) else None
    return Tensor(sizes if sizes == shape else None, dtype, floating=kind not in _WHOLE_TYPES)


def _parsed(text: str) -> object:
    """A number, a flag or a list as a trace writes it (``[1, 1]``, ``True``); `UNKNOWN` for anything else."""
    try:
        return json.loads(text.lower())
    except (ValueError, RecursionError):
        return UNKNOWN
