"""Layers: which host range stands for a layer, and which layer every range, call and device activity belongs to.

XSP (IPDPS 2020) takes the framework's operators as layers; Daydream (ATC 2020, section 4.2) gives a kernel to the
layer whose host window holds its launch call. Here a backward operator belongs to its forward operator's layer.
"""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from surrogate.trace import events
from surrogate.trace.events.iterations import Iteration, iteration_at, iteration_of, iterations
from surrogate.trace.events.tables import Ints, Trace, enclosing, holding, linked, nest_of, take

FORWARD, BACKWARD, OTHER = range(3)
PHASES = ("forward", "backward", "other")
"""``other``: the optimizer, data loading, gradient accumulation: no layer of the model."""
OUTSIDE = "(outside layers)"
_WRAPPER = re.compile(r"^(?:Optimizer\.|enumerate\(DataLoader\)|nccl:|DistributedDataParallel)")
_ENGINE = "autograd::engine::evaluate_function: "
_NUMBER = re.compile(r"_\d+$")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Layer instances of a trace, in time order, one per run of a layer.

    ``name`` is unique within an iteration (``conv2d.3`` is its fourth conv2d), ``type`` drops the number. ``row`` is
    the instance's row in ``trace.ranges``, or in ``trace.frames`` where ``from_frame`` is 1. ``of_range`` and
    ``of_activity`` give each event's instance, -1 for none; ``phase_of_range`` and ``phase_of_activity`` its part
    (`PHASES`). ``iteration`` is the position in ``iterations``, -1 for an instance in none.
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

    def labels(self, by: str) -> tuple[list[str], Ints]:
        """Names or types (``by`` layer or type) in order of first use, `OUTSIDE` last; each instance's label by its
        index, with that of -1 at the end."""
        texts = self.name if by == "layer" else self.type
        labels = [*dict.fromkeys(texts), OUTSIDE]
        index = {label: i for i, label in enumerate(labels)}
        return labels, np.array([*(index[text] for text in texts), index[OUTSIDE]], dtype=np.int64)


def find_layers(trace: Trace) -> Layers:
    """The layers of ``trace``: leaf modules where Python frames were recorded, outermost operators elsewhere.

    In a trace without operators the innermost NVTX range or annotation is the layer. A backward operator joins the
    layer of the last forward operator with its autograd sequence number.
    """
    top = _tops(trace)
    modules = _leaf_modules(trace)
    ranges = trace.ranges
    # For every range the leaf module (row of ``frames``) that is open on its thread when it starts, -1 for none.
    around = nest_of(take(trace.frames, modules)).open_at(ranges.start_ns, ranges.thread)
    of_module = linked(modules, around)
    own_module = linked(of_module, top)
    forward = np.where((own_module < 0) & (top >= 0), linked(_forward_of(trace, top), top), -1)
    phases = _phases(trace, top, forward)
    # A backward operator stands for the forward anchor it is linked to, and that for its module, if it has one.
    anchor = np.where(forward >= 0, forward, top)
    return _instances(trace, anchor, linked(of_module, anchor), modules, phases)


def _tops(trace: Trace) -> Ints:
    """For every range the one that stands for its layer: its outermost operator or wrapper (``Optimizer.step``).

    Without operators every NVTX range and annotation stands for itself.
    """
    ranges = trace.ranges
    anchors = (ranges.kind == events.OPERATOR) | trace.named(ranges, _WRAPPER.match)
    if not anchors.any():
        return np.where(np.isin(ranges.kind, (events.NVTX, events.ANNOTATION)), np.arange(len(ranges)), -1)
    return enclosing(ranges, anchors, outermost=True)


def _leaf_modules(trace: Trace) -> Ints:
    """Rows of ``frames`` that are modules without a module inside."""
    frames = trace.frames
    is_module = trace.named(frames, lambda name: name.startswith(events.MODULE))
    return np.flatnonzero(is_module & ~holding(frames, frames.parent[is_module]))


def _forward_of(trace: Trace, top: Ints) -> Ints:
    """For every outermost backward operator the forward anchor with its sequence number, -1 for none.

    Operators without a gradient carry the number of the next one that has it, so the last of a number counts.
    """
    ranges = trace.ranges
    forward = np.full(len(ranges), -1, np.int64)
    backward = (ranges.forward_thread > 0) & (ranges.sequence >= 0)
    latest: dict[int, int] = {}
    for row in np.flatnonzero((top >= 0) & (ranges.sequence >= 0)).tolist():  # in time order
        number = int(ranges.sequence[row])
        outer = int(top[row])
        if not backward[outer]:
            latest[number] = outer
        elif row == outer:
            forward[row] = latest.get(number, -1)
    return forward


def _phases(trace: Trace, top: Ints, forward: Ints) -> Ints:
    """Phase of every range by its outermost operator; ``forward``: what a backward operator is linked to."""
    other = trace.named(trace.ranges, lambda name: _WRAPPER.match(name) or "AccumulateGrad" in name)
    backward = trace.named(trace.ranges, lambda name: "Backward" in name or name.startswith(_ENGINE))
    is_backward = linked(backward, top, False) | (forward >= 0)
    phase = np.where(linked(other, top, False), OTHER, np.where(is_backward, BACKWARD, FORWARD))
    return np.where(top >= 0, phase, OTHER)


def _instances(trace: Trace, anchor: Ints, module: Ints, modules: Ints, phases: Ints) -> Layers:
    """``anchor`` and ``module``: for every range the range or the module (row of ``frames``) that is its layer."""
    ranges, frames = trace.ranges, trace.frames
    by_range = np.unique(anchor[(anchor >= 0) & (module < 0)])
    by_frame = np.intersect1d(modules, module)
    # The instances in time order, each a row of the ranges or of the frames.
    starts = np.concatenate([ranges.start_ns[by_range], frames.start_ns[by_frame]])
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    ends = np.concatenate([ranges.end_ns[by_range], frames.end_ns[by_frame]])[order]
    row = np.concatenate([by_range, by_frame])[order]
    from_frame = np.repeat([0, 1], [len(by_range), len(by_frame)])[order]
    # Back from rows to instances.
    of_ranges, of_frames = np.full(len(ranges), -1), np.full(len(frames), -1)
    of_ranges[row[from_frame == 0]] = np.flatnonzero(from_frame == 0)
    of_frames[row[from_frame == 1]] = np.flatnonzero(from_frame == 1)
    of_range = np.where(module >= 0, linked(of_frames, module), linked(of_ranges, anchor))
    around = trace.activities.range
    every = iterations(trace)
    iteration = iteration_at(every, starts)
    texts = [trace.name_of(frames if is_frame else ranges, at) for at, is_frame in zip(row, from_frame, strict=True)]
    names, types = _labels(texts, iteration)
    return Layers(
        names,
        types,
        row,
        from_frame,
        starts,
        ends,
        iteration,
        of_range,
        linked(of_range, around),
        phases,
        linked(phases, around, OTHER),
        every,
        iteration_of(every, trace)[2],
    )


def _labels(texts: list[str], iteration: Ints) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names (numbered per type and iteration from 0) and types."""
    types = tuple(map(layer_type, texts))
    names = []
    counts: Counter[tuple[int, str]] = Counter()
    for key in zip(iteration.tolist(), types, strict=True):
        names.append(f"{key[1]}.{counts[key]}")
        counts[key] += 1
    return tuple(names), types


def layer_type(name: str) -> str:
    """``aten::conv2d`` → ``conv2d``, ``nn.Module: Conv2d_3`` → ``Conv2d``, ``Step 10 to 20`` → ``Step # to #``."""
    if name.startswith(events.MODULE):
        return _NUMBER.sub("", name[len(events.MODULE) :])
    name = name.removeprefix(_ENGINE)
    return name.removeprefix("aten::") if "::" in name else _DIGITS.sub("#", name)
