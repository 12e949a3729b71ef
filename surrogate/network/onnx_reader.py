"""ONNX graph → `Network`: every node handled, ignored on purpose, or named as unsupported."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from surrogate.features.errors import InputError
from surrogate.network.call import TABLE, Call, Shape, Tensor, argument_name
from surrogate.network.calls import RULES, is_view
from surrogate.network.memory import network_of
from surrogate.network.network import Network
from surrogate.network.onnx_file import load_model, with_shapes

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto

DTYPES = {int(code): dtype for code, dtype in TABLE["types"]["onnx"].items()}
"""TensorProto's element type → ours; integers stand as the type of their width."""
FLOATS = (1, 10, 11, 16)
_VALUES: dict[int, "Callable[[AttributeProto], object]"] = {
    2: lambda attribute: attribute.i,
    7: lambda attribute: list(attribute.ints),
    3: lambda attribute: attribute.s.decode("utf-8", "replace"),
}
"""Type of an attribute (AttributeProto's INT, INTS and STRING; others are not asked for) → how its value is read."""
CONSTANT_FOLDED = "(computed from constants)"
"""An operator that is ignored (`calls.toml`)."""
_ATTRIBUTES: Mapping[str, str] = TABLE["onnx_attributes"]
"""Attributes whose names differ from those of `surrogate.network.call`."""


def read_onnx(
    path: str | Path,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    dtype: str | None = None,
    training: bool = False,
) -> Network:
    """The network in an ONNX file; weights are not needed and external data is not opened.

    ``batch`` replaces the first size of every input, ``dims`` other symbolic sizes, ``dtype`` the floating-point type;
    under ``training`` dropout is no view. The network is the forward pass either way (see `training.iteration`).
    Raises `InputError` in one line for a file that is damaged, empty, too large or without shapes.
    """
    path = Path(path)
    model = load_model(path)
    try:
        weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        weights |= {tensor.values.name: tensor.values.data_type for tensor in model.graph.sparse_initializer}
        batch = with_shapes(model, path, batch, dims or {})
        tensors = _tensors(model.graph, weights, dtype)
        stored = list(tensors.values())
        return network_of(path, stored, list(_nodes(model.graph, tensors, training)), batch, training=training)
    except (TypeError, ValueError) as error:  # protobuf hands over as bytes what is no UTF-8
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged ({error}); export it again") from None


def _tensors(graph: "GraphProto", weights: Mapping[str, int], dtype: str | None) -> dict[str, Tensor]:
    """Name → what is known of it; names without a known type are left out."""
    tensors = {"": Tensor()}
    for weight in graph.initializer:
        tensors[weight.name] = _tensor(tuple(weight.dims), weight.data_type, dtype)
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        sizes = tuple(dim.dim_value for dim in tensor.shape.dim)
        known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
        tensors[info.name] = _tensor(sizes if known else None, tensor.elem_type, dtype)
    tensors = {name: replace(tensor, buffer=name) for name, tensor in tensors.items()}
    for name, kind in weights.items():
        known = tensors.get(name, Tensor())
        many = prod(known.shape or (1,)) > 1  # a single number is an attribute in disguise
        tensors[name] = replace(known, constant=True, parameter=many and kind in FLOATS)
    return tensors


def _tensor(shape: Shape | None, code: int, wanted: str | None) -> Tensor:
    """A tensor by TensorProto's element type, a floating-point one in the ``wanted`` type."""
    floating = code in FLOATS
    return Tensor(shape, wanted if wanted and floating else DTYPES.get(code, "fp32"), floating)


def _nodes(graph: "GraphProto", tensors: dict[str, Tensor], training: bool) -> Iterator[Call]:
    """Every node as a call, `CONSTANT_FOLDED` where it computes something from constants alone.

    What is constant and what is trained is passed on from inputs to outputs.
    """
    for number, proto in enumerate(graph.node):
        inputs = tuple(tensors.get(name, Tensor()) for name in proto.input)
        constant = all(t.constant for t, name in zip(inputs, proto.input, strict=True) if name)
        # The bodies of If, Loop and the like (attributes of the types GRAPH and GRAPHS) see more than their inputs.
        constant = constant and not any(attribute.type in (5, 10) for attribute in proto.attribute)
        constant = constant or proto.op_type in ("Shape", "Size")
        trained = any(t.trained or (t.parameter and not constant) for t in inputs)
        call = _call(proto, inputs, proto.name or f"{proto.op_type}_{number}")
        view = inputs and is_view(call, training=training)
        for name in proto.output:
            known = tensors.get(name, Tensor())
            parameter = constant and any(t.parameter for t in inputs)
            buffer = inputs[0].buffer if view else name
            tensors[name] = replace(known, constant=constant, trained=trained, parameter=parameter, buffer=buffer)
        outputs = tuple(tensors[name] for name in proto.output if name)
        yield replace(call, outputs=outputs, op=CONSTANT_FOLDED if constant and call.op in RULES else call.op)


def _call(proto: "NodeProto", inputs: tuple[Tensor, ...], name: str) -> Call:
    """A node as a call: inputs and attributes by the names that rules ask for; other domains stay in the name."""
    op = proto.op_type
    is_standard = proto.domain in ("", "ai.onnx") or (proto.domain == "com.microsoft" and op in RULES)
    arguments: dict[str, object] = {
        argument_name(op, position): tensor for position, tensor in enumerate(inputs) if proto.input[position]
    }
    for attribute in proto.attribute:
        if attribute.type in _VALUES:
            key = _ATTRIBUTES.get(attribute.name) or str(attribute.name)
            arguments[key] = _VALUES[attribute.type](attribute)
    if "kernel_size" in arguments:
        arguments.setdefault("stride", [1])  # ATen's pooling takes the window in its place
    return Call(op if is_standard else f"{proto.domain}.{op}", arguments, name=name)
