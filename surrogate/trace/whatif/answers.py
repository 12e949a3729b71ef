"""What-ifs by name, and their answers: predicted and baseline times, and a simulated timeline for Perfetto."""

import json
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import combinations
from math import inf, nan, prod
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pandas as pd

import surrogate.trace.whatif as package
from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError, check_choice, one_line_errors
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.user_code import imported_callable
from surrogate.trace.calls import batch_size
from surrogate.trace.events.parts import OUTSIDE, trim
from surrogate.trace.graph import TASK_KINDS, Graph, Timeline, bound, graph_of, path_us, simulate
from surrogate.trace.graph.tasks import DEVICE_KINDS, EDGE_COLUMNS, MARK, STREAM, TASK_COLUMNS
from surrogate.trace.profiling import NO_DEVICE, TraceSource, invalid_reason, profile, steady
from surrogate.trace.whatif import setting as declarations
from surrogate.trace.whatif.primitives import remove
from surrogate.trace.whatif.setting import NO_PUBLISHED_ERROR, Change, Interconnect, WhatIfRule, WhatIfSetting

_CATEGORIES = ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "kernel")
"""The category in Chrome's format of each of `TASK_KINDS`."""
_PROCESSES = {"thread": "host", "stream": "device", "channel": "network"}
REPLAY_ERROR = 0.001
"""Maximum error of an unchanged trace's replay, as a share of an iteration's time: no interval is narrower."""
MAX_MISSING_WAIT = 0.05
"""Maximum time of waits for work that the trace lacks, as a share of the iterations' time."""
_DISTRIBUTED = {"data-parallel", "parameter-server", "p3"}
"""What-ifs that exclude each other. Two values of any other what-if exclude each other, too."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """An optimisation to apply to a graph.

    Attributes
    ----------
    name : str
        The what-if's name.
    apply : callable
        The function (graph, setting, value) that changes the graph.
    value : float or None
        The given number, as in ``faster-kernels=4``; None for the default.
    evidence : ErrorEvidence
        The evidence of its error.
    target : Gpu or None
        The given GPU, as in ``gpu=a100``.
    """

    name: str
    apply: declarations.GraphChange
    value: float | None = None
    evidence: declarations.ErrorEvidence = NO_PUBLISHED_ERROR
    target: Gpu | None = None

    @property
    def label(self) -> str:
        """The name and the number or GPU, as on the command line."""
        value = self.value if self.target is None else self.target.name
        if isinstance(value, float):
            value = np.format_float_positional(value, trim="-")
        return self.name if value is None else f"{self.name}={value}"

    def __call__(self, graph: Graph, setting: WhatIfSetting) -> Change:
        return self.apply(graph, replace(setting, target=self.target) if self.target else setting, self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WhatIfAnswer:
    """The answer to one what-if. Times are in µs per iteration (`Timeline.per_iteration_us`).

    A published error applies to the time that the step loses without the changed tasks, at most the predicted step. The
    replay's error, `REPLAY_ERROR`, applies to every interval.

    Attributes
    ----------
    name : str
        The what-if with its value, as on the command line.
    baseline, predicted : Timeline
        The simulated timelines of the unchanged and of the changed graph.
    low_us, high_us : float or None
        Interval of the predicted time of a step; None without evidence of its error, and if the host of another machine
        bounds the step.
    notes : tuple of str
        Remarks on the answer.
    evidence : str
        The evidence of the error.
    batch : int or None
        The trace's batch size; None if unknown.
    samples : float
        A GPU's batch after the change, over the trace's.
    gpus : int
        The number of GPUs that work at once.
    device_low_us, device_high_us : float or None
        Interval of the device's time, if kernels were predicted.
    assumes : str
        Values that the answer assumes.
    refused : str
        The reason if the what-if does not apply to the trace; then the predicted time is NaN. "" for an answer.
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
    refused: str = ""

    @property
    def baseline_us(self) -> float:
        """Simulated time of the unchanged trace."""
        return self.baseline.per_iteration_us

    @property
    def predicted_us(self) -> float:
        """Simulated time of the changed trace."""
        return nan if self.refused else self.predicted.per_iteration_us

    @property
    def speedup(self) -> float:
        """A GPU's samples per second, after over before; infinite if the changed step takes no time.

        For several GPUs this is the scaling efficiency.
        """
        return self.samples * self.baseline_us / self.predicted_us if self.predicted_us else float("inf")

    @property
    def interval_of(self) -> str | None:
        """The time that the interval covers: ``step``, or ``device`` if the host bounds the step; None without one."""
        return "step" if self.low_us is not None else "device" if self.device_low_us is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON values.

        ``samples_per_s_after`` and ``speedup_all_gpus`` are of all GPUs together, ``speedup`` is of one GPU.
        """
        if self.refused:
            empty = dict.fromkeys(replace(self, refused="").to_dict())
            return empty | {"name": self.name, "refused": self.refused}
        paths = [path_us(timeline) for timeline in (self.baseline, self.predicted)]
        per_s = 1e6 * self.batch / self.baseline_us if self.batch and self.baseline_us else None
        times = ("name", "baseline_us", "predicted_us", "speedup", "low_us", "high_us")
        others = ("device_low_us", "device_high_us", "interval_of", "gpus")
        return {
            **{name: getattr(self, name) for name in times},
            "device_us_before": device_us(self.baseline),
            "device_us_after": device_us(self.predicted),
            **{name: getattr(self, name) for name in others},
            "speedup_all_gpus": self.speedup * self.gpus,
            "scaling_efficiency": self.speedup if self.gpus > 1 else None,
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
            "refused": None,
        }

    def __repr__(self) -> str:
        if self.refused:
            return f"{self.name}: refused: {self.refused}"
        return f"{self.name}: {self.baseline_us:,.0f} → {self.predicted_us:,.0f} µs ({self.speedup:.3f}×)"


def evaluate(
    graph: Graph,
    what_ifs: Sequence[WhatIf],
    setting: WhatIfSetting,
    *,
    together: bool = False,
    refusals: dict[str, str] | None = None,
) -> list[WhatIfAnswer]:
    """Return the answers to what-ifs on a trace's dependency graph.

    Parameters
    ----------
    graph : Graph
        The trace's dependency graph.
    what_ifs : sequence of WhatIf
        The what-ifs, each applied to the unchanged graph.
    setting : WhatIfSetting
        The profile of the same trace, the target GPU and the network.
    together : bool
        Whether to add an answer to all applicable what-ifs at once, in the given order.
    refusals : dict of str to str, optional
        Receives the label and the reason of each what-if that does not apply.

    Returns
    -------
    list of WhatIfAnswer
        One answer per applicable what-if, then the answer to all of them.

    Raises
    ------
    InputError
        If a what-if does not apply and ``refusals`` is None.
    """
    baseline = simulate(graph)
    invalid = invalid_reason(setting.profile.trace) or _missing_work(graph, setting.profile.trace.source)
    applied: list[WhatIf] = []
    answers: list[WhatIfAnswer] = []
    for what_if in what_ifs:
        try:
            if invalid:
                raise InputError(invalid)
            answers.append(_answer(graph, baseline, [what_if], setting))
            applied.append(what_if)
        except InputError as error:
            has_device = np.isin(graph.kind, DEVICE_KINDS).any()
            _refuse(
                refusals, what_if.label, str(error) if has_device else f"{setting.profile.trace.source}: {NO_DEVICE}"
            )
    for first, second in combinations(applied, 2) if together else ():
        if first.name == second.name or {first.name, second.name} <= _DISTRIBUTED:
            reason = f"{first.label} and {second.label} exclude each other; give one of them, or leave out --together"
            _refuse(refusals, " + ".join(what_if.label for what_if in applied), reason)
            return answers
    if together and len(applied) > 1:
        answers.append(_answer(graph, baseline, applied, setting))
    return answers


def _refuse(refusals: dict[str, str] | None, label: str, reason: str) -> None:
    """Add a reason to ``refusals``. Raises `InputError` if it is None."""
    if refusals is None:
        raise InputError(reason) from None
    refusals[label] = reason


def _answer(graph: Graph, baseline: Timeline, parts: Sequence[WhatIf], setting: WhatIfSetting) -> WhatIfAnswer:
    """Return the answer to all ``parts`` at once: each part changes the graph that the part before it returned."""
    changes = [Change(graph)]
    for part in parts:
        changes.append(part(changes[-1].graph, setting))
    last = changes[-1]
    evidences = [change.evidence or part.evidence for change, part in zip(changes[1:], parts, strict=True)]
    evidence, end_graphs = evidences[0], list[Graph]()
    if len(parts) == 1 or all(each.error is None for each in evidences):
        end_graphs = _end_graphs(graph, parts, setting, last)
    if len(parts) > 1:
        with_interval = (each for each in evidences if end_graphs and each.interval != NO_PUBLISHED_ERROR.interval)
        evidence = next(with_interval, NO_PUBLISHED_ERROR)
    label = " + ".join(part.label for part in parts)
    notes = [note for change in changes for note in change.notes]
    kept_us, steps_us = graph.coverage.get("unexplained_us", 0.0), sum(step.time_us for step in graph.iterations)
    if kept_us > MAX_MISSING_WAIT * steps_us:
        notes.append(declarations.sentence("unexplained", kept_ms=kept_us / 1e3, steps_ms=steps_us / 1e3))
    swaps_gpu = last.other_host and np.isin(graph.kind, DEVICE_KINDS).any()
    if not swaps_gpu and _same_tasks(graph, last.graph):
        raise InputError("; ".join([f"{label} does not apply: it changes nothing in this trace", *notes]))
    predicted = simulate(_with_earlier_work(graph, last.graph))
    # The ends of the interval come from the predictions' own intervals, or from a published error.
    timelines = [simulate(_with_earlier_work(graph, end)) for end in end_graphs]
    ends = [end.per_iteration_us for end in timelines]
    device_ends = [device_us(end) for end in timelines] if evidence.error is None else []
    text = evidence.text
    if evidence.error is not None:
        touched_us, step_us = _touched_us(graph, last.graph, baseline, predicted), predicted.per_iteration_us
        ends += [step_us - touched_us + touched_us / (1 + side * evidence.error) for side in (1, -1)]
        text += declarations.sentence("touched", share=touched_us / (step_us or 1))
    is_bound_by_host = bound(path_us(predicted)) == "host"
    other_host = any(change.other_host for change in changes)
    if other_host and ends:
        # The traced host gives no bound for a step on another machine. The device's time gives a lower bound.
        ends = [] if is_bound_by_host else [min([*ends, *device_ends]), *ends]
    interval_us = _with_replay_error(ends, predicted.per_iteration_us)
    device_low_us, device_high_us = _with_replay_error(device_ends, device_us(predicted))
    if is_bound_by_host and (other_host or bound(path_us(baseline)) != "host"):
        notes.append("the host bounds the step with its traced time, which includes the profiler's cost")
    if other_host and device_ends:
        notes.append(declarations.sentence("interval_of_device" if is_bound_by_host else "interval_of_step"))
    return WhatIfAnswer(
        *(label, baseline, predicted, *interval_us, tuple(notes)),
        evidence=text,
        batch=batch_size(setting.profile.trace),
        samples=prod(change.samples for change in changes),
        gpus=prod(change.gpus for change in changes),
        device_low_us=device_low_us,
        device_high_us=device_high_us,
        assumes="; ".join(change.assumes for change in changes if not label.endswith(change.assumes)),
    )


def _with_earlier_work(before: Graph, after: Graph) -> Graph:
    """Scale the device's work from before the iterations as the iterations' work of the same names, in a changed graph.

    A rule sees neither the operators nor the layers of that work.
    """
    if not np.array_equal(before.name, after.name):
        return after
    counted, rows, duration_us = before.on_streams, before.earlier, after.duration_us.copy()
    sums = [np.bincount(before.name[counted], each.duration_us[counted], len(before.names)) for each in (before, after)]
    rows = rows[sums[0][before.name[rows]] > 0]
    duration_us[rows] = before.duration_us[rows] * (sums[1] / np.maximum(sums[0], 1e-9))[before.name[rows]]
    return replace(after, duration_us=duration_us)


def _end_graphs(graph: Graph, parts: Sequence[WhatIf], setting: WhatIfSetting, last: Change) -> list[Graph]:
    """Return the changed graphs at the low and the high end of the parts' predictions; empty without predictions."""
    if len(parts) == 1:
        return [end for end in (last.low, last.high) if end]
    graphs = []
    for side in ("low", "high"):
        changed, is_end = graph, False
        for part in parts:
            change = part(changed, setting)
            end = getattr(change, side)
            changed, is_end = end or change.graph, is_end or end is not None
        graphs += [changed] * is_end
    return graphs


def _with_replay_error(ends: Sequence[float], middle: float) -> tuple[float | None, float | None]:
    """Return the interval of several ends, at least as wide as the replay's error; None without ends."""
    if not ends:
        return None, None
    return min(*ends, middle * (1 - REPLAY_ERROR)), max(*ends, middle * (1 + REPLAY_ERROR))


def _missing_work(graph: Graph, source: str) -> str:
    """Return why a wait for work that the trace lacks makes answers wrong, or "" if it is short."""
    missing_us = graph.coverage.get("missing_wait_us", 0.0)
    steps_us = sum(part.time_us for part in graph.iterations)
    if missing_us <= MAX_MISSING_WAIT * steps_us:
        return ""
    return declarations.sentence("missing_work", source=source, missing_ms=missing_us / 1e3, steps_ms=steps_us / 1e3)


def _same_tasks(before: Graph, after: Graph) -> bool:
    """Return whether the tasks, their order and their dependencies are the same."""
    equal = (np.array_equal(getattr(before, name), getattr(after, name)) for name in (*TASK_COLUMNS, *EDGE_COLUMNS))
    return before.policies == after.policies and all(equal)


def _touched_us(before: Graph, after: Graph, baseline: Timeline, predicted: Timeline) -> float:
    """Return the time in µs that a step loses if the changed tasks take no time, at most the predicted step.

    A published error was measured on steps that change as a whole. So it applies only to this part of the step.
    """
    changed = (after.duration_us != before.duration_us) | after.removed
    rest_us = simulate(remove(before, changed)).per_iteration_us
    step_us = predicted.per_iteration_us
    return min(max(baseline.per_iteration_us - rest_us, step_us - rest_us, 0.0), step_us)


def device_us(timeline: Timeline) -> float:
    """Return the sum of the times of all tasks on streams per iteration, in µs, without added network channels.

    Work that was launched before the trace does not count.
    """
    graph = timeline.graph
    return float(graph.duration_us[graph.on_streams].sum()) / max(len(graph.iterations), 1)


def layer_changes(before: Timeline, after: Timeline) -> list[dict[Hashable, Any]]:
    """Return the device time per layer type and iteration before and after, for changed types, largest change first."""
    times = pd.DataFrame({"before_us": _by_type(before), "after_us": _by_type(after)}).fillna(0.0)
    change = (times["after_us"] - times["before_us"]).abs()
    largest = change[change > 1e-9].sort_values(ascending=False, kind="stable").index
    return times.loc[largest].rename_axis("type").reset_index().to_dict("records")


def _by_type(timeline: Timeline) -> dict[Hashable, float]:
    """Return the device time per layer type and iteration, in µs; tasks outside layers count as `OUTSIDE`."""
    graph = timeline.graph
    rows = np.flatnonzero(graph.on_streams)
    # Index 0 is for tasks of no layer, which have the number -1. A layer's name is its type and a number.
    time_us = np.bincount(graph.layer[rows] + 1, weights=graph.duration_us[rows], minlength=len(graph.layers) + 1)
    types = [name.rpartition(".")[0] or name for name in (OUTSIDE, *graph.layers)]
    return pd.Series(time_us / max(len(graph.iterations), 1)).groupby(np.array(types), sort=False).sum().to_dict()


def write_timeline(timeline: Timeline, path: str | Path, label: str) -> None:
    """Write a timeline's `chrome_events` to a JSON file for Perfetto, completely or not at all.

    Parameters
    ----------
    timeline : Timeline
        A simulated timeline.
    path : str or Path
        The file to write.
    label : str
        The name of the trace in the viewer.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    write_text(path, json.dumps({"traceName": label, "displayTimeUnit": "ms", "traceEvents": chrome_events(timeline)}))


def chrome_events(timeline: Timeline) -> list[dict[str, object]]:
    """Return one complete event per task with a duration, in µs; host, device and network are a process each."""
    graph = timeline.graph
    processes = list(_PROCESSES)
    tracks = [{"pid": processes.index(resource.kind), "tid": tid} for tid, resource in enumerate(graph.resources)]
    labels = [("process_name", {"pid": pid}, name) for pid, name in enumerate(_PROCESSES.values())]
    labels += [("thread_name", track, graph.resources[track["tid"]].label) for track in tracks]
    events: list[dict[str, Any]] = [{"ph": "M", "name": of, **at, "args": {"name": text}} for of, at, text in labels]
    for task in np.flatnonzero(~graph.removed & (graph.kind != MARK) & (graph.duration_us > 0)).tolist():
        resource, kind = graph.resources[graph.resource[task]], int(graph.kind[task])
        arguments: dict[str, object] = {"kind": TASK_KINDS[kind]}
        if graph.layer[task] >= 0:
            arguments["layer"] = graph.layers[graph.layer[task]]
        if resource.kind == STREAM:
            # A stream's label ends with its number, as in "GPU 0 stream 7".
            arguments |= {"device": resource.device, "stream": resource.label.rpartition("stream ")[2]}
        task_name = {"ph": "X", "cat": _CATEGORIES[kind], "name": graph.name_of(task)}
        times = _rounded(float(timeline.start_us[task]), float(graph.duration_us[task]))
        events.append({**task_name, **tracks[graph.resource[task]], **times, "args": arguments})
    # The iterations are ranges on the thread of their marks.
    for iteration, (start_us, end_us) in zip(graph.iterations, timeline.marks_us().tolist(), strict=False):
        step_name = {"ph": "X", "cat": "user_annotation", "name": iteration.label}
        track = tracks[graph.resource[graph.kind == MARK][0]]
        events.append({**step_name, **track, **_rounded(start_us, end_us - start_us), "args": {}})
    return events


def _rounded(start_us: float, time_us: float) -> dict[str, float]:
    return {"ts": round(start_us, 3), "dur": round(time_us, 3)}


def _declared() -> dict[str, WhatIfRule]:
    """Return every `WhatIfRule` in a module of this package, by its name."""
    modules = [import_module(module.name) for module in iter_modules(package.__path__, f"{package.__name__}.")]
    rules = [each for module in modules for each in vars(module).values() if isinstance(each, WhatIfRule)]
    return {declared.name: declared for declared in sorted(rules, key=lambda declared: declared.name)}


WHAT_IF_RULES = _declared()
"""Name → declared what-if, for all what-ifs of this package."""


def what_if(text: str) -> WhatIf:
    """Return the what-if of a text.

    Parameters
    ----------
    text : str
        A name, with a value or a GPU if the what-if takes one: ``amp``, ``faster-kernels=4`` or ``gpu=a100``.

    Returns
    -------
    WhatIf
        The what-if, to pass to `evaluate`.

    Raises
    ------
    InputError
        If the name or the GPU is unknown, or the value is invalid.
    """
    if "," in text:
        raise InputError(f"what-if {text!r} names several; separate them with spaces: {' '.join(text.split(','))}")
    name, equals, number = text.partition("=")
    if text.replace(".", "", 1).isdigit():
        raise InputError(f"what-if {text!r} is a number; write it after a name, as in batch={text}")
    check_choice("what-if", name, WHAT_IF_RULES)
    declared = WHAT_IF_RULES[name]
    chosen = WhatIf(name, declared, evidence=declared.evidence or NO_PUBLISHED_ERROR)
    if not equals or declared.takes_gpu:
        return replace(chosen, target=gpu(number)) if equals else chosen
    if declared.value is None:
        raise InputError(f"what-if {name!r} takes no number; write it without {text[len(name) :]!r}")
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"{number!r} in {text!r} is no number; give one, as in {name}=2") from None
    minimum = declared.value.minimum
    if not (0 < value < inf and value >= minimum):
        raise InputError(f"{text}: give a number {f'of {minimum:g} or more' if minimum else 'above 0'}")
    return replace(chosen, value=value)


def what_ifs(
    trace: TraceSource,
    names: Sequence[str] | str,
    *,
    target: str | None = None,
    own_gpu: str | None = None,
    network: Interconnect | None = None,
    iteration: int | None = None,
) -> list[WhatIfAnswer]:
    """Return the answers to what-ifs on a trace.

    Parameters
    ----------
    trace : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.
    names : str or sequence of str
        What-ifs such as ``amp``, ``batch=64`` or ``gpu=a100``.
    target : str, optional
        The target GPU of ``gpu``.
    own_gpu : str, optional
        The GPU of the trace, if the trace names none or another.
    network : Interconnect, optional
        The network of several workers.
    iteration : int, optional
        The only iteration that counts.

    Returns
    -------
    list of WhatIfAnswer
        One answer per what-if, in the given order. A what-if that does not apply has its reason in ``refused``, NaN as
        its predicted time, and a warning.

    Raises
    ------
    InputError
        If no what-if is answered, or a what-if or a GPU is unknown.
    """
    chosen = [what_if(text) for text in ([names] if isinstance(names, str) else names)]
    refusals: dict[str, str] = {}
    profiled = profile(trace, own_gpu)
    if iteration is not None:
        profiled = profile(trim(profiled.trace, iterations_kept=[iteration]), own_gpu)
    profiled = steady(profiled)
    setting = declarations.setting_of(profiled, target=target, network=network)
    answers = evaluate(graph_of(profiled.trace, profiled.layers), chosen, setting, refusals=refusals)
    if refusals and not answers:
        raise InputError("; ".join(dict.fromkeys(refusals.values())))
    found = {answer.name: answer for answer in answers}
    for name, reason in refusals.items():
        why, baseline = reason.removeprefix(f"{name}: "), answers[0].baseline
        warnings.warn(f"{name} is refused: {why}", stacklevel=2)
        found[name] = WhatIfAnswer(name, baseline, baseline, None, None, (), refused=why)
    return [found[each.label] for each in chosen]


def help_texts() -> dict[str, str]:
    """Return the help text of each what-if.

    Returns
    -------
    dict of str to str
        Name → help text. The name ends with ``=N`` or ``=GPU`` if the what-if takes a value.
    """
    return {
        name + ("=N" if rule.value else "=GPU" if rule.takes_gpu else ""): rule.help
        + (f" N: {rule.value}." if rule.value else "")
        for name, rule in WHAT_IF_RULES.items()
    }


def user_function(text: str) -> WhatIf:
    """Return a what-if that calls a user's function, which takes a graph and returns a graph.

    The module is imported, and so runs: give only a module that you trust.

    Parameters
    ----------
    text : str
        ``module:callable``.

    Returns
    -------
    WhatIf
        The what-if, to pass to `evaluate`. It raises `InputError` if the function fails or returns no graph.

    Raises
    ------
    InputError
        If the module or the function cannot be imported.
    """
    function = imported_callable(text, "it must take a graph and return one")

    def apply(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
        with one_line_errors(text):
            changed = function(graph)
        if not isinstance(changed, Graph):
            raise InputError(f"{text} returned {type(changed).__name__}; it must return a graph")
        return Change(changed)

    return WhatIf(text, apply)
