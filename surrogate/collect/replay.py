"""The `replay` device: serves a recorded run again, so that everything above a device is tested without one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surrogate.collect import log
from surrogate.collect.device import Choice, Device, DeviceInfo, Measurement, RepeatPolicy
from surrogate.collect.log import conv_of, key_without_visit
from surrogate.collect.plan import PlannedProblem, problem_key
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest


class ReplayDevice(Device):
    """A device whose every answer was recorded. Of several visits to a problem the first is served, always."""

    def __init__(self, path: str | Path) -> None:
        """Raises `InputError` where ``path`` is no run or an empty one."""
        contents = log.read(path)
        if contents.header is None or not any(record["kind"] == "measure" for record in contents.records):
            raise InputError(f"{path}: holds no measurement; replay needs a run with at least one")
        self.path = Path(path)
        self._info = contents.header.device
        self._problems: dict[str, Mapping[str, Any]] = {}
        self._finds: dict[str, Mapping[str, Any]] = {}
        self._measured: dict[str, dict[str, Measurement]] = {}
        with log.undamaged(path):
            for record in contents.records:
                self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        key = key_without_visit(record["problem"])
        if record["kind"] == "problem":
            self._problems.setdefault(key, record)
        elif record["kind"] == "done":
            self._finds.setdefault(key, record)
        elif record["kind"] == "measure":
            measured = self._measured.setdefault(key, {})
            measured.setdefault(record["algorithm"], Measurement.from_dict(record["result"]))

    def problems(self) -> list[PlannedProblem]:
        """The recorded problems that have a measurement, as the sources of a plan."""
        return [
            PlannedProblem(conv_of(key), record["origin"], tuple(record["networks"]))
            for key, record in self._problems.items()
            if key in self._measured
        ]

    def describe(self) -> DeviceInfo:
        """The recorded device."""
        return self._info

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """The algorithms that were measured for ``conv`` (all, unless the recorded run was cut), in the library's
        order.
        """
        measured = self._measured.get(problem_key(conv), {})
        return tuple(name for name in self._recorded(conv)["candidates"] if name in measured)

    def heuristic(self, conv: Conv) -> tuple[Choice, ...]:
        """The recorded ranking."""
        return Choice.all_from(self._recorded(conv).get("heuristic", ()))

    def find(self, conv: Conv) -> tuple[Choice, ...]:
        """Find's recorded result; empty where the recorded run was cut before it."""
        return Choice.all_from(self._finds.get(problem_key(conv), {}).get("find", ()))

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """The recorded measurement; the policy was the recorded run's."""
        self._recorded(conv)
        measured = self._measured.get(problem_key(conv), {})
        if algorithm not in measured:
            raise InputError(
                f"{self.path}: {algorithm} was not recorded for {problem_key(conv)}; recorded: "
                f"{', '.join(measured) or 'none'}{nearest(algorithm, measured)}"
            )
        return measured[algorithm]

    def _recorded(self, conv: Conv) -> Mapping[str, Any]:
        key = problem_key(conv)
        if key not in self._problems:
            raise InputError(
                f"{self.path}: {key} was not recorded ({len(self._problems)} problems are); "
                f"replay serves recorded problems only{nearest(key, self._problems, count=1)}"
            )
        return self._problems[key]
