"""What-ifs as files: a simulated timeline for Perfetto, and figures as SVG."""

import json
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError
from surrogate.report.style import BAND, BLUE, INK, PAPER, blank, legend, plain_tick, svg, theme
from surrogate.trace.graph import TASK_KINDS, Timeline, path_us
from surrogate.trace.graph.tasks import MARK, STREAM
from surrogate.trace.whatif.evaluate import Answer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    for tid, resource in enumerate(graph.resources):
        where = {"pid": processes.index(resource.kind), "tid": tid}
        events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": resource.label}})
    shown = ~graph.removed & (graph.kind != MARK) & (graph.duration_us > 0)
    for task in np.flatnonzero(shown).tolist():
        tid = int(graph.resource[task])
        resource, kind = graph.resources[tid], TASK_KINDS[graph.kind[task]]
        arguments: dict[str, Any] = {"kind": kind}
        if graph.layer[task] >= 0:
            arguments["layer"] = graph.layers[graph.layer[task]]
        if resource.kind == STREAM:
            # The stream's number ends its label, such as "GPU 0 stream 7".
            arguments |= {"device": resource.device, "stream": resource.label.rpartition("stream ")[2]}
        events.append({
            "ph": "X", "cat": _CATEGORIES[kind], "name": graph.name_of(task), "pid": processes.index(resource.kind),
            "tid": tid, "ts": round(float(timeline.start_us[task]), 3),
            "dur": round(float(graph.duration_us[task]), 3), "args": arguments,
        })  # fmt: skip
    return events + _steps(timeline, processes.index("thread"))


def _steps(timeline: Timeline, pid: int) -> list[dict[str, Any]]:
    """The iterations as ranges on the thread of their marks."""
    graph, marks = timeline.graph, timeline.marks_us().tolist()
    thread = graph.resource[graph.kind == MARK][:1].tolist()
    return [
        {
            "ph": "X", "cat": "user_annotation", "name": iteration.label, "pid": pid, "tid": thread[0],
            "ts": round(start_us, 3), "dur": round(end_us - start_us, 3), "args": {},
        }
        for iteration, (start_us, end_us) in zip(graph.iterations, marks, strict=False)
    ]  # fmt: skip


NAME_WIDTH = 24
"""Letters of a what-if's name on one line."""
_FILLS = (
    (BLUE, ""), ("#d55e00", "////"), ("#009e73", "...."), ("#cc79a7", "xxxx"), ("#8a8d93", "----"), (BAND, ""),
)  # fmt: skip
"""Colour and hatch of each part of a critical path, told apart in grey, too."""


def write_figures(answers: Sequence[Answer], folder: str | Path) -> list[Path]:
    """``times.svg`` and ``critical_path.svg`` in ``folder``, which is made. Raises `InputError` where it cannot be."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder ({error.strerror}); name another") from None
    drawn = {"times.svg": times_svg(answers), "critical_path.svg": critical_path_svg(answers)}
    for name, text in drawn.items():
        write_text(folder / name, text)
    return [folder / name for name in drawn]


def times_svg(answers: Sequence[Answer]) -> str:
    """A bar per answer, ms per iteration, the baseline first; whiskers where there is an interval."""
    values = [answers[0].baseline_us if answers else 0.0, *(answer.predicted_us for answer in answers)]
    with theme():
        figure, axis = _lines(answers)
        axis.barh(range(len(values)), _ms(values), 0.7, color=[BAND, *[BLUE] * len(answers)])
        for line, answer in enumerate(answers, start=1):
            if answer.low_us is not None and answer.high_us is not None:
                axis.plot(_ms([answer.low_us, answer.high_us]), [line, line], color=INK, linewidth=1)
        axis.set_xlabel("predicted time of an iteration, ms")
        return svg(figure)


def critical_path_svg(answers: Sequence[Answer]) -> str:
    """Stacked bars: what the critical path consists of, before and after each what-if."""
    timelines = [*(answer.baseline for answer in answers[:1]), *(answer.predicted for answer in answers)]
    paths = [path_us(timeline) for timeline in timelines]
    kinds = list(dict.fromkeys(kind for path in paths for kind in path))
    with theme():
        figure, axis = _lines(answers, 0.16 * (len(kinds) + 1) // 2)
        left, handles = [0.0] * len(paths), []
        for kind, (colour, hatch) in zip(kinds, cycle(_FILLS)):
            parts = _ms(max(path.get(kind, 0.0), 0.0) for path in paths)
            look = {"color": colour, "hatch": hatch, "edgecolor": PAPER, "linewidth": 0}
            handles.append(axis.barh(range(len(paths)), parts, 0.7, left=left, **look))
            left = [a + b for a, b in zip(left, parts, strict=True)]
        axis.set_xlabel("critical path of an iteration, ms")
        legend(figure, handles, kinds)
        return svg(figure)


def _ms(times_us: Iterable[float]) -> list[float]:
    return [time_us / 1e3 for time_us in times_us]


def _lines(answers: Sequence[Answer], more_inches: float = 0.0) -> "tuple[Figure, Axes]":
    """A figure with a line for the baseline and one per answer."""
    names = ["as measured", *(answer.name for answer in answers)]
    names = ["\n".join(wrap(name, NAME_WIDTH)) for name in names]
    rows = len(names) + sum(name.count("\n") for name in names) / 2
    figure, (axis,) = blank(0.7 + 0.28 * rows + more_inches)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(False, axis="y")
    axis.xaxis.set_major_formatter(plain_tick)
    return figure, axis
