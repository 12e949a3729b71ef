"""The loop: plan × device × log. It goes on where the log ends, keeps to its own time, and outlives any one failure.

Convolutions, rankings without times and other operators go through it; `surrogate.collect.merge` makes tables of them.
"""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from surrogate.collect.cudnn.library import HEURISTIC_REMEDY
from surrogate.collect.device import LOST, POLICY, Device, DeviceInfo, DeviceLostError, Measurement, RepeatPolicy
from surrogate.collect.log import Header, RunLog, problem_record
from surrogate.collect.open_device import WorkerOperators, open_ranking
from surrogate.collect.operators import operator_key
from surrogate.collect.plan import CollectionPlan, PlannedProblem
from surrogate.dataset.files import Progress
from surrogate.features.errors import InputError
from surrogate.features.families import Operator

if TYPE_CHECKING:
    from surrogate.collect.cudnn_heuristic import HeuristicDevice
    from surrogate.collect.operators import GpuOperators

T = TypeVar("T")
Otherwise = TypeVar("Otherwise")
TIME_UP = "the time is up"
MAX_LOST = 5
"""Losses of the device since the last kernel that was measured, after which the run gives up."""
MAX_FALLEN_BACK = 0.01
"""Share of the log's times that events may have taken where the header says CUPTI: more is no CUPTI run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: counts of problems (of the whole shard) and of this call's measurements by status."""

    problems_done: int
    problems_total: int
    statuses: Counter[str]
    stopped: str = ""
    """Why it ended early; empty where the plan is finished."""
    last_reason: str = ""
    """What the last measurement said that was not ok."""
    fallen_back: float = 0.0
    """Share of the log's times that events took although the header says CUPTI."""
    labels_differ: float = 0.0
    """Share of the log's times whose launches CUPTI's labels miss in part."""

    @property
    def timer_warning(self) -> str:
        """What is to be said where too many rows fell back from CUPTI to events; else nothing."""
        if self.fallen_back <= MAX_FALLEN_BACK:
            return ""
        return f"{self.fallen_back:.0%} of the times fell back from CUPTI to events: {self.last_reason}"

    @property
    def label_warning(self) -> str:
        """What is to be said where CUPTI's labels differ from what the cache's flushes show; else nothing."""
        if not self.labels_differ:
            return ""
        return f"CUPTI's labels miss launches of {self.labels_differ:.0%} of the times, which the cache's flushes split"

    @property
    def time_up(self) -> bool:
        """True where the run stopped for its budget of time alone."""
        return self.stopped == TIME_UP


@dataclass(slots=True)
class Budget:
    """The wall-clock budget: no measurement begins that would, at the longest length seen, end too late."""

    minutes: float | None
    """From now on; None: no limit."""
    clock: Callable[[], float]
    longest_s: float = 0.0
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    @property
    def left_s(self) -> float:
        return math.inf if self.minutes is None else self.began_s + 60.0 * self.minutes - self.clock()

    def pace(self, rows: int, done: int, todo: int) -> str:
        """Rows per second so far, and the time left: what ``todo`` problems will take at this rate, or the budget's."""
        elapsed_s = max(self.clock() - self.began_s, 1e-9)
        left_s = max(min(elapsed_s * todo / max(done, 1), self.left_s), 0.0)
        minutes, seconds = divmod(round(left_s), 60)
        return f"{rows / elapsed_s:.1f} rows/s, {minutes}:{seconds:02} left"

    def spent(self) -> bool:
        return self.left_s <= self.longest_s

    def note(self, began_s: float) -> None:
        self.longest_s = max(self.longest_s, self.clock() - began_s)


@dataclass(slots=True)
class _Work:
    """The one loop over a log's problems. It counts what the log holds and what this call adds."""

    log: RunLog
    policy: RepeatPolicy
    budget: Budget
    begun: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    measured: dict[str, set[str]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    """Of this call's measurements; those that lost the device count as ``lost``."""
    timers: Counter[str] = field(default_factory=Counter)
    """Instrument → rows; the empty name counts those without times."""
    labels_differ: int = 0
    last_reason: str = ""
    losses: int = 0
    """Of the device since the last kernel that was measured."""

    def __post_init__(self) -> None:
        for record in self.log.records:
            key = record["problem"]
            if record["kind"] == "problem":
                self.begun.add(key)
            elif record["kind"] == "done":
                self.done.add(key)
            elif record["kind"] in ("measure", "operator"):
                result = Measurement.from_dict(record["result"])
                self._count(result)
                if result.lost:
                    continue
                if record["kind"] == "operator":
                    self.done.add(key)
                else:
                    self.measured.setdefault(key, set()).add(record["algorithm"])

    def through(self, problems: Mapping[str, T], step: Callable[[str, T], str], progress: Progress | None) -> Outcome:
        """Run ``step`` for each problem that is not done. ``step`` returns the reason to stop, or an empty text."""
        before = len(self.done & problems.keys())
        stopped = ""
        for key, problem in problems.items():
            if key in self.done:
                continue
            stopped = TIME_UP if self.budget.spent() else step(key, problem)
            if stopped:
                break
            if progress:
                done = len(self.done & problems.keys())
                pace = self.budget.pace(self.statuses.total(), done - before, len(problems) - done)
                progress(done, len(problems), pace)
        self.log.sync()
        return self._outcome(len(self.done & problems.keys()), len(problems), stopped)

    def convolution(self, device: Device, key: str, problem: PlannedProblem) -> str:
        """Measure the algorithms of a convolution that the log lacks."""
        candidates = self._guarded(partial(device.candidates, problem.conv), None)
        if candidates is None:
            return self._gone
        if key not in self.begun:
            ranking = self._guarded(partial(device.heuristic, problem.conv), ())
            self.log.append(problem_record(problem, candidates, ranking))
            self.begun.add(key)
        measured = self.measured.setdefault(key, set())
        lost = False
        for algorithm in candidates:
            if algorithm in measured:
                continue
            if self.budget.spent():
                return TIME_UP
            result = self._measure(partial(device.measure, problem.conv, algorithm, self.policy))
            named = {"problem": key, "algorithm": algorithm, "at_s": round(time.time(), 3)}
            self.log.append({"kind": "measure", **named, "result": result})
            if self._gone:
                return self._gone
            if result.lost:
                lost = True
            else:
                measured.add(algorithm)
        # the problem stays open: a fresh process would first run every algorithm again, and hang or die once more
        if lost:
            return ""
        timed = self._guarded(partial(device.find, problem.conv), ())
        conditions = dict(self._guarded(device.conditions, {}))
        self.log.append({"kind": "done", "problem": key, "find": timed, "conditions": conditions})
        self.done.add(key)
        return self._gone

    def operator(self, device: "WorkerOperators | GpuOperators", key: str, problem: Operator) -> str:
        """Measure an operator."""
        result = self._measure(partial(device.measure, problem, self.policy))
        conditions = {} if result.lost else dict(self._guarded(device.conditions, {}))
        self.log.append({"kind": "operator", "problem": key, "result": result, "conditions": conditions})
        if not result.lost:
            self.done.add(key)
        return self._gone

    def ranking(self, device: "Device | HeuristicDevice", key: str, problem: PlannedProblem) -> str:
        """Log a convolution's ranking alone. Raises `DeviceLostError`."""
        ranking = device.heuristic(problem.conv)
        names = tuple(dict.fromkeys(choice.algorithm for choice in ranking))
        self.log.append(problem_record(problem, names, ranking))
        self.statuses["ranked"] += 1
        self.done.add(key)
        return ""

    def _count(self, result: Measurement) -> None:
        """Count a row of the log."""
        self.timers[result.timer] += 1
        self.labels_differ += result.labels_differ

    def _measure(self, ask: Callable[[], Measurement]) -> Measurement:
        """What ``ask`` measures; a device lost on the way fails this measurement alone, which stays to be made."""
        began_s = self.budget.clock()
        result = self._guarded(ask, None) or Measurement("failed", self.last_reason)
        if result.status == "ok":
            self.losses = 0
        if not result.lost:  # a hang's timeout is not the length of a measurement
            self.budget.note(began_s)
        self._count(result)
        self.statuses["lost" if result.lost else result.status] += 1
        self.last_reason = result.reason or self.last_reason
        return result

    def _guarded(self, ask: Callable[[], T], otherwise: Otherwise) -> T | Otherwise:
        """What ``ask`` answers, or ``otherwise`` where asking lost the device."""
        try:
            return ask()
        except DeviceLostError as error:
            self.losses += 1
            self.last_reason = f"{LOST}: {error}"
            return otherwise

    @property
    def _gone(self) -> str:
        """Why the run must stop, where the device was lost too often; else nothing."""
        if self.losses < MAX_LOST:
            return ""
        return f"the device was lost {self.losses} times and nothing was measured between ({self.last_reason})"

    def _outcome(self, done: int, total: int, stopped: str) -> Outcome:
        """What the run has come to."""
        timed = (self.timers.total() - self.timers[""]) or 1
        cupti = self.log.header.device.properties.get("timer") == "cupti"
        fallen_back = self.timers["events"] / timed if cupti else 0.0
        labels_differ = self.labels_differ / timed
        return Outcome(done, total, self.statuses, stopped, self.last_reason, fallen_back, labels_differ)


def header_for(plan: CollectionPlan, device: Device, policy: RepeatPolicy = POLICY) -> Header:
    """The header under which ``plan`` is measured on ``device``."""
    protocol = {**asdict(policy), "max_workspace_bytes": plan.caps.max_workspace_bytes}
    return _header(plan, device.device_info(), protocol)


def _header(plan: CollectionPlan, info: DeviceInfo, protocol: Mapping[str, object]) -> Header:
    told: dict[str, Any] = {"description": plan.description, "seed": plan.seed, "created_s": round(time.time(), 3)}
    return Header(info, plan.digest, plan.shard, protocol=protocol, **told)


def run(
    plan: CollectionPlan,
    device: Device,
    log: RunLog,
    *,
    policy: RepeatPolicy = POLICY,
    minutes: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure what ``log`` does not hold yet of ``plan``, within ``minutes`` of this call.

    Interrupting it (Ctrl-C, SIGTERM, SIGKILL) leaves a log that the same call goes on with.
    """
    work = _Work(log, policy, Budget(minutes, clock))
    return work.through(_by_key(plan), partial(work.convolution, device), progress)


def _by_key(plan: CollectionPlan) -> dict[str, PlannedProblem]:
    return {problem.key: problem for problem in plan.problems}


def collect_heuristic(
    plan: CollectionPlan, gpu: str, output: str, progress: Progress, *, device: "Device | HeuristicDevice | None" = None
) -> None:
    """Write cuDNN's ranking of ``plan``'s problems for ``gpu`` to the log ``output``.

    The log is a run's, with ``problem`` records alone (no times), and goes on where it was interrupted. ``device``: a
    `HeuristicDevice`, by default in a process of its own. Raises `InputError` if the library, the GPU or the log does
    not allow it.
    """
    device = device or open_ranking(gpu)
    try:
        info = device.device_info()
        header = _header(plan, info, {"heuristic_only": True, "mode": info.properties["heuristic_mode"]})
        with RunLog(output, header) as log:
            work = _Work(log, POLICY, Budget(None, time.monotonic))
            work.done = work.begun  # a logged ranking finishes its problem
            work.through(_by_key(plan), partial(work.ranking, device), progress)
    except DeviceLostError as error:
        raise InputError(f"cuDNN's heuristic failed for {gpu}: {error}; {HEURISTIC_REMEDY}") from None
    finally:
        device.close()


def collect_operators(
    operators: Sequence[Operator],
    device: "WorkerOperators | GpuOperators",
    path: str | Path,
    *,
    minutes: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure what the log at ``path`` does not hold yet, within ``minutes``; the same call goes on later.

    ``device`` (as `WorkerOperators`) has ``device_info``, ``measure(operator, policy)`` and ``conditions``.
    A device that is lost costs one problem, which the next call tries again: the worker starts a new process. Too many
    losses end the call.
    """
    problems = {operator_key(operator): operator for operator in operators}
    digest = hashlib.sha256("\n".join(sorted(problems)).encode()).hexdigest()
    header = _header(CollectionPlan((), "operators", digest=digest), device.device_info(), asdict(POLICY))
    with RunLog(path, header) as log:
        work = _Work(log, POLICY, Budget(minutes, clock))
        return work.through(problems, partial(work.operator, device), progress)
