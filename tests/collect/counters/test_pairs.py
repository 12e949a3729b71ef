"""Choosing the pairs, handing them to the child, and the child's loop."""

from collections import Counter
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.collect.counters.pairs import (
    MAX_PAIRS,
    Pair,
    measured_pairs,
    read_pairs,
    stratified,
    stratum,
    write_pairs,
)
from surrogate.collect.counters.workload import ProfiledStopwatch, run_pairs
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError


def many(count: int) -> list[Pair]:
    """Mostly 3×3 GEMM, a few 1×1 FFT."""
    common = [Pair(Conv(n=1, c=8 + i, h=28, k=32, r=3), "GEMM") for i in range(count)]
    return common + [Pair(Conv(n=1, c=8 + i, h=28, k=32, r=1), "FFT") for i in range(5)]


def test_a_rare_stratum_is_counted_as_often_as_a_common_one():
    chosen = stratified(many(400), 10)
    assert Counter(pair.algorithm for pair in chosen)["FFT"] >= 3  # 1 % of the pairs, 30 % of the chosen


@given(st.integers(1, 60), st.integers(0, 3))
def test_the_subset_is_of_the_size_asked_and_of_the_pairs_given(count, seed):
    pairs = many(40)
    chosen = stratified(pairs, count, seed)
    assert len(chosen) == min(count, len(pairs)) == len(set(chosen)) and set(chosen) <= set(pairs)
    assert chosen == stratified(pairs[::-1], count, seed)


def test_strata_tell_filters_strides_and_sizes_apart():
    conv = Conv(n=1, c=8, h=28, k=32, r=3)
    others = [
        Conv(n=1, c=8, h=28, k=32, r=1),
        Conv(n=1, c=8, h=28, k=32, r=3, stride_h=2),
        conv.with_batch(200),
    ]
    assert len({stratum(Pair(one, "GEMM")) for one in (conv, *others)}) == 4


def test_the_pairs_of_a_run_are_those_that_ran():
    key = "n1c8h28w28k32r3s3p0u1 fp32 fma NCHW fwd"
    records = [
        {"kind": "problem", "problem": f"{key} #0"},
        {"kind": "measure", "problem": f"{key} #0", "algorithm": "GEMM", "result": {"status": "ok"}},
        {"kind": "measure", "problem": f"{key} #1", "algorithm": "GEMM", "result": {"status": "ok"}},
        {"kind": "measure", "problem": f"{key} #0", "algorithm": "FFT", "result": {"status": "failed"}},
    ]
    assert measured_pairs(records) == [Pair(Conv(n=1, c=8, h=28, k=32, r=3), "GEMM")]


def test_the_list_goes_to_the_child_and_back(tmp_path):
    pairs = many(3)
    write_pairs(pairs, tmp_path / "pairs.jsonl")
    assert read_pairs(tmp_path / "pairs.jsonl") == pairs


@pytest.mark.parametrize("count", [0, MAX_PAIRS + 1])
def test_none_or_too_many_pairs_are_refused(tmp_path, count):
    with pytest.raises(InputError, match=f"{count} pairs to count"):
        write_pairs(many(1)[:1] * count, tmp_path / "pairs.jsonl")


class Recorder:
    """A device that notes what it is asked, and which number the marker would carry then."""

    def __init__(self):
        self.number, self.label, self.calls = -1, "", []

    def measure(self, conv, algorithm, policy):
        self.calls.append((self.number, self.label, algorithm))


def test_each_pair_runs_once_under_its_own_number():
    device, pairs = Recorder(), many(2)
    assert run_pairs(pairs, device, device, 60.0) == len(pairs)
    assert device.calls == [(i, pair.key, pair.algorithm) for i, pair in enumerate(pairs)]


def test_the_child_keeps_to_its_time():
    device = Recorder()
    assert run_pairs(many(2), device, device, 0.0) == 0 and device.calls == []


def test_only_the_second_call_is_profiled():
    events = []

    class Marks:
        @contextmanager
        def profiled(self, number, label):
            events.append(("start", number, label))
            yield
            events.append(("stop",))

    class Silent:
        """A GPU whose events cost nothing."""

        def event(self):
            return None

        def synchronize(self):
            pass

        def elapsed_us(self, start, end):
            return 12.0

    stopwatch = ProfiledStopwatch(Silent(), Marks())
    stopwatch.number, stopwatch.label = 4, "pair"
    result = stopwatch.time(lambda: events.append(("call",)), RepeatPolicy(), 64, True)
    assert events == [("call",), ("start", 4, "pair"), ("call",), ("stop",)] and result.status == "ok"
