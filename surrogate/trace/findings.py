"""Findings: changes to the traced program, each with its evidence, its gain and a line of code.

Each function in `FINDERS` looks for one cause in the trace and returns a `Draft`. The draft's change is then simulated
like any what-if. The gain is at most the time of the cause: the device's time of the tasks, and the device's idle time
that the change removes. A change that gains less than `MIN_GAIN` of a step is no finding. `findings.toml` holds the
title and the change to the program, under the function's name, and the information that the finder needs.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from surrogate.features.errors import read_toml
from surrogate.report.tables import format_number, shortened
from surrogate.trace import events, idle, profiling
from surrogate.trace.events.parts import layer_type
from surrogate.trace.events.phases import outermost_calls, start_up_calls
from surrogate.trace.events.tables import Ints, linked, open_rows, take_rows, with_ancestors
from surrogate.trace.graph import Graph, Timeline, simulate
from surrogate.trace.graph.build import OUTSIDE_RANGES, shared_graph
from surrogate.trace.graph.device import TOLERANCE_NS
from surrogate.trace.graph.tasks import CALL, COLLECTIVE, DEVICE_KINDS, EDGE_COLUMNS, LAUNCH, SYNC, WORK, Mask
from surrogate.trace.iteration.ranks import RanksSummary
from surrogate.trace.iteration.times import MODEL, UNALIGNED, predicted_times
from surrogate.trace.profiling import NO_DEVICE, Profile, TraceSource, invalid_reason, steady, step_times_us
from surrogate.trace.result import MAX_NAME_LENGTH, Row, deduplicated, short_names
from surrogate.trace.tables import sources_by_layer
from surrogate.trace.whatif import WHAT_IF_RULES, WhatIfSetting, evaluate, scale, select, what_if
from surrogate.trace.whatif.answers import REPLAY_ERROR
from surrogate.trace.whatif.hardware import call_kinds, kernel_dtypes, matrix_kernels, on_matrix_units, tf32_factors
from surrogate.trace.whatif.primitives import OPTIMIZER, on_weights
from surrogate.trace.whatif.training import FUSED_BYTES, optimizer_of, update_tasks

MIN_GAIN = 0.01
"""Minimum gain of a finding, as a share of a step's time."""
MIN_SAVED_SHARE = 0.5
"""Assumed minimum share of a cause's time that the change saves: no times before and after are published."""
_LAYOUT = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|batched_transpose"
_TORCH = re.compile(r"^(?:aten::|c10|torch|nn\.Module)|\bat::native|torch::autograd")
"""Matches names of operators, modules and kernels of PyTorch."""
_FILES = re.compile(r"^(?:p?read|p?write|f?open|fread|fwrite|fgets|getline|mmap|f?sync|l?seek|io_|<built-in )")
"""Matches calls of the operating system, and Python's own functions, that read and write files."""
FILE_RANGE = re.compile(r"(?i)(?<![a-z])(?:io|i/o|files?|disk|(?:read|load(?!.*balanc)|writ|sav)(?:e|ing)?)(?![a-z])")
"""Matches the names of users' ranges around files, if such calls are recorded in them."""
_CODE = (idle.RANGE, idle.SYSTEM, idle.COLLECTION, idle.PYTHON, idle.UNKNOWN)
"""Causes of idle time in the program's own code."""
_NO_WORKERS = "_SingleProcessDataLoaderIter"
"""A part of the names of PyTorch's ranges around a DataLoader without workers."""
_CAPTURED = (events.LAUNCH, events.MEMSET_CALL, events.RECORD_CALL, events.OTHER_CALL)
"""Kinds of runtime calls that a graph replaces."""
_FILLING = 1.5
"""The allocator's cache fills in the first iteration if it has more than this multiple of the others' calls."""
_MANY = 10
"""Minimum kernels of an optimizer's step that is not fused, and minimum launches per step for `small_kernels`."""
TEXTS = read_toml(__file__)
"""Finder's name → the texts of its finding, and the changes to the program by key; also further texts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause of lost time in a trace, and the change to the program that removes it. Times are in µs per step.

    Attributes
    ----------
    title : str
        The cause, in one line.
    evidence : str
        The evidence of the cause in the trace.
    evidence_us : float
        Time of the affected tasks on the device and on the host.
    change : str
        The change to the program, as a line of code.
    where : str
        Lines of the program, or layers; "" if unknown.
    step_us : float
        Time of a step as traced.
    gain_us : float
        Time that a simulation without the cause saves.
    low_us, high_us : float
        Interval of the gain.
    basis : str
        How the interval was derived.
    """

    title: str
    evidence: str
    evidence_us: float
    change: str
    where: str
    step_us: float
    gain_us: float
    low_us: float
    high_us: float
    basis: str

    @property
    def gain_pct(self) -> float:
        """The gain in percent of the step."""
        return 100 * self.gain_us / self.step_us if self.step_us else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return asdict(self) | {"gain_pct": self.gain_pct}

    def row(self) -> Row:
        """Return the finding as a row of a displayed table."""
        low_pct, high_pct = (100 * end_us / (self.step_us or 1) for end_us in (self.low_us, self.high_us))
        gain = {"finding": self.title, "gain_ms": self.gain_us / 1e3, "gain_pct": self.gain_pct}
        interval = f"{format_number(low_pct, 2)} to {format_number(high_pct, 2)} %"
        return gain | {"interval": interval, "evidence": self.evidence, "change": self.change, "where": self.where}


@dataclass(frozen=True, slots=True)
class Draft:
    """A cause that a finder suspects, before its gain is simulated.

    ``tasks`` are the affected tasks. ``idle`` are the pieces of idle time that the change removes: the gain is at most
    their time, and the tasks' time on the device. ``changed`` is the graph without the cause; by default the tasks take
    no time. ``details`` are added to the evidence. ``change`` is the key of the change in `TEXTS`, and ``fields`` fill
    the placeholders of its texts.
    """

    tasks: Mask
    changed: Graph | None = None
    idle: Mask | None = None
    details: str = ""
    change: str = "change"
    fields: Mapping[str, object] = field(default_factory=dict)


class FinderInput:
    """The input of every finder: a profile, its graph, the replay of the graph, and the pieces of idle time.

    ``outer`` is the outermost call around each call. ``api`` is the prefix of calls: cuda, or hip on ROCm.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile = steady(profile)
        self.trace = profile.trace
        self.graph = shared_graph(profile.trace, profile.layers)
        self.setting = WhatIfSetting(profile)
        self.baseline = simulate(self.graph)
        self.step_us = self.baseline.per_iteration_us
        self.steps = max(len(self.graph.iterations), 1)
        self.pieces = idle.idle_pieces(profile)
        self.call_kind = call_kinds(self.graph, self.trace)
        self.outer = outermost_calls(self.trace)
        is_hip = self.trace.name_matches(self.trace.calls, lambda name: name.startswith("hip"))
        self.api = "hip" if is_hip.any() else "cuda"
        self.uses_torch = any(map(_TORCH.search, self.trace.names))

    @cached_property
    def sources(self) -> dict[str, str]:
        """Layer → the line of the program that called it, if stacks were recorded."""
        return sources_by_layer(self.profile)

    @cached_property
    def types(self) -> tuple[Mask, float, float]:
        """The kernels that do not work on weights, the share of their time with a known type, and its share in fp32."""
        graph, dtype = self.graph, kernel_dtypes(self.graph, self.profile)
        tasks = select(graph, kind="kernel") & ~on_weights(graph)
        parts = (tasks, tasks & (dtype != ""), tasks & (dtype == "fp32"))
        all_us, typed_us, fp32_us = (float(graph.duration_us[part].sum()) for part in parts)
        return tasks, typed_us / (all_us or 1.0), fp32_us / (typed_us or 1.0)

    @cached_property
    def on_files(self) -> Mask:
        """The pieces in which the host reads or writes files, by the open call of the system or the user's range."""
        pieces, trace = self.pieces, self.trace
        in_files = trace.name_matches(trace.frames, _FILES.match)
        # A range's name counts only if such calls are recorded in a range of this name.
        around = open_rows(trace.ranges, trace.frames.start_ns[in_files], trace.frames.thread[in_files])
        rows = np.flatnonzero(with_ancestors(trace.ranges, around))
        labels = {layer_type(trace.name_of(trace.ranges, row), trace.repeated) for row in rows.tolist()}
        by_range = (pieces["cause"] == idle.RANGE) & pieces["name"].isin(filter(FILE_RANGE.search, labels))
        by_call = linked(in_files, pieces["system_call"].to_numpy(), False)
        return self.has_cause(*_CODE) & (by_range.to_numpy(bool) | by_call)

    @cached_property
    def in_loader(self) -> Mask:
        """The pieces in which the host is in the DataLoader; calls that block it there included."""
        blocked = self.pieces["name"].str.contains(idle.LOADER_RANGE, regex=False)
        return ((self.pieces["cause"] == idle.LOADER) | blocked).to_numpy(bool)

    @cached_property
    def has_own_cause(self) -> Mask:
        """The pieces in which the host waits for data, memory or a call of the operating system.

        The host reads and writes files itself, and makes the data itself in a DataLoader without workers.
        """
        is_memory = linked(self.trace.calls.kind, self.pieces["call"].to_numpy()) == events.MEMORY_CALL
        is_own_work = self.pieces["name"].str.contains(_NO_WORKERS, regex=False).to_numpy(bool)
        return is_memory | (self.in_loader & ~is_own_work) | (self.has_cause(idle.SYSTEM) & ~self.on_files)

    def idle_us(self, pieces: Mask) -> float:
        """Return the idle time of the pieces per iteration in µs."""
        return float(self.pieces["time_us"][pieces].sum()) / self.steps

    def idle_names(self, pieces: Mask, names: np.ndarray | None = None) -> str:
        """Return the three names with the most idle time, each with its time per step."""
        labels = self.pieces["name"][pieces] if names is None else names[pieces]
        sums_ms = self.pieces["time_us"][pieces].groupby(labels).sum() / self.steps / 1e3
        longest = sums_ms[sums_ms >= MIN_GAIN * sums_ms.sum()].nlargest(3)
        return ", ".join(f"{_short(name)} {format_number(time_ms)} ms" for name, time_ms in longest.items())

    def has_cause(self, *causes: int) -> Mask:
        """Return the pieces with one of the causes."""
        return self.pieces["cause"].isin(causes).to_numpy()

    def launched(self, activities: Ints) -> Mask:
        """Return the pieces after the launch of one of the activities."""
        return self.has_cause(idle.LAUNCHED) & self.pieces["following"].isin(activities).to_numpy()

    def closed_by(self, changed: Graph) -> Mask:
        """Return the pieces of gaps that the same tasks in a changed graph shorten, except those with other causes.

        The host's waits for data, memory and other calls do not end earlier if it begins them earlier.
        """
        tasks = np.isin(self.graph.kind, DEVICE_KINDS) & (self.graph.row >= 0)
        rows, shorter = self.graph.row[tasks], np.zeros(len(self.trace.activities), np.bool_)
        work, device = take_rows(self.trace.activities, rows), self.profile.device_of[rows]
        times_ns = [
            (1e3 * line.start_us[tasks], 1e3 * line.end_us[tasks]) for line in (self.baseline, simulate(changed))
        ]
        each = [replace(work, start_ns=start_ns, end_ns=end_ns) for start_ns, end_ns in times_ns]
        before_us, after_us = (profiling.idle_before_us(part, device) for part in each)
        shorter[rows] = before_us - after_us > TOLERANCE_NS / 1e3
        is_closed = linked(shorter, self.pieces["following"].to_numpy(), False)
        return (
            is_closed
            & self.has_cause(idle.OPERATOR, idle.LAUNCHED, *_CODE, idle.CALL, idle.LOADER)
            & ~self.has_own_cause
        )

    def in_calls(self, rows: Ints) -> Mask:
        """Return the pieces during the calls, and later pieces of gaps that begin while one of the calls blocks.

        Another call that blocks, the data loader, and the program's own code have their own time.
        """
        call, blocked = self.pieces[["call", "blocked"]].to_numpy().T
        during, after = (np.isin(linked(self.outer, each), self.outer[rows]) for each in (call, blocked))
        is_other = self.has_own_cause | self.has_cause(idle.START_UP, idle.BLOCKED, *_CODE)
        return (during | (after & ~is_other)) & ~self.in_loader & ~self.on_files

    def during(self, pieces: Mask) -> Mask:
        """Return the host's tasks that run during the pieces."""
        start_us, end_us = (self.pieces[["start_ns", "end_ns"]].to_numpy().T - self.trace.span_ns[0]) / 1e3
        tasks = np.isin(self.graph.kind, (CALL, WORK))
        first = np.searchsorted(end_us[pieces], self.graph.measured_us + 1e-3, "right")
        starts_us = np.append(start_us[pieces], np.inf)
        return tasks & (starts_us[first] < self.graph.measured_us + self.graph.duration_us - 1e-3)

    def change(self, texts: Mapping[str, str], draft: Draft) -> str:
        """Return the change to the program. A program without PyTorch gets a change of CUDA or HIP if there is one."""
        keys = [draft.change] if self.uses_torch else [f"plain_{self.api}", "plain", draft.change]
        text = next(texts[key] for key in keys if key in texts)
        return text.format(api=self.api, API=self.api.upper(), **draft.fields)

    def time_us(self, tasks: Mask) -> float:
        """Return the tasks' time per iteration in µs; calls count with their measured time, waits included."""
        graph = self.graph
        on_device = tasks & np.isin(graph.kind, DEVICE_KINDS)
        on_host = tasks & ~on_device & (graph.iteration >= 0)
        called = on_host & (graph.kind == CALL) & (graph.row >= 0)
        calls_us = self.trace.calls.time_us[np.unique(graph.row[called])].sum()
        host_us = float(graph.duration_us[on_host & ~called].sum() + calls_us) / self.steps
        return host_us + float(step_times_us(self.profile)[graph.row[on_device]].sum())

    def evidence(self, tasks: Mask, description: str) -> str:
        """Return the tasks' time on the device and on the host, their number, and the names with the most time."""
        graph = self.graph
        on_device = np.isin(graph.kind, DEVICE_KINDS)
        texts = []
        full = np.array(graph.names, object)
        on_host = np.array(
            [layer_type(idle.VERSION.sub("", name), self.trace.repeated) for name in graph.names], object
        )
        places = {"on the device": (tasks & on_device, full), "on the host": (tasks & ~on_device, on_host)}
        for place, (part, labels) in places.items():
            if part.any():
                times = pd.Series(graph.duration_us[part]).groupby(graph.name[part]).sum()
                times = times.groupby(labels[times.index]).sum().nlargest(3)
                longest = [str(name) for name, time_us in times.items() if time_us and name != OUTSIDE_RANGES]
                names = ", ".join(map(_short, longest) if place == "on the host" else short_names(longest).values())
                count = int((part & (graph.iteration >= 0)).sum()) / self.steps
                time = f"{format_number(self.time_us(part) / 1e3)} ms {place} (×{format_number(count)})"
                texts.append(f"{time}{names and f': {names}'}")
        return f"{description}, per step {'; '.join(texts)}"

    def location(self, tasks: Mask) -> str:
        """Return the three lines of the program that launched most of the tasks' time, or else the layers."""
        graph = self.graph
        in_layers = tasks & (graph.layer >= 0)
        times = np.bincount(graph.layer[in_layers], graph.duration_us[in_layers], len(graph.layers))
        longest: list[str] = [graph.layers[i] for i in times.argsort()[::-1] if times[i]]
        return ", ".join(list(dict.fromkeys(str(self.sources.get(name, name)) for name in longest))[:3])


Finder = Callable[[FinderInput], Draft | None]


def _short(name: object) -> str:
    return shortened(str(name), MAX_NAME_LENGTH)


def advice(source: TraceSource) -> list[Finding]:
    """Return the findings of a trace, the largest gain first.

    A warning names the causes that were not checked, and the information that the trace lacks for them.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.

    Returns
    -------
    list of Finding
        Each finding gains at least `MIN_GAIN` of a step; for the program's own code `findings.toml` has another limit.
        Gains do not add up.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    findings, unchecked = find_all(profiling.profile(source))
    if unchecked:
        warnings.warn(unchecked, stacklevel=2)
    return findings


def find_all(profile: Profile) -> tuple[list[Finding], str]:
    """Return the findings, and a text with the unchecked causes and the missing information ("" if there are none)."""
    trace = profile.trace
    if why := invalid_reason(trace):
        return [], why
    if not len(trace.activities) and not len(trace.ranges):
        return [], f"{trace.source}: {NO_DEVICE}"
    has_shapes = bool((trace.ranges.shapes >= 0).any())
    case = FinderInput(profile)
    present = {"device": len(trace.activities) > 0, "shapes": has_shapes, "gpu": profile.gpu is not None}
    present["types"] = has_shapes or case.types[1] >= 0.5
    missing = {find: [need for need in TEXTS[find.__name__]["needs"] if not present[need]] for find in FINDERS}
    unchecked = deduplicated(
        (f"“{TEXTS[find.__name__]['title'].format(arithmetic='fp32 or TF32')}”", TEXTS["lacks"][needs[0]])
        for find, needs in missing.items()
        if needs
    )
    findings = [finding for find in FINDERS if not missing[find] and (finding := _simulated(case, find))]
    return sorted(findings, key=lambda finding: -finding.gain_us), "; ".join(unchecked)


def straggler(compared: RanksSummary) -> Finding | None:
    """Return the rank that the others wait for, and whether it computes longer or idles longer.

    Return None if they wait less than `MIN_GAIN` of the time because of that. The rest of their wait comes from
    different start times in the traces.
    """
    rank, text = compared.straggler, TEXTS["straggler"]
    if rank is None:
        return None
    ranks = pd.DataFrame(compared.ranks)
    is_slow = ranks["rank"] == rank
    steps = (ranks["iterations"] - 1).clip(lower=1)
    # Compute and idle time in ms per step of the slow rank, and their medians over the other ranks.
    ms = ranks[["steps_compute_us", "steps_idle_us"]].div(1e3 * steps, axis=0)
    slow_ms, others_ms = (ms[rows].median().to_numpy(float) for rows in (is_slow, ~is_slow))
    step_us = float((ranks["steps_us"] / steps).mean())
    awaited_us = float((ranks["awaited_us"] / ranks["iterations"])[is_slow].sum())
    gain_us = min(awaited_us, 1e3 * float((slow_ms - others_ms).sum()))
    if gain_us < MIN_GAIN * step_us:
        return None
    figures = map(format_number, [*slow_ms, *others_ms, gain_us / 1e3, awaited_us / 1e3])
    is_computing = slow_ms[0] - others_ms[0] >= slow_ms[1] - others_ms[1]
    return Finding(
        title=text["title"].format(rank=rank),
        evidence=text["evidence"].format(*figures),
        evidence_us=gain_us,
        change=text["computing" if is_computing else "idling"],
        where=f"rank {rank}",
        step_us=step_us,
        gain_us=gain_us,
        low_us=MIN_SAVED_SHARE * gain_us,
        high_us=gain_us,
        basis=TEXTS["half_to_all"],
    )


def is_judged(profile: Profile) -> bool:
    """Return whether the trace has what most causes need: work of a device, and a graph that can be simulated."""
    return len(profile.trace.activities) > 0 and not invalid_reason(profile.trace)


def format_findings(
    findings: Sequence[Finding],
    unchecked: str = "",
    step: str = "the mean iteration, from end to end",
    *,
    evaluated: bool = True,
) -> str:
    """Return the findings as text, one paragraph each.

    ``step`` defines a step, and ``unchecked`` names the causes that were not checked; both are part of the text.
    Without findings, ``evaluated`` (`is_judged`) decides between "none" and "not judged".
    """
    if not findings and not evaluated:
        return f"Findings: not judged\n{unchecked}"
    if not findings:
        return f"Findings: none; the trace supports no change that gains {MIN_GAIN:.0%} of a step\n{unchecked}".strip()
    lines = [f"Findings, the largest gain first; gains do not add up; a step is {step}"]
    for number, finding in enumerate(findings, start=1):
        row = finding.row()
        gain = f"{format_number(finding.gain_us / 1e3, 3)} of {format_number(finding.step_us / 1e3)} ms a step"
        lines += [f"{number}. {finding.title}: {gain}, {format_number(finding.gain_pct, 2)} % ({row['interval']})"]
        location = f"in {finding.where}" if finding.where else ""
        lines += [f"   {text}" for text in (finding.evidence, location, f"change: {finding.change}") if text]
    bases = deduplicated((str(number), finding.basis) for number, finding in enumerate(findings, start=1))
    return "\n".join(filter(None, [*lines, *(f"Interval of {basis}" for basis in bases), unchecked]))


def _simulated(case: FinderInput, find: Finder) -> Finding | None:
    """Return what a finder drafts with its simulated gain; None if the gain is too small or no what-if applies.

    The gain is at most the time of the cause. The interval is the what-if's own. Without one it reaches from half of
    the time saved on each task, and half of the idle time, to the gain.
    """
    draft, texts, step_us = find(case), TEXTS[find.__name__], case.step_us
    if draft is None or not draft.tasks.any():
        return None
    min_us = texts.get("min_gain", MIN_GAIN) * step_us
    idle_us = 0.0 if draft.idle is None else case.idle_us(draft.idle)
    cause_us = idle_us + case.time_us(draft.tasks & np.isin(case.graph.kind, DEVICE_KINDS))
    if cause_us < min_us:
        return None
    ends_us, limit_us, basis = (), cause_us, TEXTS["half_to_all"]
    if name := texts.get("what_if"):
        answers = evaluate(case.graph, [what_if(name)], case.setting, refusals={})
        if not answers:
            return None
        answer, after = answers[0], answers[0].predicted
        if answer.low_us is not None and answer.high_us is not None:
            ends_us, basis = (answer.low_us, answer.high_us), f"what-if {name}: {answer.evidence}"
    else:
        after = simulate(draft.changed or scale(case.graph, draft.tasks, 0.0))
    gain_us = min(step_us - after.per_iteration_us, cause_us)
    if gain_us < min_us:
        return None
    if not ends_us:
        half = case.graph
        for name in ("duration_us", "lag_us"):
            before_us, after_us = getattr(half, name), getattr(after.graph, name)
            if len(before_us) == len(after_us):
                half = replace(half, **{name: before_us - MIN_SAVED_SHARE * (before_us - after_us)})
        ends_us, limit_us = (simulate(half).per_iteration_us,), cause_us - MIN_SAVED_SHARE * idle_us
    gains_us = [min(step_us - end_us, limit_us) for end_us in ends_us]
    waiting = "device idles" if len(case.trace.activities) else "main thread spends"
    device_idles = f"; the {waiting} {format_number(idle_us / 1e3)} ms a step for this" if idle_us else ""
    evidence = case.evidence(draft.tasks, texts["tasks"].format_map(draft.fields)) + device_idles + draft.details
    return Finding(
        title=texts["title"].format_map(draft.fields),
        evidence=evidence + _in_one_iteration(case.baseline, after),
        evidence_us=case.time_us(draft.tasks),
        change=case.change(texts, draft),
        where=case.location(draft.tasks),
        step_us=step_us,
        gain_us=gain_us,
        low_us=max(min(*gains_us, gain_us - REPLAY_ERROR * step_us), 0.0),
        high_us=max(*gains_us, gain_us),
        basis=basis,
    )


def _in_one_iteration(before: Timeline, after: Timeline) -> str:
    """Return a note if most of the gain is in one of several iterations, as with a stall; else ""."""
    gains_us = np.maximum(np.subtract(before.iteration_us(), after.iteration_us()), 0.0)
    if len(gains_us) < 3 or gains_us.max() <= 0.5 * gains_us.sum():
        return ""
    label = before.graph.iterations[int(gains_us.argmax())].label
    return f"; {gains_us.max() / gains_us.sum():.0%} of the gain is in {label}, one of {len(gains_us)} iterations"


def layout_transposes(case: FinderInput) -> Draft | None:
    """Find kernels that transpose layouts."""
    return Draft(select(case.graph, kind="kernel", name=_LAYOUT))


def products_in_fp32(case: FinderInput) -> Draft | None:
    """Find products outside matrix units on a GPU with TF32; the TF32 roofline gives their new time."""
    if case.profile.gpu is None or not case.profile.gpu.tf32_tflops:
        return None
    tasks, factor = tf32_factors(case.graph, case.profile)
    return Draft(tasks, scale(case.graph, np.flatnonzero(tasks), factor))


def whole_step_in_fp32(case: FinderInput) -> Draft | None:
    """Find a step with mostly fp32 work (TF32 included), on a GPU with matrix units for 16 bits.

    Work on weights and optimizer states does not count, because autocast keeps it in fp32.
    """
    gpu, graph, (tasks, typed, share) = case.profile.gpu, case.graph, case.types
    if gpu is None or not gpu.fp16_tensor_tflops or min(typed, share) < 0.5:
        return None
    products_us = np.where(matrix_kernels(graph), graph.duration_us, 0.0)
    tf32 = products_us[on_matrix_units(graph)].sum() / (products_us.sum() or 1.0)
    units = f"; {tf32:.0%} of the time of products and convolutions in TF32" if tf32 else ""
    fields = {"arithmetic": "TF32" if tf32 >= 0.5 else "fp32", "share": share, "units": units}
    change = "bf16" if gpu.bf16_tensor_tflops else "fp16"
    return Draft(tasks, change=change, fields=fields)


def start_up(case: FinderInput) -> Draft | None:
    """Find first calls that start up the runtime or load modules, while the device is idle."""
    graph = case.graph
    row = np.where((graph.kind == CALL) & (graph.iteration >= 0), graph.row, -1)
    tasks = linked(start_up_calls(case.trace)[case.outer], row, False)
    # A kernel waits from the start of its launch, so it waits for the start-up inside.
    is_launch = (graph.edge_kind == LAUNCH) & tasks[graph.src]
    lag_us = np.maximum(graph.lag_us - is_launch * graph.duration_us[graph.src], np.minimum(graph.lag_us, 0.0))
    return Draft(tasks, replace(scale(graph, tasks, 0.0), lag_us=lag_us), idle=case.has_cause(idle.START_UP))


def small_kernels(case: FinderInput) -> Draft | None:
    """Find kernels that the host launches one by one, more slowly than the device runs them.

    Only idle time in operators (without allocations of the driver), in launches and in their latency counts.
    """
    graph, pieces = case.graph, case.pieces
    if np.isin(case.call_kind, (events.LAUNCH, events.MEMSET_CALL)).sum() < _MANY * case.steps:
        return None
    kind = linked(case.trace.calls.kind, pieces["call"].to_numpy())
    is_call = case.has_cause(idle.CALL) & np.isin(kind, _CAPTURED)
    is_latency = (pieces["name"] == idle.LATENCY).to_numpy()
    return Draft(
        WHAT_IF_RULES["cuda-graphs"](graph, case.setting).graph.removed & ~graph.removed,
        idle=(case.has_cause(idle.OPERATOR) & (kind != events.MEMORY_CALL)) | is_call | is_latency,
        details=f"; for {format_number(select(graph, kind='kernel').sum() / case.steps)} kernels; the host's time"
        " includes the profiler's cost",
    )


def unfused_optimizer(case: FinderInput) -> Draft | None:
    """Find an optimizer's update in many kernels, though PyTorch has a fused kernel for it."""
    tasks = update_tasks(case.graph)
    kernels = tasks & np.isin(case.graph.kind, DEVICE_KINDS)
    name = optimizer_of(case.graph)
    fused = select(case.graph, name="(?i)fused")
    if name not in FUSED_BYTES or kernels.sum() < _MANY * case.steps or (kernels & fused).any():
        return None
    # The device also idles between the update's kernels: in the optimizer's code, and for the latency of its launches.
    in_update = case.launched(case.graph.row[kernels]) | case.pieces["name"].str.contains(OPTIMIZER).to_numpy(bool)
    return Draft(tasks, idle=in_update, fields={"optimizer": name})


def data_loading(case: FinderInput) -> Draft | None:
    """Find time of the host in the DataLoader."""
    tasks = select(case.graph, kind=("host work", "call"), layer="DataLoader") | case.during(case.in_loader)
    change = "more_workers" if any("_MultiProcessingDataLoaderIter" in name for name in case.trace.names) else "change"
    return Draft(tasks, idle=case.in_loader, change=change)


def file_access(case: FinderInput) -> Draft | None:
    """Find time of the host in files: calls of the system and of Python, and ranges named so that hold such calls."""
    trace, is_call = case.trace, case.on_files & (case.pieces["system_call"] >= 0)
    calls = np.array([*trace.names, ""], object)[linked(trace.frames.name, case.pieces["system_call"].to_numpy())]
    places = filter(None, [case.idle_names(case.on_files), case.idle_names(is_call, calls)])
    tasks = case.during(case.on_files) & (case.graph.iteration >= 0)
    return Draft(tasks, idle=case.on_files, details=f": {'; in it '.join(dict.fromkeys(places))}")


def host_outside_layers(case: FinderInput) -> Draft | None:
    """Find code of the program between operators, for which the device waits."""
    graph = case.graph
    pieces = case.has_cause(*_CODE) & ~case.on_files
    tasks = select(graph, kind="host work") & (graph.iteration >= 0) & ((graph.layer < 0) | case.during(pieces))
    if not tasks.any() or not pieces.any():
        return None
    longest = int(np.where(tasks, graph.duration_us, 0.0).argmax())
    # The layers before and after the longest piece of code, on its thread.
    in_layers = np.flatnonzero((graph.resource == graph.resource[longest]) & (graph.layer >= 0))
    position = int(np.searchsorted(in_layers, longest))
    neighbours = [graph.layers[graph.layer[row]] for row in in_layers[max(position - 1, 0) : position + 1].tolist()]
    longest_us = float(graph.duration_us[longest])
    collecting = case.idle_us(pieces & case.has_cause(idle.COLLECTION)) / case.idle_us(pieces)
    return Draft(
        tasks,
        idle=pieces,
        details=f": {case.idle_names(pieces)}; the longest piece of work takes {format_number(longest_us / 1e3)} ms"
        + " and is next to " * bool(neighbours)
        + " and ".join(dict.fromkeys(neighbours)),
        change="collect" if collecting > 0.5 else "once" if longest_us > 0.5 * case.time_us(tasks) else "often",
    )


def device_awaited(case: FinderInput) -> Draft | None:
    """Find calls that wait for the device, such as reads of a value, before other launches.

    Without the wait, the host launches ahead, so gaps before later kernels close, too.
    """
    graph, trace = case.graph, case.trace
    numbers = np.arange(len(graph))
    launches = np.isin(case.call_kind, (events.LAUNCH, events.GRAPH_LAUNCH)) & (graph.iteration >= 0)
    # Copies to the device from pageable memory make the host wait, too, but `unpinned_copies` reports those.
    awaited = np.isin(numbers, graph.dst[graph.edge_kind == SYNC]) & (graph.kind == CALL) & (graph.row >= 0)
    copying = np.isin(graph.row, trace.activities.call[trace.activities.copy_kind == events.TO_DEVICE])
    tasks = awaited & ~copying & (graph.iteration >= 0) & (numbers < np.max(numbers[launches], initial=-1))
    around = trace.calls.range[graph.row[tasks]]
    around = np.where(linked(trace.ranges.kind, around) == events.STEP, -1, around).tolist()
    names = {
        layer_type(trace.name_of(trace.ranges, row), trace.repeated) if row >= 0 else "code outside operators"
        for row in around
    }
    changed, fields = _unawaited(graph, tasks), {"names": ", ".join(sorted(names)[:4])}
    pieces = case.in_calls(graph.row[tasks]) | case.closed_by(changed)
    return Draft(tasks, changed, idle=pieces, fields=fields)


def unpinned_copies(case: FinderInput) -> Draft | None:
    """Find copies to the device from pageable memory, which are slower than the link and make the host wait."""
    graph, trace, gpu = case.graph, case.trace, case.profile.gpu
    tasks = select(graph, kind="copy", name=r"(?i)pageable -> device") & (graph.row >= 0)
    if gpu is None or not gpu.pcie_gbs or not tasks.any():
        return None
    rows = graph.row[tasks]
    pinned_us = np.maximum(trace.activities.bytes[rows], 0) / (gpu.pcie_gbs * 1e3)
    factor = np.minimum(pinned_us / np.maximum(graph.duration_us[tasks], 1e-3), 1.0)
    calls = (graph.kind == CALL) & np.isin(graph.row, trace.activities.call[rows])
    moved = trace.activities.bytes[rows].sum() / max(graph.duration_us[tasks].sum(), 1e-3) / 1e3
    faster = scale(graph, np.flatnonzero(tasks), factor)
    details = f"; at {format_number(moved, 3)} of the link's {gpu.pcie_gbs:g} GB/s"
    changed = _unawaited(faster, calls)
    pieces = case.in_calls(graph.row[calls]) | case.launched(rows) | case.closed_by(changed)
    return Draft(tasks | calls, changed, idle=pieces, details=details)


def unaligned_rows(case: FinderInput) -> Draft | None:
    """Find products on kernels for rows not aligned to 16 bytes; their new time is the prediction for aligned rows."""
    tasks = select(case.graph, kind="kernel", name=UNALIGNED.pattern) & (case.graph.row >= 0)
    if not tasks.any() or case.profile.gpu is None:
        return None
    times = predicted_times(case.trace, case.setting.predictors(case.profile.gpu))
    rows = case.graph.row[tasks]
    is_predicted = np.array([times.source[row] == MODEL for row in rows.tolist()])
    ratio = np.minimum(times.time_us[rows] / np.maximum(case.graph.duration_us[tasks], 1e-3), 1.0)
    shapes = [case.trace.shapes_of(row) for row in case.trace.activities.range[rows].tolist() if row >= 0]
    sizes = {size for shape in shapes for dims in shape or () for size in np.ravel(dims).tolist() if size % 8}
    largest = int(max(sizes, default=0))
    return Draft(
        tasks,
        scale(case.graph, np.flatnonzero(tasks), np.where(is_predicted, ratio, 1.0)),
        change="one_size" if largest else "all_sizes",
        fields={"largest": largest, "padded": -(-largest // 8) * 8},
    )


def exposed_communication(case: FinderInput) -> Draft | None:
    """Find collectives, for which the step waits."""
    return Draft(case.graph.kind == COLLECTIVE)


def allocator_stalls(case: FinderInput) -> Draft | None:
    """Find the driver's allocations and frees. If the first iteration has most, the allocator's cache still fills."""
    graph = case.graph
    tasks = (case.call_kind == events.MEMORY_CALL) & (graph.iteration >= 0)
    calls = np.bincount(graph.iteration[tasks], minlength=case.steps)
    tasks &= graph.iteration >= (calls[0] > _FILLING * calls[1:].mean() if case.steps > 1 else 1)
    faster = scale(_unawaited(case.graph, tasks), tasks, 0.0)
    return Draft(tasks, faster, idle=case.in_calls(case.graph.row[tasks]) | case.closed_by(faster))


FINDERS: Sequence[Finder] = (
    *(layout_transposes, products_in_fp32, whole_step_in_fp32, start_up, small_kernels, unfused_optimizer),
    *(data_loading, file_access, host_outside_layers, device_awaited, unpinned_copies, unaligned_rows),
    *(exposed_communication, allocator_stalls),
)


def _unawaited(graph: Graph, calls: Mask) -> Graph:
    """Return the graph in which the calls do not wait for the device."""
    kept = ~((graph.edge_kind == SYNC) & calls[graph.dst])
    return replace(graph, **{name: getattr(graph, name)[kept] for name in EDGE_COLUMNS})
