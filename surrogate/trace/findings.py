"""Findings: changes to the traced program, each with its evidence, its gain and a line of code.

Each function in `FINDERS` looks for one cause in the trace and returns a `Draft`. The draft's change is then simulated
like any what-if. The gain is at most the time of the cause: the device's time of the tasks, and the device's idle time
that the change removes. A change that gains less than `MIN_GAIN` of a step is no finding. `findings.toml` holds the
title and the change to the program, under the function's name.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError, read_toml
from surrogate.features.kernels import uses_tensor_cores
from surrogate.features.roofline import peak_tflops, roofline_us
from surrogate.report.tables import format_number
from surrogate.trace import events, idle, profiling
from surrogate.trace.events.parts import layer_type
from surrogate.trace.events.phases import outermost_calls, start_up_calls
from surrogate.trace.events.tables import Ints, linked
from surrogate.trace.graph import Graph, Timeline, simulate
from surrogate.trace.graph.build import OUTSIDE_RANGES, shared_graph
from surrogate.trace.graph.tasks import CALL, COLLECTIVE, DEVICE_KINDS, EDGE_COLUMNS, SYNC, WORK, Mask
from surrogate.trace.iteration.ranks import RanksSummary
from surrogate.trace.iteration.times import MODEL, UNALIGNED, predicted_times
from surrogate.trace.profiling import NO_DEVICE, Profile, TraceSource, invalid_reason, steady, step_times_us
from surrogate.trace.result import Row, deduplicated, short_names
from surrogate.trace.tables import sources_by_layer
from surrogate.trace.whatif import WHAT_IF_RULES, WhatIfSetting, evaluate, scale, select, what_if
from surrogate.trace.whatif.answers import REPLAY_ERROR
from surrogate.trace.whatif.hardware import call_kinds, matrix_kernels
from surrogate.trace.whatif.primitives import OPTIMIZER
from surrogate.trace.whatif.training import FUSED_BYTES, optimizer_of, update_tasks

MIN_GAIN = 0.01
"""Minimum gain of a finding, as a share of a step's time."""
MIN_HOST_GAIN = 0.05
"""Minimum gain of a finding about the program's own code: every eager program has code between its operators."""
MIN_SAVED_SHARE = 0.5
"""Assumed minimum share of a cause's time that the change saves: no times before and after are published."""
_LAYOUT = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|batched_transpose"
_PRODUCT = r"(?i)^(?!.*(?:fprop|wgrad|dgrad|conv)).*gemm"
_TORCH = re.compile(r"^(?:aten::|c10|torch|nn\.Module)|\bat::native|torch::autograd")
"""Matches names of operators, modules and kernels of PyTorch."""
_FILES = re.compile(r"^(?:p?read|p?write|f?open|fread|fwrite|fgets|getline|mmap|f?sync|l?seek|io_)")
"""Matches calls of the operating system that read and write files."""
_FILE_RANGE = re.compile(r"(?i)\b(?:io|i/o|files?|disk|read(?:ing)?|load(?:ing)?|sav(?:e|ing)|checkpoint)\b")
"""Matches the names of users' ranges around files."""
_CODE = (idle.RANGE, idle.SYSTEM, idle.COLLECTION, idle.PYTHON, idle.UNKNOWN)
"""Causes of idle time in the program's own code."""
_CAPTURED = (events.LAUNCH, events.MEMSET_CALL, events.RECORD_CALL, events.OTHER_CALL)
"""Kinds of runtime calls that a graph replaces."""
_MANY = 10
"""Minimum kernels of an optimizer's step that is not fused, and minimum launches per step for `small_kernels`."""
TEXTS = read_toml(__file__)
"""Finder's name → the title of its finding, and the changes to the program by key; also two further texts."""


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

    ``tasks`` are the affected tasks, and ``description`` describes them; ``details`` are added to the evidence.
    ``idle`` are the pieces of idle time that the change removes: the gain is at most their time, and the tasks' time on
    the device. ``changed`` is the graph without the cause, or ``what_if`` names a what-if that removes it. A gain below
    ``min_gain`` of a step is no finding. ``change`` is the key of the change in `TEXTS`, and ``fields`` fill its
    placeholders.
    """

    description: str
    tasks: Mask
    changed: Graph | None = None
    idle: Mask | None = None
    what_if: str = ""
    details: str = ""
    min_gain: float = MIN_GAIN
    change: str = "change"
    fields: Mapping[str, object] = field(default_factory=dict)


class FinderInput:
    """The input of every finder: a profile, its graph and the replay of the graph."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile = steady(profile)
        self.trace = profile.trace
        self.graph = shared_graph(profile.trace, profile.layers)
        self.setting = WhatIfSetting(profile)

    @cached_property
    def baseline(self) -> Timeline:
        """The unchanged graph, simulated."""
        return simulate(self.graph)

    @property
    def step_us(self) -> float:
        """Time of an iteration of the unchanged graph in µs: the baseline of what-ifs."""
        return self.baseline.per_iteration_us

    @cached_property
    def sources(self) -> dict[str, str]:
        """Layer → the line of the program that called it, if stacks were recorded."""
        return sources_by_layer(self.profile)

    @property
    def steps(self) -> int:
        """Number of iterations in the graph."""
        return max(len(self.graph.iterations), 1)

    @cached_property
    def pieces(self) -> pd.DataFrame:
        """The pieces of the device's idle time."""
        return idle.idle_pieces(self.profile)

    @cached_property
    def on_files(self) -> Mask:
        """The pieces in which the host reads or writes files, by the open call of the system or the user's range."""
        pieces, in_files = self.pieces, self.trace.name_matches(self.trace.frames, _FILES.match)
        by_range = (pieces["cause"] == idle.RANGE) & pieces["name"].str.contains(_FILE_RANGE)
        by_call = linked(in_files, pieces["system_call"].to_numpy(), False)
        return self.has_cause(*_CODE) & (by_range.to_numpy(bool) | by_call)

    @cached_property
    def in_loader(self) -> Mask:
        """The pieces in which the host is in the DataLoader; calls that block it there included."""
        blocked = self.pieces["name"].str.contains(idle.LOADER_RANGE, regex=False)
        return ((self.pieces["cause"] == idle.LOADER) | blocked).to_numpy(bool)

    def idle_us(self, pieces: Mask) -> float:
        """Return the idle time of the pieces per iteration in µs."""
        return float(self.pieces["time_us"][pieces].sum()) / self.steps

    def idle_names(self, pieces: Mask, names: np.ndarray | None = None) -> str:
        """Return the three names with the most idle time, each with its time per step."""
        labels = self.pieces["name"][pieces] if names is None else names[pieces]
        sums_ms = self.pieces["time_us"][pieces].groupby(labels).sum() / self.steps / 1e3
        longest = sums_ms[sums_ms >= MIN_GAIN * sums_ms.sum()].nlargest(3)
        return ", ".join(f"{name} {format_number(time_ms)} ms" for name, time_ms in longest.items())

    def has_cause(self, *causes: int) -> Mask:
        """Return the pieces with one of the causes."""
        return self.pieces["cause"].isin(causes).to_numpy()

    def launched(self, activities: Ints) -> Mask:
        """Return the pieces after the launch of one of the activities."""
        return self.has_cause(idle.LAUNCHED) & self.pieces["following"].isin(activities).to_numpy()

    def in_calls(self, rows: Ints) -> Mask:
        """Return the pieces during the calls, and all pieces of gaps that begin while one of the calls blocks."""
        outer = np.append(outermost_calls(self.trace), -1)
        calls = self.pieces[["call", "blocked"]].to_numpy()
        return np.any(np.isin(outer[calls], outer[rows]) & (calls >= 0), axis=1)

    def during(self, pieces: Mask) -> Mask:
        """Return the host's tasks that run during the pieces."""
        start_us, end_us = (self.pieces[["start_ns", "end_ns"]].to_numpy().T - self.trace.span_ns[0]) / 1e3
        tasks = np.isin(self.graph.kind, (CALL, WORK))
        first = np.searchsorted(end_us[pieces], self.graph.measured_us + 1e-3, "right")
        starts_us = np.append(start_us[pieces], np.inf)
        return tasks & (starts_us[first] < self.graph.measured_us + self.graph.duration_us - 1e-3)

    @cached_property
    def api(self) -> str:
        """The prefix of the runtime's calls: cuda, or hip on ROCm."""
        return "hip" if self.trace.name_matches(self.trace.calls, lambda name: name.startswith("hip")).any() else "cuda"

    @cached_property
    def uses_torch(self) -> bool:
        """Whether names in the trace show PyTorch."""
        return any(map(_TORCH.search, self.trace.names))

    def change(self, name: str, key: str, fields: Mapping[str, object]) -> str:
        """Return the change to the program. A program without PyTorch gets a change of CUDA or HIP if there is one."""
        texts = TEXTS[name]
        keys = [key] if self.uses_torch else [f"plain_{self.api}", "plain", key]
        return next(texts[each] for each in keys if each in texts).format(api=self.api, API=self.api.upper(), **fields)

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
        on_host = np.array([layer_type(idle.VERSION.sub("", name)) for name in graph.names], object)
        places = {"on the device": (tasks & on_device, full), "on the host": (tasks & ~on_device, on_host)}
        for place, (part, labels) in places.items():
            if part.any():
                times = pd.Series(graph.duration_us[part]).groupby(graph.name[part]).sum()
                times = times.groupby(labels[times.index]).sum().nlargest(3)
                longest = [str(name) for name, time_us in times.items() if time_us and name != OUTSIDE_RANGES]
                names = ", ".join(longest if place == "on the host" else short_names(longest).values())
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
        Each finding gains at least `MIN_GAIN` of a step, or `MIN_HOST_GAIN` for the program's own code. Gains do not
        add up.

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
    finders = FINDERS if len(trace.activities) else ON_CPU
    recorded = NO_DEVICE.removeprefix("holds no ")
    lacks = dict.fromkeys((find for find in FINDERS if find not in finders), recorded)
    if len(trace.activities):
        lacks |= {} if profile.gpu else dict.fromkeys(NEED_GPU, "a GPU of the registry; name one with --gpu")
        if not (trace.ranges.shapes >= 0).any():
            shapes = "shapes of operators; record them with torch.profiler's record_shapes=True"
            lacks |= dict.fromkeys(NEED_SHAPES, shapes)
    titles = {find: TEXTS[find.__name__]["title"].format(arithmetic="fp32 or TF32") for find in lacks}
    texts = deduplicated((f"“{titles[find]}”", f"not looked for: the trace lacks {lacks[find]}") for find in lacks)
    if not len(trace.activities) and not len(trace.ranges):
        return [], f"{trace.source}: {NO_DEVICE}"
    case = FinderInput(profile)
    drafts = {find.__name__: draft for find in finders if (draft := find(case)) and draft.tasks.any()}
    findings = [finding for name, draft in drafts.items() if (finding := _simulated(case, name, draft))]
    return sorted(findings, key=lambda finding: -finding.gain_us), "; ".join(texts)


def straggler(compared: RanksSummary) -> Finding | None:
    """Return the rank that the others wait for, and whether it computes longer or idles longer.

    Return None if they wait less than `MIN_GAIN` of the time because of that. The rest of their wait comes from
    different start times in the traces.
    """
    rank = compared.straggler
    rows = {row["rank"]: row for row in compared.ranks}
    step_us = float(np.mean([row["time_us"] for row in compared.ranks]))
    if rank is None:
        return None
    # Compute and idle time in ms of the slow rank, and their medians over the other ranks.
    ms = {each: np.array([row["compute_us"], row["idle_us"]]) / 1e3 for each, row in rows.items()}
    slow_ms = ms.pop(rank)
    others = np.median(list(ms.values()), axis=0)
    computes = slow_ms[0] - others[0] >= slow_ms[1] - others[1]
    awaited_us = rows[rank]["awaited_us"]
    gain_us = min(awaited_us, 1e3 * float(slow_ms.sum() - others.sum()))
    if gain_us < MIN_GAIN * step_us:
        return None
    figures = ["{} ms and idles {}".format(*map(format_number, each)) for each in (slow_ms, others)]
    text = TEXTS["straggler"]
    return Finding(
        title=text["title"].format(rank=rank),
        evidence_us=gain_us,
        evidence=f"it computes {figures[0]}; the median of the others computes {figures[1]}. This explains"
        f" {format_number(gain_us / 1e3)} of the {format_number(awaited_us / 1e3)} ms that they wait on average;"
        " different start times explain the rest",
        change=text["computing" if computes else "idling"],
        where=f"rank {rank}",
        step_us=step_us,
        gain_us=gain_us,
        low_us=MIN_SAVED_SHARE * gain_us,
        high_us=gain_us,
        basis=TEXTS["half_to_all"],
    )


def format_findings(
    findings: Sequence[Finding], unchecked: str = "", step: str = "the mean iteration, from end to end"
) -> str:
    """Return the findings as text, one paragraph each.

    ``step`` defines a step, and ``unchecked`` names the causes that were not checked; both are part of the text.
    """
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


def _simulated(case: FinderInput, name: str, draft: Draft) -> Finding | None:
    """Return the draft with its simulated gain; None if the gain is too small or the what-if does not apply.

    The gain is at most the time of the cause. The interval is the what-if's own. Without one it reaches from half of
    the time saved on each task to the gain.
    """
    step_us = case.step_us
    idle_us = 0.0 if draft.idle is None else case.idle_us(draft.idle)
    cause_us = idle_us + case.time_us(draft.tasks & np.isin(case.graph.kind, DEVICE_KINDS))
    if cause_us < draft.min_gain * step_us:
        return None
    ends_us: list[float] = []
    basis = TEXTS["half_to_all"]
    if draft.what_if:
        try:
            (answer,) = evaluate(case.graph, [what_if(draft.what_if)], case.setting)
        except InputError:
            return None
        after = answer.predicted
        changed = after.graph
        if answer.low_us is not None and answer.high_us is not None:
            ends_us = [answer.low_us, answer.high_us]
            basis = f"what-if {draft.what_if}: {answer.evidence}"
    else:
        changed = draft.changed or case.graph
        # If only durations change, the gain is at most their sum. So most causes need no simulation.
        saved_us = float((case.graph.duration_us - changed.duration_us).sum()) / case.steps
        only_times = len(changed.src) == len(case.graph.src) and not changed.removed.any()
        if only_times and saved_us < draft.min_gain * step_us:
            return None
        after = simulate(changed)
    gain_us = min(step_us - after.per_iteration_us, cause_us)
    if gain_us < draft.min_gain * step_us:
        return None
    # The other end of the interval has half of the idle time, and half of the time saved on the device.
    limit_us = cause_us
    if not ends_us:
        limit_us -= MIN_SAVED_SHARE * idle_us
        left_us = np.where(changed.removed, 0.0, changed.duration_us)
        half_us = case.graph.duration_us + MIN_SAVED_SHARE * (left_us - case.graph.duration_us)
        ends_us = [simulate(replace(case.graph, duration_us=half_us)).per_iteration_us]
    saved = [min(step_us - end_us, limit_us) for end_us in ends_us]
    text = TEXTS[name]
    waiting = "device idles" if len(case.trace.activities) else "main thread spends"
    device_idles = f"; the {waiting} {format_number(idle_us / 1e3)} ms a step for this" if idle_us else ""
    evidence = case.evidence(draft.tasks, draft.description) + device_idles + draft.details
    return Finding(
        title=text["title"].format_map(draft.fields),
        evidence=evidence + _in_one_iteration(case.baseline, after),
        evidence_us=case.time_us(draft.tasks),
        change=case.change(name, draft.change, draft.fields),
        where=case.location(draft.tasks),
        step_us=step_us,
        gain_us=gain_us,
        low_us=max(min(*saved, gain_us - REPLAY_ERROR * step_us), 0.0),
        high_us=max(*saved, gain_us),
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
    tasks = select(case.graph, kind="kernel", name=_LAYOUT)
    return Draft("transposes", tasks, scale(case.graph, tasks, 0.0))


def products_in_fp32(case: FinderInput) -> Draft | None:
    """Find products outside matrix units on a GPU with TF32; the TF32 roofline gives their new time."""
    gpu, profile, graph = case.profile.gpu, case.profile, case.graph
    if gpu is None or not gpu.tf32_tflops:
        return None
    products = select(graph, kind="kernel", name=_PRODUCT) & ~_on_matrix_units(graph)
    fp32 = np.array([*(dtype == "fp32" for dtype in profile.dtype), False])
    tasks = products & fp32[np.where(products, graph.row, -1)]
    rows = graph.row[tasks]
    work = (profile.flops[rows], profile.dram_bytes[rows])
    slow, fast = (roofline_us(*work, peak_tflops(gpu, "fp32", tensor), gpu.dram_gbs) for tensor in (False, True))
    factor = np.nan_to_num(np.minimum(fast / slow, 1.0), nan=1.0)
    return Draft("kernels without matrix units", tasks, scale(graph, np.flatnonzero(tasks), factor))


def whole_step_in_fp32(case: FinderInput) -> Draft | None:
    """Find a step with mostly fp32 work (TF32 included), on a GPU with matrix units for 16 bits."""
    gpu, profile, graph = case.profile.gpu, case.profile, case.graph
    time_us = profile.trace.activities.time_us
    is_fp32 = np.array([dtype == "fp32" for dtype in profile.dtype])
    typed_us = time_us[np.array([dtype in ("fp32", "fp16", "bf16") for dtype in profile.dtype])].sum()
    share = time_us[is_fp32].sum() / (typed_us or 1.0)
    if gpu is None or not gpu.fp16_tensor_tflops or share < 0.5 or typed_us < 0.5 * time_us.sum():
        return None
    products_us = np.where(matrix_kernels(graph), graph.duration_us, 0.0)
    tf32 = products_us[_on_matrix_units(graph)].sum() / (products_us.sum() or 1.0)
    units = f"; {tf32:.0%} of the time of products and convolutions in TF32" if tf32 else ""
    return Draft(
        f"kernels ({share:.0%} of the time with a known type in fp32{units})",
        select(graph, kind="kernel"),
        what_if="amp",
        change="bf16" if gpu.bf16_tensor_tflops else "fp16",
        fields={"arithmetic": "TF32" if tf32 >= 0.5 else "fp32"},
    )


def _on_matrix_units(graph: Graph) -> Mask:
    """Return the tasks with a kernel name that shows matrix units."""
    return np.array([uses_tensor_cores(name) or "tf32" in name for name in graph.names])[graph.name]


def start_up(case: FinderInput) -> Draft | None:
    """Find first calls that start up the runtime or load modules, while the device is idle."""
    row = np.where((case.graph.kind == CALL) & (case.graph.iteration >= 0), case.graph.row, -1)
    tasks = linked(start_up_calls(case.trace), row, False)
    return Draft("first calls", tasks, scale(case.graph, tasks, 0.0), idle=case.has_cause(idle.START_UP))


def small_kernels(case: FinderInput) -> Draft | None:
    """Find kernels that the host launches one by one, more slowly than the device runs them.

    Only idle time in operators, in launches and in the latency of launches counts: a graph does not shorten the rest.
    """
    graph, pieces = case.graph, case.pieces
    kernels = select(graph, kind="kernel")
    launches = np.isin(call_kinds(case.graph, case.trace), (events.LAUNCH, events.MEMSET_CALL))
    if launches.sum() < _MANY * case.steps:
        return None
    kind = linked(case.trace.calls.kind, pieces["call"].to_numpy())
    is_call = case.has_cause(idle.CALL) & np.isin(kind, _CAPTURED)
    is_latency = (pieces["name"] == idle.LATENCY).to_numpy()
    return Draft(
        "launches and the work around them",
        WHAT_IF_RULES["cuda-graphs"](graph, case.setting).graph.removed & ~graph.removed,
        what_if="cuda-graphs",
        idle=case.has_cause(idle.OPERATOR) | is_call | is_latency,
        details=f"; for {format_number(kernels.sum() / case.steps)} kernels; the host's time includes the profiler's"
        " cost",
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
    described = f"the update by {name}"
    return Draft(described, tasks, idle=in_update, what_if="fused-optimizer", fields={"optimizer": name})


def data_loading(case: FinderInput) -> Draft | None:
    """Find time of the host in the DataLoader."""
    tasks = select(case.graph, kind=("host work", "call"), layer="DataLoader") | case.during(case.in_loader)
    change = "more_workers" if any("_MultiProcessingDataLoaderIter" in name for name in case.trace.names) else "change"
    return Draft("loading", tasks, scale(case.graph, tasks, 0.0), idle=case.in_loader, change=change)


def file_access(case: FinderInput) -> Draft | None:
    """Find time of the host in files: calls of the operating system, and the user's ranges named so."""
    pieces, trace, waits = case.pieces, case.trace, case.on_files
    tasks = case.during(waits) & (case.graph.iteration >= 0)
    calls = np.array([*trace.names, ""], object)[linked(trace.frames.name, pieces["system_call"].to_numpy())]
    places = case.idle_names(waits)
    inside = case.idle_names(waits & (calls != ""), calls) if (waits & (calls != "")).any() else ""
    details = f": {places}{f'; in it {inside}' if inside and inside != places else ''}"
    return Draft("work around files", tasks, scale(case.graph, tasks, 0.0), idle=waits, details=details)


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
    return Draft(
        "work outside of operators",
        tasks,
        scale(graph, tasks, 0.0),
        idle=pieces,
        min_gain=MIN_HOST_GAIN,
        details=f": {case.idle_names(pieces)}; the longest piece of work, {format_number(longest_us / 1e3)} ms, is next"
        f" to {' and '.join(dict.fromkeys(neighbours)) or 'no operator'}",
        change="once" if longest_us > 0.5 * case.time_us(tasks) else "often",
    )


def device_awaited(case: FinderInput) -> Draft | None:
    """Find calls that wait for the device, such as reads of a value, before other launches of the same iteration."""
    graph, trace = case.graph, case.trace
    numbers = np.arange(len(graph))
    launches = np.isin(call_kinds(case.graph, case.trace), (events.LAUNCH, events.GRAPH_LAUNCH))
    last = np.full(case.steps + 1, -1)
    np.maximum.at(last, graph.iteration[launches], numbers[launches])
    # Copies to the device from pageable memory make the host wait, too, but `unpinned_copies` reports those.
    awaited = np.isin(numbers, graph.dst[graph.edge_kind == SYNC]) & (graph.kind == CALL) & (graph.row >= 0)
    copying = np.isin(graph.row, trace.activities.call[trace.activities.copy_kind == events.TO_DEVICE])
    tasks = awaited & ~copying & (numbers < last[graph.iteration])
    ranges = trace.calls.range[graph.row[tasks]].tolist()
    names = {layer_type(trace.name_of(trace.ranges, row)) if row >= 0 else "calls outside operators" for row in ranges}
    # Time in which the host loads data or accesses files has its own findings.
    pieces = case.in_calls(graph.row[tasks]) & ~case.in_loader & ~case.on_files
    return Draft(f"calls in {', '.join(sorted(names)[:4])}", tasks, _unawaited(graph, tasks), idle=pieces)


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
    pieces = case.in_calls(graph.row[calls]) & ~case.in_loader & ~case.on_files
    pieces |= case.launched(rows)
    return Draft("copies", tasks | calls, _unawaited(faster, calls), idle=pieces, details=details)


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
        "products with unaligned rows",
        tasks,
        scale(case.graph, np.flatnonzero(tasks), np.where(is_predicted, ratio, 1.0)),
        change="one_size" if largest else "all_sizes",
        fields={"largest": largest, "padded": -(-largest // 8) * 8},
    )


def exposed_communication(case: FinderInput) -> Draft | None:
    """Find collectives, for which the step waits."""
    tasks = case.graph.kind == COLLECTIVE
    return Draft("collectives", tasks, scale(case.graph, tasks, 0.0))


def allocator_stalls(case: FinderInput) -> Draft | None:
    """Find the driver's allocations and frees after the first iteration, in which the allocator's cache still fills."""
    tasks = (call_kinds(case.graph, case.trace) == events.MEMORY_CALL) & (case.graph.iteration > 0)
    faster = scale(_unawaited(case.graph, tasks), tasks, 0.0)
    return Draft("calls of the driver", tasks, faster, idle=case.in_calls(case.graph.row[tasks]))


FINDERS: Sequence[Callable[[FinderInput], Draft | None]] = (
    *(layout_transposes, products_in_fp32, whole_step_in_fp32, start_up, small_kernels, unfused_optimizer),
    *(data_loading, file_access, host_outside_layers, device_awaited, unpinned_copies, unaligned_rows),
    *(exposed_communication, allocator_stalls),
)
ON_CPU = (data_loading,)
"""Finders for a trace without work of a device."""
NEED_SHAPES = (products_in_fp32, whole_step_in_fp32, unfused_optimizer)
"""Finders that need shapes of operators."""
NEED_GPU = (*NEED_SHAPES, unpinned_copies, unaligned_rows)
"""Finders that need the GPU's peaks."""


def _unawaited(graph: Graph, calls: Mask) -> Graph:
    """Return the graph in which the calls do not wait for the device."""
    kept = ~((graph.edge_kind == SYNC) & calls[graph.dst])
    return replace(graph, **{name: getattr(graph, name)[kept] for name in EDGE_COLUMNS})
