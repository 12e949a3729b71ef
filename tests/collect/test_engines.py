"""Engine configurations on the fake GPU: the device, a run with a limit per problem, the merged table, the command."""

import json
from contextlib import closing

import pytest

from surrogate.collect.cudnn import gpu as gpu_module
from surrogate.collect.cudnn.engines import EngineDevice
from surrogate.collect.device import DeviceLostError, RepeatPolicy
from surrogate.collect.log import read_log
from surrogate.collect.merge import merge_runs
from surrogate.features.algorithms import BENCHMARK_LIMIT
from surrogate.features.conv import Conv

CONV = Conv(n=2, c=8, h=9, k=4, r=3, dtype="fp16", math="tensor_op", layout="NHWC")
POLICY = RepeatPolicy()
LISTED = 14
"""Configurations of the fake's list that can be built; two of them run on tensor cores."""


@pytest.fixture
def device(chain):
    chain.setattr(gpu_module, "POOL_ELEMENTS", 65_537)
    with closing(EngineDevice()) as device:
        yield device


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_every_listed_configuration_is_timed_or_refused(device, direction):
    conv = Conv(**{**CONV.to_dict(), "direction": direction})
    listed = [entry.algorithm for entry in device.heuristic(conv)]
    assert len(listed) == LISTED
    results = {name: device.measure(conv, name, POLICY) for name in listed}
    assert "eng5_k1=5" not in results
    large = results.pop("eng7_k2=0")
    assert (large.status, large.workspace_bytes) == ("workspace_too_large", 1 << 40) and large.build_ms is not None
    for name, result in results.items():
        assert (result.status, result.timer, len(result.times_us)) == ("ok", "cupti", 5), (name, result.reason)
        assert result.kernels[0].kernel_name == f"_Z{len(name)}{name}v"
        assert result.deterministic is (name != "eng3_k2=0") and result.build_ms is not None and result.build_ms >= 0
    assert results["eng67_k2=1"].workspace_bytes == 4096


def test_the_first_ten_are_measured_in_order_and_the_rest_at_random(device):
    conv, other = CONV, CONV.with_batch(3)
    listed = [entry.algorithm for entry in device.heuristic(conv)]
    order = device.candidates(conv)
    assert list(order[:BENCHMARK_LIMIT]) == listed[:BENCHMARK_LIMIT] and sorted(order) == sorted(listed)
    assert order == device.candidates(conv)
    orders = {device.candidates(CONV.with_batch(n))[BENCHMARK_LIMIT:] for n in range(1, 9)}
    assert len(orders) > 1 and device.candidates(other)


def test_faults_cost_one_measurement(device, chain):
    chain.setenv("FAKE_FAULTS", "soft execute 2 0")
    result = device.measure(CONV, "eng1_k2=1_k3=0", POLICY)
    assert result.status == "failed" and "EXECUTION_FAILED" in result.reason and "\n" not in result.reason
    assert device.measure(CONV, "eng0", POLICY).status == "ok"
    chain.setenv("FAKE_FAULTS", "sticky execute 3 0")
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        device.measure(CONV, "eng1_k2=3_k3=0", POLICY)


def test_a_problem_that_does_not_fit_fails_with_the_reason(device):
    """Its configurations are listed, so the table has their rows."""
    conv = CONV.with_batch(400_000_000)
    result = device.measure(conv, device.candidates(conv)[0], POLICY)
    assert result.status == "failed" and "the arena holds" in result.reason
    assert device.measure(CONV, "eng99", POLICY).status == "not_supported"
    assert device.measure(CONV, "eng0", POLICY).status == "ok"


def test_a_refused_problem_has_no_configuration(device, chain):
    chain.setenv("FAKE_FRONTEND", "graph")
    assert device.candidates(CONV) == () == device.heuristic(CONV)


@pytest.mark.parametrize(("problem_s", "count"), [(0.0, BENCHMARK_LIMIT), (1e9, LISTED - 2)])
def test_a_problem_takes_its_time_and_no_more(device, make_plan, record, problem_s, count):
    merged = merge_runs([record(make_plan(3), device, problem_s=problem_s)])
    frame = merged.frame
    expected = set(range(1, LISTED - 1))  # fp32 FMA: without tensor cores
    assert merged.candidates == "listed" and set(frame["library"]) == {"cudnn-graph"}
    for _, rows in frame.groupby(["n", "c"]):
        assert len(rows) == count and set(rows["heuristic_rank"]) <= expected
        assert set(rows["heuristic_rank"]) >= set(range(1, BENCHMARK_LIMIT + 1))
        assert set(rows["heuristic_algorithm"]) == {"eng1_k2=1_k3=0"}
    first = frame[frame["heuristic_rank"] == 1]
    assert (first["engine"] == 1).all() and (first["knobs"] == "k2=1 k3=0").all() and (first["build_ms"] >= 0).all()


@pytest.mark.slow
def test_the_command_measures_and_merges_configurations(chain, seer, tmp_path):
    plan, log = tmp_path / "plan.txt", tmp_path / "engines.jsonl"
    plan.write_text("n2c16h28k32r3\nn2c16h28k32r5\n", encoding="utf-8")
    words = ("--plan", plan, "--dtype", "fp16", "--math", "tensor_op", "--layout", "NHWC", "-o", log)
    assert "2 of 2 problems done" in seer("collect", "--device", "cudnn", "--engines", *words).succeeded().out
    header = read_log(log).header
    assert header.device.library == "cudnn-graph" and header.device.properties["heuristic_mode"] == "A+FALLBACK"
    seer("data", "merge", log, "-o", tmp_path / "engines.parquet").succeeded()
    rows = seer("data", "info", tmp_path / "engines.parquet", "--json").succeeded().json
    assert json.dumps(rows).count("cudnn-graph")
