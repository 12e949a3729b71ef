"""Fixtures: a fake device with its plans and logs, and a fake of the CUDA libraries."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from surrogate.collect.device import DeviceInfo, HeuristicEntry, MeasuredKernel, Measurement, RepeatPolicy
from surrogate.collect.log import RunLog
from surrogate.collect.plan import CollectionPlan, PlannedProblem, build_plan
from surrogate.collect.run import RunOutcome, header_for, run
from surrogate.features.conv import Conv
from tests.collect.fake import chain as fake_chain

ALGORITHMS = ("IMPLICIT_GEMM", "GEMM", "FFT", "WINOGRAD")


class FakeDevice:
    """Measure times that depend on problem and algorithm only; each visit is 1 % slower than the previous one.

    A test may set ``alter(measurement, algorithm)``, which replaces every measurement.
    """

    def __init__(self, gpu: str = "Fake GPU", version: str = "9.1.0") -> None:
        self.info = DeviceInfo(gpu, "cudnn", version, {"cuda": "13.0"}, {"sms": 4})
        self.calls: list[tuple[str, str]] = []
        self.closed = False
        self.alter: Callable[[Measurement, str], Measurement] = lambda result, algorithm: result

    def device_info(self) -> DeviceInfo:
        return self.info

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        return ALGORITHMS

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        return (HeuristicEntry("FFT", "not_supported"), HeuristicEntry("GEMM", "ok"), HeuristicEntry("WINOGRAD", "ok"))

    def find(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        times = (("WINOGRAD", 7.5, 128), ("GEMM", 9.5, 64))
        return tuple(HeuristicEntry(name, "ok", us, workspace, True, "fma") for name, us, workspace in times)

    def conditions(self) -> Mapping[str, float]:
        return {"sm_clock_mhz": 1980.0, "throttle_reasons": 0}

    def close(self) -> None:
        self.closed = True

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        return self.alter(self._measured(conv, algorithm), algorithm)

    def _measured(self, conv: Conv, algorithm: str) -> Measurement:
        visits = self.calls.count((str(conv), algorithm))
        self.calls.append((str(conv), algorithm))
        if algorithm == "FFT" and conv.r == 1:
            return Measurement("not_supported", "filter of 1")
        if algorithm == "FFT" and conv.c > 512:
            return Measurement("workspace_too_large", "too large", workspace_bytes=1 << 40)
        seed = hashlib.sha256(f"{conv}{algorithm}".encode()).digest()[0]
        base = (10.0 + seed) * 1.01**visits
        times = (base, base + 1.0, base + 2.0, base + 1.0, base + 3.0)
        name = f"{algorithm.lower()}_kernel"
        kernel = MeasuredKernel(f"_Z{len(name)}{name}v", 8, 2, 1, 128, 1, 1, 96, 1024, 0, base + 1.0)
        return Measurement("ok", "", times, tuple(time + 0.5 for time in times), "cupti", 64, True, (kernel,))


@pytest.fixture
def fake_device() -> type[FakeDevice]:
    return FakeDevice


@pytest.fixture
def make_plan() -> Callable[..., CollectionPlan]:
    """Return ``make_plan(count)``: a plan of ``count`` problems, some 1×1; from 200 problems it has anchors."""

    def make(count: int, **options: Any) -> CollectionPlan:
        convs = (Conv(n=1 + i % 8, c=16 + i, h=28, k=32, r=1 if i % 3 else 3, pad_h=0) for i in range(count))
        return build_plan([PlannedProblem(conv, "test", ("Net",)) for conv in convs], description="test", **options)

    return make


@pytest.fixture
def ran(tmp_path: Path) -> Callable[..., RunOutcome]:
    """Return ``ran(plan, device, name)``, which runs or continues ``plan`` in a log and returns the outcome."""

    def make(plan: CollectionPlan, device: Any, name: str = "run", **options: Any) -> RunOutcome:
        with RunLog(tmp_path / name, header_for(plan, device)) as log:
            return run(plan, device, log, **options)

    return make


@pytest.fixture
def record(tmp_path: Path, ran: Callable[..., RunOutcome]) -> Callable[..., Path]:
    """Return ``record(plan, device, name)``, which runs ``plan`` and returns the path of its log."""

    def make(plan: CollectionPlan, device: Any = None, name: str = "run.jsonl", **options: Any) -> Path:
        ran(plan, device or FakeDevice(), name, **options)
        return tmp_path / name

    return make


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the fake libcudnn, built once; skip the test if there is no C compiler."""
    if not fake_chain.compiler():
        pytest.skip("the fake libcudnn needs Linux and a C compiler")
    return fake_chain.build(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def chain(fake_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """Install the fake CUDA libraries for this process and its children; return the monkeypatch.

    A test may set FAKE_FAULTS, FAKE_FRONTEND, FAKE_GPU, FAKE_CUPTI, FAKE_LAUNCHES, FAKE_CUPY_PARTS, FAKE_CUDNN_VERSION
    and FAKE_PROFILER; tests/collect/fake explains them.
    """
    (tmp_path / "state").mkdir()
    for name, value in fake_chain.environment(fake_library, tmp_path / "state").items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(fake_chain.FAKE / "packages")
    _unload_cuda()
    yield monkeypatch
    _unload_cuda()


def _unload_cuda() -> None:
    """Remove the fake CUDA modules from this process and reset their library."""
    for name in ("cupy", "cupti", "cupti.cupti", "pynvml", "cudnn", "cuda_runtime"):
        module = sys.modules.pop(name, None)
        if name == "cuda_runtime" and module:
            module.LIBRARY.fake_reset()
