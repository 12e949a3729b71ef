"""The `replay` device: serves a recorded run again, so that everything above a device is tested without one."""

from pathlib import Path

from surrogate.collect import log
from surrogate.collect.device import Choice, Device, DeviceInfo, Measurement, RepeatPolicy
from surrogate.collect.log import Entry, conv_of, key_without_visit
from surrogate.collect.plan import PlannedProblem, problem_key
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest

EMPTY = "holds no measurement; replay needs a run with at least one"


class ReplayDevice(Device):
    """A device whose every answer was recorded. Of several visits to a problem the first is served, always."""

    def __init__(self, path: str | Path) -> None:
        """Raises `InputError` where ``path`` is no run or an empty one."""
        contents = log.read(path)
        if contents.header is None:
            raise InputError(f"{path}: {EMPTY}")
        self.path = Path(path)
        self._info = contents.header.device
        self._problems: dict[str, Entry] = {}
        self._finds: dict[str, Entry] = {}
        self._measured: dict[str, dict[str, Measurement]] = {}
        with log.undamaged(path):
            for record in contents.records:
                self._take(record)
        if not self._measured:
            raise InputError(f"{path}: {EMPTY}")

    def _take(self, record: Entry) -> None:
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
        """The recorded problems that have a measurement, as the sources of a plan."""
        measured = [(conv_of(key), record) for key, record in self._problems.items() if key in self._measured]
        return [PlannedProblem(conv, record["origin"], tuple(record["networks"])) for conv, record in measured]

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
            known = f"{', '.join(measured) or 'none'}{nearest(algorithm, measured)}"
            raise InputError(f"{self.path}: {algorithm} was not recorded for {problem_key(conv)}; recorded: {known}")
        return measured[algorithm]

    def _recorded(self, conv: Conv) -> Entry:
        key = problem_key(conv)
        if key not in self._problems:
            rule = f"replay serves recorded problems only{nearest(key, self._problems, count=1)}"
            raise InputError(f"{self.path}: {key} was not recorded ({len(self._problems)} problems are); {rule}")
        return self._problems[key]
