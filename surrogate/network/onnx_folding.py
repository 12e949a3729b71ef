"""Constant folding of an ONNX graph's shape arithmetic: sizes that the graph computes from sizes become numbers.

PyTorch's older exporter writes views as chains of Shape, Gather, Concat and Reshape, which ONNX's own inference follows
only in part. Here one pass over the nodes, in order, infers each of them with the numbers that are known so far.
"""

from math import prod
from typing import Any

import numpy as np

OF_SHAPE = ("Shape", "Size")
"""Operators whose result depends on the shape of their input alone."""
MAX_VALUES = 1024
"""Tensors up to this size are evaluated: shapes, axes and scales, not weights."""


def fold_shapes(model: Any) -> None:
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
        outputs, data = list(filter(None, node.output)), {n: values[n] for n in node.input if n in values}
        try:
            given = {name: types[name] for name in filter(None, node.input)}
            schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, given, data, {}, list(model.opset_import), model.ir_version
            )
            for name in (name for name in outputs if elements(found.get(name)) is not None):
                info = infos.get(name) or graph.value_info.add(name=name)
                info.type.CopyFrom(found[name])
                types[name] = info.type
            known = data.keys() == given.keys() or (node.op_type in OF_SHAPE and elements(*given.values()))
            if known and all(elements(types[name]) in range(MAX_VALUES + 1) for name in outputs):
                values.update(zip(outputs, _evaluated(node, data, types, versions), strict=True))
        except Exception:  # onnx and its reference operators raise errors without a common base
            continue


def elements(kind: Any) -> int | None:
    """The number of elements of a tensor's type; None where a size is not known."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return prod(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def _evaluated(node: Any, data: dict[str, Any], types: dict[str, Any], versions: dict[str, int]) -> list[Any]:
    """The results of a node as small tensors, by ONNX's reference operators."""
    from onnx.numpy_helper import from_array, to_array
    from onnx.reference import ReferenceEvaluator

    if node.op_type in OF_SHAPE:  # an array of that shape that takes no memory
        shape = [dim.dim_value for dim in types[node.input[0]].tensor_type.shape.dim]
        given = {node.input[0]: np.broadcast_to(np.int8(0), shape)}
    else:
        given = {name: to_array(tensor) for name, tensor in data.items()}
    results = ReferenceEvaluator(node, opsets=versions).run(None, given)
    return [from_array(np.asarray(result)) for result in results]
