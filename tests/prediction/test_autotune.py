"""Measuring the top k: order, fallback, limits, cache, lost devices; on fakes, a replayed run and the CPU itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.collect.device import DeviceInfo, DeviceLostError, Measurement, RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.prediction.autotune import TuningCache, autotune

CONV = Conv(n=1, c=8, h=8, k=8, r=3, pad_h=1)
NAMES = ("WINOGRAD", "GEMM", "FFT", "IMPLICIT_GEMM")
T4 = DeviceInfo("Tesla T4", "cudnn", "9.1.0")


@dataclass(frozen=True)
class Candidate:
    algorithm: str
    time_us: float
    lower_us: float = 0.0
    upper_us: float = 9.0
    source: str = "model"


@dataclass(frozen=True)
class Ranking:
    candidates: tuple[Candidate, ...]


@dataclass
class Ranker:
    """A predictor that ranks names in a given order, 1 µs apart."""

    names: Sequence[str] = NAMES
    asked: list[dict[str, Any]] = field(default_factory=list)

    def select(self, conv: Conv, **limits: Any) -> Ranking:
        self.asked.append(limits)
        return Ranking(tuple(Candidate(name, 1.0 + i) for i, name in enumerate(self.names)))


@dataclass
class Bench:
    """A device whose every answer is written down: algorithm → a time in µs, a measurement, or an error to raise."""

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


def tune(bench: Bench, k: int = 2, **options: Any) -> Any:
    options = {"predictor": Ranker(), "cache": TuningCache(), **options}
    return autotune(CONV, bench, k, **options)  # type: ignore[arg-type]


def test_only_the_top_k_are_timed_and_the_fastest_wins() -> None:
    bench = Bench({"WINOGRAD": 5.0, "GEMM": 3.0, "FFT": 1.0, "IMPLICIT_GEMM": 2.0})
    tuned = tune(bench, 2)
    assert bench.calls == ["WINOGRAD", "GEMM"]
    assert (tuned.algorithm, tuned.time_us, tuned.source) == ("GEMM", 3.0, "measured")
    assert [(a.algorithm, a.predicted_us, a.measured_us) for a in tuned.tried] == [
        ("WINOGRAD", 1.0, 5.0),
        ("GEMM", 2.0, 3.0),
    ]
    assert not bench.closed  # an open device stays the caller's


def test_a_refusal_passes_the_turn_on() -> None:
    """Until k ran; the reasons are told."""
    refused = Measurement("not_supported", "filter of 3")
    bench = Bench({"WINOGRAD": refused, "GEMM": Measurement("failed"), "FFT": 4.0, "IMPLICIT_GEMM": 2.0})
    tuned = tune(bench, 2)
    assert tuned.algorithm == "IMPLICIT_GEMM"
    assert [a.reason for a in tuned.tried] == ["filter of 3", "failed", "", ""]


def test_an_algorithm_that_the_device_does_not_offer_is_passed_over() -> None:
    bench = Bench({"FFT": 4.0})
    tuned = tune(bench, 1)
    assert bench.calls == ["FFT"]
    assert "no such algorithm" in tuned.tried[0].reason


def test_nothing_ran() -> None:
    tuned = tune(Bench({name: Measurement("not_supported", "no") for name in NAMES}))
    assert tuned.algorithm is None and tuned.time_us is None
    assert len(tuned.tried) == 4
    assert "nothing ran" in repr(tuned)


def test_limits_reach_the_predictor_and_bind_what_is_measured() -> None:
    """The library's own workspace counts where the prediction was too small; so does its determinism."""
    ranker = Ranker()
    large = Measurement("ok", "", (1.0,), (1.0,), "events", 1000, True)
    loose = Measurement("ok", "", (1.0,), (1.0,), "events", 10, False)
    bench = Bench({"WINOGRAD": large, "GEMM": loose, "FFT": 4.0, "IMPLICIT_GEMM": 9.0})
    tuned = tune(bench, 1, predictor=ranker, workspace_limit=999, deterministic=True)
    assert ranker.asked == [{"workspace_limit": 999, "deterministic": True}]
    assert tuned.algorithm == "FFT"
    assert "1000 bytes" in tuned.tried[0].reason and "nondeterministic" in tuned.tried[1].reason


def test_the_cache_is_asked_before_the_device(tmp_path: Path) -> None:
    """A second call measures nothing, whatever the ranking says now; a refusal is remembered, a failure is not."""
    path = tmp_path / "tuning.sqlite"
    refused = Measurement("not_supported", "no")
    first = Bench({"WINOGRAD": refused, "GEMM": 3.0, "FFT": Measurement("failed"), "IMPLICIT_GEMM": 2.0})
    assert tune(first, 2, cache=path).source == "measured"
    second = Bench(dict.fromkeys(NAMES, 0.5))
    tuned = tune(second, 2, cache=path)
    assert second.calls == ["FFT"]
    assert (tuned.algorithm, tuned.source) == ("FFT", "measured")
    third = Bench(dict.fromkeys(NAMES, 0.1))
    tuned = tune(third, 2, cache=path)
    assert third.calls == []
    assert (tuned.algorithm, tuned.time_us, tuned.source, tuned.cost_ms) == ("FFT", 0.5, "cache", 0.0)
    reversed_ranking = tune(third, 1, cache=path, predictor=Ranker(NAMES[::-1]))
    assert reversed_ranking.algorithm == "FFT"  # found earlier, beyond the first of this ranking
    assert third.calls == []


def test_a_cached_time_beyond_the_limits_does_not_win(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    large = Measurement("ok", "", (1.0,), (1.0,), "events", 1000, True)
    tune(Bench({"WINOGRAD": large, "GEMM": 3.0, "FFT": 5.0, "IMPLICIT_GEMM": 7.0}), 2, cache=path)
    limited = tune(Bench(dict.fromkeys(NAMES, 9.0)), 1, cache=path, workspace_limit=500)
    assert limited.algorithm == "GEMM"


def test_a_device_lost_once_costs_one_algorithm_lost_twice_is_an_error(refused) -> None:
    """A worker process starts afresh; what was measured before is in the cache."""
    lost = DeviceLostError("an illegal address")
    bench = Bench({"WINOGRAD": lost, "GEMM": 3.0, "FFT": 4.0, "IMPLICIT_GEMM": 2.0})
    assert tune(bench, 2).algorithm == "GEMM"
    cache = TuningCache()
    bench = Bench({"WINOGRAD": 2.0, "GEMM": lost, "FFT": lost, "IMPLICIT_GEMM": 2.0})
    with refused("an illegal address", "new process"):
        tune(bench, 3, cache=cache)
    assert set(cache.get(bench.device_info(), CONV)) == {"WINOGRAD"}


def test_user_errors(refused) -> None:
    with refused("k is 0"):
        tune(Bench({}), 0)
    with refused("unknown"):
        autotune(CONV, "cuda", predictor=Ranker(), cache=TuningCache())


@given(st.permutations(NAMES), st.lists(st.none() | st.floats(0.1, 100), min_size=4, max_size=4), st.integers(1, 5))
def test_the_pick_is_the_best_of_what_ran(ranking: list[str], times: list[float | None], k: int) -> None:
    """At most k ran, in the ranking's order, with no gap but refusals; a larger k is never slower."""
    refused = Measurement("not_supported", "no")
    answers = {name: refused if time is None else time for name, time in zip(NAMES, times, strict=True)}
    tuned = tune(Bench(answers), k, predictor=Ranker(ranking))
    wider = tune(Bench(answers), k + 1, predictor=Ranker(ranking))
    measured = [attempt.measured_us for attempt in tuned.tried if attempt.measured_us is not None]
    assert len(measured) == min(k, sum(time is not None for time in times))
    assert [a.algorithm for a in tuned.tried] == ranking[: len(tuned.tried)]
    if tuned.time_us is not None:
        assert tuned.time_us == min(measured) >= wider.time_us


def test_on_this_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, for real; the next call recalls."""
    from surrogate.collect.cpu import CpuDevice

    datasheet = {"name": "This CPU"}  # measuring it would take two seconds
    monkeypatch.setattr("surrogate.collect.open_device.open_device", lambda name: CpuDevice(datasheet=datasheet))
    ranker = Ranker(("WINOGRAD", "GEMM", "IMPLICIT_GEMM"))
    conv = Conv(n=1, c=8, h=16, k=8, r=5, pad_h=2)  # no 5×5 Winograd
    first = autotune(conv, "reference", 2, predictor=ranker, cache=tmp_path / "t.sqlite")
    assert first.source == "measured" and first.cost_ms > 0
    assert [a.measured_us is None for a in first.tried] == [True, False, False]
    assert "3×3" in first.tried[0].reason
    assert first.time_us == min(attempt.measured_us for attempt in first.tried if attempt.measured_us)
    second = autotune(conv, "reference", 2, predictor=ranker, cache=tmp_path / "t.sqlite")
    assert (second.source, second.algorithm, second.time_us) == ("cache", first.algorithm, first.time_us)
