"""PyTorch profiler (Kineto) traces in Chrome's JSON → `Trace`; the category names of both generations."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from surrogate.features.errors import InputError
from surrogate.trace.events import kinds
from surrogate.trace.events.build import build
from surrogate.trace.events.names import Interner, clean_name, clean_shapes, clean_texts
from surrogate.trace.events.rows import Parts
from surrogate.trace.events.scanner import Scanner
from surrogate.trace.events.tables import Device, Trace

_RANGES = {"operator": kinds.OPERATOR, "cpu_op": kinds.OPERATOR, "user_annotation": kinds.ANNOTATION}
_CALLS = {"runtime", "cuda_runtime", "cuda_driver", "driver", "hip_runtime", "xpu_runtime", "mtia_runtime"}
_ACTIVITIES = {
    "kernel": kinds.KERNEL, "memcpy": kinds.COPY, "gpu_memcpy": kinds.COPY, "memset": kinds.MEMSET,
    "gpu_memset": kinds.MEMSET, "concurrent_kernel": kinds.KERNEL,
}  # fmt: skip
IGNORED = {
    "async",
    "ac2g",
    "async_cpu_to_gpu",
    "async_gpu",
    "fwdbwd",
    "forward_backward",
    "gpu_user_annotation",
    "trace",
}
"""Categories that repeat what the other events say: arrows, annotations projected to the GPU, the recording itself."""
MAX_EVENTS = 10_000_000
"""Most events of a file; their rows take about 500 bytes each."""
Row = tuple[Any, ...]


def read_kineto(pieces: Iterable[bytes], source: str) -> Trace:
    """The trace in a file's (unpacked) bytes. Raises `InputError` for what is no trace; see `Scanner`.

    Events without a usable time are left out and counted in ``notes``; categories that no table holds are
    counted in ``ignored``.
    """
    scanner = Scanner(pieces, source)
    rows = _Rows()
    handlers = rows.handlers()
    for number, event in enumerate(scanner):
        if number >= MAX_EVENTS:
            raise InputError(
                f"{source}: over {MAX_EVENTS:,} events; record fewer iterations, or without Python stacks"
            )
        if type(event) is not dict:
            rows.damaged += 1
            continue
        phase, category = event.get("ph"), event.get("cat")
        handler = handlers.get(category) if phase == "X" and type(category) is str else None
        if handler is not None:
            arguments = event.get("args")
            handler(event, arguments if type(arguments) is dict else {})
        else:
            rows.other(event, phase, category)
    if not scanner.found_events and "nodes" in scanner.header:
        raise InputError(
            f"{source}: an execution trace, which holds shapes and no times; give it as --execution-trace beside the"
            " profiler's trace of the same program"
        )
    notes = ["the file ends early; what comes before its end is used"] if scanner.cut else []
    if rows.damaged:
        notes.append(f"{rows.damaged:,} entries of the events list are no events")
    rank, world = _ranks(scanner.header.get("distributedInfo"))
    return build(
        Parts(
            source=source,
            format="kineto",
            names=rows.names,
            shapes=rows.shapes,
            types=rows.types,
            inputs=rows.inputs,
            threads=rows.threads,
            thread_names=rows.thread_names,
            ranges=rows.ranges,
            frames=rows.frames,
            calls=rows.calls,
            activities=rows.activities,
            syncs=rows.syncs,
            allocations=rows.allocations,
            devices=_devices(scanner.header.get("deviceProperties")),
            rank=rank,
            world_size=world,
            notes=notes,
            ignored=dict(rows.ignored),
        )
    )


class _Rows:
    """Rows as they come, one list per table, in the column order of `surrogate.trace.events.build`."""

    def __init__(self) -> None:
        self.names, self.types = Interner(clean_name), Interner(clean_texts)
        self.inputs, self.shapes = Interner(clean_texts), Interner(clean_shapes)
        self.threads = Interner(lambda key: (clean_name(str(key[0])), clean_name(str(key[1]))))
        self.thread_names: dict[tuple[str, str], str] = {}
        self.ranges: list[Row] = []
        self.frames: list[Row] = []
        self.calls: list[Row] = []
        self.activities: list[Row] = []
        self.syncs: list[Row] = []
        self.allocations: list[Row] = []
        self.ignored: Counter[str] = Counter()
        self.damaged = 0

    def handlers(self) -> dict[str, Callable[[dict[str, Any], dict[str, Any]], None]]:
        """Category (old and new spelling) → what takes its events."""
        table: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {}
        for category, kind in _RANGES.items():
            table[category] = table[category.capitalize()] = _bound(self.range, kind)
        table["python_function"] = self.frame
        for category in _CALLS:
            table[category] = table[category.capitalize()] = self.call
        for category, kind in _ACTIVITIES.items():
            table[category] = table[category.capitalize()] = _bound(self.activity, kind)
        table["cuda_sync"] = self.sync
        return table

    def thread(self, event: dict[str, Any]) -> int:
        process, thread = event.get("pid"), event.get("tid")
        if type(process) not in _PLAIN or type(thread) not in _PLAIN:
            process, thread = str(process), str(thread)
        return self.threads.index((process, thread))

    def range(self, event: dict[str, Any], arguments: dict[str, Any], kind: int) -> None:
        get = arguments.get
        dims, stack = get("Input Dims", get("Input dims")), get("Call stack")
        types, inputs = get("Input type"), get("Concrete Inputs")
        self.ranges.append(
            (
                event.get("ts"), event.get("dur"), self.name(event.get("name")), kind, self.thread(event),
                get("External id", get("external id", -1)), get("Sequence number", -1), get("Fwd thread id", -1),
                self.shapes.index(repr(dims), dims) if dims is not None else -1,
                self.types.index(repr(types), types) if types is not None else -1,
                self.inputs.index(repr(inputs), inputs) if inputs is not None else -1,
                -1,
                self.name(stack) if stack else -1,
            )
        )  # fmt: skip

    def frame(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.frames.append(
            (
                event.get("ts"), event.get("dur"), self.name(event.get("name")), kinds.FRAME, self.thread(event),
                arguments.get("Python id", -1), -1, -1, -1, -1, -1, -1, -1,
            )
        )  # fmt: skip

    def call(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.calls.append(
            (
                event.get("ts"), event.get("dur"), self.name(event.get("name")), -1, self.thread(event),
                arguments.get("correlation", -1), arguments.get("External id", arguments.get("external id", -1)),
            )
        )  # fmt: skip

    def activity(self, event: dict[str, Any], arguments: dict[str, Any], kind: int) -> None:
        get = arguments.get
        self.activities.append(
            (
                event.get("ts"), event.get("dur"), self.name(event.get("name")), kind,
                get("device", event.get("pid")), get("stream", event.get("tid")), "",
                get("correlation", -1), get("External id", get("external id", -1)),
                get("grid"), get("block"), get("registers per thread", -1), get("shared memory", -1),
                get("bytes", -1), -1, get("graph node id", 0), get("est. achieved occupancy %"),
            )
        )  # fmt: skip

    def sync(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        get = arguments.get
        name = self.name(get("cuda_sync_kind", event.get("name")))
        self.syncs.append(
            (
                event.get("ts"), event.get("dur"), name, -1, get("device", event.get("pid")),
                get("stream", event.get("tid")), "", get("correlation", -1),
                get("wait_on_cuda_event_record_corr_id", -1),
            )
        )  # fmt: skip

    def other(self, event: dict[str, Any], phase: Any, category: Any) -> None:
        """Memory records and thread names; the rest is counted, arrows and marks are left out on purpose."""
        arguments = event.get("args")
        if event.get("name") == "[memory]" and type(arguments) is dict:
            get = arguments.get
            device = get("Device Id", -1) if get("Device Type", 0) else -1
            self.allocations.append(
                (
                    event.get("ts"),
                    get("Bytes"),
                    device,
                    get("Addr", -1),
                    get("Total Allocated", -1),
                    self.thread(event),
                )
            )
        elif phase == "M":
            if event.get("name") == "thread_name" and type(arguments) is dict:
                key = str(event.get("pid")), str(event.get("tid"))
                self.thread_names[key] = clean_name(str(arguments.get("name", "")))
        elif not (type(category) is str and category.lower() in IGNORED) and phase not in ("i", "I", "C"):
            self.ignored[f"{category} ({phase})"[:80]] += 1

    def name(self, value: Any) -> int:
        return self.names.index(value) if type(value) is str else self.names.index(repr(value))


_PLAIN = (int, str)


def _bound(method: Callable[..., None], kind: int) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda event, arguments: method(event, arguments, kind)


def _devices(properties: Any) -> list[Device]:
    found = []
    for at, one in enumerate(properties if isinstance(properties, list) else []):
        if not isinstance(one, dict):
            continue
        numbers = {
            key: value if isinstance(value := one.get(key), int) and 0 <= value < 2**62 else 0
            for key in ("id", "computeMajor", "computeMinor", "numSms", "totalGlobalMem")
        }
        capability = numbers["computeMajor"] + min(numbers["computeMinor"], 9) / 10
        index = numbers["id"] if "id" in one else at
        name = clean_name(one.get("name", ""))
        found.append(Device(index, name, round(capability, 1), numbers["numSms"], numbers["totalGlobalMem"]))
    return found


def _ranks(info: Any) -> tuple[int | None, int | None]:
    if not isinstance(info, dict):
        return None, None
    rank, world = info.get("rank"), info.get("world_size")
    return (rank if type(rank) is int else None), (world if type(world) is int else None)
