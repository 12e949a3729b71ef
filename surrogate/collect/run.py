"""The loop that measures a plan on a device into a log.

It continues where the log ends, stops when its time is up, and continues after a single failure. It serves
convolutions, rankings without times, and other operators. `surrogate.collect.merge` turns the logs into tables.
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
from surrogate.collect.device import LOST, POLICY, Device, DeviceInfo, DeviceLostError, Measurement
from surrogate.collect.log import Header, RunLog, problem_record
from surrogate.collect.open_device import WorkerOperators, open_ranking
from surrogate.collect.operators import operator_key
from surrogate.collect.plan import CollectionPlan, PlannedProblem
from surrogate.dataset.files import Progress
from surrogate.features import BENCHMARK_LIMIT, InputError
from surrogate.features.families import Operator

if TYPE_CHECKING:
    from surrogate.collect.cudnn_heuristic import HeuristicDevice
    from surrogate.collect.operators import GpuOperators

T = TypeVar("T")
Default = TypeVar("Default")
TIME_UP = "the time is up"
MAX_LOST = 5
"""The run stops after this many losses of the device since the last measured kernel."""
ENGINE_PROBLEM_S = 2.0
"""Seconds for the engine configurations of one problem, about forty."""
RECENT = 0.9
"""Factor by which the longest length so far decays at each further measurement."""
MAX_FALLBACK_SHARE = 0.01
"""Maximum share of times by CUDA events without a warning, if the run's header states CUPTI as the timer."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run: counts of problems in the shard, and of this call's measurements by status."""

    problems_done: int
    problems_total: int
    statuses: Counter[str]
    stopped: str = ""
    """The reason for an early end; empty if the plan is finished."""
    last_reason: str = ""
    """The reason of the last measurement that was not ok."""
    fallback_share: float = 0.0
    """Share of the log's times that CUDA events took although the header states CUPTI."""
    unlabelled_share: float = 0.0
    """Share of the log's times for which CUPTI's labels miss some launches."""

    @property
    def timer_warning(self) -> str:
        """Return a warning if too many times fell back from CUPTI to events; else an empty text."""
        if self.fallback_share <= MAX_FALLBACK_SHARE:
            return ""
        return f"{self.fallback_share:.0%} of the times fell back from CUPTI to events: {self.last_reason}"

    @property
    def label_warning(self) -> str:
        """Return a warning if CUPTI's labels and the cache flushes disagree; else an empty text."""
        if not self.unlabelled_share:
            return ""
        return f"CUPTI's labels miss launches in {self.unlabelled_share:.0%} of the rows; cache flushes separate them"

    @property
    def failed(self) -> bool:
        """Return True if the run stopped early for another reason than the end of its time."""
        return self.stopped not in ("", TIME_UP)


@dataclass(slots=True)
class Budget:
    """The wall-clock budget. A measurement begins only if the longest of the recent ones would still end in time.

    Each measurement reduces the length to be kept free by `RECENT`. So one slow call, such as the first one of a
    library, does not end the run early by its own length.
    """

    minutes: float | None
    """Minutes from the start of this object; None for no limit."""
    clock: Callable[[], float]
    longest_s: float = 0.0
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    @property
    def left_s(self) -> float:
        return math.inf if self.minutes is None else self.began_s + 60.0 * self.minutes - self.clock()

    def pace(self, rows: int, done: int, todo: int) -> str:
        """Return the rows per second, and the time left: for ``todo`` problems at this rate, or of the budget."""
        elapsed_s = max(self.clock() - self.began_s, 1e-9)
        left_s = max(min(elapsed_s * todo / max(done, 1), self.left_s), 0.0)
        minutes, seconds = divmod(round(left_s), 60)
        return f"{rows / elapsed_s:.1f} rows/s, {minutes}:{seconds:02} left"

    def spent(self) -> bool:
        return self.left_s <= self.longest_s

    def note_length(self, began_s: float) -> None:
        self.longest_s = max(RECENT * self.longest_s, self.clock() - began_s)


@dataclass(slots=True)
class _MeasurementLoop:
    """The loop over a log's problems. It counts the log's records and the records that this call adds."""

    log: RunLog
    budget: Budget
    asks_find: bool = True
    """True if the library's own timing (cudnnFind) is asked for."""
    problem_s: float = math.inf
    """Seconds after which the rest of a problem's candidates is left out, except the `BENCHMARK_LIMIT` ones."""
    begun: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    measured: dict[str, set[str]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    """Statuses of this call's measurements; a measurement that lost the device counts as ``lost``."""
    timers: Counter[str] = field(default_factory=Counter)
    """Instrument → rows; the empty name counts rows without times."""
    unlabelled: int = 0
    """Rows with launches that CUPTI's labels miss."""
    last_reason: str = ""
    losses: int = 0
    """Losses of the device since the last measured kernel."""

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

    def run_each(
        self, problems: Mapping[str, T], step: Callable[[str, T], str], progress: Progress | None
    ) -> RunOutcome:
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

    def measure_convolution(self, device: Device, key: str, problem: PlannedProblem) -> str:
        """Measure the algorithms of a convolution that the log lacks. Return the reason to stop, or an empty text."""
        candidates = self._guarded(partial(device.candidates, problem.conv), None)
        if candidates is None:
            return self._lost_too_often
        if key not in self.begun:
            ranking = self._guarded(partial(device.heuristic, problem.conv), ())
            self.log.append(problem_record(problem, candidates, ranking))
            self.begun.add(key)
        measured = self.measured.setdefault(key, set())
        inexact = self.log.header.device.inexact_algorithms(problem.conv)
        end_s = self.budget.clock() + self.problem_s
        for position, algorithm in enumerate(candidates):
            if position >= BENCHMARK_LIMIT and self.budget.clock() >= end_s:
                candidates = candidates[:position]
                break
            if algorithm in measured:
                continue
            if self.budget.spent():
                return TIME_UP
            result = self._measure(partial(device.measure, problem.conv, algorithm, POLICY), inexact.get(algorithm))
            record_key = {"problem": key, "algorithm": algorithm, "at_s": round(time.time(), 3)}
            self.log.append({"kind": "measure", **record_key, "result": result})
            if self._lost_too_often:
                return self._lost_too_often
            if not result.lost:
                measured.add(algorithm)
        # After a loss the problem stays open. A new process would first run every algorithm again, and fail again.
        if not measured.issuperset(candidates):
            return ""
        timed = ()
        if self.asks_find:
            if self.budget.spent():
                return TIME_UP
            began_s = self.budget.clock()
            timed = self._guarded(partial(device.find, problem.conv), ())
            if timed:  # a hang's timeout is not the length of a call
                self.budget.note_length(began_s)
        conditions = dict(self._guarded(device.conditions, {}))
        self.log.append({"kind": "done", "problem": key, "find": timed, "conditions": conditions})
        self.done.add(key)
        return self._lost_too_often

    def measure_operator(self, device: "WorkerOperators | GpuOperators", key: str, problem: Operator) -> str:
        """Measure an operator. Return the reason to stop, or an empty text."""
        result = self._measure(partial(device.measure, problem, POLICY))
        conditions = {} if result.lost else dict(self._guarded(device.conditions, {}))
        self.log.append({"kind": "operator", "problem": key, "result": result, "conditions": conditions})
        if not result.lost:
            self.done.add(key)
        return self._lost_too_often

    def log_ranking(self, device: "Device | HeuristicDevice", key: str, problem: PlannedProblem) -> str:
        """Log a convolution's ranking without times. Raises `DeviceLostError`."""
        ranking = device.heuristic(problem.conv)
        self.log.append(problem_record(problem, tuple(dict.fromkeys(choice.algorithm for choice in ranking)), ranking))
        self.statuses["ranked"] += 1
        self.done.add(key)
        return ""

    def _count(self, result: Measurement) -> None:
        """Count a row of the log."""
        self.timers[result.timer] += 1
        self.unlabelled += result.labels_differ

    def _measure(self, call: Callable[[], Measurement], refusal: str | None = None) -> Measurement:
        """Return the measurement of ``call``, or a failed one with the reason ``refusal``.

        A lost device fails only this measurement; it can be repeated.
        """
        began_s = self.budget.clock()
        refused = Measurement("failed", refusal) if refusal else None
        result = refused or self._guarded(call, None) or Measurement("failed", self.last_reason)
        if result.status == "ok":
            self.losses = 0
        if not result.lost:  # a hang's timeout is not the length of a measurement
            self.budget.note_length(began_s)
        self._count(result)
        self.statuses["lost" if result.lost else result.status] += 1
        self.last_reason = result.reason or self.last_reason
        return result

    def _guarded(self, call: Callable[[], T], default: Default) -> T | Default:
        """Return the result of ``call``, or ``default`` if the call lost the device."""
        try:
            return call()
        except DeviceLostError as error:
            self.losses += 1
            self.last_reason = f"{LOST}: {error}"
            return default

    @property
    def _lost_too_often(self) -> str:
        """Return the reason to stop if the device was lost too often; else an empty text."""
        if self.losses < MAX_LOST:
            return ""
        return f"the device was lost {self.losses} times without a measurement between ({self.last_reason})"

    def _outcome(self, done: int, total: int, stopped: str) -> RunOutcome:
        """Return the result of the run."""
        timed = (self.timers.total() - self.timers[""]) or 1
        cupti = self.log.header.device.properties.get("timer") == "cupti"
        fallback_share = self.timers["events"] / timed if cupti else 0.0
        unlabelled_share = self.unlabelled / timed
        return RunOutcome(done, total, self.statuses, stopped, self.last_reason, fallback_share, unlabelled_share)


def header_for(plan: CollectionPlan, device: Device) -> Header:
    """Return the header of a run that measures ``plan`` on ``device``."""
    return _header(plan, device.device_info(), {**asdict(POLICY), "max_workspace_bytes": plan.caps.max_workspace_bytes})


def _header(plan: CollectionPlan, info: DeviceInfo, protocol: Mapping[str, object]) -> Header:
    facts: dict[str, Any] = {"description": plan.description, "seed": plan.seed, "created_s": round(time.time(), 3)}
    return Header(info, plan.digest, plan.shard, protocol=protocol, **facts)


def run(
    plan: CollectionPlan,
    device: Device,
    log: RunLog,
    *,
    minutes: float | None = None,
    find: bool = True,
    problem_s: float = math.inf,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RunOutcome:
    """Measure the part of ``plan`` that ``log`` lacks, within ``minutes`` of this call.

    ``find`` asks for the library's own timing after each problem. ``problem_s`` limits the seconds of each problem; its
    first `BENCHMARK_LIMIT` candidates are measured in any case. After an interruption (Ctrl-C, SIGTERM, SIGKILL) the
    same call continues with the log.
    """
    loop = _MeasurementLoop(log, Budget(minutes, clock), find, problem_s)
    return loop.run_each(_by_key(plan), partial(loop.measure_convolution, device), progress)


def _by_key(plan: CollectionPlan) -> dict[str, PlannedProblem]:
    return {problem.key: problem for problem in plan.problems}


def collect_heuristic(
    plan: CollectionPlan, gpu: str, output: str, progress: Progress, *, device: "Device | HeuristicDevice | None" = None
) -> None:
    """Write cuDNN's ranking of ``plan``'s problems for ``gpu`` to the log ``output``.

    The log has only ``problem`` records, without times. An interrupted call can be repeated and continues. ``device``
    is a `HeuristicDevice`; the default runs in a process of its own. Raises `InputError` if the library, the GPU or the
    log does not allow it.
    """
    device = device or open_ranking(gpu)
    try:
        info = device.device_info()
        header = _header(plan, info, {"heuristic_only": True, "mode": info.properties["heuristic_mode"]})
        with RunLog(output, header) as log:
            loop = _MeasurementLoop(log, Budget(None, time.monotonic))
            loop.done = loop.begun  # a problem is done once its ranking is in the log
            loop.run_each(_by_key(plan), partial(loop.log_ranking, device), progress)
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
) -> RunOutcome:
    """Measure the operators that the log at ``path`` lacks, within ``minutes``. The same call continues later.

    ``device``, such as `WorkerOperators`, has ``device_info``, ``measure(operator, policy)`` and ``conditions``. If the
    device is lost, the worker starts a new process and the next call repeats that one problem. Too many losses end the
    call.
    """
    problems = {operator_key(operator): operator for operator in operators}
    digest = hashlib.sha256("\n".join(sorted(problems)).encode()).hexdigest()
    header = _header(CollectionPlan((), "operators", digest=digest), device.device_info(), asdict(POLICY))
    with RunLog(path, header) as log:
        loop = _MeasurementLoop(log, Budget(minutes, clock))
        return loop.run_each(problems, partial(loop.measure_operator, device), progress)
