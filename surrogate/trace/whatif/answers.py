"""The what-ifs that are declared, by name, and their answers: predicted times beside the baseline's, a simulated
timeline for Perfetto.
"""

import json
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import combinations
from math import inf, prod
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np

import surrogate.trace.whatif as package
from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError, check_choice, imported_callable, one_line_errors
from surrogate.features.gpu import Gpu, gpu
from surrogate.trace.calls import batch_size
from surrogate.trace.events.parts import OUTSIDE
from surrogate.trace.events.tables import Ints
from surrogate.trace.graph import TASK_KINDS, Graph, Timeline, bound, graph_of, path_us, simulate
from surrogate.trace.graph.tasks import DEVICE_KINDS, EDGE_COLUMNS, MARK, STREAM, TASK_COLUMNS
from surrogate.trace.profiling import NO_DEVICE, TraceSource, invalid_reason, profile, steady
from surrogate.trace.whatif.primitives import remove
from surrogate.trace.whatif.setting import (
    NO_PUBLISHED_ERROR,
    Change,
    ErrorEvidence,
    Interconnect,
    Model,
    WhatIfRule,
    WhatIfSetting,
    setting_of,
)

_CATEGORIES = ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "kernel")
"""Chrome's categories of `TASK_KINDS`, in their order."""
_PROCESSES = {"thread": "host", "stream": "device", "channel": "network"}
REPLAY_ERROR = 0.001
"""The most by which the replay of a trace as it is errs, of an iteration's time: no interval is narrower."""
_DISTRIBUTED = {"data-parallel", "parameter-server", "p3"}
"""What-ifs that a step can have one of; of each other name it can have one value."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """An optimisation by name; its ``value`` (``faster-kernels=4``) or ``target``, a GPU, where one was given."""

    name: str
    model: Model
    value: float | None = None
    evidence: ErrorEvidence = NO_PUBLISHED_ERROR
    target: Gpu | None = None

    @property
    def label(self) -> str:
        """The name and the number, or the GPU, as on the command line."""
        own = self.target.name if self.target else self.value
        return self.name if own is None else f"{self.name}={own if self.target else format(own, 'g')}"

    def __call__(self, graph: Graph, setting: WhatIfSetting) -> Change:
        return self.model(graph, replace(setting, target=self.target) if self.target else setting, self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WhatIfAnswer:
    """One what-if's answer, times in µs per iteration (`Timeline.per_iteration_us`).

    ``low_us`` and ``high_us`` bound the prediction where there is evidence of its error, else they are None;
    ``evidence`` says which. A published error counts for the time that the step loses without the changed tasks, at
    most the predicted step; the replay's, `REPLAY_ERROR`, always does. ``assumes`` are the values that the answer rests on.
    ``device_low_us`` and ``device_high_us`` do so for the device's time where kernels were
    predicted. ``samples`` and ``gpus`` are those of `Change`, ``batch`` the trace's, None where unknown.
    """

    name: str
    baseline: Timeline
    predicted: Timeline
    low_us: float | None
    high_us: float | None
    notes: tuple[str, ...]
    evidence: str = ""
    batch: int | None = None
    samples: float = 1.0
    gpus: int = 1
    device_low_us: float | None = None
    device_high_us: float | None = None
    assumes: str = ""

    @property
    def baseline_us(self) -> float:
        """The unchanged trace, simulated."""
        return self.baseline.per_iteration_us

    @property
    def predicted_us(self) -> float:
        """The changed trace, simulated."""
        return self.predicted.per_iteration_us

    @property
    def speedup(self) -> float:
        """A GPU's samples per second, after over before; infinite where nothing takes any time."""
        return self.samples * self.baseline_us / self.predicted_us if self.predicted_us else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Name, times, speedup, interval, samples per second of all GPUs, what bounds an iteration, critical path and
        layers before and after, evidence and notes, as plain JSON values."""
        paths = [path_us(timeline) for timeline in (self.baseline, self.predicted)]
        per_s = 1e6 * self.batch / self.baseline_us if self.batch and self.baseline_us else None
        plain = ("name", "baseline_us", "predicted_us", "speedup", "low_us", "high_us")
        return {
            **{name: getattr(self, name) for name in plain},
            "device_us_before": device_us(self.baseline),
            "device_us_after": device_us(self.predicted),
            "device_low_us": self.device_low_us,
            "device_high_us": self.device_high_us,
            "samples_per_s_before": per_s,
            "samples_per_s_after": per_s and per_s * self.speedup * self.gpus,
            "bound_before": bound(paths[0]),
            "bound_after": bound(paths[1]),
            "critical_path_before": paths[0],
            "critical_path_after": paths[1],
            "layers": layer_changes(self.baseline, self.predicted),
            "evidence": self.evidence,
            "assumes": self.assumes,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return f"{self.name}: {self.baseline_us:,.0f} → {self.predicted_us:,.0f} µs ({self.speedup:.3f}×)"


def evaluate(
    graph: Graph,
    what_ifs: Sequence[WhatIf],
    setting: WhatIfSetting,
    *,
    together: bool = False,
    refusals: dict[str, str] | None = None,
) -> list[WhatIfAnswer]:
    """One answer per what-if, and with ``together`` a last one for all of them that apply, in the given order.

    One that does not apply to this trace goes, by its label, to ``refusals`` with the reason; where there are none,
    `InputError` is raised.
    """
    baseline = simulate(graph)
    why = invalid_reason(setting.profile.trace)
    applied: list[WhatIf] = []
    answers: list[WhatIfAnswer] = []
    for what_if in what_ifs:
        try:
            if why:
                raise InputError(why)
            answers.append(_answer(graph, baseline, [what_if], setting, what_if.evidence))
            applied.append(what_if)
        except InputError as error:
            has_device = np.isin(graph.kind, DEVICE_KINDS).any()
            reason = str(error) if has_device else f"{setting.profile.trace.source}: {NO_DEVICE}"
            if refusals is None:
                raise InputError(reason) from None
            refusals[what_if.label] = reason
    for first, second in combinations(applied, 2) if together else ():
        names = {first.name, second.name}
        if len(names) == 1 or names <= _DISTRIBUTED:
            label = " + ".join(what_if.label for what_if in applied)
            reason = f"{first.label} and {second.label} exclude each other; ask for one of them, or without --together"
            if refusals is None:
                raise InputError(reason)
            refusals[label] = reason
            return answers
    if together and len(applied) > 1:
        answers.append(_answer(graph, baseline, applied, setting, NO_PUBLISHED_ERROR))
    return answers


def _answer(
    graph: Graph, baseline: Timeline, parts: Sequence[WhatIf], setting: WhatIfSetting, evidence: ErrorEvidence
) -> WhatIfAnswer:
    """The answer to all parts at once: each changes what the one before it left."""
    changes = [Change(graph)]
    for part in parts:
        changes.append(part(changes[-1].graph, setting))
    last = changes[-1]
    evidence = evidence if len(parts) > 1 else last.evidence or evidence
    label = " + ".join(part.label for part in parts)
    notes = [note for change in changes for note in change.notes]
    if _alike(graph, last.graph):
        raise InputError("; ".join([f"{label} does not apply: it changes nothing in this trace", *notes]))
    predicted = simulate(last.graph)
    # The ends of the interval: where a prediction's own make it uncertain, or by a published error.
    timelines = [simulate(end) for end in (last.low, last.high) if end and len(parts) == 1]
    ends = [end.per_iteration_us for end in timelines]
    device_ends = [device_us(end) for end in timelines] if evidence.error is None else []
    text = evidence.text
    if evidence.error is not None:
        touched_us = _touched_us(graph, last.graph, baseline, predicted)
        step_us = predicted.per_iteration_us
        ends += [step_us - touched_us + touched_us / (1 + side * evidence.error) for side in (1, -1)]
        share = touched_us / (step_us or 1)
        text += f"; the largest makes the interval, of the part of the step that waits for what changes ({share:.1%})"
    is_bound_by_host = bound(path_us(predicted)) == "host"
    if last.other_host:
        # What the trace's host allows is no end of the step on another machine; the device's time is.
        ends = [] if is_bound_by_host else [*ends, *device_ends]
    if ends:
        error_us = REPLAY_ERROR * predicted.per_iteration_us
        ends = [min(*ends, predicted.per_iteration_us - error_us), max(*ends, predicted.per_iteration_us + error_us)]
    low_us, high_us = ends or (None, None)
    device_low_us, device_high_us = device_ends or (None, None)
    if is_bound_by_host and (last.other_host or bound(path_us(baseline)) != "host"):
        unknown = "; of the other machine's host nothing is known, so the step has no interval" * last.other_host
        notes.append(f"the host bounds the step: its time is the traced one, the profiler's cost included{unknown}")
    return WhatIfAnswer(
        name=label,
        baseline=baseline,
        predicted=predicted,
        low_us=low_us,
        high_us=high_us,
        notes=tuple(notes),
        evidence=text,
        batch=batch_size(setting.profile.trace),
        samples=prod(change.samples for change in changes),
        gpus=prod(change.gpus for change in changes),
        device_low_us=device_low_us,
        device_high_us=device_high_us,
        assumes="; ".join(change.assumes for change in changes if not label.endswith(change.assumes)),
    )


def _alike(before: Graph, after: Graph) -> bool:
    """Whether the tasks, their order and what they wait for are the same."""
    same = (np.array_equal(getattr(before, name), getattr(after, name)) for name in (*TASK_COLUMNS, *EDGE_COLUMNS))
    return before.policies == after.policies and all(same)


def _touched_us(before: Graph, after: Graph, baseline: Timeline, predicted: Timeline) -> float:
    """What a step would lose if the tasks that a change touches took no time, at most the predicted step, in µs.

    A published error is of whole steps that change, so it counts for this part alone.
    """
    changed = (after.duration_us != before.duration_us) | after.removed
    rest_us = simulate(remove(before, changed)).per_iteration_us
    step_us = predicted.per_iteration_us
    return min(max(baseline.per_iteration_us - rest_us, step_us - rest_us, 0.0), step_us)


def device_us(timeline: Timeline) -> float:
    """Time of all tasks on streams per iteration, in µs; overlapping ones count each, an added network not."""
    graph = timeline.graph
    return float(graph.duration_us[_on_streams(graph)].sum()) / max(len(graph.iterations), 1)


def _on_streams(graph: Graph) -> Ints:
    is_stream = np.array([resource.kind == STREAM for resource in graph.resources] or [False])
    return np.flatnonzero(is_stream[graph.resource])


def layer_changes(before: Timeline, after: Timeline) -> list[dict[str, object]]:
    """Device time per layer type and iteration before and after, where it changes, largest change first."""
    old = _by_type(before)
    new = _by_type(after)
    changes = {name: new[name] - old[name] for name in {**old, **new}}
    largest = sorted(changes, key=lambda name: -abs(changes[name]))
    return [
        {"type": name, "before_us": old[name], "after_us": new[name]} for name in largest if abs(changes[name]) > 1e-9
    ]


def _by_type(timeline: Timeline) -> defaultdict[str, float]:
    """Device time per layer type and iteration, in µs; that outside of layers under `OUTSIDE`."""
    graph = timeline.graph
    sums = defaultdict[str, float](float)
    rows = _on_streams(graph)
    # Place 0 is for tasks of no layer, which have the number -1.
    layers = graph.layer[rows] + 1
    time = np.bincount(layers, weights=graph.duration_us[rows], minlength=len(graph.layers) + 1)
    for name, time_us in zip((OUTSIDE, *graph.layers), time.tolist(), strict=True):
        # A layer is its type and a number.
        sums[name.rpartition(".")[0] or name] += time_us / max(len(graph.iterations), 1)
    return sums


def write_timeline(timeline: Timeline, path: str | Path, label: str) -> None:
    """Write `chrome_events` to ``path``, whole or not at all. Raises `InputError` where that is not possible."""
    text = json.dumps({"traceName": label, "displayTimeUnit": "ms", "traceEvents": chrome_events(timeline)})
    write_text(path, text)


def chrome_events(timeline: Timeline) -> list[dict[str, object]]:
    """One complete event per task that takes time, one process each for host, device and network; µs from time 0."""
    graph = timeline.graph
    processes = list(_PROCESSES)
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": _PROCESSES[kind]}}
        for pid, kind in enumerate(processes)
    ]
    for tid, resource in enumerate(graph.resources):
        where = {"pid": processes.index(resource.kind), "tid": tid}
        events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": resource.label}})
    shown = ~graph.removed & (graph.kind != MARK) & (graph.duration_us > 0)
    for task in np.flatnonzero(shown).tolist():
        tid = int(graph.resource[task])
        resource = graph.resources[tid]
        kind = int(graph.kind[task])
        arguments: dict[str, object] = {"kind": TASK_KINDS[kind]}
        if graph.layer[task] >= 0:
            arguments["layer"] = graph.layers[graph.layer[task]]
        if resource.kind == STREAM:
            # The stream's number ends its label, such as "GPU 0 stream 7".
            arguments |= {"device": resource.device, "stream": resource.label.rpartition("stream ")[2]}
        named = (_CATEGORIES[kind], graph.name_of(task), processes.index(resource.kind), tid)
        events.append(_complete(*named, float(timeline.start_us[task]), float(graph.duration_us[task]), arguments))
    # The iterations are ranges on the thread of their marks.
    thread = graph.resource[graph.kind == MARK][:1].tolist()
    for iteration, (start_us, end_us) in zip(graph.iterations, timeline.marks_us().tolist(), strict=False):
        where = (processes.index("thread"), thread[0])
        events.append(_complete("user_annotation", iteration.label, *where, start_us, end_us - start_us, {}))
    return events


def _complete(
    category: str, name: str, pid: int, tid: int, start_us: float, time_us: float, arguments: dict[str, object]
) -> dict[str, object]:
    """An event of Chrome's format, whose times have three decimals."""
    times = {"ts": round(start_us, 3), "dur": round(time_us, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": arguments}


def _declared() -> dict[str, WhatIfRule]:
    """Every `WhatIfRule` in a module of this package, by its name."""
    modules = [import_module(module.name) for module in iter_modules(package.__path__, f"{package.__name__}.")]
    rules = [each for module in modules for each in vars(module).values() if isinstance(each, WhatIfRule)]
    return {declared.name: declared for declared in sorted(rules, key=lambda declared: declared.name)}


MODELS = _declared()
"""Name → what-if, of all that come with the package."""


def what_if(text: str) -> WhatIf:
    """``amp``, ``faster-kernels=4`` or ``gpu=a100``. `InputError` for an unknown name or a value that is none."""
    if "," in text:
        raise InputError(f"what-if {text!r} names several; write them apart: {' '.join(text.split(','))}")
    name, equals, number = text.partition("=")
    if text.replace(".", "", 1).isdigit():
        raise InputError(f"what-if {text!r} is a number; write it behind a name, as in batch={text}")
    check_choice("what-if", name, MODELS)
    declared = MODELS[name]
    evidence = declared.evidence or NO_PUBLISHED_ERROR
    if not equals:
        return WhatIf(name, declared, evidence=evidence)
    if declared.takes_gpu:
        return WhatIf(name, declared, evidence=evidence, target=gpu(number))
    if declared.value is None:
        raise InputError(f"what-if {name!r} takes no number; write it without {text[len(name) :]!r}")
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"{number!r} in {text!r} is no number; write such as {name}=2") from None
    minimum = declared.value.minimum
    if not (0 < value < inf and value >= minimum):
        raise InputError(f"{text}: give a number {f'of {minimum:g} or more' if minimum else 'above 0'}")
    return WhatIf(name, declared, value, evidence)


def what_ifs(
    trace: TraceSource,
    asked: Sequence[str] | str,
    *,
    target: str | None = None,
    own_gpu: str | None = None,
    network: Interconnect | None = None,
) -> list[WhatIfAnswer]:
    """The answers to what-ifs by their names, such as ``amp`` or ``batch=64``, of a trace, its file or a shipped one.

    ``target`` is the GPU asked about, ``own_gpu`` that of the trace, where it does not tell. One that is unknown or
    does not apply is left out, and a warning says why. Raises `InputError` where none is answered.
    """
    named: list[WhatIf] = []
    refusals: dict[str, str] = {}
    for text in [asked] if isinstance(asked, str) else asked:
        try:
            named.append(what_if(text))
        except InputError as error:
            refusals[text] = str(error)
    profiled = steady(profile(trace, own_gpu))
    setting = setting_of(profiled, target=target, network=network)
    answers = evaluate(graph_of(profiled.trace, profiled.layers), named, setting, refusals=refusals)
    if refusals and not answers:
        raise InputError("; ".join(dict.fromkeys(refusals.values())))
    for name, reason in refusals.items():
        warnings.warn(f"{name} is left out: {reason.removeprefix(f'{name}: ')}", stacklevel=2)
    return answers


def help_texts() -> dict[str, str]:
    """What help says of every what-if: its name, with N where it takes a number, and what it does."""
    return {
        name + ("=N" if rule.value else "=GPU" if rule.takes_gpu else ""): rule.help
        + (f" N: {rule.value}." if rule.value else "")
        for name, rule in MODELS.items()
    }


def user_function(text: str) -> WhatIf:
    """``module:callable`` of the user's own, which takes a graph and returns one.

    The module is imported, which runs it: give only one of your own. Raises `InputError` where it cannot be had
    or fails.
    """
    function = imported_callable(text, "it must take a graph and return one")

    def model(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
        with one_line_errors(text):
            changed = function(graph)
        if not isinstance(changed, Graph):
            raise InputError(f"{text} returned {type(changed).__name__}; it must return a graph")
        return Change(changed)

    return WhatIf(text, model)
