"""``seer trace simulate`` and ``whatif`` through the entry point: output, files, errors."""

import csv
import io
import json
import re

import pytest

from surrogate.trace import read_trace
from surrogate.trace.graph import graph_of, simulate
from tests.known import cases


def test_simulate_command_reports_iterations_and_coverage(seer, file):
    answer = seer("simulate", file, "--json").succeeded().json
    assert [row["index"] for row in answer["iterations"]] == [0, 1]
    for row in answer["iterations"]:
        assert row["measured_us"] == 990 and row["simulated_us"] == pytest.approx(990)
    assert answer["coverage"]["device_tasks"] == 12 and answer["coverage"]["edges"]["launch"] == 12
    code, out, _ = seer("simulate", file, "--iteration", "1")
    assert code == 0 and "critical path" in out and "follow a launch" in out


def test_whatif_command_prints_json_csv_and_tables(seer, file):
    rows = seer("whatif", file, "amp", "faster-kernels=4", "--together", "--json").succeeded().json
    assert [row["name"] for row in rows] == ["amp", "faster-kernels=4", "amp + faster-kernels=4"]
    for row in rows:
        assert row["speedup"] == pytest.approx(row["baseline_us"] / row["predicted_us"])
        assert row["device_us_after"] < row["device_us_before"]
        assert sum(row["critical_path_after"].values()) == pytest.approx(row["predicted_us"])
        assert {layer["type"] for layer in row["layers"]} >= {"conv2d", "relu"}
    code, out, _ = seer("whatif", file, "amp", "--csv")
    assert code == 0 and set(next(csv.DictReader(io.StringIO(out)))) >= {"name", "baseline_us", "predicted_us"}
    out = seer("whatif", file, "gpu", "--gpu", "h100-sxm").succeeded().out
    assert all(text in out for text in ("throughput", "host of the trace", "interval_device_us"))
    out = seer("whatif", file, "faster-kernels=4").succeeded().out
    assert "interval_us" not in out and "device_us" in out and "no interval" in out
    assert "</html>" in seer("summary", file, "--html", "-")[1]


def test_refused_what_if_is_a_row_with_its_reason(seer, file):
    """A refused row keeps its place and has no numbers; the other what-ifs are answered."""
    names = ("faster-kernels=4", "faster-network", "faster-host")
    rows = seer("whatif", file, *names, "--together", "--json").succeeded().json
    assert [row["name"] for row in rows] == [*names, "faster-kernels=4 + faster-host"]
    assert "no collective" in rows[1]["refused"] and rows[1]["predicted_us"] is None
    assert all(row["refused"] is None and row["predicted_us"] for row in (rows[0], *rows[2:]))
    # Two what-ifs of one kind exclude each other.
    for pair in (("gpu=b200", "gpu=h200-sxm"), ("faster-host=2", "faster-host=4")):
        *single, both = seer("whatif", file, *pair, "--together", "--json").succeeded().json
        assert all(row["predicted_us"] for row in single) and "exclude each other" in both["refused"]
    code, out, _ = seer("whatif", file, *names)
    assert code == 0 and "faster-network: refused" in out and "Mean of 2 iterations" in out
    assert "→" in out and "– → –" not in out
    assert "faster-kernels=4, faster-host: the speedup is an assumption" in out
    err = seer("whatif", file, "amp", "--own-gpu", "t4").err
    assert "recorded on v100" in err and "whatif FILE gpu=t4" in err
    assert "recorded on" not in seer("whatif", file, "amp").err


@cases(__file__)
def test_unknown_what_if_ends_the_command(seer, file, text, remedy):
    """One what-if that can be answered stands before it. The table would hide the mistake."""
    code, out, err = seer("whatif", file, "amp", text)
    assert code == 2 and not out and err.count("\n") == 1 and remedy in err


@cases(__file__)
def test_predictions_give_an_interval_to_several_what_ifs(seer, file, texts, has_interval):
    """The order does not matter. A published error of one what-if has no meaning for several."""
    for order in (texts, texts[::-1]):
        *_, both = seer("whatif", file, *order, "--together", "--json").succeeded().json
        assert (both["device_low_us"] is not None) == has_interval == (both["interval_of"] is not None)
        assert not has_interval or both["device_low_us"] < both["device_us_after"] < both["device_high_us"]


def test_numbers_have_no_exponents(seer, file):
    code, out, _ = seer("whatif", file, "faster-kernels=1e6", "faster-host=1e-5", "--together")
    assert code == 0 and "faster-kernels=1000000 + faster-host=0.00001" in out and "1,000,000" in out
    assert not re.search(r"\de[+-]?\d", out)


def test_commands_count_the_same_iterations(seer, make_trace, saved):
    """A warm-up of ten times a step's time is left out of every command, unless it is chosen."""
    trace = make_trace(steps=4)
    first = next(event for event in trace["traceEvents"] if event["name"] == "ProfilerStep#5")
    first |= {"ts": first["ts"] - 9000, "dur": first["dur"] + 9000}
    path = saved(trace)
    for command in ("simulate", "iteration"):
        rows = seer(command, path, "--json").succeeded().json["iterations"]
        assert [row["index"] for row in rows] == [1, 2, 3]
        assert [row["index"] for row in seer(command, path, "--json", "--iteration", "0").json["iterations"]] == [0]
    (answer,) = seer("whatif", path, "faster-kernels", "--json").succeeded().json
    facts = seer("summary", path, "--json").succeeded().json
    assert facts["summary"]["iterations"] == 3
    assert facts["summary"]["samples_per_s"] == pytest.approx(answer["samples_per_s_before"])


def test_saved_timeline_can_be_read_back(seer, file, tmp_path):
    timeline = tmp_path / "changed.json"
    code, out, _ = seer("whatif", file, "faster-kernels=4", "--timeline", timeline, "--json")
    assert code == 0
    again = graph_of(read_trace(timeline))
    total_us = simulate(again).total_us
    assert total_us / 2 == pytest.approx(json.loads(out)[0]["predicted_us"], rel=1e-3)
    assert again.iterations[0].time_us <= 991
