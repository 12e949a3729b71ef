"""Dependency graphs of invented traces with hand-computed answers, and of real traces."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from experiments.sources import DLRM, Sources
from surrogate.trace import trim
from surrogate.trace.graph import EDGE_KINDS, TASK_KINDS, Graph, graph_of, simulate
from surrogate.trace.graph.tasks import DEVICE_KINDS, HANDOVER, LAUNCH, previous_on_resource
from tests.known import cases
from tests.trace.events import built, call, device, event

TRAINING = ("resnet50_b32_training_v100.json.gz", "vgg13_b128_training_h100.json.gz")
NO_GPU = ("edge_no_gpu_events.json.gz", "edge_no_distributed_info.json.gz")


host = partial(event, "cpu_op")


@pytest.fixture
def build_graph(read) -> Callable[..., Graph]:
    return lambda *events: graph_of(read({"traceEvents": list(events)}))


def edges(graph: Graph, kind: str) -> set[tuple[str, str]]:
    rows = np.flatnonzero(graph.edge_kind == EDGE_KINDS.index(kind))
    return {(graph.name_of(graph.src[e]), graph.name_of(graph.dst[e])) for e in rows.tolist()}


def tasks_of(graph: Graph, name: str, kind: str | None = None) -> list[int]:
    rows = [i for i in range(len(graph)) if graph.name_of(i) == name]
    return [i for i in rows if kind is None or TASK_KINDS[graph.kind[i]] == kind]


def check_replay(graph: Graph) -> None:
    np.testing.assert_allclose(simulate(graph).start_us, graph.measured_us, atol=1e-3)


def test_host_time_splits_into_calls_and_work(build_graph, table_events):
    graph = build_graph(*table_events)
    rows = [i for i in range(len(graph)) if graph.resources[graph.resource[i]].kind == "thread"]
    tasks = [i for i in rows if graph.kind[i] != TASK_KINDS.index("mark")]
    assert [TASK_KINDS[graph.kind[i]] for i in tasks] == ["host work", "call", "host work", "call", "host work"]
    assert graph.measured_us[tasks].tolist() == [0, 10, 15, 25, 30]
    assert graph.duration_us[tasks].tolist() == [10, 5, 10, 5, 10]
    assert edges(graph, "launch") == {("cudaLaunchKernel", "k")}
    check_replay(graph)


def test_kernel_starts_after_its_launch_and_its_stream(build_graph, table_events):
    """The second kernel waits for the first; the third waits for its launch, because its stream is idle."""
    graph = build_graph(*table_events)
    check_replay(graph)
    a, b, c = (tasks_of(graph, name)[0] for name in "abc")
    slow = graph.duration_us.copy()
    slow[a] += 100
    later = simulate(replace(graph, duration_us=slow)).start_us
    assert later[b] == pytest.approx(201) and later[c] == pytest.approx(212)
    early = graph.duration_us.copy()
    early[a] = 0
    sooner = simulate(replace(graph, duration_us=early)).start_us
    # The launch is at 20 µs, and the typical latency is 10 µs.
    assert sooner[b] == pytest.approx(30) and sooner[c] == pytest.approx(160)


@cases(__file__)
def test_waits_become_edges(build_graph, events, kind, waits, tasks, coverage):
    graph = build_graph(host("op", 0, 200), *built(events))
    assert edges(graph, kind) == {(before, after) for before, after in waits}
    times = {name: [[graph.measured_us[i], graph.duration_us[i]] for i in tasks_of(graph, name)] for name in tasks}
    assert times == tasks
    assert {name: graph.coverage[name] for name in coverage} == coverage
    check_replay(graph)


def test_control_passes_to_the_autograd_thread_and_back(build_graph, table_events):
    graph = build_graph(*table_events)
    assert graph.coverage["edges"]["thread hand-over"] == 2
    slow = graph.duration_us.copy()
    slow[tasks_of(graph, "forward")] += 1000
    slow[tasks_of(graph, "ConvBackward0")] += 500
    found = simulate(replace(graph, duration_us=slow)).start_us
    assert found[tasks_of(graph, "ReluBackward0")[0]] == pytest.approx(1100)
    assert found[tasks_of(graph, "step")[0]] == pytest.approx(1720)
    check_replay(graph)


def test_independent_thread_gets_no_handover_edge(build_graph, table_events):
    graph = build_graph(*table_events)
    assert graph.coverage["edges"]["thread hand-over"] == 0
    check_replay(graph)


def test_kernels_without_a_call_are_counted_and_keep_their_time(build_graph):
    graph = build_graph(host("op", 0, 50), device("orphan", 100, 10, 99), device("next", 150, 10, 98))
    assert graph.coverage["activities_without_call"] == 2 and graph.coverage["attached_pct"] == 0
    check_replay(graph)


@pytest.fixture
def graph_of_steps(build_graph) -> Callable[..., Graph]:
    """Return a function: start of the operator in a step of 1,000 µs, and starts and time of kernels → graph."""

    def build(start_us: float, kernel_starts_us: list[float], kernel_us: float) -> Graph:
        events = []
        for step, kernel_start_us in enumerate(kernel_starts_us):
            events += [
                event("user_annotation", f"ProfilerStep#{step}", 1000 * step, 1000),
                host("op", 1000 * step + start_us, 100),
                call("cudaLaunchKernel", 1000 * step + start_us + 10, 10, step + 1),
                device("k", kernel_start_us, kernel_us, step + 1),
            ]
        return build_graph(*events)

    return build


def check_scaled_kernels(graph: Graph, iteration_us_of: dict[float, float]) -> None:
    kernels = graph.kind == TASK_KINDS.index("kernel")
    for factor, expected in iteration_us_of.items():
        changed = replace(graph, duration_us=np.where(kernels, factor * graph.duration_us, graph.duration_us))
        assert simulate(changed).per_iteration_us == pytest.approx(expected)


def test_iteration_time_includes_a_longer_tail(graph_of_steps):
    """The kernel of each step ends 300 µs after the step; at twice its time, the trace ends 400 µs later."""
    graph = graph_of_steps(850, [900, 1900], 400)
    assert graph.coverage["device_behind_us"] == [300, 300]
    check_scaled_kernels(graph, {1: 1000, 0.5: 1000, 2: 1200})


@pytest.mark.parametrize("kept", [[0, 1], [1], [1, 2]])
def test_first_step_with_an_empty_queue_does_not_count(read, kept):
    """Each step launches two kernels of 700 µs and waits for the first one: 1,400 µs, but the first takes 730 µs."""
    events = []
    for step, start_us in enumerate([0, 730, 2130]):
        kernel_us, end_us = 1400 * step + 20, 1400 * step + 730
        calls = [call("cudaLaunchKernel", start_us + 10 * i, 10, 2 * step + i) for i in (1, 2)]
        kernels = [device("k", kernel_us + 700 * i, 700, 2 * step + i + 1) for i in (0, 1)]
        wait = call("cudaEventSynchronize", start_us + 40, end_us - start_us - 45, 90 + step)
        events += [
            event("user_annotation", f"ProfilerStep#{step}", start_us, end_us - start_us),
            *calls,
            *kernels,
            wait,
        ]
    graph = graph_of(trim(read({"traceEvents": events}), iterations_kept=kept))
    assert simulate(graph).per_iteration_us == pytest.approx(1400)


def test_slower_device_determines_the_iteration_time(graph_of_steps):
    """Steps take 1,000 µs on the host and 1,400 on the device; faster kernels help until the host is slower."""
    graph = graph_of_steps(0, [20, 1420, 2820], 1400)
    assert simulate(graph).device_lag_us == pytest.approx(400)
    check_scaled_kernels(graph, {1: 1400, 0.9: 1260, 0.5: 1000})


def test_stream_that_waits_without_a_recorded_wait_follows_the_other_stream(build_graph):
    """The update starts 3 µs after the collective, and 497 µs after its own stream's last kernel."""
    events = [host("op", 0, 60), *(call("cudaLaunchKernel", 10 * i, 5, i) for i in (1, 2, 3))]
    events += [device("k", 20, 100, 1), device("ncclAllReduce", 120, 494, 2, stream=8), device("update", 617, 50, 3)]
    graph = build_graph(*events)
    assert edges(graph, "event wait") >= {("ncclAllReduce", "update")} and not graph.coverage["unexplained_tasks"]
    (update,) = tasks_of(graph, "update")
    short = np.where(graph.kind == TASK_KINDS.index("collective"), 94.0, graph.duration_us)
    assert simulate(graph).start_us[update] == pytest.approx(617)
    assert simulate(replace(graph, duration_us=short)).start_us[update] == pytest.approx(217)


@pytest.mark.parametrize("events", [[host("op", 0, 10)], [device("k", 5, 5, 1)]])
def test_graph_of_one_event_takes_its_time(read, events):
    graph = graph_of(read({"traceEvents": events}))
    assert simulate(graph).total_us == pytest.approx(sum(e["dur"] for e in events))


@pytest.mark.parametrize("name", [*TRAINING, "nsys_power_iteration.sqlite", *NO_GPU])
def test_replay_of_real_traces_equals_the_measured_times(real, name):
    graph = graph_of(real(name))
    timeline = simulate(graph)
    measured = [iteration.time_us for iteration in graph.iterations]
    np.testing.assert_allclose(timeline.iteration_us(), measured, rtol=1e-3)
    assert timeline.per_iteration_us == pytest.approx(np.mean(measured), rel=2e-3)
    tasks = graph.kind != TASK_KINDS.index("mark")
    np.testing.assert_allclose(timeline.start_us[tasks], graph.measured_us[tasks], atol=1e-2)
    assert (graph.src < graph.dst).all()
    assert graph.coverage["device_tasks"] == len(real(name).activities)


def test_replay_of_one_iteration_equals_its_measured_time(resnet):
    graph = graph_of(trim(resnet, iterations_kept=[2]))
    assert simulate(graph).iteration_us() == pytest.approx([176918.0])


def largest_error(build_graph: Graph) -> float:
    """Return the largest relative error of an iteration's simulated time."""
    found = zip(build_graph.iterations, simulate(build_graph).iteration_us(), strict=True)
    return max(abs(time_us / iteration.time_us - 1) for iteration, time_us in found)


def typical_delays(graph: Graph) -> Graph:
    """Return the graph with the trace's typical gap and launch latency for every device task."""
    device = np.isin(graph.kind, DEVICE_KINDS) & (previous_on_resource(graph.resource) >= 0)
    gap_us = np.where(device, graph.coverage["dispatch_gap_us"], graph.gap_us)
    lag_us = np.where(graph.edge_kind == LAUNCH, graph.coverage["launch_latency_us"], graph.lag_us)
    return replace(graph, gap_us=gap_us, lag_us=lag_us)


@pytest.mark.parametrize("name", TRAINING)
def test_replay_with_typical_delays_is_within_half_a_pct(real, name):
    """Typical delays replace the measured ones, so that only the dependencies determine the time."""
    assert 0 < largest_error(typical_delays(graph_of(real(name)))) < 0.005


def test_replay_without_handover_edges_is_wrong(resnet):
    graph = graph_of(resnet)
    remaining = graph.edge_kind != HANDOVER
    columns = ("src", "dst", "edge_kind", "lag_us", "from_start")
    changed = replace(graph, **{name: getattr(graph, name)[remaining] for name in columns})
    assert largest_error(changed) > 0.1


def test_replay_of_dlrm_workers_is_within_half_a_pct(measurements):
    """The collectives of the eight workers run on their own streams."""
    sources = Sources(measurements)
    graphs = [graph_of(trace) for trace in sources.traces(DLRM)]
    assert len(graphs) == 8
    for graph in graphs:
        assert largest_error(graph) < 1e-6 and largest_error(typical_delays(graph)) < 0.005
        assert (graph.kind == TASK_KINDS.index("collective")).sum() >= 5
        assert graph.coverage["edges"]["event wait"] > 0
