"""The command ``seer collect``: options, exit statuses and messages."""

import signal
import subprocess
import sys
import time
from functools import partial

import pandas as pd
import pytest

from surrogate.collect import log, open_device
from surrogate.collect.device import DeviceLostError
from surrogate.collect.merge import merge_runs
from surrogate.collect.plan_source import networks
from tests.known import known_answers


@pytest.fixture
def seer(seer):
    """Return ``seer("--device", "cpu")``, which runs ``seer collect --device cpu``."""
    return partial(seer, "collect")


@pytest.fixture
def recording(make_plan, record):
    return record(make_plan(12), name="recording.jsonl")


def test_a_repeated_replay_measures_nothing_new(seer, recording, tmp_path):
    output = tmp_path / "run.jsonl"
    words = ("--device", "replay", "--recording", recording, "-o", output)
    result = seer(*words).succeeded()
    assert "12 of 12 problems done" in result.out
    assert merge_runs([output]).frame.time_us.notna().sum() > 12
    before = output.read_bytes()
    result = seer(*words)
    assert (result.code, output.read_bytes()) == (0, before)
    assert "measured nothing new" in result.out


def test_shards_of_a_plan_file_are_collected(seer, recording, tmp_path):
    problems = sorted({str(p["problem"]).split()[0] for p in log.read_log(recording).records})
    plan = tmp_path / "plan.txt"
    plan.write_text("\n".join(problems[:6]))
    for shard in ("1/2", "2/2"):
        output = tmp_path / f"{shard[0]}.jsonl"
        words = ("--device", "replay", "--recording", recording, "--plan", plan, "--shard", shard)
        assert seer(*words, "-o", output).code == 0
    assert len(merge_runs([tmp_path / "1.jsonl", tmp_path / "2.jsonl"]).frame) == 24


def test_setting_options_reach_the_plan(seer, tmp_path, recording):
    settings = ("--math", "default", "--dtype", "fp16", "--layout", "NHWC", "--direction", "bwd_data")
    result = seer("--device", "replay", "--recording", recording, *settings, "-o", tmp_path / "run")
    assert result.code == 2
    assert "fp16 default NHWC bwd_data was not recorded" in result.err


def test_the_reference_device_stops_in_time(seer, tmp_path, monkeypatch):
    from surrogate.collect import cpu

    monkeypatch.setattr(cpu, "measure_datasheet", lambda: {"name": "Test CPU"})
    output, plan = tmp_path / "run.jsonl", tmp_path / "plan.txt"
    plan.write_text("\n".join(f"n1c16h{size}k16r3" for size in range(20, 220)))
    result = seer("--device", "reference", "--plan", plan, "--minutes", 0.01, "-o", output).succeeded()
    assert "stopped: the time is up, the same command continues" in result.out
    header = log.read_log(output).header
    assert header is not None
    assert header.device.gpu == "Test CPU"


def test_a_run_without_a_supported_algorithm_exits_1(seer, recording, tmp_path):
    text = recording.read_text().splitlines()
    unsupported = [line for line in text if '"kind":"measure"' not in line or '"not_supported"' in line]
    only_fft = [line.replace('"IMPLICIT_GEMM","GEMM","FFT","WINOGRAD"', '"FFT"') for line in unsupported]
    problems = {line.split('"')[7] for line in only_fft if '"kind":"measure"' in line}
    lines = [line for line in only_fft[1:] if line.split('"')[7] in problems]
    (tmp_path / "only_fft.jsonl").write_text("\n".join([text[0], *lines]) + "\n")
    result = seer("--device", "replay", "--recording", tmp_path / "only_fft.jsonl", "-o", tmp_path / "run.jsonl")
    assert result.code == 1
    assert "not_supported" in result.out


def test_a_lost_device_ends_the_run_and_the_command_can_be_repeated(
    seer, fake_device, make_plan, monkeypatch, tmp_path
):
    device, plan = fake_device(), tmp_path / "plan.txt"
    measure = device.measure
    plan.write_text("\n".join(str(problem.conv) for problem in make_plan(4).problems))
    monkeypatch.setattr(open_device, "open_device", lambda *_, **__: device)
    words = ("--device", "cpu", "--plan", plan, "-o", tmp_path / "run.jsonl")
    device.measure = lambda *_: (_ for _ in ()).throw(DeviceLostError("no answer within 30 s"))
    result = seer(*words)
    assert (result.code, result.out.count("\n")) == (1, 1)
    assert "measured 5 lost" in result.out
    assert "stopped: the device was lost 5 times" in result.out
    assert "no answer within 30 s" in result.out
    assert "the same command continues" in result.out
    device.measure = measure
    result = seer(*words)
    assert result.code == 0 and len(merge_runs([tmp_path / "run.jsonl"]).frame) == 16


def test_omitted_problems_are_counted(seer, tmp_path, monkeypatch):
    monkeypatch.setenv("SEER_CUDNN", "no-such-library.so")
    plan = tmp_path / "plan.txt"
    plan.write_text("n1c1h4k1r1\n" + "\n".join(str(conv) for conv in networks()["AlexNet"]))
    result = seer("--device", "cudnn", "--plan", plan, "-o", tmp_path / "run.jsonl")
    assert result.code == 2
    assert ": 5 of 6 problems, without 1 under 1e+06 FLOPs" in result.err
    assert "libcudnn was not found" in result.err


def test_cap_options_apply_and_omitted_problems_are_logged(seer, tmp_path, monkeypatch):
    """The problems have 71 MFLOP, 567 MFLOP (over the CPU's default cap of 500), and a filter of 4.3 MiB."""
    monkeypatch.setattr("surrogate.collect.cpu.measure_datasheet", lambda: {"name": "Test CPU"})
    plan, output = tmp_path / "plan.txt", tmp_path / "run.jsonl"
    plan.write_text("n1c32h64k32r3 n8c32h64k32r3 n1c1024h4k1100r1".replace(" ", "\n"))
    words = ("--device", "cpu", "--plan", plan, "--minutes", 0.001)
    result = seer(*words, "-o", output, "--max-gflop", "inf", "--max-tensor", "4MiB")
    header = log.read_log(output).header
    assert header is not None
    description = f"plan {plan}: 2 of 3 problems, without 1 with a tensor over 4 MiB (--max-tensor)"
    assert description in result.err and header.description == description
    assert "2 of 3 problems, without 1 over 0.5 GFLOP (--max-gflop)" in seer(*words, "-o", tmp_path / "2.jsonl").err
    assert seer(*words, "-o", output, "--campaign", "--max-gflop", 1).is_refusal("leave --plan out")


def test_heuristic_only_calls_collect_heuristic(seer, tmp_path, monkeypatch):
    calls = []

    def collect_heuristic(plan, gpu, output, progress):
        progress(1, len(plan), "p")
        calls.append((len(plan), gpu, str(output)))

    monkeypatch.setattr("surrogate.collect.run.collect_heuristic", collect_heuristic)
    output = tmp_path / "run.jsonl"
    seer("--heuristic-only", "--gpu", "h200", "--networks", "-o", output).succeeded()
    assert calls == [(calls[0][0], "h200", str(output))]
    assert calls[0][0] > 1000


SLOW = known_answers(__file__)["slow"]


@pytest.mark.parametrize("ending", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_an_interrupted_run_continues_to_the_same_table(seer, recording, tmp_path, ending):
    output, reference = tmp_path / "run.jsonl", tmp_path / "reference.jsonl"
    words = ["--device", "replay", "--recording", str(recording), "-o"]
    for lines in (3, 20):  # the run is interrupted twice
        command = [sys.executable, "-c", SLOW, "collect", *words, str(output)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and not (output.exists() and output.read_bytes().count(b"\n") > lines):
                time.sleep(0.02)
            child.send_signal(ending)
            try:
                _, errors = child.communicate(timeout=60)
            finally:
                child.kill()
        assert child.returncode == (130 if ending == signal.SIGINT else -ending)
        assert (f"the same command continues with {output}" in errors) is (ending == signal.SIGINT)
        assert "Traceback" not in errors
    assert "12 of 12 problems done" in seer(*words, output).out
    assert seer(*words, reference).code == 0
    interrupted, uninterrupted = (merge_runs([path]) for path in (output, reference))
    pd.testing.assert_frame_equal(interrupted.frame, uninterrupted.frame)
    pd.testing.assert_frame_equal(interrupted.kernels, uninterrupted.kernels)
    assert interrupted.metadata["duplicates_dropped"] == 0
