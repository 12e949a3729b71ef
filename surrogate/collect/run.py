"""The loop: plan × device × log. It goes on where the log ends, keeps to its own time, and outlives any one failure.

Rankings without times and other operators have loops of their own, whose records `surrogate.collect.merge` makes
tables of, too.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from surrogate.collect.cudnn.library import HEURISTIC_REMEDY
from surrogate.collect.device import LOST, POLICY, Device, DeviceInfo, DeviceLostError, Measurement, RepeatPolicy
from surrogate.collect.log import Entry, Header, RunLog, problem_record
from surrogate.collect.open_device import WorkerOperators, open_ranking
from surrogate.collect.operators import key_of
from surrogate.collect.plan import Plan, PlannedProblem
from surrogate.dataset.files import Progress
from surrogate.features.errors import InputError
from surrogate.features.families import Operator

if TYPE_CHECKING:
    from surrogate.collect.cudnn.operators import GpuOperators
    from surrogate.collect.cudnn_heuristic import Deviceless

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
    def wrong_timer(self) -> str:
        """What is to be said where too many rows fell back from CUPTI to events; else nothing."""
        if self.fallen_back <= MAX_FALLEN_BACK:
            return ""
        return f"{self.fallen_back:.0%} of the times fell back from CUPTI to events: {self.last_reason}"

    @property
    def doubted_labels(self) -> str:
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
    """Of this call's measurements; those that lost the device count as ``lost``."""
    timers: Counter[str] = field(default_factory=Counter)
    """Instrument → rows; the empty name counts those without times."""
    labels_differ: int = 0
    last_reason: str = ""
    losses: int = 0
    """Of the device since the last kernel that was measured."""

    def take(self, result: Measurement) -> None:
        """Count a row of the log."""
        self.timers[result.timer] += 1
        self.labels_differ += result.labels_differ

    def measure(self, ask: Callable[[], Measurement]) -> Measurement:
        """What ``ask`` measures; a device lost on the way fails this measurement alone, which stays to be made."""
        try:
            result = ask()
        except DeviceLostError as error:
            self.losses += 1
            result = Measurement("failed", f"{LOST}: {error}")
        if result.status == "ok":
            self.losses = 0
        self.take(result)
        self.statuses["lost" if result.lost else result.status] += 1
        self.last_reason = result.reason or self.last_reason
        return result

    def guarded(self, ask: Callable[[], T], otherwise: Otherwise) -> T | Otherwise:
        """What ``ask`` answers, or ``otherwise`` where asking lost the device."""
        try:
            return ask()
        except DeviceLostError as error:
            self.losses += 1
            self.last_reason = f"{LOST}: {error}"
            return otherwise

    @property
    def gone(self) -> str:
        """Why the run must stop, where the device was lost too often; else nothing."""
        if self.losses < MAX_LOST:
            return ""
        return f"the device was lost {self.losses} times and nothing was measured between ({self.last_reason})"

    def outcome(self, done: int, total: int, stopped: str, header: Header) -> Outcome:
        """What the run has come to."""
        timed = (self.timers.total() - self.timers[""]) or 1
        cupti = header.device.properties.get("timer") == "cupti"
        fallen_back = self.timers["events"] / timed if cupti else 0.0
        labels_differ = self.labels_differ / timed
        return Outcome(done, total, self.statuses, stopped, self.last_reason, fallen_back, labels_differ)


def header_for(plan: Plan, device: Device, policy: RepeatPolicy = POLICY) -> Header:
    """The header under which ``plan`` is measured on ``device``."""
    protocol = {**asdict(policy), "max_workspace_bytes": plan.caps.max_workspace_bytes}
    return _header(plan, device.describe(), protocol)


def _header(plan: Plan, info: DeviceInfo, protocol: Mapping[str, object]) -> Header:
    return Header(
        device=info,
        plan_digest=plan.digest,
        shard=plan.shard,
        description=plan.description,
        seed=plan.seed,
        protocol=protocol,
        created_s=round(time.time(), 3),
    )


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
    return state.outcome(len(state.done & planned), len(plan), stopped, log.header)


def _problem(
    problem: PlannedProblem, device: Device, log: RunLog, policy: RepeatPolicy, budget: Budget, state: _State
) -> str:
    """Measure what is missing of one problem; returns why the run must stop, or nothing."""
    if budget.spent():
        return TIME_UP
    candidates = state.guarded(lambda: device.candidates(problem.conv), None)
    if candidates is None:
        return state.gone
    if problem.key not in state.begun:
        ranking = state.guarded(lambda: device.heuristic(problem.conv), ())
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
        result = state.measure(partial(device.measure, problem.conv, algorithm, policy))
        at_s = round(time.time(), 3)
        named = {"problem": problem.key, "algorithm": algorithm}
        log.append({"kind": "measure", **named, "at_s": at_s, "result": result})
        if state.gone:
            return state.gone
        if result.lost:
            lost = True
            continue  # a hang's timeout is not the length of a measurement
        measured.add(algorithm)
        budget.note(began_s)
    # the problem stays open: a fresh process would first run every algorithm again, and hang or die once more
    if lost:
        return ""
    timed = state.guarded(lambda: device.find(problem.conv), ())
    conditions = dict(state.guarded(device.conditions, {}))
    log.append({"kind": "done", "problem": problem.key, "find": timed, "conditions": conditions})
    state.done.add(problem.key)
    return state.gone


def _replayed(records: Sequence[Entry]) -> _State:
    """The state that a log's records leave."""
    state = _State()
    for record in records:
        key = record["problem"]
        if record["kind"] == "problem":
            state.begun.add(key)
        elif record["kind"] == "done":
            state.done.add(key)
        elif record["kind"] == "measure":
            result = Measurement.from_dict(record["result"])
            state.take(result)
            if not result.lost:
                state.measured.setdefault(key, set()).add(record["algorithm"])
    return state


def collect_heuristic(
    plan: Plan, gpu: str, output: str, progress: Progress, *, device: "Device | Deviceless | None" = None
) -> None:
    """Write cuDNN's ranking of ``plan``'s problems for ``gpu`` to the log ``output``.

    The log is a run's, with ``problem`` records alone (no times), and goes on where it was interrupted. ``device``: a
    `Deviceless`, by default in a process of its own. Raises `InputError` where the library, the GPU or the log does not
    allow it.
    """
    device = device or open_ranking(gpu)
    try:
        info = device.describe()
        header = _header(plan, info, {"heuristic_only": True, "mode": info.properties["heuristic_mode"]})
        with RunLog(output, header) as log:
            begun = {record["problem"] for record in log.records if record["kind"] == "problem"}
            for done, problem in enumerate(plan.problems, 1):
                if problem.key not in begun:
                    ranking = device.heuristic(problem.conv)
                    names = tuple(dict.fromkeys(choice.algorithm for choice in ranking))
                    log.append(problem_record(problem, names, ranking))
                progress(done, len(plan), problem.key)
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

    ``device`` (as `WorkerOperators`) has ``describe``, ``measure(operator, policy)`` and ``conditions``.
    A device that is lost costs one problem, which the next call tries again: the worker starts a new process. Too many
    losses end the call.
    """
    budget = Budget(None if minutes is None else clock() + 60.0 * minutes, clock)
    state = _State()
    stopped = ""
    digest = hashlib.sha256("\n".join(sorted(map(key_of, operators))).encode()).hexdigest()
    header = _header(Plan((), "operators", digest=digest), device.describe(), asdict(POLICY))
    with RunLog(path, header) as run:
        held = {record["problem"]: Measurement.from_dict(record["result"]) for record in run.records}
        for result in held.values():
            state.take(result)
        done = {key for key, result in held.items() if not result.lost}
        for operator in operators:
            key = key_of(operator)
            if key in done:
                continue
            stopped = state.gone or (TIME_UP if budget.spent() else "")
            if stopped:
                break
            began_s = clock()
            result = state.measure(partial(device.measure, operator, POLICY))
            conditions = {}
            if not result.lost:
                conditions = dict(state.guarded(device.conditions, {}))
                budget.note(began_s)
                done.add(key)
            run.append({"kind": "operator", "problem": key, "result": result, "conditions": conditions})
            if progress:
                pace = budget.pace(state.statuses.total(), state.statuses.total(), len(operators) - len(done))
                progress(len(done), len(operators), pace)
    return state.outcome(len(done), len(operators), stopped or state.gone, header)
