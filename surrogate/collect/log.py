"""The run's log, and a device that replays a log. The log holds append-only JSON lines and survives a kill at any byte.

Line 1 is the header: schema version, device, plan, protocol. For each planned problem, identified by its key, these
records follow:

- ``problem``: origin, networks, candidates, the library's ranking,
- ``measure``: one per algorithm, and one more after a measurement that lost the device,
- ``done``: written when all algorithms are measured; Find's result and the clocks,
- ``counters``: if counters were taken.

Each record is written as one complete line by one ``write``. So a killed process loses at most the measurement in
progress. ``fsync`` follows every `FSYNC_SECONDS`, so a power cut loses little more. When the run continues, an
incomplete last line is removed.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, Self

from surrogate.collect.device import Device, DeviceInfo, HeuristicEntry, JsonRecord, Measurement, RepeatPolicy
from surrogate.collect.plan import PlannedProblem, problem_key
from surrogate.dataset.files import require_readable
from surrogate.features import Conv, InputError, nearest, parse
from surrogate.formats.foreign_file import read_bytes, readable

SCHEMA_VERSION = 1
"""Version of the log's layout. History: 1, the first."""
FSYNC_SECONDS = 2.0
HEADER = "seer-collect"
DAMAGED = "a record is damaged, leave the file out"
MAX_BYTES = 2 << 30
"""Largest size of an unpacked log; two million records fit."""


LogRecord = dict[str, Any]
"""A record of any kind; `_FIELDS` lists the keys of each kind."""
_FIELDS: Mapping[str, Mapping[str, type]] = {
    "problem": {"problem": str, "origin": str, "networks": list, "candidates": list, "heuristic": list},
    "measure": {"problem": str, "algorithm": str, "result": dict},
    "done": {"problem": str, "find": list, "conditions": dict},
    "operator": {"problem": str, "result": dict, "conditions": dict},
    "counters": {"problem": str, "algorithm": str, "kernels": list},
}
"""Kind of record → its required keys and their types."""
KINDS = tuple(_FIELDS)


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a log. A run continues only if its header agrees."""

    device: DeviceInfo
    plan_digest: str
    shard: tuple[int, int]
    description: str = ""
    seed: int = 0
    protocol: Mapping[str, Any] = field(default_factory=dict)
    created_s: float = 0.0
    """Unix time of the run's first start."""

    def to_dict(self) -> dict[str, object]:
        """Return the JSON of the first line."""
        plan = {"digest": self.plan_digest, "shard": list(self.shard), "description": self.description}
        facts = {"created_s": self.created_s, "device": self.device.to_dict(), "plan": plan | {"seed": self.seed}}
        return {"kind": HEADER, "schema": SCHEMA_VERSION, **facts, "protocol": dict(self.protocol)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], path: Path) -> Self:
        """Return the header of a `to_dict`. Raises `InputError` for a foreign file or a newer schema."""
        if values.get("kind") != HEADER:
            raise InputError(f"{path}: its first line is no header of a run of `seer collect`")
        require_readable(path, values["schema"], SCHEMA_VERSION)
        plan = values["plan"]
        first, last = plan["shard"]
        optional = {name: plan[name] for name in ("description", "seed") if name in plan}
        optional |= {name: values[name] for name in ("protocol", "created_s") if name in values}
        return cls(DeviceInfo.from_dict(values["device"]), plan["digest"], (first, last), **optional)

    def conflict(self, other: "Header") -> str:
        """Return the reason why a run with this header cannot continue as ``other``; empty if it can."""
        identity, other_identity = self._identity(), other._identity()
        if self.plan_digest == other.plan_digest:  # plans are the same if their digests are, whatever their text
            other_identity["plan"] = identity["plan"]
        for name, value in identity.items():
            if value != other_identity[name]:
                return f"was recorded with {name} {value}, this is {other_identity[name]}"
        return ""

    def _identity(self) -> dict[str, object]:
        """Return the values that must agree, by the names that messages use."""
        return {
            "GPU": self.device.gpu,
            "library": self.device.library,
            "library version": self.device.library_version,
            "shard": "/".join(map(str, self.shard)),
            "plan": f"{self.description}, seed {self.seed}, digest {self.plan_digest[:12]}",
            "timing protocol": dict(self.protocol),
        }


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a log: its header (None for an empty file), its records, and the bytes of its complete lines."""

    header: Header | None
    records: tuple[LogRecord, ...]
    complete_bytes: int


def read_log(path: str | Path) -> Contents:
    """Return all complete records of the log ``path``, which may be packed by gzip.

    An incomplete last line is left out. Raises `InputError` for any other unreadable line.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such run; `seer collect -o` writes one")
    data = read_bytes(path, max_bytes=MAX_BYTES)
    complete_bytes = data.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(data[:complete_bytes].split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            _check_record(record, first=number == 1)
        except (ValueError, RecursionError) as error:
            wrong = f"{path}:{number}: not a record of a run ({error})"
            raise InputError(f"{wrong}; only the last line of a killed run may be incomplete") from None
        records.append(record)
    if not records:
        return Contents(None, (), 0)
    with readable(path, DAMAGED):
        return Contents(Header.from_dict(records[0], path), tuple(records[1:]), complete_bytes)


class RunLog(AbstractContextManager["RunLog"]):
    """A run's log, open for appending. It holds the file's lock until it is closed."""

    def __init__(self, path: str | Path, header: Header) -> None:
        """Open ``path`` to continue the run in it, or to begin a run.

        Raises `InputError` if another run holds the file's lock, if the file is no log, or if it belongs to another
        device, library version, plan, shard or protocol.
        """
        self.path = Path(path)
        self._file = _open_locked(self.path)
        try:
            contents = read_log(self.path)
            if contents.header is None:
                begun = self.path.read_bytes()  # an incomplete line is ours only if a header begins with it
                expected = b'{"kind":"' + HEADER.encode() + b'"'
                if not (begun.startswith(expected) or expected.startswith(begun)):
                    raise InputError(f"{self.path}: the file is no run; give another -o")
                self.header = header
                self._file.truncate(0)
                self.append(header.to_dict())
                self.sync()
            else:
                self.header = contents.header
                conflict = contents.header.conflict(header)
                if conflict:
                    raise InputError(f"{self.path}: {conflict}; give another -o, or repeat the run's own command")
                self._file.truncate(contents.complete_bytes)
                self._end = contents.complete_bytes
            self.records = contents.records
        except BaseException:
            self._file.close()
            raise
        self._synced_s = time.monotonic()

    def append(self, record: Mapping[str, object]) -> None:
        """Append one record of JSON values and `JsonRecord`s as one line, and sync every `FSYNC_SECONDS`.

        Raises `OSError` if the line does not fit (the disk is full). The log then ends with the previous record.
        """
        line = json.dumps(record, separators=(",", ":"), allow_nan=False, default=JsonRecord.to_dict).encode() + b"\n"
        written = 0
        try:
            while written < len(line):  # a disk that fills up accepts a part, then refuses the next write
                written += self._file.write(line[written:])
        except BaseException:
            self._file.truncate(self._end)
            raise
        self._end += len(line)
        if time.monotonic() - self._synced_s > FSYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Force all written records to the disk."""
        os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()

    def close(self) -> None:
        """Sync the file and release its lock."""
        if not self._file.closed:
            self.sync()
            self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    _synced_s: float = 0.0
    _end: int = 0
    """Position in the file after the last complete record."""


def _open_locked(path: Path) -> FileIO:
    """Return ``path`` open for unbuffered appending, and locked against a second run if the system has file locks."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise InputError(f"{path}: cannot be written (it is {kind}); give another -o")
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); give another -o") from None
    try:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # this system has no file locks: the user must not start two runs on one log
        pass
    except OSError:
        file.close()
        raise InputError(f"{path}: another run is writing to it; wait for it, or give another -o") from None
    return file


def _check_record(record: object, *, first: bool) -> None:
    """Raise `ValueError` if ``record`` is no record of a log. The ``first`` record is the header and has any kind."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise ValueError("not a record")
    if first:
        return
    if record["kind"] not in _FIELDS:
        raise ValueError(f"kind {record['kind']!r} is unknown")
    for name, kind in _FIELDS[record["kind"]].items():
        if not isinstance(record.get(name), kind):
            raise ValueError(f"{record['kind']} record without {name}")


def problem_record(problem: PlannedProblem, candidates: Sequence[str], ranking: Sequence[HeuristicEntry]) -> LogRecord:
    """Return the record that is written before a problem's first measurement."""
    source = {"kind": "problem", "problem": problem.key, "origin": problem.origin, "networks": problem.networks}
    return {**source, "candidates": candidates, "heuristic": ranking}


def key_without_visit(key: str) -> str:
    """Return the part of the key that all visits share: the problem with its settings."""
    return key.partition(" #")[0]


@lru_cache(maxsize=8192)
def conv_of(key: str) -> Conv:
    """Return the problem of a key. Raises `InputError` for an unreadable key."""
    parts = key_without_visit(key).split(" ")
    if len(parts) != 5:
        raise InputError(f"problem {key!r} is not readable; it is PROBLEM dtype math layout direction")
    text, dtype, math, layout, direction = parts
    return parse(text, dtype=dtype, math=math, layout=layout, direction=direction)


EMPTY = "the run has no measurement; replay needs at least one"


class ReplayDevice(Device):
    """A device that returns the answers recorded in a log. It always returns the first of several visits."""

    def __init__(self, path: str | Path) -> None:
        """Read the run at ``path``. Raises `InputError` if it is no run or has no measurement."""
        contents = read_log(path)
        if contents.header is None:
            raise InputError(f"{path}: {EMPTY}")
        self.path = Path(path)
        self._info = contents.header.device
        self._problems: dict[str, LogRecord] = {}
        self._finds: dict[str, LogRecord] = {}
        self._measured: dict[str, dict[str, Measurement]] = {}
        with readable(path, DAMAGED, keep_input_errors=False):
            for record in contents.records:
                self._add(record)
        if not self._measured:
            raise InputError(f"{path}: {EMPTY}")

    def _add(self, record: LogRecord) -> None:
        key = key_without_visit(record["problem"])
        if record["kind"] == "problem":
            self._problems.setdefault(key, record)
        elif record["kind"] == "done":
            self._finds.setdefault(key, record)
        elif record["kind"] == "measure":
            result = Measurement.from_dict(record["result"])
            if not result.lost:
                self._measured.setdefault(key, {}).setdefault(record["algorithm"], result)

    def problems(self) -> list[PlannedProblem]:
        """Return the recorded problems that have a measurement, as the source of a plan."""
        measured = [(conv_of(key), record) for key, record in self._problems.items() if key in self._measured]
        return [PlannedProblem(conv, record["origin"], tuple(record["networks"])) for conv, record in measured]

    def device_info(self) -> DeviceInfo:
        """Return the description of the recorded device."""
        return self._info

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """Return the algorithms that were measured for ``conv``, in the library's order.

        These are all algorithms, unless the recorded run was cut.
        """
        measured = self._measured.get(problem_key(conv), {})
        return tuple(name for name in self._recorded(conv)["candidates"] if name in measured)

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return the recorded ranking."""
        return HeuristicEntry.all_from(self._recorded(conv).get("heuristic", ()))

    def find(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return Find's recorded result; empty if the recorded run was cut before it."""
        return HeuristicEntry.all_from(self._finds.get(problem_key(conv), {}).get("find", ()))

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Return the recorded measurement. The policy is ignored: the recorded run had its own."""
        self._recorded(conv)
        measured = self._measured.get(problem_key(conv), {})
        if algorithm not in measured:
            recorded = f"{', '.join(measured) or 'none'}{nearest(algorithm, measured)}"
            raise InputError(f"{self.path}: {algorithm} was not recorded for {problem_key(conv)}; recorded: {recorded}")
        return measured[algorithm]

    def _recorded(self, conv: Conv) -> LogRecord:
        key = problem_key(conv)
        if key not in self._problems:
            rule = f"replay has recorded problems only{nearest(key, self._problems, count=1)}"
            raise InputError(f"{self.path}: {key} was not recorded ({len(self._problems)} problems are); {rule}")
        return self._problems[key]
