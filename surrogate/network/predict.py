"""A network's time: every distinct problem predicted once, the fastest feasible algorithm taken, layers summed."""

from collections import Counter
from functools import lru_cache
from math import exp

from surrogate.features.algorithms import Mechanism
from surrogate.features.conv import Conv
from surrogate.features.gpu import Gpu
from surrogate.features.machine import b_max
from surrogate.features.operators import Gemm, Operator
from surrogate.features.operators.pointwise import ELEMENTS_PER_BLOCK
from surrogate.features.roofline import compute_us, memory_us, peak_tflops
from surrogate.features.terms import MECHANISM_TERMS
from surrogate.models.seer.physics import CLASSES, COMPUTE, MEMORY, UNDER_UTILISED
from surrogate.network.network import Layer, Network
from surrogate.network.predictors import ConvPredictor, OperatorTimes
from surrogate.network.result import LayerTime, NetworkTime
from surrogate.network.savings import savings
from surrogate.prediction.results import Selection

MIDDLE = 1
"""Place of the middle tile among a mechanism's launches."""


def time_network(
    network: Network,
    convs: ConvPredictor,
    operators: OperatorTimes,
    gpu: Gpu,
    *,
    workspace_limit: int | None = None,
    deterministic: bool = False,
) -> NetworkTime:
    """Predicted times of all layers on ``gpu``.

    A convolution that no algorithm can run within the limits is counted as unsupported, by the reason.
    """
    limits = {"workspace_limit": workspace_limit, "deterministic": deterministic}
    distinct = tuple(dict.fromkeys(network.convs))
    ranked = convs.select_many(distinct, **limits) if distinct else ()
    choices = dict(zip(distinct, ranked, strict=True))
    others = tuple(dict.fromkeys(layer.work for layer in network.layers if not isinstance(layer.work, Conv)))
    predicted = dict(zip(others, operators.predict(others) if others else (), strict=True))
    times, infeasible = [], Counter(network.unsupported)
    for layer in network.layers:
        made = (
            _conv_time(layer, layer.work, choices[layer.work], gpu)
            if isinstance(layer.work, Conv)
            else _operator_time(layer, layer.work, predicted[layer.work], gpu)
        )
        if made is None:
            infeasible[f"{layer.operator} (no algorithm within the limits)"] += 1
        else:
            times.append(made)
    return NetworkTime(
        network.name,
        gpu.name,
        tuple(times),
        network.batch,
        network.training,
        network.ignored,
        dict(infeasible),
        savings(network, choices),
        Counter(reason for conv in network.convs if (reason := choices[conv].reason)),
    )


def _conv_time(layer: Layer, conv: Conv, choice: Selection, gpu: Gpu) -> LayerTime | None:
    if not choice.estimates:
        return None
    best = choice.estimates[0]
    problem, flops, moved, bound = _conv_facts(conv, best.candidate.mechanism, gpu)
    factor = exp(best.half_width)
    return LayerTime(
        layer.name, layer.operator, problem, best.candidate.name, best.time_us, best.time_us / factor,
        best.time_us * factor, int(best.workspace_bytes), flops, moved, bound, best.source,
    )  # fmt: skip


def _operator_time(layer: Layer, work: Operator, found: object, gpu: Gpu) -> LayerTime:
    time_us, lower_us, upper_us, source = (
        getattr(found, name) for name in ("time_us", "lower_us", "upper_us", "source")
    )
    return LayerTime(
        layer.name, layer.operator, str(work), None, time_us, lower_us, upper_us,
        0, work.flops, work.dram_bytes, operator_bound(work, gpu), source,
    )  # fmt: skip


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
        return CLASSES[UNDER_UTILISED]
    computes = compute_us(flops, peak) >= memory_us(dram_bytes, gpu.dram_gbs)
    return CLASSES[COMPUTE if computes else MEMORY]
