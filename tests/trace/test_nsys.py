"""Reading sqlite exports of Nsight Systems: an invented one with few columns, and a real one."""

import sqlite3
from ast import literal_eval
from contextlib import closing
from pathlib import Path

import numpy as np

from surrogate.formats import FORMATS
from surrogate.trace import events
from surrogate.trace.events.read import read_trace
from tests.known import cases, known_answers
from tests.trace.events import nsys_export

_PROCESS = 42 << 24
_THREAD = _PROCESS | 7


def _export(path: Path, *, kernels: bool = True) -> Path:
    """Write the tables of ``test_nsys.toml``, the first three or all."""
    tables = known_answers(__file__)["tables"]
    return nsys_export(path, dict(list(tables.items())[: None if kernels else 3]))


def test_export_fills_and_links_every_table(tmp_path):
    trace = read_trace(_export(tmp_path / "x.sqlite"))
    assert trace.format == "nsys" and trace.origin_ns == -600
    assert [trace.names[n] for n in trace.ranges.name] == ["step"]
    assert trace.ranges.start_ns.tolist() == [0] and trace.calls.start_ns.tolist() == [100, 800, 1500]
    assert trace.calls.range.tolist() == [0, 0, -1]
    activities = trace.activities
    assert activities.kind.tolist() == [events.KERNEL, events.COPY, events.GRAPH]
    assert activities.call.tolist() == [0, 1, 2] and activities.range.tolist() == [0, 0, -1]
    assert activities.grid[0].tolist() == [4, 5, 6] and activities.block[0].tolist() == [32, 2, 1]
    assert (activities.registers[0], activities.shared_bytes[0]) == (40, 128)
    assert (activities.bytes[1], activities.copy_kind[1]) == (4096, events.TO_DEVICE)
    assert trace.names[activities.name[1]] == "Memcpy HtoD (Pinned -> Device)"
    assert (trace.threads[0].process, trace.threads[0].thread) == ("42", "7")


def test_export_without_kernels_is_read(tmp_path):
    trace = read_trace(_export(tmp_path / "x.sqlite", kernels=False))
    assert len(trace.activities) == 0 and len(trace.calls) == 3


def test_system_calls_of_cuda_threads_and_collections_are_frames(tmp_path):
    """Thread 8 makes no CUDA call and has no range; an NVTX range of Python's collector is no layer."""
    names = {"StringIds": ("id value", list(enumerate(["read", "poll", "Python GC", "IO 3"])))}
    nvtx = [(0, 90, 59, _THREAD, None, 3), (20, 60, 59, _THREAD, None, 2)]
    system = [(10, 15, _THREAD, 0), (30, 80, _PROCESS | 8, 1)]
    columns = "start end eventType globalTid text textId"
    tables = {**names, "NVTX_EVENTS": (columns, nvtx), "OSRT_API": ("start end globalTid nameId", system)}
    trace = read_trace(nsys_export(tmp_path / "x.sqlite", tables))
    assert [trace.names[name] for name in trace.ranges.name] == ["IO 3"]
    assert [trace.names[name] for name in trace.frames.name] == ["read", "Python GC"]
    assert trace.frames.kind.tolist() == [events.SYSTEM_CALL, events.COLLECTION]
    assert trace.ignored == {"OSRT_API of threads without CUDA": 1}


@cases(__file__)
def test_arguments_are_no_part_of_a_range_s_name(text, name, kind, sequence, shapes, tmp_path):
    tables = {"NVTX_EVENTS": ("start end eventType globalTid text textId", [(0, 90, 59, _THREAD, text, None)])}
    trace = read_trace(nsys_export(tmp_path / "x.sqlite", tables))
    assert (trace.names[trace.ranges.name[0]], int(trace.ranges.kind[0])) == (name, kind)
    assert (int(trace.ranges.sequence[0]), trace.shapes_of(0)) == (sequence, shapes and literal_eval(shapes))


def test_nvprof_database_is_refused_with_the_csv_command(tmp_path, refused):
    """`nvprof -o file.prof` also writes SQLite, with these table names."""
    path = tmp_path / "file.prof"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (_id_ INTEGER, start INTEGER)")
        connection.execute("CREATE TABLE StringTable (_id_ INTEGER, value TEXT)")
    for read in (read_trace, lambda file: FORMATS["nvprof"].read([file])):
        with refused("nvprof's own database; `nvprof -i file.prof --csv --log-file FILE`"):
            read(path)


def test_sqlite_file_without_cuda_tables_is_refused(refused, tmp_path):
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE a (b)")
    with refused("without CUDA or NVTX"):
        read_trace(other)


def test_real_export_has_known_counts(real):
    trace = real("nsys_power_iteration.sqlite")
    assert len(trace.calls) == 7417 and len(trace.syncs) == 90
    assert np.bincount(trace.activities.kind).tolist() == [3689, 89]
    assert (trace.activities.call >= 0).all()
    assert trace.devices[0].name == "Tesla T4" and trace.devices[0].sms == 40
    assert trace.ignored == {"OSRT_API of threads without CUDA": 19}
    assert np.bincount(trace.frames.kind, minlength=8)[events.SYSTEM_CALL] == len(trace.frames) == 1428 - 19
    assert np.isin(trace.syncs.kind, (events.SYNC_STREAM_WAIT, events.SYNC_STREAM)).any()
