"""The ranking for a described GPU and its log: against a stand-in for libcudnn and, where installed, the library."""

import json
from dataclasses import replace

import pytest

from surrogate.collect import deviceless
from surrogate.collect.cudnn.backend import Attribute, Descriptor, Kind, Scope
from surrogate.collect.cudnn.library import CudnnError
from surrogate.collect.device import Choice, DeviceLostError
from surrogate.collect.deviceless import KEPT, Deviceless, operation_graph, properties_json
from surrogate.collect.doctor import driver
from surrogate.collect.open_device import open_ranking
from surrogate.collect.run import collect_heuristic
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu, gpus
from surrogate.features.occupancy import LIMITS
from surrogate.features.text import parse
from tests.known import cases

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


@cases(__file__)
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


@cases(__file__)
def test_fma_math_admits_no_tensor_cores_in_fp32(device, cudnn, dtype, math, note, allowed):
    cudnn.notes, cudnn.ranking = {1: (note,)}, [1]
    assert bool(device.heuristic(replace(CONV, dtype=dtype, math=math))) is allowed


def test_a_problem_that_no_engine_takes_has_an_empty_ranking(device, cudnn):
    for kind in (Descriptor.HEURISTIC, Descriptor.GRAPH):
        cudnn.refused_kinds = {kind: NOT_SUPPORTED}
        assert device.heuristic(CONV) == ()


def test_the_ranking_keeps_its_order_and_tells_what_is_refused_after_all(device, cudnn):
    assert [choice.algorithm for choice in device.heuristic(CONV)] == ["engine:1", "engine:1", "engine:0"]
    assert device.heuristic(replace(CONV, math="default"))[0].notes == ("tensor_core",)
    cudnn.refused_plans, cudnn.ranking = {1}, [1, 0, 5]
    assert device.heuristic(CONV) == (
        Choice("engine:1", "not_supported", deterministic=True),
        Choice("engine:0", "ok", workspace_bytes=0, deterministic=True, notes=("strict_nan_prop",)),
        Choice("engine:5", "ok", workspace_bytes=5000, deterministic=True, notes=("note_99",)),
    )
    cudnn.ranking = [0] * 40
    assert len(device.heuristic(CONV)) == KEPT


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


def test_without_a_library_that_can_rank_the_remedy_is_one_line(refused, monkeypatch, cudnn):
    def missing():
        raise InputError("libcudnn was not found (no file)")

    monkeypatch.setattr(deviceless.Library, "load", missing)
    with refused("pip install 'seer-surrogate[heuristic]'"):
        Deviceless(gpu("h200"))
    cudnn.version_number = 90100
    monkeypatch.setattr(deviceless.Library, "load", lambda: cudnn)
    with refused("cannot rank"):
        Deviceless(gpu("h200"))
    cudnn.refused_kinds = {Descriptor.DEVICE_PROPERTIES: 1006}  # its parts do not load
    with refused("cannot describe", "STATUS_1006", "pip install"):
        Deviceless(gpu("h200"), library=cudnn)
    assert cudnn.live == {}


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_holds_a_ranking_per_problem(device, make_plan, tmp_path):
    path, seen, chosen = tmp_path / "run.jsonl", [], make_plan(3)
    collect_heuristic(chosen, "h200", str(path), lambda *call: seen.append(call), device=device)
    header, *rest = records(path)
    assert [record["problem"] for record in rest] == [problem.key for problem in chosen.problems]
    assert header["device"]["gpu"] == "h200-sxm" and header["device"]["properties"]["deviceless"] is True
    assert rest[0]["candidates"] == ["engine:1", "engine:0"]
    assert seen[-1] == (3, 3, chosen.problems[-1].key)


def test_an_interrupted_log_goes_on_and_another_gpus_does_not(refused, cudnn, make_plan, tmp_path):
    path, chosen = tmp_path / "run.jsonl", make_plan(3)

    def ranked(gpu_name, stop_after=3):
        def stop(done, *_):
            if done == stop_after:
                raise KeyboardInterrupt

        device = Deviceless(gpu(gpu_name), library=cudnn)
        collect_heuristic(chosen, gpu_name, str(path), stop, device=device)

    with pytest.raises(KeyboardInterrupt):
        ranked("h200", stop_after=2)
    assert len(records(path)) == 3
    ranked("h200", stop_after=4)
    assert len(records(path)) == 4
    with refused("recorded with GPU h200-sxm, this is v100"):
        ranked("v100")


def test_the_real_library_ranks():
    """In a process of its own: cuDNN 9.10 aborts without a driver."""
    device = open_ranking("v100")
    try:
        ranking = device.heuristic(parse("n32c256h14w14k256r3s3p1u1"))
    except (InputError, DeviceLostError) as error:
        pytest.skip(f"no libcudnn here that ranks without a driver: {error}")
    finally:
        device.close()
    if driver().status != "ok" and not any(choice.status == "ok" for choice in ranking):
        pytest.skip("this cuDNN ranks nothing without a driver")
    assert ranking and ranking[0].status == "ok"
    assert all("tensor_core" not in choice.notes for choice in ranking)
    workspaces = {choice.algorithm: choice.workspace_bytes for choice in ranking}
    im2col_bytes = 32 * 256 * 3 * 3 * 14 * 14 * 4
    assert workspaces.get("engine:0", 0) == 0 and workspaces.get("engine:2", im2col_bytes) == im2col_bytes
