"""Comparison of two traces of one program: an invented pair, and iterations of a real training run."""

import json

import pytest

from surrogate.trace.diff import LEVELS, trace_diff
from surrogate.trace.profiling import profile
from surrogate.trace.tables import summary
from tests.trace.events import built

BACKWARD = "cudnn_wgrad_kernel"
WITHOUT_LABELS = [level for level in LEVELS if level != "label"]


def on_another_gpu(trace: dict) -> dict:
    """Rename the weight-gradient kernel, shorten it from 200 to 50 µs, drop relu and add a memset."""
    for event in [*trace["traceEvents"]]:
        if event["name"] == BACKWARD:
            event |= {"name": "Cijk_Ailk_Bljk", "dur": 50}
        elif event["name"] == "relu_kernel":
            memset = event | {"cat": "gpu_memset", "name": "Memset (Device)", "dur": 5}
            trace["traceEvents"].append(memset | {"args": {"device": 0, "stream": 7, "correlation": -1}})
            trace["traceEvents"].remove(event)
    return trace


@pytest.fixture
def pair(make_trace, read):
    """Return two steps of 400 µs device time, and three steps of 235 µs on another GPU."""
    return read(make_trace(steps=2), "a.json"), read(on_another_gpu(make_trace(steps=3)), "b.json")


def rows_of(found, *columns):
    key = found.by
    return {row[key]: tuple(row[column] for column in columns) for row in found.rows}


@pytest.mark.parametrize("by", WITHOUT_LABELS)
def test_diff_of_a_trace_with_itself_shows_no_change(pair, by):
    found = trace_diff(pair[0], pair[0], by)
    assert found.by == by and found.matched_pct == (100, 100)
    assert all(row["change_us"] == 0 and row["ratio"] == 1 for row in found.rows)
    assert {row["change_us"] for row in found.totals} == {0}


@pytest.mark.parametrize("by", WITHOUT_LABELS)
def test_changes_sum_to_the_change_of_device_time(pair, by):
    """The traces differ in their number of steps, so every time is per iteration."""
    found = trace_diff(pair[0], pair[1], by)
    totals = {row["total"]: (row["before_us"], row["after_us"]) for row in found.totals}
    assert totals["device"] == totals["device busy"] == (400, 235)
    assert totals["iteration"] == (990, 990) and totals["device idle"] == (590, 755)
    assert sum(row["change_us"] for row in found.rows) == pytest.approx(-165)
    assert sorted(found.rows, key=lambda row: -abs(row["change_us"])) == list(found.rows)


def test_blocking_copies_count_as_waits_of_the_host(make_trace, read):
    """The call of the copy lasts until the copy's end in each of two steps."""
    trace = make_trace(steps=2)
    calls = [record for record in trace["traceEvents"] if record["name"] == "cudaMemcpyAsync"]
    for record in calls:
        record |= {"name": "cudaMemcpy", "dur": 80}
    part = read(trace)
    totals = {row["total"]: row["before_us"] for row in trace_diff(part, part).totals}
    assert len(calls) == 2 and totals["host waiting"] == summary(profile(part))["wait_ms"] * 1e3 / 2 == 80


def test_iterations_without_kernels_in_the_file_are_left_out(make_trace, read):
    """The recording begins after the kernels of step 0, so steps 1 and 2 of 400 µs device time count."""
    trace = make_trace(steps=3)
    start = sorted(event["ts"] for event in trace["traceEvents"] if event["name"].startswith("ProfilerStep"))[1]
    lost = [event for event in trace["traceEvents"] if event["cat"] in ("kernel", "gpu_memcpy") and event["ts"] < start]
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event not in lost]
    found = trace_diff(read(trace), read(trace))
    assert lost and {row["total"]: row["before_us"] for row in found.totals}["device"] == 400


def test_diff_by_label_refuses_traces_without_labels(pair, refused):
    with refused("the program named no range"):
        trace_diff(pair[0], pair[1], "label")


def test_operator_diff_equals_hand_computed_rows(pair):
    found = rows_of(trace_diff(pair[0], pair[1], "operator"), "before_us", "after_us", "ratio", "calls_after", "match")
    assert found["ConvolutionBackward0"] == (200, 50, 0.25, 1, "name, shape")
    assert found["aten::relu"] == (20, 0, 0, 0, "only A")
    assert found["Memset (Device)"] == (0, 5, None, 1, "only B")


def test_renamed_kernels_match_by_operator(pair):
    found = rows_of(trace_diff(pair[0], pair[1], "kernel"), "before_us", "after_us", "match")
    assert found[f"{BACKWARD} → Cijk_Ailk_Bljk"] == (200, 50, "operator")
    assert found["add_kernel"] == (10, 10, "name")


def test_other_shapes_and_renamed_operators_match_by_order(make_trace, read):
    """The batch doubles, so that the shapes differ and only the order of the operators matches."""
    text = json.dumps(make_trace()).replace("[8, 3, 32, 32]", "[16, 3, 32, 32]").replace("::relu", "::native_relu")
    other = read(json.loads(text.replace("ConvolutionBackward0", "MiopenConvolutionBackward1")), "b.json")
    found = rows_of(trace_diff(read(make_trace()), other, "operator"), "match")
    assert found["aten::conv2d"] == ("order",) and found["aten::relu → aten::native_relu"] == ("shape",)
    assert found["ConvolutionBackward0 → MiopenConvolutionBackward1"] == ("shape",)


def test_diff_chooses_the_level_that_matches_most(pair, make_trace, read):
    """Operators match best; a trace without operators is matched by kernels and, last, by kernel family."""
    assert trace_diff(pair[0], pair[1]).by == "operator"
    text = json.dumps({"traceEvents": [event for event in make_trace()["traceEvents"] if event["cat"] != "cpu_op"]})
    found = trace_diff(pair[0], read(json.loads(text), "kernels.json"))
    assert found.by == "kernel" and found.matched_pct == (100, 100)
    a, b = (read(json.loads(text.replace(BACKWARD, name)), name) for name in ("volta_sgemm_32x128_nt", "Cijk_Ailk"))
    assert rows_of(trace_diff(a, b, "kernel"), "match")["volta_sgemm_32x128_nt → Cijk_Ailk"] == ("family",)


def test_diff_notes_different_programs(resnet, real, pair):
    """VGG-13 and ResNet-50 have kernels of the same families but few names in common."""
    found = trace_diff(resnet, real("vgg13_b128_training_h100.json.gz"))
    assert "different programs" in found.notes[0] and min(found.matched_pct) > 80
    assert max(found.stages["name"]) < 20
    assert found.matched_pct == pytest.approx([sum(both) for both in zip(*found.stages.values(), strict=True)])
    assert "different programs" not in trace_diff(*pair).notes[0]


def test_diff_notes_iterations_of_different_sizes(pair, make_trace, read):
    """One step of B contains the work of two steps of A."""
    trace = make_trace(steps=2)
    first, second = (event for event in trace["traceEvents"] if event["name"].startswith("ProfilerStep"))
    trace["traceEvents"].remove(second)
    first["dur"] = 1990
    notes = trace_diff(pair[0], read(trace, "long.json")).notes
    assert len(notes) == 3 and "6 times per iteration in A, 12 in B" in notes[1]
    assert "no recorded event: 400 → 810 µs per iteration" in notes[2]


def test_diff_compares_two_iterations_of_one_run(resnet):
    """The totals are the sums of the activities of steps 1 and 3 only."""
    found = trace_diff(resnet, resnet, "operator", ((1,), (3,)))
    totals = {row["total"]: (row["before_us"], row["after_us"]) for row in found.totals}
    assert totals["device"] == pytest.approx((100_606, 100_650)) and totals["iteration"] == (173_992, 181_259)
    assert found.matched_pct == (100, 100)
    assert sum(row["change_us"] for row in found.rows) == pytest.approx(44)


def test_diff_totals_equal_the_summary(resnet):
    totals = {row["total"]: row["before_us"] for row in trace_diff(resnet, resnet, "kernel").totals}
    facts = summary(profile(resnet))
    assert totals["iteration"] == pytest.approx(1e3 * facts["iteration_ms"]) == 176_273
    assert totals["device idle"] == pytest.approx(1e3 * facts["idle_ms"] / facts["iterations"])


def test_diff_command_prints_tables_json_and_csv(seer, make_trace, saved):
    a, b = saved(make_trace(steps=2), "a.json"), saved(on_another_gpu(make_trace(steps=3)), "b.json")
    words = "diff", a, b, "--by", "operator"
    code, out, _ = seer(*words, "--top", 1)
    lines = [line.split() for line in out.splitlines() if line]
    assert code == 0 and "matched by operator" in out.splitlines()[0]
    assert lines[-1][:4] == ["ConvolutionBackward0", "200", "50", "-150"] and "-165" in lines[4]
    answer = seer(*words, "--json").json
    assert len(answer["rows"]) == len(seer(*words, "--csv")[1].splitlines()) - 1 == 7
    code, out, _ = seer(*words, "--iteration", 0, "--iteration-b", 2, "--json")
    assert code == 0 and json.loads(out)["totals"] == answer["totals"]


def test_diff_command_refuses_wrong_input(seer, file, make_trace, saved):
    other = make_trace()
    for event in other["traceEvents"]:
        event["name"] = event["name"][::-1]
    host = [event for event in other["traceEvents"] if event["cat"] == "cpu_op"]
    unlike, no_device = saved(other, "other.json"), saved({"traceEvents": host}, "host.json")
    for words in ([unlike], [no_device], [file, "--iteration", 9]):
        assert seer("diff", file, *words).is_refusal()
    assert "0 % of A's device time" in seer("diff", file, unlike)[2]


def test_diff_of_a_host_that_runs_ahead_compares_steps_of_the_device(read):
    """Steps take 1,400 µs on the device; the host of B does not wait for it, and its steps take 100 µs."""
    sides = []
    for host_us in (1400, 100):
        events = []
        for step in range(4):
            events += [["user_annotation", f"ProfilerStep#{step}", host_us * step, host_us]]
            events += [["call", "cudaLaunchKernel", host_us * step + 10, 10, step]]
            events += [["device", "k", 1400 * step + 30, 1300, step]]
        sides.append(read({"traceEvents": built(events)}))
    totals = {row["total"]: (row["before_us"], row["after_us"]) for row in trace_diff(*sides).totals}
    assert totals["iteration"] == pytest.approx((1400, 1400)) and totals["device busy"] == pytest.approx((1300, 1300))
