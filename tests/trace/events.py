"""Events of invented traces, as PyTorch's profiler writes them; times in µs."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any


def event(category: str, name: str, start: float, length: float, thread: int = 1, pid: int = 1, **args: Any) -> dict:
    times = {"ts": start, "dur": length}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, **times, "args": args}


def call(name: str, start: float, length: float, number: int, thread: int = 1) -> dict:
    """Return a runtime call on the host."""
    return event("cuda_runtime", name, start, length, thread, correlation=number)


def device(name, start, length, number, stream=7, category="kernel", **args) -> dict:
    """Return a kernel or a copy launched by the call with this number."""
    where = {"device": 0, "stream": stream, "correlation": number}
    return event(category, name, start, length, stream, 0, **where, **args)


def built(rows: Iterable[list[Any]]) -> list[dict]:
    """Return the events of rows: `call`, `device` or a category, the builder's values, and a table of named ones."""
    made = []
    for word, *values in rows:
        named = values.pop() if isinstance(values[-1], dict) else {}
        made.append({"call": call, "device": device}.get(word, partial(event, word))(*values, **named))
    return made


def nsys_export(path: Path, tables: dict[str, tuple[str, list[tuple[Any, ...]]]]) -> Path:
    """Write an export of Nsight Systems: table → its columns, separated by blanks, and its rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {name} ({columns.replace(' ', ', ')})")
            places = ", ".join("?" * len(columns.split()))
            connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
    return path
