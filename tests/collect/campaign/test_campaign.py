"""Campaigns from end to end with a fake GPU, and the command on this CPU."""

import json
import re
from itertools import product

import pandas as pd
import pytest

from surrogate.collect import campaign as campaign_module
from surrogate.collect.campaign import SLICES, Campaign, allotted_seconds, plan_of, run_campaign
from surrogate.collect.device import DeviceInfo, DeviceLostError, Measurement
from surrogate.collect.doctor import Check
from surrogate.collect.log import read_log
from surrogate.collect.plan import GPU_CAPS
from surrogate.dataset.store import read_dataset
from surrogate.features.errors import InputError


@pytest.fixture
def gpu(fake_device, make_plan, monkeypatch):
    """Return a fake GPU and patch operators and plans; each measurement advances its clock by one second."""
    device = fake_device()
    facts = {"compute_capability": "9.0", "sms": 132, "timer": "cupti"}
    device.info = DeviceInfo("Fake GPU", "cudnn", "9.19.0", {"cuda_runtime": "13.0"}, facts)
    device.now_s, measure = 0.0, device.measure

    def timed(conv, algorithm, policy):
        device.now_s += 1.0
        return measure(conv, algorithm, policy)

    device.measure = timed
    operators = fake_device()
    operators.info = device.info
    operators.measure = lambda operator, policy: Measurement("ok", "", (2.0,), (2.0,), "cupti")
    engines = fake_device()
    engines.info = DeviceInfo("Fake GPU", "cudnn-graph", "9.19.0", device.info.versions, facts)
    monkeypatch.setattr(campaign_module, "open_operators", lambda **_: operators)
    monkeypatch.setattr(campaign_module, "open_device", lambda name, engines, **_: opened[name, engines])
    opened = {("cudnn", True): engines}
    monkeypatch.setattr(campaign_module, "plan_of", lambda part, _, seed, count: make_plan(count, seed=part.number))
    device.operators, device.engines = operators, engines
    return device


@pytest.fixture
def start(tmp_path, gpu):
    """Return ``start(checks, **settings)``, which runs a campaign and returns its verdict and messages."""

    def start(checks=(), **settings):
        messages = []
        settings = {"minutes": 60.0, "shapes": 8, "clock": lambda: gpu.now_s, **settings}
        campaign = Campaign(tmp_path / "RUN", "cudnn", echo=messages.append, **settings)
        fit, verdict = run_campaign(campaign, gpu, lambda: checks)
        assert fit == verdict.startswith("fit to be published")
        return verdict, messages

    return start


def test_run_campaign_writes_tables_logs_and_a_page(start, tmp_path):
    verdict, messages = start([Check("ecc", "ok", "on")])
    out = tmp_path / "RUN"
    assert verdict.startswith("fit to be published; counters are incomplete: no counters: ncu is not on the PATH")
    assert len(messages) == len(SLICES) + 1
    engines = read_dataset(out / "engines.parquet")
    assert engines.candidates == "listed" and set(engines.frame["library"]) == {"cudnn-graph"}
    dataset = read_dataset(out / "convolutions.parquet")
    assert dataset.candidates == "all" and set(dataset.frame["timer"].dropna()) == {"cupti"}
    assert len(pd.read_parquet(out / "convolutions.kernels.parquet")) == (dataset.frame["status"] == "ok").sum() > 20
    assert len(pd.read_parquet(out / "operators.parquet")) == 8
    logs = [f"slice-{number}.jsonl" for number, each in SLICES.items() if each.source != "counters"]
    assert sorted(path.name for path in out.glob("*.jsonl*")) == logs
    page = (out / "README.md").read_text()
    assert "# Kernel times of Fake GPU\n\nFit to be published; counters are incomplete" in page
    assert "| ecc | ok | on |" in page
    assert "no counters: ncu is not on the PATH" in messages[-2]
    assert "hf upload YOUR-NAME/seer-fake-gpu . --repo-type dataset" in page
    assert messages[-1] == f"to publish: cd {out} && hf upload YOUR-NAME/seer-fake-gpu . --repo-type dataset"


def test_a_repeated_campaign_continues_without_measuring_twice(start, tmp_path, gpu):
    _, messages = start(minutes=2.0)
    assert gpu.now_s <= 120.0 and any("the time is up" in line for line in messages)
    while any("the time is up" in line for line in messages):
        before = gpu.now_s
        _, messages = start(minutes=4.0)
        assert 0.0 < gpu.now_s - before <= 240.0
    reports = json.loads((tmp_path / "RUN" / "campaign.json").read_text())
    assert all(report["done"] == report["planned"] for report in reports)
    assert [report["title"] for report in reports] == [each.title for each in SLICES.values()]
    for report in (report for report in reports if SLICES[report["number"]] in CONVOLUTION_SLICES):
        records = read_log(tmp_path / "RUN" / f"slice-{report['number']}.jsonl").records
        assert sum(report["measured"].values()) == sum(record["kind"] == "measure" for record in records)


def test_allotted_seconds_counts_time_already_spent():
    assert allotted_seconds({1: 1, 2: 3}, {1: 0.0, 2: 0.0}, 40.0) == {1: 10.0, 2: 30.0}
    assert allotted_seconds({1: 1, 2: 3}, {1: 20.0, 2: 0.0}, 40.0) == {1: 0.0, 2: 40.0}  # slice 1 has used its share
    assert allotted_seconds({1: 1, 2: 3}, {1: 10.0, 2: 20.0}, 10.0) == {1: 0.0, 2: 10.0}


def test_a_failed_slice_does_not_stop_the_others(start, gpu):
    def lost():
        raise DeviceLostError("sticky")

    gpu.operators.device_info = lost
    verdict, messages = start()
    assert verdict == "not fit to be published: slice 7: sticky"
    assert len(messages) == len(SLICES) and "sticky" in messages[7]


def test_a_failed_check_is_a_fault_of_the_campaign(start, tmp_path):
    """With --even-so a campaign is measured although a check failed; the page and the verdict say so."""
    checks = [Check("ecc", "ok", "on"), Check("mps", "failed", "on")]
    assert "could not be trusted (mps); see seer doctor, or measure with --even-so" in start(checks)[0]
    assert not (tmp_path / "RUN").exists()
    assert start(checks, even_so=True)[0] == "not fit to be published: check mps: on"
    assert "| mps | failed | on |" in (tmp_path / "RUN" / "README.md").read_text()
    assert start([Check("device", "failed", "gone")], even_so=True)[0].endswith("trusted (device); see seer doctor")


def test_a_slice_without_a_plan_does_not_stop_the_others(start, monkeypatch, make_plan):
    def no_problem(measured_slice, caps, seed, count):
        if measured_slice.number == 1:
            raise InputError("the plan holds no problem to measure")
        return make_plan(count, seed=measured_slice.number)

    monkeypatch.setattr(campaign_module, "plan_of", no_problem)
    verdict, messages = start()
    assert verdict == "not fit to be published: slice 1: the plan holds no problem to measure"
    assert len(messages) == len(SLICES)


def test_without_the_frontend_only_engine_configurations_are_left_out(start, gpu):
    def missing():
        raise InputError("the heuristic needs cuDNN's frontend")

    gpu.engines.device_info = missing
    verdict, messages = start()
    assert verdict.startswith("fit to be published")
    assert "left out: the heuristic needs cuDNN's frontend" in messages[6]


CONVOLUTION_SLICES = [each for each in SLICES.values() if each.source not in ("operators", "counters")]


@pytest.mark.parametrize("measured_slice", CONVOLUTION_SLICES, ids=lambda measured_slice: measured_slice.title)
def test_plan_of_uses_the_settings_of_the_slice(measured_slice):
    convs = [problem.conv for problem in plan_of(measured_slice, GPU_CAPS, 0, 20).problems]
    settings = measured_slice.settings
    expected = {names for s in settings for names in product(s.dtypes, s.maths, s.layouts, s.directions)}
    assert {(conv.dtype, conv.math, conv.layout, conv.direction) for conv in convs} == expected
    assert all(not GPU_CAPS.reason(conv) and conv.flops <= 1e9 * measured_slice.max_gflop for conv in convs)


def test_a_campaign_on_a_cpu_is_a_rehearsal(seer, tmp_path, make_plan, monkeypatch):
    from surrogate.collect import cpu

    monkeypatch.setattr(campaign_module, "plan_of", lambda measured_slice, caps, seed, count: make_plan(count))
    monkeypatch.setattr(cpu, "measure_datasheet", lambda: {"name": "Test CPU"})
    words = ("collect", "--device", "cpu", "--campaign", "--minutes", 0.02, "--sample", 1, "-o", tmp_path / "RUN")
    result = seer(*words).succeeded()
    assert len(re.findall("^slice ", result.out, re.MULTILINE)) == len(SLICES) and "rehearsed" in result.out
    assert result.out.count("left out: it needs a GPU") == 3
    page = (tmp_path / "RUN" / "README.md").read_text()
    assert "\n\nRehearsed on device cpu." in page and "hf upload" not in page


def test_a_campaign_without_a_gpu_measures_nothing(seer, tmp_path, monkeypatch):
    monkeypatch.setenv("SEER_CUDNN", "no-such-library.so")
    result = seer("collect", "--device", "cudnn", "--campaign", "-o", tmp_path / "RUN")
    assert result.code == 1
    assert "the times could not be trusted" in result.out
    assert not (tmp_path / "RUN").exists()
    assert "Traceback" not in result.err
