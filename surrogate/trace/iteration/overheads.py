"""Read a trace's host work as a sequence of host steps, and measure overheads that other traces can use, kept as JSON.

The measured facts of a machine are the host overheads T1 to T5 of operators (Lin et al.) and the models of collectives.
A collective model gives time against message size; it is fitted on collectives that were measured without their waits.
"""

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError, parsed_json, read_bounded
from surrogate.features.families.transfer import Collective, CollectiveModel
from surrogate.trace import events
from surrogate.trace.events.parts import Iteration, iteration_of, iterations
from surrogate.trace.events.tables import Ints, Trace, enclosing, grouped, linked, with_ancestors
from surrogate.trace.graph.device import blocking_copies

WRAPPER = re.compile(r"^(?:Optimizer\.|DistributedDataParallel|autograd::engine::thread_main)")
"""Matches ranges around many operators that older profilers write as operators themselves."""
LOADER = re.compile(r"^enumerate\(DataLoader\)")
LAUNCH_KINDS = (events.LAUNCH, events.GRAPH_LAUNCH, events.COPY_CALL, events.MEMSET_CALL)
MAX_LATE_SHARE = 0.1
"""Maximum share of a staged copy's time that is after the end of a call that waits for it."""
_NUMBER = re.compile(r"\d+")
_ACTIONS = (*LAUNCH_KINDS, events.SYNC_CALL, events.WAIT_CALL)


@dataclass(frozen=True, slots=True)
class Action:
    """A runtime call that changes a clock: a launch, a synchronisation, or a wait of one stream for another.

    ``activities`` are rows of ``trace.activities`` in the order of their start. ``host_waits`` is True if the host
    waits for the copy; ``blocked_us`` is the part of the call's own time that it waits.
    """

    name: str
    kind: int
    start_ns: int
    end_ns: int
    activities: tuple[int, ...] = ()
    host_waits: bool = False
    blocked_us: float = 0.0

    @property
    def launches(self) -> bool:
        """Whether the call puts work on the device."""
        return self.kind in LAUNCH_KINDS


@dataclass(frozen=True, slots=True)
class HostStep:
    """One step of the host: an outermost operator, an input wait, or a call outside operators.

    ``parent`` is the range around it. Steps with the same thread and parent are neighbours. ``events_ns`` are the
    starts of the traced events inside, without launches. ``idle_us`` is the gap since the last neighbour and the other
    threads' work, if it is too long for T1.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int
    parent: int
    iteration: int
    is_input: bool
    is_operator: bool
    actions: tuple[Action, ...]
    events_ns: tuple[int, ...]
    idle_us: float = 0.0

    @property
    def launches(self) -> list[Action]:
        """The actions that put work on the device."""
        return [action for action in self.actions if action.launches]

    @property
    def activities(self) -> list[int]:
        """Rows of the device activities that the step launches."""
        return [row for action in self.actions for row in action.activities]

    @property
    def time_us(self) -> float:
        """Time from start to end, in µs."""
        return (self.end_ns - self.start_ns) / 1e3

    def events_between(self, first_ns: int, last_ns: int) -> int:
        """Return the number of traced events inside the step that start in ``[first_ns, last_ns)``."""
        return bisect_left(self.events_ns, last_ns) - bisect_left(self.events_ns, first_ns)


@dataclass(frozen=True)
class HostWork:
    """All steps of a trace in the order of their start; ``unattached`` are the activities that no step launched."""

    steps: tuple[HostStep, ...]
    iterations: tuple[Iteration, ...]
    unattached: tuple[int, ...]

    @cached_property
    def by_iteration(self) -> dict[int, list[HostStep]]:
        """Position of an iteration (-1: none) → its steps."""
        steps: dict[int, list[HostStep]] = defaultdict(list)
        for step in self.steps:
            steps[step.iteration].append(step)
        return steps


def host_work(trace: Trace) -> HostWork:
    """Return the steps of ``trace``. An operator inside another operator belongs to the outer one's step."""
    every = iterations(trace)
    of_range, of_call, _ = iteration_of(every, trace)
    owner = _owners(trace)
    actions, unattached = _actions(trace)
    by_owner: dict[int, list[Action]] = defaultdict(list)
    inside_ns: dict[int, list[int]] = defaultdict(list)
    steps: list[HostStep] = []
    calls, ranges = trace.calls, trace.ranges
    # A call after the end of its range, such as a synchronise with the last operator's id, is outside of it.
    is_inside = calls.start_ns < linked(ranges.end_ns, calls.range)
    for row, step_row in enumerate(np.where(is_inside, linked(owner, calls.range), -1).tolist()):
        action = actions.get(row)
        if step_row >= 0:
            if action is not None:
                by_owner[step_row].append(action)
            if action is None or not action.launches:
                inside_ns[step_row].append(int(calls.start_ns[row]))
        elif action is not None:
            times = int(calls.thread[row]), action.start_ns, action.end_ns
            place = int(calls.range[row]), int(of_call[row])
            steps.append(HostStep(action.name, *times, *place, False, False, (action,), ()))
    for row, step_row in enumerate(owner.tolist()):
        if step_row not in (-1, row):
            inside_ns[step_row].append(int(ranges.start_ns[row]))
    for row in np.flatnonzero(owner == np.arange(len(ranges))).tolist():
        name = trace.name_of(ranges, row)
        is_operator = bool(ranges.kind[row] == events.OPERATOR)
        is_input = bool(LOADER.match(name))
        # Annotations often contain a counter: "Step 10" and "Step 20" are one kind of work.
        label = name if is_operator else _NUMBER.sub("#", name)
        times = int(ranges.thread[row]), int(ranges.start_ns[row]), int(ranges.end_ns[row])
        place = int(ranges.parent[row]), int(of_range[row])
        inside = tuple(by_owner[row]), tuple(sorted(inside_ns[row]))
        steps.append(HostStep(label, *times, *place, is_input, is_operator, *inside))
    steps.sort(key=lambda step: (step.start_ns, -step.end_ns))
    return HostWork(tuple(_with_idle(steps)), every, unattached)


def _with_idle(steps: Sequence[HostStep]) -> Iterator[HostStep]:
    """Yield the steps with the gaps before them that are too long for T1."""
    parents, last_ns = dict[int, int](), 0
    for step in steps:
        idle_us = max(step.start_ns - last_ns, 0) / 1e3 * (parents.get(step.thread) == step.parent)
        yield replace(step, idle_us=idle_us) if idle_us > NEIGHBOUR_GAP_US[1] else step
        parents[step.thread], last_ns = step.parent, max(last_ns, step.end_ns)


def _owners(trace: Trace) -> Ints:
    """Return for every range the row of its step, -1 for a range around steps."""
    ranges = trace.ranges
    is_wrapper, is_loader = trace.name_matches(ranges, WRAPPER.match), trace.name_matches(ranges, LOADER.match)
    owner = enclosing(ranges, ((ranges.kind == events.OPERATOR) & ~is_wrapper) | is_loader, outermost=True)
    action_ranges = trace.calls.range[np.isin(trace.calls.kind, _ACTIONS)]
    filled = with_ancestors(ranges, np.concatenate([np.flatnonzero(owner >= 0), action_ranges, ranges.parent]))
    # An empty annotation is host work without an operator, such as a module's bookkeeping.
    is_empty = ~filled & (ranges.kind != events.STEP)
    owner[is_empty] = np.flatnonzero(is_empty)
    return owner


def _actions(trace: Trace) -> tuple[dict[int, Action], tuple[int, ...]]:
    """Return the actions by row of their call, and the activities without a call."""
    calls, activities = trace.calls, trace.activities
    launched = {call: tuple(rows.tolist()) for call, rows in grouped(activities.call, np.arange(len(activities)))}
    rows = np.flatnonzero(np.isin(calls.kind, _ACTIONS) | np.isin(np.arange(len(calls)), list(launched)))
    # A copy that the call stages is awaited if the call covers most of it.
    late_us = (activities.end_ns - linked(calls.end_ns, activities.call, 0)) / 1e3
    is_covered = late_us <= MAX_LATE_SHARE * activities.time_us
    blocking = {call: copy for call, (copy, at_end) in blocking_copies(trace).items() if at_end or is_covered[copy]}
    actions = {row: _action(trace, row, launched.get(row, ()), blocking.get(row, -1)) for row in rows.tolist()}
    return actions, launched.get(-1, ())


def _action(trace: Trace, row: int, launched: tuple[int, ...], copy: int) -> Action:
    """Return the action of a call; ``copy`` is the activity that it waits for (`blocking_copies`), -1 for none."""
    calls = trace.calls
    start, end = int(calls.start_ns[row]), int(calls.end_ns[row])
    blocked = min(int(trace.activities.end_ns[copy]), end) - start if copy >= 0 else 0
    # A call of unknown name that launched something is a launch.
    kind = int(calls.kind[row]) if calls.kind[row] in _ACTIONS else events.LAUNCH
    return Action(trace.name_of(calls, row), kind, start, end, launched, copy >= 0, max(blocked, 0) / 1e3)


SegmentTime = tuple[float, int]
"""Host time in µs without waiting for the device, and the number of traced events in it."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The parts of a step: ``first`` is T2 (the whole step without launches), ``between`` T5, ``last`` T3; ``launches``
    with T4 in µs.
    """

    first: SegmentTime
    between: tuple[SegmentTime, ...]
    last: SegmentTime
    launches: tuple[tuple[Action, float], ...]


def segments(step: HostStep) -> Segments:
    """Return the parts of ``step`` as traced, without the time of waits, which depends on the device.

    The part that ends the step also contains the step's own event.
    """
    launches = step.launches
    if not launches:
        return Segments(_part(step, step.start_ns, step.end_ns, 1), (), (0.0, 0), ())
    first = _part(step, step.start_ns, launches[0].start_ns)
    last = _part(step, launches[-1].end_ns, step.end_ns, 1)
    between = tuple(_part(step, before.end_ns, after.start_ns) for before, after in pairwise(launches))
    calls = tuple((call, max((call.end_ns - call.start_ns) / 1e3 - call.blocked_us, 0.0)) for call in launches)
    return Segments(first, between, last, calls)


def _part(step: HostStep, start_ns: int, end_ns: int, own_events: int = 0) -> SegmentTime:
    waits = [action for action in step.actions if action.kind == events.SYNC_CALL]
    waiting = sum(max(min(wait.end_ns, end_ns) - max(wait.start_ns, start_ns), 0) for wait in waits)
    return max(end_ns - start_ns - waiting, 0) / 1e3, step.events_between(start_ns, end_ns) + own_events


CollectiveModels = Mapping[str, CollectiveModel]
"""Kind of collective (``all_reduce``, ``all_to_all``, …) → its model."""
CURVE_FROM = 8
"""Minimum number of message sizes between latency and full bandwidth for which the curve of four parameters is fitted.
"""
RISING, SATURATED = 1.1, 0.95
"""Latency dominates up to this multiple of the shortest time; bandwidth is full from this share of the highest rate."""
EVENT_US = 2.0
"""The host's cost of tracing one event, in µs. Source: Lin et al. (HiPC 2022). As in their code, an operator's own
event is counted twice, once in the gap before it and once at its end.
"""
NEIGHBOUR_GAP_US = (2.0, 200.0)
"""The range of gaps between neighbouring operators that count as T1, in µs. Shorter gaps are noise, longer ones are
other work. Source: Lin et al. (HiPC 2022).
"""
T4_US = 4.0
"""The time of a launch call without measurements, in µs. Source: Lin et al. (HiPC 2022)."""
KINDS = ("t1", "t2", "t3", "t4", "t5", "alone", "edge", "handover")
"""The kinds of overheads. ``alone`` is the time of an operator without a launch (its T5 in the paper). Two kinds are
not in the paper: ``edge`` is the gap between operators that are not neighbours, ``handover`` the gap from one thread to
another.
"""
SCHEMA = 1
MAX_BYTES = 16 << 20
_LAUNCH_COUNT_SEPARATOR = " | launches: "


class Mean(NamedTuple):
    """A mean in µs and its number of samples."""

    mean_us: float
    samples: int


Means = Mapping[tuple[str, str], Mean]
"""(kind, operator) → mean; the operator "" means all operators together."""
Samples = dict[tuple[str, str], list[float]]


@dataclass(frozen=True, slots=True)
class Overheads:
    """Mean host overheads in µs, by operator and over all operators, and the machine's collective models.

    The kinds are `KINDS`; T4 is kept by the name of the call. T2, T3 and T5 are also kept by the number of launches and
    the position among them (`finer_name`), because the calls of an operator differ. A kind without samples is 0, except
    T4, which is `T4_US`. ``collective_models`` are present if they were fitted on the traces of several ranks.
    """

    means: Means
    sources: tuple[str, ...] = ()
    collective_models: CollectiveModels = field(default_factory=dict)

    def us(self, kind: str, name: str, finer: str = "") -> float:
        """Return the mean of ``kind`` in µs: of ``finer``, a `finer_name`, else of the operator, else of all operators.

        For T4 ``name`` is the call.
        """
        mean = self.means.get((kind, finer or name)) or self.means.get((kind, name)) or self.means.get((kind, ""))
        return mean.mean_us if mean else T4_US if kind == "t4" else 0.0

    def has_samples(self, name: str) -> bool:
        """Return whether the operator has samples of its own, of any kind."""
        return any((kind, name) in self.means for kind in KINDS)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        means = sorted(self.means.items())
        by_name = {kind: {name: mean for (own, name), mean in means if own == kind} for kind in KINDS}
        by_name = {kind: names for kind, names in by_name.items() if names}
        overall = {kind: names.pop("") for kind, names in by_name.items() if "" in names}
        models = {kind: asdict(model) for kind, model in self.collective_models.items()}
        tables = {"overall": overall, "by_name": by_name, "laws": models}
        return {"schema": SCHEMA, "unit": "us", "sources": list(self.sources), **tables}

    def save(self, path: str | Path) -> None:
        """Write a JSON file. Raises `InputError` if the file cannot be written."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")


def measure_overheads(work: HostWork, source: str = "", keep: Container[int] | None = None) -> Overheads:
    """Return the overheads of the steps of ``work``, or only of the iterations (positions) in ``keep``.

    Outliers are dropped per operator and over all operators: samples outside the quartiles ± 1.5 times their distance.
    A sample that is negative without the profiler's cost counts as 0.
    """
    samples: Samples = defaultdict(list)
    last: dict[int, HostStep] = {}
    for step in work.steps:
        if keep is None or step.iteration in keep:
            _add_gap_samples(step, last, samples)
            if not step.is_input:
                _add_step_samples(step, segments(step), samples)
        last[step.thread] = step
    host_names = {step.name for step in work.steps if not step.is_operator}
    overall: Samples = defaultdict(list)
    for (kind, name), values in samples.items():
        # The time of an annotation without operators is no evidence for operators.
        if _LAUNCH_COUNT_SEPARATOR not in name and not (kind == "alone" and name in host_names):
            overall[kind, ""] += values
    means = {key: trimmed_mean(values) for key, values in {**samples, **overall}.items()}
    return Overheads(means, (source,) if source else ())


def _add_gap_samples(step: HostStep, last: Mapping[int, HostStep], samples: Samples) -> None:
    """Add T1 between neighbouring operators, or the hand-over if another thread stopped last."""
    before = last.get(step.thread)
    previous_thread = handover_thread(step, {thread: step.end_ns for thread, step in last.items()})
    if previous_thread is not None:
        samples["handover", ""].append((step.start_ns - last[previous_thread].end_ns) / 1e3)
    elif before is not None and before.iteration == step.iteration:
        gap_us = (step.start_ns - before.end_ns) / 1e3
        if before.parent != step.parent:
            samples["edge", step.name].append(max(gap_us, 0.0))
        elif NEIGHBOUR_GAP_US[0] <= gap_us <= NEIGHBOUR_GAP_US[1]:
            samples["t1", step.name].append(gap_us - EVENT_US)


def _add_step_samples(step: HostStep, parts: Segments, samples: Samples) -> None:
    """Add the parts of a step without the time of tracing, by operator and by `finer_name`."""
    count = len(parts.launches)
    timed = [("t2", parts.first, None), ("t3", parts.last, None)]
    timed += [("t5", part, position) for position, part in enumerate(parts.between)]
    for kind, (part_us, traced), position in timed if count else [("alone", parts.first, None)]:
        for name in (step.name, finer_name(step.name, count, position)) if count else (step.name,):
            samples[kind, name].append(max(part_us - EVENT_US * traced, 0.0))
    for action, call_us in parts.launches:
        samples["t4", action.name].append(call_us)


def finer_name(name: str, launches: int, after: int | None = None) -> str:
    """Return the name of an operator with that many launches, or of the gap after its launch ``after`` (from 0)."""
    return f"{name}{_LAUNCH_COUNT_SEPARATOR}{launches}" + ("" if after is None else f" after {after + 1}")


def handover_thread(step: HostStep, ends_ns: Mapping[int, int]) -> int | None:
    """Return the thread that ``step``'s thread waited for: the last one that stopped before the step starts.

    The answer is None if the step's own thread stopped last.
    """
    own_end = ends_ns.get(step.thread, -1)
    stopped = {thread: end for thread, end in ends_ns.items() if own_end < end <= step.start_ns}
    return max(stopped, key=lambda thread: stopped[thread]) if stopped else None


def trimmed_mean(values: Sequence[float]) -> Mean:
    """Return the mean of the values within the quartiles ± 1.5 times their distance."""
    array = np.asarray(values, np.float64)
    low, high = np.percentile(array, [25, 75])
    reach = 1.5 * (high - low)
    near = array[(array >= low - reach) & (array <= high + reach)]
    return Mean(float(near.mean()), len(near))


def pooled(parts: Iterable[Overheads]) -> Overheads:
    """Return the overheads of several traces as one: means weighted by samples, collective models of the first trace.

    Raises `InputError` if no overheads are given.
    """
    every = list(parts)
    if not every:
        raise InputError("no overheads are given; measure them in one trace at least")
    means = {}
    for key in dict.fromkeys(key for part in every for key in part.means):
        time_us, samples = zip(*(part.means[key] for part in every if key in part.means), strict=True)
        means[key] = Mean(float(np.average(time_us, weights=samples)) if any(samples) else 0.0, sum(samples))
    return Overheads(means, tuple(dict.fromkeys(s for part in every for s in part.sources)), every[0].collective_models)


def load_overheads(path: str | Path) -> Overheads:
    """Read overheads that `Overheads.save` wrote. Raises `InputError` if the file is missing or holds no overheads."""
    path = Path(path)
    try:
        raw = parsed_json(read_bounded(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise InputError(f"{path}: overheads cannot be read ({reason}); --save-overheads writes them") from None
    try:
        if raw["schema"] != SCHEMA:
            raise InputError(f"{path}: has schema {raw['schema']!r}; give overheads of schema {SCHEMA}")
        values = {(kind, name): value for kind, names in raw["by_name"].items() for name, value in names.items()}
        values |= {(kind, ""): value for kind, value in raw["overall"].items()}
        means = {(kind, name): _mean(value) for (kind, name), value in values.items() if kind in KINDS}
        models = {str(kind): CollectiveModel(**model) for kind, model in raw.get("laws", {}).items()}
        return Overheads(means, tuple(map(str, raw.get("sources", ()))), models)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise InputError(f"{path}: holds no overheads; write them with --save-overheads") from None


def _mean(value: Any) -> Mean:
    mean_us, count = float(value[0]), int(value[1])
    if not 0 <= mean_us < float("inf") or count < 0:
        raise ValueError
    return Mean(mean_us, count)


def collective_model_us(models: CollectiveModels, problem: Collective) -> float | None:
    """Return the time in µs by the model of the collective's kind; None if the kind has no model."""
    model = models.get(problem.kind)
    return None if model is None else float(model.time_us(problem.dram_bytes, problem.factor))


def fit_collective_model(problems: Sequence[Collective], time_us: Sequence[float]) -> CollectiveModel:
    """Fit the model of one kind of collective to collectives of at least two sizes and their times in µs.

    With few sizes, the model is overhead + bytes · factor / bandwidth, fitted by least squares of relative errors. With
    many sizes, it has the three parts of Lin et al. (TPDS 2024), with a curve between latency and full bandwidth.
    """
    from scipy.optimize import least_squares, nnls

    times = np.array(time_us)
    x = np.log2([float(problem.dram_bytes) for problem in problems])
    moved = np.exp2(x) * [float(problem.factor) for problem in problems] / 1e3  # divided by GB/s, this gives µs
    # Least squares of (overhead + moved / bandwidth) / time against 1; both parts are at least 0.
    (overhead, per_gbs), _ = nnls(np.stack([1 / times, moved / times], axis=1), np.ones(len(times)))
    # Sizes up to a are dominated by latency; sizes from c reach the full bandwidth.
    rate = moved / times
    no_curve = dict.fromkeys(("a", "c", "l", "k", "x0", "b"), 0.0)
    straight = CollectiveModel(overhead_us=float(overhead), max_gbs=1 / max(float(per_gbs), 1e-6), **no_curve)
    a = float(x[times <= RISING * times.min()].max())
    c = float(x[rate < SATURATED * rate.max()].max(initial=0.0))
    between = (x > a) & (x <= c)
    if len(np.unique(x[between])) < CURVE_FROM:
        return straight
    # Between a and c, a logistic curve gives log10 of the rate against log2 of the size.
    log_rate, size = np.log10(rate[between]), x[between]
    minimum, maximum = float(log_rate.min()), float(log_rate.max())

    def errors(curve: np.ndarray) -> np.ndarray:
        l, k, x0, b = curve  # noqa: E741
        return l / (1 + np.exp(-k * (size - x0))) + b - log_rate

    first = (maximum - minimum + 0.1, 0.5, float(np.median(size)), minimum - 0.05)
    bounds = (0.0, 0.01, size.min() - 10, minimum - 3), (10.0, 10.0, size.max() + 10, maximum)
    fit = least_squares(errors, first, bounds=bounds)
    curve = dict(zip(("l", "k", "x0", "b"), fit.x.tolist(), strict=True))
    return CollectiveModel(overhead_us=float(times.min()), max_gbs=float(rate.max()), a=a, c=c, **curve)


def fit_collective_models(problems: Sequence[Collective], time_us: Sequence[float]) -> dict[str, CollectiveModel]:
    """Fit a model for every kind of collective with at least two message sizes."""
    models = {}
    for kind in dict.fromkeys(problem.kind for problem in problems):
        rows = [row for row, problem in enumerate(problems) if problem.kind == kind]
        if len({problems[row].dram_bytes for row in rows}) > 1:
            models[kind] = fit_collective_model([problems[row] for row in rows], [time_us[row] for row in rows])
    return models


def cross_validated_us(problems: Sequence[Collective], time_us: Sequence[float]) -> list[float | None]:
    """Return each collective's time in µs by the model fitted on collectives of other sizes.

    The time is None if the other sizes give no model.
    """
    answers = []
    for problem in problems:
        others = [row for row, other in enumerate(problems) if other.dram_bytes != problem.dram_bytes]
        models = fit_collective_models([problems[row] for row in others], [time_us[row] for row in others])
        answers.append(collective_model_us(models, problem))
    return answers
