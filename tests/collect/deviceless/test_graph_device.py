"""The graph engines' device over stand-ins for cuDNN, the GPU and CUPTI."""

import io
import json
from contextlib import contextmanager

import pytest

from surrogate.collect import worker
from surrogate.collect.cudnn.activity import KernelSpan
from surrogate.collect.cudnn.gpu import GpuFaultError
from surrogate.collect.device import DeviceLostError
from surrogate.collect.graph.attributes import Attribute
from surrogate.collect.graph.backend import Backend
from surrogate.collect.graph.device import LIBRARY, GraphDevice
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError

CONV = Conv(n=2, c=8, h=9, k=4, r=3)
POLICY = RepeatPolicy()


class FakeGpu:
    """Events read a clock that an execution advances by 100 µs."""

    name, pci_bus_id, stream, workspace, workspace_bytes = "NVIDIA Fake", "0000:01:00.0", 7, 8, 50_000

    def __init__(self):
        self.now_us, self.fault, self.placed = 0.0, None, []

    def versions(self):
        return {"cuda_runtime": "13.0"}

    def properties(self):
        return {"compute_capability": "9.0"}

    def place(self, sizes, dtype):
        self.placed.append((list(sizes), dtype))
        return [100, 200, 300]

    def event(self):
        self.now_us += 50.0
        return self.now_us

    def elapsed_us(self, start, end):
        return end - start

    def flush(self):
        pass

    def synchronize(self):
        if self.fault:
            raise self.fault


class FakeActivity:
    broken = ""

    @contextmanager
    def label(self, number):
        yield

    def collect(self, labels):
        return [[KernelSpan(0, 30_000, "first", (4, 1, 1), (128, 1, 1), 96, 0, 512)] for _ in labels]

    def dropped(self):
        return 0

    def close(self):
        pass


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def device(backend, gpu):
    backend.library.check = lambda name, *arguments: None
    return GraphDevice(backend=backend, gpu=gpu, activity=(FakeActivity(), ""), clocks=NoClocks())


class NoClocks:
    def driver_version(self):
        return "580.1"

    def sample(self):
        return {"sm_clock_mhz": 1980.0}

    def close(self):
        pass


def test_it_says_what_it_is(device):
    info = device.describe()
    assert (info.gpu, info.library, info.library_version) == ("NVIDIA Fake", LIBRARY, "9.19.0")
    assert info.versions["driver"] == "580.1" and info.properties["timer"] == "cupti"


def test_candidates_are_all_engines_and_those_that_cannot_run_say_why(device, fake_cudnn):
    fake_cudnn.unsupported = {2}
    assert device.candidates(CONV) == tuple(f"engine:{number}" for number in range(68))
    assert "STATUS_3000" in device.measure(CONV, "engine:2", POLICY).reason
    tf32 = device.measure(CONV, "engine:67", POLICY)
    assert (tf32.status, tf32.reason) == ("not_supported", "tensor_core: math fma forbids it")
    assert fake_cudnn.executed == []


def test_the_heuristic_names_each_engine_once(device):
    ranking = device.heuristic(CONV)
    assert [(choice.algorithm, choice.status) for choice in ranking] == [
        ("engine:1", "ok"),
        ("engine:0", "ok"),
    ]
    assert device.find(CONV) == ()


@pytest.mark.parametrize(
    ("direction", "pointers"),
    [("fwd", [100, 200, 300]), ("bwd_data", [300, 100, 200]), ("bwd_filter", [100, 300, 200])],
)
def test_an_engine_runs_on_the_tensors_of_its_direction(device, fake_cudnn, direction, pointers):
    conv = Conv(**{**CONV.to_dict(), "direction": direction})
    result = device.measure(conv, "engine:2", POLICY)
    assert result.status == "ok" and result.times_us == (30.0,) * 5 and result.timer == "cupti"
    assert result.workspace_bytes == 2000 and result.deterministic is True
    assert len(fake_cudnn.executed) == 6  # a warm-up and five repeats
    last = fake_cudnn.executed[-1]
    assert last["engine"] == 2 and last[Attribute.PACK_UNIQUE_IDS] == [1, 2, 3]
    assert last[Attribute.PACK_POINTERS] == pointers and last[Attribute.PACK_WORKSPACE] == [8]


def test_what_cannot_run_is_a_status(device, fake_cudnn):
    fake_cudnn.refused_plans, fake_cudnn.unsupported = {1}, {0}
    assert device.measure(CONV, "engine:0", POLICY).status == "not_supported"
    assert device.measure(CONV, "engine:1", POLICY).status == "not_supported"
    tf32 = Conv(**{**CONV.to_dict(), "math": "default"})
    too_large = device.measure(tf32, "engine:67", POLICY)
    assert too_large.status == "workspace_too_large" and too_large.workspace_bytes == 67_000


def test_a_fault_that_passes_fails_one_measurement(device, gpu):
    gpu.fault = GpuFaultError("illegal instruction")
    assert device.measure(CONV, "engine:1", POLICY).status == "failed"
    gpu.fault = None
    assert device.measure(CONV, "engine:1", POLICY).status == "ok"


def test_a_fault_that_stays_loses_the_device(device, gpu):
    gpu.fault = DeviceLostError("sticky")
    with pytest.raises(DeviceLostError):
        device.measure(CONV, "engine:1", POLICY)


def test_problems_leave_nothing_behind(device, fake_cudnn):
    for n in (1, 2, 3):
        device.measure(CONV.with_batch(n), "engine:1", POLICY)
    assert len({record["kind"] for record in fake_cudnn.live.values()}) > 1
    device.close()
    assert fake_cudnn.live == {}


def test_a_problem_that_cudnn_refuses_has_no_candidates(device, fake_cudnn, backend, gpu):
    functions = fake_cudnn.functions()
    functions.cudnnBackendFinalize = lambda descriptor: 3000
    refusing = GraphDevice(
        backend=Backend(backend.library, functions), gpu=gpu, activity=(None, "off"), clocks=NoClocks()
    )
    assert refusing.candidates(CONV) == () and refusing.heuristic(CONV) == ()
    assert refusing.measure(CONV, "engine:0", POLICY).status == "not_supported"


def test_a_cudnn_that_does_not_start_is_one_line(backend, gpu):
    from surrogate.collect.cudnn.status import CudnnError

    def check(name, *arguments):
        raise CudnnError(1001, f"{name}: CUDNN_STATUS_NOT_INITIALIZED")

    backend.library.check = check
    with pytest.raises(InputError, match=r"cuDNN 9.19.0 does not start here: cudnnCreate"):
        GraphDevice(backend=backend, gpu=gpu, activity=(None, "off"), clocks=NoClocks())


def test_it_serves_as_a_worker(device):
    requests = [{"call": "candidates", "conv": CONV.to_dict()}, {"call": "measure", "conv": CONV.to_dict(),
                "algorithm": "engine:1", "policy": POLICY.to_dict()}]  # fmt: skip
    replies = io.StringIO()
    worker.serve(lambda: device, io.StringIO("".join(json.dumps(one) + "\n" for one in requests)), replies)
    first, second = map(json.loads, replies.getvalue().splitlines())
    assert len(first["result"]) == 68 and second["result"]["status"] == "ok"
