"""Layers: which host range stands for a layer, and which layer every range, call and device activity belongs to.

XSP (IPDPS 2020) takes the framework's operators as layers; Daydream (ATC 2020, section 4.2) gives a kernel to the
layer whose host window holds its launch call. Here a backward operator belongs to its forward operator's layer.
"""

import re
from dataclasses import dataclass

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.build import within
from surrogate.trace.events.iterations import Iteration, iteration_of, iterations
from surrogate.trace.events.tables import Ints, Trace

FORWARD, BACKWARD, OTHER = range(3)
PHASES = ("forward", "backward", "other")
"""``other``: the optimizer, data loading, gradient accumulation: no layer of the model."""
OUTSIDE = "(outside layers)"
_WRAPPER = re.compile(r"^(?:Optimizer\.|enumerate\(DataLoader\)|nccl:|DistributedDataParallel)")
_MODULE = "nn.Module: "
_ENGINE = "autograd::engine::evaluate_function: "
_NUMBER = re.compile(r"_\d+$")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Layer instances of a trace, in time order, one per run of a layer.

    ``name`` is unique within an iteration (``conv2d.3`` is its fourth conv2d), ``type`` drops the number. ``row`` is
    the instance's row in ``trace.ranges``, or in ``trace.frames`` where ``from_frame`` is 1. ``of_range``, ``of_call``
    and ``of_activity`` give each event's instance, -1 for none; ``phase_of_range`` and ``phase_of_activity`` its part
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
    of_call: Ints
    of_activity: Ints
    phase_of_range: Ints
    phase_of_activity: Ints
    iterations: tuple[Iteration, ...]
    iteration_of_activity: Ints

    def __len__(self) -> int:
        return len(self.name)


def find_layers(trace: Trace) -> Layers:
    """The layers of ``trace``: leaf modules where Python frames were recorded, outermost operators elsewhere.

    In a trace without operators the innermost NVTX range or annotation is the layer. A backward operator joins the
    layer of the last forward operator with its autograd sequence number.
    """
    top = _tops(trace)
    modules = _leaf_modules(trace)
    of_module = _modules_of(trace, modules)
    own = np.where(top >= 0, of_module[top] if len(top) else -1, -1)
    forward = _forward_of(trace, top)
    linked = np.where((own < 0) & (top >= 0), forward[top] if len(top) else -1, -1)
    phases = _phases(trace, top, linked)
    # A backward operator stands for the forward anchor it is linked to, and that for its module, if it has one.
    anchor = np.where(linked >= 0, linked, top)
    module = np.where(anchor >= 0, of_module[anchor] if len(top) else -1, -1)
    return _instances(trace, anchor, module, modules, phases)


def _tops(trace: Trace) -> Ints:
    """For every range the one that stands for its layer: its outermost operator or wrapper (``Optimizer.step``).

    Without operators every NVTX range and annotation stands for itself.
    """
    ranges = trace.ranges
    wraps = np.array([bool(_WRAPPER.match(name)) for name in trace.names] or [False])[ranges.name]
    anchors = (ranges.kind == kinds.OPERATOR) | wraps
    rows = np.arange(len(ranges))
    if not anchors.any():
        return np.where(np.isin(ranges.kind, (kinds.NVTX, kinds.ANNOTATION)), rows, -1)
    top = np.where(anchors, rows, -1)
    for row in np.argsort(ranges.depth, kind="stable").tolist():  # outer ranges first
        parent = ranges.parent[row]
        if parent >= 0 and top[parent] >= 0:
            top[row] = top[parent]
    return top


def _leaf_modules(trace: Trace) -> Ints:
    """Rows of ``frames`` that are modules without a module inside."""
    frames = trace.frames
    is_module = np.array([name.startswith(_MODULE) for name in trace.names] or [False])[frames.name]
    holds_module = np.zeros(len(frames), np.bool_)
    for row in np.flatnonzero(is_module).tolist():
        parent = frames.parent[row]
        while parent >= 0 and not holds_module[parent]:
            holds_module[parent] = True
            parent = frames.parent[parent]
    return np.flatnonzero(is_module & ~holds_module)


def _modules_of(trace: Trace, modules: Ints) -> Ints:
    """For every range the leaf module (row of ``frames``) that is open on its thread when it starts, -1 for none."""
    if not len(modules):
        return np.full(len(trace.ranges), -1, np.int64)
    from surrogate.trace.events.tables import take

    found = within(
        trace.ranges.start_ns, trace.ranges.end_ns, trace.ranges.thread, take(trace.frames, modules)
    )
    return np.where(found >= 0, modules[found], -1)


def _forward_of(trace: Trace, top: Ints) -> Ints:
    """For every outermost backward operator the forward anchor with its sequence number, -1 for none.

    Operators without a gradient carry the number of the next one that has it, so the last of a number counts.
    """
    ranges = trace.ranges
    found = np.full(len(ranges), -1, np.int64)
    backward = (ranges.forward_thread > 0) & (ranges.sequence >= 0)
    latest: dict[int, int] = {}
    for row in np.flatnonzero((top >= 0) & (ranges.sequence >= 0)).tolist():  # in time order
        number, outer = int(ranges.sequence[row]), int(top[row])
        if not backward[outer]:
            latest[number] = outer
        elif row == outer:
            found[row] = latest.get(number, -1)
    return found


def _phases(trace: Trace, top: Ints, linked: Ints) -> Ints:
    """Phase of every range by its outermost operator."""
    names = trace.names
    other = np.array([bool(_WRAPPER.match(n)) or "AccumulateGrad" in n for n in names] or [False])
    backward = np.array(["Backward" in n or n.startswith(_ENGINE) for n in names] or [False])
    name_of_top = trace.ranges.name[top] if len(top) else top
    phase = np.where(
        other[name_of_top], OTHER, np.where(backward[name_of_top] | (linked >= 0), BACKWARD, FORWARD)
    )
    return np.where(top >= 0, phase, OTHER)


def _instances(trace: Trace, anchor: Ints, module: Ints, modules: Ints, phases: Ints) -> Layers:
    ranges, frames = trace.ranges, trace.frames
    by_range = np.unique(anchor[(anchor >= 0) & (module < 0)])
    by_frame = np.intersect1d(modules, module)
    starts = np.concatenate([ranges.start_ns[by_range], frames.start_ns[by_frame]])
    order = np.argsort(starts, kind="stable")
    from_frame = np.concatenate([np.zeros(len(by_range), np.int64), np.ones(len(by_frame), np.int64)])[order]
    row = np.concatenate([by_range, by_frame])[order]
    ends = np.concatenate([ranges.end_ns[by_range], frames.end_ns[by_frame]])[order]
    starts = starts[order]
    number_of_range, number_of_frame = np.full(len(ranges), -1), np.full(len(frames), -1)
    number_of_range[row[from_frame == 0]] = np.flatnonzero(from_frame == 0)
    number_of_frame[row[from_frame == 1]] = np.flatnonzero(from_frame == 1)
    of_range = np.where(
        module >= 0,
        number_of_frame[module] if len(frames) else -1,
        np.where(anchor >= 0, number_of_range[anchor] if len(ranges) else -1, -1),
    )
    of_call = np.where(trace.calls.range >= 0, of_range[trace.calls.range] if len(ranges) else -1, -1)
    held = trace.activities.range
    of_activity = np.where(held >= 0, of_range[held] if len(ranges) else -1, -1)
    phase = np.where(held >= 0, phases[held] if len(ranges) else OTHER, OTHER)
    found = iterations(trace)
    bounds = np.array([one.start_ns for one in found])
    place = np.searchsorted(np.sort(bounds), starts, "right") - 1
    place = np.where((place >= 0) & (starts < np.array([one.end_ns for one in found])[place]), place, -1)
    texts = [
        trace.names[int((frames if f else ranges).name[r])] for r, f in zip(row, from_frame, strict=True)
    ]
    names, types = _labels(texts, place)
    return Layers(
        names, types, row, from_frame, starts, ends, place, of_range, of_call, of_activity, phases, phase,
        found, iteration_of(found, trace)[2],
    )  # fmt: skip


def _labels(texts: list[str], iteration: Ints) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names (numbered per type and iteration from 0) and types."""
    counts: dict[tuple[int, str], int] = {}
    names, types = [], []
    for text, place in zip(texts, iteration.tolist(), strict=True):
        kind = layer_type(text)
        number = counts.get((place, kind), 0)
        counts[place, kind] = number + 1
        types.append(kind)
        names.append(f"{kind}.{number}")
    return tuple(names), tuple(types)


def layer_type(name: str) -> str:
    """``aten::conv2d`` → ``conv2d``, ``nn.Module: Conv2d_3`` → ``Conv2d``, ``Step 10 to 20`` → ``Step # to #``."""
    if name.startswith(_MODULE):
        return _NUMBER.sub("", name[len(_MODULE) :])
    name = name.removeprefix(_ENGINE)
    return name.removeprefix("aten::") if "::" in name else _DIGITS.sub("#", name)
