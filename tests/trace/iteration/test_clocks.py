"""Known answers of the walk with the overheads `fixed`, 1 µs between kernels and 5 µs after each kernel."""

import pytest
from hypothesis import given, strategies as st

from surrogate.trace import events
from surrogate.trace.iteration.predict import QUEUE


def test_two_launches_of_one_operator_advance_both_clocks(step, action, clocks):
    """cpu = T1 10 + T2 20 = 30; first kernel at 34, ends 34 + 100 + 5; cpu 34 + T5 5 + T4 4 = 43; + T3 30 = 73."""
    walk = clocks([100.0, 50.0])
    walk.advance(step("aten::x", 0, 60, action(10, 14, [0]), action(20, 24, [1])))
    assert walk.host_now_us == pytest.approx(73.0)
    assert walk.device_us == {0: pytest.approx(139.0 + 1 + 50 + 5)}
    assert walk.now_us == pytest.approx(195.0)


def test_an_idle_device_waits_for_the_launch(step, action, clocks):
    walk = clocks([1.0, 1.0])
    walk.run([step("a", 0, 9, action(1, 2, [0])), step("b", 20, 29, action(21, 22, [1]))])
    # The second launch: cpu 64 + 10 + 20 = 94, ready at 98; the device is free at 40.
    assert walk.device_now_us == pytest.approx(98.0 + 1 + 5)
    assert walk.host_now_us == pytest.approx(128.0)


def test_launch_without_a_kernel_advances_only_the_host(step, action, clocks):
    """The host takes T1 + T2 + ΣT4 + T5·(launches − 1) + T3."""
    walk = clocks([])
    walk.advance(step("x", 0, 90, action(1, 2), action(3, 4), action(5, 6)))
    assert walk.host_now_us == pytest.approx(10 + 20 + 3 * 4 + 2 * 5 + 30)
    assert walk.device_now_us == 0


def test_copy_to_the_host_waits_for_the_device(step, action, clocks):
    walk = clocks([500.0, 40.0])
    copy = action(20, 24, [1], "cudaMemcpyAsync", kind=events.COPY_CALL, host_waits=True)
    walk.advance(step("aten::item", 0, 60, action(10, 14, [0]), copy))
    # The kernel runs from 34 to 539 and the copy from 540 to 585; T3 follows.
    assert walk.device_now_us == pytest.approx(585.0)
    assert walk.host_now_us == pytest.approx(585.0 + 30.0)


@pytest.mark.parametrize(("name", "end"), [("cudaStreamSynchronize", 143.0), ("cudaDeviceSynchronize", 1039.0)])
def test_synchronisation_waits_for_one_stream_or_all(step, action, clocks, name, end):
    """Stream 1 is busy until 34 + 1005; stream 0, the last one of the thread, until 43 + 100."""
    walk = clocks([1000.0, 95.0], [1, 0])
    walk.advance(step("x", 0, 60, action(10, 14, [0]), action(20, 24, [1])))
    walk.advance(step(name, 70, 80, action(70, 80, (), name, kind=events.SYNC_CALL)))
    assert walk.host_now_us == pytest.approx(end)


def test_collective_overlaps_compute_until_the_wait(step, action, clocks):
    """The collective starts 1 µs after compute; the next kernel overlaps it, and the wait joins both."""
    walk = clocks([100.0, 400.0, 10.0, 10.0], [7, 9, 7, 7], collective=[1])
    walk.advance(step("a", 0, 9, action(1, 2, [0])))  # compute until 34 + 105 = 139
    walk.advance(step("all_reduce", 20, 29, action(21, 22, [1])))
    assert walk.collective_us == pytest.approx(139 + 1 + 400 + 5)
    walk.advance(step("b", 30, 39, action(31, 32, [2])))  # launched at 64 + 64 + 34 = 162
    assert walk.device_us == {7: pytest.approx(162 + 15)}
    walk.advance(step("wait", 40, 49, action(41, 42, (), "cudaStreamWaitEvent", kind=events.WAIT_CALL)))
    assert walk.device_us == {7: pytest.approx(545)}
    walk.advance(step("c", 50, 59, action(51, 52, [3])))
    assert walk.device_us == {7: pytest.approx(545 + 1 + 15)}


def test_collective_starts_after_the_previous_one(step, action, clocks):
    walk = clocks([10.0, 400.0, 20.0], [7, 9, 9], collective=[1, 2])
    walk.run([step("a", 0, 9, action(1, 2, [0])), step("r", 20, 29, action(21, 22, [1]))])
    first = walk.collective_us
    walk.advance(step("r", 30, 39, action(31, 32, [2])))
    assert walk.device_us == {7: pytest.approx(first)}
    assert walk.collective_us == pytest.approx(first + 1 + 20 + 5)


def test_wait_on_the_collective_stream_does_not_stop_compute(step, action, clocks):
    """The launch of a collective makes its stream wait for compute, but compute continues."""
    walk = clocks([10.0, 400.0], [7, 9], collective=[1])
    wait = action(23, 24, (), "cudaStreamWaitEvent", kind=events.WAIT_CALL)
    walk.run([step("a", 0, 9, action(1, 2, [0])), step("r", 20, 29, action(21, 22, [1]), wait)])
    assert walk.device_us == {7: pytest.approx(34 + 15)} and walk.collective_us > 400


def test_thread_starts_when_the_other_stops(step, clocks):
    """Backward starts when forward stops, and forward continues when backward stops."""
    walk = clocks([])
    walk.run([step("f", 0, 3), step("b", 10, 13, thread=1), step("g", 20, 23)])
    assert walk.host_us == {0: pytest.approx(17 + 107 + 107), 1: pytest.approx(17 + 107)}


def test_overlapping_threads_do_not_wait(step, clocks):
    walk = clocks([])
    walk.run([step("f", 0, 50), step("b", 10, 13, thread=1), step("g", 60, 63, thread=1)])
    # b starts on its own clock while f runs; g starts after f and b stop.
    assert walk.host_us == {0: pytest.approx(17), 1: pytest.approx(17 + 100 + 7)}


def test_change_of_parent_costs_the_edge_overhead(step, clocks):
    walk = clocks([])
    walk.run([step("f", 0, 3, parent=1), step("g", 10, 13, parent=2), step("h", 20, 23, parent=2)])
    assert walk.host_now_us == pytest.approx(17 + 57 + 17)


def test_input_keeps_its_measured_time(step, clocks):
    walk = clocks([])
    walk.advance(step("enumerate(DataLoader)", 0, 5000, is_input=True))
    assert walk.host_now_us == pytest.approx(10 + 5000)


def test_profiler_events_add_host_time(step, action, clocks):
    """There are two events before the launch, one between, and two of the operator itself: 5 × 2 µs."""
    work = step("x", 0, 60, action(10, 14, [0]), action(20, 24, [1]), events=[2, 5, 16])
    untraced, traced = clocks([1.0, 1.0]), clocks([1.0, 1.0], event_us=2.0)
    untraced.advance(work)
    traced.advance(work)
    assert traced.host_now_us - untraced.host_now_us == pytest.approx(10.0)


def test_host_waits_when_the_launch_queue_is_full(step, action, clocks, overheads):
    """A host without overheads launches `QUEUE` kernels ahead and then waits for one to end."""
    walk = clocks([95.0] * (QUEUE + 3), overheads=overheads(t1=0, t2=0, t3=0, t4=0), gap_us=0.0)
    for row in range(QUEUE + 3):
        walk.advance(step("k", row, row + 0.5, action(row, row + 0.1, [row])))
        waited = max(row + 1 - QUEUE, 0) * 100
        assert walk.host_now_us == pytest.approx(waited)
    assert waited == 300


times_us = st.lists(st.floats(0, 1e4), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def walk_kernels(step, action, clocks):
    """Return a walk of one kernel per operator on alternating threads; every fifth is a copy to the host."""

    def run(times, **settings):
        walk = clocks(times, **settings)
        for row in range(len(times)):
            rest = {"kind": events.COPY_CALL, "host_waits": True} if row % 5 == 4 else {}
            call = action(100 * row + 5, 100 * row + 9, [row], **rest)
            walk.advance(step("x", 100 * row, 100 * row + 50, call, thread=row // 3 % 2))
        return walk

    return run


@given(times_us, st.data())
def test_longer_kernels_never_end_earlier(walk_kernels, times, data):
    row = data.draw(st.integers(0, len(times) - 1))
    longer = [*times[:row], times[row] + 100.0, *times[row + 1 :]]
    assert walk_kernels(longer).now_us >= walk_kernels(times).now_us - 1e-9


@given(times_us, st.sampled_from(["t1", "t2", "t3", "t4", "handover"]))
def test_more_overhead_never_ends_earlier(walk_kernels, overheads, times, kind):
    assert walk_kernels(times, overheads=overheads(**{kind: 200.0})).now_us >= walk_kernels(times).now_us - 1e-9


@given(times_us)
def test_step_takes_no_less_than_host_or_device_alone(walk_kernels, times):
    found = walk_kernels(times)
    assert found.now_us >= walk_kernels([0.0] * len(times), tail_us=0.0, gap_us=0.0).host_now_us - 1e-9
    assert found.now_us >= sum(times) + 5.0 * len(times) - 1e-6
