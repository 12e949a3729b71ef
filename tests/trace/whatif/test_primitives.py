"""The five primitives on the invented trace, by hand and as laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.trace.graph import simulate
from surrogate.trace.whatif import NewTask, insert, remove, scale, schedule, select


def names(graph, mask):
    return [graph.name_of(i) for i in np.flatnonzero(mask).tolist()]


def test_select(made):
    assert len(names(made, select(made, kind="kernel"))) == 15
    assert names(made, select(made, kind="kernel", name="wgrad", iteration=1)) == ["cudnn_wgrad_kernel"]
    assert set(names(made, select(made, kind="kernel", layer=r"^conv2d"))) == {
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "cudnn_wgrad_kernel",
    }
    assert set(names(made, select(made, kind="kernel", phase="backward"))) == {
        "relu_backward_kernel",
        "cudnn_wgrad_kernel",
    }
    long = select(made, kind=("kernel", "copy"), where=lambda task: task.duration_us > 90 and task.iteration == 0)
    assert names(made, long) == ["volta_scudnn_128x64_relu_interior_nn_v1", "cudnn_wgrad_kernel"]
    assert select(made, resource="GPU 0 stream 7").sum() == 18


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"kind": "kernal"}, "did you mean kernel"),
        ({"phase": "back"}, "known: forward, backward"),
        ({"resource": "x"}, "resource 'x' is unknown"),
        ({"name": "("}, "no regular expression"),
    ],
)
def test_select_says_what_is_wrong(made, given_, message):
    with pytest.raises(InputError, match=message):
        select(made, **given_)


def test_scaling_by_one_changes_nothing(made):
    every = np.ones(len(made), np.bool_)
    assert (simulate(scale(made, every, 1)).start_us == simulate(made).start_us).all()


def test_scale_by_hand(refused, made):
    """The copy waits for the stream, which is free at 520 µs, not for the kernels: nothing gets faster on the host."""
    wgrad = select(made, name="wgrad")
    found = simulate(scale(made, wgrad, 2.0))
    add = np.flatnonzero(select(made, name="add_kernel", iteration=0))[0]
    # 300 + 2·200, and the gap of 0 after the stream's previous task: the launch at 420 had to wait before, too.
    before = simulate(made).start_us[add]
    assert found.start_us[add] >= 700 > before
    with refused("negative"):
        scale(made, wgrad, -1)


def test_a_removed_task_passes_its_dependencies_on(made):
    kernels = select(made, kind="kernel")
    gone = remove(made, kernels)
    assert not select(gone, kind="kernel").any() and gone.duration_us[kernels].sum() == 0
    before, after = simulate(made), simulate(gone)
    assert after.total_us <= before.total_us
    assert len(gone) == len(made)


@given(st.data())
def test_removing_never_slows(made, data):
    chosen = np.zeros(len(made), np.bool_)
    chosen[data.draw(st.lists(st.integers(0, len(made) - 1), max_size=10))] = True
    before, after = simulate(made), simulate(remove(made, chosen))
    assert (after.end_us <= before.end_us + 1e-9).all()


def test_insert_by_hand(made):
    """An all-reduce of 1,000 µs between the last gradient's kernel and the optimizer's kernel of the first step."""
    wgrad = int(np.flatnonzero(select(made, name="wgrad", iteration=0))[0])
    update = int(np.flatnonzero(select(made, name="add_kernel", iteration=0))[0])
    more = insert(made, [NewTask("all-reduce", "collective", "network", 1000.0, (wgrad,), (update,))])
    found = simulate(more)
    new = int(np.flatnonzero(select(more, name="all-reduce"))[0])
    assert found.start_us[new] == pytest.approx(500)
    late = int(np.flatnonzero(select(more, name="add_kernel", iteration=0))[0])
    assert found.start_us[late] == pytest.approx(1500)
    assert more.resources[-1].kind == "channel" and len(more) == len(made) + 1
    assert insert(made, []) is made


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (NewTask("x", "kernel", "network", -1.0), "takes -1.0 µs"),
        (NewTask("x", "kernel", "network", 1.0, (10**6,)), "refers to task 1000000"),
        (NewTask("x", "kernell", "network", 1.0), "kind 'kernell' is unknown"),
        (NewTask("x", "kernel", "network", 1.0, (50,), (3,)), "circle"),
    ],
)
def test_insert_says_what_is_wrong(made, task, message):
    with pytest.raises(InputError, match=message):
        insert(made, [task])


def test_schedule_by_priority(refused, made):
    """Three transfers are ready together while one runs; the most urgent goes first."""
    first = int(np.flatnonzero(select(made, kind="kernel"))[0])
    tasks = [NewTask(f"push {i}", "collective", "network", 50.0, (first,), priority=float(i)) for i in range(4)]
    more = schedule(insert(made, tasks), "network", "priority")
    found = simulate(more)
    order = sorted(np.flatnonzero(select(more, name="push")).tolist(), key=lambda i: found.start_us[i])
    assert [more.name_of(i) for i in order] == ["push 3", "push 2", "push 1", "push 0"]
    with refused("resource 'net' is unknown"):
        schedule(more, "net", "priority")
    with refused("policy 'urgent' is unknown"):
        schedule(more, "network", "urgent")


def test_graphs_do_not_change(made):
    before = made.duration_us.copy()
    remove(scale(made, select(made, kind="kernel"), 0.1), select(made, kind="copy"))
    assert (made.duration_us == before).all() and not made.removed.any()
