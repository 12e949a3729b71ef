"""Steps of invented traces: outermost operators, annotations, input waits, calls outside operators."""

import pytest

from surrogate.trace import events
from surrogate.trace.iteration.overheads import host_work, segments
from tests.trace.events import device, event


@pytest.fixture
def work_of(read):
    return lambda *events: host_work(read({"schemaVersion": 1, "traceEvents": list(events)}))


def test_host_steps_of_the_invented_trace(read, make_trace):
    """Each step has conv2d, relu, two backward operators, SGD's add_ inside its annotation, and copy_."""
    work = host_work(read(make_trace(steps=2)))
    names = ["aten::conv2d", "aten::relu", "ReluBackward0", "ConvolutionBackward0", "aten::add_", "aten::copy_"]
    assert [step.name for step in work.steps] == names * 2
    assert [step.iteration for step in work.steps] == [0] * 6 + [1] * 6
    assert {step.thread for step in work.steps[2:4]} != {step.thread for step in work.steps[:2]}
    assert all(len(step.launches) == 1 for step in work.steps) and work.unattached == ()
    copy = work.steps[5].launches[0]
    assert copy.host_waits and copy.blocked_us == 70.0  # the copy ends 70 µs into the call of 80 µs
    parts = segments(work.steps[0])
    assert parts.first == (20.0, 1) and parts.last == (70.0, 1)
    assert segments(work.steps[5]).launches[0][1] == 10.0


def test_calls_outside_operators_and_input_waits_are_units(work_of, table_events):
    work = work_of(*table_events)
    names = ["enumerate(DataLoader)#__next__", "cudaLaunchKernel", "cudaDeviceSynchronize"]
    assert [step.name for step in work.steps] == names
    assert [(step.is_input, step.is_operator) for step in work.steps] == [(True, False), (False, False), (False, False)]
    assert work.steps[2].actions[0].kind == events.SYNC_CALL


def test_annotation_is_a_unit_only_without_operators(work_of, table_events):
    """An annotation around operators is no step; numbers in the name of an empty one become #."""
    work = work_of(*table_events)
    assert [step.name for step in work.steps] == ["aten::a", "idle #"]
    assert work.steps[0].events_ns == (12_000,)


def test_pageable_copy_joins_if_the_call_outlasts_it(work_of):
    call = event("cuda_runtime", "cudaMemcpyAsync", 0, 50, correlation=1)
    copy = "Memcpy HtoD (Pageable -> Device)"
    blocking = work_of(call, device(copy, 10, 30, 1, category="gpu_memcpy", bytes=8))
    staged = work_of(call, device(copy, 10, 90, 1, category="gpu_memcpy", bytes=8))
    assert blocking.steps[0].actions[0].host_waits and blocking.steps[0].actions[0].blocked_us == 40.0
    assert not staged.steps[0].actions[0].host_waits


def test_kernel_without_a_call_is_unattached(work_of):
    work = work_of(event("cpu_op", "aten::a", 0, 20), device("k", 5, 5, 99))
    assert len(work.unattached) == 1 and work.steps[0].actions == ()
