"""A fake of cupti-python that follows cupti_activity.h and records the launches of the fake CUDA runtime.

Only enabled kinds are recorded; correlations precede records of the API (DRIVER, RUNTIME); names are mangled. A default
flush returns nothing before the host has waited for every launch. FAKE_CUPTI=12 refuses RUNTIME; faults raise errors.
"""

import ctypes
import enum
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cuda_runtime import ERROR, LATE, LIBRARY, Record, Size, fault


class ActivityKind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    EXTERNAL_CORRELATION = 39


class ExternalCorrelationKind(enum.IntEnum):
    UNKNOWN = 1
    CUSTOM0 = 3


class cuptiError(Exception):  # noqa: N801
    """Like cupti-python's class, this is not a RuntimeError."""


_completed: list[Callable[[list[Any]], None]] = []


def _begin(function: str) -> int:
    order = fault(function)
    if order == ERROR:
        raise cuptiError("CUPTI_ERROR_UNKNOWN (999):\nunknown error")
    return order


def activity_register_callbacks(requested: Callable[[], tuple[int, int]], completed: Callable[[Any], None]) -> None:
    _begin("activity_register_callbacks")
    if os.environ.get("FAKE_PROFILE"):
        raise cuptiError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)")
    size, count = requested()
    assert size > 0 and count >= 0
    _completed[:] = [completed]


def activity_enable(kind: int) -> None:
    _begin("activity_enable")
    if kind == ActivityKind.RUNTIME and os.environ.get("FAKE_CUPTI") == "12":
        raise NotImplementedError("Activity Kind RUNTIME not supported")  # cupti-python 12.8.0's own words
    LIBRARY.fake_enable(int(kind), 1)


def activity_disable(kind: int) -> None:
    _begin("activity_disable")
    LIBRARY.fake_enable(int(kind), 0)


def activity_push_external_correlation_id(kind: int, id: int) -> None:
    _begin("activity_push_external_correlation_id")
    LIBRARY.fake_push(int(kind), id)


def activity_pop_external_correlation_id(kind: int) -> int:
    _begin("activity_pop_external_correlation_id")
    last = Size()
    if not LIBRARY.fake_pop(ctypes.byref(last)):
        raise cuptiError("CUPTI_ERROR_QUEUE_EMPTY (28)")
    return last.value


def activity_flush_all(flag: int) -> None:
    if _begin("activity_flush_all") == LATE and not flag:
        return
    records = ctypes.POINTER(Record)()
    count = LIBRARY.fake_flush(flag, ctypes.byref(records))
    if count and _completed:
        batch = [_public(records[at]) for at in range(count)]
        _completed[0](batch)
        for record in batch:  # CUPTI reuses the memory after the callback
            vars(record).clear()


def activity_get_num_dropped_records(context: int, stream_id: int, dropped: int) -> None:
    _begin("activity_get_num_dropped_records")
    ctypes.c_size_t.from_address(dropped).value = LIBRARY.fake_dropped()


def _public(record: Any) -> SimpleNamespace:
    """Return a record with the fields of its kind."""
    common = {"kind": ActivityKind(record.kind), "correlation_id": record.correlation_id}
    if record.kind == ActivityKind.EXTERNAL_CORRELATION:
        labels = {"external_kind": ExternalCorrelationKind.CUSTOM0, "external_id": record.external_id}
        return SimpleNamespace(**common, **labels)
    common |= {"start": record.start, "end": record.end}
    if record.kind in (ActivityKind.MEMSET, ActivityKind.MEMCPY):
        return SimpleNamespace(**common, bytes=record.bytes)
    if record.kind != ActivityKind.CONCURRENT_KERNEL:
        return SimpleNamespace(**common)
    sizes = ("registers_per_thread", "static_shared_memory", "dynamic_shared_memory")
    shape = {f"{what}_{axis}": getattr(record, what)[at] for what in ("grid", "block") for at, axis in enumerate("xyz")}
    values = {name: getattr(record, name) for name in sizes}
    return SimpleNamespace(**common, **shape, **values, name=record.name.decode())
