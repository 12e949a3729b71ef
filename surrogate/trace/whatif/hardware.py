"""What-ifs on one GPU: mixed precision, fewer launches, faster or other hardware, another batch, other algorithms."""

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
from surrogate.features.kernels import identify, identify_call, uses_tensor_cores
from surrogate.network.aten_call import UnsupportedError
from surrogate.network.memory import usable_bytes
from surrogate.prediction.results import UNMEASURED
from surrogate.trace import events
from surrogate.trace.calls import CallReader, batch_size, kernels_by_owner
from surrogate.trace.events.tables import Floats, Ints, Trace, linked
from surrogate.trace.graph.tasks import CALL, COLLECTIVE, DEVICE_KINDS, WORK, Graph, Mask
from surrogate.trace.iteration.times import RATES, DeviceTimes, predicted_times
from surrogate.trace.whatif.primitives import OPTIMIZER, launches_of, remove, scale, select
from surrogate.trace.whatif.setting import (
    NO_PUBLISHED_ERROR,
    STEP,
    Change,
    ErrorEvidence,
    Op,
    StepAnswer,
    WhatIfSetting,
    WhatIfValue,
    published,
    rule,
)

if TYPE_CHECKING:
    from surrogate.prediction.predictor import Predictor

MATRIX_SPEEDUP = 3.0
OTHER_SPEEDUP = 2.0
"""How many times as fast a kernel of a matrix product, and any other, gets in half precision (Daydream, 5.1)."""
MAX_BATCHES = 64.0
"""Times the recorded batch up to which `batch` answers: kernels then are others than those that the trace shows."""
_MATRIX_NAME = r"gemm|conv|wgrad|dgrad|fprop|winograd"
_OTHER_TYPE = re.compile(r"(?i)double|half|(?:b|fp?|float)(?:16|64)|[hdcz]gemm|[hd]884|<(?:long|int|bool)>")
_FP32 = re.compile(r"(?i)float|fp?32|sgemm|scudnn")
"""What names of kernels tell of their data; many in half precision accumulate in ``float``, so the first decides."""
_AUXILIARY = {"offsets", "layout", "xmma_setup", "fft_filter", "winograd_filter", "winograd_transform", "im2col"}
_SHORT = (Op("aten::relu", "relu_kernel", 2),) * 5
"""A step of 52 µs: the device waits for the host."""
_WISHED = ErrorEvidence("an assumption of whoever asks, so no interval")


@rule(
    "amp",
    evidence=published(
        {"BERT-base": 5.5, "BERT-large": 3.9, "Seq2Seq": 15.3, "ResNet-50": 12.6}, " of networks in fp32 without TF32"
    ),
    known_answer=StepAnswer(10 + 200 + 600 / 3 + (600 + 600 + 100) / 2),
)
def amp(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Mixed precision: kernels with sgemm or wgrad in their name ÷3, others of fp32, all TF32 too, ÷2 (Daydream, 5.1).

    Kernels in half or double precision stay. Autocast launches casts: at the upper end of the interval one for each
    kernel that changes, so that its launch takes twice as long. Raises `InputError` where no kernel is known to be
    fp32.
    """
    on_tensor_cores = np.array([uses_tensor_cores(name) for name in graph.names])[graph.name]
    matrix = select(graph, kind="kernel", name="sgemm|wgrad") & ~on_tensor_cores
    changed = _fp32_kernels(graph, setting)
    faster = scale(graph, changed, np.where(matrix, 1 / MATRIX_SPEEDUP, 1 / OTHER_SPEEDUP))
    assumes = (
        f"sgemm and wgrad outside tensor cores {MATRIX_SPEEDUP:g} times as fast, other fp32 kernels (TF32 too) {OTHER_SPEEDUP:g} times,"
        " no casts (the upper end has one for each)"
    )
    return Change(faster, high=scale(faster, launches_of(graph, changed), 2.0), assumes=assumes)


def _fp32_kernels(graph: Graph, setting: WhatIfSetting) -> Mask:
    """Kernels of fp32 data by their operator's or their name; where they are most, also those that tell no type.

    Raises `InputError` where no kernel is known to be fp32.
    """
    kernels = select(graph, kind="kernel")
    recorded = np.array([*setting.profile.dtype, ""])[np.where(kernels, graph.row, -1)]
    named = ["other" if _OTHER_TYPE.search(name) else "fp32" * bool(_FP32.search(name)) for name in graph.names]
    dtype = np.where(recorded == "", np.array([*named, ""])[graph.name], recorded)
    is_fp32 = kernels & (dtype == "fp32")
    if not is_fp32.any():
        raise InputError("no kernel is known to be fp32 in this trace, so there is none to change")
    told_us = graph.duration_us[kernels & (dtype != "")].sum()
    are_most = graph.duration_us[is_fp32].sum() >= told_us / 2
    return is_fp32 | (kernels & (dtype == "") & are_most)


def matrix_kernels(graph: Graph) -> Mask:
    """Kernels of a matrix product or a convolution, those that prepare them (layout, offsets, transforms) left out."""
    kernels = [identify(name) for name in graph.names]
    auxiliary = np.array([kernel is not None and kernel.family in _AUXILIARY for kernel in kernels])
    return select(graph, kind="kernel", name=_MATRIX_NAME) & ~auxiliary[graph.name]


# The first launch returns after 4 µs; the others take no time, and a kernel starts 4 µs behind its launch. So does
# the second one; three follow, each with a gap of 1 µs.
@rule("cuda-graphs", evidence=NO_PUBLISHED_ERROR, known_answer=StepAnswer(4 + 4 + 4 * 2 + 3 * 1, ops=_SHORT))
def cuda_graphs(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """One graph launch per iteration: other launches, and the host's work inside layers, take no time.

    What the host does outside layers (data loading, the program's own code), copies and synchronisation stay.
    """
    call_kind = call_kinds(graph, setting.profile.trace)
    launch = np.isin(call_kind, (events.LAUNCH, events.MEMSET_CALL))
    if not launch.any():
        raise InputError("cuda-graphs: no launch of a kernel is in this trace, so there is nothing to capture")
    # The first launch of an iteration stands for the graph's; what is captured beside launches is not issued any more.
    other = np.isin(call_kind, (events.OTHER_CALL, events.RECORD_CALL, events.MEMORY_CALL))
    captured = (graph.layer >= 0) & ~select(graph, layer=r"DataLoader") & ~graph.removed
    first = np.zeros(len(graph), np.bool_)
    for iteration in np.unique(graph.iteration[launch]).tolist():
        first[np.flatnonzero(launch & (graph.iteration == iteration))[0]] = True
    return Change(remove(graph, (launch & ~first) | (captured & ((graph.kind == WORK) | other))))


def call_kinds(graph: Graph, trace: Trace) -> Ints:
    """The kind of each task's runtime call, -1 for what is none."""
    return linked(trace.calls.kind, np.where(graph.kind == CALL, graph.row, -1))


DEFAULT_SPEEDUP = 2.0
_TIMES_AS_FAST = WhatIfValue("how many times as fast", DEFAULT_SPEEDUP)


@rule("faster-kernels", value=_TIMES_AS_FAST, evidence=_WISHED, known_answer=StepAnswer(10 + 200 + 1900 / 2, value=2))
def faster_kernels(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Kernels N times as fast."""
    return _faster(graph, value, "kernel")


# The last of five operators begins its launch after 4 · 5 and 3 µs; 4 µs behind that its kernel starts.
@rule(
    "faster-host",
    value=_TIMES_AS_FAST,
    evidence=_WISHED,
    known_answer=StepAnswer(4 * 5 + 3 + 4 + 2, ops=_SHORT, value=2),
)
def faster_host(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """What the host does N times as fast: its work and its calls."""
    return _faster(graph, value, "host work", "call")


def _faster(graph: Graph, value: float | None, *kinds: str) -> Change:
    return Change(scale(graph, select(graph, kind=kinds), 1 / (value or DEFAULT_SPEEDUP)))


@rule(
    "faster-network",
    value=_TIMES_AS_FAST,
    evidence=_WISHED,
    known_answer=StepAnswer(2110 + 300 / 2, (*STEP, Op("c10d::allreduce_", "ncclAllReduce_RING", 300)), value=2),
)
def faster_network(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Collectives of the trace N times as fast, the wait for other workers included.

    A collective's measured time includes its wait for other workers, which a faster network does not shorten: the
    prediction is the most that can be gained. Raises `InputError` where the trace has none.
    """
    if not select(graph, kind="collective").any():
        raise InputError("faster-network: the trace has no collective; data-parallel inserts some")
    note = "a collective's time includes waiting for other workers; the prediction is the most that can be gained"
    return replace(_faster(graph, value, "collective"), notes=(note,))


_OF_BOARDS = ErrorEvidence(
    "interval of predictions, and of eager PyTorch on other pairs of GPUs (KernelBench)", "of the kernels' times"
)


# Kernels without shapes follow the bandwidth that copies reach.
@rule(
    "gpu",
    takes_gpu=True,
    evidence=_OF_BOARDS,
    known_answer=StepAnswer(
        10 + 900 * (0.92 * 900) / (0.9 * 1555), ops=(Op("mine", "mine", 900),), target="a100-sxm4-40gb"
    ),
)
def other_gpu(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """The device's tasks on another GPU, as in gpu=a100 or by --gpu, as `seer trace iteration --gpu`; the host stays.

    Collectives, which wait for other workers, stay, too. Raises `InputError` without a target.
    """
    target = setting.target
    base = setting.own_gpu
    trace = setting.profile.trace
    if target is None:
        raise InputError("gpu: name the GPU that is asked about, as in gpu=h100, or with --gpu")
    if target == base:
        raise InputError(f"gpu: the trace is of {base.name}, so nothing changes; name another GPU")
    times = predicted_times(trace, setting.predictors(target), base=setting.predictors(base))
    rows = _device_tasks(graph)
    rows = rows[graph.kind[rows] != COLLECTIVE]
    changed = scale(graph, rows, _ratios(trace, times, graph.row[rows]))
    ends = (scale(changed, rows, times.factor_90**side) for side in (-1, 1))
    unmeasured = sum(part.time_us for part in times.parts if part.source == RATES)
    share = unmeasured / (sum(part.time_us for part in times.parts) or 1.0)
    unseen = f"kernels that nobody measured on both {base.name} and {target.name}"
    notes = [f"{share:.0%} of the device time is of {unseen}: it follows the rates of the two"] * (share >= 0.005)
    notes.append(_memory_note(trace, target))
    return Change(changed, *ends, notes=tuple(notes), assumes=f"{target.name}; {HOST_ASSUMPTION}", other_host=True)


UNCHECKED = "whether it fits the GPU's memory is not checked"


def _memory_note(trace: Trace, target: Gpu) -> str:
    """Whether what the program had allocated at most fits the target, as far as the trace tells."""
    total = trace.allocations.total[trace.allocations.device >= 0]
    there = usable_bytes(target)
    if total.max(initial=-1) <= 0 or not there:
        return UNCHECKED
    fits = "it fits" if total.max() <= there else "it does not fit"
    return f"{total.max() / 2**30:.3g} GiB were allocated, and {target.name} has {there / 2**30:.3g}: {fits}"


HOST_ASSUMPTION = "the host of the trace, as recorded (seer trace iteration models it by overheads)"
LOADING_ASSUMPTION = "loading in proportion; one end of the interval has it as it was"
MAX_UNKNOWN_BATCH_SHARE = 0.1
"""Share of the device time from which on kernels whose batch is not told make `batch` no answer."""
_OF_BATCHES = ErrorEvidence(
    "interval of predictions; a kind of kernels that nobody measured is taken to err by 1.5 times",
    "of the kernels' times",
)


def _twice(setting: WhatIfSetting) -> float | None:
    traced = batch_size(setting.profile.trace)
    return traced and 2.0 * traced


# A sum over rows, which memory bounds, of 10 samples and of 20; it is so long that what a kernel takes at least is
# nothing beside it.
@rule(
    "batch",
    value=WhatIfValue("samples a step", _twice, "twice as many as traced"),
    evidence=_OF_BATCHES,
    known_answer=StepAnswer(
        20 + 600 * 2,
        value=20,
        ops=(
            Op("aten::linear", shapes=[[10, 8], [8, 8]]),
            Op("aten::add", "add_kernel", 600, shapes=[[10, 10**8], [1, 10**8]]),
        ),
    ),
)
def batch(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """N samples a step: each operator's kernels as predictions of it change, and the loading of data in proportion.

    The optimizer and the accumulation of gradients work on weights and stay. What cannot be predicted follows kernels
    of its name. One end of the interval has the loading as it was. Raises `InputError` without a batch size in the
    trace's shapes, for one that is no whole number or above `MAX_BATCHES` times the traced one, and where more than a
    tenth of the device time is of operators whose batch the trace does not tell.
    """
    trace = setting.profile.trace
    traced = batch_size(trace)
    if not traced or not value:
        raise InputError(
            "batch: no shape in this trace tells its batch size (rows of a server's trace are tokens); record shapes"
        )
    new = value
    if new % 1:
        raise InputError(f"batch: {new:g} samples are no whole number; give such as batch={round(new) or 1}")
    ratio = new / traced
    if ratio == 1:
        raise InputError(f"batch: the trace's is {traced}, so nothing changes; ask for another")
    if ratio > MAX_BATCHES:
        raise InputError(
            f"batch: {new:g} is {ratio:,.0f} times the traced {traced}, whose kernels tell nothing of it; ask for"
            f" {MAX_BATCHES * traced:g} at most, or trace a larger batch"
        )
    predictors = setting.predictors(setting.own_gpu)
    times = predicted_times(trace, predictors, traced, int(new), base=predictors)
    # Work on weights stays; whatever else the new batch leaves as it is does not show the batch.
    rows = _device_tasks(graph)
    rows = rows[~select(graph, layer=rf"{OPTIMIZER}|AccumulateGrad")[rows]]
    activity = graph.row[rows]
    before = trace.activities.time_us[activity]
    unscaled = np.isin(activity, [row for row, _ in times.reasons])
    unscaled |= (times.time_us[activity] == before) & (new != traced)
    lost_us = Counter[str]()
    for row, time_us in zip(activity[unscaled].tolist(), before[unscaled].tolist(), strict=True):
        around = int(trace.activities.range[row])
        lost_us[trace.name_of(trace.ranges, around) if around >= 0 else "launches outside operators"] += time_us
    share = sum(lost_us.values()) / (before.sum() or 1.0)
    if share > MAX_UNKNOWN_BATCH_SHARE:
        raise InputError(
            f"batch: {share:.0%} of the device time is of operators that do not tell how they hold the batch of"
            f" {traced}, such as {lost_us.most_common(1)[0][0]}; trace the program at batch {new:g}"
        )
    factor = _ratios(trace, times, activity)
    rows, factor = rows[factor != 1], factor[factor != 1]
    loading = select(graph, kind="host work", layer="DataLoader")
    low, middle, high = (
        scale(scale(graph, loading, loaded), rows, factor * times.factor_90**side)
        for side, loaded in ((-1, min(ratio, 1.0)), (0, ratio), (1, max(ratio, 1.0)))
    )
    notes = [UNCHECKED] if ratio > 1 else []
    if share >= 0.005:
        notes.append(f"{share:.1%} of the device time does not tell its batch; it follows kernels of its name")
    assumes = LOADING_ASSUMPTION if loading.any() else ""
    return Change(middle, low, high, notes=tuple(notes), samples=ratio, assumes=assumes)


def _device_tasks(graph: Graph) -> Ints:
    """Tasks that are activities of the trace, removed ones left out."""
    return np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & (graph.row >= 0) & ~graph.removed)


def _ratios(trace: Trace, times: DeviceTimes, rows: Ints) -> Floats:
    """How many times as long as traced the activities ``rows`` take, by ``times``."""
    before = trace.activities.time_us[rows]
    return np.divide(times.time_us[rows], before, out=np.ones(len(rows)), where=before > 0)


_NUMBERED = {"IMPLICIT_GEMM": "ALGO_0", "IMPLICIT_PRECOMP_GEMM": "ALGO_1"}
"""Forward algorithm → the number that cuDNN gives the backward ones of the same method."""
_MARKS = {"dgrad": "bwd_data", "wgrad": "bwd_filter"}
_CONVOLUTION = re.compile(r"conv(?:olution|_|\d)")
"""Operators that compute one."""


@dataclass(frozen=True, slots=True)
class ConvRun:
    """One convolution that ran: its problem, the algorithm by its kernels' names (None: they do not tell), and the rows
    of those kernels in ``trace.activities``."""

    conv: NetworkProblem
    algorithm: str | None
    activities: tuple[int, ...]


def convolutions_of(trace: Trace) -> tuple[list[ConvRun], int]:
    """All convolutions whose problem the shapes give, and how many others there are."""
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
        # Of an operator that makes both gradients the kernel's name tells which.
        of_direction: dict[str | None, list[int]] = {}
        for row in rows:
            name = trace.name_of(activities, row)
            marked = next((part for mark, part in _MARKS.items() if mark in name.lower()), None)
            of_direction.setdefault(marked if len(convs) > 1 else next(iter(convs), None), []).append(row)
        for direction, activity_rows in of_direction.items():
            if direction is None or direction not in convs:
                lost += 1
                continue
            algorithm = identify_call(trace.name_of(activities, row) for row in activity_rows)
            if direction != "fwd" and algorithm is not None:
                algorithm = _NUMBERED.get(algorithm, algorithm)
            runs.append(ConvRun(convs[direction], algorithm, tuple(activity_rows)))
    return runs, lost


def _by_direction(problems: Iterable[NetworkProblem]) -> dict[str, NetworkProblem]:
    """The problems of a family with directions, by direction."""
    settings = ((dict(zip(family_of(p).setting_names, family_of(p).setting_of(p), strict=True)), p) for p in problems)
    return {setting["direction"]: problem for setting, problem in settings if "direction" in setting}


_IMAGES = ([8, 3, 32, 32], [16, 3, 3, 3])
_CONVOLUTIONS = (
    Op("aten::cudnn_convolution", STEP[1].kernel, 600, 1, [*_IMAGES, [], [], []]),
    Op("aten::convolution_backward", "cudnn_wgrad_kernel", 600, 1, [[8, 16, 30, 30], *_IMAGES, [], []]),
)
_OF_SHAPES = ErrorEvidence("interval of the surrogate's predictions on shapes held out", "of its predictions")


# The first kernel's name says that it ran IMPLICIT_PRECOMP_GEMM; what the second one ran its name does not tell.
@rule(
    "best-convolution",
    evidence=_OF_SHAPES,
    known_answer=StepAnswer(
        10 + 600 * 100 / 200 + 600, ops=_CONVOLUTIONS, algorithms_us={"WINOGRAD": 100, "IMPLICIT_PRECOMP_GEMM": 200}
    ),
)
def best_convolutions(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Every convolution with the algorithm that the surrogate predicts to be the fastest.

    A convolution's kernels take predicted best / predicted own of their measured time, so that an error common to both
    cancels; the interval is that of the ratio where both err alone. One whose own algorithm is unknown stays. Raises
    `InputError` where nobody measured the algorithms on the trace's GPU.
    """
    trace = setting.profile.trace
    runs, lost = convolutions_of(trace)
    if not runs:
        raise InputError("best-convolution: no shape in this trace gives a convolution; record shapes")
    # Rows: the ratio, its lower and its upper end; columns: the trace's activities.
    factors = np.ones((3, len(trace.activities)))
    unknown = swapped = 0
    predictor = setting.predictors(setting.own_gpu).algorithms
    if predictor is None:
        raise _unmeasured(setting.own_gpu.name)
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
        notes.append(f"{unknown + lost:,} stay: their problem or algorithm is not known")
    return Change(middle, low, high, tuple(notes))


def _unmeasured(gpu: str) -> InputError:
    return InputError(
        f"best-convolution: no algorithms of convolutions were measured on {gpu} (`seer gpus` lists where some were);"
        " measure them with `seer collect`, fit with `seer train`, and name the bundle by --bundle"
    )


def _ratio(predictor: "Predictor", conv: NetworkProblem, algorithm: str | None) -> tuple[float, float, float] | None:
    """Best / own predicted time and its interval, in [0, 1]: a slower one would not be chosen."""
    try:
        selection = predictor.select(conv)
    except InputError:
        return None
    if selection.source in UNMEASURED:
        raise _unmeasured(selection.gpu)
    candidates = selection.candidates
    traced = next((candidate for candidate in candidates if candidate.algorithm == algorithm), None)
    if traced is None:
        return None
    best = candidates[0]
    if best.algorithm == traced.algorithm:
        return 1.0, 1.0, 1.0
    ratio = best.time_us / traced.time_us
    # Independent errors of numerator and denominator add up in squares, on the scale of logarithms.
    spread = np.hypot(np.log(best.upper_us / best.time_us), np.log(traced.upper_us / traced.time_us))
    return ratio, min(1.0, ratio * float(np.exp(-spread))), min(1.0, ratio * float(np.exp(spread)))
