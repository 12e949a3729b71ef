"""Read a trace file: PyTorch profiler (Kineto) JSON of both generations here, Nsight Systems exports in `nsys`.

The first bytes determine the format, not the name. `trace_files` finds the traces in a folder or an archive.
"""

import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from surrogate.bundled import TRACES
from surrogate.features.errors import InputError, nearest, read_toml, require_regular
from surrogate.formats.foreign_file import chunks
from surrogate.formats.recognise import explained
from surrogate.trace import events
from surrogate.trace.events.batches import EventFile
from surrogate.trace.events.raw import PACKED_ROWS, EventRow, RawTrace, build_trace, clean_name
from surrogate.trace.events.tables import Trace, TraceGpu

if TYPE_CHECKING:
    from surrogate.formats.foreign_file import Progress

DEFAULT_MAX_BYTES = 2 << 30
"""The maximum size in bytes of an unpacked JSON trace."""
_SQLITE = b"SQLite format 3\x00"
_TRACES = (".json", ".json.gz", ".sqlite")
_ARCHIVES = (".tar.gz", ".tgz")
"""The endings of the names of traces in a folder or an archive, and of archives."""
_POINTS = ("i", "I", "C")
"""Phases of marks and counters, which have no duration."""
Event = Mapping[str, object]
"""A JSON object of the file, or its arguments."""
Handler = Callable[[EventRow, Event, Event], None]
"""A function of an event's start, length and name, of the event, and of its arguments."""
_UNKNOWN = (0, 0, 0)
_LIBRARIES = {"torch", "<frozen importlib", *sys.stdlib_module_names}

_CATEGORIES = read_toml(__file__)
"""The categories of events, by the table that they fill."""


def as_trace(given: object) -> Trace:
    """Return a trace unchanged, or read the trace of a path or name with `read_trace`.

    Raises `InputError` for any other type.
    """
    if isinstance(given, str | Path):
        return read_trace(given)
    if not isinstance(given, Trace):
        raise events.refusal("no_type", type=type(given).__name__)
    return given


def read_trace(path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: "Progress | None" = None) -> Trace:
    """Read a PyTorch profiler's JSON trace (plain, .gz, .bz2) or an Nsight Systems sqlite export.

    Parameters
    ----------
    path : str or Path
        The file, or the name of a shipped trace (`surrogate.bundled.TRACES`).
    max_bytes : int
        The maximum size in bytes of an unpacked JSON file.
    progress : callable, optional
        Called with (bytes of the file read so far, size of the file) while the file is read.

    Returns
    -------
    Trace

    Raises
    ------
    InputError
        If the file is missing, damaged, of another kind or too large, or has no event.
    """
    path = Path(path) if Path(path).exists() else TRACES.get(str(path), Path(path))
    if path.is_dir() or path.name.endswith(_ARCHIVES):
        raise events.refusal("several", path=path)
    require_regular(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except OSError as error:
        near = nearest(str(path).casefold(), TRACES)
        raise events.refusal(
            "unreadable", path=path, reason=error.strerror, ships=", ".join(TRACES), near=near
        ) from None
    if start.startswith((b"PK\x03\x04", b"\xfd7zXZ")):
        raise events.refusal("archive", path=path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise events.refusal("report", path=path)
    collecting = gc.isenabled()
    gc.disable()  # millions of new objects have no cycles to search for
    try:
        if start == _SQLITE:
            from surrogate.trace.events.nsys import read_nsys

            trace = read_nsys(path)
        else:
            trace = read_kineto(chunks(path, max_bytes=max_bytes, progress=progress), str(path))
    except InputError as error:
        raise InputError(explained(str(error), [path], "trace", "trace summary")) from None
    finally:
        if collecting:
            gc.enable()
    if not len(trace.activities):
        line = events.text("empty", path=path)
        other = explained(line, [path], "trace", "trace summary")
        if other != line or not (len(trace.ranges) or len(trace.calls) or len(trace.frames)):
            raise InputError(other)
    return trace


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The file of a trace, and its name for users; for a member of an archive, the archive's and the member's name."""

    path: Path
    display_name: str

    def read(self, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: "Progress | None" = None) -> Trace:
        """Read the trace. Messages and `Trace.source` contain the name for users."""
        path = str(self.path)
        try:
            trace = read_trace(path, max_bytes=max_bytes, progress=progress)
        except InputError as error:
            raise InputError(str(error).replace(path, self.display_name)) from None
        return replace(trace, source=trace.source.replace(path, self.display_name))


@contextmanager
def trace_files(paths: Sequence[str | Path], max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[list[TraceFile]]:
    """Yield the files of traces. A folder or an archive is replaced by the traces in it, sorted by name.

    Subfolders are searched, too. An archive's name ends in .tar.gz or .tgz. It is unpacked to at most ``max_bytes`` and
    removed at the end. Raises `InputError` if a folder or an archive has no trace, or if an archive is damaged or too
    large.
    """
    from surrogate.formats.foreign_file import untar

    with TemporaryDirectory() as folder:
        files: list[TraceFile] = []
        for path in map(Path, paths):
            if path.name.endswith(_ARCHIVES):
                unpacked = untar(path, Path(folder), _TRACES, max_bytes=max_bytes)
                found = [TraceFile(file, f"{path}/{name}") for name, file in unpacked]
            elif path.is_dir():
                found = [TraceFile(file, str(file)) for file in path.rglob("*") if file.name.endswith(_TRACES)]
            else:
                found = [TraceFile(path if path.exists() else TRACES.get(str(path), path), str(path))]
            if not found:
                raise events.refusal("no_trace", path=path)
            files += sorted(found, key=lambda file: file.display_name)
        yield files


def distinct_names(sources: Sequence[str]) -> list[str]:
    """Return the names of the traces' files, each with as many of its folders as make the names distinct."""
    paths = [Path(source).parts for source in sources]
    longest = max(map(len, paths), default=1)
    fewest = next((n for n in range(1, longest) if len({path[-n:] for path in paths}) == len(paths)), longest)
    return ["/".join(path[-fewest:]) for path in paths]


def read_kineto(pieces: Iterable[bytes], source: str) -> Trace:
    """Read a trace from a file's unpacked bytes: an object with a ``traceEvents`` list, or a list of events.

    Events without a usable time are left out and counted in ``notes``. Categories without a table are counted in
    ``ignored``. If the file ends early, its complete events are used. Raises `InputError` if the file is not a trace.
    """
    reader = _EventReader(RawTrace(source, "kineto"))
    raw = reader.raw
    file = EventFile(pieces)
    try:
        # Convert each batch into columns before the next is parsed; memory never holds all events as dicts.
        for batch in file:
            reader.keep(batch)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # such as a number of thousands of digits, or endless lists
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).partition(";")[0]
        raise events.refusal("not_json", source=source, fault=f"is not JSON or is damaged ({reason})") from None
    raw.ends_early = bool(file.ends_early)
    if file.ends_early and not reader.count:
        raise events.refusal("not_json", source=source, fault=f"is not JSON or is damaged ({file.ends_early})")
    if not file.ends_early and not isinstance(file.header.get("traceEvents"), list):
        name = "no_times" if "nodes" in file.header else "not_json"
        raise events.refusal(name, source=source, fault="has no list of events")
    if reader.others:
        raw.notes.append(events.text("no_event", count=reader.others))
    raw.devices = _devices(file.header.get("deviceProperties"))
    info = file.header.get("distributedInfo")
    values = map(info.get, ("rank", "world_size")) if isinstance(info, dict) else (None, None)
    raw.rank, raw.world_size = (value if type(value) is int else None for value in values)
    return build_trace(raw)


@lru_cache(maxsize=4096)
def _frame_kind(name: str) -> int:
    """Return the kind of a Python frame, -1 for a frame that is not kept.

    Modules, lines of user code, such as ``model.py(12): forward``, the DataLoader's code and garbage collections are
    kept. Other lines of torch and of Python's library are not. Python's own functions on files are system calls.
    """
    if events.FILE_CALL.search(name):
        return events.SYSTEM_CALL
    if events.COLLECTION_NAME.search(name):
        return events.COLLECTION
    file, is_line, _ = name.partition(".py(")
    if is_line and "torch/utils/data/" in file:
        return events.LOADER
    is_kept = name.startswith(events.MODULE) or (is_line and file.split("/")[0] not in _LIBRARIES)
    return events.FRAME if is_kept else -1


class _EventReader:
    """A collector of events as rows of ``raw``. ``count`` is the number of events, ``others`` the number of other
    entries.
    """

    def __init__(self, raw: RawTrace) -> None:
        self.raw = raw
        self.count = 0
        self.others = 0
        self.signatures: dict[bytes | str, tuple[int, ...]] = {}
        self.add = {name: table.rows.append for name, table in raw.tables.items()}
        self.handlers: dict[str, Handler] = {"python_function": self.frame, "cuda_sync": self.sync}
        of_category: dict[str, Handler] = dict.fromkeys(_CATEGORIES["calls"], self.call)
        for table, handler in {"ranges": self.range, "activities": self.activity}.items():
            for category, kind in _CATEGORIES[table].items():
                of_category[category] = partial(handler, kind=getattr(events, kind))
        for category, handler in of_category.items():
            self.handlers[category] = self.handlers[category.capitalize()] = handler

    def keep(self, batch: Sequence[Any]) -> None:
        """Keep the events among the entries."""
        others = 0
        names = self.raw.names
        for event in batch:
            phase = event.get("ph") if type(event) is dict else None
            if phase is None:
                others += event is not None
                continue
            category = event.get("cat")
            name = event.get("name")
            args = event.get("args")
            arguments: Event = args if type(args) is dict else {}
            handler = self.handlers.get(category) if phase == "X" and type(category) is str else None
            if handler is not None:
                # Most events are Python frames, of which few are kept.
                if category != "python_function" or (type(name) is str and _frame_kind(name) >= 0):
                    index = names[name if type(name) is str else repr(name)]
                    handler((event.get("ts"), event.get("dur"), index), event, arguments)
            elif name == "[memory]" and arguments:
                self.allocation(event, arguments)
            elif phase == "M":
                if name == "thread_name" and arguments:
                    key = (str(event.get("pid")), str(event.get("tid")))
                    self.raw.thread_names[key] = clean_name(str(arguments.get("name", "")))
            elif phase not in _POINTS and not (type(category) is str and category.lower() in _CATEGORIES["ignored"]):
                self.raw.ignored[f"{category} ({phase})"[:80]] += 1
        self.others += others
        self.count += len(batch) - others
        for table in self.raw.tables.values():
            if len(table.rows) >= PACKED_ROWS:
                table.pack()

    def thread(self, event: Event) -> int:
        process = event.get("pid")
        thread = event.get("tid")
        try:
            return self.raw.threads[process, thread]
        except TypeError:  # the id is a list
            return self.raw.threads[str(process), str(thread)]

    def range(self, head: EventRow, event: Event, arguments: Event, kind: int) -> None:
        get = arguments.get
        stack = get("Call stack")
        line = self.raw.names[stack if type(stack) is str else repr(stack)] if stack else -1
        texts = self.signature(get("Input Dims", get("Input dims")), get("Input type"), get("Concrete Inputs"))
        external, sequence = get("External id", get("external id", -1)), get("Sequence number", -1)
        forward = get("Fwd thread id", -1)
        self.add["ranges"]((*head, kind, self.thread(event), external, sequence, forward, *texts, line))

    def signature(self, *values: object) -> tuple[int, ...]:
        """Return the indices of an operator's shapes, types and scalar inputs, -1 for None."""
        try:
            key = msgspec.json.encode(values)
        except UnicodeError:  # half of a surrogate pair
            key = repr(values)
        if key not in self.signatures:
            pairs = zip((self.raw.shapes, self.raw.types, self.raw.inputs), values, strict=True)
            self.signatures[key] = tuple(
                -1 if value is None else texts.index(repr(value), value) for texts, value in pairs
            )
        return self.signatures[key]

    def frame(self, head: EventRow, event: Event, arguments: Event) -> None:
        kind = _frame_kind(str(event["name"]))
        self.add["frames"]((*head, kind, self.thread(event), arguments.get("Python id", -1), *[-1] * 6))

    def call(self, head: EventRow, event: Event, arguments: Event) -> None:
        get = arguments.get
        ids = get("correlation", -1), get("External id", get("external id", -1))
        self.add["calls"]((*head, -1, self.thread(event), *ids))

    def activity(self, head: EventRow, event: Event, arguments: Event, kind: int) -> None:
        get = arguments.get
        device, stream = get("device", event.get("pid")), get("stream", event.get("tid"))
        launch, external = get("correlation", -1), get("External id", get("external id", -1))
        grid, block, registers = get("grid", _UNKNOWN), get("block", _UNKNOWN), get("registers per thread", -1)
        shared, size, node = get("shared memory", -1), get("bytes", -1), get("graph node id", 0)
        place = self.raw.places[str(event.get("pid"))]
        row = (*head, kind, device, stream, place, launch, external, grid, block, registers, shared, size, -1, node)
        self.add["activities"](row)

    def sync(self, head: EventRow, event: Event, arguments: Event) -> None:
        get = arguments.get
        kind = get("cuda_sync_kind")
        name = head[2] if kind is None else self.raw.names[kind if type(kind) is str else repr(kind)]
        device, stream = get("device", event.get("pid")), get("stream", event.get("tid"))
        place = self.raw.places[str(event.get("pid"))]
        self.add["syncs"]((*head[:2], name, -1, device, stream, place, get("correlation", -1)))

    def allocation(self, event: Event, arguments: Event) -> None:
        get = arguments.get
        device = get("Device Id", -1) if get("Device Type", 0) else -1
        self.add["allocations"]((event.get("ts"), get("Bytes"), device, self.thread(event), get("Total Allocated", -1)))


def _devices(properties: Any) -> list[TraceGpu]:
    """Return the GPUs that the header lists, up to the first damaged one."""
    devices: list[TraceGpu] = []
    with suppress(AttributeError, TypeError, ValueError, OverflowError):
        for position, entry in enumerate(properties or ()):
            keys = {"id": position, "numSms": 0, "computeMajor": 0, "computeMinor": 0}
            index, sms, major, minor = (int(entry.get(key, default)) for key, default in keys.items())
            devices.append(TraceGpu(index, clean_name(entry.get("name", "")), round(major + minor / 10, 1), sms))
    return devices
