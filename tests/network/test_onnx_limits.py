"""ONNX files whose functions call one another, and batches out of range."""

import numpy as np
import pytest

from surrogate.network.read import read_network

onnx = pytest.importorskip("onnx")
helper = onnx.helper
OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]


def _call(name: str, source: str, target: str):
    return helper.make_node(name, [source], [target], domain="own")


def _function(name: str, *nodes):
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), OPSETS)


def test_nested_functions_are_expanded(onnx_file) -> None:
    """Each of three functions calls the next one twice, which gives eight layers."""
    twice = [_function(f"F{i}", _call(f"F{i + 1}", "a", "c"), _call(f"F{i + 1}", "c", "b")) for i in range(3)]
    last = _function("F3", helper.make_node("Relu", ["a"], ["b"]))
    path = onnx_file([_call("F0", "x", "y")], {"x": [1, 3]}, functions=[*twice, last])
    assert len(read_network(path).layers) == 8


def test_functions_that_call_each_other_are_refused(refused, onnx_file) -> None:
    functions = [_function(name, _call(called, "a", "b")) for name, called in ("FG", "GF")]
    path = onnx_file([_call("F", "x", "y")], {"x": [1, 3]}, functions=functions)
    with refused("call themselves"):
        read_network(path)


def test_doubled_lists_take_no_memory(onnx_file) -> None:
    """Sixty nodes describe a list of 2**61 integers."""
    nodes = [helper.make_node("Concat", [f"c{i}"] * 2, [f"c{i + 1}"], axis=0) for i in range(60)]
    nodes += [helper.make_node("Expand", ["x", "c60"], ["e"]), helper.make_node("Relu", ["e"], ["y"])]
    assert read_network(onnx_file(nodes, {"x": [4]}, {"c0": np.ones(2, "i8")})).unsupported


@pytest.mark.parametrize("batch", [0, 2**31])
def test_a_batch_out_of_range_is_refused(refused, onnx_file, batch: int) -> None:
    path = onnx_file([helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 3]})
    with refused("batch is"):
        read_network(path, batch=batch)
