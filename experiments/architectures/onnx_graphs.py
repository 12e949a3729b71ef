"""The architectures as ONNX graphs; weights are named as external data, which need not exist."""

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from experiments.architectures import ARCHITECTURES, Value
from surrogate.dataset.files import atomic_path
from surrogate.features.errors import InputError, nearest
from surrogate.features.shape import output_size

OPSET = 20
_OPERATORS = {"relu": "Relu", "gelu": "Gelu", "sigmoid": "Sigmoid", "softmax": "Softmax"}


def onnx_model(name: str, batch: int = 1) -> Any:
    """The ``ModelProto`` of an architecture. Raises `InputError` for an unknown name."""
    from onnx import helper

    if name not in ARCHITECTURES:
        raise InputError(
            f"architecture {name!r} is unknown; known: {', '.join(ARCHITECTURES)}{nearest(name, ARCHITECTURES)}"
        )
    builder = OnnxBuilder()
    result = ARCHITECTURES[name](builder, batch)
    output = helper.make_tensor_value_info(str(result), builder.types[str(result)], None)
    graph = helper.make_graph(builder.nodes, name, builder.inputs, [output], builder.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def write_onnx(name: str, path: str | Path, batch: int = 1) -> None:
    """Write an architecture as an ONNX file, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(onnx_model(name, batch).SerializeToString())


class OnnxBuilder:
    """Collects nodes; tensors go by name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.weights: list[Any] = []
        self.types: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._count: Counter[str] = Counter()

    def shape(self, x: Value) -> tuple[int, ...]:
        """Sizes of a tensor."""
        return self._shapes[x]

    def image(self, name: str, shape: tuple[int, ...]) -> str:
        """A float input."""
        return self._input(name, shape, 1)

    def indices(self, name: str, shape: tuple[int, ...]) -> str:
        """An int64 input."""
        return self._input(name, shape, 7)

    def conv(
        self, x: str, k: int, r: int, *, stride: int = 1, pad: int | None = None, groups: int = 1, bias: bool = False
    ) -> str:
        """Conv."""
        n, c, h, w = self.shape(x)
        pad = (r - 1) // 2 if pad is None else pad
        inputs = [x, self._weight((k, c // groups, r, r)), *([self._weight((k,))] if bias else [])]
        size = (n, k, output_size(h, r, pad, stride, 1), output_size(w, r, pad, stride, 1))
        return self._node(
            "Conv", inputs, size, kernel_shape=[r, r], strides=[stride] * 2, pads=[pad] * 4, group=groups
        )  # fmt: skip

    def batch_norm(self, x: str) -> str:
        """BatchNormalization with stored statistics."""
        weights = [self._weight(self.shape(x)[1:2]) for _ in range(4)]
        return self._node("BatchNormalization", [x, *weights], self.shape(x))

    def layer_norm(self, x: str) -> str:
        """LayerNormalization over the last axis."""
        weights = [self._weight(self.shape(x)[-1:]) for _ in range(2)]
        return self._node("LayerNormalization", [x, *weights], self.shape(x), axis=-1)

    def activate(self, kind: str, x: str) -> str:
        """One input, one output of its shape."""
        if kind == "relu6":
            ends = [self._constant(0.0), self._constant(6.0)]
            return self._node("Clip", [x, *ends], self.shape(x))
        if kind == "lrn":
            return self._node("LRN", [x], self.shape(x), size=5)
        return self._node(_OPERATORS[kind], [x], self.shape(x))

    def add(self, a: str, b: str) -> str:
        """Add."""
        return self._node("Add", [a, b], self.shape(a))

    def scale(self, x: str, factor: float) -> str:
        """Mul by a stored number."""
        return self._node("Mul", [x, self._constant(factor)], self.shape(x))

    def concat(self, parts: list[str], axis: int = 1) -> str:
        """Concat."""
        size = list(self.shape(parts[0]))
        size[axis] = sum(self.shape(part)[axis] for part in parts)
        return self._node("Concat", parts, tuple(size), axis=axis)

    def pool(self, kind: str, x: str, r: int, *, stride: int, pad: int = 0, ceil: bool = False) -> str:
        """MaxPool or AveragePool."""
        n, c, h, w = self.shape(x)
        extra = stride - 1 if ceil else 0
        size = (n, c, output_size(h + extra, r, pad, stride, 1), output_size(w + extra, r, pad, stride, 1))
        operator = "MaxPool" if kind == "max" else "AveragePool"
        return self._node(
            operator, [x], size, kernel_shape=[r, r], strides=[stride] * 2, pads=[pad] * 4, ceil_mode=int(ceil)
        )  # fmt: skip

    def flatten(self, x: str, *, average: bool = False) -> str:
        """GlobalAveragePool if asked for, and Flatten."""
        n, c, *rest = self.shape(x)
        if average:
            x, rest = self._node("GlobalAveragePool", [x], (n, c, 1, 1)), [1]
        return self._node("Flatten", [x], (n, c * prod(rest)), axis=1)

    def linear(self, x: str, n: int) -> str:
        """Gemm of a matrix; MatMul and Add of anything larger."""
        size = self.shape(x)
        if len(size) == 2:
            inputs = [x, self._weight((n, size[1])), self._weight((n,))]
            return self._node("Gemm", inputs, (size[0], n), transB=1)
        product = self._node("MatMul", [x, self._weight((size[-1], n))], (*size[:-1], n))
        return self._node("Add", [product, self._weight((n,))], (*size[:-1], n))

    def matmul(self, a: str, b: str) -> str:
        """MatMul."""
        return self._node("MatMul", [a, b], (*self.shape(a)[:-1], self.shape(b)[-1]))

    def reshape(self, x: str, shape: tuple[int, ...]) -> str:
        """Reshape to stored sizes."""
        return self._node("Reshape", [x, self._integers(shape)], shape)

    def transpose(self, x: str, order: tuple[int, ...]) -> str:
        """Transpose."""
        return self._node("Transpose", [x], tuple(self.shape(x)[axis] for axis in order), perm=list(order))

    def lookup(self, indices: str, rows: int, dim: int, *, summed: bool = False) -> str:
        """Gather from a stored table, and ReduceSum over the bag."""
        size = self.shape(indices)
        gathered = self._node("Gather", [self._weight((rows, dim)), indices], (*size, dim), axis=0)
        if not summed:
            return gathered
        return self._node("ReduceSum", [gathered, self._integers((len(size) - 1,))], (*size[:-1], dim), keepdims=0)

    def _input(self, name: str, shape: tuple[int, ...], kind: int) -> str:
        from onnx import helper

        self.inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        self._shapes[name], self.types[name] = shape, kind
        return name

    def _node(self, operator: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        from onnx import helper

        name = self._name(operator)
        self.nodes.append(helper.make_node(operator, inputs, [f"{name}_out"], name=name, **attributes))
        self._shapes[f"{name}_out"], self.types[f"{name}_out"] = shape, 1
        return f"{name}_out"

    def _name(self, kind: str) -> str:
        self._count[kind] += 1
        return f"{kind}_{self._count[kind]}"

    def _weight(self, shape: tuple[int, ...]) -> str:
        from onnx import TensorProto

        name = self._name("weight")
        tensor = TensorProto(name=name, data_type=1, dims=shape, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="weights.bin")
        self.weights.append(tensor)
        return name

    def _constant(self, value: float) -> str:
        from onnx import helper

        name = self._name("constant")
        self.weights.append(helper.make_tensor(name, 1, [], [value]))
        return name

    def _integers(self, values: tuple[int, ...]) -> str:
        from onnx import helper

        name = self._name("sizes")
        self.weights.append(helper.make_tensor(name, 7, [len(values)], list(values)))
        return name
