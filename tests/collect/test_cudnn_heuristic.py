"""cuDNN's ranking for a GPU that is not present, and its log: with the fake library and, if installed, the real one."""

import json
import re
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from surrogate.collect.cudnn.engines import EngineDevice
from surrogate.collect.cudnn.graph import OPERATIONS
from surrogate.collect.cudnn_heuristic import HeuristicDevice, properties_json
from surrogate.collect.device import DeviceLostError, HeuristicEntry
from surrogate.collect.doctor import driver
from surrogate.collect.open_device import open_ranking
from surrogate.collect.run import collect_heuristic
from surrogate.features.conv import Conv, parse
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu, gpus
from surrogate.features.kernels import LIMITS
from tests.known import cases, known_answers

PLAIN = ["eng1_k2=1_k3=0", "eng1_k2=3_k3=0", "eng0", "eng2_k2=2_k3=0", "eng3_k2=0", "eng4_k2=0"]
"""The fake's configurations of mode A without tensor cores."""
CONV = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)


@pytest.fixture
def device(chain):
    with closing(HeuristicDevice(gpu("h200"))) as device:
        yield device


@pytest.mark.parametrize(("dtype", "layout"), [("fp32", "NCHW"), ("fp16", "NHWC"), ("fp64", "NCHW")])
@pytest.mark.parametrize("direction", OPERATIONS)
def test_the_graph_has_the_tensors_of_the_problem(device, direction, dtype, layout):
    """All sizes differ, and the fake asserts that the tensors agree with the convolution."""
    conv = replace(parse("n2c6h11w9k4r3s2p1q0u2v1l1j2g2"), direction=direction, dtype=dtype, layout=layout)
    assert device.heuristic(conv)


@cases(__file__)
def test_only_fma_math_in_fp32_excludes_tensor_cores(device, dtype, math, count):
    """The fake lists 15 configurations, two on tensor cores, and refuses to build engine 5."""
    names = [entry.algorithm for entry in device.heuristic(replace(CONV, dtype=dtype, math=math))]
    assert names[-12:] == [*PLAIN, *(f"eng6_k2={knob}" for knob in range(5)), "eng7_k2=0"]
    assert names[:-12] == ["eng67_k2=1", "eng68_k2=0"][: count - 12] and len(names) == count


def test_a_problem_without_an_engine_has_an_empty_ranking(device, chain):
    chain.setenv("FAKE_FRONTEND", "graph")
    assert device.heuristic(CONV) == ()


def test_the_ranking_skips_refused_plans_and_marks_deterministic_ones(device):
    expected = [HeuristicEntry(status="ok", **fields) for fields in known_answers(__file__)["entries"]]
    assert [*device.heuristic(CONV)[1:5]] == expected


def test_every_nvidia_gpu_can_be_described():
    supported = [gpu for gpu in gpus() if gpu.vendor == "nvidia" and gpu.compute_capability in LIMITS]
    descriptions = [json.loads(properties_json(gpu)) for gpu in supported]
    assert len(descriptions) > 20 and {len(description) for description in descriptions} == {23}
    h200 = json.loads(properties_json(gpu("h200")))
    assert (h200["deviceVer"], h200["multiProcessorCount"], h200["smClockRateKHz"]) == (900, 132, 1_980_000)
    assert h200["maxSharedMemoryPerBlockOptin"] == 227 * 1024


@pytest.mark.parametrize("name", ["mi100", "k80"])
def test_an_unsupported_gpu_is_refused_before_the_library_is_loaded(name):
    with pytest.raises(InputError, match=f"{name}.*cannot be described"):
        HeuristicDevice(gpu(name))


@cases(__file__)
def test_an_unsuitable_library_is_refused_with_the_remedy(refused, chain, variables, words):
    for name, value in variables.items():
        chain.setenv(name, value)
    with refused(*words):
        HeuristicDevice(gpu("h200"))


@pytest.mark.parametrize("opened", [lambda: HeuristicDevice(gpu("h200")), EngineDevice])
def test_an_unusable_frontend_is_refused_with_the_remedy(refused, chain, opened):
    chain.setenv("FAKE_FRONTEND", "other")
    with refused("loaded cuDNN 90000, this process 91002"):
        opened()
    chain.setitem(sys.modules, "cudnn", None)
    with refused("frontend", "pip install 'seer-surrogate[heuristic]'"):
        opened()


def test_an_unsupported_dtype_is_refused(refused, device):
    with refused("int8"):
        device.heuristic(replace(CONV, dtype="int8"))


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_collect_heuristic_logs_a_ranking_per_problem(device, make_plan, tmp_path):
    path, progress, plan = tmp_path / "run.jsonl", [], make_plan(3)
    collect_heuristic(plan, "h200", str(path), lambda *call: progress.append(call), device=device)
    header, *rankings = records(path)
    assert [record["problem"] for record in rankings] == [problem.key for problem in plan.problems]
    assert header["device"]["gpu"] == "h200-sxm"
    assert header["device"]["properties"]["deviceless"] is True
    assert rankings[0]["candidates"][:6] == PLAIN
    assert progress[-1][:2] == (3, 3) and progress[-1][2].endswith(" rows/s, 0:00 left")


def test_collect_heuristic_continues_a_log_of_the_same_gpu_only(refused, chain, make_plan, tmp_path):
    path, plan = tmp_path / "run.jsonl", make_plan(3)

    def rank(gpu_name, stop_after: int | None = None):
        def stop(done, *_):
            if done == stop_after:
                raise KeyboardInterrupt

        with closing(HeuristicDevice(gpu(gpu_name))) as device:
            collect_heuristic(plan, gpu_name, str(path), stop, device=device)

    with pytest.raises(KeyboardInterrupt):
        rank("h200", stop_after=2)
    assert len(records(path)) == 3
    rank("h200")
    assert len(records(path)) == 4
    with refused("recorded with GPU h200-sxm, this is v100"):
        rank("v100")


def ranking_of_the_real_library(name, conv):
    """The library runs in a worker process, because cuDNN 9.10 aborts without a driver."""
    with closing(open_ranking(name)) as device:
        try:
            return device.heuristic(conv)
        except (InputError, DeviceLostError) as error:
            pytest.skip(f"no libcudnn here that ranks without a driver: {error}")


def test_the_real_library_ranks():
    ranking = ranking_of_the_real_library("v100", parse("n32c256h14w14k256r3s3p1u1"))
    if driver().status != "ok" and not any(choice.status == "ok" for choice in ranking):
        pytest.skip("this cuDNN ranks nothing without a driver")
    assert ranking and not any(choice.status != "ok" for choice in ranking)
    names = [choice.algorithm for choice in ranking]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"eng\d+(_k\d+=-?\d+)*", name) for name in names)
    workspaces = {choice.algorithm.partition("_")[0]: choice.workspace_bytes for choice in ranking}
    expected = {"eng0": 0, "eng2": 32 * 256 * 3 * 3 * 14 * 14 * 4}  # engine 2 writes the im2col matrix
    listed = expected.keys() & workspaces.keys()  # not every version lists both
    assert listed and {name: workspaces[name] for name in listed} == {name: expected[name] for name in listed}


@pytest.mark.parametrize("name", ["h100", "a100", "rtx-4090"])
def test_the_real_library_lists_configurations_for_gpus_of_today(name):
    conv = Conv(n=32, c=256, h=14, k=256, r=3, pad_h=1, dtype="fp16", math="tensor_op", layout="NHWC")
    listed = ranking_of_the_real_library(name, conv)
    assert len({choice.algorithm for choice in listed}) == len(listed) >= 20
