"""A network's time: every distinct problem predicted once, the fastest feasible algorithm taken, layers summed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Any

from surrogate.features.algorithms import Mechanism
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.families import CONV, FAMILY_OF_KIND, family_of
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.machine import b_max
from surrogate.features.operators import Gemm, Operator
from surrogate.features.operators.pointwise import ELEMENTS_PER_BLOCK
from surrogate.features.roofline import compute_us, memory_us, missing_units, peak_tflops, roofline_us
from surrogate.features.terms import MECHANISM_TERMS
from surrogate.network.memory import memory
from surrogate.network.network import FRAMEWORKS, Layer, Network, Work
from surrogate.network.result import BOUNDS, COMPUTE, MEMORY, UNDER_UTILISED, LayerTime, NetworkTime
from surrogate.network.work import compulsory_bytes
from surrogate.prediction.results import ROOFLINE, SPEC

MAX_BATCH = 2**24
"""Where the search for the largest batch ends."""
SUSTAINED = 0.94
"""Share of a tensor peak that long products reach where nothing else limits them. Source: fp8 products on H20, whose
units are held down, in zksainx/pipeweave's table (median 0.93 of those over 4096 × 4096 × 2048, best 0.95)."""
MIDDLE = 1
"""Place of the middle tile among a mechanism's launches."""


@dataclass(frozen=True, slots=True)
class Predictors:
    """What predicts on ``gpu``: ``convs`` ranks algorithms of convolutions, ``operators`` times everything else.

    `ranked` and `timed` are the only places that ask them. ``paper``: a fitted seer-paper, whose trees tell the classes
    of convolutions; None: they go by the roofline.
    """

    gpu: Gpu
    convs: Any
    operators: Any
    paper: Any = None

    def ranked(self, problems: Sequence[Conv], **limits: Any) -> dict[Conv, Any]:
        """Convolution → its selection: ``estimates``, ranked and within the limits, and why it is out of domain."""
        return dict(zip(problems, self.convs.select_many(problems, **limits), strict=True)) if problems else {}

    def timed(self, problems: Sequence[Operator]) -> dict[Operator, Any]:
        """Operator → its prediction, with ``time_us``, ``lower_us``, ``upper_us`` and ``source``."""
        answers = self.operators.kernel_times(problems) if problems else ()
        return {problem: self._possible(problem, answer) for problem, answer in zip(problems, answers, strict=True)}

    def _possible(self, problem: Operator, answer: Any) -> Any:
        """The answer, where it goes by a specification no shorter than `SUSTAINED` of the peak and the power allow."""
        if answer.source != SPEC or not problem.uses_tensor_cores:
            return answer
        peak = peak_tflops(self.gpu, problem.dtype, True) * sustained_share(self.gpu)
        longer = max(compute_us(problem.flops, peak) / answer.time_us, 1.0)
        ends = {name: longer * getattr(answer, name) for name in ("time_us", "lower_us", "upper_us")}
        return replace(answer, **ends)

    def time(self, network: Network, *, workspace_limit: int | None = None, deterministic: bool = False) -> NetworkTime:
        """Predicted times of the network's layers.

        A convolution that no algorithm can run within the limits is counted as unsupported, by the reason. Raises
        `InputError` for products of a type whose units the GPU lacks.
        """
        as_run: dict[Any, Any] = {layer.work: layer.work for layer in network.layers}
        if not network.own_math:
            as_run = {work: self._as_run(work) for work in as_run}
        ranked = self.ranked(
            tuple(dict.fromkeys(run for run in as_run.values() if isinstance(run, Conv))),
            workspace_limit=workspace_limit,
            deterministic=deterministic,
        )
        choices: dict[Any, Any] = {work: ranked[run] for work, run in as_run.items() if isinstance(run, Conv)}
        bounds = self._bounds(ranked)
        predicted = self.timed(tuple(run for run in as_run.values() if not isinstance(run, Conv)))
        unknown = [run for run, answer in predicted.items() if run.MULTIPLIES and answer.source == ROOFLINE]
        for run in unknown:
            if lacks := missing_units(self.gpu, run.dtype, run.math):
                raise InputError(f"{network.name}: {lacks} for products in {run.dtype}; give another --dtype, or --gpu")
        times, unsupported = [], Counter(network.unsupported)
        for layer in network.layers:
            if not isinstance(layer.work, Conv):
                answer = predicted[as_run[layer.work]]
                times.append(_operator_time(layer, layer.work, answer, self.gpu, network.gap_us))
            elif choices[layer.work].estimates:
                run = as_run[layer.work]
                times.append(_conv_time(layer, run, choices[layer.work].estimates[0], self.gpu, bounds.get(run)))
            else:
                unsupported[f"{layer.operator} (no algorithm within the limits)"] += 1
        return NetworkTime(
            network.name,
            self.gpu.name,
            tuple(times),
            network.batch,
            network.training,
            network.ignored,
            dict(unsupported),
            _heuristic(network, choices),
            Counter(reason for conv in network.convs if (reason := choices[conv].reason)),
            network.parameters,
            sum(int(layer.work.flops) // 2 for layer in network.layers if isinstance(layer.work, Conv | Gemm)),
            memory(network, max((layer.workspace_bytes for layer in times), default=0)),
            self.gpu.memory_bytes,
        )

    def _bounds(self, ranked: Mapping[Conv, Any]) -> dict[Conv, str]:
        """Convolution → its class by the paper's trees, "" where they tell none; empty without them."""
        picks = {conv: choice for conv, choice in ranked.items() if choice.estimates} if self.paper else {}
        if not picks:
            return {}
        import pandas as pd

        records = [
            {
                **asdict(conv), "gpu": choice.gpu, "library": choice.library, "library_version": choice.library_version,
                "algorithm": choice.estimates[0].candidate.name,
            }
            for conv, choice in picks.items()
        ]  # fmt: skip
        classes = self.paper.bound(pd.DataFrame(records))
        return {conv: BOUNDS[bound] if bound >= 0 else "" for conv, bound in zip(picks, classes, strict=True)}

    def _as_run(self, work: Work) -> Any:
        """With the math type that PyTorch runs by default on the GPU; a kind of no family as it is."""
        if work.kind not in FAMILY_OF_KIND:
            return work
        return replace(work, math=family_of(work).default_math(work.dtype, self.gpu))


def sustained_share(gpu: Gpu) -> float:
    """What long products reach of a tensor peak: no more than `SUSTAINED`, nor than the board's power allows."""
    at_peak = gpu.tensor_pj_per_flop * gpu.bf16_tensor_tflops  # watts
    return min(SUSTAINED, gpu.board_watts / at_peak) if at_peak else SUSTAINED


def sustained_us(work: Work, gpu: Gpu) -> float:
    """The roofline time of a problem at the rates that long kernels reach on the GPU, in µs."""
    if isinstance(work, Operator) and not work.uses_tensor_cores:
        return float(work.roofline_us(gpu))
    peak = peak_tflops(gpu, work.dtype, work.uses_tensor_cores)
    peak = peak * sustained_share(gpu) if work.uses_tensor_cores else gpu.sustained_tflops(peak)
    return float(roofline_us(work.flops, compulsory_bytes(work), peak, gpu.dram_share * gpu.dram_gbs))


def load_predictors(gpu: str, bundle: str | Path | None = None, library: str | None = None) -> Predictors:
    """Predictors for a GPU by name; convolutions by the ``bundle`` in a folder, or by the one shipped for the GPU.

    ``library`` narrows everything but convolutions to the kernels of one framework. Raises `InputError` for an unknown
    GPU or library, or a damaged bundle.
    """
    from surrogate.prediction.shipped import load, load_operators

    device = gpu_named(gpu)
    convs = load(gpu) if bundle is None else load(Path(bundle), gpu=gpu)
    part = convs.bundle.parts.get(CONV.name)  # of some GPUs no convolutions were measured
    paper = part.model if part and part.fitted.name == "seer-paper" else None
    return Predictors(device, convs, load_operators(device.name, library), paper)


def fastest_framework(network: Network, gpu: str) -> str:
    """The one of `FRAMEWORKS` whose kernels are expected to run the network fastest, of those most of them known."""
    times = {name: load_predictors(gpu, library=name).time(network) for name in FRAMEWORKS}
    unknown = {name: sum(layer.source == ROOFLINE for layer in time.layers) for name, time in times.items()}
    return min(FRAMEWORKS, key=lambda name: (unknown[name], times[name].total_us))


def sweep_batches(
    read: Callable[[int], Network],
    batches: Sequence[int],
    predictors: Predictors,
    *,
    progress: Callable[[int, int, str], None] | None = None,
    **limits: Any,
) -> dict[int, NetworkTime]:
    """Batch → the network's time there; ``read`` gives the network at a batch, ``limits`` are `Predictors.time`'s."""
    times = {}
    for done, batch in enumerate(batches, 1):
        times[batch] = predictors.time(read(batch), **limits)
        if progress:
            progress(done, len(batches), f"batch {batch}")
    return times


def largest_batch(read: Callable[[int], Network], predictors: Predictors, **limits: Any) -> int:
    """The largest batch that fits the GPU's memory; ``read`` gives the network at a batch.

    Raises `InputError` where not even one sample fits, or the source's memory does not grow with the batch.
    """
    fits, fails = 0, MAX_BATCH
    while fails - fits > 1:
        batch = min(2 * fits or 1, (fits + fails) // 2)
        fits, fails = (batch, fails) if predictors.time(read(batch), **limits).fits else (fits, batch)
    if fits in (0, MAX_BATCH - 1):
        wrong = "not even one sample fits" if not fits else "memory does not grow with the batch"
        raise InputError(f"--max-batch: {wrong} on {predictors.gpu.name}; leave it out to see what holds memory")
    return fits


def _conv_time(layer: Layer, conv: Conv, best: Any, gpu: Gpu, known_bound: str | None) -> LayerTime:
    problem, flops, moved, bound = _conv_facts(conv, best.candidate.mechanism, gpu)
    factor = exp(best.half_width)
    return LayerTime(
        layer.name, layer.operator, problem, best.candidate.name, best.time_us, best.time_us / factor,
        best.time_us * factor, int(best.workspace_bytes), flops, moved, bound if known_bound is None else known_bound,
        best.source,
    )  # fmt: skip


def _operator_time(layer: Layer, work: Operator, answer: Any, gpu: Gpu, gap_us: float) -> LayerTime:
    times_us = (answer.time_us + gap_us, answer.lower_us + gap_us, answer.upper_us + gap_us)
    return LayerTime(
        layer.name, layer.operator, str(work), None, *times_us,
        0, work.flops, work.dram_bytes, operator_bound(work, gpu), answer.source,
    )  # fmt: skip


def _heuristic(network: Network, choices: Mapping[Conv, Any]) -> dict[str, float]:
    """The library's own picks, where the file names any; a convolution counts as often as the network has it."""
    picks = [(layer.work, layer.heuristic) for layer in network.layers if isinstance(layer.work, Conv)]
    if not any(pick for _, pick in picks):
        return {}
    times = [
        (estimate.time_us, choices[conv].estimates[0].time_us)
        for conv, pick in picks
        for estimate in choices[conv].estimates
        if estimate.candidate.name == pick
    ]
    picked_us, best = sum(picked_us for picked_us, _ in times), sum(best for _, best in times)
    return {"convs": len(times), "unknown": len(picks) - len(times), "time_us": picked_us, "saved_us": picked_us - best}


@lru_cache(maxsize=65536)
def _conv_facts(conv: Conv, mechanism: Mechanism, gpu: Gpu) -> tuple[str, int, int, str]:
    """Problem text, FLOPs, bytes and bound of a convolution: the same for every layer of that shape."""
    return str(conv), conv.flops, conv.tensor_bytes, conv_bound(conv, mechanism, gpu)


def conv_bound(conv: Conv, mechanism: Mechanism, gpu: Gpu) -> str:
    """SEER's class of a convolution where nothing was counted (§7 of the method): below one wave of the mechanism's
    middle tile under-utilised, else the longer of its own compute and memory times."""
    terms = MECHANISM_TERMS[mechanism](conv, b_max(gpu, mechanism))
    peak = peak_tflops(gpu, conv.dtype, conv.uses_tensor_cores)
    return _bound(terms.launches[MIDDLE].waves, terms.arithmetic_flops, terms.dram_bytes, peak, gpu)


def operator_bound(work: Operator, gpu: Gpu) -> str:
    """The same for any other operator: for products a wave is as many tiles as fit, elsewhere one block of 512
    elements on every SM."""
    if isinstance(work, Gemm):
        waves = work.blocks / b_max(gpu, "gemm")[MIDDLE]
    else:
        waves = work.dram_bytes / (work.element.output_bytes * ELEMENTS_PER_BLOCK * gpu.sms)
    peak = peak_tflops(gpu, work.dtype, work.uses_tensor_cores)
    return _bound(waves, work.flops, work.dram_bytes, peak, gpu)


def _bound(waves: float, flops: float, dram_bytes: float, peak: float, gpu: Gpu) -> str:
    if waves < 1:
        return UNDER_UTILISED
    computes = compute_us(flops, peak) >= memory_us(dram_bytes, gpu.dram_gbs)
    return COMPUTE if computes else MEMORY
