"""Hardware counters from end to end, with a fake of Nsight Compute."""

import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, strategies as st

from surrogate.collect import counting
from surrogate.collect.cudnn.profiled_program import ProfiledStopwatch, run_pairs
from surrogate.collect.device import RepeatPolicy
from surrogate.collect.log import RunLog
from surrogate.collect.merge import merge_runs
from surrogate.collect.run import header_for
from surrogate.features.conv import Conv
from tests.known import cases, known_answers


def program(pairs_file, end_s):
    """Return the command to profile; its last word is the file of pairs."""
    return ["child", str(pairs_file)]


def counted(tool, pairs, tmp_path, **options):
    return counting.count_pairs(pairs, tool, tmp_path, seconds=30.0, program=program, **options)


def test_count_pairs_returns_counters_of_every_kernel(profiler, pairs, tmp_path):
    result = counted(counting.NsightCompute(profiler()), pairs, tmp_path)
    assert result.permitted and result.notes == ()
    kernels = result.kernels
    assert len(kernels) == 12 and set(counting.KEY) <= set(kernels)
    assert kernels.groupby("n")["algorithm"].apply(list).iloc[0] == ["GEMM", "GEMM", "WINOGRAD", "WINOGRAD"]
    assert kernels["kernel_index"].tolist() == [0, 1] * 6
    first = kernels.iloc[0]
    assert first["kernel_name"] == "void gemm_0<float, 128>(float*, int)"
    assert first["time_us"] == 1234.5
    assert first["fp32_instructions"] == 1_000_000
    assert first["fp32_utilization_pct"] == 81.25
    assert (first["dram_read_transactions"], first["dram_write_transactions"]) == (4963, 4963)
    assert (first["b_max"], first["waves"], first["registers_per_thread"]) == (264, 1, 128)
    assert len(list(tmp_path.glob("*.ncu-rep"))) == 1  # one start of the profiler


def test_a_missing_pair_does_not_shift_the_others(profiler, pairs, tmp_path):
    result = counted(counting.NsightCompute(profiler(missing=[0, 3])), pairs, tmp_path)
    found = {(row.n, row.algorithm) for row in result.kernels.itertuples()}
    assert found == {(1, "WINOGRAD"), (2, "GEMM"), (3, "GEMM"), (3, "WINOGRAD")}
    assert all(row.algorithm.lower() in row.kernel_name for row in result.kernels.itertuples())


@cases(__file__)
def test_a_failing_profiler_counts_nothing_and_notes_say_why(profiler, pairs, tmp_path, fault, permitted, words):
    result = counted(counting.NsightCompute(profiler(**fault)), pairs, tmp_path)
    assert result.kernels.empty and result.permitted is permitted and result.notes
    assert all(word in note for word in words for note in result.notes)


@pytest.fixture
def ncu(profiler, monkeypatch):
    """Replace the machine's Nsight Compute by the fake one."""
    tool = counting.NsightCompute(profiler())
    monkeypatch.setattr(counting, "find_tool", lambda capability: tool)
    monkeypatch.setattr(counting, "count_pairs", partial(counting.count_pairs, program=program))


def test_collect_counters_joins_counters_to_measured_kernels(ncu, make_plan, fake_device, record):
    device, plan = fake_device(), make_plan(3)
    device.info = replace(device.info, properties={"compute_capability": "9.0"})

    def launches_two(result, algorithm):  # with the names that the profiler reports
        base = algorithm.lower()
        names = [f"_Z{len(base) + 2}{base}_{index}IfLi128EEvPfi" for index in range(2)]
        names[1:] = ["another"] if algorithm == "GEMM" else names[1:]
        return replace(result, kernels=tuple(replace(k, kernel_name=name) for name in names for k in result.kernels))

    device.alter = launches_two
    path = record(plan, device)
    with RunLog(path, header_for(plan, device)) as log:
        assert len(counting.collect_counters(log, 60.0).kernels) > 0
        assert counting.collect_counters(log, 60.0).kernels.empty  # no pair is counted twice
    merged = merge_runs([path])
    gemms = int((merged.frame["algorithm"] == "GEMM").sum())
    counted = merged.metadata["counted_kernels"]
    assert counted == len(merged.kernels) > gemms == counted - merged.metadata["counted_kernels_joined"]
    joined = merged.kernels[merged.kernels["kernel_name"] != "another"]
    assert joined["fp32_instructions"].eq(1e6).all()
    assert joined["counted_time_us"].eq(1234.5).all()
    assert joined["registers_per_thread"].eq(96).all()  # measured values stay
    assert merged.kernels.loc[merged.kernels["kernel_name"] == "another", "fp32_instructions"].isna().all()


def test_collect_counters_refuses_a_cpu(refused, make_plan, fake_device, tmp_path):
    with RunLog(tmp_path / "run.jsonl", header_for(make_plan(1), fake_device())) as log, refused("has no counters"):
        counting.collect_counters(log)


@pytest.mark.parametrize("capability", [7.0, 7.5, 8.0, 8.7, 9.0, 10.0, 12.0, 12.1])
def test_each_chip_gets_only_metrics_that_it_has(capability):
    command = counting.NsightCompute("ncu", capability).profiling(Path("x.ncu-rep"))
    names = command[command.index("--metrics") + 1].split(",")
    assert len(names) == len(set(names)) and set(counting.LAUNCH) <= set(names)
    assert not any(name.startswith("sm__throughput") for name in names)
    integrated = capability in (8.7, 12.1)  # these chips use the memory of the CPU
    assert ("dram__sectors_read.sum" in names) == (7.0 <= capability < 12.0 and not integrated)
    assert ("dram__sectors_op_read.sum" in names) == (capability == 12.0 and not integrated)
    assert (counting.DRAM_SHARE in names) == (not integrated)


@pytest.mark.parametrize("capability", [7.0, 7.5, 9.0])
def test_find_tool_finds_nsight_compute_on_the_path(refused, capability):
    assert counting.find_tool(capability, lambda tool: f"/x/{tool}") == counting.NsightCompute("/x/ncu", capability)
    with refused("ncu is not on the PATH"):
        counting.find_tool(capability, lambda tool: None)


def test_find_tool_refuses_an_older_gpu_with_an_alternative(refused):
    with refused("compute capability 7.0", "this GPU has 6.1", "seer import nvprof --how"):
        counting.find_tool(6.1, lambda tool: f"/x/{tool}")


def test_a_hanging_profiler_is_stopped_after_the_grace_period(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "GRACE_S", 0.5)
    path = tmp_path / "ncu"
    path.write_text("#!/bin/sh\nsleep 60\n")
    path.chmod(0o755)
    began_s = time.monotonic()
    result = counting.count_pairs(pairs, counting.NsightCompute(str(path)), tmp_path, seconds=0.3, program=program)
    assert result.kernels.empty and time.monotonic() - began_s < 5.0
    assert len(result.notes) == 1 and "stopped after" in result.notes[0]


def processes_with(word: str) -> list[str]:
    """Return the command lines of running processes that contain ``word``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_text(errors="replace").replace("\0", " "))
    return [line for line in found if word in line]


def wait_until(condition, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.1)


SLOW = pytest.param(signal.SIGTERM, "program", marks=pytest.mark.slow)


@pytest.mark.parametrize(("stop", "hanging"), [(signal.SIGTERM, "ncu"), SLOW, (signal.SIGKILL, "program")])
def test_neither_profiler_nor_program_outlives_the_command(chain, tmp_path, stop, hanging):
    """The program hangs in its first marker, or ncu before it. After SIGKILL, only the program itself can end both."""
    chain.setenv(*{"ncu": ("FAKE_PROFILER", "hang"), "program": ("FAKE_FAULTS", "hang seer_marker -1 -1")}[hanging])
    (tmp_path / "plan.txt").write_text("n1c16h28k32r3p1\n")
    words = ("collect", "--device", "cudnn", "--plan", "plan.txt", "--counters", "-o", str(tmp_path / "run.jsonl"))
    child = subprocess.Popen([sys.executable, "-m", "surrogate", *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    profiled = str(tmp_path / ".counters-")
    try:
        hang = tmp_path / "state" / "fault-0"
        wait_until(hang.exists if hanging == "program" else lambda: processes_with(profiled), 60.0)
        assert len(processes_with(profiled)) == (2 if hanging == "program" else 1)
        child.send_signal(stop)
        assert child.wait(10.0) == (143 if stop == signal.SIGTERM else -stop)
        wait_until(lambda: not processes_with(profiled), 6.0)
    finally:
        child.kill()
        child.wait()


def test_a_pipe_that_stays_open_keeps_the_program(chain, pairs, tmp_path):
    """Nsight Compute passes its standard input on, so the program runs while its parent lives."""
    result = counting.count_pairs(pairs[:2], counting.NsightCompute("ncu"), tmp_path, seconds=20.0)
    assert result.notes == () and set(result.kernels["algorithm"]) == {"GEMM"}


def many(count: int) -> list[counting.Pair]:
    """Return ``count`` pairs of 3×3 and GEMM, and five pairs of 1×1 and FFT."""
    common = [counting.Pair(Conv(n=1, c=8 + i, h=28, k=32, r=3), "GEMM") for i in range(count)]
    return common + [counting.Pair(Conv(n=1, c=8 + i, h=28, k=32, r=1), "FFT") for i in range(5)]


def test_stratified_samples_rare_strata_as_often_as_common_ones():
    chosen = counting.stratified(many(400), 10)
    assert Counter(pair.algorithm for pair in chosen)["FFT"] >= 3  # 1 % of all pairs, 30 % of the chosen pairs


@given(st.integers(1, 60), st.integers(0, 3))
def test_stratified_returns_a_subset_of_the_requested_size(count, seed):
    pairs = many(40)
    chosen = counting.stratified(pairs, count, seed)
    assert len(chosen) == min(count, len(pairs)) == len(set(chosen)) and set(chosen) <= set(pairs)
    assert chosen == counting.stratified(pairs[::-1], count, seed)


def test_measured_pairs_skips_failed_measurements():
    expected = [counting.Pair(Conv(n=1, c=8, h=28, k=32, r=3), "GEMM")]
    assert counting.measured_pairs(known_answers(__file__)["records"]) == expected


def test_written_pairs_read_back(tmp_path):
    pairs = many(3)
    counting.write_pairs(pairs, tmp_path / "pairs.jsonl")
    assert counting.read_pairs(tmp_path / "pairs.jsonl") == pairs


class RecordingDevice:
    """A device and marker that records each measurement with the marker's number."""

    def __init__(self):
        self.number, self.calls = -1, []

    def measure(self, conv, algorithm, policy):
        self.calls.append((self.number, algorithm))


def test_run_pairs_runs_each_pair_once_with_its_number():
    device, pairs = RecordingDevice(), many(2)
    assert run_pairs(pairs, device, device, time.monotonic() + 60.0) == len(pairs)
    assert device.calls == [(i, pair.algorithm) for i, pair in enumerate(pairs)]
    assert run_pairs(pairs, device, device, 0.0) == 1  # the time is up, and a start without a pair would be wasted


def test_the_stopwatch_profiles_only_the_second_call():
    events = []

    class Marks:
        @contextmanager
        def profiled(self, number):
            events.append(("start", number))
            yield
            events.append(("stop",))

    silent = Mock(elapsed_us=lambda start, end: 12.0)  # a GPU without the cost of events
    stopwatch = ProfiledStopwatch(silent, Marks())
    stopwatch.number = 4
    result = stopwatch.time(lambda: events.append(("call",)), RepeatPolicy())
    assert events == [("call",), ("start", 4), ("call",), ("stop",)] and result.status == "ok"
