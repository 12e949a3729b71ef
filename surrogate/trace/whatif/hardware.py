"""What-ifs on one GPU: mixed precision, fewer launches, faster or different hardware, batch size, algorithms."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.families import NetworkProblem, family_of
from surrogate.features.gpu import Gpu
from surrogate.features.kernels import identify_call, kernel_family, uses_tensor_cores
from surrogate.features.roofline import peak_tflops, roofline_us
from surrogate.network.aten_call import UnsupportedError
from surrogate.network.memory import usable_bytes
from surrogate.prediction.results import FALLBACK_SOURCES
from surrogate.report.tables import format_number
from surrogate.trace import events
from surrogate.trace.calls import CallReader, batch_size, kernels_by_owner
from surrogate.trace.events.parts import OTHER
from surrogate.trace.events.tables import Floats, Ints, Trace, linked
from surrogate.trace.graph.tasks import CALL, COLLECTIVE, DEVICE_KINDS, WORK, Graph, Mask
from surrogate.trace.iteration.times import RATES, DeviceTimes, pageable_copies, predicted_times
from surrogate.trace.profiling import PREPARING, Profile
from surrogate.trace.whatif.primitives import launches_of, on_weights, remove, scale, select
from surrogate.trace.whatif.setting import EVIDENCE, Change, WhatIfSetting, WhatIfValue, refusal, rule, sentence

if TYPE_CHECKING:
    from surrogate.prediction.predictor import Predictor

MATRIX_SPEEDUP = 3.0
OTHER_SPEEDUP = 2.0
"""Speedup in half precision of a matrix-product kernel, and of any other kernel (Daydream, 5.1)."""
MAX_BATCHES = 64.0
"""Maximum batch that `batch` answers, over the traced batch: a larger one runs other kernels than the trace shows."""
_MATRIX_NAME = r"gemm|conv|wgrad|dgrad|fprop|winograd"
_PRODUCT = r"(?i)^(?!.*(?:fprop|wgrad|dgrad|conv)).*gemm"
_OTHER_TYPE = re.compile(r"(?i)double|half|(?:b|fp?|float)(?:16|64)|[hdcz]gemm|[hd]884|<(?:long|int|bool)>")
_FP32 = re.compile(r"(?i)float|fp?32|sgemm|scudnn")
"""dtypes in kernel names. The first pattern decides, because many half-precision kernels accumulate in ``float``."""
_AUXILIARY = {*PREPARING, "winograd_transform", "im2col"}


@rule("amp", evidence=EVIDENCE["amp"])
def amp(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Mixed precision: sgemm and wgrad take 1/3 of their time, or less by TF32's peaks; other fp32 and TF32 take 1/2.

    The factors are Daydream's. Products outside matrix units are at least as fast as by the peaks of TF32, if the GPU
    has it, because 16 bits are no slower. The upper end of the interval has Daydream's factors, and one cast per
    changed kernel, which doubles the time of the kernel's launch. Kernels in half or double precision do not change,
    and neither does work on weights, gradients and optimizer states, which autocast keeps in fp32. Raises `InputError`
    if no kernel is known to be fp32, or if the GPU computes no faster in half precision than in fp32.
    """
    gpu = setting.profile.gpu
    if gpu and not has_fast_half(gpu):
        raise refusal("slow_half", gpu=gpu.name)
    on_tensor_cores = np.array([uses_tensor_cores(name) for name in graph.names])[graph.name]
    matrix = select(graph, kind="kernel", name="sgemm|wgrad") & ~on_tensor_cores
    changed = _fp32_kernels(graph, setting)
    factor = np.where(matrix, 1 / MATRIX_SPEEDUP, 1 / OTHER_SPEEDUP)
    faster = scale(graph, changed, factor)
    high = scale(faster, launches_of(graph, changed), 2.0)
    assumes = sentence("amp", matrix=MATRIX_SPEEDUP, other=OTHER_SPEEDUP)
    if gpu and gpu.tf32_tflops:
        products, tf32 = tf32_factors(graph, setting.profile)
        if (tf32 < factor[products]).any():
            factor[products] = np.minimum(factor[products], tf32)
            faster = scale(graph, changed, factor)
            assumes += "; products outside tensor cores at least as fast as by the peaks of TF32"
    return Change(faster, None, high, assumes=assumes)


def has_fast_half(gpu: Gpu) -> bool:
    """Return whether the GPU computes faster in half precision than in fp32, by its datasheet's peaks."""
    return max(gpu.fp16_tensor_tflops, gpu.fp16_tflops) > gpu.fp32_tflops


def on_matrix_units(graph: Graph) -> Mask:
    """Return the tasks with a kernel name that shows matrix units."""
    return np.array([uses_tensor_cores(name) or "tf32" in name for name in graph.names])[graph.name]


def tf32_factors(graph: Graph, profile: Profile) -> tuple[Mask, Floats]:
    """Return the fp32 products outside matrix units, and the ratio of each one's roofline in TF32 to its own."""
    assert profile.gpu is not None
    products = select(graph, kind="kernel", name=_PRODUCT) & ~on_matrix_units(graph)
    fp32 = np.array([*(dtype == "fp32" for dtype in profile.dtype), False])
    tasks = products & fp32[np.where(products, graph.row, -1)]
    rows = graph.row[tasks]
    work = (profile.flops[rows], profile.dram_bytes[rows])
    peaks = (peak_tflops(profile.gpu, "fp32", tensor) for tensor in (False, True))
    slow, fast = (roofline_us(*work, peak, profile.gpu.dram_gbs) for peak in peaks)
    return tasks, np.nan_to_num(np.minimum(fast / slow, 1.0), nan=1.0)


def _fp32_kernels(graph: Graph, setting: WhatIfSetting) -> Mask:
    """Return the kernels of fp32 data, by their operator's dtype or by their name, without work on weights.

    Kernels of unknown dtype count as fp32 if fp32 kernels take at least half of the time with a known dtype. Raises
    `InputError` if no kernel is known to be fp32.
    """
    kernels = select(graph, kind="kernel") & ~on_weights(graph)
    dtype = kernel_dtypes(graph, setting.profile)
    is_fp32 = kernels & (dtype == "fp32")
    if not is_fp32.any():
        raise InputError("no kernel outside the optimizer is known to be fp32 in this trace, so nothing changes")
    typed_us = graph.duration_us[kernels & (dtype != "")].sum()
    is_mostly_fp32 = graph.duration_us[is_fp32].sum() >= typed_us / 2
    return is_fp32 | (kernels & (dtype == "") & is_mostly_fp32)


def kernel_dtypes(graph: Graph, profile: Profile) -> np.ndarray:
    """Return the data type of each task by its operator's shapes, else ``fp32`` or ``other`` by its name, else ""."""
    recorded = np.array([*profile.dtype, ""])[np.where(np.isin(graph.kind, DEVICE_KINDS), graph.row, -1)]
    by_name = ["other" if _OTHER_TYPE.search(name) else "fp32" * bool(_FP32.search(name)) for name in graph.names]
    return np.where(recorded == "", np.array(by_name)[graph.name], recorded)


def matrix_kernels(graph: Graph) -> Mask:
    """Return the kernels of matrix products and convolutions, without their layout, offset and transform kernels."""
    auxiliary = np.array([kernel_family(name) in _AUXILIARY for name in graph.names])
    return select(graph, kind="kernel", name=_MATRIX_NAME) & ~auxiliary[graph.name]


@rule("cuda-graphs", evidence=EVIDENCE["none"])
def cuda_graphs(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """One graph launch per iteration: other launches, and the host's work inside operators, take no time.

    The host's work outside operators (data loading, the program's own code, also inside its own ranges), copies and
    synchronisation do not change.
    """
    call_kind = call_kinds(graph, setting.profile.trace)
    launch = np.isin(call_kind, (events.LAUNCH, events.MEMSET_CALL))
    if not launch.any():
        raise InputError("cuda-graphs: the trace has no kernel launch, so there is nothing to capture; record launches")
    # The first launch of an iteration becomes the graph's launch. The graph also captures host work and other calls.
    other_call = np.isin(call_kind, (events.OTHER_CALL, events.RECORD_CALL, events.MEMORY_CALL))
    captured = linked(_operator_layers(setting), graph.layer, False) & ~select(graph, layer=r"DataLoader")
    captured &= ~graph.removed
    first = np.zeros(len(graph), np.bool_)
    for iteration in np.unique(graph.iteration[launch]).tolist():
        first[np.flatnonzero(launch & (graph.iteration == iteration))[0]] = True
    return Change(remove(graph, (launch & ~first) | (captured & ((graph.kind == WORK) | other_call))))


def _operator_layers(setting: WhatIfSetting) -> Mask:
    """Return which layers are operators, modules or the profiler's own ranges, instead of ranges of the program."""
    layers, ranges = setting.profile.layers, setting.profile.trace.ranges
    row = np.where(layers.from_frame == 1, -1, layers.row)
    return (row < 0) | (linked(ranges.kind, row) == events.OPERATOR) | (linked(layers.phase_of_range, row) == OTHER)


def call_kinds(graph: Graph, trace: Trace) -> Ints:
    """Return the kind of runtime call of each task, -1 for a task that is no call."""
    return linked(trace.calls.kind, np.where(graph.kind == CALL, graph.row, -1))


DEFAULT_SPEEDUP = 2.0
_speedup_rule = partial(rule, value=WhatIfValue("how many times as fast", DEFAULT_SPEEDUP), evidence=EVIDENCE["faster"])


@_speedup_rule("faster-kernels")
def faster_kernels(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Kernels N times as fast."""
    return _faster(graph, value, "kernel")


@_speedup_rule("faster-host")
def faster_host(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Host work and runtime calls N times as fast."""
    return _faster(graph, value, "host work", "call")


def _faster(graph: Graph, value: float | None, *kinds: str) -> Change:
    return Change(scale(graph, select(graph, kind=kinds), 1 / (value or DEFAULT_SPEEDUP)))


@_speedup_rule("faster-network")
def faster_network(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Collectives of the trace N times as fast, including their wait for other workers.

    A collective's measured time includes its wait for other workers, which a faster network does not shorten. So the
    prediction is an upper bound of the gain. Raises `InputError` if the trace has no collective.
    """
    if not select(graph, kind="collective").any():
        raise InputError("faster-network: the trace has no collective; insert some with data-parallel")
    note = "a collective's time includes waiting for other workers, so the gain is an upper bound"
    return replace(_faster(graph, value, "collective"), notes=(note,))


@rule("gpu", takes_gpu=True, evidence=EVIDENCE["gpu"])
def other_gpu(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """The device's tasks on another GPU (gpu=a100, or --gpu), with the times of `seer trace iteration --gpu`.

    The host and collectives, which wait for other workers, do not change. Raises `InputError` without a target.
    """
    target = setting.target
    own_gpu = setting.own_gpu
    trace = setting.profile.trace
    if target is None:
        raise InputError("gpu: no target GPU is given; name it as in gpu=h100, or with --gpu")
    if target == own_gpu:
        raise InputError(f"gpu: the trace was recorded on {own_gpu.name}, so nothing changes; name another GPU")
    times = predicted_times(trace, setting.predictors(target), trace_predictors=setting.predictors(own_gpu))
    rows = _device_tasks(graph)
    rows = rows[graph.kind[rows] != COLLECTIVE]
    rows, factor = _with_earlier(graph, rows, _ratios(trace, times, graph.row[rows]))
    changed = scale(graph, rows, factor)
    # At the low end, the other machine's host copies pageable memory as fast as the target's link.
    is_pageable = pageable_copies(trace) & (trace.activities.bytes > 0) & (target.pcie_gbs > 0)
    link_us = trace.activities.bytes / (1e3 * (target.pcie_gbs or 1.0))
    fastest = np.where(is_pageable, link_us / np.maximum(times.time_us, 1e-3), 1.0)
    low = np.minimum(1 / times.factor_90, linked(fastest, graph.row[rows], 1.0))
    ends = scale(changed, rows, low), scale(changed, rows, times.factor_90)
    unmeasured = sum(part.time_us for part in times.parts if part.source == RATES)
    share = unmeasured / (sum(part.time_us for part in times.parts) or 1.0)
    notes = [sentence("rates", share=share, own=own_gpu.name, target=target.name)] * (share >= 0.005)
    notes += [sentence("pageable")] * bool(pageable_copies(trace).any())
    notes.append(_memory_note(trace, target))
    return Change(changed, *ends, notes=tuple(notes), assumes=f"{target.name}; {sentence('host')}", other_host=True)


def _memory_note(trace: Trace, target: Gpu, ratio: float = 1.0) -> str:
    """Return a note on whether the program's maximum of allocated memory fits the target, if both are known.

    If the batch grows by ``ratio``, all of the memory grows, or only the part above the minimum of the recording.
    """
    total = trace.allocations.total[(trace.allocations.device >= 0) & (trace.allocations.total > 0)]
    usable = usable_bytes(target)
    if not total.size or not usable:
        return sentence("memory_unchecked")
    peak = int(total.max())
    low, high = peak + (ratio - 1) * (peak - int(total.min())), ratio * peak
    if low <= usable < high:
        return sentence("memory_unchecked")
    end, verb = (low, "it does not fit") if low > usable else (high, "it fits")
    allocated, available = (format_number(count / 2**30, 3) for count in (end, usable))
    if ratio > 1:
        words = "will not fit" if low > usable else "will fit"
        return f"about {allocated} GiB would be allocated, and {target.name} has {available}: it {words}"
    return f"{allocated} GiB were allocated, and {target.name} has {available}: {verb}"


MAX_UNKNOWN_BATCH_SHARE = 0.1
"""`batch` is refused if kernels with an unknown batch take more than this share of the device time."""


def _twice_traced_batch(setting: WhatIfSetting) -> float | None:
    traced = batch_size(setting.profile.trace)
    return traced and 2.0 * traced


_BATCH = WhatIfValue("samples a step", _twice_traced_batch, "twice as many as traced")


@rule("batch", value=_BATCH, evidence=EVIDENCE["batch"])
def batch(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """N samples a step: kernels change in the ratio of their predictions, and data loading in proportion to N.

    The optimizer and the accumulation of gradients work on weights and do not change. Kernels without a prediction
    follow kernels of the same name. At one end of the interval, data loading does not change.

    Raises `InputError` in four cases: the trace's shapes show no batch size, the new batch is no whole number, it is
    above `MAX_BATCHES` times the traced batch, or operators with an unknown batch take more than a tenth of the device
    time.
    """
    trace = setting.profile.trace
    traced = batch_size(trace)
    if not traced or not value:
        raise refusal("no_batch")
    if value % 1:
        raise refusal("fractional_batch", value=format_number(value, 6), near=round(value) or 1)
    ratio = value / traced
    if ratio == 1:
        raise InputError(f"batch: the trace's batch is {traced}, so nothing changes; give another")
    if ratio > MAX_BATCHES:
        raise refusal("large_batch", value=value, ratio=ratio, traced=traced, maximum=MAX_BATCHES * traced)
    predictors = setting.predictors(setting.own_gpu)
    times = predicted_times(trace, predictors, traced, int(value), trace_predictors=predictors)
    # Work on weights does not change. Any other kernel has an unknown batch if its predicted time does not change.
    rows = _device_tasks(graph)
    rows = rows[~on_weights(graph)[rows]]
    activity = graph.row[rows]
    before = trace.activities.time_us[activity]
    is_unknown = np.isin(activity, [row for row, _ in times.reasons])
    is_unknown |= times.time_us[activity] == before
    unknown_us = Counter[str]()
    for row, time_us in zip(activity[is_unknown].tolist(), before[is_unknown].tolist(), strict=True):
        operator = int(trace.activities.range[row])
        unknown_us[trace.name_of(trace.ranges, operator) if operator >= 0 else "launches outside operators"] += time_us
    share = sum(unknown_us.values()) / (before.sum() or 1.0)
    if share > MAX_UNKNOWN_BATCH_SHARE:
        largest = unknown_us.most_common(1)[0][0]
        raise refusal("unknown_batch", share=share, traced=traced, operator=largest, value=value)
    rows, factor = _with_earlier(graph, rows, _ratios(trace, times, activity))
    rows, factor = rows[factor != 1], factor[factor != 1]
    loading = select(graph, kind="host work", layer="DataLoader")
    low, middle, high = (
        scale(scale(graph, loading, loading_ratio), rows, factor * times.factor_90**side)
        for side, loading_ratio in ((-1, min(ratio, 1.0)), (0, ratio), (1, max(ratio, 1.0)))
    )
    notes = [_memory_note(trace, setting.own_gpu, ratio)] if ratio > 1 else []
    if share >= 0.005:
        notes.append(f"{share:.1%} of the device time has an unknown batch; it follows kernels of its name")
    assumes = sentence("loading") if loading.any() else ""
    return Change(middle, low, high, notes=tuple(notes), samples=ratio, assumes=assumes)


def _device_tasks(graph: Graph) -> Ints:
    """Return the tasks that are activities of the trace, without removed ones."""
    return np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & (graph.row >= 0) & ~graph.removed)


def _with_earlier(graph: Graph, rows: Ints, factor: Floats) -> tuple[Ints, Floats]:
    """Return the tasks and factors, with work that was launched before the counted iterations.

    This work is in no table of the trace. So it changes like tasks of its name, or like all tasks.
    """
    is_earlier = np.isin(graph.kind, DEVICE_KINDS) & (graph.kind != COLLECTIVE) & (graph.row < 0) & ~graph.removed
    earlier = np.flatnonzero(is_earlier)
    if not len(earlier) or not len(rows):
        return rows, factor
    before_us = graph.duration_us[rows]
    before, after = (np.bincount(graph.name[rows], us, len(graph.names)) for us in (before_us, before_us * factor))
    common = np.full(len(before), after.sum() / (before.sum() or 1.0))
    by_name = np.divide(after, before, out=common, where=before > 0)
    return np.append(rows, earlier), np.append(factor, by_name[graph.name[earlier]])


def _ratios(trace: Trace, times: DeviceTimes, rows: Ints) -> Floats:
    """Return predicted over traced time of the activities ``rows``."""
    before = trace.activities.time_us[rows]
    return np.divide(times.time_us[rows], before, out=np.ones(len(rows)), where=before > 0)


_BACKWARD_NAMES = {"IMPLICIT_GEMM": "ALGO_0", "IMPLICIT_PRECOMP_GEMM": "ALGO_1"}
"""Forward algorithm → cuDNN's name of the backward algorithms of the same method."""
_DIRECTIONS = {"dgrad": "bwd_data", "wgrad": "bwd_filter"}
_CONVOLUTION = re.compile(r"conv(?:olution|_|\d)")
"""Operators that compute a convolution."""


@dataclass(frozen=True, slots=True)
class ConvRun:
    """One convolution that ran: its problem, its algorithm and its kernels.

    ``algorithm`` comes from the kernels' names; None if they do not show it. ``activities`` are the kernels' rows in
    ``trace.activities``.
    """

    conv: NetworkProblem
    algorithm: str | None
    activities: tuple[int, ...]


def convolutions_of(trace: Trace) -> tuple[list[ConvRun], int]:
    """Return the convolutions with a problem known from shapes, and the number of other convolutions."""
    reader = CallReader(trace)
    activities = trace.activities
    kernels = np.flatnonzero((activities.kind == events.KERNEL) & (activities.range >= 0))
    is_conv = trace.name_matches(trace.ranges, _CONVOLUTION.search)
    runs: list[ConvRun] = []
    lost = 0
    for owner, rows in kernels_by_owner(reader, kernels.tolist()).items():
        if owner < 0 or not is_conv[owner]:
            continue
        try:
            convs = _by_direction(reader.problems(owner))
        except UnsupportedError:
            convs = {}
        # If an operator computes both gradients, the kernel's name shows which.
        rows_by_direction: dict[str | None, list[int]] = {}
        for row in rows:
            name = trace.name_of(activities, row)
            by_name = next((direction for mark, direction in _DIRECTIONS.items() if mark in name.lower()), None)
            rows_by_direction.setdefault(by_name if len(convs) > 1 else next(iter(convs), None), []).append(row)
        for direction, activity_rows in rows_by_direction.items():
            if direction is None or direction not in convs:
                lost += 1
                continue
            algorithm = identify_call(trace.name_of(activities, row) for row in activity_rows)
            if direction != "fwd" and algorithm is not None:
                algorithm = _BACKWARD_NAMES.get(algorithm, algorithm)
            runs.append(ConvRun(convs[direction], algorithm, tuple(activity_rows)))
    return runs, lost


def _by_direction(problems: Iterable[NetworkProblem]) -> dict[str, NetworkProblem]:
    """Return the problems of a family with directions, by direction."""
    settings = ((dict(zip(family_of(p).setting_names, family_of(p).setting_of(p), strict=True)), p) for p in problems)
    return {setting["direction"]: problem for setting, problem in settings if "direction" in setting}


@rule("best-convolution", evidence=EVIDENCE["best-convolution"])
def best_convolutions(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Every convolution with the algorithm that the surrogate predicts to be the fastest.

    A convolution's new time is its measured time × predicted best / predicted own time, so a common error cancels. The
    interval assumes that both predictions have independent errors. A convolution with an unknown algorithm does not
    change. Raises `InputError` if no algorithms were measured on the trace's GPU.
    """
    trace = setting.profile.trace
    runs, lost = convolutions_of(trace)
    if not runs:
        raise InputError("best-convolution: no shape in this trace is a convolution's; record shapes")
    # Rows are the ratio, its lower end and its upper end; columns are the trace's activities.
    factors = np.ones((3, len(trace.activities)))
    unknown = swapped = 0
    predictor = setting.predictors(setting.own_gpu).algorithm_predictor
    if predictor is None:
        raise refusal("unmeasured", gpu=setting.own_gpu.name)
    ratio_of = cache(partial(_ratio, predictor))
    for run in runs:
        ratio = ratio_of(run.conv, run.algorithm)
        unknown += ratio is None
        if ratio is not None and ratio[0] < 1:
            swapped += 1
            factors[:, list(run.activities)] = np.array(ratio)[:, None]
    tasks = np.flatnonzero(select(graph, kind="kernel") & (graph.row >= 0))
    middle, low, high = (scale(graph, tasks, factor[graph.row[tasks]]) for factor in factors)
    notes = [f"{swapped:,} of {len(runs):,} convolutions get another algorithm"]
    if unknown or lost:
        notes.append(f"{unknown + lost:,} do not change, because their problem or algorithm is unknown")
    return Change(middle, low, high, tuple(notes))


def _ratio(predictor: "Predictor", conv: NetworkProblem, algorithm: str | None) -> tuple[float, float, float] | None:
    """Return best / own predicted time and its interval, in [0, 1] because a slower algorithm is never chosen."""
    try:
        selection = predictor.select(conv)
    except InputError:
        return None
    if selection.source in FALLBACK_SOURCES:
        raise refusal("unmeasured", gpu=selection.gpu)
    traced = next((candidate for candidate in selection.candidates if candidate.algorithm == algorithm), None)
    if traced is None:
        return None
    best = selection.candidates[0]
    if best.algorithm == traced.algorithm:
        return 1.0, 1.0, 1.0
    ratio = best.time_us / traced.time_us
    # Independent errors of numerator and denominator add in squares of log time.
    spread = np.hypot(np.log(best.upper_us / best.time_us), np.log(traced.upper_us / traced.time_us))
    return ratio, min(1.0, ratio * float(np.exp(-spread))), min(1.0, ratio * float(np.exp(spread)))
