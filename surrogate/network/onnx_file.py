"""ONNX files: read as protobuf alone, sizes bounded, weights set aside, every shape made a number."""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError, nearest

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
MAX_DEPTH = 100
"""Deepest chain of functions that call each other; ONNX's inliner has the same limit."""
Key = tuple[str, str, str]


def load_model(path: Path) -> Any:
    """The file's ``ModelProto``; weights in other files are not opened.

    Raises `InputError` where the package onnx is missing, or the file is missing, too large, or no ONNX model.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise InputError(f"{path}: reading ONNX needs the package onnx; {REMEDY}") from None
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(
                f"{path}: larger than {MAX_FILE_BYTES} bytes; save it with external weights, they are not needed"
            )
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give an .onnx file") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        raise InputError(f"{path}: no ONNX model (not that protobuf message); export it again") from None
    if not model.HasField("graph") or not model.graph.node:
        raise InputError(f"{path}: the ONNX model has no nodes; export it again")
    if len(model.graph.node) > MAX_NODES:
        raise InputError(f"{path}: {len(model.graph.node)} nodes; graphs up to {MAX_NODES} are read")
    if not all(
        isinstance(text, str) for text in _texts(model)
    ):  # protobuf hands over as bytes what is no UTF-8
        raise InputError(f"{path}: damaged: a name in the graph is no UTF-8 text; export it again")
    return model


def _texts(model: Any) -> Iterator[Any]:
    """Every name in the graph, its subgraphs and its local functions."""
    for opset in model.opset_import:
        yield opset.domain
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
        yield from _texts_of_nodes(function.node)
    yield from _texts_of_graph(model.graph)


def _texts_of_graph(graph: Any) -> Iterator[Any]:
    yield graph.name
    yield from (one.name for one in graph.initializer)
    yield from (one.values.name for one in graph.sparse_initializer)
    for one in (*graph.input, *graph.output, *graph.value_info):
        yield one.name
        yield from (dim.dim_param for dim in one.type.tensor_type.shape.dim)
    yield from _texts_of_nodes(graph.node)


def _texts_of_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            for graph in (attribute.g, *attribute.graphs):
                yield from _texts_of_graph(graph)


def with_shapes(model: Any, path: Path, batch: int | None, dims: Mapping[str, int]) -> int | None:
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
    try:
        inferred = onnx.shape_inference.infer_shapes(
            model, check_type=False, strict_mode=False, data_prop=True
        )
    except Exception as error:  # the checker's, the inference's and protobuf's errors have no common base
        raise InputError(f"{path}: ONNX shape inference refuses the graph ({_one_line(error)})") from None
    model.CopyFrom(inferred)
    return new


def _expand_functions(model: Any, path: Path) -> None:
    """Inline the model's local functions, in place.

    Raises `InputError` where they call themselves, nest deeper than `MAX_DEPTH` or expand to more than `MAX_NODES`
    nodes (forty functions that each call the next one twice would make 10¹² of them), or where ONNX refuses them.
    """
    from onnx.inliner import inline_local_functions

    bodies = {(one.domain, one.name, one.overload): one.node for one in model.functions}
    count = _expanded(model.graph.node, bodies, {}, (), path)
    if count > MAX_NODES:
        raise InputError(
            f"{path}: its local functions expand to more than {MAX_NODES} nodes; export them inlined"
        )
    try:
        model.CopyFrom(inline_local_functions(model))
    except Exception as error:  # onnx raises errors without a common base
        raise InputError(f"{path}: its local functions cannot be expanded ({_one_line(error)})") from None


def _one_line(error: Exception) -> str:
    """The first line of a foreign error, cut to what a terminal shows."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"


def _expanded(
    nodes: Iterable[Any],
    bodies: Mapping[Key, Any],
    known: dict[Key, int],
    within: tuple[Key, ...],
    path: Path,
) -> int:
    """Nodes after expansion, those of subgraphs included; counts of functions are kept in ``known``."""
    count = 0
    for node in nodes:
        key = (node.domain, node.op_type, node.overload)
        if key in bodies and key not in known:
            if key in within or len(within) >= MAX_DEPTH:
                fault = "calls itself" if key in within else f"lies over {MAX_DEPTH} calls deep"
                raise InputError(f"{path}: local function {node.op_type!r} {fault}; export the model inlined")
            known[key] = _expanded(bodies[key], bodies, known, (*within, key), path)
        count += known.get(key, 1)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                count += _expanded(graph.node, bodies, known, within, path)
    return count


def _name_domains(model: Any) -> None:
    """Inference gives up on a domain without a version; on an unknown operator of a named one it passes by."""
    named = {one.domain for one in model.opset_import}
    for domain in {node.domain for node in model.graph.node} - named:
        model.opset_import.add(domain=domain, version=1 if domain else 20)


def _set_weights_aside(graph: Any) -> set[str]:
    """Names of all initializers; large ones become inputs of their shape, so that their bytes travel nowhere."""
    import onnx

    names = {one.name for one in graph.initializer} | {one.values.name for one in graph.sparse_initializer}
    inputs = {one.name for one in graph.input}
    kept = []
    for one in graph.initializer:
        if prod(one.dims) <= KEPT_ELEMENTS and one.data_location != onnx.TensorProto.EXTERNAL:
            kept.append(one)
        elif one.name not in inputs:
            sizes = None if _endless(one.data_type, one.dims) else list(one.dims)
            graph.input.append(onnx.helper.make_tensor_value_info(one.name, one.data_type, sizes))
    copies = [onnx.TensorProto.FromString(one.SerializeToString()) for one in kept]
    for one in graph.sparse_initializer:
        if one.values.name not in inputs:
            info = onnx.helper.make_tensor_value_info(one.values.name, one.values.data_type, list(one.dims))
            graph.input.append(info)
    del graph.initializer[:], graph.sparse_initializer[:]
    graph.initializer.extend(copies)
    return names


def _endless(element_type: int, sizes: Iterable[int]) -> bool:
    """Whether a tensor is a list of more whole numbers than shape inference should walk through."""
    return element_type in _WHOLE and len(known := list(sizes)) == 1 and known[0] > MAX_INDICES


def _size_inputs(
    graph: Any, path: Path, batch: int | None, dims: Mapping[str, int], weights: set[str]
) -> tuple[int | None, int | None]:
    """Put numbers in the place of every input's sizes; (batch in the file or None, batch now)."""
    known = dict(dims)
    old = new = None
    used: set[str] = set()
    sizes: set[str] = set()
    for one in (one for one in graph.input if one.name not in weights):
        if not one.type.tensor_type.HasField("shape"):
            raise InputError(
                f"{path}: input {one.name!r} has no shape; export the model with one, or run onnx.shape_inference"
            )
        value = 0
        for axis, dim in enumerate(one.type.tensor_type.shape.dim):
            key = dim.dim_param or f"{one.name}.{axis}"
            sizes |= {key, f"{one.name}.{axis}"}
            used |= sizes & set(known)
            value = known.get(f"{one.name}.{axis}", known.get(key))
            if axis == 0:
                old = dim.dim_value if dim.dim_value > 0 and old is None else old
                value = batch or value or dim.dim_value or 1
                new = value if new is None else new
                if dim.dim_param:
                    known.setdefault(dim.dim_param, value)
            elif value is None:
                value = dim.dim_value
            if value < 1:
                raise InputError(
                    f"{path}: input {one.name!r} has an unknown size {key!r}; give it as --dim {key}=224"
                )
            dim.ClearField("dim_param")
            dim.dim_value = value
        tensor = one.type.tensor_type
        if _endless(tensor.elem_type, (dim.dim_value for dim in tensor.shape.dim)):
            raise InputError(
                f"{path}: input {one.name!r} is a list of {value} whole numbers; up to {MAX_INDICES} are read"
            )
    for name in dims:
        if name not in used:
            raise InputError(f"{path}: --dim {name} names no size of an input{nearest(name, sizes)}")
    return old, new


def _rebatch_reshapes(graph: Any, old: int, new: int) -> None:
    """Constant target shapes of Reshape that begin with the file's batch follow the new one.

    Only those whose data comes from the model's inputs; [1, c, 1, 1] of a weight stays.
    """
    import onnx

    constants = {one.name for one in graph.initializer}
    stored = {node.output[0]: node for node in graph.node if node.op_type == "Constant"}
    targets = {
        node.input[1]
        for node in graph.node
        if node.op_type == "Reshape"
        and len(node.input) > 1
        and node.input[0] not in constants | stored.keys()
    }
    values = [one for one in graph.initializer if one.name in targets]
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


def _drop_stale_shapes(graph: Any, *, keep: bool) -> None:
    """Stored shapes of inner tensors go, unless ``keep`` and they are numbers throughout; those of outputs always."""
    fixed = [
        info
        for info in graph.value_info
        if keep
        and all(dim.dim_value > 0 for dim in info.type.tensor_type.shape.dim)
        and not _endless(
            info.type.tensor_type.elem_type, (d.dim_value for d in info.type.tensor_type.shape.dim)
        )
    ]
    copies = [type(info).FromString(info.SerializeToString()) for info in fixed]
    del graph.value_info[:]
    graph.value_info.extend(copies)
    for one in graph.output:
        one.type.tensor_type.ClearField("shape")
