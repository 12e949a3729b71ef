"""``seer trace`` through its entry point, and the HTML page."""

import csv
import html
import io
import json

import pytest

from surrogate.trace import profile
from surrogate.trace.page import trace_page
from tests.known import cases, known_answers
from tests.trace.events import nsys_export


def test_summary_command_prints_json_and_tables(seer, file):
    answer = seer("summary", file, "--json").succeeded().json
    assert answer["summary"]["kernels"] == 10 and answer["summary"]["batch"] == 8
    assert {row["type"] for row in answer["types"]} == {"conv2d", "relu", "Optimizer.step#SGD.step", "copy_"}
    assert answer["copies"][0]["direction"] == "device to host"
    code, out, _ = seer("summary", file)
    assert code == 0 and "conv2d" in out and "Copies and memsets" in out
    figures = {line.split()[0]: line for line in out.splitlines() if line}
    assert "per iteration" in figures["iteration_ms"] and "whole trace" in figures["kernel_ms"]


def test_summary_names_the_longest_wait_of_a_server_trace(seer, saved, table_events):
    """The trace does not show the cause of the wait; its rows are tokens, so it has no batch."""
    facts = seer("summary", saved({"traceEvents": table_events}), "--json").succeeded().json["summary"]
    assert facts["bound"].startswith("waiting") and "The longest wait, 89.96 ms before second," in facts["bound"]
    assert facts["batch"] is None and facts["samples_per_s"] is None


def test_kernels_command_groups_and_limits_rows(seer, file):
    rows = seer("kernels", file, "--top", "2", "--json").succeeded().json
    assert [row["kernel"] for row in rows] == ["cudnn_wgrad_kernel", "volta_scudnn_128x64_relu_interior_nn_v1"]
    rows = list(csv.DictReader(io.StringIO(seer("kernels", file, "--by", "layer", "--csv", "--iteration", "1").out)))
    assert {row["layer"]: row["calls"] for row in rows}["conv2d.0"] == "2"
    assert "latency-bound" in seer("kernels", file)[1]
    assert seer("kernels", file, "--by", "type")[1].splitlines()[1].startswith("type ")


def test_kernels_command_reports_unused_events(seer, make_trace, saved):
    trace = make_trace()
    trace["traceEvents"].append({"ph": "X", "cat": "novel", "name": "n", "ts": 1, "dur": 1})
    trace["traceEvents"][1]["dur"] = -1
    code, _, err = seer("kernels", saved(trace))
    assert code == 0 and "1 events of novel (X) are not used" in err and "usable time" in err


def test_html_page_escapes_names_and_loads_nothing(seer, make_trace, saved, tmp_path):
    evil, page = "evil<script>alert(1)</script>&\\\"'", tmp_path / "out.html"  # the quote as JSON has it
    path = saved(json.dumps(make_trace()).replace("volta_scudnn_128x64_relu_interior_nn_v1", evil))
    assert seer("summary", path, "--html", page)[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text and "evil&lt;script&gt;" in text
    assert "http://" not in text and "https://" not in text and "src=" not in text
    assert "<svg" in text and "conv2d.0" in text and "Copies and memsets" in text


def test_html_pages_of_real_traces_are_complete(real):
    for name in ("vgg13_b128_training_h100.json.gz", "nsys_power_iteration.sqlite", "edge_no_gpu_events.json.gz"):
        page = trace_page(profile(real(name)))
        assert page.startswith("<!doctype html>") and page.count("<table>") == page.count("</table>")
        assert page.count("<svg") == page.count("</svg>") and page.count("<details>") == page.count("</details>")
        for text in ("Bound by", "What bounds the step", "What to change", "throughput", "assumes"):
            assert (text in page) == ("gpu_events" not in name), text
        first_table = page.index('id="kernels"' if "Bound by" in page else "<table>")
        assert 0 < page.index('id="figure-layers-over-time"') < first_table
        assert 'name="zoom-layers-over-time"' in page
        assert "<script" not in page and "//" not in page.replace("http-equiv", "")


def test_commands_name_the_missing_device_events(seer, measurements):
    host_only = measurements / "traces" / "edge_no_gpu_events.json.gz"
    out = seer("summary", host_only)[1]
    assert "lacks work of a device" in " ".join(out.partition("Findings: not judged")[2].split())
    assert "host_us" in out and seer("diff", host_only, host_only).is_refusal("diff compares GPU kernels")
    assert "total_us" not in out and "busy" not in out
    refused = seer("whatif", host_only, "amp", "batch=32", "gpu=h100", "data-parallel=8")
    assert refused.is_refusal("record it with ProfilerActivity.CUDA") and refused.err.count("holds no work") == 1


def test_kernels_command_notes_a_rate_above_the_peak_of_the_gpu(seer):
    """The kernels ran on an H100, so they exceed the peak of a T4."""
    assert "check the shapes, or name the GPU" in seer("kernels", "vgg13_h100", "--gpu", "t4")[1]
    assert "check the shapes" not in seer("kernels", "vgg13_h100")[1]


def test_spans_command_merges_levels_of_separate_traces(seer, make_trace, saved):
    """The traces hold steps, operators and all events; each is 10 % slower than the one before."""
    files = []
    for number, categories in enumerate([("user_annotation",), ("user_annotation", "cpu_op"), None]):
        trace = make_trace(steps=2, start=0)
        trace["traceEvents"] = [
            record | {name: record[name] * (1 + number / 10) for name in ("ts", "dur") if name in record}
            for record in trace["traceEvents"]
            if not categories or (record.get("cat") in categories and (number or "Optimizer" not in record["name"]))
        ]
        files.append(saved(trace, f"{number}.json"))
    answer = seer("spans", *files, "--level", "kernel", "--json").succeeded().json
    assert answer["without_counterpart"] == 0
    assert [row["level"] for row in answer["levels"]] == ["model", "operator", "kernel"]
    assert [row["model_us"] for row in answer["levels"]] == pytest.approx([990, 1089, 1188])
    assert [row["overhead_pct"] for row in answer["levels"]] == pytest.approx([0, 10, 10])
    times = {row["span"].strip(): row["time_us"] for row in answer["spans"]}
    assert (times["ProfilerStep#5"], times["conv2d.0"]) == (990, pytest.approx(110))
    assert times["volta_scudnn_128x64_relu_interior_nn_v1"] == pytest.approx(120)
    code, out, _ = seer("spans", *files)
    assert code == 0 and "overhead_pct" in out
    assert seer("spans", *reversed(files)).is_refusal("the shallowest first")


def test_tables_shorten_kernel_names_and_files_keep_them(seer, make_trace, saved, tmp_path):
    name, page = "void at::native::relu_kernel<float>(at::Tensor<float>, int)", tmp_path / "p"
    path = saved(json.dumps(make_trace()).replace("relu_kernel", name))
    for words in (f"kernels {path} --html {page}", f"spans {path} --level kernel", f"diff {path} {path} --by kernel"):
        out, *files = (seer(*words.split(), *form)[1] for form in ((), ("--json",), ("--csv",)))
        assert "relu_kernel" in out and "at::native" not in out and max(map(len, out.splitlines())) <= 160
        assert all(name in text for text in files)
    assert f'title="{html.escape(name)}"' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["[gpu.x", "schema = 9", '[gpu.my]\narchitecture = "volta"', None, ""])
@cases(__file__)
def test_an_unreadable_file_of_gpus_ends_every_command(seer, tmp_path, file, monkeypatch, words, content):
    """The file is no TOML, has another schema, lacks keys, is missing, or is a folder."""
    gpus = tmp_path / "gpus.toml"
    if content is not None:
        gpus.write_text(content) if content else gpus.mkdir()
    monkeypatch.setenv("SEER_GPUS", str(gpus))
    run = seer if "FILE" in words else seer.func  # the fixture runs `seer trace`
    assert run(*words.replace("FILE", str(file)).split()).is_refusal(str(gpus))
    assert run(words.split()[0], "--help").code == 0


def test_whole_graphs_are_rows_of_the_kernel_table(seer, tmp_path):
    """A graph of 900 µs and one of 90 µs run without recorded kernels, then a kernel of 10 µs."""
    path = nsys_export(tmp_path / "graphs.sqlite", known_answers(__file__)["whole_graphs"])
    rows = seer("kernels", path, "--json").succeeded().json
    shares = {row["kernel"]: row["time_pct"] for row in rows}
    assert shares == pytest.approx({"CUDA graph 8": 90, "CUDA graph 9": 9, "my_kernel": 1})
    out = seer("kernels", path).out
    assert "2 CUDA graphs took 0.99 ms of 1;" in out and "--cuda-graph-trace=node" in out and "CUDA graph 8" in out


@pytest.mark.parametrize("width", ["60", "80", ""])
def test_lines_of_every_command_fit_the_width(seer, make_trace, saved, monkeypatch, width):
    """COLUMNS is the width of a pipe; without it, a line has at most 160 characters."""
    monkeypatch.setenv("COLUMNS", width)
    text = json.dumps(make_trace()).replace("relu", "a_name_of_many_words_that_has_over_a_hundred_characters_" * 4)
    a, b = saved(text, "a.json"), saved(text.replace("a_name_of", "another_name_of"), "b.json")
    commands = [f"diff {a} {b} --by {by}" for by in ("kernel", "layer", "type", "operator")]
    commands += [f"kernels {a} --by {by}" for by in ("name", "layer", "label")] + [f"spans {a} --level kernel"]
    commands += [f"summary {a}", f"summary {a} --by layer", f"simulate {a}", f"whatif {a} amp", f"iteration {a}"]
    for words in commands:
        lines = seer(*words.split()).succeeded().out.splitlines()
        assert lines and max(map(len, lines)) <= int(width or 160), words
    assert "total_us" in seer("summary", a, "--by", "layer").out
