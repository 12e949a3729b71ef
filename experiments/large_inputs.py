"""How long do large inputs take, and how much memory, alone and beside two busy processes?

Every command runs in a process of its own, and so does every peer; seconds are by the clock and memory is the largest
resident set, both with the start of Python. A table is the shipped one repeated at other batches. A trace is the VGG-13
step that ships (shapes, Python stacks and memory recorded), repeated until the file has the size, each time later and
under new ids, written as Kineto writes.
"""

import gzip
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from experiments.experiment import Effort, Outcome, program
from experiments.load_table import write_load_table
from experiments.sources import Sources
from surrogate.bundled import FOLDER

TRAIN, PREDICT, TRACE = "seer train", "seer predict", "seer trace summary"
BARS: dict[tuple[str, int], tuple[float, float]] = {
    (TRAIN, 10_000): (15, math.nan),
    (TRAIN, 100_000): (120, math.nan),
    (TRAIN, 1_000_000): (900, 8192),
    (PREDICT, 1_000_000): (math.nan, 1024),
    (PREDICT, 5_000_000): (math.nan, 1024),
    (TRACE, 100): (3, 500),
    (TRACE, 350): (10, 500),
    (TRACE, 1000): (math.nan, math.nan),
}
"""(command, rows or MB) → seconds and MiB at most (NaN: no bar); beside two busy processes the seconds may triple."""
BUSY = ((TRAIN, 10_000), (TRAIN, 100_000), (PREDICT, 1_000_000))
"""What runs a second time, beside two processes that never wait."""
QUICK = ((TRAIN, 10_000), (TRACE, 100))
_IDS = {
    "External id", "external id", "correlation", "Ev Idx", "Python id", "Python parent id", "Python module id",
    "Sequence number",
}  # fmt: skip
"""Arguments of an event that count events, and so differ from step to step."""
_BREAK_US = 1000
"""From the end of a step to the next one."""
_WITH = "import {0}, sys; path = sys.argv[1]; "
PEERS: dict[str, tuple[str, Sequence[str]]] = {
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
"""What else reads a trace → the package that it needs, and the words for Python, to which the path is added."""


def run(sources: Sources, effort: Effort) -> Outcome:
    """Every command on its inputs, and on traces the peers; a package that is not installed is said in the note."""
    records = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for command, size in QUICK if effort.quick else BARS:
            effort.tick(f"{command}, {size:,}")
            path = folder / ("trace.json" if command == TRACE else "table.parquet")
            if command == TRACE:
                write_large_trace(sources.path("trace_vgg13"), path, size * 1_000_000)
            else:
                write_load_table(size, path)
            seconds, mib = BARS[command, size]
            record = {"command": command, "size": size, "unit": "MB" if command == TRACE else "rows"}
            own = measured(("-m", "surrogate", *words_of(command, path, folder)))
            records.append({**record, "bar_s": seconds, "bar_mib": mib, **own})
            if (command, size) in BUSY:
                with two_busy_processes():
                    beside = measured(("-m", "surrogate", *words_of(command, path, folder)))
                record |= {"beside": "two busy processes", "bar_s": 3 * own["seconds"]}
                records.append({**record, **beside})
            for peer, (package, words) in PEERS.items() if command == TRACE else ():
                effort.tick(f"{peer}, {size:,} MB")
                if importlib.util.find_spec(package) is None:
                    records.append({**record, "command": peer, "note": f"{package} is not installed"})
                else:
                    words = (*(word.format(package) for word in words), str(path))
                    records.append({**record, "command": peer, **measured(words)})
    table = pd.DataFrame(records)
    return Outcome(table, None, answer(table))


_MEASURE = """
import json, os, sys, time
out, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1), os.dup2(nowhere, 2)
began = time.monotonic()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(process, 0)
seconds = time.monotonic() - began
figures = [seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)]
os.write(out, json.dumps(figures).encode())
"""
"""A small process that starts and measures the others: the system counts the memory of the process that starts one as
the new one's own."""


def answer(table: pd.DataFrame) -> str:
    """Seconds and memory of every command and peer, each with its bar where there is one."""
    parts = []
    for (command, unit), rows in table.groupby(["command", "unit"], sort=False):
        runs = []
        for row in rows.to_dict("records"):
            beside = f" beside {row['beside']}" if isinstance(row.get("beside"), str) else ""
            bars = [f"{row['bar_s']:.0f} s"] * (row["bar_s"] > 0) + [f"{row['bar_mib']:.0f} MiB"] * (row["bar_mib"] > 0)
            bar = f" (bar {', '.join(bars)})" if bars else ""
            runs.append(f"{row['size']:,} {unit}{beside} {row['seconds']:.1f} s and {row['peak_mib']:,.0f} MiB{bar}")
        parts.append(f"{command}: {', '.join(runs)}.")
    return " ".join(parts)


def words_of(command: str, path: Path, folder: Path) -> Sequence[str]:
    """The command's words on the input at ``path``."""
    if command == TRAIN:
        return "train", str(path), "-o", str(folder / f"bundle{len(list(folder.iterdir()))}")
    if command == PREDICT:
        return "predict", "--bundle", str(FOLDER / "cudnn7"), "--data", str(path), "-o", str(folder / "answers.parquet")
    return "trace", "summary", str(path)


@contextmanager
def two_busy_processes() -> Iterator[None]:
    """Inside this, two other processes compute without a pause."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


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


def measured(words: Sequence[str]) -> dict[str, Any]:
    """Seconds, CPU seconds and the largest resident set of Python with these words; a note where it fails."""
    command = [sys.executable, "-S", "-c", _MEASURE, sys.executable, *words]
    seconds, cpu_s, peak_mib, status = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    record = {"seconds": seconds, "cpu_s": cpu_s, "peak_mib": peak_mib}
    return record | ({"note": f"ended with status {status}"} if status else {})


EXPERIMENT = program(run, "trace_vgg13")
