"""ONNX files: read as protobuf alone, sizes bounded, weights set aside, every shape made a number.

The graph's shape arithmetic is folded: sizes that it computes from sizes become numbers. PyTorch's older exporter
writes views as chains of Shape, Gather, Concat and Reshape, which ONNX's own inference follows only in part. Here one
pass over the nodes, in order, infers each of them with the numbers that are known so far.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import InputError, in_one_line, nearest, read_bounded

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

REMEDY = "pip install 'seer-surrogate[onnx]'"
MAX_FILE_BYTES = 2**31 - 1
"""Protobuf's own limit."""
KEPT_ELEMENTS = 1024
"""Initializers up to this size keep their values: shapes and axes, not weights."""
MAX_INDICES = 2**22
"""Longest list of whole numbers with a known length: inference walks through those that say where to slice."""
_WHOLE = (6, 7)  # TensorProto's INT32, INT64
MAX_NODES = 200_000
"""Most nodes of a graph, its functions expanded."""


def load_model(path: Path) -> "ModelProto":
    """The file's ``ModelProto``; weights in other files are not opened.

    Raises `InputError` where the package onnx is missing, or the file is missing, too large, or no ONNX model.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise InputError(f"{path}: reading ONNX needs the package onnx; {REMEDY}") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(read_bounded(path, MAX_FILE_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give an .onnx file") from None
    except DecodeError:
        raise InputError(f"{path}: no ONNX model (not that protobuf message); export it again") from None
    if not model.HasField("graph") or not model.graph.node:
        raise InputError(f"{path}: the ONNX model has no nodes; export it again")
    if len(model.graph.node) > MAX_NODES:
        raise InputError(f"{path}: {len(model.graph.node)} nodes; graphs up to {MAX_NODES} are read")
    return model


def with_shapes(model: "ModelProto", path: Path, batch: int | None, dims: Mapping[str, int]) -> int | None:
    """Give every tensor of ``model`` (changed in place) the shape that follows from its inputs; returns the batch.

    ``batch`` replaces the first size of every input, ``dims`` the named ones (``NAME`` of a symbolic size, or
    ``INPUT.AXIS``). Raises `InputError` for an input without sizes, and where ONNX's shape inference refuses the graph.
    """
    import onnx

    if model.functions:
        _expand_functions(model, path)
    _name_domains(model)
    weights = _set_weights_aside(model.graph)
    old, new = _size_inputs(model.graph, path, batch, dims, weights)
    if old is not None and new is not None and old != new:
        _rebatch_reshapes(model.graph, old, new)
    _drop_stale_shapes(model.graph, keep=old == new)
    # The checker's, the inference's and protobuf's errors have no common base.
    with in_one_line(f"{path}: ONNX shape inference refuses the graph"):
        inferred = onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=True)
    model.CopyFrom(inferred)
    fold_shapes(model)
    if old is not None and old != new and _torn(model.graph):
        raise InputError(
            f"{path}: exported at a fixed batch of {old}, which its reshapes hold; export it with a dynamic batch"
        )
    return new


def _torn(graph: "GraphProto") -> bool:
    """Whether a Reshape is asked for another number of elements than it is given."""
    known = {info.name: elements(info.type) for info in (*graph.input, *graph.value_info, *graph.output)}
    pairs = [(known.get(node.input[0]), known.get(node.output[0])) for node in graph.node if node.op_type == "Reshape"]
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _expand_functions(model: "ModelProto", path: Path) -> None:
    """Inline the model's local functions, in place.

    Raises `InputError` where they call themselves or expand to more than `MAX_NODES` nodes (forty functions that each
    call the next one twice would make 10¹² of them), or where ONNX refuses them.
    """
    from onnx.inliner import inline_local_functions

    bodies = {(function.domain, function.name, function.overload): function.node for function in model.functions}

    @cache
    def expanded(key: tuple[str, str, str]) -> int:
        return count(bodies[key])

    def count(nodes: "Iterable[NodeProto]") -> int:
        """Nodes after expansion, those of subgraphs included."""
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += expanded(key) if key in bodies else 1
            total += sum(
                count(graph.node) for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)
            )
        return total

    try:
        size = count(model.graph.node)
    except RecursionError:
        raise InputError(f"{path}: its local functions call themselves or nest too deep; export it inlined") from None
    if size > MAX_NODES:
        raise InputError(f"{path}: its local functions expand to more than {MAX_NODES} nodes; export it inlined")
    with in_one_line(f"{path}: its local functions cannot be expanded"):
        model.CopyFrom(inline_local_functions(model))


def _name_domains(model: "ModelProto") -> None:
    """Give every domain a version: inference fails on a domain without one, and skips unknown operators of others."""
    named = {opset.domain for opset in model.opset_import}
    for domain in {node.domain for node in model.graph.node} - named:
        model.opset_import.add(domain=domain, version=1 if domain else 20)


def _set_weights_aside(graph: "GraphProto") -> set[str]:
    """Names of all initializers; large ones become inputs of their shape, so that their bytes are not copied."""
    import onnx

    names = {weight.name for weight in graph.initializer} | {weight.values.name for weight in graph.sparse_initializer}
    inputs = {info.name for info in graph.input}
    small_weights = []
    for weight in graph.initializer:
        if prod(weight.dims) <= KEPT_ELEMENTS and weight.data_location != onnx.TensorProto.EXTERNAL:
            small_weights.append(weight)
        elif weight.name not in inputs:
            sizes = None if _endless(weight.data_type, weight.dims) else list(weight.dims)
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, sizes))
    copies = [onnx.TensorProto.FromString(weight.SerializeToString()) for weight in small_weights]
    for weight in graph.sparse_initializer:
        if weight.values.name not in inputs:
            info = onnx.helper.make_tensor_value_info(weight.values.name, weight.values.data_type, list(weight.dims))
            graph.input.append(info)
    del graph.initializer[:], graph.sparse_initializer[:]
    graph.initializer.extend(copies)
    return names


def _endless(element_type: int, sizes: Iterable[int]) -> bool:
    """Whether a tensor is a list of more whole numbers than shape inference should walk through."""
    return element_type in _WHOLE and len(known := list(sizes)) == 1 and known[0] > MAX_INDICES


def _size_inputs(
    graph: "GraphProto", path: Path, batch: int | None, dims: Mapping[str, int], weights: set[str]
) -> tuple[int | None, int | None]:
    """Put numbers in the place of every input's sizes; (batch in the file or None, batch now)."""
    known = dict(dims)
    old = new = None
    used: set[str] = set()
    sizes: set[str] = set()
    for info in (info for info in graph.input if info.name not in weights):
        if not info.type.tensor_type.HasField("shape"):
            raise InputError(
                f"{path}: input {info.name!r} has no shape; export the model with one, or run onnx.shape_inference"
            )
        value = 0
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            key = dim.dim_param or f"{info.name}.{axis}"
            sizes |= {key, f"{info.name}.{axis}"}
            used |= sizes & set(known)
            value = known.get(f"{info.name}.{axis}", known.get(key))
            if axis == 0:
                old = dim.dim_value if dim.dim_value > 0 and old is None else old
                value = batch or value or dim.dim_value or 1
                new = value if new is None else new
                if dim.dim_param:
                    known.setdefault(dim.dim_param, value)
            elif value is None:
                value = dim.dim_value
            if value < 1:
                raise InputError(f"{path}: input {info.name!r} has an unknown size {key!r}; give it as --dim {key}=224")
            dim.ClearField("dim_param")
            dim.dim_value = value
        tensor = info.type.tensor_type
        if _endless(tensor.elem_type, (dim.dim_value for dim in tensor.shape.dim)):
            raise InputError(
                f"{path}: input {info.name!r} is a list of {value} whole numbers; up to {MAX_INDICES} are read"
            )
    for name in dims:
        if name not in used:
            raise InputError(f"{path}: --dim {name} names no size of an input{nearest(name, sizes)}")
    return old, new


def _rebatch_reshapes(graph: "GraphProto", old: int, new: int) -> None:
    """Constant target shapes of Reshape that begin with the file's batch follow the new one.

    Only those whose data comes from the model's inputs; [1, c, 1, 1] of a weight stays.
    """
    import onnx

    constants = {weight.name for weight in graph.initializer}
    stored = {node.output[0]: node for node in graph.node if node.op_type == "Constant"}
    targets = {
        node.input[1]
        for node in graph.node
        if node.op_type == "Reshape" and len(node.input) > 1 and node.input[0] not in constants | stored.keys()
    }
    values = [weight for weight in graph.initializer if weight.name in targets]
    holders = [stored[name] for name in targets & stored.keys()]
    values += [attribute.t for node in holders for attribute in node.attribute if attribute.name == "value"]
    for value in values:
        if value.data_location == onnx.TensorProto.EXTERNAL:
            continue
        try:
            shape = onnx.numpy_helper.to_array(value).reshape(-1)
        except (ValueError, TypeError, KeyError):
            continue  # its bytes do not make its shape: shape inference says what follows from that
        if len(shape) > 1 and shape[0] == old:
            changed = [new, *shape[1:].tolist()]
            value.CopyFrom(onnx.helper.make_tensor(value.name, onnx.TensorProto.INT64, [len(shape)], changed))


def _drop_stale_shapes(graph: "GraphProto", *, keep: bool) -> None:
    """Stored shapes of inner tensors go, unless ``keep`` and they are numbers throughout; those of outputs always."""
    copies = []
    for info in graph.value_info if keep else ():
        sizes = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        if min(sizes, default=1) > 0 and not _endless(info.type.tensor_type.elem_type, sizes):
            copies.append(type(info).FromString(info.SerializeToString()))
    del graph.value_info[:]
    graph.value_info.extend(copies)
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")


OF_SHAPE = ("Shape", "Size")
"""Operators whose result depends on the shape of their input alone."""
MAX_VALUES = 1024
"""Tensors up to this size are evaluated: shapes, axes and scales, not weights."""


def fold_shapes(model: "ModelProto") -> None:
    """Add to ``model`` (a ``ModelProto``, changed in place) the shapes that follow from its shape arithmetic.

    What ONNX has no definition of, or refuses, stays without a shape.
    """
    import onnx

    graph = model.graph
    values = {weight.name: weight for weight in graph.initializer if prod(weight.dims) <= MAX_VALUES}
    infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    types = {name: info.type for name, info in infos.items()} | {
        name: onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)) for name, tensor in values.items()
    }
    versions = {opset.domain: opset.version for opset in model.opset_import}
    for node in graph.node:
        outputs = list(filter(None, node.output))
        data = {name: values[name] for name in node.input if name in values}
        try:
            input_types = {name: types[name] for name in filter(None, node.input)}
            schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
            output_types = onnx.shape_inference.infer_node_outputs(
                schema, node, input_types, data, {}, list(model.opset_import), model.ir_version
            )
            for name in (name for name in outputs if elements(output_types.get(name)) is not None):
                info = infos.get(name) or graph.value_info.add(name=name)
                info.type.CopyFrom(output_types[name])
                types[name] = info.type
            known = data.keys() == input_types.keys() or (node.op_type in OF_SHAPE and elements(*input_types.values()))
            if known and all(elements(types[name]) in range(MAX_VALUES + 1) for name in outputs):
                values.update(zip(outputs, _evaluated(node, data, types, versions), strict=True))
        except Exception:  # onnx and its reference operators raise errors without a common base
            continue


def elements(kind: "TypeProto | None") -> int | None:
    """The number of elements of a tensor's type; None where a size is not known."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return prod(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def _evaluated(
    node: "NodeProto", data: "Mapping[str, TensorProto]", types: "Mapping[str, TypeProto]", versions: dict[str, int]
) -> "list[TensorProto]":
    """The results of a node as small tensors, by ONNX's reference operators."""
    from onnx.numpy_helper import from_array, to_array
    from onnx.reference import ReferenceEvaluator

    if node.op_type in OF_SHAPE:  # an array of that shape that takes no memory
        shape = [dim.dim_value for dim in types[node.input[0]].tensor_type.shape.dim]
        inputs = {node.input[0]: np.broadcast_to(np.int8(0), shape)}
    else:
        inputs = {name: to_array(tensor) for name, tensor in data.items()}
    results = ReferenceEvaluator(node, opsets=versions).run(None, inputs)
    return [from_array(np.asarray(result)) for result in results]
