"""Shapes from PyTorch execution traces, both schemas."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from surrogate.trace.events.execution import read_execution_trace, with_execution_trace
from surrogate.trace.events.read import read_trace

_OPERATORS = [
    ("aten::conv2d", 1, [[8, 3, 32, 32], [16, 3, 3, 3], [16]], ["Tensor(float)"] * 3),
    (
        "aten::cudnn_convolution",
        1,
        [[8, 3, 32, 32], [16, 3, 3, 3], [[], []]],
        ["Tensor(float)"] * 2 + ["GenericList[Int,Int]"],
    ),
    ("aten::relu", 1, [[8, 16, 30, 30]], ["Tensor(float)"]),
    ("ReluBackward0", 2, [[8, 16, 30, 30]], ["Tensor(float)"]),
    ("ConvolutionBackward0", 2, [[8, 16, 30, 30]], ["Tensor(float)"]),
    ("aten::convolution_backward", 2, [[8, 16, 30, 30], [8, 3, 32, 32], [16, 3, 3, 3]], ["Tensor(float)"] * 3),
    ("aten::add_", 1, [[16, 3, 3, 3], [16, 3, 3, 3], []], ["Tensor(float)"] * 2 + ["Int"]),
    ("aten::copy_", 1, [[10], [10]], ["Tensor(float)"] * 2),
]


def _flat(number, name, thread, shapes, types):
    values = [[1, 2, 0, 5, 4, "cuda:0"] if "Tensor" in t else [1, 1] for t in types]
    return {
        "name": name,
        "id": number,
        "rf_id": number,
        "parent": 1,
        "tid": thread,
        "inputs": values,
        "input_shapes": shapes,
        "input_types": types,
        "output_shapes": [[7, 7]],
    }


def _chakra(number, name, thread, shapes, types):
    flat = _flat(number, name, thread, shapes, types)
    return {
        "name": name,
        "id": number,
        "ctrl_deps": 1,
        "outputs": {"shapes": [[7, 7]]},
        "inputs": {"values": flat["inputs"], "shapes": shapes, "types": types},
        "attrs": [{"name": "rf_id", "value": number}, {"name": "tid", "value": thread}],
    }


def _nodes(layout):
    return {"schema": "1", "nodes": [layout(10 + i, *one) for i, one in enumerate(_OPERATORS)]}


@pytest.mark.parametrize("layout", [_flat, _chakra])
def test_shapes_arrive_at_their_operators(make_trace, read, tmp_path, layout):
    trace = make_trace(steps=2)
    for event in trace["traceEvents"]:
        event.get("args", {}).pop("Input Dims", None)
    path = tmp_path / "execution.json"
    path.write_text(json.dumps(_nodes(layout)))
    found = with_execution_trace(read(trace), path)
    assert found.notes == ("16 of 16 operators have shapes of the execution trace",)
    for row in range(len(found.ranges)):
        name = found.name_of(found.ranges, row)
        given = {n: s for n, _, s, _ in _OPERATORS}.get(name)
        if given is not None:
            assert found.shapes_of(row)[0] == tuple(given[0])
            assert found.shapes[found.ranges.outputs[row]] == ((7, 7),)
    (conv, *_) = np.flatnonzero(found.named(found.ranges, "aten::cudnn_convolution".__eq__))
    assert found.shapes_of(conv)[2] == ()  # a list of numbers has no shape
    assert found.inputs[found.ranges.inputs[conv]] == ("", "", "[1, 1]")


def test_what_the_profiler_recorded_is_kept(make_trace, read, tmp_path):
    path = tmp_path / "execution.json"
    path.write_text(json.dumps(_nodes(_flat)).replace("32, 32", "64, 64"))
    before = read(make_trace(steps=1))
    after = with_execution_trace(before, path)
    (conv,) = np.flatnonzero(after.named(after.ranges, "aten::conv2d".__eq__))
    assert after.shapes_of(conv)[0] == before.shapes_of(conv)[0] == (8, 3, 32, 32)


@pytest.mark.slow
def test_another_programs_execution_trace_is_refused(refused, real, measurements):
    trace = real("resnet_training_2080ti_no_dims.json.gz")  # a ResNet-18; the execution trace is a ResNet-50's
    path = measurements / "traces" / "resnet_training_2080ti_execution_trace.json.gz"
    with refused("same program"):
        with_execution_trace(trace, path)


@pytest.fixture(scope="module")
def dlrm(measurements, tmp_path_factory) -> tuple[Path, Path]:
    """Trace and execution trace of one of the eight DLRM workers."""
    folder = tmp_path_factory.mktemp("dlrm")
    paths = []
    for archive, mark in (("dlrm_8_workers_v100", "worker3_"), ("dlrm_8_workers_v100_execution_trace", "eg_3.")):
        with tarfile.open(measurements / "traces" / f"{archive}.tar.gz") as packed:
            name = next(name for name in packed.getnames() if mark in name)
            packed.extract(name, folder, filter="data")
            paths.append(folder / name)
    return paths[0], paths[1]


def test_joined_shapes_equal_the_recorded_ones(dlrm):
    """This worker's profiler recorded shapes too: an oracle for the join."""
    trace = read_trace(dlrm[0])
    unknown = np.full(len(trace.ranges), -1)
    blank = replace(trace, ranges=replace(trace.ranges, shapes=unknown, types=unknown))
    joined = with_execution_trace(blank, dlrm[1])
    compared = 0
    for row in range(len(trace.ranges)):
        recorded, found = trace.shapes_of(row), joined.shapes_of(row)
        if recorded is None or found is None:
            continue
        for a, b in zip(recorded, found, strict=True):
            if a != () and a is not None:  # lists of tensors are () in the profiler's record
                assert a == b
                compared += 1
    assert compared > 1000
    assert len(read_execution_trace(dlrm[1])) == 1675
