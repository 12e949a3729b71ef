"""A worker process returns a device's answers and is replaced after a loss, a hang or a crash."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from surrogate.collect.device import DeviceLostError, RepeatPolicy
from surrogate.collect.open_device import WorkerDevice, WorkerOperators, caps_for, open_device
from surrogate.features.conv import Conv
from surrogate.features.families import operator
from tests.known import cases, known_answers

CONV = Conv(n=2, c=3, h=9, k=4, r=3, dtype="fp16", direction="bwd_data")
POLICY = RepeatPolicy()
CHILD = known_answers(__file__)["child"]


@pytest.fixture
def worker():
    device = WorkerDevice([sys.executable, "-c", CHILD], timeout_s=20.0)
    yield device
    device.close()


def test_the_worker_returns_answers_unchanged(refused, worker):
    result = worker.measure(CONV, "GEMM", RepeatPolicy(repeats=9))
    assert (result.status, result.times_us, result.spans_us) == ("ok", (1.0, 2.0), (1.5, 2.5))
    assert (result.workspace_bytes, result.deterministic) == (9, True)
    assert (result.kernels[0].grid_z, result.kernels[0].time_us) == (3, 1.5)
    assert worker.candidates(CONV) == ("GEMM", "FFT")
    assert worker.heuristic(CONV)[0].workspace_bytes == 4
    with refused("no find for n2c3"):
        worker.find(CONV)
    assert worker.device_info().gpu == "GPU"
    assert worker.starts == 1


@cases(__file__)
def test_a_lost_process_is_replaced_on_the_next_call(worker, algorithm, reason):
    first = worker.conditions()["pid"]
    with pytest.raises(DeviceLostError, match=reason):
        worker.measure(CONV, algorithm, POLICY)
    assert worker.measure(CONV, "GEMM", POLICY).status == "ok"
    assert worker.conditions()["pid"] != first
    assert worker.starts == 2


def test_the_worker_measures_operators():
    worker, problem = WorkerOperators([sys.executable, "-c", CHILD]), operator("add", n=1, c=2, h=3, w=4)
    try:
        assert worker.measure(problem, POLICY).reason == str(problem)
    finally:
        worker.close()


def test_a_hanging_process_is_terminated():
    """The first call loads libraries, so its timeout is longer."""
    worker = WorkerDevice([sys.executable, "-c", CHILD], timeout_s=2.0, first_timeout_s=30.0)
    try:
        assert worker.candidates(CONV)
        with pytest.raises(DeviceLostError, match="no answer within 2 s"):
            worker.measure(CONV, "HANG", POLICY)
    finally:
        worker.close()


def test_cupti_is_left_out_after_two_losses_unless_it_has_timed_a_call():
    """It is used again after two more losses, since it was not the cause."""
    timer = CHILD.replace('{"pid": str(os.getpid())}', '{"timer": os.environ.get("SEER_TIMER", "cupti")}')
    worker = WorkerDevice([sys.executable, "-c", timer])

    def timer_after(*algorithms):
        for algorithm in algorithms:
            with suppress(DeviceLostError):
                worker.measure(CONV, algorithm, POLICY)
        return worker.device_info().versions["timer"]

    try:
        assert worker.device_info().versions["timer"] == "cupti"
        assert timer_after("CRASH") == "cupti"
        assert timer_after("CRASH") == "lost"
        assert timer_after("CRASH", "CRASH") == "cupti"
        assert timer_after("GEMM", "CRASH", "CRASH") == "cupti"
    finally:
        worker.close()


@pytest.mark.parametrize("fault", ["time.sleep(600)", "os._exit(1)"])
def test_a_start_that_is_lost_twice_with_cupti_is_repeated_without_it(fault):
    lost = CHILD.replace("serve(Device", f'None if os.environ.get("SEER_TIMER") else {fault}\nserve(Device')
    worker = WorkerDevice([sys.executable, "-c", lost], timeout_s=20.0, first_timeout_s=6.0)
    try:
        assert worker.device_info().gpu == "GPU" and worker.without_cupti and worker.starts == 3
    finally:
        worker.close()


PARENT = known_answers(__file__)["parent"].replace("CHILD", repr(CHILD))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_hanging_process_exits_with_its_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    state = Path("/proc") / parent.stdout.readline().strip() / "stat"
    assert state.exists()
    time.sleep(0.2)  # until the child hangs
    parent.kill()
    parent.communicate(timeout=60)
    end_s = time.monotonic() + 60.0
    while state.exists() and state.read_text().rpartition(") ")[2][0] not in "ZX":  # an orphan may stay a zombie
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_open_device_refuses_unknown_names_and_missing_options(refused):
    with refused("--recording"):
        open_device("replay")
    with refused("known: cudnn, cpu, replay"):
        open_device("tpu")
    assert caps_for("reference") == caps_for("cpu") and caps_for("cpu").max_flops < caps_for("cudnn").max_flops
    assert not caps_for("replay").reason(Conv(n=1, c=1, h=1, k=1, r=1))
