"""Waits of the host for work that was launched before the recording, and edges that contradict the measured times."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from surrogate.trace.events.read import read_trace
from surrogate.trace.graph import graph_of, path_us, simulate
from surrogate.trace.whatif import what_ifs
from surrogate.trace.whatif.answers import device_us
from tests.known import cases
from tests.trace.events import call, device, event, nsys_export

COLUMNS = "start end deviceId streamId correlationId globalPid"
PROCESS = 42 << 24


def steps(wait: str, copy: str = "", old: bool = True) -> list[dict[str, Any]]:
    """Return two steps of 23,000 and 10,000 µs. The first one begins with a wait of 13,000 µs for an old kernel.

    Each step launches a kernel of 9,970 µs, waits for it, and works for 20 µs. The old kernel runs from 0 to 14,000 µs.
    With a copy, it ends 20 µs earlier, and the copy runs from 13,985 to 13,995 µs.
    """
    events = [device("old", 0, 13980 if copy else 14000, 99)] * old + [call(wait, 1000, 13000, 1)]
    events += [device(copy, 13985, 10, 1, category="gpu_memcpy")] * bool(copy)
    for number, start in ((2, 14000), (4, 24000)):
        events += [
            event("user_annotation", f"ProfilerStep#{number}", (1000, 24000)[number == 4], (23000, 10000)[number == 4]),
            event("cpu_op", "aten::mm", start, 20),
            call("cudaLaunchKernel", start, 10, number),
            device("k", start + 10, 9970, number),
            call("cudaDeviceSynchronize", start + 20, 9960, number + 1),
        ]
    return events


def as_nsys_export(path, kineto: list[dict[str, Any]]):
    """Write the events as Nsight Systems exports them: the steps are NVTX ranges, and operators are left out."""
    names: dict[str, int] = {}
    rows: dict[str, list[tuple[Any, ...]]] = {"RUNTIME": [], "KERNEL": [], "MEMCPY": [], "NVTX_EVENTS": []}
    for each in kineto:
        start, end = (round(1e3 * time) for time in (each["ts"], each["ts"] + each["dur"]))
        arguments, name = each["args"], names.setdefault(each["name"], len(names))
        place = (start, end, 0, 7, arguments.get("correlation"), PROCESS)
        if each["cat"] == "user_annotation":
            rows["NVTX_EVENTS"].append((start, end, 59, PROCESS | 7, each["name"]))
        elif each["cat"] == "cuda_runtime":
            rows["RUNTIME"].append((start, end, PROCESS | 7, arguments["correlation"], name))
        elif each["cat"] != "cpu_op":
            rows["MEMCPY" if "Memcpy" in each["name"] else "KERNEL"].append((*place, name, 2))
    columns = {"RUNTIME": "start end globalTid correlationId nameId", "KERNEL": f"{COLUMNS} demangledName gridX"}
    columns |= {"MEMCPY": f"{COLUMNS} bytes copyKind", "NVTX_EVENTS": "start end eventType globalTid text"}
    tables = {
        table if table == "NVTX_EVENTS" else f"CUPTI_ACTIVITY_KIND_{table}": (columns[table], values)
        for table, values in rows.items()
    }
    return nsys_export(path, {"StringIds": ("id value", [(i, name) for name, i in names.items()]), **tables})


@pytest.mark.parametrize("form", ["kineto", "nsys"])
@cases(__file__)
def test_wait_for_earlier_work_shrinks_with_it(form, wait, copy, late_us, saved, tmp_path):
    """At a tenth of the kernels' times, the old kernel ends at 1,400 µs, and each step takes 10 + 997 + 20 µs more.

    With a copy, the old kernel ends at 1,398 µs, and 5 + 10 + 5 µs follow."""
    events = steps(wait, copy)
    path = saved({"traceEvents": events}) if form == "kineto" else as_nsys_export(tmp_path / "x.sqlite", events)
    (answer,) = what_ifs(read_trace(path), "faster-kernels=10")
    assert answer.baseline_us == pytest.approx(33_000 / 2, rel=1e-3)
    assert answer.predicted_us == pytest.approx((400 + late_us + 2 * (10 + 997 + 20)) / 2, abs=0.1)
    # The device's time has the kernels of the two steps, and half of the copy.
    assert answer.to_dict()["device_us_before"] == pytest.approx(9970 + 5 * bool(copy))


def test_wait_for_work_that_the_trace_lacks_is_refused(read, refused):
    with refused("waits 13 of 33 ms for work of the device that the trace lacks", "synchronize()"):
        what_ifs(read({"traceEvents": steps("cudaDeviceSynchronize", old=False)}), "faster-kernels=10")


def test_left_out_iterations_keep_their_work_for_waits(read):
    """The second step waits for the kernel of the first step, which runs from 10 to 10,010 µs.

    At half of its time the wait ends at 5,010 µs, and 90 µs follow. The step begins at 100 µs."""
    events = []
    for number, start in ((1, 0), (2, 100)):
        name = f"ProfilerStep#{number}"
        events += [event("user_annotation", name, start, 100 if number == 1 else 10_000)]
        events += [call("cudaLaunchKernel", start, 10, number), device("k", 10_000 * number - 9_990, 10, number)]
    events[2]["dur"] = 10_000
    events += [call("cudaEventSynchronize", 110, 9900, 9)]
    trace = read({"traceEvents": events})
    # Kernels without shapes follow the bandwidth of copies.
    texts = {"faster-kernels=2": 0.5, "gpu=a100-sxm4-40gb": 0.92 * 900 / (0.9 * 1555)}
    answers = what_ifs(trace, list(texts), own_gpu="v100-sxm2-16gb", iteration=1)
    for answer, factor in zip(answers, texts.values(), strict=True):
        assert (answer.baseline_us, answer.predicted_us) == (10_000, pytest.approx(10_000 * factor))


@pytest.mark.parametrize("lost", [0, 1])
def test_figures_per_step_count_the_work_of_complete_steps(read, lost):
    """Steps take 1,000 µs on the host and 1,400 on the device, which first ends 700 µs of earlier work.

    The kernel of the last step is not in the trace if ``lost`` is 1; then two steps of three count."""
    events = [device("old", 0, 700, 99), device("old copy", 300, 400, 98, stream=8)]
    for number in range(3):
        start = 1000 * number
        events += [
            event("user_annotation", f"ProfilerStep#{number}", start, 1000),
            call("cudaLaunchKernel", start + 10, 10, number),
            *[device("k", 700 + 1400 * number, 1400, number)][: 3 - number - lost],
        ]
    graph = graph_of(read({"traceEvents": events}))
    timeline = simulate(graph)
    assert len(graph.iterations) == 3 - lost
    assert (device_us(timeline), timeline.per_iteration_us) == (1400, pytest.approx(1400))
    assert sum(path_us(timeline).values()) == pytest.approx(1400)


calls = st.tuples(
    st.sampled_from(["cudaLaunchKernel", "cudaDeviceSynchronize", "cudaStreamWaitEvent", "cudaMemcpy", "cudaFree"]),
    *(st.integers(0, 60), st.integers(0, 40), st.integers(0, 8), st.integers(1, 2)),
)
kinds = st.sampled_from(["k", "Memcpy DtoH (Device -> Pageable)"])
activities = st.tuples(kinds, st.integers(0, 90), st.integers(0, 40), st.integers(0, 8), st.integers(7, 8))


@given(st.lists(calls, max_size=12), st.lists(activities, max_size=12), st.integers(0, 1))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_trace_has_an_order(read, host, on_device, steps):
    """Calls overlap and activities begin before their calls. Times are tens of µs."""
    events = [event("user_annotation", f"ProfilerStep#{i}", 200 * i, 200) for i in range(2 * steps)]
    events += [event("cpu_op", "op", 0, 500)]
    events += [call(name, 10 * start, 10 * length, number, thread) for name, start, length, number, thread in host]
    for name, start, length, number, stream in on_device:
        category = "gpu_memcpy" if "Memcpy" in name else "kernel"
        events.append(device(name, 10 * start, 10 * length, number, stream, category))
    graph = graph_of(read({"traceEvents": events}))
    timeline = simulate(graph)
    assert (graph.src < graph.dst).all() and np.isfinite(timeline.end_us).all()
    assert timeline.per_iteration_us >= 0 and device_us(timeline) >= 0
