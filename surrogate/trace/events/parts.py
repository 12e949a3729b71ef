"""Find the parts of a trace: iterations and layers; cut a trace with `trim`.

Iterations are the profiler's steps, repetitions, or the whole trace. XSP (IPDPS 2020) takes the framework's operators
as layers. Daydream (ATC 2020, section 4.2) assigns a kernel to the layer during which its launch call was made on the
host. Here a backward operator belongs to its forward operator's layer.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from surrogate.report.tables import format_number
from surrogate.trace import events
from surrogate.trace.events import tables
from surrogate.trace.events.phases import Mask, captured_calls, launched_before
from surrogate.trace.events.repetition import repetitions
from surrogate.trace.events.tables import Activities, Ints, Iteration, Ranges, Trace, enclosing, linked, take_rows

_MIN_SHARE = 0.5
"""Minimum share of a trace's time, or of the device's work, that counted repetitions cover."""
_STEP_NAME = re.compile(r"(?i)^(?:train(?:ing)?[ _]?)?(?:step|iter(?:ation)?)[ _#:]*\d*$")
"""Matches the names of users' ranges around one step."""
OUTLIER = 3.0
"""An iteration is not steady if it takes more than this multiple of the median."""


def steady_run(every: Sequence[Iteration]) -> tuple[Sequence[Iteration], str]:
    """Return the longest run of steady iterations, and a note for the user.

    An iteration is steady if it takes at most `OUTLIER` times the median of the steady ones; a warm-up takes more. The
    note is "" if all iterations are steady.
    """
    times_us = np.array([iteration.time_us for iteration in every])
    is_steady = np.ones(len(every), dtype=bool)
    # Removing the longest iterations lowers the median, so repeat until no steady one exceeds the limit.
    while (times_us[is_steady] > OUTLIER * np.median(times_us[is_steady])).any():
        is_steady &= times_us <= OUTLIER * np.median(times_us[is_steady])
    outliers = np.flatnonzero(~is_steady).tolist()
    before, after = max(pairwise([-1, *outliers, len(every)]), key=lambda pair: pair[1] - pair[0])
    if not outliers or after - before < 2:
        return every, ""
    first, last, *longer = (every[at].index for at in (before + 1, after - 1, *outliers))
    median, numbers = format_number(np.median(times_us[is_steady]) / 1e3), ", ".join(map(str, longer))
    note = events.text("steady", first=first, last=last, limit=OUTLIER, median=median, longer=numbers)
    return every[before + 1 : after], note


def iterations(trace: Trace) -> tuple[Iteration, ...]:
    """Return the iterations of a trace in time order.

    Iterations without work before or after all others, and those at the end of the recording whose kernels are not in
    the file, do not count.
    The evidence is, in this order: ProfilerStep ranges; the ends of ``Optimizer.step``; the period of the outermost
    ranges, or of the kernels; else the whole trace is one iteration. With ``Optimizer.step``, the first iteration
    begins with the trace, and events after the last step belong to no iteration.

    Parameters
    ----------
    trace : Trace
        A trace. If `trim` cut it to iterations, the answer is these.

    Returns
    -------
    tuple of Iteration
        At least one iteration.
    """
    if trace.chosen:
        return trace.chosen
    return _complete(trace, _all_iterations(trace))


def _complete(trace: Trace, every: tuple[Iteration, ...]) -> tuple[Iteration, ...]:
    """Return the iterations from the first to the last one with work, if their launches have their activities."""
    has_work, is_lost = _contents(trace, every)
    first, last = np.flatnonzero(has_work)[[0, -1]] if has_work.any() else (0, -1)
    return (
        tuple(part for part, lost in zip(every[first : last + 1], is_lost[first:], strict=False) if not lost) or every
    )


def without_work(trace: Trace, every: tuple[Iteration, ...]) -> list[int]:
    """Return the indices of the iterations that hold no work."""
    return [part.index for part, has_work in zip(every, _contents(trace, every)[0], strict=True) if not has_work]


def _contents(trace: Trace, every: tuple[Iteration, ...]) -> tuple[Mask, Mask]:
    """Return a mask of the iterations that hold work, and one of those with launches without their activities."""
    calls = trace.calls
    _, of_call, of_activity = iteration_of(every, trace)

    def count(of: Ints) -> Ints:
        return np.bincount(of[of >= 0], minlength=len(every))

    launches = np.isin(calls.kind, (events.LAUNCH, events.GRAPH_LAUNCH))
    starts_work = launches | np.isin(calls.kind, (events.COPY_CALL, events.MEMSET_CALL))
    starts_work &= ~captured_calls(trace)
    has_work = count(of_call[starts_work]) + count(of_activity) > 0
    if not has_work.any():
        has_work = count(iteration_at(every, trace.ranges.start_ns[trace.ranges.kind != events.STEP])) > 0
    first_ns, last_ns = trace.complete_ns
    lost = launches & ((calls.start_ns < first_ns) | (calls.start_ns >= last_ns))
    return has_work, count(of_call[lost]) > 0


def _is_in_one_step(trace: Trace, every: tuple[Iteration, ...]) -> bool:
    """Return whether repetitions are parts of one step, such as its layers.

    They are if they all begin in one range that is named step or iteration. If most of the device's work runs after
    them, the host launched all of them before the device finished the first ones. Then they are a loop of steps only
    if no kernel is launched outside of them, such as by a model's head, and no other range or module is around them.
    """
    ranges, frames, work = trace.ranges, trace.frames, trace.activities
    first_ns, last_ns, end_ns = every[0].start_ns, every[-1].start_ns, every[-1].end_ns
    around, modules = ((each.start_ns <= first_ns) & (last_ns < each.end_ns) for each in (ranges, frames))
    around &= np.isin(ranges.kind, (events.NVTX, events.ANNOTATION))
    if (trace.name_matches(ranges, _STEP_NAME.match) & around).any():
        return True
    inside_ns = np.minimum(work.end_ns, end_ns) - np.maximum(work.start_ns, first_ns)
    if np.maximum(inside_ns, 0).sum() >= _MIN_SHARE * (work.end_ns - work.start_ns).sum():
        return False
    modules &= trace.name_matches(frames, lambda name: name.startswith(events.MODULE))
    kernels = (work.kind == events.KERNEL) & ~launched_before(trace)
    return bool(around.any() or modules.any() or (iteration_of(every, trace)[2][kernels] < 0).any())


@lru_cache(maxsize=1)
def _all_iterations(trace: Trace) -> tuple[Iteration, ...]:
    """Return the iterations, with those that hold no work or lack activities."""
    ranges = trace.ranges
    steps = np.flatnonzero(ranges.kind == events.STEP)
    if len(steps):
        return tuple(
            Iteration(i, trace.name_of(ranges, row), int(ranges.start_ns[row]), int(ranges.end_ns[row]), "step")
            for i, row in enumerate(steps.tolist())
        )
    first, last = trace.span_ns
    optimizer = np.flatnonzero(trace.name_matches(ranges, lambda name: name.startswith("Optimizer.step")))
    if len(optimizer) > 1:
        return _between([first, *ranges.end_ns[optimizer].tolist()], "optimizer")
    for bounds in repetitions(trace):
        every = _between(bounds, "repetition")
        # A loop that covers a small part of the time and of the work is a loop inside an iteration.
        is_large = max(_shares(trace, steady_run(_complete(trace, every))[0])) >= _MIN_SHARE
        if is_large and not _is_in_one_step(trace, every):
            return every
    return (Iteration(0, "whole trace", first, last + 1, "whole"),)


def _shares(trace: Trace, part: Sequence[Iteration]) -> tuple[float, float]:
    """Return the shares of a trace's time and of its device's work that are in some iterations."""
    is_inside = iteration_of(tuple(part), trace)[2] >= 0
    work_us = trace.activities.time_us
    return sum(each.time_us for each in part) / trace.span_us, work_us[is_inside].sum() / max(work_us.sum(), 1e-3)


def _between(bounds: list[int], by: str) -> tuple[Iteration, ...]:
    return tuple(Iteration(i, f"iteration {i}", a, b, by) for i, (a, b) in enumerate(pairwise(bounds)))


def iteration_of(chosen: tuple[Iteration, ...], trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Return the iteration (position in ``chosen``) of every range, call and device activity, -1 for none.

    An activity belongs to the iteration of its launch call. Without a launch call, its own start decides, unless it was
    launched before the recording.
    """
    of_range = iteration_at(chosen, trace.ranges.start_ns)
    of_call = iteration_at(chosen, trace.calls.start_ns)
    around = trace.activities.range
    of_activity = np.where(around >= 0, linked(of_range, around), iteration_at(chosen, trace.activities.start_ns))
    of_activity = np.where(launched_before(trace), -1, of_activity)
    return of_range, of_call, np.where(trace.activities.call >= 0, linked(of_call, trace.activities.call), of_activity)


def iteration_at(chosen: tuple[Iteration, ...], time_ns: Ints) -> Ints:
    """Return the position in ``chosen`` of the iteration at each time, -1 for none."""
    starts = np.array([iteration.start_ns for iteration in chosen])
    ends = np.array([iteration.end_ns for iteration in chosen])
    order = np.argsort(starts, kind="stable")
    nearest = np.searchsorted(starts[order], time_ns, "right") - 1
    position = order[np.maximum(nearest, 0)]
    return np.where((nearest >= 0) & (time_ns < ends[position]), position, -1)


def trim(
    trace: Trace,
    *,
    iterations_kept: Sequence[int] | None = None,
    from_us: float | None = None,
    to_us: float | None = None,
    gpu: int | None = None,
) -> Trace:
    """Return the events of a trace within all given limits, linked among themselves. The origin stays.

    Host events are kept if they *start* within the limits. A device activity is kept with its launch call; without a
    launch call, its own start decides.

    Parameters
    ----------
    trace : Trace
        The trace to cut.
    iterations_kept : sequence of int, optional
        Indices of the iterations to keep (`iterations`). They stay valid in the result.
    from_us, to_us : float, optional
        Limits in µs from the first event.
    gpu : int, optional
        The only device with activities to keep.

    Returns
    -------
    Trace

    Raises
    ------
    InputError
        If an iteration or the GPU is not in the trace, or the time span is empty.
    """
    if iterations_kept is not None:
        trace = _by_iteration(trace, iterations_kept)
    if from_us is not None or to_us is not None:
        trace = _by_time(trace, from_us or 0.0, float("inf") if to_us is None else to_us)
    return trace if gpu is None else _by_gpu(trace, gpu)


def _by_iteration(trace: Trace, requested: Sequence[int]) -> Trace:
    every = {iteration.index: iteration for iteration in iterations(trace)}
    for index in requested:
        if index not in every:
            numbers = list(every)
            listed = f"{numbers[0]} to {numbers[-1]}" if len(every) > 1 else f"only iteration {numbers[0]}"
            by = every[numbers[0]].by
            raise events.refusal("no_iteration", index=index, source=trace.source, listed=listed, by=by)
    selected = tuple(every[index] for index in dict.fromkeys(requested))
    is_kept = iteration_of(selected, trace)[2] >= 0
    part = _subset(trace, lambda times: iteration_at(selected, times) >= 0, is_kept)
    others = take_rows(trace.activities, ~is_kept)
    no_link = np.full(len(others), -1)
    others = tables.joined(replace(others, call=no_link, range=no_link), trace.others)
    return replace(part, chosen=selected, others=others)


def _by_time(trace: Trace, from_us: float, to_us: float) -> Trace:
    limits = {"low": format_number(from_us, 6), "high": format_number(to_us, 6)}
    if not from_us < to_us:
        raise events.refusal("empty_time", **limits)
    first, last = trace.span_ns
    low, high = (first + round(min(limit * 1e3, 2.0**62)) for limit in (from_us, to_us))

    def inside(times: Ints) -> Mask:
        return (times >= low) & (times < high)

    activities = trace.activities
    of_call = inside(trace.calls.start_ns)
    is_kept = np.where(activities.call >= 0, linked(of_call, activities.call, False), inside(activities.start_ns))
    if not is_kept.any() and not of_call.any() and not inside(trace.ranges.start_ns).any():
        length = format_number((last - first) / 1e3, 6)
        raise events.refusal("no_event_then", source=trace.source, length=length, **limits)
    chosen = tuple(each for each in trace.chosen if each.start_ns < high and each.end_ns > low)
    return replace(_subset(trace, inside, is_kept), chosen=chosen)


def _by_gpu(trace: Trace, gpu: int) -> Trace:
    devices = np.array([stream.device for stream in trace.streams] or [-1])
    if not (devices == gpu).any():
        present = sorted({stream.device for stream in trace.streams})
        raise events.refusal("no_gpu", gpu=gpu, source=trace.source, listed=", ".join(map(str, present)) or "none")
    on_streams = {name: getattr(trace, name) for name in ("activities", "others", "syncs")}
    kept = {name: table and take_rows(table, devices[table.stream] == gpu) for name, table in on_streams.items()}
    allocations = take_rows(trace.allocations, np.isin(trace.allocations.device, (gpu, -1)))
    return replace(trace, **kept, allocations=allocations)


def _subset(trace: Trace, inside: Callable[[Ints], Mask], activities: Mask) -> Trace:
    """Return the events that start ``inside`` and the given activities, with renumbered links.

    A link to a removed range leads to the innermost kept range around it.
    """
    ranges, new_range = _nested(trace.ranges, inside(trace.ranges.start_ns))
    calls = inside(trace.calls.start_ns)
    new_rows = {"range": new_range, "call": np.append(np.where(calls, np.cumsum(calls) - 1, -1), -1)}
    masks = {"calls": calls, "activities": activities, "syncs": inside(trace.syncs.start_ns)}
    masks["allocations"] = inside(trace.allocations.time_ns)
    kept: dict[str, Any] = {"ranges": ranges, "frames": _nested(trace.frames, inside(trace.frames.start_ns))[0]}
    for name, mask in masks.items():
        table = take_rows(getattr(trace, name), mask)
        links = {link: rows[getattr(table, link)] for link, rows in new_rows.items() if hasattr(table, link)}
        kept[name] = replace(table, **links)
    return replace(trace, **kept)


def _nested(table: Ranges, is_kept: Mask) -> tuple[Ranges, Ints]:
    """Return the kept rows with new parents and depths, and the new row of every old row.

    A removed row has the new row of its nearest kept ancestor, -1 if none. The last entry is for the link -1.
    """
    new_rows = np.append(linked(np.cumsum(is_kept) - 1, enclosing(table, is_kept)), -1)
    part = take_rows(table, is_kept)
    parent = new_rows[part.parent]
    depth = np.zeros(len(part), np.int64)
    for _, rows in tables.grouped(part.depth, np.arange(len(part))):  # outer ranges first
        depth[rows] = linked(depth, parent[rows]) + 1
    return replace(part, parent=parent, depth=depth), new_rows


FORWARD, BACKWARD, OTHER = range(3)
PHASES = ("forward", "backward", "other")
"""The phases of an operator. ``other`` belongs to no layer of the model: the optimizer, data loading, gradient
accumulation.
"""
OUTSIDE = "(outside layers)"
_WRAPPER = re.compile(r"^(?:Optimizer\.|enumerate\(DataLoader\)|nccl:|DistributedDataParallel)")
_ENGINE = "autograd::engine::evaluate_function: "
_COUNT = re.compile(r"_\d+$")
_ARGUMENTS = re.compile(r"\s*(?:\([^()]*=[^()]*\)|\[[^\[\]]*=[^\[\]]*\]|\{[^{}]*=[^{}]*\})$|[\s,;]+\w+ ?= ?[^\s,;]+")
"""Matches the arguments in the text of a label: ``(batch=32, step=17)``, `` loss=0.34``."""


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The layer instances of a trace in time order, one per run of a layer.

    Attributes
    ----------
    name, type
        The name of each instance, unique within an iteration (``conv2d.3`` is its fourth conv2d), and the name without
        the number. If Python frames were recorded, the name has the path of modules: ``ResNet_0/Linear_0``.
    row, from_frame
        Its row in ``trace.ranges``, or in ``trace.frames`` if ``from_frame`` is 1.
    start_ns, end_ns
        Its host time from the trace's origin.
    iteration
        Its position in ``iterations``, -1 for none.
    of_range, of_activity
        The instance of each range and device activity, -1 for none.
    phase_of_range, phase_of_activity
        The phase (`PHASES`) of each range and device activity.
    iterations
        The iterations of the trace.
    iteration_of_activity
        The position in ``iterations`` of each device activity, -1 for none.
    """

    name: tuple[str, ...]
    type: tuple[str, ...]
    row: Ints
    from_frame: Ints
    start_ns: Ints
    end_ns: Ints
    iteration: Ints
    of_range: Ints
    of_activity: Ints
    phase_of_range: Ints
    phase_of_activity: Ints
    iterations: tuple[Iteration, ...]
    iteration_of_activity: Ints

    def __len__(self) -> int:
        return len(self.name)

    def device_behind_us(self, activities: Activities) -> tuple[float, ...]:
        """Return for every iteration the time that its device activities continue after its end on the host, in µs."""
        host_ns = np.array([part.end_ns for part in self.iterations])
        ends_ns, is_inside = np.append(host_ns, 0), self.iteration_of_activity >= 0
        np.maximum.at(ends_ns, self.iteration_of_activity[is_inside], activities.end_ns[is_inside])
        return tuple(((ends_ns[:-1] - host_ns) / 1e3).tolist())

    def labels(self, by: str) -> tuple[list[str], Ints]:
        """Return the labels in order of first use with `OUTSIDE` last, and the label index of each instance.

        ``by`` is ``layer`` for names or ``type`` for types. The last index belongs to instance -1.
        """
        return numbered(self.name if by == "layer" else self.type, OUTSIDE)


def numbered(texts: Sequence[str], outside: str) -> tuple[list[str], Ints]:
    """Return the distinct texts in order of first use, then ``outside``, and the index of each text and of the last."""
    index = {text: i for i, text in enumerate(dict.fromkeys([*texts, outside]))}
    index[outside] = len(index) - 1
    return list(index), np.array([index[text] for text in (*texts, outside)], np.int64)


def find_layers(trace: Trace) -> Layers:
    """Return the layers of a trace.

    Layers are the leaf modules if Python frames were recorded, else the outermost operators. In a trace without
    operators, they are the innermost NVTX ranges or annotations. A backward operator belongs to the layer of the last
    forward operator with its autograd sequence number.

    Parameters
    ----------
    trace : Trace
        The trace.

    Returns
    -------
    Layers
    """
    own_anchor = _anchors(trace)
    modules = _leaf_modules(trace)
    # For every range, find the leaf module (row of ``frames``) that is open on its thread at its start, -1 for none.
    is_leaf = np.isin(np.arange(len(trace.frames)), modules)
    of_module = tables.open_rows(trace.frames, trace.ranges.start_ns, trace.ranges.thread, is_leaf)
    own_module = linked(of_module, own_anchor)
    forward = np.where((own_module < 0) & (own_anchor >= 0), linked(_forward_of(trace, own_anchor), own_anchor), -1)
    # A backward operator takes the forward anchor that it is linked to; an anchor takes its module if it has one.
    anchor = np.where(forward >= 0, forward, own_anchor)
    return _instances(trace, anchor, linked(of_module, anchor), modules, _phases(trace, own_anchor, forward))


def _anchors(trace: Trace) -> Ints:
    """Return for every range its anchor: the outermost operator or wrapper (``Optimizer.step``) around it, -1 for none.

    In a trace without operators, every NVTX range and annotation is its own anchor.
    """
    ranges = trace.ranges
    anchors = (ranges.kind == events.OPERATOR) | trace.name_matches(ranges, _WRAPPER.match)
    if not anchors.any():
        return np.where(np.isin(ranges.kind, (events.NVTX, events.ANNOTATION)), np.arange(len(ranges)), -1)
    return enclosing(ranges, anchors, outermost=True)


def _leaf_modules(trace: Trace) -> Ints:
    """Return the rows of ``frames`` that are modules without a module inside."""
    frames = trace.frames
    is_module = trace.name_matches(frames, lambda name: name.startswith(events.MODULE))
    return np.flatnonzero(is_module & ~tables.with_ancestors(frames, frames.parent[is_module]))


def _forward_of(trace: Trace, own_anchor: Ints) -> Ints:
    """Return for every outermost backward operator the forward anchor with its sequence number, -1 for none.

    Operators without a gradient have the number of the next operator with one, so the last operator of a number is
    used.
    """
    ranges = trace.ranges
    forward = np.full(len(ranges), -1, np.int64)
    backward = (ranges.forward_thread > 0) & (ranges.sequence >= 0)
    latest: dict[int, int] = {}
    for row in np.flatnonzero((own_anchor >= 0) & (ranges.sequence >= 0)).tolist():  # in time order
        number = int(ranges.sequence[row])
        outer = int(own_anchor[row])
        if not backward[outer]:
            latest[number] = outer
        elif row == outer:
            forward[row] = latest.get(number, -1)
    return forward


def _phases(trace: Trace, own_anchor: Ints, forward: Ints) -> Ints:
    """Return the phase of every range; ``forward`` is the forward anchor of each backward operator, -1 for none."""
    other = trace.name_matches(trace.ranges, lambda name: _WRAPPER.match(name) or "AccumulateGrad" in name)
    backward = trace.name_matches(trace.ranges, lambda name: "Backward" in name or name.startswith(_ENGINE))
    is_backward = linked(backward, own_anchor, False) | (forward >= 0)
    phase = np.where(linked(other, own_anchor, False), OTHER, np.where(is_backward, BACKWARD, FORWARD))
    return np.where(own_anchor >= 0, phase, OTHER)


def _instances(trace: Trace, anchor: Ints, module: Ints, modules: Ints, phases: Ints) -> Layers:
    """Return the layers, from the anchor range and the module (row of ``frames``) of every range, -1 for none."""
    ranges, frames = trace.ranges, trace.frames
    by_range = np.unique(anchor[(anchor >= 0) & (module < 0)])
    by_frame = np.intersect1d(modules, module)
    # Sort the instances by time; each is a row of the ranges or of the frames.
    groups = ((ranges, by_range, 0), (frames, by_frame, 1))
    parts = [[table.start_ns[rows], table.end_ns[rows], rows, np.full(len(rows), of)] for table, rows, of in groups]
    columns = np.concatenate(parts, axis=1)
    starts, ends, row, from_frame = columns[:, np.argsort(columns[0], kind="stable")]
    # Map rows back to instances.
    of_ranges, of_frames = np.full(len(ranges), -1), np.full(len(frames), -1)
    of_ranges[row[from_frame == 0]] = np.flatnonzero(from_frame == 0)
    of_frames[row[from_frame == 1]] = np.flatnonzero(from_frame == 1)
    of_range = np.where(module >= 0, linked(of_frames, module), linked(of_ranges, anchor))
    every = iterations(trace)
    iteration = iteration_at(every, starts)
    recorded = iteration_at(trace.chosen or _all_iterations(trace), starts)
    texts = [trace.name_of(frames if is_frame else ranges, at) for at, is_frame in zip(row, from_frame, strict=True)]
    types = tuple(layer_type(text, trace.repeated) for text in texts)
    names = _layer_names(types, _paths(trace, row, from_frame), from_frame, recorded)
    instances = names, types, row, from_frame, starts, ends, iteration
    owners = of_range, linked(of_range, trace.activities.range), phases, linked(phases, trace.activities.range, OTHER)
    return Layers(*instances, *owners, every, iteration_of(every, trace)[2])


def _paths(trace: Trace, row: Ints, from_frame: Ints) -> list[str]:
    """Return the path of each layer: a module's own, an operator's module (``ResNet_0/``), "" outside modules."""
    frames, ranges = trace.frames, trace.ranges
    is_module = trace.name_matches(frames, lambda name: name.startswith(events.MODULE))
    modules = np.flatnonzero(is_module)
    above = linked(enclosing(frames, is_module), frames.parent[modules])
    paths = {-1: ""}
    for module, around in zip(modules.tolist(), above.tolist(), strict=True):  # outer modules first
        paths[module] = f"{paths[around]}{trace.name_of(frames, module)[len(events.MODULE) :]}/"
    rows = np.where(from_frame == 0, row, -1)
    times, threads = linked(ranges.start_ns, rows), linked(ranges.thread, rows)
    around = tables.open_rows(frames, times, threads, is_module)
    return [paths[at] for at in np.where(from_frame == 0, around, row).tolist()]


def _layer_names(types: Sequence[str], paths: Sequence[str], from_frame: Ints, iteration: Ints) -> tuple[str, ...]:
    """Return the names of layers. Operators are numbered per iteration, module and type from 0, a module's later runs
    from 1.
    """
    names = []
    counts: Counter[tuple[int, str]] = Counter()
    for step, kind, path, is_module in zip(iteration.tolist(), types, paths, from_frame.tolist(), strict=True):
        name = path.removesuffix("/") if is_module else path + kind
        number = counts[step, name]
        names.append(name if is_module and not number else f"{name}.{number}")
        counts[step, name] += 1
    return tuple(names)


def label_rows(trace: Trace) -> Ints:
    """Return the rows of ``trace.ranges`` that the program named itself, with ``record_function`` or NVTX: labels.

    Ranges that the profiler makes are no labels: steps, and wrappers such as ``Optimizer.step``, which are layers.
    """
    ranges = trace.ranges
    by_user = np.isin(ranges.kind, (events.ANNOTATION, events.NVTX))
    return np.flatnonzero(by_user & ~trace.name_matches(ranges, _WRAPPER.match))


def layer_type(name: str, repeated: frozenset[str] = frozenset()) -> str:
    """Return a type: ``aten::conv2d`` → ``conv2d``, ``nn.Module: Conv2d_3`` → ``Conv2d``, ``Step 1`` → ``Step #``.

    A label has no arguments: ``forward(batch=32)`` → ``forward``. Labels in ``repeated`` keep their numbers.
    """
    if name.startswith(events.MODULE):
        return _COUNT.sub("", name[len(events.MODULE) :])
    name = name.removeprefix(_ENGINE)
    if "::" in name:
        return name.removeprefix("aten::")
    text = _ARGUMENTS.sub("", name) or name
    return text if name in repeated else events.NUMBER.sub("#", text)
