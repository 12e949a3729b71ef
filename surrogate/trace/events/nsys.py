"""Read an Nsight Systems sqlite export: NVTX ranges, library and CUDA calls, kernels, copies, synchronisations."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from surrogate.features.errors import read_toml
from surrogate.formats.nvprof import database_error
from surrogate.trace import events
from surrogate.trace.events.raw import EventRow, RawTrace, build_trace, clean_name
from surrogate.trace.events.tables import Trace, TraceGpu

_CODES = read_toml(__file__)
"""CUPTI's enumerations: kinds of copies, memory and synchronisations."""
_COPIES, _SYNCS = (
    {int(number): getattr(events, kind) for number, kind in _CODES[table].items()} for table in ("copies", "syncs")
)
_COPY_WORDS = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "copy")
_NVTX_RANGES = (59, 60)  # push/pop and start/end ranges
_FIELDS = re.compile(r", (seq|op_id|sizes|input_op_ids) = ")
"""Separates the arguments that ``emit_nvtx`` appends to an operator's name."""
_PYPROF = re.compile(r"\{['\"]mod['\"]: ['\"]([\w.]+)['\"], ['\"]op['\"]: ['\"](\w+)")
"""Matches the texts of PyProf, which are dictionaries of a call and its arguments."""
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_COLUMNS: dict[str, str] = _CODES["columns"]
"""Table → the columns that are read."""
_READ = {table for table in _COLUMNS if table.startswith(_PREFIX)}
_LIBRARIES = ("CUDNN_EVENTS", "CUBLAS_EVENTS")


def read_nsys(path: Path) -> Trace:
    """Read the trace of an sqlite export of any schema version. Missing tables and columns count as empty.

    Raises `InputError` if the file is damaged or has no CUDA or NVTX table.
    """
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            connection.execute("PRAGMA trusted_schema = OFF")
            return build_trace(_NsysExport(connection, str(path)).raw_trace())
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        # If a name is damaged, sqlite's error message is not valid text either.
        fault = "it contains a name that is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise events.refusal("not_nsys", source=path, fault=fault) from None


class _NsysExport:
    """The tables of an export as the rows of a `RawTrace`."""

    def __init__(self, connection: sqlite3.Connection, source: str) -> None:
        self.connection = connection
        self.raw = RawTrace(source, "nsys", exact_ns=True)
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
        self.tables = {name for (name,) in connection.execute(tables).fetchall()}
        self.texts: dict[object, object] = dict(self.rows("StringIds"))

    def raw_trace(self) -> RawTrace:
        raw = self.raw
        if "StringTable" in self.tables:  # nvprof's and the visual profiler's; Nsight Systems calls it StringIds
            raise database_error(Path(raw.source))
        if not self.tables & {*_READ, "NVTX_EVENTS", *_LIBRARIES}:
            raise events.refusal("no_cuda", source=raw.source)
        raw.tables["activities"].extend(chain(self.kernels(), self.copies(), self.memsets(), self.graphs()))
        raw.tables["ranges"].extend(chain(self.nvtx(), self.libraries()))
        raw.tables["frames"].extend(self.system_calls())
        raw.tables["calls"].extend(self.calls())
        if not self.texts and any(self.rows(_PREFIX + "RUNTIME")):
            raise events.refusal("not_nsys", source=raw.source, fault="the names in table StringIds are missing")
        raw.tables["syncs"].extend(self.syncs())
        raw.devices = list(self.devices())
        for thread, name in self.rows("ThreadNames"):
            raw.thread_names[_thread(thread)] = clean_name(self.texts.get(name, ""))
        # Count the events of tables that are not read.
        others = {table for table in self.tables if table.startswith(_PREFIX)} - _READ
        for table in sorted(others):
            if count := self.connection.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0]:
                raw.ignored[table] = count
        return raw

    def rows(self, table: str, columns: str = "") -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, with None for missing columns; nothing if the table is missing."""
        if table not in self.tables:
            return
        present = {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')}
        selected = ", ".join(f'"{c}"' if c in present else "NULL" for c in (columns or _COLUMNS[table]).split())
        yield from self.connection.execute(f'SELECT {selected} FROM "{table}"')

    def name(self, text_id: object, direct: object = None) -> int:
        text = direct if isinstance(direct, str) else self.texts.get(text_id)
        return self.raw.names.index(text if isinstance(text, str) else "unnamed")

    def thread(self, global_id: object) -> int:
        return self.raw.threads.index(_thread(global_id))

    def nvtx(self) -> Iterator[EventRow]:
        for start, end, kind, tid, text, text_id in self.rows("NVTX_EVENTS"):
            if kind not in _NVTX_RANGES or end is None:
                continue
            label, fields = _parsed(text if isinstance(text, str) else self.texts.get(text_id))
            name = self.raw.names.index(label)
            if events.COLLECTION_NAME.search(label):
                self.raw.tables["frames"].rows.append(self.range(start, end, name, events.COLLECTION, tid))
                continue
            is_backward = "Backward" in label or label.startswith("autograd::engine")
            is_operator = label.startswith("aten::") or (bool(fields) and (is_backward or "::" in label))
            autograd = (fields.get("seq", -1), int(is_backward) if fields else -1)
            with suppress(KeyError, ValueError, RecursionError):
                autograd += (self.raw.shapes.index(fields["sizes"], json.loads(fields["sizes"])),)
            kind = events.OPERATOR if is_operator else events.NVTX
            yield self.range(start, end, name, kind, tid, autograd)

    def system_calls(self) -> Iterator[EventRow]:
        """Yield the operating system's calls of the threads that have CUDA calls or NVTX ranges."""
        tables = _PREFIX + "RUNTIME", "NVTX_EVENTS", *_LIBRARIES
        threads = {thread for table in tables for (thread,) in self.rows(table, "globalTid")}
        for start, end, tid, name in self.rows("OSRT_API"):
            if tid in threads:
                yield self.range(start, end, self.name(name), events.SYSTEM_CALL, tid)
            else:
                self.raw.ignored["OSRT_API of threads without CUDA"] += 1

    def libraries(self) -> Iterator[EventRow]:
        for table in _LIBRARIES:
            for start, end, tid, name in self.rows(table):
                yield self.range(start, end, self.name(name), events.OPERATOR, tid)

    def range(self, start: object, end: object, name: int, kind: int, tid: object, autograd: EventRow = ()) -> EventRow:
        """Return the raw row of a range; ``autograd`` are its sequence, its forward thread and its shapes."""
        return start, _length(start, end), name, kind, self.thread(tid), -1, *autograd, *[-1] * (6 - len(autograd))

    def calls(self) -> Iterator[EventRow]:
        for start, end, tid, correlation, name in self.rows(_PREFIX + "RUNTIME"):
            yield start, _length(start, end), self.name(name), -1, self.thread(tid), correlation, -1

    def kernels(self) -> Iterator[EventRow]:
        for *event, name, short, gx, gy, gz, bx, by, bz, registers, static, dynamic, node in self.rows(
            _PREFIX + "KERNEL"
        ):
            shared = static + dynamic if isinstance(static, int) and isinstance(dynamic, int) else -1
            launch = ([gx, gy, gz], [bx, by, bz], registers, shared)
            yield _activity(event, self.name(name if name in self.texts else short), events.KERNEL, launch, node=node)

    def copies(self) -> Iterator[EventRow]:
        for *event, size, kind, source, target, node in self.rows(_PREFIX + "MEMCPY"):
            direction = _COPIES.get(kind, events.OTHER_COPY)
            source, target = (_CODES["memory"].get(str(memory), "?") for memory in (source, target))
            name = self.raw.names.index(f"Memcpy {_COPY_WORDS[direction]} ({source} -> {target})")
            yield _activity(event, name, events.COPY, moved=(size, direction), node=node)

    def memsets(self) -> Iterator[EventRow]:
        for *event, size, node in self.rows(_PREFIX + "MEMSET"):
            yield _activity(event, self.raw.names.index("Memset"), events.MEMSET, moved=(size, -1), node=node)

    def graphs(self) -> Iterator[EventRow]:
        for *event, graph in self.rows(_PREFIX + "GRAPH_TRACE"):
            yield _activity(event, self.raw.names.index(f"CUDA graph {graph}"), events.GRAPH)

    def syncs(self) -> Iterator[EventRow]:
        for start, end, device, stream, pid, correlation, kind in self.rows(_PREFIX + "SYNCHRONIZATION"):
            code = _SYNCS.get(kind, events.SYNC_UNKNOWN)
            name = self.raw.names.index(f"synchronisation: {events.SYNC_KINDS[code]}")
            yield start, _length(start, end), name, code, device, stream, _process(pid), correlation

    def devices(self) -> Iterator[TraceGpu]:
        cuda = dict(self.rows("TARGET_INFO_CUDA_DEVICE"))
        for gpu, name, major, minor, sms in self.rows("TARGET_INFO_GPU"):
            capability = major + minor / 10 if isinstance(major, int) and isinstance(minor, int) else 0.0
            index = cuda.get(gpu, gpu)
            count = max(sms, 0) if isinstance(sms, int) else 0
            if isinstance(index, int):
                yield TraceGpu(index, clean_name(name or ""), round(capability, 1), count)


_NO_LAUNCH = (None, None, -1, -1)


def _activity(
    event: list[Any], name: int, kind: int, launch: EventRow = _NO_LAUNCH, moved: EventRow = (-1, -1), node: object = 0
) -> EventRow:
    """Return the raw row of a device activity.

    ``event`` holds the first six columns, ``launch`` grid, block, registers and shared memory, ``moved`` the bytes and
    the direction of a copy.
    """
    start, end, *place, process, correlation = event
    return start, _length(start, end), name, kind, *place, _process(process), correlation, -1, *launch, *moved, node


def _parsed(text: object) -> tuple[str, dict[str, str]]:
    """Return the name in an NVTX text, and the arguments that ``torch.autograd.profiler.emit_nvtx`` appended."""
    label = text if isinstance(text, str) else "unnamed"
    if call := _PYPROF.match(label):
        return ".".join(call.groups()), {}
    name, *fields = _FIELDS.split(label.partition(" | arg_type=")[0])
    return name or "unnamed", dict(zip(fields[::2], fields[1::2], strict=True))


def _length(start: object, end: object) -> int:
    return end - start if isinstance(start, int) and isinstance(end, int) else -1


def _thread(global_id: object) -> tuple[str, str]:
    number = global_id if isinstance(global_id, int) else 0
    return str(_process(number)), str(number & 0xFFFFFF)


def _process(global_id: object) -> int:
    """Return the process in the bits 24 to 47 of Nsight's global id; -1 if it is not an id."""
    return global_id >> 24 & 0xFFFFFF if isinstance(global_id, int) else -1
