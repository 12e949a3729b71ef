"""The campaign over the faithful fake: what is fit to be published, and every fault's cost. Slow tests use processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from surrogate.collect.campaign import campaign as module
from surrogate.collect.campaign.campaign import Campaign, run_campaign
from surrogate.collect.campaign.slices import SLICES
from surrogate.collect.cudnn import gpu as gpu_module
from surrogate.collect.cudnn.device import CudnnDevice
from surrogate.collect.operators.gpu import GpuOperators


class InProcess:
    """The cuDNN device in this process, opened again after it was closed, as the worker's is."""

    def __init__(self) -> None:
        self._device: Any = None

    def __getattr__(self, name: str) -> Any:
        self._device = self._device or CudnnDevice()
        return getattr(self._device, name)

    def close(self) -> None:
        if self._device:
            self._device.close()
        self._device = None


@pytest.mark.parametrize(("variables", "fault"), [
    ({}, ""),
    ({"CUPTI": "12"}, ""),
    ({"FAULTS": "soft cudnnConvolutionForward 1 0; soft cudnnSoftmaxForward -1 0"}, ""),
    ({"FAULTS": "drop record 10 0"}, "CUPTI took 0.0%"),
    ({"FAULTS": "error activity_flush_all -1 4"}, r"CUPTI took .*99% are needed \(CUPTI: CUPTI_ERROR_UNKNOWN"),
    ({"FAULTS": "error activity_enable -1 0"}, "CUPTI took 0.0%"),
    ({"FAULTS": "memory cudnnConvolutionForward -1 0"}, "nothing was measured: .*ALLOCATION_FAILED"),
])  # fmt: skip
def test_what_is_fit_to_be_published(chain, tmp_path, variables, fault):
    """Rows timed by anything but CUPTI's kernels, or no rows, are not; single failures are."""
    chain.setattr(gpu_module, "POOL_ELEMENTS", 65_537)
    chain.setattr(module, "open_operators", lambda _: GpuOperators())
    chain.setattr(module, "SLICES", {number: SLICES[number] for number in (5, 6)})
    for name, value in variables.items():
        chain.setenv(f"FAKE_{name}", value)
    device, told = InProcess(), []
    said = run_campaign(Campaign(tmp_path / "run", "cudnn", 10.0, shapes=2, tell=told.append), device)
    device.close()
    assert bool(said) is bool(fault) and len(told) == 2
    if fault:
        assert pd.Series([said]).str.contains(fault).all(), said
        return
    kernels = pd.read_parquet(tmp_path / "run" / "convolutions.kernels.parquet")
    assert len(kernels) and not kernels["kernel_name"].str.startswith("_Z").any()


Seer = Callable[..., "subprocess.CompletedProcess[str]"]
SHAPES = 2


@pytest.fixture
def seer(chain, tmp_path) -> Seer:
    """Runs ``seer`` with these words and FAKE_ variables, within ``seconds`` of wall clock."""

    def make(*words: str, seconds: float = 240.0, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, **{f"FAKE_{name.upper()}": value for name, value in variables.items()}}
        command = [sys.executable, "-m", "surrogate", *words]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=seconds, check=False
        )

    return make


def campaign(seer: Seer, minutes: float = 6.0, **variables: str) -> "subprocess.CompletedProcess[str]":
    words = ("--sample", str(SHAPES), "--minutes", str(minutes), "-o", "run")
    return seer("collect", "--device", "cudnn", "--campaign", *words, **variables)


def reports(folder: Path) -> dict[int, dict[str, Any]]:
    return {report["number"]: report for report in json.loads((folder / "run" / "campaign.json").read_text())}


def convolutions(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    return tuple(pd.read_parquet(folder / "run" / f"convolutions.{name}parquet") for name in ("", "kernels."))  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "version"), [("h100", "91002"), ("v100", "91002"), ("gb202", "91900")])
def test_all_slices_measure_count_and_join(seer, tmp_path, gpu, version):
    """Every row by CUPTI, every counted kernel joined; under ncu, nvprof, and ncu of a chip with other metrics."""
    result = campaign(seer, gpu=gpu, cudnn_version=version)
    assert result.returncode == 0, result.stdout + result.stderr
    assert set(reports(tmp_path)) == set(SLICES) and not any(r["failed"] for r in reports(tmp_path).values())
    rows, kernels = convolutions(tmp_path)
    ok = rows[rows["status"] == "ok"]
    assert len(ok) > 50 and (ok["timer"] == "cupti").mean() >= 0.99
    counted = kernels["fp32_instructions"].notna()
    assert counted.sum() > 10 and kernels.loc[counted, "dram_read_transactions"].notna().all()
    metadata = json.loads(pd.read_json(tmp_path / "run" / "campaign.json").to_json())
    assert metadata and (pd.read_parquet(tmp_path / "run" / "operators.parquet")["timer"] == "cupti").all()
    again = campaign(seer, gpu=gpu, cudnn_version=version)
    assert again.returncode == 0 and len(convolutions(tmp_path)[0]) == len(rows)


FIRST = {"cudnnConvolutionForward", "cudnnConvolutionBackwardData", "cudnnConvolutionBackwardFilter"}


@pytest.mark.slow
@pytest.mark.parametrize(("order", "hit"), [
    ("segfault cudnnConvolutionForward 1 3", [0]), ("sticky cudnnConvolutionForward 2 40", [0]),
    ("segfault cudnnConvolutionBackwardData 1 30; sticky cudnnConvolutionBackwardFilter 1 30", [0]),
    ("hang cudnnConvolutionForward 5 4", [0]), ("sticky cudnnGetConvolutionForwardWorkspaceSize 2 5", []),
    ("segfault cudnnFindConvolutionForwardAlgorithmEx -1 2", []), ("hang cudnnFindConvolutionForwardAlgorithmEx -1 2", []),
    ("segfault cudnnSoftmaxForward -1 1; sticky cudnnPoolingForward -1 1", [6]),
    ("hang cudnnPoolingForward -1 1", [6]), ("error nvrtc -1 0", [6]), ("memory cudaMalloc -1 40", []),
])  # fmt: skip
def test_a_fault_costs_one_measurement_in_bounded_time(seer, tmp_path, order, hit):
    """A crash, a hang (30 s, then 1 restart) or a sticky error ends its measurement, not its slice or the campaign."""
    began_s = time.monotonic()
    result = campaign(seer, faults=order)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    failed = {number for number, report in reports(tmp_path).items() if report["measured"].get("failed")}
    assert failed >= set(hit) and sum(r["measured"].get("failed", 0) for r in reports(tmp_path).values()) <= 4
    assert all(report["done"] == report["planned"] for report in reports(tmp_path).values())
    assert time.monotonic() - began_s < 220


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "words"), [
    ({"gpu": "none"}, "driver"), ({"faults": "error activity_enable -1 0"}, "cupti"),
    ({"faults": "nan cudnnConvolutionForward -1 0"}, "arithmetic"),
    ({"faults": "error cudnnCreate -1 0"}, "NOT_INITIALIZED"), ({"gpu": "v100", "cudnn_version": "91900"}, "9.11"),
])  # fmt: skip
def test_a_machine_that_cannot_be_trusted_measures_nothing(seer, tmp_path, variables, words):
    for result in (campaign(seer, **variables), seer("doctor", **variables)):
        assert result.returncode == 1 and words in result.stdout + result.stderr
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["denied", "hang", "fails:group-B"])
def test_a_profiler_that_fails_leaves_the_times(seer, tmp_path, order):
    result = campaign(seer, minutes=3.0, profiler=order)
    assert result.returncode == 0, result.stdout + result.stderr
    rows, kernels = convolutions(tmp_path)
    assert (rows.loc[rows["status"] == "ok", "timer"] == "cupti").all() and len(kernels)
    assert reports(tmp_path)[2]["notes"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_campaign_goes_on(chain, seer, tmp_path, stop):
    """At any moment: nothing that was measured is lost, and nothing is measured twice."""
    words = ["collect", "--device", "cudnn", "--campaign", "--sample", str(SHAPES), "--minutes", "6", "-o", "run"]
    child = subprocess.Popen([sys.executable, "-m", "surrogate", *words], cwd=tmp_path, stderr=subprocess.PIPE)
    log, end_s = tmp_path / "run" / "slice-0.jsonl", time.monotonic() + 120.0
    while not (log.exists() and log.stat().st_size > 5_000):
        assert time.monotonic() < end_s and child.poll() is None
        time.sleep(0.1)
    child.send_signal(stop)
    child.wait(30)
    measured = log.read_bytes()
    assert campaign(seer).returncode == 0
    rows, _ = convolutions(tmp_path)
    again = subprocess.run(["gzip", "-dc", f"{log}.gz"], capture_output=True, check=True).stdout
    assert again.startswith(measured[: measured.rfind(b"\n") + 1])
    assert len(rows) and not rows.duplicated(["direction", "dtype", "math", "layout", *"nchwkrs", "algorithm",
                                              "stride_h", "dilation_h", "groups"]).any()  # fmt: skip
