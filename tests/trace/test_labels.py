"""Labels: rows by hand from an invented step, and the same labels in every command."""

import json

import pytest

from surrogate.trace import kernel_table, label_table, trace_diff, trace_spans
from surrogate.trace.page import trace_page
from surrogate.trace.profiling import profile
from tests.known import known_answers
from tests.trace.events import call, device, event


def step(start: float, number: int) -> list[dict]:
    """Return a step of 300 µs: 25 µs of the device in `forward`, 5 of them in `inner`, 30 in `backward`, 10 in none.

    Autograd launches the 30 µs on a thread of its own. The wrapper ``Optimizer.step`` is a layer and no label.
    """

    answers = known_answers(__file__)
    events = [event("user_annotation", name.format(number), *times) for name, *times in answers["labels"]]
    for place, (name, begin, runs, length, thread) in enumerate(answers["work"], 10 * number):
        autograd = {"Sequence number": 1, "Fwd thread id": 1} if thread == 2 else {}
        events.append(event("cpu_op", name, begin, 20, thread, **autograd))
        events.append(call("cudaLaunchKernel", begin + 5, 5, place, thread))
        events.append(device(f"{name} kernel", runs, length, place))
    return [each | {"ts": start + each["ts"]} for each in events]


@pytest.fixture
def labelled(read):
    return read({"traceEvents": [*step(0, 1), *step(300, 2)]})


def test_rows_equal_sums_by_hand(labelled):
    """The two steps have equal sums. Idle time is the label's length without the kernels that run meanwhile."""
    rows = {row.pop("label"): tuple(row.values()) for row in label_table(labelled)}
    assert rows == {name: pytest.approx(tuple(row)) for name, row in known_answers(__file__)["sums"].items()}


def test_a_label_inside_itself_counts_once(read):
    events = [event("user_annotation", "block", 0, 100), event("user_annotation", "block", 10, 50)]
    events += [event("cpu_op", "aten::mm", 20, 20), call("cudaLaunchKernel", 25, 5, 1), device("k", 30, 40, 1)]
    (row,) = label_table(read({"traceEvents": events}))
    assert (row["runs"], row["host_us"], row["device_us"], row["idle_us"]) == (2, 100, 40, 60)


def test_kernels_and_changes_by_innermost_label_sum_to_all_device_time(labelled):
    times = {"## backward ##": 60, "## forward # ##": 40, "(outside labels)": 20, "inner": 10}
    assert {row["label"]: row["total_us"] for row in kernel_table(labelled, "label")} == times
    found = trace_diff(labelled, labelled, "label")
    assert {row["label"]: row["before_us"] for row in found.rows} == {name: us / 2 for name, us in times.items()}


def test_labels_are_spans_around_their_layers(labelled):
    spans = trace_spans(labelled)
    rows = {spans.name[row]: row for row in range(len(spans))}
    above = {name: spans.name[spans.parent[row]] for name, row in rows.items() if spans.parent[row] >= 0}
    assert above["## forward 2 ##"] == above["## backward ##"] == above["Optimizer.step#SGD.step.0"] == "ProfilerStep#2"
    assert above["inner"] == above["conv2d.0"] == "## forward 2 ##" and above["relu.0"] == "inner"
    assert spans.tags[rows["inner"]] == {"label": True} and "label" not in spans.tags[rows["relu.0"]]


def test_commands_and_the_page_have_labels(seer, labelled):
    labels = seer("summary", labelled.source, "--json").succeeded().json["labels"]
    assert labels == seer("summary", labelled.source, "--by", "label", "--json").json == list(label_table(labelled))
    out = seer("spans", labelled.source).out
    assert "\n    inner" in out and "\n      relu.0" in out
    page = trace_page(profile(labelled))
    assert 'id="labels"' in page and "## forward # ##" in page
    assert json.loads(seer("kernels", labelled.source, "--by", "label", "--json").out)[0]["label"] == "## backward ##"
