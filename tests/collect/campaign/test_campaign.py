"""The slices from end to end on a stand-in, and the command on this CPU."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments import collect_gpu
from experiments.campaign import convolutions, probe
from experiments.campaign.convolutions import pack, run_slice, unpack
from experiments.campaign.probe import run_probe
from experiments.campaign.slices import SLICES, chosen, plan_of
from surrogate.collect.counters.profilers import PERMISSION_REMEDY, Counted, Tool
from surrogate.collect.plan import GPU_CAPS
from surrogate.dataset.store import read_dataset
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS


@pytest.mark.parametrize("number", [1, 3, 4, 5])
def test_a_slice_leaves_a_dataset_its_kernels_and_its_log(context, gpu, number):
    report = run_slice(SLICES[number], context)
    stem = f"slice-{number}"
    assert report.files == [f"{stem}.parquet", f"{stem}.kernels.parquet", f"{stem}.jsonl.gz"]
    assert report.done == report.planned > 0 and gpu.closed
    dataset = read_dataset(context.out / f"{stem}.parquet")
    assert dataset.candidates == "all"
    kernels = pd.read_parquet(context.out / f"{stem}.kernels.parquet")
    assert len(kernels) == (dataset.frame["status"] == "ok").sum() > 0


def test_a_slice_ends_in_time_and_the_same_call_goes_on(shorter, gpu, clock):
    first = run_slice(SLICES[1], shorter)
    assert first.stopped == "the time is up" and 0 < first.done < first.planned
    assert clock.now_s <= 12.0
    rounds = 0
    while (again := run_slice(SLICES[1], shorter)).stopped:
        rounds += 1
        assert rounds < 10
    assert again.done == again.planned
    frame = read_dataset(shorter.out / "slice-1.parquet").frame
    assert not frame.duplicated([*SIZE_COLUMNS, "algorithm"]).any()


def counters_of(pairs):
    """What counting these pairs would give, a kernel each."""
    rows = [
        {**pair.conv.to_dict(), "algorithm": pair.algorithm, "kernel_index": 0,
         "kernel_name": f"{pair.algorithm.lower()}_kernel()", "fp32_instructions": 1e6}
        for pair in pairs
    ]  # fmt: skip
    return Counted(pd.DataFrame(rows), (), True, 1.0)


def test_counters_are_joined_to_the_slices_kernels(context, gpu, monkeypatch):
    monkeypatch.setattr(convolutions, "find_tool", lambda _: Tool("ncu", "/x/ncu"))
    monkeypatch.setattr(convolutions, "count", lambda pairs, *_, **__: counters_of(pairs))
    report = run_slice(SLICES[2], context)
    assert "slice-2.counters.parquet" in report.files
    kernels = pd.read_parquet(context.out / "slice-2.kernels.parquet")
    assert kernels["fp32_instructions"].eq(1e6).all()
    assert report.notes == [f"counters joined to {len(kernels)} of {len(kernels)} kernels"]
    assert pd.read_parquet(context.out / "slice-2.counters.parquet")["gpu"].eq("Fake GPU").all()


def no_profiler(capability):
    raise InputError("ncu is not on the PATH")


@pytest.mark.parametrize(
    ("find", "note"),
    [
        (lambda _: Tool("ncu", "/x/ncu"), PERMISSION_REMEDY),
        (no_profiler, "no counters: ncu is not on the PATH"),
    ],
)
def test_without_counters_the_times_remain(context, gpu, monkeypatch, find, note):
    monkeypatch.setattr(convolutions, "find_tool", find)
    denied = Counted(notes=(PERMISSION_REMEDY,), permitted=False)
    monkeypatch.setattr(convolutions, "count", lambda *_, **__: denied)
    report = run_slice(SLICES[2], context)
    assert report.notes == [note] and report.done == report.planned
    assert "slice-2.kernels.parquet" in report.files


def test_the_probe_tells_what_it_can(context, gpu, monkeypatch):
    monkeypatch.setattr(convolutions, "find_tool", lambda _: Tool("ncu", "/x/ncu"))
    monkeypatch.setattr(probe, "count", lambda pairs, *_, **__: counters_of(pairs))
    errors = {"fma": {"GEMM": 3e-4, "WINOGRAD": 9e-5, "FFT": 1e-7}, "default": {"GEMM": 3e-4}}
    gpu.info = replace(gpu.info, properties={**gpu.info.properties, "relative_errors": errors})
    report = run_probe(SLICES[0], context)
    assert report.done == report.planned == 3 and report.notes == []
    found = json.loads((context.out / "probe.json").read_text())
    assert found["rate"]["pairs_per_second"] == pytest.approx(1.0)
    assert found["counters"]["seconds_per_kernel"] == pytest.approx(1 / 12)
    assert found["support"]["fp32 fma NCHW fwd"]["1x1"]["FFT"] == "not_supported"
    text = (context.out / "PROBE.md").read_text()
    assert "# Probe of Fake GPU" in text and "| FFT | + | - |" in text
    assert "FMA errs more than FMA can: GEMM (0.0003)\n" in text  # as TF32 does


def test_a_step_of_the_probe_that_fails_leaves_the_others(context, gpu, monkeypatch):
    monkeypatch.setattr(convolutions, "find_tool", no_profiler)
    report = run_probe(SLICES[0], context)
    assert report.notes == ["counters: ncu is not on the PATH"] and report.done == 2
    assert "failed: ncu is not on the PATH" in (context.out / "PROBE.md").read_text()


def test_operators_are_measured_on_a_gpu_alone(context):
    with pytest.raises(InputError, match="--device cudnn"):
        run_slice(SLICES[6], replace(context, device="cpu"))


def test_the_command_runs_slices_and_writes_their_summaries(tmp_path, gpu):
    words = ["--out", str(tmp_path), "--slices", "1,5", "--problems", "4"]
    result = CliRunner().invoke(collect_gpu.main, words)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("problems") == 2
    summary = json.loads((tmp_path / "slice-5.json").read_text())
    assert summary["measured"]["ok"] > 0 and "slice-5.parquet" in summary["files"]


def test_a_slice_that_fails_does_not_stop_the_next(tmp_path, gpu, monkeypatch):
    def broken(one, context):
        raise InputError("no usable GPU")

    monkeypatch.setattr(collect_gpu, "run_probe", broken)
    result = CliRunner().invoke(collect_gpu.main, ["--out", str(tmp_path), "--slices", "0,1", "--problems", "4"])
    assert result.exit_code == 1
    assert "collect_gpu: slice 0: no usable GPU" in result.stderr and "slice 1 (" in result.stdout


def test_a_users_error_is_one_line_and_status_two(tmp_path):
    result = CliRunner().invoke(collect_gpu.main, ["--out", str(tmp_path), "--slices", "9"])
    assert result.exit_code == 2 and result.stderr == "collect_gpu: slice 9 is unknown; known: 0 to 6\n"


CONVOLUTIONS = [one for one in SLICES.values() if one.source not in ("probe", "operators")]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", [0]), ("0,1", [0, 1]), ("5,1-3,2", [5, 1, 2, 3]), ("0-6", list(range(7)))]
)
def test_slices_are_listed_by_number(text, numbers):
    assert [one.number for one in chosen(text)] == numbers


@pytest.mark.parametrize("text", ["", "x", "1-", "7", "0,9", "3-1", "-1"])
def test_what_is_no_slice_is_refused(text):
    with pytest.raises(InputError, match=r"slices? .*(not readable|unknown)"):
        chosen(text)


@pytest.mark.parametrize("one", CONVOLUTIONS, ids=lambda one: str(one.number))
def test_a_plan_has_the_slices_settings(one):
    plan = plan_of(one, GPU_CAPS, 0, 20)
    wanted = {
        (dtype, math, layout, direction)
        for setting in one.settings
        for dtype in setting.dtypes
        for math in setting.maths
        for layout in setting.layouts
        for direction in setting.directions
    }
    convs = [problem.conv for problem in plan.problems]
    assert {(conv.dtype, conv.math, conv.layout, conv.direction) for conv in convs} == wanted
    assert all(not GPU_CAPS.reason(conv) for conv in convs)


def test_a_log_is_packed_and_comes_back(tmp_path):
    log = tmp_path / "slice-1.jsonl"
    log.write_bytes(b"line\n" * 1000)
    packed = pack(log)
    first = packed.read_bytes()
    assert not log.exists() and len(first) < 200
    here = tmp_path / "here" / log.name
    here.parent.mkdir()
    for folder in (None, tmp_path, tmp_path):  # a log that is there stays
        unpack(here, folder)
        assert here.exists() is (folder is not None)
    assert here.read_bytes() == b"line\n" * 1000
    assert pack(here).read_bytes() == first
