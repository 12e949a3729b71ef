"""Reading a trace file: PyTorch profiler (Kineto) JSON of both generations here, Nsight Systems in `nsys`.

The format is told by the first bytes, never by the name.
"""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surrogate.bundled import TRACES
from surrogate.features.errors import InputError, require_regular
from surrogate.trace.events import kinds
from surrogate.trace.events.build import build
from surrogate.trace.events.raw import RawTrace, clean_name
from surrogate.trace.events.tables import Device, Trace

if TYPE_CHECKING:
    from surrogate.formats.foreign_file import Progress

DEFAULT_MAX_BYTES = 2 << 30
"""Most bytes that a JSON trace may unpack to; its text is held in memory while it is parsed."""
_SQLITE = b"SQLite format 3\x00"
Handler = Callable[[dict[str, Any], dict[str, Any]], None]

_RANGES = {"operator": kinds.OPERATOR, "cpu_op": kinds.OPERATOR, "user_annotation": kinds.ANNOTATION}
_CALLS = ("runtime", "cuda_runtime", "cuda_driver", "driver", "hip_runtime", "xpu_runtime", "mtia_runtime")
_ACTIVITIES = {
    "kernel": kinds.KERNEL, "memcpy": kinds.COPY, "gpu_memcpy": kinds.COPY, "memset": kinds.MEMSET,
    "gpu_memset": kinds.MEMSET, "concurrent_kernel": kinds.KERNEL,
}  # fmt: skip
_IGNORED = {
    "async", "ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "forward_backward", "gpu_user_annotation", "trace",
}  # fmt: skip
"""Categories that repeat what the other events say: arrows, annotations projected to the GPU, the recording itself."""
_TAIL = 12  # characters; a number or a literal cut by the end of the file fails this close to it


def read_trace(path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: "Progress | None" = None) -> Trace:
    """The trace in ``path``: a PyTorch profiler's JSON (plain, .gz, .bz2) or an Nsight Systems sqlite export.

    A name of `surrogate.bundled.TRACES` is a trace that ships.

    ``max_bytes`` is the most that a JSON file may unpack to, ``progress`` is called with (bytes of the file read, its
    size) now and then. Raises `InputError` for a file that is missing, damaged, of another kind, too large, or holds
    no event.
    """
    path = Path(path)
    if not path.exists():
        path = TRACES.get(str(path), path)
    require_regular(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except OSError as error:
        known = ", ".join(TRACES)
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a trace, or {known}, which ships") from None
    with _without_collector():
        if start == _SQLITE:
            from surrogate.trace.events.nsys import read_nsys

            trace = read_nsys(path)
        else:
            from surrogate.formats.foreign_file import read_bytes

            content = read_bytes(path, max_bytes=max_bytes, progress=progress)
            trace = read_kineto(content, str(path))
    if not (len(trace.ranges) or len(trace.calls) or len(trace.activities) or len(trace.frames)):
        raise InputError(
            f"{path}: holds no operators, calls or kernels; record it with torch.profiler's"
            " export_chrome_trace, or export it with nsys export --type sqlite"
        )
    return trace


@contextmanager
def _without_collector() -> Iterator[None]:
    """The garbage collector switched off: it would search millions of new tuples for cycles they cannot have."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_kineto(content: bytes, source: str) -> Trace:
    """The trace in a file's (unpacked) bytes: an object with a ``traceEvents`` list, or a bare list of events.

    Events without a usable time are left out and counted in ``notes``; categories that no table holds are counted in
    ``ignored``. Of a file that ends early the whole events are used. Raises `InputError` for what is no trace.
    """
    text = content.decode("utf-8-sig", "replace")
    reader = _EventReader(RawTrace(source, "kineto"))
    raw = reader.raw
    try:
        # Each event becomes a row while the file is parsed, so that memory never holds all events as dicts.
        whole = json.JSONDecoder(object_hook=reader.take, strict=False).decode(text)
    except json.JSONDecodeError as error:
        at_the_end = error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()) - _TAIL
        if not (reader.count and at_the_end):
            raise _refusal(source, f"is no JSON or damaged ({error.msg})") from None
        raw.notes.append("the file ends early; what comes before its end is used")
        whole = _header(text) | {"traceEvents": []}
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or lists without end
        raise _refusal(source, f"is damaged ({str(error).partition(';')[0]})") from None
    header = whole if isinstance(whole, dict) else {"traceEvents": whole}
    events = header.get("traceEvents")
    if not isinstance(events, list):
        if "nodes" in header:
            raise InputError(
                f"{source}: an execution trace, which holds shapes and no times; give it as --execution-trace beside"
                " the profiler's trace of the same program"
            )
        raise _refusal(source, "holds no list of events")
    if damaged := sum(entry is not None for entry in events):
        raw.notes.append(f"{damaged:,} entries of the events list are no events")
    raw.devices = _devices(header.get("deviceProperties"))
    info = header.get("distributedInfo")
    if isinstance(info, dict):
        raw.rank, raw.world_size = (
            value if type(value) is int else None for value in map(info.get, ("rank", "world_size"))
        )
    return build(raw)


def _refusal(source: str, what: str) -> InputError:
    return InputError(
        f"{source}: {what}; give a PyTorch profiler trace (.json, .json.gz) or an Nsight Systems export"
        " (nsys export --type sqlite)"
    )


def _header(text: str) -> dict[str, Any]:
    """What stands before the list of events in a file that ends early."""
    try:
        header = json.loads(text[: text.index('"traceEvents"')].rstrip().rstrip(",") + "}")
    except ValueError:
        return {}
    return header if isinstance(header, dict) else {}


class _EventReader:
    """Takes each JSON object of the file and keeps those that are events as rows of ``raw``."""

    def __init__(self, raw: RawTrace) -> None:
        self.raw, self.count = raw, 0
        self.handlers: dict[str, Handler] = {"python_function": self.frame, "cuda_sync": self.sync}
        of_category = {
            **{category: partial(self.range, kind=kind) for category, kind in _RANGES.items()},
            **dict.fromkeys(_CALLS, self.call),
            **{category: partial(self.activity, kind=kind) for category, kind in _ACTIVITIES.items()},
        }
        for category, handler in of_category.items():
            self.handlers[category] = self.handlers[category.capitalize()] = handler

    def take(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The object itself, or None for an event, which is kept as a row."""
        phase = event.get("ph")
        if phase is None:
            return event
        self.count += 1
        category, arguments = event.get("cat"), event.get("args")
        arguments = arguments if type(arguments) is dict else {}
        handler = self.handlers.get(category) if phase == "X" and type(category) is str else None
        if handler is not None:
            handler(event, arguments)
        elif event.get("name") == "[memory]" and arguments:
            self.allocation(event, arguments)
        elif phase == "M":
            if event.get("name") == "thread_name" and arguments:
                key = str(event.get("pid")), str(event.get("tid"))
                self.raw.thread_names[key] = clean_name(str(arguments.get("name", "")))
        elif not (type(category) is str and category.lower() in _IGNORED) and phase not in ("i", "I", "C"):
            self.raw.ignored[f"{category} ({phase})"[:80]] += 1
        return None

    def thread(self, event: dict[str, Any]) -> int:
        process, thread = event.get("pid"), event.get("tid")
        try:
            return self.raw.threads.index((process, thread))
        except TypeError:  # a list in the place of an id
            return self.raw.threads.index((str(process), str(thread)))

    def range(self, event: dict[str, Any], arguments: dict[str, Any], kind: int) -> None:
        raw, get = self.raw, arguments.get
        dims, stack = get("Input Dims", get("Input dims")), get("Call stack")
        types, inputs = get("Input type"), get("Concrete Inputs")
        raw.ranges.append((
            event.get("ts"), event.get("dur"), raw.name(event.get("name")), kind, self.thread(event),
            get("External id", get("external id", -1)), get("Sequence number", -1), get("Fwd thread id", -1),
            raw.shapes.index(repr(dims), dims) if dims is not None else -1,
            raw.types.index(repr(types), types) if types is not None else -1,
            raw.inputs.index(repr(inputs), inputs) if inputs is not None else -1,
            -1,
            raw.name(stack) if stack else -1,
        ))  # fmt: skip

    def frame(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.raw.frames.append((
            event.get("ts"), event.get("dur"), self.raw.name(event.get("name")), kinds.FRAME, self.thread(event),
            arguments.get("Python id", -1), -1, -1, -1, -1, -1, -1, -1,
        ))  # fmt: skip

    def call(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        get = arguments.get
        self.raw.calls.append((
            event.get("ts"), event.get("dur"), self.raw.name(event.get("name")), -1, self.thread(event),
            get("correlation", -1), get("External id", get("external id", -1)),
        ))  # fmt: skip

    def activity(self, event: dict[str, Any], arguments: dict[str, Any], kind: int) -> None:
        get = arguments.get
        self.raw.activities.append((
            event.get("ts"), event.get("dur"), self.raw.name(event.get("name")), kind,
            get("device", event.get("pid")), get("stream", event.get("tid")), "",
            get("correlation", -1), get("External id", get("external id", -1)),
            get("grid"), get("block"), get("registers per thread", -1), get("shared memory", -1),
            get("bytes", -1), -1, get("graph node id", 0),
        ))  # fmt: skip

    def sync(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        get = arguments.get
        self.raw.syncs.append((
            event.get("ts"), event.get("dur"), self.raw.name(get("cuda_sync_kind", event.get("name"))), -1,
            get("device", event.get("pid")), get("stream", event.get("tid")), "", get("correlation", -1),
        ))  # fmt: skip

    def allocation(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        get = arguments.get
        device = get("Device Id", -1) if get("Device Type", 0) else -1
        self.raw.allocations.append((event.get("ts"), get("Bytes"), device, self.thread(event)))


def _devices(properties: Any) -> list[Device]:
    """The GPUs that the header lists; none where the list is damaged."""
    try:
        return [
            Device(
                int(entry.get("id", position)),
                clean_name(entry.get("name", "")),
                round(int(entry.get("computeMajor", 0)) + int(entry.get("computeMinor", 0)) / 10, 1),
                int(entry.get("numSms", 0)),
            )
            for position, entry in enumerate(properties or ())
        ]
    except (AttributeError, TypeError, ValueError, OverflowError):
        return []
