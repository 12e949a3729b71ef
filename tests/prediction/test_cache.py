"""Tests of the measurement cache: reads after writes, several processes, unusable files and the default path."""

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from surrogate.collect.device import DeviceInfo, Measurement
from surrogate.features.conv import Conv
from surrogate.features.families import operator
from surrogate.prediction.autotune import FILE_NAME, Attempt, MeasurementCache, default_path
from tests.known import cases, known_answers

T4 = DeviceInfo("Tesla T4", "cudnn", "9.1.0")
CONV = Conv(n=1, c=8, h=8, k=8, r=3)
WRITER = known_answers(__file__)["writer"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache é" / FILE_NAME


def test_a_second_cache_reads_the_first_ones_writes(path: Path) -> None:
    """The latest measurement counts; other problems, versions and settings have none."""
    first, second = MeasurementCache(path), MeasurementCache(path)
    gemm, fft = Attempt("GEMM", None, 3.5, workspace_bytes=64, deterministic=True), Attempt("FFT", None)
    first.put(T4, CONV, "ok", gemm)
    first.put(T4, CONV, "not_supported", fft)
    refused = replace(fft, cached=True, reason="not_supported")
    assert second.get(T4, CONV) == {"GEMM": replace(gemm, cached=True), "FFT": refused}
    second.put(T4, CONV, "ok", Attempt("GEMM", None, 2.5, deterministic=False))
    assert first.get(T4, CONV)["GEMM"] == Attempt("GEMM", None, 2.5, cached=True, deterministic=False)
    assert first.get(DeviceInfo("Tesla T4", "cudnn", "9.2.0"), CONV) == {}
    assert first.get(T4, CONV.with_batch(2)) == {}
    assert first.get(T4, Conv(n=1, c=8, h=8, k=8, r=3, math="tensor_op")) == {}
    assert first.get(T4, operator("softmax", n=8, c=8)) == {}
    alias = MeasurementCache(path)
    assert set(alias.get(DeviceInfo("t4", "cudnn", "9.1.0"), CONV)) == {"GEMM", "FFT"}
    assert MeasurementCache().get(T4, CONV) == {}  # in memory


def test_an_attempt_holds_the_median() -> None:
    measured = Measurement("ok", "", (9.0, 1.0, 2.0), (9.0, 1.0, 2.0), "events", 64, False)
    assert Attempt.of("GEMM", measured) == Attempt("GEMM", None, 2.0, workspace_bytes=64, deterministic=False)
    assert Attempt.of("GEMM", Measurement("failed", "fault")) == Attempt("GEMM", None, reason="fault")


@pytest.mark.slow
def test_concurrent_writers_lose_nothing(path: Path) -> None:
    writers, count = 4, 50
    command = [sys.executable, "-c", WRITER, str(path)]
    running = [subprocess.Popen([*command, str(number), str(count)]) for number in range(writers)]
    assert [process.wait(timeout=120) for process in running] == [0] * writers
    cache = MeasurementCache(path)
    for i in range(1, count + 1):
        stored = cache.get(T4, Conv(n=i, c=8, h=8, k=8, r=3))
        assert {name: each.measured_us for name, each in stored.items()} == {f"A{w}": i for w in range(writers)}


@pytest.mark.parametrize("damage", ["text", "folder"])
def test_an_unusable_file_gives_one_warning(path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir(parents=True)
    if damage == "text":
        path.write_text("no database at all, but long enough to be taken for one" * 100)
    else:
        path.mkdir()
    with caplog.at_level(logging.WARNING):
        cache = MeasurementCache(path)
    assert len(caplog.records) == 1 and "SEER_CACHE" in caplog.text
    cache.put(T4, CONV, "ok", Attempt("GEMM", None, 1.0))
    assert cache.get(T4, CONV)["GEMM"].measured_us == 1.0


@cases(__file__)
def test_the_default_path_follows_the_environment(environment, folder, monkeypatch) -> None:
    for name in ("SEER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/h", **environment}.items():
        monkeypatch.setenv(name, value)
    assert default_path() == Path(folder)


def test_seer_cache_may_name_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEER_CACHE", str(tmp_path))
    assert default_path() == tmp_path / FILE_NAME
