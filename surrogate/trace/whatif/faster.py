"""Faster or other hardware, and another batch: kernels k× faster, another GPU, a faster network, n samples a step."""

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.roofline import peak_tflops, roofline_us
from surrogate.trace.graph.tasks import DEVICE_KINDS, Graph
from surrogate.trace.whatif.precision import OPTIMIZER
from surrogate.trace.whatif.primitives import scale, select
from surrogate.trace.whatif.setting import Change, Setting


def faster_kernels(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Every kernel ``value`` times as fast (2 without one); collectives and copies stay."""
    del setting
    return Change(scale(graph, select(graph, kind="kernel"), 1 / _positive("faster-kernels", value, 2.0)))


def faster_host(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Host work and calls ``value`` times as fast (2 without one)."""
    del setting
    return Change(
        scale(graph, select(graph, kind=("host work", "call")), 1 / _positive("faster-host", value, 2.0))
    )


def faster_network(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Collectives of the trace ``value`` times as fast (2 without one).

    A collective's measured time includes its wait for other workers, which a faster network does not shorten: the
    prediction is the most that can be gained. Raises `InputError` where the trace has none.
    """
    del setting
    found = select(graph, kind="collective")
    if not found.any():
        raise InputError("faster-network: the trace has no collective; data-parallel inserts some")
    note = "a collective's time includes waiting for other workers; the prediction is the most that can be gained"
    return Change(scale(graph, found, 1 / _positive("faster-network", value, 2.0)), notes=(note,))


def other_gpu(graph: Graph, setting: Setting, value: float | None) -> Change:
    """The kernels on the target GPU: by the ratio of their rooflines, where work is unknown by memory bandwidth.

    Copies to and from the host by the PCIe rates, the host as it is. Raises `InputError` without a target.
    """
    del value
    target, own, profile = setting.target, setting.own_gpu, setting.profile
    if target is None:
        raise InputError("gpu: name the GPU that is asked about with --gpu")
    rows = np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & (graph.row >= 0) & ~graph.removed)
    if not len(rows):
        return Change(graph, notes=("the trace holds no device task: nothing runs on a GPU",))
    activity = graph.row[rows]
    flops, moved = profile.flops[activity], profile.dram_bytes[activity]
    dtype = [profile.dtype[a] or "fp32" for a in activity.tolist()]
    times = [
        roofline_us(flops, moved, np.array([peak_tflops(one, d) for d in dtype]), one.dram_gbs) for one in (own, target)
    ]  # fmt: skip
    known = moved > 0
    factor = np.ones(len(graph))
    with np.errstate(invalid="ignore", divide="ignore"):
        factor[rows] = np.where(known, times[1] / times[0], own.dram_gbs / target.dram_gbs)
    over_bus = select(graph, kind="copy", name=r"(?i)HtoD|DtoH|host")
    if own.pcie_gbs and target.pcie_gbs:
        factor[over_bus] = own.pcie_gbs / target.pcie_gbs
    changed = select(graph, kind=("kernel", "copy", "memset"))
    notes = (f"{(~known).mean():.0%} of the device tasks have unknown work and follow memory bandwidth",)
    return Change(scale(graph, changed, factor), notes=notes if not known.all() else ())


def batch(graph: Graph, setting: Setting, value: float | None) -> Change:
    """``value`` samples a step: device tasks of the forward and backward passes and the loading of data in proportion.

    The optimizer and the accumulation of gradients work on weights and stay; a kernel's time below one wave of blocks
    does not shrink, so its blocks decide: less than a wave before and after, it stays. Raises `InputError` without a
    batch size, in the trace's shapes or as ``value``.
    """
    from surrogate.trace.overview import batch_size

    own = batch_size(setting.profile)
    if not own:
        raise InputError(
            "batch: no shape in this trace tells its batch size; record shapes with the profiler"
        )
    ratio = _positive("batch", value, 2.0 * own) / own
    rows = np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & (graph.row >= 0) & ~graph.removed)
    blocks = setting.profile.trace.activities.grid[graph.row[rows]].prod(axis=1).astype(float)
    sms = float(setting.profile.sms or 1)
    factor = np.ones(len(graph))
    # Rounded up to whole waves of one block per SM, the least that can be said without an occupancy.
    factor[rows] = np.where(
        blocks > 0, np.ceil(np.maximum(blocks * ratio, 1) / sms) / np.ceil(np.maximum(blocks, 1) / sms), ratio
    )
    samples = select(graph, kind=("kernel", "copy", "memset")) & ~select(
        graph, layer=rf"{OPTIMIZER}|AccumulateGrad"
    )
    loading = select(graph, kind="host work", layer="DataLoader")
    return Change(scale(graph, samples | loading, np.where(loading, ratio, factor)))


def _positive(name: str, value: float | None, default: float) -> float:
    if value is not None and not (np.isfinite(value) and value > 0):
        raise InputError(f"{name}={value:g} is no factor; give a number above 0")
    return default if value is None else value
