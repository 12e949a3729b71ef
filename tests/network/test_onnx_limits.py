"""ONNX files made to hurt: functions that explode, sizes that are none, graphs whose parts do not fit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.network.onnx_file import MAX_NODES
from surrogate.network.read import read_network

onnx = pytest.importorskip("onnx")
helper, from_array = onnx.helper, onnx.numpy_helper.from_array
info = helper.make_tensor_value_info
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def _call(name: str, source: str, target: str):
    return helper.make_node(name, [source], [target], domain="own")


def _function(name: str, *nodes):
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), OPSETS)


def _write(path: Path, nodes, *, inputs=(("x", 1, [1, 3]),), weights=None, functions=(), known=()) -> Path:
    stored = [from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [info(*one) for one in inputs],
        [info("y", 1, None)],
        stored,
        value_info=[info(*k) for k in known],
    )
    made = helper.make_model(graph, opset_imports=OPSETS, functions=list(functions))
    path.write_bytes(made.SerializeToString())
    return path


def test_functions_that_explode_are_refused_before_they_do(tmp_path: Path) -> None:
    """Forty functions that each call the next one twice: 2⁴⁰ nodes."""
    twice = [_function(f"F{i}", _call(f"F{i + 1}", "a", "c"), _call(f"F{i + 1}", "c", "b")) for i in range(40)]
    last = _function("F40", helper.make_node("Relu", ["a"], ["b"]))
    path = _write(tmp_path / "bomb.onnx", [_call("F0", "x", "y")], functions=[*twice, last])
    with pytest.raises(InputError, match=f"more than {MAX_NODES} nodes"):
        read_network(path)


def test_functions_that_do_not_explode_are_expanded(tmp_path: Path) -> None:
    """Three of them, twice each: eight layers."""
    twice = [_function(f"F{i}", _call(f"F{i + 1}", "a", "c"), _call(f"F{i + 1}", "c", "b")) for i in range(3)]
    last = _function("F3", helper.make_node("Relu", ["a"], ["b"]))
    path = _write(tmp_path / "small.onnx", [_call("F0", "x", "y")], functions=[*twice, last])
    assert len(read_network(path).layers) == 8


@pytest.mark.parametrize("chain", [["F"], ["F", "G"], [f"F{i}" for i in range(150)]])
def test_functions_that_call_themselves_or_nest_too_deep(tmp_path: Path, chain: list[str]) -> None:
    """One, two in a circle, a long chain that ends in its own beginning."""
    functions = [_function(one, _call(then, "a", "b")) for one, then in zip(chain, [*chain[1:], chain[0]], strict=True)]
    path = _write(tmp_path / "loop.onnx", [_call(chain[0], "x", "y")], functions=functions)
    with pytest.raises(InputError, match="call themselves"):
        read_network(path)


def test_layer_norm_of_a_single_number_is_counted(tmp_path: Path) -> None:
    """It has no axis to go along."""
    nodes = [helper.make_node("MeanVarianceNormalization", ["x"], ["y"])]
    path = _write(tmp_path / "scalar.onnx", nodes, inputs=[("x", 1, [])])
    assert read_network(path).unsupported == {"MeanVarianceNormalization (0-D)": 1}


@pytest.mark.parametrize("batch", [0, -1, 2**31, 10**21])
def test_a_batch_beyond_what_cudnn_holds(tmp_path: Path, batch: int) -> None:
    """Refused by the reader, whatever asks."""
    path = _write(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])])
    with pytest.raises(InputError, match="batch is"):
        read_network(path, batch=batch)


SIZES = st.sampled_from([0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63)])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_structure_never_ends_in_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    """Operators, names, sizes, attributes and types exchanged: a network, or one line."""
    weights = {"w": np.zeros((4, 3, 3, 3), "f4"), "to": np.array([2, -1]), "v": np.zeros((784, 5), "f4")}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], strides=[1, 1]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[1, 1]),
        helper.make_node("Reshape", ["p", "to"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"], axis=-1),
    ]
    path = _write(tmp_path / "net.onnx", nodes, inputs=[("x", 1, [2, 3, 16, 16])], weights=weights)
    model = onnx.load(path)
    names = ["x", "w", "c", "p", "to", "r", "v", "m", "y", "", "nowhere"]
    ops = [
        "Conv",
        "ConvTranspose",
        "Gemm",
        "Concat",
        "Slice",
        "If",
        "LRN",
        "GlobalMaxPool",
        "ReduceSum",
        "Gather",
    ]
    for _ in range(data.draw(st.integers(1, 4))):
        one = data.draw(st.sampled_from(list(model.graph.node)))
        how = data.draw(st.integers(0, 6))
        if how == 0:
            one.op_type = data.draw(st.sampled_from(ops))
        elif how == 1 and one.input:
            one.input[-1] = data.draw(st.sampled_from(names))
        elif how == 2:
            one.output[0] = data.draw(st.sampled_from(names))
        elif how == 3 and one.attribute:
            one.attribute[0].ints[:] = data.draw(st.lists(SIZES, max_size=3))
        elif how == 4:
            model.graph.input[0].type.tensor_type.shape.dim[data.draw(st.integers(0, 3))].dim_value = data.draw(SIZES)
        elif how == 5:
            model.graph.initializer[0].dims[0] = data.draw(SIZES)
        else:
            model.graph.initializer[1].data_type = data.draw(st.sampled_from([0, 1, 8, 10, 99]))
    path.write_bytes(model.SerializeToString())
    try:
        found = read_network(path, batch=data.draw(st.none() | st.just(4)), training=data.draw(st.booleans()))
        assert found.layers or found.unsupported
    except InputError as error:
        assert "\n" not in str(error)
