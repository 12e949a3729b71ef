"""Dependency graphs of small invented traces whose answer is worked out by hand, and of the real ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from experiments.replay_error import no_delays, times_of_other_iterations, typical_delays, without
from experiments.sources import Sources
from experiments.traces import DLRM, workers
from surrogate.trace import trim
from surrogate.trace.graph import EDGE_KINDS, TASK_KINDS, Graph, graph_of, simulate
from surrogate.trace.graph.tasks import HANDOVER
from tests.known import cases
from tests.trace.events import call, device, event

MAIN, OTHER = 1, 2
TRAINING = ("resnet50_b32_training_v100.json.gz", "vgg13_b128_training_h100.json.gz")
NO_GPU = ("edge_no_gpu_events.json.gz", "edge_no_distributed_info.json.gz")


host = partial(event, "cpu_op")


@pytest.fixture
def graph(read) -> Callable[..., Graph]:
    return lambda *events: graph_of(read({"traceEvents": list(events)}))


def edges(graph: Graph, kind: str) -> set[tuple[str, str]]:
    rows = np.flatnonzero(graph.edge_kind == EDGE_KINDS.index(kind))
    return {(graph.name_of(graph.src[e]), graph.name_of(graph.dst[e])) for e in rows.tolist()}


def of(graph: Graph, name: str, kind: str | None = None) -> list[int]:
    rows = [i for i in range(len(graph)) if graph.name_of(i) == name]
    return [i for i in rows if kind is None or TASK_KINDS[graph.kind[i]] == kind]


def replays(graph: Graph) -> None:
    np.testing.assert_allclose(simulate(graph).start_us, graph.measured_us, atol=1e-3)


def test_calls_and_the_work_between_them(graph):
    one = graph(
        host("op", 0, 40), call("cudaLaunchKernel", 10, 5, 1), call("cudaEventRecord", 25, 5, 2), device("k", 20, 10, 1)
    )
    rows = [i for i in range(len(one)) if one.resources[one.resource[i]].kind == "thread"]
    tasks = [i for i in rows if one.kind[i] != TASK_KINDS.index("mark")]
    assert [(TASK_KINDS[one.kind[i]], one.measured_us[i], one.duration_us[i]) for i in tasks] == [
        ("host work", 0, 10),
        ("call", 10, 5),
        ("host work", 15, 10),
        ("call", 25, 5),
        ("host work", 30, 10),
    ]
    assert edges(one, "launch") == {("cudaLaunchKernel", "k")}
    replays(one)


def test_a_kernel_follows_the_later_of_launch_and_stream(graph):
    """The second kernel was launched early: it follows the first. The third one's stream was idle: its launch."""
    one = graph(
        host("op", 0, 200),
        call("cudaLaunchKernel", 10, 5, 1),
        call("cudaLaunchKernel", 20, 5, 2),
        call("cudaLaunchKernel", 150, 5, 3),
        device("a", 20, 80, 1),
        device("b", 101, 10, 2),
        device("c", 160, 10, 3),
    )
    replays(one)
    a, b, c = (of(one, name)[0] for name in "abc")
    slow = one.duration_us.copy()
    slow[a] += 100
    later = simulate(replace(one, duration_us=slow)).start_us
    assert later[b] == pytest.approx(201) and later[c] == pytest.approx(212)
    early = one.duration_us.copy()
    early[a] = 0
    sooner = simulate(replace(one, duration_us=early)).start_us
    # Launch at 20 µs and the typical latency of 10 µs.
    assert sooner[b] == pytest.approx(30) and sooner[c] == pytest.approx(160)


@cases(__file__)
def test_what_waits_for_what(graph, events, kind, waits, tasks, coverage):
    """Calls for their stream or all of them, copies and the queue, streams for events of others, branches of a graph:
    the edges of a kind, (start, time) of tasks in the host's time, and counts."""
    builders = {"call": call, "device": device}
    one = graph(host("op", 0, 200), *(builders[word](*given, **keywords) for word, *given, keywords in events))
    assert edges(one, kind) == {(before, after) for before, after in waits}
    assert {name: [[one.measured_us[i], one.duration_us[i]] for i in of(one, name)] for name in tasks} == tasks
    assert {name: one.coverage[name] for name in coverage} == coverage
    replays(one)


def test_autograd_takes_over_and_hands_back(graph):
    backward: dict[str, Any] = {"Fwd thread id": 1, "Sequence number": 3}
    one = graph(
        event("user_annotation", "ProfilerStep#1", 0, 300),
        host("forward", 10, 50),
        host("ReluBackward0", 100, 40, OTHER, **backward),
        host("ConvBackward0", 150, 50, OTHER, **backward),
        host("step", 220, 30),
    )
    assert one.coverage["edges"]["thread hand-over"] == 2
    slow = one.duration_us.copy()
    slow[of(one, "forward")] += 1000
    slow[of(one, "ConvBackward0")] += 500
    found = simulate(replace(one, duration_us=slow)).start_us
    assert found[of(one, "ReluBackward0")[0]] == pytest.approx(1100)
    assert found[of(one, "step")[0]] == pytest.approx(1720)
    replays(one)


def test_a_thread_on_its_own_gets_no_hand_over(graph):
    one = graph(
        host("main", 0, 100), host("main", 110, 90), host("loader", 30, 90, OTHER), host("loader", 130, 30, OTHER)
    )
    assert one.coverage["edges"]["thread hand-over"] == 0
    replays(one)


def test_what_cannot_be_attached_is_counted_and_keeps_its_time(graph):
    one = graph(host("op", 0, 50), device("orphan", 100, 10, 99), device("next", 150, 10, 98))
    assert one.coverage["activities_without_call"] == 2 and one.coverage["attached_pct"] == 0
    replays(one)


def test_time_per_iteration_charges_what_a_change_adds_to_the_tail(read):
    """Two steps of 1000 µs, in each a kernel of 400 µs that runs 300 µs past it. At twice the time the last one ends
    400 µs later than recorded, 200 an iteration; faster kernels leave the host's pace."""
    events = [
        each
        for step in (0, 1)
        for each in (
            event("user_annotation", f"ProfilerStep#{step}", 1000 * step, 1000),
            host("op", 1000 * step + 850, 100),
            call("cudaLaunchKernel", 1000 * step + 880, 10, step + 1),
            device("k", 1000 * step + 900, 400, step + 1),
        )
    ]
    one = graph_of(read({"traceEvents": events}))
    kernels = one.kind == TASK_KINDS.index("kernel")
    assert one.coverage["device_behind_us"] == [300, 300]
    for factor, expected in ((1, 1000), (0.5, 1000), (2, 1200)):
        changed = replace(one, duration_us=np.where(kernels, factor * one.duration_us, one.duration_us))
        assert simulate(changed).per_iteration_us == pytest.approx(expected)


def test_a_device_that_falls_behind_tells_how_long_steps_are(read):
    """Three steps of 1,000 µs on the host and 1,400 on the device: faster kernels help until the host is the slower."""
    events = [
        each
        for step in range(3)
        for each in (
            event("user_annotation", f"ProfilerStep#{step}", 1000 * step, 1000),
            host("op", 1000 * step, 100),
            call("cudaLaunchKernel", 1000 * step + 10, 10, step + 1),
            device("k", 20 + 1400 * step, 1400, step + 1),
        )
    ]
    one = graph_of(read({"traceEvents": events}))
    assert simulate(one).device_lag_us == pytest.approx(400)
    kernels = one.kind == TASK_KINDS.index("kernel")
    for factor, expected in ((1, 1400), (0.9, 1260), (0.5, 1000)):
        changed = replace(one, duration_us=np.where(kernels, factor * one.duration_us, one.duration_us))
        assert simulate(changed).per_iteration_us == pytest.approx(expected)


@pytest.mark.parametrize("events", [[host("op", 0, 10)], [device("k", 5, 5, 1)]])
def test_next_to_nothing(read, events):
    one = graph_of(read({"traceEvents": events}))
    assert simulate(one).total_us == pytest.approx(sum(e["dur"] for e in events))


@pytest.mark.parametrize("name", [*TRAINING, "nsys_power_iteration.sqlite", *NO_GPU])
def test_real_traces_replay(real, name):
    one = graph_of(real(name))
    timeline = simulate(one)
    measured = [iteration.time_us for iteration in one.iterations]
    np.testing.assert_allclose(timeline.iteration_us(), measured, rtol=1e-3)
    assert timeline.per_iteration_us == pytest.approx(np.mean(measured), rel=2e-3)
    tasks = one.kind != TASK_KINDS.index("mark")
    np.testing.assert_allclose(timeline.start_us[tasks], one.measured_us[tasks], atol=1e-2)
    assert (one.src < one.dst).all()
    assert one.coverage["device_tasks"] == len(real(name).activities)


def test_one_iteration_alone_replays(resnet):
    one = graph_of(trim(resnet, iterations_kept=[2]))
    assert simulate(one).iteration_us() == pytest.approx([176918.0])


def largest_error(graph: Graph) -> float:
    """Of an iteration, relative."""
    found = zip(graph.iterations, simulate(graph).iteration_us(), strict=True)
    return max(abs(time_us / one.time_us - 1) for one, time_us in found)


@pytest.mark.parametrize("name", TRAINING)
def test_replays_without_delays_of_its_own(real, name):
    """Typical delays in place of measured ones: the dependencies alone give the time, within 0.5 %."""
    one = graph_of(real(name))
    assert 0 < largest_error(typical_delays(one)) < 0.005
    assert largest_error(no_delays(one)) < 0.005


def test_other_iterations_predict_one(resnet):
    changed = times_of_other_iterations(graph_of(resnet))
    assert changed is not None and largest_error(changed) < 0.005


def test_hand_over_matters(resnet):
    assert largest_error(without(HANDOVER)(graph_of(resnet))) > 0.1


def test_workers_of_dlrm(measurements):
    """Eight workers, each within 0.5 % by typical delays, their collectives on streams of their own."""
    sources = Sources(measurements)
    found = [graph_of(trace) for trace in workers(sources, DLRM)]
    assert len(found) == 8
    for one in found:
        assert largest_error(one) < 1e-6 and largest_error(typical_delays(one)) < 0.005
        assert (one.kind == TASK_KINDS.index("collective")).sum() >= 5
        assert one.coverage["edges"]["event wait"] > 0
