"""The loop: plan × device × log. It goes on where the log ends, keeps to its own time, and outlives any one failure.

Other operators have a loop of their own, whose ``operator`` records `surrogate.collect.merge` makes a table of.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from surrogate.collect.device import POLICY, Device, DeviceLostError, Measurement, RepeatPolicy
from surrogate.collect.log import Header, RunLog, problem_record
from surrogate.collect.operators.operator import key_of
from surrogate.collect.plan import Plan, PlannedProblem
from surrogate.features.operators import Operator

T = TypeVar("T")
Progress = Callable[[int, int, str], None]
"""Called with problems done, problems in all, and how fast it goes: rows per second, and the time left."""
TIME_UP = "the time is up"
MAX_LOST_IN_A_ROW = 5
"""Consecutive measurements that may lose the device before the run gives up."""
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

    @property
    def wrong_timer(self) -> str:
        """What is to be said where too many rows fell back from CUPTI to events; else nothing."""
        if self.fallen_back <= MAX_FALLEN_BACK:
            return ""
        return f"{self.fallen_back:.0%} of the times fell back from CUPTI to events: {self.last_reason}"

    @property
    def finished(self) -> bool:
        """True where every planned problem is done."""
        return self.problems_done == self.problems_total

    @property
    def time_up(self) -> bool:
        """True where the run stopped for its budget of time alone."""
        return self.stopped == TIME_UP


@dataclass(slots=True)
class Budget:
    """The wall-clock budget: no measurement begins that would, at the longest length seen, end too late."""

    end_s: float | None
    clock: Callable[[], float]
    longest_s: float = 0.0
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    def pace(self, rows: int, done: int, todo: int) -> str:
        """Rows per second so far, and the time left: what ``todo`` problems will take at this rate, or the budget's."""
        now_s = self.clock()
        elapsed_s = max(now_s - self.began_s, 1e-9)
        left_s = elapsed_s * todo / max(done, 1)
        if self.end_s is not None:
            left_s = max(min(left_s, self.end_s - now_s), 0.0)
        minutes, seconds = divmod(round(left_s), 60)
        return f"{rows / elapsed_s:.1f} rows/s, {minutes}:{seconds:02} left"

    def spent(self) -> bool:
        return self.end_s is not None and self.clock() + self.longest_s >= self.end_s

    def note(self, began_s: float) -> None:
        self.longest_s = max(self.longest_s, self.clock() - began_s)


@dataclass(slots=True)
class _State:
    """What the log already holds, and what this call added."""

    begun: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    measured: dict[str, set[str]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    timers: Counter[str] = field(default_factory=Counter)
    """Instrument → rows; the empty name counts those without times."""
    last_reason: str = ""
    lost_in_a_row: int = 0


def header_for(plan: Plan, device: Device, policy: RepeatPolicy = POLICY) -> Header:
    """The header under which ``plan`` is measured on ``device``."""
    protocol = {**asdict(policy), "max_workspace_bytes": plan.caps.max_workspace_bytes}
    info = device.describe()
    return Header(info, plan.digest, plan.shard, plan.description, plan.seed, protocol, round(time.time(), 3))


def run(
    plan: Plan,
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
    budget = Budget(None if minutes is None else clock() + 60.0 * minutes, clock)
    state = _replayed(log.records)
    planned = {problem.key for problem in plan.problems}
    before = len(state.done & planned)
    stopped = ""
    for problem in plan.problems:
        if problem.key in state.done:
            continue
        stopped = _problem(problem, device, log, policy, budget, state)
        if stopped:
            break
        if progress:
            done = len(state.done & planned)
            pace = budget.pace(state.statuses.total(), done - before, len(plan) - done)
            progress(done, len(plan), pace)
    log.sync()
    cupti = log.header.device.properties.get("timer") == "cupti"
    timed = state.timers.total() - state.timers[""]
    fallen_back = state.timers["events"] / timed if cupti and timed else 0.0
    done = len(state.done & planned)
    return Outcome(done, len(plan), state.statuses, stopped, state.last_reason, fallen_back)


def _problem(
    problem: PlannedProblem, device: Device, log: RunLog, policy: RepeatPolicy, budget: Budget, state: _State
) -> str:
    """Measure what is missing of one problem; returns why the run must stop, or nothing."""
    if budget.spent():
        return TIME_UP
    candidates = device.candidates(problem.conv)
    if problem.key not in state.begun:
        ranking = _guarded(lambda: device.heuristic(problem.conv), ())
        log.append(problem_record(problem, candidates, ranking))
        state.begun.add(problem.key)
    measured = state.measured.setdefault(problem.key, set())
    lost = False
    for algorithm in candidates:
        if algorithm in measured:
            continue
        if budget.spent():
            return TIME_UP
        began_s = budget.clock()
        result = _measured(device, problem, algorithm, policy, state)
        at_s = round(time.time(), 3)
        named = {"problem": problem.key, "algorithm": algorithm}
        log.append({"kind": "measure", **named, "at_s": at_s, "result": result})
        measured.add(algorithm)
        state.statuses[result.status] += 1
        state.timers[result.timer] += 1
        state.last_reason = result.reason or state.last_reason
        if state.lost_in_a_row:
            lost = True  # and a hang's timeout is not the length of a measurement
        else:
            budget.note(began_s)
        if state.lost_in_a_row >= MAX_LOST_IN_A_ROW:
            return f"the device was lost {MAX_LOST_IN_A_ROW} times in a row: {result.reason}"
    # after a loss a fresh process would first run every algorithm again, and hang or die once more
    timed = () if lost else _guarded(lambda: device.find(problem.conv), ())
    conditions = dict(_guarded(device.conditions, {}))
    log.append({"kind": "done", "problem": problem.key, "find": timed, "conditions": conditions})
    state.done.add(problem.key)
    return ""


def _measured(
    device: Device, problem: PlannedProblem, algorithm: str, policy: RepeatPolicy, state: _State
) -> Measurement:
    """One measurement; a device lost on the way is a failure of this algorithm alone."""
    try:
        result = device.measure(problem.conv, algorithm, policy)
    except DeviceLostError as error:
        state.lost_in_a_row += 1
        return Measurement("failed", reason=f"device lost: {error}")
    state.lost_in_a_row = 0
    return result


def _guarded(ask: Callable[[], T], otherwise: T) -> T:
    """What ``ask`` answers, or ``otherwise`` where asking lost the device."""
    try:
        return ask()
    except DeviceLostError:
        return otherwise


def _replayed(records: Sequence[Mapping[str, Any]]) -> _State:
    """The state that a log's records leave."""
    state = _State()
    for record in records:
        key = record["problem"]
        if record["kind"] == "problem":
            state.begun.add(key)
        elif record["kind"] == "done":
            state.done.add(key)
        elif record["kind"] == "measure":
            state.measured.setdefault(key, set()).add(record["algorithm"])
            state.timers[record["result"].get("timer", "")] += 1
    return state


def collect_operators(
    operators: Sequence[Operator],
    device: Any,
    path: str | Path,
    *,
    minutes: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure what the log at ``path`` does not hold yet, within ``minutes``; the same call goes on later.

    ``device`` (as `WorkerOperators`) has ``describe``, ``measure(operator, policy)`` and ``conditions``.
    A device that is lost costs one problem, which is noted as failed: the worker starts a new process. Too many
    losses in a row end the call.
    """
    budget = Budget(None if minutes is None else clock() + 60.0 * minutes, clock)
    lost_in_a_row, statuses = 0, Counter[str]()
    digest = hashlib.sha256("\n".join(sorted(map(key_of, operators))).encode()).hexdigest()
    device_info, created_s = device.describe(), round(time.time(), 3)
    with RunLog(path, Header(device_info, digest, (1, 1), "operators", 0, asdict(POLICY), created_s)) as run:
        done = {record["problem"] for record in run.records if record["kind"] == "operator"}
        for operator in operators:
            key = key_of(operator)
            if key in done:
                continue
            if budget.spent():
                return Outcome(len(done), len(operators), statuses, TIME_UP)
            began_s, conditions = clock(), {}
            try:
                result = device.measure(operator, POLICY)
                conditions = dict(device.conditions())
                lost_in_a_row = 0
                budget.note(began_s)
            except DeviceLostError as error:
                lost_in_a_row += 1
                result = Measurement("failed", f"the device was lost: {error}")
            run.append({"kind": "operator", "problem": key, "result": result, "conditions": conditions})
            done.add(key)
            statuses[result.status] += 1
            if progress:
                pace = budget.pace(statuses.total(), statuses.total(), len(operators) - len(done))
                progress(len(done), len(operators), pace)
            if lost_in_a_row >= MAX_LOST_IN_A_ROW:
                return Outcome(len(done), len(operators), statuses, result.reason)
    return Outcome(len(done), len(operators), statuses)
