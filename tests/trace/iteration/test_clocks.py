"""Known answers of the walk: overheads `fixed` in conftest, 1 µs between kernels, 5 µs after each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.trace import events
from surrogate.trace.iteration.predict import QUEUE


def test_two_launches_of_one_operator(unit, action, clocks):
    """cpu = T1 10 + T2 20 = 30; first kernel at 34, ends 34 + 100 + 5; cpu 34 + T5 5 + T4 4 = 43; + T3 30 = 73."""
    one = clocks([100.0, 50.0])
    one.step(unit("aten::x", 0, 60, action(10, 14, [0]), action(20, 24, [1])))
    assert one.host_now_us == pytest.approx(73.0)
    assert one.device_us == {0: pytest.approx(139.0 + 1 + 50 + 5)}
    assert one.now_us == pytest.approx(195.0)


def test_an_idle_device_waits_for_the_launch(unit, action, clocks):
    one = clocks([1.0, 1.0])
    one.run([unit("a", 0, 9, action(1, 2, [0])), unit("b", 20, 29, action(21, 22, [1]))])
    # Second: cpu 64 + 10 + 20 = 94, ready at 98; the device was free at 40.
    assert one.device_now_us == pytest.approx(98.0 + 1 + 5)
    assert one.host_now_us == pytest.approx(128.0)


def test_launch_without_a_kernel(unit, action, clocks):
    """T1 + T2 + ΣT4 + T5·(launches − 1) + T3."""
    one = clocks([])
    one.step(unit("x", 0, 90, action(1, 2), action(3, 4), action(5, 6)))
    assert one.host_now_us == pytest.approx(10 + 20 + 3 * 4 + 2 * 5 + 30)
    assert one.device_now_us == 0


def test_copy_to_the_host_joins(unit, action, clocks):
    one = clocks([500.0, 40.0])
    copy = action(20, 24, [1], "cudaMemcpyAsync", kind=events.COPY_CALL, joins=True)
    one.step(unit("aten::item", 0, 60, action(10, 14, [0]), copy))
    # Kernel 34 … 539, copy 540 … 585, then T3.
    assert one.device_now_us == pytest.approx(585.0)
    assert one.host_now_us == pytest.approx(585.0 + 30.0)


@pytest.mark.parametrize(("name", "end"), [("cudaStreamSynchronize", 143.0), ("cudaDeviceSynchronize", 1039.0)])
def test_synchronise_one_stream_or_all(unit, action, clocks, name, end):
    """Stream 1 until 34 + 1005, stream 0, on which the thread launched last, until 43 + 100."""
    one = clocks([1000.0, 95.0], [1, 0])
    one.step(unit("x", 0, 60, action(10, 14, [0]), action(20, 24, [1])))
    one.step(unit(name, 70, 80, action(70, 80, (), name, kind=events.SYNC_CALL)))
    assert one.host_now_us == pytest.approx(end)


def test_collective_beside_compute(unit, action, clocks):
    """It starts no earlier than compute + 1, compute goes on beside it, and joins at the wait."""
    one = clocks([100.0, 400.0, 10.0, 10.0], [7, 9, 7, 7], collective=[1])
    one.step(unit("a", 0, 9, action(1, 2, [0])))  # compute until 34 + 105 = 139
    one.step(unit("all_reduce", 20, 29, action(21, 22, [1])))
    assert one.collective_us == pytest.approx(139 + 1 + 400 + 5)
    one.step(unit("b", 30, 39, action(31, 32, [2])))  # launched at 64 + 64 + 34 = 162
    assert one.device_us == {7: pytest.approx(162 + 15)}
    one.step(unit("wait", 40, 49, action(41, 42, (), "cudaStreamWaitEvent", kind=events.WAIT_CALL)))
    assert one.device_us == {7: pytest.approx(545)}
    one.step(unit("c", 50, 59, action(51, 52, [3])))
    assert one.device_us == {7: pytest.approx(545 + 1 + 15)}


def test_next_collective_joins_the_last(unit, action, clocks):
    one = clocks([10.0, 400.0, 20.0], [7, 9, 9], collective=[1, 2])
    one.run([unit("a", 0, 9, action(1, 2, [0])), unit("r", 20, 29, action(21, 22, [1]))])
    first = one.collective_us
    one.step(unit("r", 30, 39, action(31, 32, [2])))
    assert one.device_us == {7: pytest.approx(first)}
    assert one.collective_us == pytest.approx(first + 1 + 20 + 5)


def test_a_wait_of_the_collectives_stream_is_no_join(unit, action, clocks):
    """Issuing a collective makes its stream wait for compute; compute goes on."""
    one = clocks([10.0, 400.0], [7, 9], collective=[1])
    wait = action(23, 24, (), "cudaStreamWaitEvent", kind=events.WAIT_CALL)
    one.run([unit("a", 0, 9, action(1, 2, [0])), unit("r", 20, 29, action(21, 22, [1]), wait)])
    assert one.device_us == {7: pytest.approx(34 + 15)} and one.collective_us > 400


def test_threads_hand_over(unit, clocks):
    """Backward starts when forward has stopped, and forward goes on when backward has."""
    one = clocks([])
    one.run([unit("f", 0, 3), unit("b", 10, 13, thread=1), unit("g", 20, 23)])
    assert one.host_us == {0: pytest.approx(17 + 107 + 107), 1: pytest.approx(17 + 107)}


def test_threads_that_overlap_do_not_wait(unit, clocks):
    one = clocks([])
    one.run([unit("f", 0, 50), unit("b", 10, 13, thread=1), unit("g", 60, 63, thread=1)])
    # b starts while f runs: its own clock; g starts when f has stopped, later than b.
    assert one.host_us == {0: pytest.approx(17), 1: pytest.approx(17 + 100 + 7)}


def test_another_parent_is_an_edge(unit, clocks):
    one = clocks([])
    one.run([unit("f", 0, 3, parent=1), unit("g", 10, 13, parent=2), unit("h", 20, 23, parent=2)])
    assert one.host_now_us == pytest.approx(17 + 57 + 17)


def test_input_takes_as_long_as_it_took(unit, clocks):
    one = clocks([])
    one.step(unit("enumerate(DataLoader)", 0, 5000, is_input=True))
    assert one.host_now_us == pytest.approx(10 + 5000)


def test_the_profiler_costs_the_host(unit, action, clocks):
    """Two events before the launch, one between, the operator's own before and after: 5 × 2 µs."""
    work = unit("x", 0, 60, action(10, 14, [0]), action(20, 24, [1]), events=[2, 5, 16])
    untraced, traced = clocks([1.0, 1.0]), clocks([1.0, 1.0], event_us=2.0)
    untraced.step(work)
    traced.step(work)
    assert traced.host_now_us - untraced.host_now_us == pytest.approx(10.0)


def test_the_queue_is_finite(unit, action, clocks, overheads):
    """A host without overheads launches `QUEUE` kernels ahead and then waits for one to end."""
    none = overheads(t1=0, t2=0, t3=0, t4=0)
    one = clocks([95.0] * (QUEUE + 3), overheads=none, gap_us=0.0)
    for row in range(QUEUE + 3):
        one.step(unit("k", row, row + 0.5, action(row, row + 0.1, [row])))
        waited = max(row + 1 - QUEUE, 0) * 100
        assert one.host_now_us == pytest.approx(waited)
    assert waited == 300


times_us = st.lists(st.floats(0, 1e4), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def walked(unit, action, clocks):
    """One kernel per operator on alternating threads, every fifth one copied to the host."""

    def walk(times, **settings):
        one = clocks(times, **settings)
        for row in range(len(times)):
            rest = {"kind": events.COPY_CALL, "joins": True} if row % 5 == 4 else {}
            call = action(100 * row + 5, 100 * row + 9, [row], **rest)
            one.step(unit("x", 100 * row, 100 * row + 50, call, thread=row // 3 % 2))
        return one

    return walk


@given(times_us, st.data())
def test_longer_kernels_never_end_earlier(walked, times, data):
    row = data.draw(st.integers(0, len(times) - 1))
    longer = [*times[:row], times[row] + 100.0, *times[row + 1 :]]
    assert walked(longer).now_us >= walked(times).now_us - 1e-9


@given(times_us, st.sampled_from(["t1", "t2", "t3", "t4", "handover"]))
def test_more_overhead_never_ends_earlier(walked, overheads, times, kind):
    slower = overheads(**{kind: 200.0})
    assert walked(times, overheads=slower).now_us >= walked(times).now_us - 1e-9


@given(times_us)
def test_no_less_than_host_or_device_alone(walked, times):
    found = walked(times)
    assert found.now_us >= walked([0.0] * len(times), tail_us=0.0, gap_us=0.0).host_now_us - 1e-9
    assert found.now_us >= sum(times) + 5.0 * len(times) - 1e-6
