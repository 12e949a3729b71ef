"""``seer select --measure``: measured times replace predictions and are kept for the next call."""

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
    """Return the path of an empty cache of measurements."""
    path = tmp_path / "my cäche" / FILE_NAME
    monkeypatch.setenv("SEER_CACHE", str(path))
    return path


@pytest.fixture
def select(seer, trained: Path) -> Callable[..., Any]:
    """Return a function that runs ``seer select`` with additional words."""
    return lambda *words: seer("select", "--bundle", trained, "--gpu", "t4", PROBLEM, *words)


def use_device(monkeypatch: pytest.MonkeyPatch, device: FakeDevice) -> FakeDevice:
    """Open the fake device in place of every device."""
    monkeypatch.setattr("surrogate.collect.open_device.open_device", lambda name: device)
    return device


def ranked(result: Any) -> list[tuple[str, str]]:
    return [(candidate["algorithm"], candidate["source"]) for candidate in result.json["candidates"]]


def test_a_measurement_replaces_the_prediction_and_is_not_repeated(select, cache, monkeypatch) -> None:
    """The next --measure reads the cache; without --measure the answer is the prediction."""
    before = ranked(select("--json"))
    first, second = before[0][0], before[1][0]
    device = use_device(monkeypatch, FakeDevice({name: 100.0 - i for i, (name, _) in enumerate(before)}))
    measured = select("--json", "--measure", "--device", "cudnn")
    assert ranked(measured)[:2] == [(second, "measured"), (first, "measured")]
    assert measured.json["library_version"] == "9.1.0" and len(device.calls) == 2
    again = select("--json", "--measure", "--device", "cudnn")
    assert again.json == measured.json and again.err == "" and len(device.calls) == 2
    assert [candidate["workspace_bytes"] for candidate in again.json["candidates"][:2]] == [64, 64]
    assert ranked(select("--json")) == ranked(select("--json", "--no-cache")) == before


@pytest.fixture
def attempted(trained: Path) -> Callable[..., Any]:
    """Return a function: attempts and limits → selection."""
    predictor = load(trained, gpu="t4")

    def selected(*attempts: Attempt, **limits: Any) -> Any:
        return with_attempts(predictor.select(CONV), attempts, Limits.of(**limits))

    return selected


def sources(selection: Any) -> list[tuple[str, str]]:
    return [(candidate.algorithm, candidate.source) for candidate in selection.candidates]


def test_limits_apply_to_measured_algorithms(attempted) -> None:
    """Limits use the measured workspace and determinism, not the predicted ones."""
    measured = (
        Attempt("IMPLICIT_GEMM", None, 1.0, workspace_bytes=2**20, deterministic=False),
        Attempt("GEMM", None, 2.0, workspace_bytes=0, deterministic=True),
    )
    assert {("IMPLICIT_GEMM", "measured"), ("GEMM", "measured")} <= set(sources(attempted(*measured)))
    tight = attempted(*measured, workspace_limit=1000)
    assert ("IMPLICIT_GEMM", "measured") not in sources(tight) and ("GEMM", "measured") in sources(tight)
    reasons = {excluded.algorithm: excluded.reason for excluded in tight.excluded}
    assert reasons["IMPLICIT_GEMM"].startswith("needs 1048576 bytes")
    assert "IMPLICIT_GEMM" not in dict(sources(attempted(*measured, deterministic=True)))


def test_slow_measurements_are_ranked_last(attempted) -> None:
    """This holds for the best and the worst prediction."""
    order = sources(attempted())
    for name, _ in (order[-1], order[0]):
        found = sources(attempted(Attempt(name, None, 1e6, workspace_bytes=0, deterministic=True)))
        assert found[-1] == (name, "measured") and found[0][1] == "model"


def test_refused_algorithms_are_excluded_and_measured_ones_are_added(attempted) -> None:
    best, _ = sources(attempted())[0]
    refused = Attempt(best, None, reason="the library refused it")
    found = attempted(refused, Attempt("DIRECT", None, 1.0, workspace_bytes=0, deterministic=True))
    assert best not in dict(sources(found)) and dict(sources(found))["DIRECT"] == "measured"
    assert (best, "the library refused it") in found.excluded
    assert "DIRECT" not in {excluded.algorithm for excluded in found.excluded}


def test_without_the_cache_measurements_are_not_kept(select, cache, monkeypatch) -> None:
    device = use_device(monkeypatch, FakeDevice(dict.fromkeys(("GEMM", "IMPLICIT_GEMM", "WINOGRAD"), 5.0)))
    words = ("--measure", "--device", "cudnn", "--no-cache")
    assert select(*words).code == 0 and select(*words).code == 0
    assert len(device.calls) == 4 and not cache.exists()


def test_measuring_on_another_gpu_is_refused(select, cache, monkeypatch) -> None:
    """`--gpu t4` on a machine with another GPU, or on the CPU, is refused before the first measurement."""
    for info in (DeviceInfo("TITAN V", "cudnn", "9.1.0"), DeviceInfo("Some CPU", "reference", "1")):
        device = use_device(monkeypatch, FakeDevice({"GEMM": 1.0}, info=info))
        result = select("--measure", "--device", "cudnn")
        assert result.code == 2 and "ranked for t4 with cudnn" in result.err and device.calls == []
    use_device(monkeypatch, FakeDevice({"GEMM": 1.0, "IMPLICIT_GEMM": 1.0}))
    result = select("--measure", "--device", "cudnn", "--library-version", "7.6.3")
    assert result.is_refusal("leave --library-version out"), result.err
