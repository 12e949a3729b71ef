"""``seer select`` and what was measured before: cached times replace predictions, and no cache breaks a pick."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surrogate.collect.device import DeviceInfo
from surrogate.features.conv import Conv
from surrogate.prediction.autotune import FILE_NAME, Tuning, TuningCache
from tests.prediction.test_autotune import T4, Bench

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


def on(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> Bench:
    monkeypatch.setattr("surrogate.collect.open_device.open_device", lambda name: bench)
    return bench


def ranked(result: Any) -> list[tuple[str, str]]:
    return [(one["algorithm"], one["source"]) for one in result.json["candidates"]]


def test_a_measurement_beats_the_model_next_time(select, cache, monkeypatch) -> None:
    """As first printed, then from the cache, then without it."""
    before = ranked(select("--json"))
    first, second = before[0][0], before[1][0]
    on(monkeypatch, Bench({name: 100.0 - i for i, (name, _) in enumerate(before)}))
    measured = select("--json", "--measure", "--device", "cudnn")
    assert ranked(measured)[:2] == [(second, "measured"), (first, "measured")]
    assert measured.json["library_version"] == "9.1.0"
    again = select("--json")
    assert again.json == measured.json and again.err == ""
    assert [one["workspace_bytes"] for one in again.json["candidates"][:2]] == [64, 64]
    assert ranked(select("--json", "--no-cache")) == before
    assert ranked(select("--json", "--library-version", "7.6.3")) == before
    assert ranked(select("--json", "--library-version", "9.1.0", "--top", "1")) == [(second, "measured")]
    assert select("--json", "--dtype", "fp16").json["library_version"] == "7.6.3"


def test_limits_hold_for_what_was_measured(select, cache) -> None:
    """By its measured workspace and determinism, not the predicted ones."""
    known = TuningCache(cache)
    known.put(T4, CONV, "IMPLICIT_GEMM", Tuning("ok", 1.0, 2**20, False))
    known.put(T4, CONV, "GEMM", Tuning("ok", 2.0, 0, True))
    assert {("IMPLICIT_GEMM", "measured"), ("GEMM", "measured")} <= set(ranked(select("--json")))
    tight = select("--json", "--workspace-limit", "1000")
    assert ("IMPLICIT_GEMM", "measured") not in ranked(tight) and ("GEMM", "measured") in ranked(tight)
    reasons = {one["algorithm"]: one["reason"] for one in tight.json["excluded"]}
    assert reasons["IMPLICIT_GEMM"].startswith("needs 1048576 bytes")
    assert "IMPLICIT_GEMM" not in dict(ranked(select("--json", "--deterministic")))


def test_a_slow_one_measured_under_other_limits_does_not_lead(select, cache) -> None:
    """Only where the model's first choice was measured, the measured come first."""
    *_, slowest = ranked(select("--json"))
    TuningCache(cache).put(T4, CONV, slowest[0], Tuning("ok", 1e6, 0, True))
    found = ranked(select("--json"))
    assert found[-1] == (slowest[0], "measured") and found[0][1] == "model"


def test_a_measurement_far_above_a_prediction_does_not_lead(select, cache) -> None:
    """The model's first choice was measured and is slow: another's whole interval lies below it."""
    first, *_ = ranked(select("--json"))
    TuningCache(cache).put(T4, CONV, first[0], Tuning("ok", 1e6, 0, True))
    found = ranked(select("--json"))
    assert found[0][1] == "model" and found[-1] == (first[0], "measured")


def test_what_the_device_refused_is_out_and_what_it_ran_is_in(select, cache) -> None:
    (best, _), *_ = ranked(select("--json"))
    known = TuningCache(cache)
    known.put(T4, CONV, best, Tuning("not_supported", reason="the library refused it"))
    known.put(T4, CONV, "DIRECT", Tuning("ok", 1.0, 0, True))
    found = select("--json")
    assert best not in dict(ranked(found)) and dict(ranked(found))["DIRECT"] == "measured"
    assert {"algorithm": best, "reason": "the library refused it"} in found.json["excluded"]
    assert "DIRECT" not in {one["algorithm"] for one in found.json["excluded"]}


def test_the_newest_measured_version_is_taken(select, cache) -> None:
    for version, time_us in (("9.10.0", 3.0), ("9.2.0", 2.0)):
        TuningCache(cache).put(DeviceInfo("t4", "cudnn", version), CONV, "GEMM", Tuning("ok", time_us, 0, True))
    TuningCache(cache).put(DeviceInfo("TITAN V", "cudnn", "9.11.0"), CONV, "GEMM", Tuning("ok", 1.0, 0, True))
    found = select("--json").json
    assert found["library_version"] == "9.10.0"
    assert [one["time_us"] for one in found["candidates"] if one["source"] == "measured"] == [3.0]


def test_without_the_cache_nothing_is_kept(select, cache, monkeypatch) -> None:
    bench = on(monkeypatch, Bench(dict.fromkeys(("GEMM", "IMPLICIT_GEMM", "WINOGRAD"), 5.0)))
    words = ("--measure", "--device", "cudnn", "--no-cache")
    assert select(*words).code == 0 and select(*words).code == 0
    assert len(bench.calls) == 4 and not cache.exists()


def test_another_gpu_s_times_are_refused(select, cache, monkeypatch) -> None:
    """Before anything is measured: `--gpu t4` on a machine with another one, or on the CPU."""
    for info in (DeviceInfo("TITAN V", "cudnn", "9.1.0"), DeviceInfo("Some CPU", "reference", "1")):
        bench = on(monkeypatch, Bench({"GEMM": 1.0}, info=info))
        result = select("--measure", "--device", "cudnn")
        assert result.code == 2 and "ranked for t4 with cudnn" in result.err and bench.calls == []
    on(monkeypatch, Bench({"GEMM": 1.0, "IMPLICIT_GEMM": 1.0}))
    result = select("--measure", "--device", "cudnn", "--library-version", "7.6.3")
    assert result.is_refusal("leave --library-version out"), result.err


def test_one_pick_loads_no_table_and_no_learner() -> None:
    """They take a second, and shipped trees are answered by arrays."""
    code = "import sys, surrogate as s; s.load('v100').select('n8c64h28k64r3p1'); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"pandas", "sklearn", "scipy", "xgboost"} & set(loaded.split())
