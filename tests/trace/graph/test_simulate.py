"""Simulation and critical paths of hand-written graphs under every policy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.trace.graph import Graph, Resource, critical_path, serialised_pct, simulate
from surrogate.trace.graph.tasks import COLLECTIVE, KERNEL, WORK, in_order


def make_graph(tasks, edges=(), resources=3) -> Graph:
    """Return a graph of tasks (resource, duration, gap) and edges (src, dst, lag, from start)."""
    count = len(tasks)
    zeros = np.zeros(count, np.int64)
    column = lambda at, kind: np.array([t[at] for t in tasks], kind)  # noqa: E731
    side = lambda at, kind: np.array([e[at] for e in edges], kind)  # noqa: E731
    kind = np.where(column(0, np.int64) == 0, WORK, KERNEL)
    kinds = ("thread", "stream", "channel")
    return Graph(
        names=tuple(f"t{i}" for i in range(count)),
        layers=(),
        resources=tuple(Resource(kinds[min(i, 2)], f"r{i}") for i in range(resources)),
        name=np.arange(count),
        kind=kind,
        resource=column(0, np.int64),
        layer=zeros - 1,
        phase=zeros,
        iteration=zeros,
        row=zeros - 1,
        duration_us=column(1, float),
        gap_us=column(2, float),
        measured_us=np.arange(count, dtype=float),
        priority=np.zeros(count),
        removed=np.zeros(count, np.bool_),
        src=side(0, np.int64),
        dst=side(1, np.int64),
        edge_kind=np.zeros(len(edges), np.int64),
        lag_us=side(2, float),
        from_start=side(3, np.bool_),
    )


def test_start_times_equal_hand_computed_values():
    """The first kernel starts 4 µs after its launch, the second 1 µs after the first, the third after its launch."""
    graph = make_graph(
        [(0, 10, 0), (1, 30, 0), (0, 10, 0), (1, 5, 1), (0, 80, 0), (1, 5, 1)],
        [(0, 1, 4, True), (2, 3, 4, True), (4, 5, 0, False)],
    )
    found = simulate(graph)
    assert found.start_us.tolist() == [0, 4, 10, 35, 20, 100]
    assert found.total_us == 105 and found.per_iteration_us == 105


def test_critical_path_sums_to_the_total():
    graph = make_graph([(0, 10, 0), (1, 30, 0), (0, 10, 0), (1, 5, 1)], [(0, 1, 4, True), (2, 3, 4, True)])
    path = critical_path(simulate(graph))
    assert path.tasks.tolist() == [0, 1, 3]
    assert path.by_kind_us == {"host work": 4, "kernel": 35} and path.waiting_us == 1


def test_serialised_share_of_two_streams():
    """Stream 1 works from 0 to 10 µs and stream 2 from 5 to 15 µs: one stream alone for 10 of 15 µs."""
    graph = make_graph([(1, 10, 0), (2, 10, 5)])
    assert serialised_pct(simulate(graph)) == pytest.approx(100 * 10 / 15)
    assert np.isnan(serialised_pct(simulate(make_graph([(0, 5, 0)]))))


@pytest.mark.parametrize(
    ("policy", "order"),
    [("recorded", [2, 3, 4]), ("arrival", [3, 2, 4]), ("priority", [3, 4, 2]), ("shortest", [3, 4, 2])],
)
def test_policy_orders_ready_tasks(policy, order):
    """Task 3 is ready at 1 µs and runs until 21 µs; tasks 2 and 4 become ready at 5 and 6 µs."""
    graph = make_graph(
        [(0, 5, 0), (0, 1, 0), (2, 30, 0), (2, 20, 0), (2, 10, 0)],
        [(0, 2, 0, False), (0, 3, 1, True), (1, 4, 0, False)],
    )
    graph = replace(graph, priority=np.array([0, 0, 1.0, 2, 3]), policies={2: policy})
    start = simulate(graph).start_us
    assert sorted([2, 3, 4], key=lambda i: start[i]) == order


def test_user_function_can_be_a_policy(refused):
    graph = make_graph([(2, 10, 0), (2, 10, 0), (2, 10, 0)])
    graph = replace(graph, policies={2: lambda graph: -np.arange(len(graph))})
    assert simulate(graph).start_us.tolist() == [20, 10, 0]
    with refused("one number for each of"):
        simulate(replace(graph, policies={2: lambda graph: [1.0]}))
    with refused("did you mean shortest"):
        simulate(replace(graph, policies={2: "shortes"}))


def test_in_order_sorts_tasks_and_refuses_cycles(refused):
    graph = make_graph([(0, 1, 0), (1, 2, 0), (2, 3, 0)], [(2, 0, 0, False)])
    sorted_graph = in_order(graph)
    assert (sorted_graph.src < sorted_graph.dst).all()
    assert simulate(sorted_graph).total_us == 4
    with refused("circle"):
        in_order(make_graph([(0, 1, 0), (1, 2, 0)], [(1, 0, 0, False), (0, 1, 0, False)]))


@st.composite
def graphs(draw) -> Graph:
    count = draw(st.integers(1, 12))
    time = st.floats(0, 100)
    tasks = [(draw(st.integers(0, 2)), draw(time), draw(st.floats(0, 5))) for _ in range(count)]
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=15))
    return make_graph(tasks, [(a, b, draw(st.floats(0, 5)), draw(st.booleans())) for a, b in pairs if a < b])


@given(graphs(), st.booleans())
def test_simulation_respects_dependencies(graph, by_policy):
    """A policy of the recorded order may start a later task of its resource first, if it is ready earlier."""
    if by_policy:
        graph = replace(graph, gap_us=np.zeros(len(graph)), policies={0: lambda graph: np.arange(len(graph))})
    found = simulate(graph)
    reached = np.where(graph.from_start, found.start_us[graph.src], found.end_us[graph.src]) + graph.lag_us
    assert (found.start_us[graph.dst] >= reached - 1e-9).all()
    assert found.total_us >= graph.duration_us[graph.resource == 0].sum() - 1e-9
    for resource in range(by_policy, 3):
        rows = np.flatnonzero(graph.resource == resource)
        assert (found.start_us[rows[1:]] >= found.end_us[rows[:-1]] - 1e-9).all()
    path = critical_path(found)
    # The path begins with the first task of a resource, whose gap is a start time.
    assert path.waiting_us >= -1e-6 and len(path.tasks)


@given(graphs(), st.integers(0, 11))
def test_longer_task_ends_nothing_earlier(graph, which):
    longer = graph.duration_us.copy()
    longer[which % len(graph)] += 7
    before, after = simulate(graph), simulate(replace(graph, duration_us=longer))
    assert (after.end_us >= before.end_us - 1e-9).all()


def test_collectives_count_as_device_tasks():
    graph = make_graph([(1, 10, 0), (2, 10, 0)])
    graph = replace(graph, kind=np.array([KERNEL, COLLECTIVE]))
    assert serialised_pct(simulate(graph)) == 0
