"""Read ONNX files as `Network`: every shape becomes a number; every node is handled, ignored or counted as unsupported.

Only the protobuf message is read. Its size is limited, and its large weights become inputs without values. The graph's
arithmetic on shapes is folded: sizes that it computes from sizes become numbers. PyTorch's older exporter writes views
as chains of Shape, Gather, Concat and Reshape, which ONNX's own inference follows only in part. One pass over the
nodes, in order, infers each node with the numbers that are known so far.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import chain, compress, repeat
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from surrogate.features.errors import InputError, nearest, one_line_errors, read_bounded
from surrogate.network import onnx_shapes as shapes
from surrogate.network.aten_call import DISPATCH, PRODUCT_TYPES, Call, Shape, Tensor, argument_name
from surrogate.network.dispatch import RULES, is_view
from surrogate.network.memory import network_of
from surrogate.network.network import DEFAULTS, Network, ReadOptions, refuse
from surrogate.network.onnx_shapes import ONNX, ShapeFolder

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto

DTYPES = {int(code): dtype for code, dtype in DISPATCH["types"]["onnx"].items()}
"""TensorProto's element type → ours; an integer type is given as the type of the same width."""
FLOAT_CODES = (1, 10, 11, 16)
WEIGHT_CODES = (*FLOAT_CODES, 2, 3, *range(17, 29))
"""TensorProto's types of weights: floating-point types, and integers and floats of at most 8 bits (quantised)."""
VALUES_PER_BYTE = {21: 2, 22: 2, 23: 2, 25: 4, 26: 4}
"""TensorProto's types of less than 8 bits → values in a byte."""
STRING_CODE = 8
STRING = "string"
"""Element type of texts, which no GPU computes."""
READ_ATTRIBUTES = (2, 3, 7)
"""AttributeProto's INT, STRING and INTS; no rule uses other types."""
UNUSED = "_"
"""Name in `signatures` of an input that no rule reads, such as a scale."""
UNTRAINED = (UNUSED, "mask", "key_padding_mask", "past_key", "past_value", "past")
"""Names in `signatures` of inputs that training does not change."""
CONSTANT_FOLDED = "(computed from constants)"
"""Name of the ignored operator (`dispatch.toml`) that replaces computations from constants."""
INSTALL_COMMAND = "pip install 'seer-surrogate[onnx]'"
MAX_FILE_BYTES = 2**31 - 1
"""Limit of protobuf itself."""
MAX_NODES, MAX_EXPANSION, NODE_BYTES = 200_000, 20, 256
"""Maximum nodes of a graph after its functions are expanded, its multiple of the file's nodes, and a node's bytes."""


def read_onnx(path: str | Path, options: ReadOptions = DEFAULTS) -> Network:
    """Read the network in an ONNX file; weights are not needed, and external data is not opened.

    The options ``batch``, ``dims``, ``dtype`` and ``training`` apply; in training, dropout is no view. The network is
    the forward pass in both cases; `surrogate.network.training` adds the backward pass. Raises `InputError` in one line
    if the file is damaged, empty, too large or without shapes.
    """
    path = Path(path)
    model = load_model(path)
    with one_line_errors(f"{path}: damaged; export it again"):  # protobuf returns text that is no UTF-8 as bytes
        if model.functions:
            _expand_functions(model, path)
        shapes.store_constants(model.graph)
        weights, tables = shapes.stored_types(model.graph), shapes.fixed_tables(model.graph)
        batch, folder = infer_shapes(model, path, weights, options)
        tensors = _tensors(model.graph, weights, tables, options.dtype)
        stored = list(tensors.values())
        calls = list(_nodes(model.graph, tensors, folder, options.training))
        network = network_of(path, stored, calls, batch, training=options.training)
        if options.batch and network.unsupported:
            source = read_onnx(path, replace(options, batch=None))
            refuse({"fixed_graph": len(source.unsupported) < len(network.unsupported)}, source=path, old=source.batch)
        operators = {node.op_type for node in model.graph.node}
        integer = sorted(operators & PRODUCT_TYPES.keys())
        refuse({"no_gradient": options.training and integer}, source=path, operator="".join(integer[:1]))
        unpacked = any(call.op in ONNX["unpacking"] and call.tensors()[0].constant for call in calls)
        holds = "DequantizeLinear" in operators, integer, folder.runs, unpacked
        notes = compress(map(ONNX["notes"].get, ("quantised", "integers", "loops", "unpacked")), holds)
        return replace(network, notes=(*network.notes, *notes, *folder.notes[:3]))


def _tensors(
    graph: "GraphProto", weights: Mapping[str, int], tables: Iterable[str], dtype: str | None
) -> dict[str, Tensor]:
    """Return each tensor by name; names without a known type are left out. ``tables`` are stored but no weights."""
    tensors = {"": Tensor()}
    for weight in graph.initializer:
        tensors[weight.name] = _tensor(tuple(weight.dims), weight.data_type, dtype)
    for info in (*graph.output, *graph.value_info, *graph.input):  # an input may be an output, too
        shape = None if shapes.element_count(info.type) is None else tuple(shapes.sizes_of(info.type))
        tensors[info.name] = _tensor(shape, info.type.tensor_type.elem_type, dtype)
    tensors = {name: replace(tensor, buffer=name) for name, tensor in tensors.items()}
    others = set(tables)  # stored tensors that are no weights: masks, scales, tables, running statistics
    for node in graph.node:
        names = [(argument_name(operator_of(node), position), name) for position, name in enumerate(node.input)]
        others.update(name for argument, name in names if argument in UNTRAINED)
        if PRODUCT_TYPES.get(node.op_type) == "int4_wo":  # its operand is packed
            sizes = {attribute.name: attribute.i for attribute in node.attribute}
            values_per_byte = 8 // max(2, min(8, sizes.get("bits", 4)))
            shape = (sizes.get("K", 0), sizes.get("N", 0))
            tensors[node.input[1]] = Tensor(shape, "int8", False, buffer=names[1][1], values_per_byte=values_per_byte)
    for node in reversed(graph.node):
        if node.op_type in ONNX["moves"] and not others.isdisjoint(node.output):
            others.update(node.input)
    for name, kind in weights.items():
        tensor = tensors.get(name, Tensor())
        is_array = prod(tensor.shape or (1,)) > 1  # a single number is an attribute stored as a weight
        is_parameter = is_array and kind in WEIGHT_CODES and name not in others
        tensors[name] = replace(tensor, constant=True, parameter=is_parameter)
    return tensors


def _tensor(shape: Shape | None, code: int, dtype: str | None) -> Tensor:
    """Return a tensor from TensorProto's element type; ``dtype`` replaces a floating-point type."""
    if code == STRING_CODE:
        return Tensor(None, STRING, False)
    floating = code in FLOAT_CODES
    kind = dtype if dtype and floating else DTYPES.get(code, "fp32")
    return Tensor(shape, kind, floating, values_per_byte=VALUES_PER_BYTE.get(code, 1))


def _nodes(graph: "GraphProto", tensors: dict[str, Tensor], folder: ShapeFolder, training: bool) -> Iterator[Call]:
    """Yield every node as a call, as often as it runs; a computation from constants has the name `CONSTANT_FOLDED`.

    Outputs inherit from inputs whether they are constant and whether they need gradients. Small results that depend on
    the shapes of inputs are computed before the model runs, and large ones are not.
    """
    shape_results: set[str] = set()
    for number, proto in enumerate(graph.node):
        inputs = tuple(tensors.get(name, Tensor()) for name in proto.input)
        constant = all(t.constant for t, name in zip(inputs, proto.input, strict=True) if name)
        # The bodies of If, Loop and similar (attributes of the types GRAPH and GRAPHS) read more than their inputs.
        constant = constant and not any(attribute.type in (5, 10) for attribute in proto.attribute)
        constant = constant and proto.op_type not in ONNX["random"]
        is_large = any(tensor.parameter and prod(tensor.shape or ()) > shapes.MAX_VALUES for tensor in inputs[:1])
        if is_large and proto.op_type in ONNX["unpacking"]:
            constant = constant and inputs[0].dtype == tensors.get(proto.output[0], Tensor()).dtype
        is_of_shapes = proto.op_type in shapes.SHAPE_OPERATORS or not shape_results.isdisjoint(proto.input)
        if is_of_shapes:
            shape_results.update(proto.output)
            largest = max((prod(tensors.get(name, Tensor()).shape or ()) for name in proto.output), default=0)
            constant = proto.op_type in shapes.SHAPE_OPERATORS or (constant and largest <= shapes.MAX_VALUES)
        needs_gradient = any(t.needs_gradient or (t.parameter and not constant) for t in inputs)
        call = _call(proto, inputs, proto.name or f"{proto.op_type}_{number}")
        if call.op in ("Softmax", "LogSoftmax"):
            call = replace(call, arguments={**call.arguments, "opset": folder.versions.get(proto.domain, 13)})
        if call.op == "Dropout" and len(proto.input) > 2 and proto.input[2]:
            mode = folder.values.get(proto.input[2])
            call = replace(call, arguments={**call.arguments, "train": mode is None or any(shapes.numbers(mode))})
        view = inputs and is_view(call, training=training)
        for name in proto.output:
            buffer = inputs[0].buffer if view else name
            result = replace(tensors.get(name, Tensor()), needs_gradient=needs_gradient, buffer=buffer)
            parameter = constant and (result.parameter or any(t.parameter for t in inputs))
            tensors[name] = replace(result, constant=constant, parameter=parameter)
        outputs = tuple(tensors[name] for name in proto.output if name)
        op = CONSTANT_FOLDED if constant and call.op in RULES else call.op
        if any(tensor.dtype == STRING for tensor in (*inputs, *outputs)):
            op = f"{call.op} (of strings)"
        yield (call := replace(call, outputs=outputs, op=op))
        # The first run counts the weights; each run adds to their gradients.
        weights = {key: t for key, t in call.arguments.items() if isinstance(t, Tensor) and t.parameter}
        trained = {key: replace(t, needs_gradient=True, parameter=False) for key, t in weights.items()}
        call = replace(call, arguments={**call.arguments, **trained})
        yield from repeat(call, folder.runs.get(shapes.first_result(proto), 1) - 1)


def operator_of(proto: "NodeProto") -> str:
    """Return a node's name in `dispatch.toml`; its domain is a part of it if the name alone is ONNX's."""
    name = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
    is_short = proto.domain == "com.microsoft" and name not in RULES and proto.op_type in RULES
    return proto.op_type if is_short else name


def _call(proto: "NodeProto", inputs: tuple[Tensor, ...], name: str) -> Call:
    """Return a node as a call, with the rules' names of inputs and attributes; other domains stay in the name."""
    from onnx.helper import get_attribute_value

    op = operator_of(proto)
    arguments: dict[str, object] = {}
    for position, tensor in enumerate(inputs):
        key = argument_name(op, position)
        if proto.input[position] and key != UNUSED:
            arguments[key] = tensor
    for attribute in proto.attribute:
        if attribute.type in READ_ATTRIBUTES:
            value = get_attribute_value(attribute)
            key = DISPATCH["onnx_attributes"].get(attribute.name, str(attribute.name))
            arguments[key] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if "kernel_size" in arguments:
        arguments.setdefault("stride", [1])  # without a stride, ATen's pooling would take the window's size
    return Call(op, arguments, name=name)


def load_model(path: Path) -> "ModelProto":
    """Return the file's ``ModelProto``; weights in other files are not opened.

    Raises `InputError` if the package onnx is missing, or if the file is missing, too large, or no ONNX model.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise InputError(f"{path}: reading ONNX needs the package onnx; {INSTALL_COMMAND}") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(read_bounded(path, MAX_FILE_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give an .onnx file") from None
    except DecodeError:
        raise InputError(f"{path}: not an ONNX model (no such protobuf message); export it again") from None
    count = len(model.graph.node)
    refuse({"no_nodes": not count, "nodes": count > MAX_NODES}, source=path, count=count, maximum=MAX_NODES)
    return model


def infer_shapes(
    model: "ModelProto", path: Path, weights: dict[str, int], options: ReadOptions
) -> tuple[int | None, ShapeFolder]:
    """Give every tensor of ``model`` the shape that follows from its inputs, in place; return the batch and the folder.

    ``weights`` are the types of all stored tensors; those of inlined bodies are added. The option ``batch`` replaces
    the first size of every input, ``dims`` the named sizes (``NAME`` of a symbolic size, or ``INPUT.AXIS``). Raises
    `InputError` for an input without sizes.
    """
    # Inference fails on a domain without a version, and skips unknown operators of other domains.
    for domain in {node.domain for node in model.graph.node} - {opset.domain for opset in model.opset_import}:
        model.opset_import.add(domain=domain, version=1 if domain else 20)
    _set_weights_aside(model.graph)
    old, new = _size_inputs(model.graph, path, options.batch, options.dims or {}, weights)
    if old is not None and new is not None and old != new:
        _rebatch_reshapes(model.graph, old, new)
    declared = _drop_stale_shapes(model.graph, keep=old == new)
    model.ir_version = max(model.ir_version, 4)  # before, all stored tensors were inputs, too
    folder = ShapeFolder(model, weights, declared)
    folder.fold()
    counts = {name: shapes.element_count(kind) for name, kind in folder.types.items()}
    reshapes = [node for node in model.graph.node if node.op_type == "Reshape"] if old not in (None, new) else []
    pairs = [{counts.get(node.input[0]), counts.get(node.output[0])} - {None} for node in reshapes]
    refuse({"fixed_graph": any(len(pair) > 1 for pair in pairs)}, source=path, old=old)
    return new, folder


def _expand_functions(model: "ModelProto", path: Path) -> None:
    """Inline the model's local functions, in place.

    Raises `InputError` if functions call themselves, if they expand to many more nodes than the file has, or if ONNX
    refuses them. Forty functions that each call the next one twice would expand to 10¹² nodes.
    """
    from onnx.inliner import inline_local_functions

    bodies = {(function.domain, function.name, function.overload): function.node for function in model.functions}

    def weight(node: "NodeProto") -> int:
        return 1 + node.ByteSize() // NODE_BYTES

    @cache
    def expanded(key: tuple[str, str, str]) -> int:
        return count(bodies[key])

    def count(nodes: "Sequence[NodeProto]") -> int:
        """Return the number of nodes after expansion, with the nodes of subgraphs; a large node counts as several."""
        keys = [(node.domain, node.op_type, node.overload) for node in nodes]
        graphs = (graph for node in nodes for each in node.attribute for graph in (each.g, *each.graphs))
        own = sum(expanded(key) if key in bodies else weight(node) for key, node in zip(keys, nodes, strict=True))
        return own + sum(count(graph.node) for graph in graphs)

    try:
        size = count(model.graph.node)
    except RecursionError:
        raise InputError(f"{path}: its local functions call themselves or nest too deep; export it inlined") from None
    stored = sum(map(weight, chain(model.graph.node, *bodies.values())))
    maximum = min(MAX_NODES, shapes.MAX_LOOP_NODES + MAX_EXPANSION * stored)
    refuse({"functions": size > maximum}, source=path, maximum=maximum)
    with one_line_errors(f"{path}: its local functions cannot be expanded"):
        model.CopyFrom(inline_local_functions(model))


def _set_weights_aside(graph: "GraphProto") -> None:
    """Replace large initializers by inputs of their shape, so that their bytes are not copied."""
    from onnx.helper import make_tensor_value_info

    small_weights = [deepcopy(weight) for weight in graph.initializer if shapes.is_small(weight)]
    names = {each.name for each in (*graph.input, *small_weights)}
    stored = [each for each in shapes.stored_tensors(graph) if each[0] not in names]
    graph.input.extend(make_tensor_value_info(*each) for each in stored)
    del graph.initializer[:], graph.sparse_initializer[:]
    graph.initializer.extend(small_weights)


def _size_inputs(
    graph: "GraphProto", path: Path, batch: int | None, dims: Mapping[str, int], weights: Mapping[str, int]
) -> tuple[int | None, int | None]:
    """Replace every input's sizes by numbers; return the file's batch (None if symbolic) and the batch now."""
    values = dict(dims)
    old = new = None
    names: set[str] = set()
    for info in (info for info in graph.input if info.name not in weights):
        refuse({"no_shape": not info.type.tensor_type.HasField("shape")}, source=path, name=info.name)
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            place = f"{info.name}.{axis}"
            key = dim.dim_param or place
            names |= {key, place}
            value = values.get(place, values.get(key))
            if axis == 0:
                old = dim.dim_value if dim.dim_value > 0 and old is None else old
                value = batch or value or dim.dim_value or 1
                new = value if new is None else new
                if dim.dim_param:
                    values.setdefault(dim.dim_param, value)
            elif value is None:
                value = dim.dim_value
            is_empty = axis > 0 and value == 0 and dim.HasField("dim_value")
            refuse({"no_size": value < 1 and not is_empty}, source=path, name=info.name, size=key)
            dim.ClearField("dim_param")
            dim.dim_value = value
    if unknown := next((name for name in dims if name not in names), None):
        raise InputError(f"{path}: --dim {unknown} names no size of an input{nearest(unknown, names)}")
    return old, new


def _rebatch_reshapes(graph: "GraphProto", old: int, new: int) -> None:
    """Replace the file's batch in constant target shapes of Reshape by the new batch.

    Only reshapes of data from the model's inputs change; the shape [1, c, 1, 1] of a weight stays.
    """
    import onnx

    constants = {weight.name for weight in graph.initializer}
    reshapes = [node for node in graph.node if node.op_type == "Reshape" and len(node.input) > 1]
    targets = {node.input[1] for node in reshapes if node.input[0] not in constants}
    for value in graph.initializer:
        # If the bytes do not fit the shape, shape inference reports the consequence.
        with suppress(ValueError, TypeError, KeyError):
            if value.name in targets and len(shape := shapes.numbers(value)) > 1 and shape[0] == old:
                value.CopyFrom(onnx.helper.make_tensor(value.name, value.INT64, [len(shape)], [new, *shape[1:]]))


def _drop_stale_shapes(graph: "GraphProto", *, keep: bool) -> "dict[str, TypeProto]":
    """Remove the stored shapes of outputs and of inner tensors; return the types of the outputs.

    With ``keep``, inner shapes that consist of numbers stay, and only outputs with such shapes are returned.
    """
    kept = [deepcopy(info) for info in graph.value_info if keep and min(shapes.sizes_of(info.type), default=1) > 0]
    declared = {each.name: deepcopy(each.type) for each in graph.output if keep and shapes.element_count(each.type)}
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return declared
