"""A simulated timeline as a file: Chrome's trace events, which Perfetto and chrome://tracing show."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.dataset.files import write_text
from surrogate.trace.graph import TASK_KINDS, Timeline
from surrogate.trace.graph.tasks import MARK, MARKS, STREAM

_CATEGORIES = {
    "host work": "cpu_op", "call": "cuda_runtime", "kernel": "kernel", "copy": "gpu_memcpy", "memset": "gpu_memset",
    "collective": "kernel",
}  # fmt: skip
_PROCESSES = {"thread": "host", "stream": "device", "channel": "network"}


def write_timeline(timeline: Timeline, path: str | Path, label: str) -> None:
    """Write `chrome_events` to ``path``, whole or not at all. Raises `InputError` where that is not possible."""
    text = json.dumps({"traceName": label, "displayTimeUnit": "ms", "traceEvents": chrome_events(timeline)})
    write_text(path, text)


def chrome_events(timeline: Timeline) -> list[dict[str, Any]]:
    """One complete event per task that takes time, one process each for host, device and network; µs from time 0."""
    graph = timeline.graph
    processes = list(_PROCESSES)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": _PROCESSES[kind]}}
        for pid, kind in enumerate(processes)
    ]
    for tid, one in enumerate(graph.resources):
        where = {"pid": processes.index(one.kind), "tid": tid}
        events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": one.label}})
    shown = ~graph.removed & (graph.kind != MARK) & (graph.duration_us > 0)
    for task in np.flatnonzero(shown).tolist():
        resource = int(graph.resource[task])
        one, kind = graph.resources[resource], TASK_KINDS[graph.kind[task]]
        arguments: dict[str, Any] = {"kind": kind}
        if graph.layer[task] >= 0:
            arguments["layer"] = graph.layers[graph.layer[task]]
        if one.kind == STREAM:
            arguments |= {"device": one.device, "stream": tid_of(one.label)}
        events.append({
            "ph": "X", "cat": _CATEGORIES[kind], "name": graph.name_of(task), "pid": processes.index(one.kind),
            "tid": resource, "ts": round(float(timeline.start_us[task]), 3),
            "dur": round(float(graph.duration_us[task]), 3), "args": arguments,
        })  # fmt: skip
    return events + _steps(timeline, processes.index("thread"))


def _steps(timeline: Timeline, pid: int) -> list[dict[str, Any]]:
    """The iterations as ranges on the thread of their marks."""
    graph, found, begin = timeline.graph, [], {}
    for task in np.flatnonzero(graph.kind == MARK).tolist():
        place, time_us = int(graph.iteration[task]), float(timeline.start_us[task])
        if graph.name_of(task) == MARKS[0]:
            begin[place] = time_us
        elif place in begin:
            found.append({
                "ph": "X", "cat": "user_annotation", "name": graph.iterations[place].label, "pid": pid,
                "tid": int(graph.resource[task]), "ts": round(begin[place], 3), "dur": round(time_us - begin[place], 3),
                "args": {},
            })  # fmt: skip
    return found


def tid_of(label: str) -> str:
    """The stream's number in a resource's label, such as ``GPU 0 stream 7``."""
    return label.rpartition("stream ")[2]
