"""ONNX graph → `Network`: every node handled, ignored on purpose, or named as unsupported."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError
from surrogate.network.call import Call, Tensor, argument_name
from surrogate.network.calls import RULES, add_call, is_view
from surrogate.network.memory import held_by
from surrogate.network.network import Network, Tally
from surrogate.network.onnx_file import load_model, one_line, with_shapes

DTYPE_OF = {1: "fp32", 10: "fp16", 11: "fp64", 16: "bf16", 2: "int8", 3: "int8", 9: "int8", 5: "fp16"}
"""TensorProto element type → dtype; types that are not there count by their width (int64: 8 bytes)."""
WIDE = {7: "fp64", 13: "fp64", 6: "fp32", 12: "fp32"}
FLOATS = (1, 10, 11, 16)
_INT, _STRING, _INTS = 2, 3, 7  # AttributeProto's types
CONSTANT_FOLDED = "(computed from constants)"
_ATTRIBUTES = {
    "strides": "stride", "dilations": "dilation", "pads": "padding", "group": "groups", "kernel_shape": "kernel_size",
    "axis": "dim", "training_mode": "training",
}  # fmt: skip
"""Attributes whose names differ from those of `surrogate.network.call`."""


def read_onnx(
    path: str | Path,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    dtype: str | None = None,
    training: bool = False,
    model: Any = None,
) -> Network:
    """The network in an ONNX file; weights are not needed and external data is not opened.

    ``batch`` replaces the first size of every input, ``dims`` other symbolic sizes, ``dtype`` the floating-point type;
    under ``training`` dropout is no view. The network is the forward pass either way (see `training.iteration`).
    A ``model`` (``ModelProto``, which is changed) stands in for the file, and ``path`` only names it. Raises
    `InputError` in one line for a file that is damaged, empty, too large or without shapes.
    """
    path = Path(path)
    model = load_model(path) if model is None else model
    try:
        network = _network(model, path, batch, dims or {}, dtype, training)
    except (TypeError, ValueError) as error:  # protobuf hands over as bytes what is no UTF-8
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged ({one_line(error)}); export it again") from None
    if not network.layers and not network.unsupported:
        raise InputError(f"{path}: no node of the ONNX model costs time (only views and constants)")
    return network


def _network(
    model: Any, path: Path, batch: int | None, dims: Mapping[str, int], dtype: str | None, training: bool
) -> Network:
    weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    weights |= {tensor.values.name: tensor.values.data_type for tensor in model.graph.sparse_initializer}
    batch = with_shapes(model, path, batch, dims)
    tensors = _tensors(model.graph, weights, dtype)
    tally = Tally()
    stored = list(tensors.values())
    calls = list(_nodes(model.graph, tensors, training))
    memory: dict[str, Any] = held_by(stored, [call for call, _ in calls], training=training)
    for call, constant in calls:
        if constant and call.op in RULES:
            tally.ignored[CONSTANT_FOLDED] += 1
        else:
            add_call(call, tally, training=training)
    return tally.network(path.stem, batch, **memory)


def _tensors(graph: Any, weights: Mapping[str, int], dtype: str | None) -> dict[str, Tensor]:
    """Name → what is known of it; names without a known type are left out."""
    tensors = {"": Tensor()}
    for weight in graph.initializer:
        tensors[weight.name] = Tensor(
            tuple(weight.dims), _dtype(weight.data_type, dtype), floating=weight.data_type in FLOATS
        )
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        sizes = tuple(dim.dim_value for dim in tensor.shape.dim)
        known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
        tensors[info.name] = Tensor(
            sizes if known else None, _dtype(tensor.elem_type, dtype), floating=tensor.elem_type in FLOATS
        )
    tensors = {name: replace(tensor, buffer=name) for name, tensor in tensors.items()}
    for name, kind in weights.items():
        known = tensors.get(name, Tensor())
        many = prod(known.shape or (1,)) > 1  # a single number is an attribute in disguise
        tensors[name] = replace(known, constant=True, parameter=many and kind in FLOATS)
    return tensors


def _dtype(kind: int, wanted: str | None) -> str:
    return wanted if wanted and kind in FLOATS else DTYPE_OF.get(kind) or WIDE.get(kind, "fp32")


def _nodes(graph: Any, tensors: dict[str, Tensor], training: bool) -> Iterator[tuple[Call, bool]]:
    """Every node as a call, and whether it is computed from constants alone.

    What is constant and what is trained is passed on from inputs to outputs.
    """
    for number, proto in enumerate(graph.node):
        inputs = tuple(tensors.get(name, Tensor()) for name in proto.input)
        constant = all(t.constant for t, name in zip(inputs, proto.input, strict=True) if name)
        constant = proto.op_type in ("Shape", "Size") or (constant and not _holds_graph(proto))
        trained = any(t.trained or (t.parameter and not constant) for t in inputs)
        call = _call(proto, inputs, proto.name or f"{proto.op_type}_{number}")
        view = inputs and is_view(call, training=training)
        for name in proto.output:
            known = tensors.get(name, Tensor())
            parameter = constant and any(t.parameter for t in inputs)
            buffer = inputs[0].buffer if view else name
            tensors[name] = replace(known, constant=constant, trained=trained, parameter=parameter, buffer=buffer)
        outputs = tuple(tensors[name] for name in proto.output if name)
        yield replace(call, outputs=outputs), constant


def _call(proto: Any, inputs: tuple[Tensor, ...], name: str) -> Call:
    """A node as a call: inputs and attributes by the names that rules ask for; other domains stay in the name."""
    op = proto.op_type
    is_standard = proto.domain in ("", "ai.onnx") or (proto.domain == "com.microsoft" and op in RULES)
    arguments: dict[str, Any] = {
        argument_name(op, position): tensor for position, tensor in enumerate(inputs) if proto.input[position]
    }
    for attribute in proto.attribute:
        key = _ATTRIBUTES.get(attribute.name) or str(attribute.name)
        if attribute.type == _INT:
            arguments[key] = attribute.i
        elif attribute.type == _INTS:
            arguments[key] = list(attribute.ints)
        elif attribute.type == _STRING:
            arguments[key] = attribute.s.decode("utf-8", "replace")
    if "kernel_size" in arguments:
        arguments.setdefault("stride", [1])  # ATen's pooling takes the window in its place
    return Call(op if is_standard else f"{proto.domain}.{op}", arguments, name=name)


def _holds_graph(proto: Any) -> bool:
    """True for If, Loop and the like: their bodies see more than their inputs."""
    return any(attribute.type in (5, 10) for attribute in proto.attribute)  # GRAPH, GRAPHS
