"""The five primitives on the invented trace: known answers and invariants."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.features.errors import InputError
from surrogate.trace.graph import simulate
from surrogate.trace.whatif import NewTask, insert, remove, scale, schedule, select
from tests.known import cases


def names(graph, mask):
    return [graph.name_of(i) for i in np.flatnonzero(mask).tolist()]


def test_select_filters_tasks(invented_graph):
    assert len(names(invented_graph, select(invented_graph, kind="kernel"))) == 15
    conv, wgrad = "volta_scudnn_128x64_relu_interior_nn_v1", "cudnn_wgrad_kernel"
    assert names(invented_graph, select(invented_graph, kind="kernel", name="wgrad", iteration=1)) == [wgrad]
    assert set(names(invented_graph, select(invented_graph, kind="kernel", layer=r"^conv2d"))) == {conv, wgrad}
    backward = select(invented_graph, kind="kernel", phase="backward")
    assert set(names(invented_graph, backward)) == {"relu_backward_kernel", wgrad}
    is_long = lambda task: task.duration_us > 90 and task.iteration == 0  # noqa: E731
    assert names(invented_graph, select(invented_graph, kind=("kernel", "copy"), where=is_long)) == [conv, wgrad]
    assert select(invented_graph, resource="GPU 0 stream 7").sum() == 18


@cases(__file__)
def test_select_refuses_invalid_arguments(invented_graph, selection, message):
    with pytest.raises(InputError, match=message):
        select(invented_graph, **selection)


def test_scaling_by_one_changes_nothing(invented_graph):
    every = np.ones(len(invented_graph), np.bool_)
    assert (simulate(scale(invented_graph, every, 1)).start_us == simulate(invented_graph).start_us).all()


def test_scaled_kernel_delays_its_successor(refused, invented_graph):
    wgrad = select(invented_graph, name="wgrad")
    found = simulate(scale(invented_graph, wgrad, 2.0))
    add = np.flatnonzero(select(invented_graph, name="add_kernel", iteration=0))[0]
    # The scaled kernel ends at 300 + 2·200 µs, and the next kernel of its stream follows without a gap.
    before = simulate(invented_graph).start_us[add]
    assert found.start_us[add] >= 700 > before
    with refused("negative"):
        scale(invented_graph, wgrad, -1)


def test_removed_tasks_take_no_time(invented_graph):
    kernels = select(invented_graph, kind="kernel")
    gone = remove(invented_graph, kernels)
    assert not select(gone, kind="kernel").any() and gone.duration_us[kernels].sum() == 0
    before, after = simulate(invented_graph), simulate(gone)
    assert after.total_us <= before.total_us
    assert len(gone) == len(invented_graph)


@given(st.data())
def test_removal_ends_no_task_later(invented_graph, data):
    chosen = np.zeros(len(invented_graph), np.bool_)
    chosen[data.draw(st.lists(st.integers(0, len(invented_graph) - 1), max_size=10))] = True
    before, after = simulate(invented_graph), simulate(remove(invented_graph, chosen))
    assert (after.end_us <= before.end_us + 1e-9).all()


def test_inserted_task_delays_its_successor(invented_graph):
    """The all-reduce of 1,000 µs runs between the gradient and the optimizer's kernel of the first step."""
    wgrad = int(np.flatnonzero(select(invented_graph, name="wgrad", iteration=0))[0])
    update = int(np.flatnonzero(select(invented_graph, name="add_kernel", iteration=0))[0])
    more = insert(invented_graph, [NewTask("all-reduce", "collective", "network", 1000.0, (wgrad,), (update,))])
    found = simulate(more)
    new = int(np.flatnonzero(select(more, name="all-reduce"))[0])
    assert found.start_us[new] == pytest.approx(500)
    late = int(np.flatnonzero(select(more, name="add_kernel", iteration=0))[0])
    assert found.start_us[late] == pytest.approx(1500)
    assert more.resources[-1].kind == "channel" and len(more) == len(invented_graph) + 1
    assert insert(invented_graph, []) is invented_graph


@cases(__file__)
def test_insert_refuses_invalid_tasks(invented_graph, task, message):
    with pytest.raises(InputError, match=message):
        insert(invented_graph, [NewTask(**{"name": "x", "resource": "network", **task})])


def test_schedule_by_priority(refused, invented_graph):
    """All transfers become ready together; the highest priority runs first."""
    first = int(np.flatnonzero(select(invented_graph, kind="kernel"))[0])
    tasks = [NewTask(f"push {i}", "collective", "network", 50.0, (first,), priority=float(i)) for i in range(4)]
    more = schedule(insert(invented_graph, tasks), "network", "priority")
    found = simulate(more)
    order = sorted(np.flatnonzero(select(more, name="push")).tolist(), key=lambda i: found.start_us[i])
    assert [more.name_of(i) for i in order] == ["push 3", "push 2", "push 1", "push 0"]
    with refused("resource 'net' is unknown"):
        schedule(more, "net", "priority")
    with refused("policy 'urgent' is unknown"):
        schedule(more, "network", "urgent")


def test_primitives_do_not_change_their_input(invented_graph):
    before = invented_graph.duration_us.copy()
    remove(scale(invented_graph, select(invented_graph, kind="kernel"), 0.1), select(invented_graph, kind="copy"))
    assert (invented_graph.duration_us == before).all() and not invented_graph.removed.any()
