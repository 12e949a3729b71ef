"""Counters of ncu and nvprof joined to the kernels of a trace: known answers, spellings, unknown kernels."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from surrogate.trace import events
from surrogate.trace.kernels import kernel_table, with_counters
from surrogate.trace.profiling import profile
from surrogate.trace.spans import trace_spans
from tests.known import cases, known_answers

SAMPLES = Path(__file__).parent / "samples"
CONV = "volta_scudnn_128x64_relu_interior_nn_v1"
DGEMM = "void dgemm<double, int=4>(double*, int)"
GRID = (160, 1, 1)
HEAD = known_answers(__file__)["head"]


def ncu(path: Path, launches: Sequence[Sequence[object]]) -> Path:
    """Write Nsight Compute's raw page of (name, grid, multiply-adds, MB read, MB written, occupancy) per launch."""
    rows = [HEAD, ["", "", "", "", "ns", "inst", "Mbyte", "Mbyte", "%"]]
    rows += [[i, name, "(256, 1, 1)", str(grid), 9, *values] for i, (name, grid, *values) in enumerate(launches)]
    path.write_text("".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows))
    return path


def nvprof(path: Path, kernel: str, averages: Mapping[str, object]) -> Path:
    """Write nvprof's metrics of one kernel of two launches: metric → average."""
    header = '"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"'
    lines = [f'"V (0)","{kernel}",2,"{metric}","",1,9,"{value}"' for metric, value in averages.items()]
    path.write_text("\n".join(["==9== Metric result:", header, *lines]))
    return path


@pytest.fixture
def invented(make_trace, read):
    """Return a profile of two steps in which the convolution takes 5 ms, on a stream of its own."""
    trace = make_trace(steps=2)
    for number, event in enumerate(trace["traceEvents"]):
        if event["name"] == CONV:
            event["dur"], event["args"]["stream"] = 5000, 100 + number
    return profile(read(trace))


def test_notes_on_a_file_of_counters_are_kept(invented, tmp_path):
    path = ncu(tmp_path / "ncu.csv", [(CONV, GRID, 31e9, 12.1, 296, 13.2)])
    path.write_text(path.read_text() + "done\n")
    notes = kernel_table(with_counters(invented, [path])).notes
    assert "ncu.csv: 1 line left out that ncu did not print" in notes


def test_counters_reproduce_the_resnet50_kernel_of_xsp(invented, tmp_path):
    """XSP's slides give the counters of one launch; one step was counted, so each launch counts for both steps."""
    counted = with_counters(invented, [ncu(tmp_path / "ncu.csv", [(CONV, GRID, 31e9, 12.1, 296, 13.2)])])
    for by, name in (("name", CONV), ("layer", "conv2d.0"), ("type", "conv2d"), ("model", "whole model")):
        row = next(row for row in kernel_table(counted, by) if row["kernel" if by == "name" else by] == name)
        assert (row["counted"], row["measured_bound"]) == (2, "compute-bound")
        assert (row["measured_gflop"], row["read_mb"], row["write_mb"]) == pytest.approx((124, 24.2, 592))
        assert row["measured_flop_per_byte"] == pytest.approx(62e9 / 308.1e6)
        assert row["measured_compute_pct"] == pytest.approx(100 * 62e9 / 5e-3 / 15.667e12, rel=1e-3)
        assert row["measured_occupancy_pct"] == pytest.approx(13.2)
    assert "joined to 2 of 10 kernels" in " ".join(kernel_table(counted).notes)
    assert "measured_gflop" not in kernel_table(invented).rows[0]


def test_kernel_spans_carry_counters_as_tags(invented, make_trace, seer, tmp_path):
    counters = ncu(tmp_path / "ncu.csv", [(CONV, GRID, 31e9, 12.1, 296, 13.2)])
    spans = trace_spans(invented.trace, with_counters(invented, [counters]).counters)
    tags = [dict(tag) for name, tag in zip(spans.name, spans.tags, strict=True) if name == CONV]
    assert [tag.pop("correlation") > 0 for tag in tags] == [True, True]
    expected = {"flops": 62e9, "read_bytes": 12.1e6, "write_bytes": 296e6, "occupancy_pct": 13.2}
    assert tags == [pytest.approx(expected)] * 2
    trace = tmp_path / "made.json"
    trace.write_text(json.dumps(make_trace(steps=2)))
    printed = seer("spans", trace, "--level", "kernel", "--counters", counters, "--json").succeeded()
    rows = [row for row in json.loads(printed.out) if row["span"].strip() == CONV]
    assert [row["tags"]["write_bytes"] for row in rows] == pytest.approx([296e6] * 2)


def test_counters_join_launches_in_order(invented, tmp_path):
    """The occupancy of a group is the mean weighted by time; both launches took 5 ms."""
    launches = [(CONV, GRID, 1e9, 1, 1, 10), ("other", GRID, 1, 1, 1, 1), (CONV, GRID, 3e9, 1, 1, 30)]
    counted = with_counters(invented, [ncu(tmp_path / "ncu.csv", launches)])
    assert counted.counters.flops[counted.counters.row >= 0].tolist() == [2e9, 6e9]
    assert kernel_table(counted).rows[0]["measured_occupancy_pct"] == pytest.approx(20)


def test_nvprof_averages_apply_to_every_launch(invented, tmp_path):
    averages = {"flop_count_sp": 500, "achieved_occupancy": 0.5}
    averages |= {"dram_read_bytes": 32_000, "dram_write_transactions": 10}
    log = nvprof(tmp_path / "averages.csv", "relu_kernel", averages)
    row = next(row for row in kernel_table(with_counters(invented, [log])) if row["kernel"] == "relu_kernel")
    assert (row["counted"], row["measured_gflop"], row["read_mb"], row["write_mb"]) == (2, 1e-6, 0.064, 640e-6)
    assert row["measured_occupancy_pct"] == 50


def test_kernels_of_resnet50_join_in_the_spelling_of_ncu(resnet, tmp_path):
    """Nsight Compute writes casts in template arguments and omits some function arguments."""
    profiled = profile(resnet)
    kernels = np.flatnonzero((resnet.activities.kind == events.KERNEL) & (profiled.layers.iteration_of_activity == 2))
    names = [re.sub(r"(?<=[<, ])(\d+)(?=[,>])", r"(int)\1", resnet.name_of(resnet.activities, i)) for i in kernels]
    names = [name.split("(")[0] if "<" not in name else name for name in names]
    launches = [(names[i], tuple(grid), i, 1, 1, 50) for i, grid in enumerate(resnet.activities.grid[kernels].tolist())]
    counters = with_counters(profiled, [ncu(tmp_path / "ncu.csv", launches)]).counters
    assert (counters.row >= 0).sum() == 8772
    assert counters.row[kernels].tolist() == list(range(len(kernels)))


@pytest.mark.parametrize(("name", "grid"), [("unknown", GRID), (CONV, (161, 1, 1))])
def test_counters_of_unknown_kernels_are_refused(refused, invented, tmp_path, name, grid):
    with refused("none of its 1 kernels"):
        with_counters(invented, [ncu(tmp_path / "ncu.csv", [(name, grid, 1, 1, 1, 1)])])


def test_tensor_core_kernels_have_no_measured_flops(make_trace, read, tmp_path):
    trace = make_trace(steps=1)
    for event in trace["traceEvents"]:
        event["name"] = event["name"].replace("volta_scudnn", "volta_fp16_s884cudnn")
    name = CONV.replace("volta_scudnn", "volta_fp16_s884cudnn")
    counted = with_counters(profile(read(trace)), [ncu(tmp_path / "ncu.csv", [(name, GRID, 1e9, 1, 2, 10)])])
    row = next(row for row in kernel_table(counted) if row["kernel"] == name)
    assert row["measured_gflop"] is row["measured_bound"] is None and row["write_mb"] == 2


@pytest.mark.parametrize("name", ["nvprof_summary.txt", "nvprof_summary_older.txt", "nvprof_summary.csv"])
def test_nvprof_summary_becomes_a_kernel_table(seer, name):
    log = SAMPLES / name
    rows = seer("kernels", log, "--json").succeeded().json
    assert [row["type"] for row in rows] == ["GPU activities"] * 3 + ["API calls"]
    assert rows[1] == known_answers(__file__)["nvprof_row"]
    assert [rows[0][name] for name in ("calls", "total_us", "max_us")] == pytest.approx([28160, 1.45e6, 133.22])
    assert "[CUDA memcpy DtoH]" in seer("kernels", log)[1]


def test_nvprof_summary_with_counters_gives_a_bound(seer, tmp_path):
    """A GTX 1080 Ti reaches 354.368 GFLOP/s in fp64; 70 GFLOP in 250 ms are 79 % of this peak."""
    log = SAMPLES / "nvprof_summary.txt"
    counts = {"flop_count_dp": 70_000_000_000, "dram_read_bytes": 1_000_000_000, "dram_write_bytes": 1_000_000_000}
    metrics = nvprof(tmp_path / "metrics.csv", DGEMM, counts)
    single, doubles, *_ = seer("kernels", log, "--counters", metrics, "--gpu", "GTX 1080 Ti", "--json").succeeded().json
    assert (doubles["counted"], doubles["measured_gflop"]) == (2, 140)
    assert doubles["measured_compute_pct"] == pytest.approx(100 * 280 / 354.368)
    assert doubles["measured_bound"] == "compute-bound" and single["measured_bound"] is None
    assert seer("kernels", log, "--by", "layer").is_refusal("only kernels by name")


@cases(__file__)
def test_nvprof_utilization_levels_give_a_bound(seer, tmp_path, single, special, dram, bound):
    """A level is a tenth of the peak; a kernel with every level below six is latency-bound."""
    levels = {"single_precision_fu_utilization": single, "special_fu_utilization": special, "dram_utilization": dram}
    metrics = nvprof(tmp_path / "metrics.csv", DGEMM, levels)
    words = ("kernels", SAMPLES / "nvprof_summary.txt", "--counters", metrics, "--json")
    row = seer(*words).succeeded().json[1]
    shares = [10.0 * max(int(level[-2]) for level in (single, special)), 10.0 * int(dram[-2])]
    assert [row["measured_compute_pct"], row["measured_memory_pct"], row["measured_bound"]] == [*shares, bound]
