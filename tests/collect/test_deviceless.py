"""The ranking for a described GPU and its log: against a stand-in for libcudnn and, where installed, the library."""

import ctypes
import json
from dataclasses import replace

import pytest

from surrogate.collect import deviceless
from surrogate.collect.cudnn.backend import Attribute, Descriptor, Kind, Scope
from surrogate.collect.cudnn.library import CudnnError
from surrogate.collect.deviceless import (
    KEPT,
    Deviceless,
    EnginePlan,
    collect_heuristic,
    operation_graph,
    properties_json,
)
from surrogate.collect.doctor import driver
from surrogate.collect.plan import PlannedProblem, build
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu, gpus
from surrogate.features.occupancy import LIMITS
from surrogate.features.text import parse

CONV = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)
NOT_SUPPORTED = 3000


class FakeCudnn:
    """libcudnn's backend functions: descriptors as records, the ranking as a test says.

    ``notes``: engine → its numerical notes; ``ranking``: engines, best first.
    """

    version, version_number = "9.19.0", 91900

    def __init__(self):
        self.notes, self.ranking = {0: (9,), 1: (), 67: (0,), 5: (99,)}, [67, 1, 1, 0]
        self.refused_plans, self.refused_kinds, self.live, self.made, self.devices = set(), {}, {}, 0, []

    def check(self, name, *arguments):
        code = self.call(name, *arguments)
        if code:
            raise CudnnError(code, f"{name}: STATUS_{code}")

    def call(self, name, *arguments):
        return getattr(self, name.removeprefix("cudnnBackend"))(*arguments)

    def CreateDescriptor(self, kind, out):  # noqa: N802
        self.made += 1
        out._obj.value = self.made
        self.live[self.made] = {"kind": kind}
        return 0

    def DestroyDescriptor(self, descriptor):  # noqa: N802
        del self.live[descriptor.value]
        return 0

    def SetAttribute(self, descriptor, attribute, kind, count, array):  # noqa: N802
        values = array.raw.decode() if kind == Kind.CHAR else list(array)[:count]
        self.live[descriptor.value][attribute] = values
        return 0

    def Finalize(self, descriptor):  # noqa: N802
        record = self.live[descriptor.value]
        if record["kind"] == Descriptor.DEVICE_PROPERTIES:
            self.devices.append(record[Attribute.DEVICE_JSON])
        if record["kind"] == Descriptor.PLAN and self._engine(record) in self.refused_plans:
            return NOT_SUPPORTED
        return self.refused_kinds.get(record["kind"], 0)

    def GetAttribute(self, descriptor, attribute, kind, room, count, array):  # noqa: N802
        record = self.live[descriptor.value]
        if attribute in (Attribute.HEURISTIC_RESULTS, Attribute.CONFIG_ENGINE):
            engines = self.ranking if attribute == Attribute.HEURISTIC_RESULTS else [record["engine"]]
            for at, engine in enumerate(engines[:room]):
                self.live[array[at]]["engine"] = engine
            count._obj.value = len(engines)
            return 0
        values = {
            Attribute.ENGINE_INDEX: lambda: [record["engine"]],
            Attribute.ENGINE_NUMERICAL_NOTES: lambda: list(self.notes[record["engine"]]),
            Attribute.PLAN_WORKSPACE_BYTES: lambda: [1000 * self._engine(record)],
        }[attribute]()
        for at, value in enumerate(values[:room]):
            array[at] = value
        count._obj.value = len(values)
        return 0

    def _engine(self, plan):
        return self.live[plan[Attribute.PLAN_CONFIG][0]]["engine"]


@pytest.fixture
def cudnn():
    return FakeCudnn()


@pytest.fixture
def device(cudnn):
    return Deviceless(gpu("h200"), library=cudnn)


@pytest.fixture
def real_device():
    """Over the installed cuDNN; skipped where there is none that ranks without a driver."""
    try:
        device = Deviceless(gpu("v100"))
    except (InputError, OSError, ctypes.ArgumentError) as error:
        pytest.skip(f"no libcudnn here that ranks without a driver: {error}")
    yield device
    device.close()


@pytest.mark.parametrize(
    ("direction", "descriptor", "first"), [("fwd", 10, 700), ("bwd_data", 12, 706), ("bwd_filter", 11, 712)]
)
def test_the_operation_is_the_directions_own(cudnn, direction, descriptor, first):
    conv = parse("n8c64h14w20k32r3s1p1q0u2v1l1g4")
    conv = replace(conv, direction=direction, layout="NHWC", dtype="fp16", math="tensor_op")
    with Scope(cudnn) as scope:
        operation_graph(scope, conv)
        operation = next(r for r in cudnn.live.values() if r["kind"] == descriptor)
        assert (operation[first], operation[first + 1]) == ([1.0], [0.0])
        convolution = cudnn.live[operation[first + 2][0]]
        w, x, y = (cudnn.live[operation[first + at][0]] for at in (3, 4, 5))
    assert [tensor[Attribute.TENSOR_UNIQUE_ID] for tensor in (x, w, y)] == [[1], [2], [3]]
    assert x[Attribute.TENSOR_DIMENSIONS] == [8, 64, 14, 20]
    assert w[Attribute.TENSOR_DIMENSIONS] == [32, 16, 3, 1]  # a group's channels
    assert y[Attribute.TENSOR_DIMENSIONS] == [8, 32, conv.out_h, conv.out_w]
    assert x[Attribute.TENSOR_STRIDES] == [64 * 14 * 20, 1, 20 * 64, 64] and w[Attribute.TENSOR_DATA_TYPE] == [2]
    assert convolution[Attribute.CONVOLUTION_STRIDES] == [2, 1]
    assert convolution[Attribute.CONVOLUTION_PRE_PADDINGS] == [1, 0]
    assert convolution[Attribute.CONVOLUTION_COMPUTE_TYPE] == [0]  # fp16 adds in fp32
    assert cudnn.live == {} and cudnn.made == 6


@pytest.mark.parametrize(
    ("dtype", "math", "notes", "allowed"),
    [
        ("fp32", "fma", ("tensor_core",), False), ("fp32", "fma", ("down_convert_inputs",), False),
        ("fp32", "fma", ("winograd",), True), ("fp32", "default", ("tensor_core",), True),
        ("fp16", "tensor_op", ("tensor_core",), True), ("fp16", "fma", ("tensor_core",), True),
    ],
)  # fmt: skip
def test_fma_math_admits_no_tensor_cores_in_fp32(dtype, math, notes, allowed):
    assert EnginePlan(1, notes).allowed(dtype, math) is allowed


def test_the_ranking_keeps_its_order_and_leaves_out_what_the_math_forbids(device):
    assert [plan.algorithm for plan in device.ranking(CONV)] == ["engine:1", "engine:1", "engine:0"]
    assert device.ranking(replace(CONV, math="default"))[0] == EnginePlan(67, ("tensor_core",))


def test_a_problem_that_no_engine_takes_has_an_empty_ranking(device, cudnn):
    for kind in (Descriptor.HEURISTIC, Descriptor.GRAPH):
        cudnn.refused_kinds = {kind: NOT_SUPPORTED}
        assert device.ranking(CONV) == ()


def test_entries_tell_what_is_refused_after_all(device, cudnn):
    cudnn.refused_plans, cudnn.ranking = {1}, [1, 0, 5]
    common = {"deterministic": True, "status": "ok"}
    assert device.entries(CONV) == [
        {**common, "algorithm": "engine:1", "status": "not_supported"},
        {**common, "algorithm": "engine:0", "notes": ["strict_nan_prop"], "workspace_bytes": 0},
        {**common, "algorithm": "engine:5", "notes": ["note_99"], "workspace_bytes": 5000},
    ]
    cudnn.ranking = [0] * 40
    assert len(device.entries(CONV)) == KEPT


def test_every_nvidia_gpu_of_the_registry_can_be_described():
    known = [each for each in gpus() if each.vendor == "nvidia" and each.compute_capability in LIMITS]
    described = [json.loads(properties_json(each)) for each in known]
    assert len(described) > 20 and {len(each) for each in described} == {23}
    h200 = json.loads(properties_json(gpu("h200")))
    assert (h200["deviceVer"], h200["multiProcessorCount"], h200["smClockRateKHz"]) == (900, 132, 1_980_000)
    assert h200["maxSharedMemoryPerBlockOptin"] == 227 * 1024


@pytest.mark.parametrize("name", ["mi100", "k80"])
def test_a_gpu_that_cudnn_cannot_know_is_refused_before_the_library_is_looked_for(name):
    with pytest.raises(InputError, match=f"{name}.*cannot be described"):
        Deviceless(gpu(name))


def test_without_a_library_that_can_rank_the_remedy_is_one_line(monkeypatch, cudnn):
    def missing():
        raise InputError("libcudnn was not found (no file)")

    monkeypatch.setattr(deviceless.Library, "load", missing)
    with pytest.raises(InputError, match=r"pip install 'seer-surrogate\[heuristic\]'") as caught:
        Deviceless(gpu("h200"))
    assert "\n" not in str(caught.value)
    cudnn.version_number = 90100
    monkeypatch.setattr(deviceless.Library, "load", lambda: cudnn)
    with pytest.raises(InputError, match="cannot rank"):
        Deviceless(gpu("h200"))
    cudnn.refused_kinds = {Descriptor.DEVICE_PROPERTIES: 1006}  # its parts do not load
    with pytest.raises(InputError, match=r"cannot describe.*STATUS_1006.*pip install"):
        Deviceless(gpu("h200"), library=cudnn)
    assert cudnn.live == {}


def plan(count=3):
    convs = [Conv(n=1 + i, c=16, h=28, k=32, r=3, pad_h=1) for i in range(count)]
    return build([PlannedProblem(conv, "test", ("Net",)) for conv in convs], description="test")


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_holds_a_ranking_per_problem(device, tmp_path):
    path, seen, chosen = tmp_path / "run.jsonl", [], plan()
    assert collect_heuristic(chosen, "h200", str(path), lambda *call: seen.append(call), device=device) == 3
    header, *rest = records(path)
    assert [record["problem"] for record in rest] == [problem.key for problem in chosen.problems]
    assert header["device"]["gpu"] == "h200-sxm" and header["device"]["properties"]["deviceless"] is True
    assert rest[0]["candidates"] == ["engine:1", "engine:0"]
    assert seen[-1] == (3, 3, chosen.problems[-1].key)


def test_an_interrupted_log_goes_on_and_another_gpus_does_not(cudnn, tmp_path):
    path, chosen = tmp_path / "run.jsonl", plan()

    def stop(done, *_):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_heuristic(chosen, "h200", str(path), stop, device=Deviceless(gpu("h200"), library=cudnn))
    again = Deviceless(gpu("h200"), library=cudnn)
    assert collect_heuristic(chosen, "h200", str(path), device=again) == 1 and len(records(path)) == 4
    with pytest.raises(InputError, match="recorded with GPU h200-sxm, this is v100"):
        collect_heuristic(chosen, "v100", str(path), device=Deviceless(gpu("v100"), library=cudnn))


def test_the_real_library_ranks(real_device):
    entries = real_device.entries(parse("n32c256h14w14k256r3s3p1u1"))
    if driver().status != "ok" and not any(entry["status"] == "ok" for entry in entries):
        pytest.skip("this cuDNN ranks nothing without a driver")
    assert entries and entries[0]["status"] == "ok"
    assert all("tensor_core" not in entry.get("notes", ()) for entry in entries)
    workspaces = {entry["algorithm"]: entry.get("workspace_bytes") for entry in entries}
    im2col_bytes = 32 * 256 * 3 * 3 * 14 * 14 * 4
    assert workspaces.get("engine:0", 0) == 0 and workspaces.get("engine:2", im2col_bytes) == im2col_bytes
