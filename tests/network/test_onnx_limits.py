"""ONNX files whose functions call one another, and batches out of range."""

from pathlib import Path

import pytest

from surrogate.network.read import read_network

onnx = pytest.importorskip("onnx")
helper, from_array = onnx.helper, onnx.numpy_helper.from_array
info = helper.make_tensor_value_info
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def _call(name: str, source: str, target: str):
    return helper.make_node(name, [source], [target], domain="own")


def _function(name: str, *nodes):
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), OPSETS)


def _write(path: Path, nodes, *, inputs=(("x", 1, [1, 3]),), weights=None, functions=(), shapes=()) -> Path:
    stored = [from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(
        nodes, "g", [info(*i) for i in inputs], [info("y", 1, None)], stored, value_info=[info(*s) for s in shapes]
    )
    path.write_bytes(helper.make_model(graph, opset_imports=OPSETS, functions=list(functions)).SerializeToString())
    return path


def test_nested_functions_are_expanded(tmp_path: Path) -> None:
    """Each of three functions calls the next one twice, which gives eight layers."""
    twice = [_function(f"F{i}", _call(f"F{i + 1}", "a", "c"), _call(f"F{i + 1}", "c", "b")) for i in range(3)]
    last = _function("F3", helper.make_node("Relu", ["a"], ["b"]))
    path = _write(tmp_path / "small.onnx", [_call("F0", "x", "y")], functions=[*twice, last])
    assert len(read_network(path).layers) == 8


def test_functions_that_call_each_other_are_refused(refused, tmp_path: Path) -> None:
    functions = [_function(name, _call(called, "a", "b")) for name, called in ("FG", "GF")]
    path = _write(tmp_path / "loop.onnx", [_call("F", "x", "y")], functions=functions)
    with refused("call themselves"):
        read_network(path)


@pytest.mark.parametrize("batch", [0, 2**31])
def test_a_batch_out_of_range_is_refused(refused, tmp_path: Path, batch: int) -> None:
    path = _write(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])])
    with refused("batch is"):
        read_network(path, batch=batch)
