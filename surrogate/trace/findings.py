"""What to change in the program that was traced: findings with their evidence, their gain, and a line of code.

A finding is a function in `FINDERS`: it looks for one cause in the trace and gives a `Draft`, whose what-if is then
simulated as any other. What gains less than `MIN_GAIN` of a step is no finding. Its title and the change to the
program are those of its name in `findings.toml`.
"""

import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.kernels import uses_tensor_cores
from surrogate.features.roofline import peak_tflops, roofline_us
from surrogate.trace import events
from surrogate.trace.graph import Graph, Timeline, graph_of, simulate
from surrogate.trace.graph.build import OUTSIDE_RANGES
from surrogate.trace.graph.tasks import CALL, COLLECTIVE, DEVICE_KINDS, EDGE_COLUMNS, SYNC, Mask
from surrogate.trace.iteration.ranks import RanksSummary
from surrogate.trace.iteration.times import MODEL, UNALIGNED, predicted_times
from surrogate.trace.profiling import NO_DEVICE, Profile, TraceSource, invalid_reason, steady
from surrogate.trace.profiling import profile as profiled
from surrogate.trace.result import Row, deduplicated, short_names
from surrogate.trace.tables import sources_by_layer
from surrogate.trace.whatif import MODELS, WhatIfSetting, evaluate, scale, select, what_if
from surrogate.trace.whatif.answers import REPLAY_ERROR
from surrogate.trace.whatif.hardware import call_kinds, matrix_kernels
from surrogate.trace.whatif.training import FUSED_BYTES, optimizer_of, update_tasks

MIN_GAIN = 0.01
"""Of a step's time: what a finding must gain."""
MIN_HOST_GAIN = 0.05
"""That of the program's own code: each eager program has some between its operators."""
MIN_SAVED_SHARE = 0.5
"""The least of a cause's time that its remedy is taken to save; nobody has published times before and after."""
HALF_TO_ALL = (
    "from what the step gains if half of that time goes and the host waits as it did, to the gain:"
    " an assumption, as nobody has published times before and after"
)
RANKS_STEP = "what a rank's device takes from the first task of its trace to the last, on average over the ranks"
"""… where several ranks are compared (`straggler`)."""
_LAYOUT = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|batched_transpose"
_PRODUCT = r"(?i)^(?!.*(?:fprop|wgrad|dgrad|conv)).*gemm"
_MANY = 10
"""Launches of an optimizer's step, from which on it is not a fused one."""
TEXTS = tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))
"""Finder → the title of its finding, and the changes to the program by name."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause of lost time: ``evidence`` of it in the trace, the ``change`` to the program as a line of code.

    Times in µs per step: ``evidence_us`` is what suffers, on the device and on the host; ``gain_us`` is what a
    simulation without the cause saves of ``step_us``, as the what-if of it does; ``low_us`` and ``high_us`` are its
    interval, which ``basis`` explains. ``where``: lines of the program or layers, "" where unknown.
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
        """The gain as a share of the step."""
        return 100 * self.gain_us / self.step_us if self.step_us else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"gain_pct": self.gain_pct}

    def row(self) -> Row:
        """What people read of it in a table."""
        low_pct, high_pct = (100 * end_us / (self.step_us or 1) for end_us in (self.low_us, self.high_us))
        gain = {"finding": self.title, "gain_ms": self.gain_us / 1e3, "gain_pct": self.gain_pct}
        interval = f"{low_pct:.2g} to {high_pct:.2g} %"
        return gain | {"interval": interval, "evidence": self.evidence, "change": self.change, "where": self.where}


@dataclass(frozen=True, slots=True)
class Draft:
    """A cause, and the graph without it, ``changed``, or a what-if's name. ``tasks`` are those that suffer, ``what`` in
    words, with ``more`` of the evidence; they tell where in the program that is. None, or less than ``min_gain`` of a
    step, is no finding. ``change`` names the text of the change, which ``words`` fill."""

    what: str
    tasks: Mask
    changed: Graph | None = None
    what_if: str = ""
    more: str = ""
    min_gain: float = MIN_GAIN
    change: str = "change"
    words: Mapping[str, object] = field(default_factory=dict)


class Case:
    """What finders look at: a profile, its graph and the replay of it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile = steady(profile)
        self.trace = profile.trace
        self.graph = graph_of(profile.trace, profile.layers)
        self.setting = WhatIfSetting(profile)

    @cached_property
    def baseline(self) -> Timeline:
        """The unchanged graph, simulated."""
        return simulate(self.graph)

    @property
    def step_us(self) -> float:
        """The time of an iteration of the unchanged graph: a what-if's baseline."""
        return self.baseline.per_iteration_us

    @cached_property
    def sources(self) -> dict[str, str]:
        """Layer → the line of the program that called it, where stacks were recorded."""
        return sources_by_layer(self.profile)

    @property
    def steps(self) -> int:
        """How many iterations the graph holds."""
        return max(len(self.graph.iterations), 1)

    def time_us(self, tasks: Mask) -> float:
        """Time of the tasks in one iteration; of calls as measured, with what they wait."""
        called = tasks & (self.graph.kind == CALL) & (self.graph.row >= 0)
        calls_us = self.trace.calls.time_us[np.unique(self.graph.row[called])].sum()
        return float(self.graph.duration_us[tasks & ~called].sum() + calls_us) / self.steps

    def evidence(self, tasks: Mask, what: str) -> str:
        """The evidence: the tasks' time on the device and on the host, their number, the names that take the most."""
        graph = self.graph
        on_device = np.isin(graph.kind, DEVICE_KINDS)
        texts = []
        for where, part in (("on the device", tasks & on_device), ("on the host", tasks & ~on_device)):
            if part.any():
                named = np.bincount(graph.name[part], graph.duration_us[part], len(graph.names))
                maximum = [graph.names[i] for i in named.argsort()[::-1][:3] if named[i]]
                names = ", ".join(short for name, short in short_names(maximum).items() if name != OUTSIDE_RANGES)
                time = f"{self.time_us(part) / 1e3:,.4g} ms {where} (×{int(part.sum()) / self.steps:,.4g})"
                texts.append(f"{time}{names and f': {names}'}")
        return f"{what}, per step {'; '.join(texts)}"

    def where(self, tasks: Mask) -> str:
        """The lines of the program that launched most of the tasks' time, or else the layers."""
        graph = self.graph
        inside = tasks & (graph.layer >= 0)
        times = np.bincount(graph.layer[inside], graph.duration_us[inside], len(graph.layers))
        maximum: list[str] = [graph.layers[i] for i in times.argsort()[::-1] if times[i]]
        return ", ".join(list(dict.fromkeys(str(self.sources.get(name, name)) for name in maximum))[:3])


def advice(given: TraceSource) -> list[Finding]:
    """What the trace supports of `FINDERS`, the largest gain first; a warning says what it lacks for others."""
    findings, why = find_all(profiled(given))
    if why:
        warnings.warn(why, stacklevel=2)
    return findings


def find_all(profile: Profile) -> tuple[list[Finding], str]:
    """The findings, and what was not looked for and why, "" where everything was."""
    trace = profile.trace
    if why := invalid_reason(trace) if len(trace.activities) else f"{trace.source}: {NO_DEVICE}":
        return [], why
    lacks = {} if profile.gpu else dict.fromkeys(OF_GPU, "a GPU of the registry; --gpu names one")
    if not (trace.ranges.shapes >= 0).any():
        lacks |= dict.fromkeys(OF_SHAPES, "shapes of operators; torch.profiler's record_shapes=True has them")
    titles = {find: TEXTS[find.__name__]["title"].format(arithmetic="fp32 or TF32") for find in lacks}
    texts = deduplicated((f"“{titles[find]}”", f"not looked for, as the trace lacks {lacks[find]}") for find in lacks)
    why = "; ".join(texts)
    case = Case(profile)
    drafts = {find.__name__: draft for find in FINDERS if (draft := find(case)) and draft.tasks.any()}
    findings = [finding for name, draft in drafts.items() if (finding := _simulated(case, name, draft))]
    return sorted(findings, key=lambda finding: -finding.gain_us), why


def straggler(compared: RanksSummary) -> Finding | None:
    """The rank that the others wait for, and whether it computes longer or idles longer; None where they wait less
    than `MIN_GAIN` of the time for that. What they wait beyond it comes of starts that lie apart in the traces."""
    rank = compared.straggler
    rows = {row["rank"]: row for row in compared.ranks}
    step_us = float(np.mean([row["time_us"] for row in compared.ranks]))
    if rank is None:
        return None
    # Compute and idle time, ms: of the rank, and of the others in the median.
    ms = {each: np.array([row["compute_us"], row["idle_us"]]) / 1e3 for each, row in rows.items()}
    own = ms.pop(rank)
    others = np.median(list(ms.values()), axis=0)
    computes = own[0] - others[0] >= own[1] - others[1]
    awaited_us = rows[rank]["awaited_us"]
    gain_us = min(awaited_us, 1e3 * float(own.sum() - others.sum()))
    if gain_us < MIN_GAIN * step_us:
        return None
    figures = ["{:,.4g} ms and idles {:,.4g}".format(*each) for each in (own, others)]
    text = TEXTS["straggler"]
    return Finding(
        title=text["title"].format(rank=rank),
        evidence_us=gain_us,
        evidence=f"it computes {figures[0]}, of the others the median {figures[1]}: {gain_us / 1e3:,.4g} ms of the"
        f" {awaited_us / 1e3:,.4g} that they wait on average; the rest is of starts that lie apart",
        change=text["computing" if computes else "idling"],
        where=f"rank {rank}",
        step_us=step_us,
        gain_us=gain_us,
        low_us=MIN_SAVED_SHARE * gain_us,
        high_us=gain_us,
        basis=HALF_TO_ALL,
    )


def format_findings(
    findings: Sequence[Finding], why: str = "", step: str = "the mean iteration, from end to end"
) -> str:
    """The findings as people read them, a paragraph each, what a ``step`` is, and what was not looked for."""
    if not findings:
        return f"Findings: none that the trace supports and that gains {MIN_GAIN:.0%} of a step\n{why}".strip()
    lines = [f"Findings, the largest gain first; gains do not add up; a step is {step}"]
    for number, finding in enumerate(findings, start=1):
        row = finding.row()
        gain = f"{finding.gain_us / 1e3:,.3g} of {finding.step_us / 1e3:,.4g} ms a step"
        lines += [f"{number}. {finding.title}: {gain}, {finding.gain_pct:.2g} % ({row['interval']})"]
        where = f"in {finding.where}" if finding.where else ""
        lines += [f"   {text}" for text in (finding.evidence, where, f"change: {finding.change}") if text]
    bases = deduplicated((str(number), finding.basis) for number, finding in enumerate(findings, start=1))
    return "\n".join(filter(None, [*lines, *(f"Interval of {basis}" for basis in bases), why]))


def _simulated(case: Case, name: str, draft: Draft) -> Finding | None:
    """The draft with its gain; None where that is too small, or the what-if does not apply.

    The interval is the what-if's own, or reaches from half of the time saved on each task to the gain.
    """
    step_us = case.step_us
    ends_us: list[float] = []
    basis = HALF_TO_ALL
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
        # Where only times change, no more is gained than they lose: most causes need no simulation.
        saved_us = float((case.graph.duration_us - changed.duration_us).sum()) / case.steps
        only_times = len(changed.src) == len(case.graph.src) and not changed.removed.any()
        if only_times and saved_us < draft.min_gain * step_us:
            return None
        after = simulate(changed)
    gain_us = step_us - after.per_iteration_us
    if gain_us < draft.min_gain * step_us:
        return None
    if not ends_us:
        left_us = np.where(changed.removed, 0.0, changed.duration_us)
        half = replace(
            case.graph, duration_us=case.graph.duration_us + MIN_SAVED_SHARE * (left_us - case.graph.duration_us)
        )
        ends_us = [simulate(half).per_iteration_us]
    saved = [step_us - end_us for end_us in ends_us]
    text = TEXTS[name]
    return Finding(
        title=text["title"].format_map(draft.words),
        evidence=case.evidence(draft.tasks, draft.what) + draft.more + _in_one_iteration(case.baseline, after),
        evidence_us=case.time_us(draft.tasks),
        change=text[draft.change].format_map(draft.words),
        where=case.where(draft.tasks),
        step_us=step_us,
        gain_us=gain_us,
        low_us=max(min(*saved, gain_us - REPLAY_ERROR * step_us), 0.0),
        high_us=max(*saved, gain_us),
        basis=basis,
    )


def _in_one_iteration(before: Timeline, after: Timeline) -> str:
    """What to say of a gain most of which is in one of several iterations, as of a stall; "" of any other."""
    gains_us = np.maximum(np.subtract(before.iteration_us(), after.iteration_us()), 0.0)
    if len(gains_us) < 3 or gains_us.max() <= 0.5 * gains_us.sum():
        return ""
    label = before.graph.iterations[int(gains_us.argmax())].label
    return f"; {gains_us.max() / gains_us.sum():.0%} of the gain is in {label} alone, of {len(gains_us)}"


def layout_transposes(case: Case) -> Draft | None:
    tasks = select(case.graph, kind="kernel", name=_LAYOUT)
    return Draft("transposes", tasks, scale(case.graph, tasks, 0.0))


def products_in_fp32(case: Case) -> Draft | None:
    """Products on the plain units of a GPU with TF32, to what its roofline in TF32 makes of them."""
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


def whole_step_in_fp32(case: Case) -> Draft | None:
    """A step most of whose known work is of fp32, in TF32 or not, on a GPU with matrix units for 16 bits."""
    gpu, profile, graph = case.profile.gpu, case.profile, case.graph
    time_us = profile.trace.activities.time_us
    is_fp32, is_known = (
        np.array([each in of for each in profile.dtype]) for of in (("fp32",), ("fp32", "fp16", "bf16"))
    )
    share = time_us[is_fp32].sum() / (time_us[is_known].sum() or 1.0)
    if gpu is None or not gpu.fp16_tensor_tflops or share < 0.5 or time_us[is_known].sum() < 0.5 * time_us.sum():
        return None
    products_us = np.where(matrix_kernels(graph), graph.duration_us, 0.0)
    tf32 = products_us[_on_matrix_units(graph)].sum() / (products_us.sum() or 1.0)
    arithmetic = "TF32" if tf32 >= 0.5 else "fp32"
    units = f"; {tf32:.0%} of the time of products and convolutions in TF32" if tf32 else ""
    return Draft(
        f"kernels (of fp32: {share:.0%} of the time of those whose type is known{units})",
        select(graph, kind="kernel"),
        what_if="amp",
        change="bf16" if gpu.bf16_tensor_tflops else "fp16",
        words={"arithmetic": arithmetic},
    )


def _on_matrix_units(graph: Graph) -> Mask:
    """The tasks whose kernels' names tell of matrix units."""
    return np.array([uses_tensor_cores(name) or "tf32" in name for name in graph.names])[graph.name]


def small_kernels(case: Case) -> Draft | None:
    """The host launches kernels one by one, and not as fast as the device runs them."""
    graph = case.graph
    kernels = select(graph, kind="kernel")
    launches = np.isin(call_kinds(case.graph, case.trace), (events.LAUNCH, events.MEMSET_CALL))
    if launches.sum() < _MANY * case.steps:
        return None
    saved = MODELS["cuda-graphs"](graph, case.setting).graph.removed & ~graph.removed
    is_torch = any(name.startswith("aten::") for name in graph.names)
    return Draft(
        "launches and the work around them",
        saved,
        what_if="cuda-graphs",
        change="torch" if is_torch else "cuda",
        more=f"; for {kernels.sum() / case.steps:,.4g} kernels; the host's time has the profiler's cost in it",
    )


def unfused_optimizer(case: Case) -> Draft | None:
    tasks = update_tasks(case.graph)
    kernels = tasks & np.isin(case.graph.kind, DEVICE_KINDS)
    name = optimizer_of(case.graph)
    fused = select(case.graph, name="(?i)fused")
    if name not in FUSED_BYTES or kernels.sum() < _MANY * case.steps or (kernels & fused).any():
        return None
    return Draft(f"the update by {name}", tasks, what_if="fused-optimizer", words={"optimizer": name})


def data_loading(case: Case) -> Draft | None:
    tasks = select(case.graph, kind=("host work", "call"), layer="DataLoader")
    has_workers = select(case.graph, layer="MultiProcessingDataLoaderIter").any()
    change = "more" if has_workers else "change"
    return Draft("loading", tasks, scale(case.graph, tasks, 0.0), change=change)


def host_outside_layers(case: Case) -> Draft | None:
    """The program's own code between operators, as far as the device waits for it."""
    graph = case.graph
    tasks = select(graph, kind="host work") & (graph.layer < 0) & (graph.iteration >= 0)
    if not tasks.any():
        return None
    longest = int(np.where(tasks, graph.duration_us, 0.0).argmax())
    beside = np.flatnonzero((graph.resource == graph.resource[longest]) & (graph.layer >= 0))
    at = int(np.searchsorted(beside, longest))
    ends = [graph.layers[graph.layer[row]] for row in beside[max(at - 1, 0) : at + 1].tolist()]
    longest_us = float(graph.duration_us[longest])
    once = longest_us > 0.5 * case.time_us(tasks)
    beside_it = " and ".join(dict.fromkeys(ends)) or "no operator"
    return Draft(
        "work outside of operators",
        tasks,
        scale(graph, tasks, 0.0),
        min_gain=MIN_HOST_GAIN,
        more=f"; the longest, {longest_us / 1e3:,.4g} ms, is beside {beside_it}",
        change="once" if once else "often",
    )


def device_awaited(case: Case) -> Draft | None:
    """Calls that wait for the device, as those that read a value of it, with work behind them in the same iteration."""
    graph, trace = case.graph, case.trace
    numbers = np.arange(len(graph))
    launches = np.isin(call_kinds(case.graph, case.trace), (events.LAUNCH, events.GRAPH_LAUNCH))
    last = np.full(case.steps + 1, -1)
    np.maximum.at(last, graph.iteration[launches], numbers[launches])
    # Copies to the device from pageable memory make the host wait, too; another finding has those.
    awaited = np.isin(numbers, graph.dst[graph.edge_kind == SYNC]) & (graph.kind == CALL) & (graph.row >= 0)
    copying = np.isin(graph.row, trace.activities.call[trace.activities.copy_kind == events.TO_DEVICE])
    tasks = awaited & ~copying & (numbers < last[graph.iteration])
    ranges = trace.calls.range[graph.row[tasks]].tolist()
    names = {trace.name_of(trace.ranges, row) if row >= 0 else "calls outside operators" for row in ranges}
    return Draft(f"calls in {', '.join(sorted(names)[:4])}", tasks, _unawaited(graph, tasks))


def unpinned_copies(case: Case) -> Draft | None:
    """Copies from pageable memory: slower than the link, and the host waits for them."""
    graph, trace, gpu = case.graph, case.trace, case.profile.gpu
    tasks = select(graph, kind="copy", name=r"(?i)pageable -> device")
    if gpu is None or not gpu.pcie_gbs or not tasks.any():
        return None
    rows = graph.row[tasks]
    pinned_us = np.maximum(trace.activities.bytes[rows], 0) / (gpu.pcie_gbs * 1e3)
    factor = np.minimum(pinned_us / np.maximum(graph.duration_us[tasks], 1e-3), 1.0)
    calls = (graph.kind == CALL) & np.isin(graph.row, trace.activities.call[rows])
    moved = trace.activities.bytes[rows].sum() / max(graph.duration_us[tasks].sum(), 1e-3) / 1e3
    faster = scale(graph, np.flatnonzero(tasks), factor)
    more = f"; at {moved:.3g} of the link's {gpu.pcie_gbs:g} GB/s"
    return Draft("copies", tasks | calls, _unawaited(faster, calls), more=more)


def unaligned_rows(case: Case) -> Draft | None:
    """Products on kernels for rows that do not begin at 16 bytes, beside measured ones of aligned rows."""
    tasks = select(case.graph, kind="kernel", name=UNALIGNED.pattern)
    if not tasks.any() or case.profile.gpu is None:
        return None
    times = predicted_times(case.trace, case.setting.predictors(case.profile.gpu))
    rows = case.graph.row[tasks]
    known = np.array([times.source[row] == MODEL for row in rows.tolist()])
    ratio = np.minimum(times.time_us[rows] / np.maximum(case.graph.duration_us[tasks], 1e-3), 1.0)
    shapes = [case.trace.shapes_of(row) for row in case.trace.activities.range[rows].tolist() if row >= 0]
    sizes = {size for shape in shapes for each in shape or () for size in np.ravel(each).tolist() if size % 8}
    largest = int(max(sizes, default=0))
    return Draft(
        "products of rows without alignment",
        tasks,
        scale(case.graph, np.flatnonzero(tasks), np.where(known, ratio, 1.0)),
        change="known" if largest else "unknown",
        words={"largest": largest, "padded": -(-largest // 8) * 8},
    )


def exposed_communication(case: Case) -> Draft | None:
    tasks = case.graph.kind == COLLECTIVE
    return Draft("collectives", tasks, scale(case.graph, tasks, 0.0))


def allocator_stalls(case: Case) -> Draft | None:
    """Allocations and frees of the driver behind the first iteration, in which a cache still fills."""
    tasks = (call_kinds(case.graph, case.trace) == events.MEMORY_CALL) & (case.graph.iteration > 0)
    return Draft("calls of the driver", tasks, scale(_unawaited(case.graph, tasks), tasks, 0.0))


FINDERS: Sequence[Callable[[Case], Draft | None]] = (
    *(layout_transposes, products_in_fp32, whole_step_in_fp32, small_kernels, unfused_optimizer, data_loading),
    *(host_outside_layers, device_awaited, unpinned_copies, unaligned_rows, exposed_communication, allocator_stalls),
)
OF_SHAPES = (products_in_fp32, whole_step_in_fp32, unfused_optimizer)
OF_GPU = (*OF_SHAPES, unpinned_copies, unaligned_rows)
"""Finders that need shapes of operators, and those that need the GPU's peaks."""


def _unawaited(graph: Graph, calls: Mask) -> Graph:
    """The graph where the calls wait for nothing on the device."""
    kept = ~((graph.edge_kind == SYNC) & calls[graph.dst])
    return replace(graph, **{name: getattr(graph, name)[kept] for name in EDGE_COLUMNS})
