"""Operator calls of a trace as problems: shapes from neighbouring calls, other batches, unsupported calls."""

import numpy as np
import pytest

from surrogate.features.conv import Conv
from surrogate.features.families import operator
from surrogate.features.families.gemm import Addmm, Gemm
from surrogate.network.aten_call import UnsupportedError
from surrogate.trace.calls import CallReader, rebatched

FLOPS = 2 * 8 * 16 * 30 * 30 * 3 * 3 * 3
CONV = Conv(n=8, c=3, h=32, k=16, r=3)


def rows_of(trace, name):
    return [row for row in range(len(trace.ranges)) if trace.name_of(trace.ranges, row) == name]


def test_forward_convolution_takes_its_output_from_the_backward_pass(make_trace, read):
    trace = read(make_trace(steps=1))
    reader = CallReader(trace)
    (forward,) = rows_of(trace, "aten::cudnn_convolution")
    assert reader.problems(forward) == (CONV,)
    work = reader.flops_bytes_dtype(forward)
    assert work is not None and work[::2] == (FLOPS, "fp32")
    (backward,) = rows_of(trace, "aten::convolution_backward")
    assert [conv.direction for conv in reader.problems(backward)] == ["bwd_data", "bwd_filter"]
    work = reader.flops_bytes_dtype(backward)
    assert work is not None and work[0] == 2 * FLOPS


def test_forward_convolution_without_backward_takes_its_output_from_the_next_operator(make_trace, read):
    """The next operator is relu; without it, output, stride and padding are unknown."""
    trace = make_trace(steps=1)
    events = [e for e in trace["traceEvents"] if "ackward" not in e["name"]]
    without_relu = read({"traceEvents": [e for e in events if "relu" not in e["name"]]})
    with pytest.raises(UnsupportedError, match="output"):
        CallReader(without_relu).problems(rows_of(without_relu, "aten::cudnn_convolution")[0])
    followed = read({"traceEvents": events})
    assert CallReader(followed).problems(rows_of(followed, "aten::cudnn_convolution")[0]) == (CONV,)


def test_backward_convolution_parts_take_shapes_from_the_enclosing_call(read, table_events):
    trace = read({"traceEvents": table_events})
    reader = CallReader(trace)
    assert [reader.problems(row)[0].direction for row in (1, 2)] == ["bwd_data", "bwd_filter"]  # type: ignore[index]
    lonely = read({"traceEvents": table_events[1:]})
    with pytest.raises(UnsupportedError, match="around it"):
        CallReader(lonely).problems(0)


def test_every_convolution_of_resnet50_becomes_a_problem(resnet):
    reader = CallReader(resnet)
    rows = rows_of(resnet, "aten::cudnn_convolution")
    assert len(rows) == 53 * 6
    convs = [reader.problems(row)[0] for row in rows]
    assert sum(float(conv.flops) for conv in convs) / 6 / 32 == pytest.approx(8.2e9, rel=0.03)
    assert np.all([reader.flops_bytes_dtype(row)[0] == conv.flops for row, conv in zip(rows, convs, strict=True)])  # type: ignore[index]


def test_rebatched_replaces_the_batch_dimension():
    assert rebatched(Conv(n=32, c=3, h=8, k=4, r=3), 32, 64).n == 64  # type: ignore[index]
    assert rebatched(Addmm(m=32, k=8, n=9), 32, 48) == Addmm(m=48, k=8, n=9)
    assert rebatched(Gemm(m=9, k=32, n=8), 32, 48) == Gemm(m=9, k=48, n=8)
    assert rebatched(operator("relu", n=32, c=8), 32, 1) == operator("relu", n=1, c=8)
    assert rebatched(operator("relu", n=9), 32, 1) == operator("relu", n=9)


@pytest.mark.parametrize("problem", [Gemm(m=32, k=32, n=8), operator("relu", n=64), Conv(n=33, c=3, h=8, k=4, r=3)])
def test_rebatched_refuses_ambiguous_batches(problem):
    with pytest.raises(UnsupportedError, match="batch dimension"):
        rebatched(problem, 32, 64)
