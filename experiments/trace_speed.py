"""How long do large traces take, and how much memory, beside JSON parsers alone and HolisticTraceAnalysis?

The VGG-13 step that ships (shapes, Python stacks and memory recorded) is repeated until the file has the size, each
time later and under new ids, written as Kineto writes. Every reader runs in a process of its own; CPU time is the
user's and the system's, memory the largest resident set, both with the start of Python.
"""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from experiments.experiment import Effort, Experiment, Outcome, run_script
from experiments.sources import Sources

SIZES_MB = (100, 350, 1000)
_IDS = {
    "External id", "external id", "correlation", "Ev Idx", "Python id", "Python parent id", "Python module id",
    "Sequence number",
}  # fmt: skip
"""Arguments of an event that count events, and so differ from step to step."""
_BREAK_US = 1000
"""From the end of a step to the next one."""
_WITH = "import {0}, sys; path = sys.argv[1]; "
READERS: dict[str, tuple[str, Sequence[str]]] = {
    "seer trace summary": ("surrogate", ("-m", "surrogate", "trace", "summary")),
    "orjson.loads alone": ("orjson", ("-c", _WITH + "{0}.loads(open(path, 'rb').read())")),
    "json.loads alone": ("json", ("-c", _WITH + "{0}.loads(open(path, 'rb').read())")),
    "ijson alone, event by event": (
        "ijson", ("-c", _WITH + "sum(1 for _ in {0}.items(open(path, 'rb'), 'traceEvents.item', use_float=True))")
    ),
    "HolisticTraceAnalysis, temporal breakdown": (
        "hta", ("-c", _WITH + "from hta.trace_analysis import TraceAnalysis as Trace; "
                "Trace(trace_files={{0: path}}).get_temporal_breakdown(visualize=False)")
    ),
}  # fmt: skip
"""What reads a trace → the package that it needs, and the words for Python, to which the path is added."""


def run(sources: Sources, effort: Effort) -> Outcome:
    """Every reader on every size; a package that is not installed is said, and so is a reader that fails."""
    records = []
    with TemporaryDirectory() as folder:
        for size_mb in SIZES_MB[: 1 if effort.quick else None]:
            path = Path(folder) / f"{size_mb}.json"
            events = write_large_trace(sources.path("trace_vgg13"), path, size_mb * 1_000_000)
            for name, (package, words) in READERS.items():
                effort.tick(f"{size_mb} MB: {name}")
                reader = {"reader": name, "size_mb": size_mb, "events": events}
                if importlib.util.find_spec(package) is None:
                    records.append({**reader, "note": f"{package} is not installed"})
                else:
                    command = [sys.executable, *(word.format(package) for word in words), str(path)]
                    records.append({**reader, **measured(command)})
            path.unlink()
    table = pd.DataFrame(records)
    return Outcome(table, None, table.to_string(index=False))


def write_large_trace(source: Path, path: Path, size: int) -> int:
    """Repeat the events of a packed Kineto trace until ``path`` has ``size`` bytes; the number of events written."""
    header = json.loads(gzip.decompress(source.read_bytes()))
    events: list[dict[str, Any]] = header.pop("traceEvents")
    written = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header, indent=2)[:-2] + ',\n  "traceEvents": [')
        for event in _steps(events):
            if file.tell() >= size:
                break
            arguments = event.pop("args", None)
            text = json.dumps(event)[1:-1]
            if arguments is not None:
                text += f',\n    "args": {{\n      {json.dumps(arguments)[1:-1]}\n    }}'
            file.write(f"{',' if written else ''}\n  {{\n    {text}\n  }}")
            written += 1
        file.write("\n  ]\n}\n")
    return written


def _steps(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events again and again; names of processes and threads once."""
    timed = [event for event in events if event["ph"] != "M" and event.get("cat") != "Trace"]
    length = max(event["ts"] + event.get("dur", 0) for event in timed) - min(event["ts"] for event in timed)
    numbers = [value for event in events for key, value in event.get("args", {}).items() if key in _IDS and value]
    numbers += [event["id"] for event in events if "id" in event]
    step = 0
    while True:
        shift = step * (max(numbers) + 1)
        for event in events if not step else timed:
            moved = {**event, "ts": event["ts"] + step * (length + _BREAK_US)}
            if "id" in event:
                moved["id"] = event["id"] + shift
            if "args" in event:
                moved["args"] = {k: v + shift if k in _IDS and v else v for k, v in event["args"].items()}
            yield moved
        step += 1


def measured(command: Sequence[str]) -> dict[str, Any]:
    """CPU seconds and the largest resident set of a process on one thread; a note where it fails."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    record: dict[str, Any] = {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss * 1024 / 1e6}
    return record | ({"note": f"ended with status {process.returncode}"} if process.returncode else {})


EXPERIMENT = Experiment.of(run, ("trace_vgg13",))

if __name__ == "__main__":
    run_script(EXPERIMENT)
