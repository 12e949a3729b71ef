"""How long do large inputs take, and how much memory, alone and beside two busy processes?

Every command and every peer runs in a process of its own. Seconds are wall-clock time, and memory is the largest
resident set; both include the start of Python. A table is the shipped one, repeated at other batches. A trace is the
shipped VGG-13 step with shapes, Python stacks and memory. It is repeated until the file has the size, each time later
and with new ids, in Kineto's format.
"""

import gzip
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import Sources, own_settings
from surrogate.bundled import DATASET, FOLDER
from surrogate.dataset.files import atomic_path

PLAN = own_settings(__file__)
_IDS = frozenset(PLAN["ids"])
"""Arguments of an event that count events, and so differ from step to step."""
_BREAK_US = 1000
"""Time in µs from the end of a step to the next one."""
ORIGIN = "made for load tests, not measured"


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Run every command on its inputs, and the peers on traces. A note names a package that is not installed."""
    records: list[dict[str, Any]] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for plan in PLAN["inputs"]:
            if effort.quick and "quick" not in plan:
                continue
            command, size = plan["command"], plan["size"]
            record = {"command": command, "size": size, "unit": "MB" if "trace" in command else "rows"}
            effort.tick(f"{command}, {size:,} {record['unit']}")
            path = folder / ("trace.json" if record["unit"] == "MB" else "table.parquet")
            if record["unit"] == "MB":
                write_large_trace(sources.path("trace_vgg13"), path, size * 1_000_000)
            else:
                write_load_table(size, path)
            begin = partial(started, command, path)
            own = begin(folder / f"out{len(records)}")
            bars = {bar: plan.get(bar, math.nan) for bar in ("bar_s", "bar_mib")}
            records.append({**record, **bars, **own})
            if "busy" in plan:
                with two_busy_processes():
                    again = begin(folder / f"out{len(records)}")
                records.append({**record, "bar_s": 3 * own["seconds"], **again, "beside": "two busy processes"})
            for package, peer in PLAN["peers"].items() if record["unit"] == "MB" else ():
                there = importlib.util.find_spec(package) is not None
                figures = measured([*peer["words"], path]) if there else {"note": f"{package} is not installed"}
                records.append({**record, "command": peer["name"], **figures})
    table = pd.DataFrame(records)
    return ExperimentResult(table)


def started(command: str, path: Path, out: Path) -> dict[str, Any]:
    """Return the figures of `measured` for one of our commands on the input at ``path``."""
    return measured([word.format(path=path, out=out, bundle=FOLDER / "cudnn7") for word in PLAN["words"][command]])


@contextmanager
def two_busy_processes() -> Iterator[None]:
    """Run two other processes that compute without a pause inside this context."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def write_load_table(rows: int, path: str | Path, group_rows: int = 100_000) -> None:
    """Write the shipped table's rows, repeated at batches without measurements, until there are ``rows`` rows.

    A row has the time of the row that it repeats, so the table serves for tests of speed and memory, not of accuracy.
    One group of ``group_rows`` rows is in memory at a time.
    """
    table = pq.read_table(DATASET)
    batches, place = np.unique(table["n"].to_numpy(), return_inverse=True)
    table = table.set_column(table.schema.get_field_index("origin"), "origin", pa.array([ORIGIN] * len(table)))
    batch_column = table.schema.get_field_index("n")
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, table.schema) as writer:
        for start in range(0, rows, group_rows):
            repeat, row = np.divmod(np.arange(start, min(start + group_rows, rows)), len(table))
            group = table.take(row)
            # the first repeat has batches 1, 2, … in the order of the measured ones, the second has the next ones
            batch = 1 + len(batches) * repeat + place[row]
            writer.write_table(group.set_column(batch_column, "n", pa.array(batch)), row_group_size=group_rows)


def write_large_trace(source: Path, path: Path, size: int) -> int:
    """Repeat the events of a packed Kineto trace until ``path`` has ``size`` bytes; return the number of events."""
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
    """Yield the events repeatedly. Names of processes and threads are yielded once."""
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


def measured(words: Sequence[str | Path]) -> dict[str, Any]:
    """Run Python with these words; return seconds, CPU seconds and the largest resident set, or a note if it fails."""
    command = [sys.executable, "-S", "-c", PLAN["measure"], sys.executable, *words]
    seconds, cpu_s, peak_mib, status = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    record = {"seconds": seconds, "cpu_s": cpu_s, "peak_mib": peak_mib}
    return record | ({"note": f"ended with status {status}"} if status else {})


EXPERIMENT = program(run, "trace_vgg13")
