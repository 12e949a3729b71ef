"""Campaigns with the fake CUDA libraries: results to publish, and the cost of faults. Slow tests use processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from surrogate.collect import campaign as module
from surrogate.collect.campaign import SLICES, Campaign, run_campaign
from surrogate.collect.cudnn import gpu as gpu_module
from surrogate.collect.cudnn.device import CudnnDevice
from surrogate.collect.open_device import open_device
from surrogate.collect.operators import GpuOperators
from surrogate.collect.plan_source import ALL, grid_problems
from tests.known import cases


class ReopenedCudnnDevice:
    """A cuDNN device in this process that opens again after `close`, like the worker's device."""

    def __init__(self) -> None:
        self._device: Any = None

    def __getattr__(self, name: str) -> Any:
        self._device = self._device or CudnnDevice()
        return getattr(self._device, name)

    def close(self) -> None:
        if self._device:
            self._device.close()
        self._device = None


@cases(__file__)
def test_a_campaign_is_publishable_if_cupti_timed_its_rows(chain, tmp_path, variables, fault):
    """A campaign with single failures is publishable; one without rows or without CUPTI's times is not."""
    chain.setattr(gpu_module, "POOL_ELEMENTS", 65_537)
    chain.setattr(module, "open_operators", lambda **_: GpuOperators())
    chain.setattr(module, "SLICES", {number: SLICES[number] for number in (0, 7)})
    for name, value in variables.items():
        chain.setenv(f"FAKE_{name}", value)
    device, messages = ReopenedCudnnDevice(), []
    fit, verdict = run_campaign(Campaign(tmp_path / "run", "cudnn", 10.0, shapes=2, echo=messages.append), device)
    device.close()
    assert fit is not bool(fault)
    assert [line[:7] for line in messages[:2]] == ["slice 0", "slice 7"]
    if fault:
        assert re.search(fault, verdict), verdict
        return
    kernels = pd.read_parquet(tmp_path / "run" / "convolutions.kernels.parquet")
    assert len(kernels) and not kernels["kernel_name"].str.startswith("_Z").any()
    page = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert ("labels miss launches in" in page) is ("LAUNCHES" in variables)


Seer = Callable[..., "subprocess.CompletedProcess[str]"]
WORDS = ("collect", "--device", "cudnn", "--campaign", "--sample", "2", "--minutes", "60", "-o", "run")


@pytest.fixture
def measured(chain, tmp_path) -> Callable[..., str]:
    """Return ``measured(…)``, which runs a campaign with short grids in worker processes and returns its verdict."""
    grid = list(islice(grid_problems(ALL), 40))
    chain.setattr("surrogate.collect.plan_source.grid_problems", lambda *_: grid)

    def make(minutes: float = 60.0, shapes: int = 1, **variables: str) -> str:
        for name, value in variables.items():
            chain.setenv(f"FAKE_{name.upper()}", value)
        with closing(open_device("cudnn")) as device:
            fit, verdict = run_campaign(Campaign(tmp_path / "run", "cudnn", minutes, shapes=shapes), device)
            assert fit, verdict
            return verdict

    return make


@pytest.fixture
def seer(chain, tmp_path) -> Seer:
    """Return ``seer(*words, **variables)``, which runs the command with FAKE_ variables within ``seconds``."""

    def make(*words: str, seconds: float = 400.0, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, **{f"FAKE_{name.upper()}": value for name, value in variables.items()}}
        command = [sys.executable, "-m", "surrogate", *words]
        options = {"capture_output": True, "text": True, "timeout": seconds, "check": False}
        return subprocess.run(command, env=environment, cwd=tmp_path, **options)

    return make


def reports(folder: Path) -> dict[int, dict[str, Any]]:
    return {report["number"]: report for report in json.loads((folder / "run" / "campaign.json").read_text())}


def convolutions(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    return tuple(pd.read_parquet(folder / "run" / f"convolutions.{name}parquet") for name in ("", "kernels."))  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "version"), [("h100", "91002"), ("v100", "91002"), ("gb202", "91900")])
def test_all_slices_are_measured_counted_and_joined(measured, tmp_path, gpu, version):
    """CUPTI times the rows and ncu counts kernels, also on chips with other metrics."""
    assert measured(gpu=gpu, cudnn_version=version) == "fit to be published"
    assert set(reports(tmp_path)) == set(SLICES) and not any(r["failed"] for r in reports(tmp_path).values())
    rows, kernels = convolutions(tmp_path)
    ok = rows[rows["status"] == "ok"]
    assert all(report["done"] == report["planned"] for report in reports(tmp_path).values())
    assert (ok["timer"] == "cupti").mean() >= 0.99
    counted = kernels["fp32_instructions"].notna()
    assert counted.sum() > 4 and kernels.loc[counted, "dram_read_transactions"].notna().all()
    assert (pd.read_parquet(tmp_path / "run" / "operators.parquet")["timer"] == "cupti").all()


@pytest.mark.slow
@cases(__file__)
def test_a_fault_costs_one_measurement_in_bounded_time(chain, measured, tmp_path, order, hit):
    """A crash, a hang (30 s, then a restart) or a sticky error ends one measurement, not the slice or the campaign."""
    chain.setenv("PATH", "/usr/bin:/bin")  # no profiler
    began_s = time.monotonic()
    assert "ncu is not on the PATH" in measured(faults=order, shapes=1 + (hit == [7]))
    statuses = {number: report["measured"] for number, report in reports(tmp_path).items()}
    lost = {number: counts.get("lost", 0) + counts.get("failed", 0) for number, counts in statuses.items()}
    assert all(lost[number] for number in hit)
    assert sum(lost.values()) <= 4
    assert all(report["planned"] - report["done"] <= lost[number] for number, report in reports(tmp_path).items())
    assert time.monotonic() - began_s < 60 * 8


@pytest.mark.slow
@cases(__file__)
def test_an_untrustworthy_machine_measures_nothing(seer, tmp_path, variables, words):
    for result in (seer(*WORDS, **variables), seer("doctor", **variables)):
        assert result.returncode == 1 and words in result.stdout + result.stderr
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["hang activity_register_callbacks -1 0", "segfault activity_flush_all -1 0"])
def test_a_cupti_that_hangs_or_crashes_is_left_out(seer, tmp_path, order):
    """The campaign asks for --even-so, because times by events hold the gaps between kernels."""
    words = (*WORDS[:-2], "--timeout", "6", *WORDS[-2:])
    refused = seer(*words, faults=order)
    assert refused.returncode == 1 and "not be trusted (cupti, kernels)" in refused.stdout
    assert not (tmp_path / "run").exists()
    measured = seer(*words, "--even-so", faults=order)
    assert measured.returncode == 1 and "check cupti: left out, because two" in measured.stdout
    rows = pd.read_parquet(tmp_path / "run" / "convolutions.parquet")
    assert set(rows.loc[rows["status"] == "ok", "timer"]) == {"events"}
    assert set(pd.read_parquet(tmp_path / "run" / "engines.parquet")["timer"].dropna()) == {"events"}


@pytest.mark.slow
@pytest.mark.parametrize("order", ["denied", "hang", "fails:op_ffma"])
def test_a_failing_profiler_keeps_the_times(measured, tmp_path, order):
    assert "; counters are incomplete: " in measured(minutes=1.5, profiler=order)
    rows, kernels = convolutions(tmp_path)
    assert (rows.loc[rows["status"] == "ok", "timer"] == "cupti").all() and len(kernels)
    assert reports(tmp_path)[max(SLICES)]["notes"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_campaign_continues(seer, tmp_path, stop):
    """The second call keeps the log of the first and measures no pair twice."""
    child = subprocess.Popen([sys.executable, "-m", "surrogate", *WORDS], cwd=tmp_path, stderr=subprocess.PIPE)
    log, end_s = tmp_path / "run" / "slice-0.jsonl", time.monotonic() + 120.0
    while not (log.exists() and b'"measure"' in log.read_bytes()):
        assert time.monotonic() < end_s and child.poll() is None
        time.sleep(0.1)
    child.send_signal(stop)
    child.communicate(timeout=120)
    before = log.read_bytes()
    result = seer(*WORDS)
    assert result.returncode == 0, result.stdout + result.stderr
    after = log.read_bytes()
    assert after.startswith(before[: before.rfind(b"\n") + 1])
    lines = [json.loads(line) for line in after.splitlines()]
    pairs = [(line["problem"], line["algorithm"]) for line in lines if line["kind"] == "measure"]
    assert len(pairs) == 2 * 8 and len(pairs) == len(set(pairs))  # two shapes, eight algorithms
