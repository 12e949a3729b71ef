"""Nsight Systems' sqlite exports: an invented one of few columns, and a real one."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from surrogate.features.errors import InputError
from surrogate.trace.events import kinds
from surrogate.trace.events.read import read_trace

_PROCESS = 42 << 24
_THREAD = _PROCESS | 7


def _export(path: Path, *, kernels: bool = True) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        calls = ["cudaMemcpyAsync_v3020", "cudaGraphLaunch_v10000"]
        names = ["cudaLaunchKernel_v7000", "my_kernel", "step", *calls]
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)"
        )
        connection.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
            [(-500, 100, _THREAD, 1, 0), (200, 300, _THREAD, 2, 3), (900, 950, _THREAD, 3, 4)],
        )
        connection.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, text, textId)")
        connection.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)",
            [(-600, 400, 59, _THREAD, None, 2), (0, None, 75, _THREAD, "domain", None)],
        )
        if kernels:
            connection.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, demangledName,"
                " gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory,"
                " dynamicSharedMemory, globalPid)"
            )
            connection.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES"
                " (150, 1150, 0, 7, 1, 1, 4, 5, 6, 32, 2, 1, 40, 100, 28, ?)",
                (_PROCESS,),
            )
            connection.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, correlationId, bytes,"
                " copyKind, srcKind, dstKind)"
            )
            connection.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1200, 1300, 0, 7, 2, 4096, 1, 1, 2)"
            )
            connection.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId, correlationId, graphId)"
            )
            connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1400, 1900, 0, 8, 3, 11)")
    return path


def test_an_invented_export(tmp_path):
    trace = read_trace(_export(tmp_path / "x.sqlite"))
    assert trace.format == "nsys" and trace.origin_ns == -600
    assert [trace.names[n] for n in trace.ranges.name] == ["step"]
    assert trace.ranges.start_ns.tolist() == [0] and trace.calls.start_ns.tolist() == [100, 800, 1500]
    assert trace.calls.range.tolist() == [0, 0, -1]
    activities = trace.activities
    assert activities.kind.tolist() == [kinds.KERNEL, kinds.COPY, kinds.GRAPH]
    assert activities.call.tolist() == [0, 1, 2] and activities.range.tolist() == [0, 0, -1]
    assert activities.grid[0].tolist() == [4, 5, 6] and activities.block[0].tolist() == [32, 2, 1]
    assert (activities.registers[0], activities.shared_bytes[0]) == (40, 128)
    assert (activities.bytes[1], activities.copy_kind[1]) == (4096, kinds.TO_DEVICE)
    assert trace.names[activities.name[1]] == "Memcpy HtoD (Pinned -> Device)"
    assert (trace.threads[0].process, trace.threads[0].thread) == ("42", "7")


def test_an_export_without_kernels(tmp_path):
    trace = read_trace(_export(tmp_path / "x.sqlite", kernels=False))
    assert len(trace.activities) == 0 and len(trace.calls) == 3


def test_files_that_are_no_export(tmp_path):
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE a (b)")
    with pytest.raises(InputError, match="without CUDA or NVTX"):
        read_trace(other)


def test_the_real_export(real):
    trace = real("nsys_power_iteration.sqlite")
    assert len(trace.calls) == 7417 and len(trace.syncs) == 90
    assert np.bincount(trace.activities.kind).tolist() == [3689, 89]
    assert (trace.activities.call >= 0).all()
    assert trace.devices[0].name == "Tesla T4" and trace.devices[0].sms == 40
    assert trace.ignored == {"OSRT_API": 1428}
    assert (trace.syncs.kind == kinds.SYNC_STREAM_WAIT).sum() + (
        trace.syncs.kind == kinds.SYNC_STREAM
    ).sum() > 0
