"""A network's time: every distinct problem predicted once, the fastest feasible algorithm taken, layers summed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Any

from surrogate.features.algorithms import Mechanism
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.families import family_of
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.machine import b_max
from surrogate.features.operators import Gemm, Operator
from surrogate.features.operators.pointwise import ELEMENTS_PER_BLOCK
from surrogate.features.roofline import compute_us, memory_us, peak_tflops
from surrogate.features.terms import MECHANISM_TERMS
from surrogate.network.memory import memory
from surrogate.network.network import Layer, Network
from surrogate.network.result import COMPUTE, MEMORY, UNDER_UTILISED, LayerTime, NetworkTime

MAX_BATCH = 2**24
"""Where the search for the largest batch ends."""
MIDDLE = 1
"""Place of the middle tile among a mechanism's launches."""


@dataclass(frozen=True, slots=True)
class Predictors:
    """What predicts on ``gpu``: ``convs`` ranks algorithms of convolutions, ``operators`` times everything else.

    `ranked` and `timed` are the only places that ask them.
    """

    gpu: Gpu
    convs: Any
    operators: Any

    def ranked(self, problems: Sequence[Conv], **limits: Any) -> dict[Conv, Any]:
        """Convolution → its selection: ``estimates``, ranked and within the limits, and why it is out of domain."""
        return (
            dict(zip(problems, self.convs.select_many(problems, **limits), strict=True)) if problems else {}
        )

    def timed(self, problems: Sequence[Operator]) -> dict[Operator, Any]:
        """Operator → its prediction, with ``time_us``, ``lower_us``, ``upper_us`` and ``source``."""
        return dict(zip(problems, self.operators.kernel_times(problems), strict=True)) if problems else {}

    def time(
        self, network: Network, *, workspace_limit: int | None = None, deterministic: bool = False
    ) -> NetworkTime:
        """Predicted times of the network's layers.

        A convolution that no algorithm can run within the limits is counted as unsupported, by the reason.
        """
        as_run = {conv: conv if network.own_math else self._as_run(conv) for conv in network.convs}
        ranked = self.ranked(
            tuple(dict.fromkeys(as_run.values())),
            workspace_limit=workspace_limit,
            deterministic=deterministic,
        )
        choices = {conv: ranked[run] for conv, run in as_run.items()}
        others = dict.fromkeys(layer.work for layer in network.layers if not isinstance(layer.work, Conv))
        predicted = self.timed(tuple(others))
        times, unsupported = [], Counter(network.unsupported)
        for layer in network.layers:
            if not isinstance(layer.work, Conv):
                times.append(_operator_time(layer, layer.work, predicted[layer.work], self.gpu))
            elif choices[layer.work].estimates:
                times.append(
                    _conv_time(layer, as_run[layer.work], choices[layer.work].estimates[0], self.gpu)
                )
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
            sum(
                int(layer.work.flops) // 2 for layer in network.layers if isinstance(layer.work, Conv | Gemm)
            ),
            memory(network, max((layer.workspace_bytes for layer in times), default=0)),
            self.gpu.memory_bytes,
        )

    def _as_run(self, conv: Conv) -> Conv:
        """With the math type that PyTorch runs by default on the GPU."""
        return replace(conv, math=family_of(conv).default_math(conv.dtype, self.gpu))


def load_predictors(gpu: str, bundle: str | Path | None = None) -> Predictors:
    """Predictors for a GPU by name; convolutions by the ``bundle`` in a folder, or by the one shipped for the GPU.

    Raises `InputError` for an unknown GPU or a damaged bundle.
    """
    from surrogate.prediction.shipped import load, load_operators

    device = gpu_named(gpu)
    convs = load(gpu) if bundle is None else load(Path(bundle), gpu=gpu)
    return Predictors(device, convs, load_operators(device.name))


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
        raise InputError(
            f"--max-batch: {wrong} on {predictors.gpu.name}; leave it out to see what holds memory"
        )
    return fits


def _conv_time(layer: Layer, conv: Conv, best: Any, gpu: Gpu) -> LayerTime:
    problem, flops, moved, bound = _conv_facts(conv, best.candidate.mechanism, gpu)
    factor = exp(best.half_width)
    return LayerTime(
        layer.name, layer.operator, problem, best.candidate.name, best.time_us, best.time_us / factor,
        best.time_us * factor, int(best.workspace_bytes), flops, moved, bound, best.source,
    )  # fmt: skip


def _operator_time(layer: Layer, work: Operator, answer: Any, gpu: Gpu) -> LayerTime:
    return LayerTime(
        layer.name, layer.operator, str(work), None, answer.time_us, answer.lower_us, answer.upper_us,
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
    own, best = sum(own for own, _ in times), sum(best for _, best in times)
    return {"convs": len(times), "unknown": len(picks) - len(times), "time_us": own, "saved_us": own - best}


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
        waves = work.dram_bytes / (work.itemsize * ELEMENTS_PER_BLOCK * gpu.sms)
    peak = peak_tflops(gpu, work.dtype, work.uses_tensor_cores)
    return _bound(waves, work.flops, work.dram_bytes, peak, gpu)


def _bound(waves: float, flops: float, dram_bytes: float, peak: float, gpu: Gpu) -> str:
    if waves < 1:
        return UNDER_UTILISED
    computes = compute_us(flops, peak) >= memory_us(dram_bytes, gpu.dram_gbs)
    return COMPUTE if computes else MEMORY
