"""Measured times of algorithms, kept between runs: what was measured once beats every prediction.

Keyed by the device's name, its library and version, and the problem with its element type, math, layout and direction.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from surrogate.collect.device import DeviceInfo, Measurement
from surrogate.collect.plan import problem_key
from surrogate.collect.protocol import summarise
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import canonical
from surrogate.prediction.checked_lines import CheckedLines, FileKind, Record

KIND = FileKind("seer-tuning-cache", 1)
"""Schema history: 1, the first."""
FILE_NAME = "tuning.jsonl"
ENVIRONMENT_VARIABLE = "SEER_CACHE"
MAX_BYTES = 16 * 2**20
"""Size above which a file is compacted: about 80,000 measurements."""
Question = tuple[str, str]
"""Device (`device_key`) and problem (`surrogate.collect.plan.problem_key`)."""
_log = logging.getLogger("surrogate")
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Tuning:
    """What one measurement found: ``time_us`` is the median of the repeats, None where the algorithm did not run."""

    status: str
    time_us: float | None = None
    workspace_bytes: int | None = None
    deterministic: bool | None = None
    reason: str = ""

    @classmethod
    def of(cls, measured: Measurement) -> Self:
        """The part of a measurement that is kept."""
        time_us = summarise(measured.times_us).median_us if measured.times_us else None
        return cls(
            measured.status, time_us, measured.workspace_bytes, measured.deterministic, measured.reason
        )

    def to_dict(self) -> Record:
        """Field name → plain JSON value, without what says nothing."""
        values = {"status": self.status, "time_us": self.time_us, "workspace_bytes": self.workspace_bytes,
                  "deterministic": self.deterministic, "reason": self.reason}  # fmt: skip
        return {name: value for name, value in values.items() if value not in (None, "")}

    @property
    def makes_sense(self) -> bool:
        """False for what no measurement gives: ok and its time go together, and a time is a positive number."""
        time_us, size = self.time_us, self.workspace_bytes
        if not isinstance(self.status, str) or not isinstance(self.reason, str):
            return False
        if size is not None and (type(size) is not int or size < 0):
            return False
        if time_us is None:
            return self.status != "ok"
        return self.status == "ok" and type(time_us) in (int, float) and 0 < time_us < float("inf")

    @property
    def keeps(self) -> bool:
        """False for a failure, which another day may not repeat."""
        return self.status != "failed"


@dataclass(slots=True)
class TuningCache:
    """Measurements by device, problem and algorithm, in a file that many processes share; ``path`` None: in memory.

    Where the file cannot be read or written, one warning says so and the measurements stay in memory. Raises
    `InputError` for a file that is something else, or that a newer release wrote.
    """

    path: Path | None = None
    max_bytes: int = MAX_BYTES
    _known: dict[Question, dict[str, Tuning]] = field(default_factory=dict, repr=False)
    _lines: CheckedLines | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.path is not None:
            self._lines = CheckedLines(Path(self.path), KIND)

    def get(self, device: DeviceInfo, conv: Conv) -> Mapping[str, Tuning]:
        """Algorithm → what is known of it on this device and problem; what other processes added counts."""
        self._refresh()
        return dict(self._known.get((device_key(device), problem_key(conv)), {}))

    def put(self, device: DeviceInfo, conv: Conv, algorithm: str, tuning: Tuning) -> None:
        """Keep one measurement; the latest of a key counts."""
        question = (device_key(device), problem_key(conv))
        self._known.setdefault(question, {})[algorithm] = tuning
        if self._lines is None:
            return
        try:
            size = self._lines.append(_record(question, algorithm, tuning))
        except OSError as error:
            self._give_up(error)
            return
        if size > self.max_bytes:
            self._compact(self._lines)

    def _compact(self, lines: CheckedLines) -> None:
        try:
            lines.compact(lambda records: _newest(records, self.max_bytes // 2))
        except (
            OSError,
            InputError,
        ) as error:  # a folder in which no file may be made: the size stays bounded
            self._give_up(error)

    def __len__(self) -> int:
        self._refresh()
        return sum(map(len, self._known.values()))

    def _refresh(self) -> None:
        if self._lines is None:
            return
        try:
            for question, algorithm, tuning in _entries(self._lines.read_new()):
                self._known.setdefault(question, {})[algorithm] = tuning
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError | InputError) -> None:
        """Go on in memory, and say so once per place."""
        warn_once(
            f"{self.path}: measurements are not kept ({getattr(error, 'strerror', None) or error});"
            f" {ENVIRONMENT_VARIABLE} names another folder for them"
        )
        self._lines = None


def default_cache() -> TuningCache:
    """The user's cache; in memory, with a warning, where the user has no home and ``SEER_CACHE`` is not set."""
    folder = cache_folder()
    if folder is None:
        warn_once(
            f"HOME is not set: measurements are not kept; {ENVIRONMENT_VARIABLE} names a folder for them"
        )
        return TuningCache()
    return TuningCache(folder / FILE_NAME)


def cache_folder(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path | None:
    """Where caches of this user lie: ``SEER_CACHE``, else ``seer-surrogate`` where the platform has them, or None.

    Linux and others: ``XDG_CACHE_HOME`` if it is absolute, else ``~/.cache`` (XDG base directory specification);
    macOS: ``~/Library/Caches``; Windows: ``%LOCALAPPDATA%``.
    """
    known = os.environ if environment is None else environment
    if known.get(ENVIRONMENT_VARIABLE):
        return Path(known[ENVIRONMENT_VARIABLE])
    home = known.get("USERPROFILE" if platform == "win32" else "HOME", "")
    if platform == "win32":
        base = known.get("LOCALAPPDATA") or (home and f"{home}/AppData/Local")
    elif platform == "darwin":
        base = home and f"{home}/Library/Caches"
    else:
        named = known.get("XDG_CACHE_HOME", "")
        base = named if named.startswith("/") else home and f"{home}/.cache"
    return Path(base) / "seer-surrogate" if base else None


def device_key(device: DeviceInfo) -> str:
    """Device, library and version in one line: two boards of one model share their times."""
    return f"{canonical(device.gpu)}|{device.library}|{device.library_version}"


def warn_once(text: str) -> None:
    """One line in the log (standard error, unless the program configures logging), the first time only."""
    if text not in _warned:
        _warned.add(text)
        _log.warning("seer: %s", text)


def tunings_of(path: Path, conv: Conv) -> Mapping[str, Mapping[str, Tuning]]:
    """Device (`device_key`) → algorithm → what the cache at ``path`` knows of a problem there.

    Of a long file only the problem's own lines are parsed. Raises `InputError` and `OSError` as `CheckedLines.search`.
    """
    wanted = problem_key(conv)
    found: dict[str, dict[str, Tuning]] = {}
    records = CheckedLines(path, KIND).search(json.dumps(wanted).encode())
    for (device, problem), algorithm, tuning in _entries(records):
        if problem == wanted:
            found.setdefault(device, {})[algorithm] = tuning
    return found


def _record(question: Question, algorithm: str, tuning: Tuning) -> Record:
    device, problem = question
    return {"device": device, "problem": problem, "algorithm": algorithm, "tuning": tuning.to_dict()}


def _entries(records: Sequence[Record]) -> Iterator[tuple[Question, str, Tuning]]:
    """What this release understands of the records; fields of a later one are ignored, and lines that make no sense."""
    for record in records:
        try:
            tuning = record["tuning"]
            known: dict[str, Any] = {name: tuning[name] for name in Tuning.__slots__ if name in tuning}
            names = record["device"], record["problem"], record["algorithm"]
            entry = Tuning(**known)
        except (KeyError, TypeError):
            continue
        if all(isinstance(name, str) for name in names) and entry.makes_sense:
            yield names[:2], names[2], entry


def _newest(records: Sequence[Record], max_bytes: int) -> list[Record]:
    """The latest record of each key, the oldest keys dropped until all take at most ``max_bytes``."""
    keys = ((r.get("device"), r.get("problem"), r.get("algorithm")) for r in records)
    latest = {key: i for i, key in enumerate(keys) if all(isinstance(name, str) for name in key)}
    kept: list[Record] = []
    size = 0
    for place in sorted(latest.values(), reverse=True):
        size += len(repr(records[place])) + 16  # within a few percent of the line's own length
        if size > max_bytes:
            break
        kept.append(records[place])
    return kept[::-1]
