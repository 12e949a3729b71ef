"""Launches and metrics of several profiler runs, joined into one kernel table."""

import re
from typing import Any

import pandas as pd

from surrogate.formats.imported import KERNEL_NUMBERS, plural

Record = dict[str, Any]


def join(
    runs: list[list[Record]], metrics: list[list[Record]], averages: list[Record]
) -> tuple[list[Record], list[str]]:
    """(launch records with their metrics, notes). ``run`` numbers the repeats.

    Metrics per launch join by position, and only where the names agree throughout (text logs cut names to 20
    characters); averages over invocations join by name. Metrics that join nothing are kept as launches
    without a time where there is no run at all, and named in a note otherwise.
    """
    notes: list[str] = []
    if not runs:
        runs = [[dict(record) for record in found] for found in metrics[:1]] or [
            [dict(record) for record in averages]
        ]
    records = [
        {**record, "run": index, "kernel_index": at}
        for index, run in enumerate(runs)
        for at, record in enumerate(run)
    ]
    for found in metrics:
        for index, run in enumerate(runs):
            if _agree(run, found):
                for record, extra in zip((r for r in records if r["run"] == index), found, strict=True):
                    record |= _values(extra)
            else:
                notes.append(
                    f"metrics of {plural(len(found), 'launch')} not joined to run {index + 1}"
                    f" of {plural(len(run), 'launch')}: the kernels differ"
                )
    _add_averages(records, averages, notes)
    return records, notes


def launch_table(records: list[Record], gpu: str | None) -> pd.DataFrame:
    """The kernel table: gpu, ``run``, ``kernel_index``, ``kernel_name``, the numbers (NaN where unknown), the
    rest.

    ``gpu`` replaces the device that the records name (whose number in parentheses is dropped). ``blocks`` is
    the grid's size where no record counts it.
    """
    frame = pd.DataFrame(records)
    frame["gpu"] = [_gpu_name(record.get("device", "")) for record in records] if gpu is None else gpu
    if "blocks" not in frame and "grid_x" in frame:
        frame["blocks"] = frame["grid_x"].astype(float) * frame["grid_y"] * frame["grid_z"]
    columns = ["gpu", "run", "kernel_index", "kernel_name", *KERNEL_NUMBERS]
    frame = frame.reindex(columns=[*columns, *(c for c in frame if c not in (*columns, "device"))])
    return frame.astype(dict.fromkeys(KERNEL_NUMBERS, "float64"))


def _gpu_name(device: str) -> str:
    """``TITAN Xp (0)`` → ``TITAN Xp``; nothing for a bare number, which names no GPU."""
    name = re.sub(r"\s*\(\d+\)$", "", device.strip())
    return "" if name.isdigit() else name


def _agree(run: list[Record], found: list[Record]) -> bool:
    if len(run) != len(found):
        return False
    pairs = ((a["kernel_name"], b["kernel_name"]) for a, b in zip(run, found, strict=True))
    return all(a.startswith(b) or b.startswith(a) for a, b in pairs)


def _values(record: Record) -> Record:
    """What a metrics record adds to a launch: everything but its identity, and no blank over a value."""
    return {
        k: v
        for k, v in record.items()
        if k not in ("kernel_name", "device", "run", "kernel_index") and v == v
    }


def _add_averages(records: list[Record], averages: list[Record], notes: list[str]) -> None:
    by_name = {record["kernel_name"]: record for record in averages}
    for record in records:
        if record["kernel_name"] in by_name:
            record |= _values(by_name[record["kernel_name"]])
    unused = set(by_name) - {record["kernel_name"] for record in records}
    if unused:
        notes.append(f"average metrics of {plural(len(unused), 'kernel')} not joined: no launch of that name")
