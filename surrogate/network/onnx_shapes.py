"""Infer the shapes of an ONNX graph node by node, with the numbers that are known so far, and inline its bodies.

PyTorch's older exporter writes views as chains of Shape, Gather, Concat and Reshape, which ONNX's own inference follows
only in part. Bodies of If, Loop and Scan become nodes of the graph if it is known which runs, and how often.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from itertools import repeat
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.network.aten_call import DISPATCH

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

    Types = Mapping[str, TypeProto]

SHAPE_OPERATORS = ("Shape", "Size")
"""Operators with a result that depends only on the shape of their input."""
LOOP_SLICE, LOOP_RESULTS = "(slice of a loop's input)", "(results of a loop)"
"""Operators in `dispatch.toml` that give a body's input in one run of Scan, and that join the results of all runs."""
MAX_VALUES = 1024
"""Tensors up to this size keep their values and are evaluated: shapes, axes and scales, but not weights."""
MAX_RANK = 64
"""Maximum rank of a computed tensor, NumPy's own; each Gather of a chain may double the rank."""
MAX_LOOP_NODES = 20_000
"""Maximum number of nodes that all loops of a graph run."""
CONSTANT_TYPES = {"value": None, "sparse_value": None} | {
    f"value_{kind}{s}": dtype for kind, dtype in (("float", np.float32), ("int", np.int64)) for s in ("", "s")
}
"""Attribute of a Constant → the type of its numbers; None if it is a tensor."""
ONNX: Mapping[str, Any] = DISPATCH["onnx"]
"""Operators that are evaluated, random ones, and the shapes of those that ONNX does not define."""


class ShapeFolder:
    """The pass over a graph's nodes in order; `fold` changes the graph in place.

    ``declared`` has the types of outputs, which count if inference finds no shape. ``weights`` gains the types of
    tensors that inlined bodies store. ``values`` are the known small tensors, and ``runs`` says how often a node runs,
    by its first result.
    """

    def __init__(self, model: "ModelProto", weights: dict[str, int], declared: "Types") -> None:
        self.model, self.graph, self.weights, self.declared = model, model.graph, weights, declared
        self.values: dict[str, TensorProto] = {}
        self.runs: dict[str, int] = {}
        self.notes: list[str] = []
        self.infos = {info.name: info for info in (*self.graph.output, *self.graph.value_info, *self.graph.input)}
        self.types = {name: info.type for name, info in self.infos.items()}
        self.versions = {opset.domain: opset.version for opset in model.opset_import}
        for tensor in self.graph.initializer:
            self._know(tensor)

    def fold(self) -> None:
        """Give every tensor of the graph the shape that follows; nodes that ONNX refuses keep results without one."""
        nodes: list[NodeProto] = []
        waiting = deque(self.graph.node)
        while waiting:
            node = waiting.popleft()
            if (body := self._inline(node)) is not None:
                waiting.extendleft(reversed(body))
                continue
            nodes.append(node)
            with suppress(Exception):  # onnx and its reference operators raise errors without a common base
                self._infer(node)
            for name in self.declared.keys() & set(node.output):
                if element_count(self.types.get(name)) is None:
                    self._enter(name, self.declared[name])
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        for name, declared in self.declared.items():
            sizes, computed = sizes_of(declared), sizes_of(self.types.get(name, declared))
            if sizes != computed:
                self.notes.append(f"the output {name!r} is declared as {sizes}, but computed as {computed}")

    def _infer(self, node: "NodeProto") -> None:
        """Enter the types of a node's results, and their values if they are small and known."""
        import onnx

        outputs = list(filter(None, node.output))
        if node.op_type in (LOOP_SLICE, LOOP_RESULTS, *ONNX["with_heads"]):
            kind = self.types[node.input[0]].tensor_type.elem_type
            self._enter(outputs[0], onnx.helper.make_tensor_type_proto(kind, _computed_sizes(node, self.types)))
            return
        defined, types = _defined(node, self.types)
        data = {name: self.values[name] for name in node.input if name in self.values}
        schema = onnx.defs.get_schema(defined.op_type, self.versions[defined.domain], defined.domain)
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, defined, types, data, {}, list(self.model.opset_import), self.model.ir_version
        )
        for name in inferred.keys() & {*outputs}:
            is_better = name not in self.types or element_count(inferred[name]) is not None
            if is_better and len(inferred[name].tensor_type.shape.dim) <= MAX_RANK:
                self._enter(name, inferred[name])
        has_sized_input = node.op_type in SHAPE_OPERATORS and element_count(*types.values())
        is_computable = node.op_type in ONNX["evaluated"] and (has_sized_input or data.keys() == types.keys())
        if is_computable and all(element_count(self.types[name]) in range(MAX_VALUES + 1) for name in outputs):
            self.values.update(zip(outputs, _evaluate(node, data, self.types, self.versions), strict=True))

    def _enter(self, name: str, kind: "TypeProto") -> None:
        """Set the type of a tensor."""
        if name not in self.infos:
            self.infos[name] = self.graph.value_info.add(name=name)
        self.infos[name].type.CopyFrom(kind)
        self.types[name] = self.infos[name].type

    def _know(self, tensor: "TensorProto") -> None:
        """Set the type of a stored tensor, and its values if it is small."""
        import onnx

        self.types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        if is_small(tensor):
            self.values[tensor.name] = tensor

    def _inline(self, node: "NodeProto") -> "list[NodeProto] | None":
        """Return the nodes that replace an If, Loop or Scan; None for others, and if their runs are not known."""
        from onnx.helper import get_attribute_value

        if node.op_type not in ("If", "Loop", "Scan"):
            return None
        with suppress(KeyError, IndexError, ValueError):  # unknown sizes, or a body that does not fit its node
            attributes = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
            if node.op_type == "If":
                (value,) = numbers(self.values[node.input[0]])
                return self._inlined(node, attributes["then_branch" if value else "else_branch"], attributes, 1)
            if node.op_type == "Loop":
                runs = self._loop_runs(node, attributes["body"])
            elif self.versions[node.domain] < 9:  # it has a batch of its own
                return None
            else:
                sizes = sizes_of(self.types[node.input[-attributes["num_scan_inputs"]]])
                runs = sizes[attributes.get("scan_input_axes", [0])[0]]
            return self._inlined(node, attributes["body"], attributes, runs)
        return None

    def _loop_runs(self, node: "NodeProto", body: "GraphProto") -> int:
        """Return how often a Loop runs at most; set the note if an unknown condition may stop it earlier."""
        store_constants(body)
        sources = {each.output[0]: each.input[0] for each in body.node if each.op_type == "Identity"}
        name = body.output[0].name
        while name in sources:
            name = sources.pop(name)
        stored = {**self.values, **{tensor.name: tensor for tensor in body.initializer}}
        starts, continues = (
            any(numbers(stored[each])) if each in stored else each in ("", body.input[1].name) or None
            for each in (node.input[1], name)
        )
        (trips,) = numbers(self.values[node.input[0]]) if node.input[0] or continues is not False else (1,)
        runs = max(0, min(trips, 1) if continues is False else trips) * (starts is not False)
        if 0 < runs <= MAX_LOOP_NODES and (starts is None or (continues is None and runs > 1)):
            self.notes = [ONNX["notes"]["conditions"]]
        return runs

    def _inlined(
        self, node: "NodeProto", source: "GraphProto", attributes: Mapping[str, Any], runs: int
    ) -> "list[NodeProto] | None":
        """Return the nodes of a body and of its inputs and results; None if its runs are too many.

        ONNX requires that the names in a body differ from all others.
        """
        from onnx.helper import make_node, make_tensor

        total = runs * self.runs.get(first_result(node), 1)
        if runs == 0:  # the states remain, and the other results are empty
            states = node.input[2 if node.op_type == "Loop" else 0 :]
            return [make_node("Identity", [a], [b]) for a, b in zip(states, node.output, strict=False) if b]
        if runs < 0 or (total > 1 and sum(self.runs.values()) + total * len(source.node) > MAX_LOOP_NODES):
            return None
        body = deepcopy(source)
        store_constants(body)
        inner, results = ([info.name for info in infos] for infos in (body.input, body.output))
        outer = list(node.input)
        number_name = ""
        if node.op_type == "Loop":  # a body gets the number of the run, and a condition that ends the loop
            number_name = inner[0]
            body.initializer.extend([make_tensor(inner[0], 7, [], [0]), make_tensor(inner[1], 9, [], [True])])
            inner, results, outer = inner[2:], results[1:], outer[2:]
        for tensor in body.initializer:
            self.graph.initializer.add().CopyFrom(tensor)
            self._know(tensor)
        self.weights.update(stored_types(body))
        self.values.pop(number_name, None)  # it differs from run to run
        states = len(results) if node.op_type == "If" else len(outer) - attributes.get("num_scan_inputs", 0)
        nodes = [make_node("Identity", [a], [b]) for a, b in zip(outer[:states], inner, strict=False)]
        axes, result_axes = (attributes.get(f"scan_{way}put_axes", repeat(0)) for way in ("in", "out"))
        for (name, target), axis in zip(zip(outer[states:], inner[states:], strict=True), axes, strict=False):
            nodes.append(make_node(LOOP_SLICE, [name], [target], axis=axis, runs=0))
        nodes += body.node
        pairs = list(zip(results, node.output, strict=False))
        nodes += [make_node("Identity", [result], [target]) for result, target in pairs[:states] if target]
        for (result, target), axis in zip(pairs[states:], result_axes, strict=False):
            nodes.append(make_node(LOOP_RESULTS, [result], [target], axis=axis, runs=runs))
        if total > 1:
            self.runs.update({first_result(each): total for each in body.node})
        return nodes


def first_result(node: "NodeProto") -> str:
    """Return the name of a node's first result."""
    return next(filter(None, node.output), "")


def numbers(tensor: "TensorProto") -> list[Any]:
    """Return the values of a small tensor."""
    from onnx.numpy_helper import to_array

    return to_array(tensor).reshape(-1).tolist()


def store_constants(graph: "GraphProto") -> None:
    """Replace Constant nodes by initializers, in place, so that stored tensors have one form; texts stay nodes."""
    from onnx.helper import get_attribute_value
    from onnx.numpy_helper import from_array

    kept = []
    for node in graph.node:
        attribute = node.attribute[0] if node.op_type == "Constant" and len(node.attribute) == 1 else None
        value = get_attribute_value(attribute) if attribute and attribute.name in CONSTANT_TYPES else None
        if attribute is None or value is None:
            kept.append(node)
        elif attribute.name == "sparse_value":
            graph.sparse_initializer.add().CopyFrom(value)
            graph.sparse_initializer[-1].values.name = node.output[0]
        else:
            dtype = CONSTANT_TYPES[attribute.name]
            graph.initializer.add().CopyFrom(from_array(np.array(value, dtype)) if dtype else value)
            graph.initializer[-1].name = node.output[0]
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)


def stored_tensors(graph: "GraphProto") -> Iterator[tuple[str, int, list[int]]]:
    """Yield the name, the element type and the sizes of each stored tensor."""
    for tensor in graph.initializer:
        yield tensor.name, tensor.data_type, list(tensor.dims)
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, sparse.values.data_type, list(sparse.dims)


def stored_types(graph: "GraphProto") -> dict[str, int]:
    """Return the element types of stored tensors, and of tensors that ConstantOfShape fills at a stored shape."""
    types = {name: code for name, code, _ in stored_tensors(graph)}
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in types:
            types[node.output[0]] = next((a.t.data_type for a in node.attribute if a.name == "value"), 1)
    return types


def fixed_tables(graph: "GraphProto") -> set[str]:
    """Return the names of stored masks and tables of sines, which training does not change.

    A mask has a value of at most -10,000. A table has sines and cosines: at position 0 they are 0 or 1.
    """
    from onnx.numpy_helper import to_array

    names, found = (
        {name for node in graph.node if node.op_type in ONNX[use] for name in node.input}
        for use in ("combining", "untrained")
    )
    arrays = (tensor for tensor in graph.initializer if tensor.name in names and len(tensor.dims) > 1)
    for tensor in (array for array in arrays if array.data_location != array.EXTERNAL):
        with suppress(ValueError, TypeError, KeyError):  # bytes that do not fit the shape
            values = to_array(tensor).reshape(-1, tensor.dims[-1]).astype(np.float32)
            is_table = np.isin(values[0], (0, 1)).all() and np.ptp(values) > 0 and np.abs(values).max() <= 1
            if values.min() <= -10_000 or is_table:
                found.add(tensor.name)
    return found


def _defined(node: "NodeProto", types: "Mapping[str, TypeProto]") -> "tuple[NodeProto, dict[str, TypeProto]]":
    """Return a node whose first result has the same shape, and the types of its inputs.

    It is another operator if ONNX does not define this one (`dispatch.toml`). Its operands are transposed as the node's
    attributes say, and an operand that the node stores packed has the sizes that they give. "=1" names the input with
    the result's element type, by default the first one.
    """
    import onnx

    if node.domain in ("", "ai.onnx") or node.op_type not in ONNX["results"]:
        return node, {name: types[name] for name in filter(None, node.input)}
    op, *positions = ONNX["results"][node.op_type].split()
    typed = int(positions.pop().removeprefix("=")) if positions[-1].startswith("=") else int(positions[0])
    names = [node.input[int(position)] for position in positions]
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    input_types = {}
    for name, flag in zip(names, ("transA", "transB"), strict=False):
        input_types[name] = kind = deepcopy(types[name])
        kind.tensor_type.elem_type = types[node.input[typed]].tensor_type.elem_type
        if op == "MatMul" and attributes.get(flag):
            last, other = kind.tensor_type.shape.dim[-1], kind.tensor_type.shape.dim[-2]
            last.dim_value, other.dim_value = other.dim_value, last.dim_value
    if op == "MatMul" and len(names) == 1:
        element = input_types[names[0]].tensor_type.elem_type
        names.append("packed")
        input_types["packed"] = onnx.helper.make_tensor_type_proto(element, [attributes["K"], attributes["N"]])
    defined = onnx.helper.make_node(op, names, node.output[:1])
    defined.attribute.extend(attribute for attribute in node.attribute if op in ("Gemm", "Conv"))
    return defined, input_types


def _computed_sizes(node: "NodeProto", types: "Types") -> list[int]:
    """Return the sizes of a loop's slice or results, or of the first result of ONNX Runtime's attention.

    Attention has a batch, a sequence, and the width of all heads. Query, key and value may be packed; the last of them
    that is a tensor of its own gives the width of a head.
    """
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    sizes, *others = (sizes_of(types[name]) for name in node.input[:3] if name)
    if "runs" in attributes:
        axis, runs = attributes["axis"], attributes["runs"]
        axis %= len(sizes) + (runs > 0)
        sizes[axis : axis + (runs == 0)] = [runs] * (runs > 0)
        return sizes
    heads = attributes["num_heads"]
    kv_heads = attributes.get("kv_num_heads", heads)
    *_, last = sizes, *others
    width = last[-1] // (kv_heads if others else heads + 2 * kv_heads) if len(last) == 3 else last[-1]
    return [*sizes[:2], heads * width]


def element_count(kind: "TypeProto | None") -> int | None:
    """Return the number of elements of a tensor's type; None if a size is unknown."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    is_sized = all(dim.HasField("dim_value") for dim in kind.tensor_type.shape.dim)
    return prod(sizes_of(kind)) if is_sized else None


def sizes_of(kind: "TypeProto") -> list[int]:
    """Return the sizes of a tensor's type; unknown ones are 0."""
    return [dim.dim_value for dim in kind.tensor_type.shape.dim]


def is_small(tensor: "TensorProto") -> bool:
    """Return whether a stored tensor keeps its values."""
    return prod(tensor.dims) <= MAX_VALUES and tensor.data_location != tensor.EXTERNAL


def _evaluate(
    node: "NodeProto", data: "Mapping[str, TensorProto]", types: "Mapping[str, TypeProto]", versions: dict[str, int]
) -> "list[TensorProto]":
    """Return the results of a node as small tensors, by ONNX's reference operators."""
    from onnx.numpy_helper import from_array, to_array
    from onnx.reference import ReferenceEvaluator

    if node.op_type in SHAPE_OPERATORS:  # a broadcast array has the shape and needs no memory
        inputs = {node.input[0]: np.broadcast_to(np.int8(0), sizes_of(types[node.input[0]]))}
    else:
        inputs = {name: to_array(tensor) for name, tensor in data.items()}
    return [from_array(np.asarray(result)) for result in ReferenceEvaluator(node, opsets=versions).run(None, inputs)]
