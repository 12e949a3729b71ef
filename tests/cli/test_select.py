"""``seer select --measure``: measured times replace predictions and are kept for the next one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surrogate import load
from surrogate.collect.device import DeviceInfo
from surrogate.features.conv import Conv
from surrogate.prediction.autotune import FILE_NAME, Attempt, with_attempts
from surrogate.prediction.results import Limits
from tests.prediction.test_autotune import FakeDevice

PROBLEM = "n8c64h28w28k64r3s3p1u1"
CONV = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file where measurements are kept, in a folder of its own."""
    path = tmp_path / "my cäche" / FILE_NAME
    monkeypatch.setenv("SEER_CACHE", str(path))
    return path


@pytest.fixture
def select(seer, trained: Path) -> Callable[..., Any]:
    return lambda *words: seer("select", "--bundle", trained, "--gpu", "t4", PROBLEM, *words)


def on(monkeypatch: pytest.MonkeyPatch, bench: FakeDevice) -> FakeDevice:
    monkeypatch.setattr("surrogate.collect.open_device.open_device", lambda name: bench)
    return bench


def ranked(result: Any) -> list[tuple[str, str]]:
    return [(one["algorithm"], one["source"]) for one in result.json["candidates"]]


def test_a_measurement_beats_the_model_and_is_not_repeated(select, cache, monkeypatch) -> None:
    """Measured once, recalled by the next --measure; without --measure the model alone answers."""
    before = ranked(select("--json"))
    first, second = before[0][0], before[1][0]
    bench = on(monkeypatch, FakeDevice({name: 100.0 - i for i, (name, _) in enumerate(before)}))
    measured = select("--json", "--measure", "--device", "cudnn")
    assert ranked(measured)[:2] == [(second, "measured"), (first, "measured")]
    assert measured.json["library_version"] == "9.1.0" and len(bench.calls) == 2
    again = select("--json", "--measure", "--device", "cudnn")
    assert again.json == measured.json and again.err == "" and len(bench.calls) == 2
    assert [one["workspace_bytes"] for one in again.json["candidates"][:2]] == [64, 64]
    assert ranked(select("--json")) == ranked(select("--json", "--no-cache")) == before


@pytest.fixture
def attempted(trained: Path) -> Callable[..., Any]:
    """The selection after these attempts, within limits."""
    predictor = load(trained, gpu="t4")

    def selected(*attempts: Attempt, **limits: Any) -> Any:
        return with_attempts(predictor.select(CONV), attempts, Limits.of(**limits))

    return selected


def sources(selection: Any) -> list[tuple[str, str]]:
    return [(one.algorithm, one.source) for one in selection.candidates]


def test_limits_hold_for_what_was_measured(attempted) -> None:
    """By its measured workspace and determinism, not the predicted ones."""
    known = (
        Attempt("IMPLICIT_GEMM", None, 1.0, workspace_bytes=2**20, deterministic=False),
        Attempt("GEMM", None, 2.0, workspace_bytes=0, deterministic=True),
    )
    assert {("IMPLICIT_GEMM", "measured"), ("GEMM", "measured")} <= set(sources(attempted(*known)))
    tight = attempted(*known, workspace_limit=1000)
    assert ("IMPLICIT_GEMM", "measured") not in sources(tight) and ("GEMM", "measured") in sources(tight)
    reasons = {one.algorithm: one.reason for one in tight.excluded}
    assert reasons["IMPLICIT_GEMM"].startswith("needs 1048576 bytes")
    assert "IMPLICIT_GEMM" not in dict(sources(attempted(*known, deterministic=True)))


def test_slow_measurements_do_not_lead(attempted) -> None:
    """One of a candidate that the model did not prefer, or far above another candidate's whole interval."""
    order = sources(attempted())
    for name, _ in (order[-1], order[0]):
        found = sources(attempted(Attempt(name, None, 1e6, workspace_bytes=0, deterministic=True)))
        assert found[-1] == (name, "measured") and found[0][1] == "model"


def test_what_the_device_refused_is_out_and_what_it_ran_is_in(attempted) -> None:
    best, _ = sources(attempted())[0]
    refused = Attempt(best, None, reason="the library refused it")
    found = attempted(refused, Attempt("DIRECT", None, 1.0, workspace_bytes=0, deterministic=True))
    assert best not in dict(sources(found)) and dict(sources(found))["DIRECT"] == "measured"
    assert (best, "the library refused it") in found.excluded
    assert "DIRECT" not in {one.algorithm for one in found.excluded}


def test_without_the_cache_nothing_is_kept(select, cache, monkeypatch) -> None:
    bench = on(monkeypatch, FakeDevice(dict.fromkeys(("GEMM", "IMPLICIT_GEMM", "WINOGRAD"), 5.0)))
    words = ("--measure", "--device", "cudnn", "--no-cache")
    assert select(*words).code == 0 and select(*words).code == 0
    assert len(bench.calls) == 4 and not cache.exists()


def test_another_gpu_s_times_are_refused(select, cache, monkeypatch) -> None:
    """Before anything is measured: `--gpu t4` on a machine with another one, or on the CPU."""
    for info in (DeviceInfo("TITAN V", "cudnn", "9.1.0"), DeviceInfo("Some CPU", "reference", "1")):
        bench = on(monkeypatch, FakeDevice({"GEMM": 1.0}, info=info))
        result = select("--measure", "--device", "cudnn")
        assert result.code == 2 and "ranked for t4 with cudnn" in result.err and bench.calls == []
    on(monkeypatch, FakeDevice({"GEMM": 1.0, "IMPLICIT_GEMM": 1.0}))
    result = select("--measure", "--device", "cudnn", "--library-version", "7.6.3")
    assert result.is_refusal("leave --library-version out"), result.err


def test_one_pick_loads_no_table_and_no_learner() -> None:
    """They take a second, and shipped trees are answered by arrays."""
    code = "import sys, surrogate as s; s.load('v100').select('n8c64h28k64r3p1'); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"pandas", "sklearn", "scipy", "xgboost"} & set(loaded.split())
