"""Tests of `autotune`, which measures the top k candidates: order, limits, cache and lost devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from surrogate.collect.device import DeviceInfo, DeviceLostError, Measurement, RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.gpu import canonical
from surrogate.prediction.autotune import MeasurementCache, autotune

CONV = Conv(n=1, c=8, h=8, k=8, r=3, pad_h=1)
NAMES = ("WINOGRAD", "GEMM", "FFT", "IMPLICIT_GEMM")
T4 = DeviceInfo("Tesla T4", "cudnn", "9.1.0")


@dataclass
class FakePredictor:
    """A predictor that ranks algorithms in a given order, 1 µs apart."""

    names: Sequence[str] = NAMES
    queries: list[dict[str, Any]] = field(default_factory=list)
    library: str = T4.library

    def select(self, conv: Conv, **limits: Any) -> Any:
        self.queries.append(limits)
        ranked = [SimpleNamespace(algorithm=name, time_us=1.0 + i) for i, name in enumerate(self.names)]
        return SimpleNamespace(candidates=ranked, library=self.library, gpu=canonical(T4.gpu))


@dataclass
class FakeDevice:
    """A device with an answer for each algorithm: a time in µs, a measurement, or an error to raise."""

    answers: Mapping[str, float | Measurement | Exception]
    calls: list[str] = field(default_factory=list)
    closed: bool = False
    info: DeviceInfo = T4

    def device_info(self) -> DeviceInfo:
        return self.info

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        return tuple(self.answers)

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        self.calls.append(algorithm)
        answer = self.answers[algorithm]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Measurement):
            return answer
        return Measurement("ok", "", (answer,), (answer,), "events", 64, True)

    def close(self) -> None:
        self.closed = True


def tune(device: FakeDevice, k: int = 2, **options: Any) -> Any:
    options = {"predictor": FakePredictor(), "cache": MeasurementCache(), **options}
    return autotune(CONV, device, k, **options)  # type: ignore[arg-type]


def test_only_the_top_k_are_timed_and_the_fastest_wins() -> None:
    device = FakeDevice({"WINOGRAD": 5.0, "GEMM": 3.0, "FFT": 1.0, "IMPLICIT_GEMM": 2.0})
    tuned = tune(device, 2)
    assert device.calls == ["WINOGRAD", "GEMM"]
    assert (tuned.algorithm, tuned.time_us, tuned.source) == ("GEMM", 3.0, "measured")
    first, second = ((a.algorithm, a.predicted_us, a.measured_us) for a in tuned.tried)
    assert (first, second) == (("WINOGRAD", 1.0, 5.0), ("GEMM", 2.0, 3.0))
    assert not device.closed  # an open device stays the caller's


def test_refused_algorithms_are_skipped_until_k_ran() -> None:
    refused = Measurement("not_supported", "filter of 3")
    device = FakeDevice({"WINOGRAD": refused, "GEMM": Measurement("failed"), "FFT": 4.0, "IMPLICIT_GEMM": 2.0})
    tuned = tune(device, 2)
    assert tuned.algorithm == "IMPLICIT_GEMM"
    assert [a.reason for a in tuned.tried] == ["filter of 3", "failed", "", ""]


def test_an_algorithm_that_the_device_lacks_is_skipped_and_none_may_remain() -> None:
    device = FakeDevice({"FFT": 4.0})
    assert "no such algorithm" in tune(device, 1).tried[0].reason and device.calls == ["FFT"]
    tuned = tune(FakeDevice({name: Measurement("not_supported", "no") for name in NAMES}))
    assert tuned.algorithm is None and tuned.time_us is None
    assert len(tuned.tried) == len(tuned.to_frame()) == len(tuned.to_dict()["tried"]) == 4
    assert "nothing ran" in repr(tuned)


def test_limits_apply_to_predictions_and_to_measurements() -> None:
    """The measured workspace and determinism count, even if the prediction said otherwise."""
    ranker = FakePredictor()
    large = Measurement("ok", "", (1.0,), (1.0,), "events", 1000, True)
    loose = Measurement("ok", "", (1.0,), (1.0,), "events", 10, False)
    device = FakeDevice({"WINOGRAD": large, "GEMM": loose, "FFT": 4.0, "IMPLICIT_GEMM": 9.0})
    tuned = tune(device, 1, predictor=ranker, workspace_limit=999, deterministic=True)
    assert ranker.queries == [{"workspace_limit": 999, "deterministic": True}]
    assert tuned.algorithm == "FFT"
    assert "1000 bytes" in tuned.tried[0].reason and "nondeterministic" in tuned.tried[1].reason


def test_cached_times_are_used_before_the_device(tmp_path: Path) -> None:
    """A later call measures only earlier failures, even if the ranking changed."""
    path = tmp_path / "tuning.sqlite"
    refused = Measurement("not_supported", "no")
    first = FakeDevice({"WINOGRAD": refused, "GEMM": 3.0, "FFT": Measurement("failed"), "IMPLICIT_GEMM": 2.0})
    assert tune(first, 2, cache=path).source == "measured"
    second = FakeDevice(dict.fromkeys(NAMES, 0.5))
    tuned = tune(second, 2, cache=path)
    assert second.calls == ["FFT"]
    assert (tuned.algorithm, tuned.source) == ("FFT", "measured")
    third = FakeDevice(dict.fromkeys(NAMES, 0.1))
    tuned = tune(third, 2, cache=path)
    assert third.calls == []
    assert (tuned.algorithm, tuned.time_us, tuned.source, tuned.cost_ms) == ("FFT", 0.5, "cache", 0.0)
    reversed_ranking = tune(third, 1, cache=path, predictor=FakePredictor(NAMES[::-1]))
    assert reversed_ranking.algorithm == "FFT"  # its cached time is the shortest, although this ranking has it second
    assert third.calls == []


def test_a_cached_time_above_the_workspace_limit_does_not_win(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    large = Measurement("ok", "", (1.0,), (1.0,), "events", 1000, True)
    tune(FakeDevice({"WINOGRAD": large, "GEMM": 3.0, "FFT": 5.0, "IMPLICIT_GEMM": 7.0}), 2, cache=path)
    limited = tune(FakeDevice(dict.fromkeys(NAMES, 9.0)), 1, cache=path, workspace_limit=500)
    assert limited.algorithm == "GEMM"


def test_one_lost_device_skips_an_algorithm_and_a_second_is_an_error(refused) -> None:
    lost = DeviceLostError("an illegal address")
    device = FakeDevice({"WINOGRAD": lost, "GEMM": 3.0, "FFT": 4.0, "IMPLICIT_GEMM": 2.0})
    assert tune(device, 2).algorithm == "GEMM"
    cache = MeasurementCache()
    device = FakeDevice({"WINOGRAD": 2.0, "GEMM": lost, "FFT": lost, "IMPLICIT_GEMM": 2.0})
    with refused("an illegal address", "new process"):
        tune(device, 3, cache=cache)
    assert set(cache.get(device.device_info(), CONV)) == {"WINOGRAD"}


def test_invalid_arguments_are_refused(refused) -> None:
    with refused("k is 0"):
        tune(FakeDevice({}), 0)
    with refused("unknown"):
        autotune(CONV, "cuda", predictor=FakePredictor(), cache=MeasurementCache())


@given(st.permutations(NAMES), st.lists(st.none() | st.floats(0.1, 100), min_size=4, max_size=4), st.integers(1, 5))
def test_the_pick_is_the_fastest_measured_algorithm(ranking: list[str], times: list[float | None], k: int) -> None:
    """At most k algorithms run, in the order of the ranking; a larger k is never slower."""
    refused = Measurement("not_supported", "no")
    answers = {name: refused if time is None else time for name, time in zip(NAMES, times, strict=True)}
    tuned = tune(FakeDevice(answers), k, predictor=FakePredictor(ranking))
    wider = tune(FakeDevice(answers), k + 1, predictor=FakePredictor(ranking))
    measured = [attempt.measured_us for attempt in tuned.tried if attempt.measured_us is not None]
    assert len(measured) == min(k, sum(time is not None for time in times))
    assert [a.algorithm for a in tuned.tried] == ranking[: len(tuned.tried)]
    if tuned.time_us is not None:
        assert tuned.time_us == min(measured) >= wider.time_us


def test_the_reference_device_is_measured_once_and_then_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from surrogate.collect.cpu import CpuDevice

    datasheet = {"name": "This CPU"}  # measuring it would take two seconds
    monkeypatch.setattr("surrogate.collect.open_device.open_device", lambda name: CpuDevice(datasheet=datasheet))
    ranker = FakePredictor(("WINOGRAD", "GEMM", "IMPLICIT_GEMM"), library="reference")
    conv = Conv(n=1, c=8, h=16, k=8, r=5, pad_h=2)  # no 5×5 Winograd
    first = autotune(conv, "reference", 2, predictor=ranker, cache=tmp_path / "t.sqlite")
    assert first.source == "measured" and first.cost_ms > 0
    assert [a.measured_us is None for a in first.tried] == [True, False, False]
    assert "3×3" in first.tried[0].reason
    assert first.time_us == min(attempt.measured_us for attempt in first.tried if attempt.measured_us)
    second = autotune(conv, "reference", 2, predictor=ranker, cache=tmp_path / "t.sqlite")
    assert (second.source, second.algorithm, second.time_us) == ("cache", first.algorithm, first.time_us)
