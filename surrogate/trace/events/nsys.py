"""Nsight Systems' sqlite export → `Trace`: NVTX ranges, library and CUDA calls, kernels, copies, synchronisations."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from surrogate.features.errors import InputError
from surrogate.trace.events import kinds
from surrogate.trace.events.build import build
from surrogate.trace.events.names import Interner, clean_name, clean_shapes, clean_texts
from surrogate.trace.events.rows import Parts
from surrogate.trace.events.tables import Device, Trace

# CUPTI's enumerations (cupti_activity.h): copy kind, kind of memory, kind of synchronisation.
_COPIES = {
    1: kinds.TO_DEVICE, 2: kinds.TO_HOST, 8: kinds.ON_DEVICE, 9: kinds.ON_HOST, 10: kinds.PEER,
    11: kinds.TO_DEVICE, 12: kinds.TO_HOST, 13: kinds.ON_DEVICE,
}  # fmt: skip
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
_COPY_WORDS = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "copy")
_SYNCS = {1: kinds.SYNC_EVENT, 2: kinds.SYNC_STREAM_WAIT, 3: kinds.SYNC_STREAM, 4: kinds.SYNC_CONTEXT}
_NVTX_RANGES = (59, 60)  # push/pop and start/end ranges
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_READ = {"KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "GRAPH_TRACE"}
_LIBRARIES = ("CUDNN_EVENTS", "CUBLAS_EVENTS")


def read_nsys(path: Path) -> Trace:
    """The trace in an sqlite export; any schema version, missing tables and columns count as empty.

    Raises `InputError` for a damaged file or one without any CUDA or NVTX table.
    """
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA trusted_schema = OFF")
            return _Export(connection, str(path)).trace()
    except (
        sqlite3.Error,
        OverflowError,
        UnicodeDecodeError,
    ) as error:  # the last where sqlite quotes a damaged name
        fault = "a name in it is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(
            f"{path}: is no readable Nsight Systems export ({fault}); write it again with nsys export --type sqlite"
        ) from None


class _Export:
    def __init__(self, connection: sqlite3.Connection, source: str) -> None:
        self.connection, self.source = connection, source
        listed = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
        )
        self.tables = {name for (name,) in listed.fetchall()}
        self.names: Interner[str] = Interner(clean_name)
        self.threads: Interner[tuple[str, str]] = Interner(lambda key: key)
        self.texts: dict[Any, str] = {}

    def trace(self) -> Trace:
        known = {_PREFIX + name for name in _READ} | {"NVTX_EVENTS", *_LIBRARIES}
        if not self.tables & known:
            raise InputError(
                f"{self.source}: an sqlite file without CUDA or NVTX events; write it with nsys export --type sqlite"
            )
        self.texts = dict(self.rows("StringIds", "id", "value"))
        empty = Interner(clean_texts)
        activities = [*self.kernels(), *self.copies(), *self.memsets(), *self.graphs()]
        return build(
            Parts(
                source=self.source, format="nsys", names=self.names, shapes=Interner(clean_shapes), types=empty,
                inputs=empty, threads=self.threads, ranges=[*self.nvtx(), *self.libraries()], frames=[],
                calls=list(self.calls()), activities=activities, syncs=list(self.syncs()), allocations=[],
                thread_names=self.thread_names(), devices=self.devices(), ignored=self.left_out(), exact_ns=True,
            )
        )  # fmt: skip

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table; None for a column it lacks, nothing where there is no such table."""
        if table not in self.tables:
            return
        present = {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')}
        wanted = ", ".join(f'"{c}"' if c in present else "NULL" for c in columns)
        yield from self.connection.execute(f'SELECT {wanted} FROM "{table}"')

    def name(self, text_id: Any, direct: Any = None) -> int:
        text = direct if isinstance(direct, str) else self.texts.get(text_id)
        return self.names.index(text if isinstance(text, str) else "unnamed")

    def thread(self, global_id: Any) -> int:
        return self.threads.index(_thread(global_id))

    def nvtx(self) -> Iterator[tuple[Any, ...]]:
        for start, end, kind, tid, text, text_id in self.rows(
            "NVTX_EVENTS", "start", "end", "eventType", "globalTid", "text", "textId"
        ):
            if kind in _NVTX_RANGES and end is not None:
                yield _host(start, end, self.name(text_id, text), kinds.NVTX, self.thread(tid))

    def libraries(self) -> Iterator[tuple[Any, ...]]:
        for table in _LIBRARIES:
            for start, end, tid, name in self.rows(table, "start", "end", "globalTid", "nameId"):
                yield _host(start, end, self.name(name), kinds.OPERATOR, self.thread(tid))

    def calls(self) -> Iterator[tuple[Any, ...]]:
        for start, end, tid, correlation, name in self.rows(
            _PREFIX + "RUNTIME", "start", "end", "globalTid", "correlationId", "nameId"
        ):
            yield start, _length(start, end), self.name(name), -1, self.thread(tid), correlation, -1

    def kernels(self) -> Iterator[tuple[Any, ...]]:
        columns = (
            "start", "end", "demangledName", "shortName", "deviceId", "streamId", "globalPid", "correlationId",
            "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread", "staticSharedMemory",
            "dynamicSharedMemory", "graphNodeId",
        )  # fmt: skip
        for row in self.rows(_PREFIX + "KERNEL", *columns):
            start, end, name, short, device, stream, pid, correlation, gx, gy, gz, bx, by, bz, registers, static, dynamic, node = row  # fmt: skip  # noqa: E501
            shared = static + dynamic if isinstance(static, int) and isinstance(dynamic, int) else -1
            yield (
                start, _length(start, end), self.name(name if name in self.texts else short), kinds.KERNEL, device,
                stream, _process(pid), correlation, -1, [gx, gy, gz], [bx, by, bz], registers, shared, -1, -1,
                node, None,
            )  # fmt: skip

    def copies(self) -> Iterator[tuple[Any, ...]]:
        columns = (
            "start", "end", "deviceId", "streamId", "globalPid", "correlationId", "bytes", "copyKind", "srcKind",
            "dstKind", "graphNodeId",
        )  # fmt: skip
        for start, end, device, stream, pid, correlation, size, kind, source, target, node in self.rows(
            _PREFIX + "MEMCPY", *columns
        ):
            direction = _COPIES.get(kind, kinds.OTHER_COPY)
            words = (
                f"Memcpy {_COPY_WORDS[direction]} ({_MEMORY.get(source, '?')} -> {_MEMORY.get(target, '?')})"
            )
            yield _device(start, end, self.names.index(words), kinds.COPY, device, stream, pid, correlation, size,
                          direction, node)  # fmt: skip

    def memsets(self) -> Iterator[tuple[Any, ...]]:
        for start, end, device, stream, pid, correlation, size, node in self.rows(
            _PREFIX + "MEMSET", "start", "end", "deviceId", "streamId", "globalPid", "correlationId", "bytes",
            "graphNodeId",
        ):  # fmt: skip
            name = self.names.index("Memset")
            yield _device(start, end, name, kinds.MEMSET, device, stream, pid, correlation, size, -1, node)

    def graphs(self) -> Iterator[tuple[Any, ...]]:
        for start, end, device, stream, pid, correlation, graph in self.rows(
            _PREFIX + "GRAPH_TRACE",
            "start",
            "end",
            "deviceId",
            "streamId",
            "globalPid",
            "correlationId",
            "graphId",
        ):
            name = self.names.index(f"CUDA graph {graph}")
            yield _device(start, end, name, kinds.GRAPH, device, stream, pid, correlation, -1, -1, 0)

    def syncs(self) -> Iterator[tuple[Any, ...]]:
        for start, end, device, stream, pid, correlation, kind in self.rows(
            _PREFIX + "SYNCHRONIZATION", "start", "end", "deviceId", "streamId", "globalPid", "correlationId",
            "syncType",
        ):  # fmt: skip
            code = _SYNCS.get(kind, kinds.SYNC_UNKNOWN)
            name = self.names.index(f"synchronisation: {kinds.SYNC_KINDS[code]}")
            yield start, _length(start, end), name, code, device, stream, _process(pid), correlation, -1

    def devices(self) -> Sequence[Device]:
        cuda = dict(self.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"))
        found = []
        for gpu, name, major, minor, sms, memory in self.rows(
            "TARGET_INFO_GPU", "id", "name", "computeMajor", "computeMinor", "smCount", "totalMemory"
        ):
            capability = major + minor / 10 if isinstance(major, int) and isinstance(minor, int) else 0.0
            index = cuda.get(gpu, gpu)
            if isinstance(index, int):
                found.append(
                    Device(index, clean_name(name or ""), round(capability, 1), _count(sms), _count(memory))
                )
        return found

    def thread_names(self) -> dict[tuple[str, str], str]:
        rows = self.rows("ThreadNames", "globalTid", "nameId")
        return {_thread(tid): clean_name(self.texts.get(name, "")) for tid, name in rows}

    def left_out(self) -> dict[str, int]:
        """Tables of events that no column holds, with their rows."""
        others = [t for t in self.tables if t == "OSRT_API" or (t.startswith(_PREFIX) and t not in
                  {_PREFIX + name for name in _READ})]  # fmt: skip
        counts = {
            t: self.connection.execute(f'SELECT COUNT(*) FROM "{t}"').fetchone()[0] for t in sorted(others)
        }
        return {table: count for table, count in counts.items() if count}


def _host(start: Any, end: Any, name: int, kind: int, thread: int) -> tuple[Any, ...]:
    return start, _length(start, end), name, kind, thread, -1, -1, -1, -1, -1, -1, -1, -1


def _device(
    start: Any, end: Any, name: int, kind: int, device: Any, stream: Any, pid: Any, correlation: Any, size: Any,
    direction: int, node: Any,
) -> tuple[Any, ...]:  # fmt: skip
    return (
        start, _length(start, end), name, kind, device, stream, _process(pid), correlation, -1, None, None, -1, -1,
        size, direction, node, None,
    )  # fmt: skip


def _length(start: Any, end: Any) -> int:
    return end - start if isinstance(start, int) and isinstance(end, int) else -1


def _thread(global_id: Any) -> tuple[str, str]:
    number = global_id if isinstance(global_id, int) else 0
    return _process(number), str(number & 0xFFFFFF)


def _process(global_id: Any) -> str:
    """Nsight's global ids hold the process in the bits 24 to 47."""
    return str(global_id >> 24 & 0xFFFFFF) if isinstance(global_id, int) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
