"""Causes of idle time: known answers by evidence, and pieces that cover the idle time exactly."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from surrogate.trace import events, idle_table, profile
from surrogate.trace.idle import idle_pieces
from surrogate.trace.tables import idle_of_step, step_table, summary
from tests.known import cases, known_answers
from tests.trace.events import built, call, device, event

STEP, *KERNELS = built(known_answers(__file__)["step"])
KINDS = {"memory.py(1): collect": events.COLLECTION, "file.py(1): read": events.SYSTEM_CALL}
KINDS |= {"dataloader.py(9): fetch": events.LOADER}


def _profile(read, recorded):
    """Return the profile of the events, with the kinds of frames by name."""
    trace = read({"schemaVersion": 1, "traceEvents": recorded})
    kind = [KINDS.get(trace.name_of(trace.frames, row), events.FRAME) for row in range(len(trace.frames))]
    return profile(replace(trace, frames=replace(trace.frames, kind=np.array(kind, np.int64))))


@cases(__file__)
def test_the_strongest_evidence_names_the_cause(read, recorded, rows):
    """The device is idle from 100 to 900 µs, and its next launch call begins at 890 µs."""
    added = [event(*each) | {"args": {"correlation": 90 + n}} for n, each in enumerate(recorded)]
    profiled = _profile(read, [STEP, *KERNELS, *added])
    table = idle_table(profiled)
    found = [[row["cause"], row["name"], round(row["time_us"], 3)] for row in table]
    assert sorted(found) == sorted([*rows, ["launched", "launch latency", 20.0]])  # 10 µs before each kernel
    assert sum(row["time_us"] for row in table) == pytest.approx(summary(profiled)["idle_ms"] * 1e3)
    assert sum(row["share_pct"] for row in table) == pytest.approx(100)


spans = st.lists(st.tuples(st.integers(0, 190), st.integers(0, 60), st.integers(1, 3)), max_size=8)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans, spans, spans, spans)
def test_pieces_cover_the_idle_time_once(read, kernels, operators, calls, frames):
    """Each µs of the steps in which no kernel runs belongs to one piece, on traces of random events."""
    recorded = [event("user_annotation", f"ProfilerStep#{n}", 100 * n, 90) for n in range(2)]
    busy, inside = np.zeros(300, bool), np.zeros(300, bool)
    for number, (start, length, thread) in enumerate(kernels):
        if length % 5:  # the others have no launch call in the recording
            recorded.append(call("cudaLaunchKernel", max(start - 7 * thread, 0), 2, number, thread))
        recorded.append(device("kernel", start, length, number, stream=thread))
    names = {"cpu_op": "aten::mm", "cuda_runtime": "cudaDeviceSynchronize", "python_function": "a.py(1): f"}
    for (category, name), added in zip(names.items(), (operators, calls, frames), strict=True):
        recorded += [event(category, name, start, length, thread, correlation=-1) for start, length, thread in added]
    profiled = _profile(read, recorded)
    activities = profiled.trace.activities  # a reader shortens kernels that overlap on a stream or outlast a wait
    for start, end in zip(activities.start_ns // 1000, activities.end_ns // 1000, strict=True):
        busy[start:end] = True
    for step in profiled.layers.iterations:  # a step without work does not count
        inside[step.start_ns // 1000 : step.end_ns // 1000] = True
    pieces = idle_pieces(profiled)
    start_ns, end_ns = pieces[["start_ns", "end_ns"]].to_numpy().T
    assert (start_ns < end_ns).all() and (start_ns[1:] >= end_ns[:-1]).all()
    covered = np.zeros(300, bool)
    for start, end in zip(start_ns // 1000, end_ns // 1000, strict=True):
        covered[start:end] = True
    assert (covered == (inside & ~busy)).all()
    assert pieces["time_us"].sum() == pytest.approx(sum(map(idle_of_step, step_table(profiled))), abs=1e-6)


def test_a_range_around_system_calls_is_one_piece(read):
    """The range lasts from 100 to 890 µs, in the only idle gap; its two reads do not divide it."""
    reads = [event("python_function", "file.py(1): read", start, 50) for start in (200, 400)]
    rows = idle_table(_profile(read, [STEP, *KERNELS, event("user_annotation", "IO 1", 100, 790), *reads])).rows
    found = [(row["name"], row["time_us"], row["pieces"]) for row in rows]
    assert found == [("IO #", 790, 1), ("launch latency", 20, 2)]


def test_the_main_thread_is_asked_where_the_launching_thread_does_nothing(read):
    """Thread 2 launches at 890 µs and works from 500 to 600 µs; the main thread reads from 300 to 700 µs."""
    moved = [record | {"tid": 2} if record.get("ts") == 890 else record for record in KERNELS]
    added = [event("cpu_op", "aten::mm", 500, 100, 2), event("user_annotation", "load 7", 300, 400)]
    rows = idle_table(_profile(read, [STEP, *moved, *added])).rows
    times = {row["name"]: row["time_us"] for row in rows}
    assert times == {"load #": 300, "mm": 100, "no recorded event": 390, "launch latency": 20}


@cases(__file__)
def test_real_causes_of_idle_time(real, name, cause, label):
    """ResNet-50 waits for its data, and power iteration for its file."""
    table = idle_table(real(name))
    longest = table.rows[0]
    assert (longest["cause"], longest["name"].startswith(label)) == (cause, True) and longest["share_pct"] > 70
    assert sum(row["time_us"] for row in table) == pytest.approx(summary(real(name))["idle_ms"] * 1e3)


def test_the_summary_and_the_page_show_the_causes(seer, tmp_path):
    """The display has eight causes and one row with the sum of the others; JSON has all."""
    page = tmp_path / "page.html"
    answer = seer("summary", "vgg13_h100", "--html", page, "--json").succeeded().json
    rows, idle_us = answer["idle"], 1e3 * answer["summary"]["idle_ms"]
    assert len(rows) > 9 and sum(row["time_us"] for row in rows) == pytest.approx(idle_us)
    shown = seer("summary", "vgg13_h100")[1].partition("Idle time of the device")[2].partition("\n\n")[0]
    assert len(shown.splitlines()) == 2 + 9 and f"others    {len(rows) - 8} cause" in shown
    assert "Why the device is idle" in page.read_text(encoding="utf-8") and rows[0]["name"] in shown
