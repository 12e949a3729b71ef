"""Fewer kernels: a fused optimizer, batch norm merged into its neighbours, launches replaced by CUDA graphs."""

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.events import kinds
from surrogate.trace.graph.tasks import CALL, DEVICE_KINDS, LAUNCH, WORK, Graph, Mask
from surrogate.trace.whatif.parameters import parameters_of
from surrogate.trace.whatif.precision import OPTIMIZER
from surrogate.trace.whatif.primitives import remove, scale, select
from surrogate.trace.whatif.setting import Change, Setting

_ADAM_BYTES = 28.0
"""Moved per parameter in one pass, fp32: weight, gradient and two moments read, weight and moments written."""
_LAUNCHES = (kinds.LAUNCH, kinds.MEMSET_CALL)


def fused_adam(graph: Graph, setting: Setting, value: float | None) -> Change:
    """The optimizer's kernels and launches become one kernel and one launch per iteration.

    The kernel passes once over weight, gradient and both moments: 28 bytes per parameter at the GPU's bandwidth, where
    parameters and GPU are known, and never more than the kernels it replaces. Raises `InputError` without an optimizer.
    """
    del value
    inside = select(graph, layer=OPTIMIZER)
    kernels = inside & np.isin(graph.kind, DEVICE_KINDS)
    if not kernels.any():
        raise InputError(
            "fused-adam: no kernel belongs to an Optimizer.step range; record one around the optimizer"
        )
    host = inside & np.isin(graph.kind, (CALL, WORK))
    keep, factor = np.zeros(len(graph), np.bool_), np.ones(len(graph))
    for place in np.unique(graph.iteration[kernels]).tolist():
        own = np.flatnonzero(kernels & (graph.iteration == place))
        whole_us = float(graph.duration_us[own].sum())
        count = sum(one.elements for one in parameters_of(setting.profile.trace, place, graph.iterations))
        known = count and setting.profile.gpu is not None
        time_us = min(whole_us, _ADAM_BYTES * count / (setting.own_gpu.dram_gbs * 1e3)) if known else whole_us
        last = own[graph.duration_us[own] > 0][-1] if (graph.duration_us[own] > 0).any() else own[-1]
        factor[last] = time_us / graph.duration_us[last] if graph.duration_us[last] else 1.0
        keep[last] = True
        keep[launches_of(graph, last)] = True
    return Change(scale(remove(graph, (kernels | host) & ~keep), keep & kernels, factor))


def launches_of(graph: Graph, task: int) -> np.ndarray:
    """The calls that launch a device task."""
    return graph.src[(graph.dst == task) & (graph.edge_kind == LAUNCH)]


def restructured_batch_norm(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Batch norm split and merged into the neighbouring layers: its kernels ÷2, those of the ReLU after it gone.

    The rule of Daydream, ATC 2020, section 5.2, for the restructuring of Jung et al., SysML 2019. Raises `InputError`
    where the trace shows no batch norm.
    """
    del setting, value
    norm = select(graph, kind="kernel", layer=r"(?i)^(?:batch_?norm|BatchNorm)")
    if not norm.any():
        raise InputError("batch-norm: no layer of this trace is a batch norm; the what-if applies to none")
    relu = select(graph, kind="kernel", layer=r"(?i)^relu") & _after_norm(graph)
    launches = np.zeros(len(graph), np.bool_)
    chosen = (graph.edge_kind == LAUNCH) & relu[graph.dst]
    launches[graph.src[chosen]] = True
    return Change(remove(scale(graph, norm, 1 / 2), relu | launches))


def _after_norm(graph: Graph) -> Mask:
    """Tasks of layers that directly follow a batch norm in their iteration's forward order."""
    of_norm = [name.lower().startswith(("batch_norm", "batchnorm")) for name in graph.layers]
    # An addition that makes a residual block stands between some batch norms and their ReLU: those stay.
    follows = np.array([False, *of_norm[:-1]])
    return (graph.layer >= 0) & follows[graph.layer]


def cuda_graphs(graph: Graph, setting: Setting, value: float | None) -> Change:
    """One graph launch per iteration: other launches, and the host's work inside layers, take no time.

    What the host does outside layers (data loading, the program's own code), copies and synchronisation stay.
    """
    del value
    calls = setting.profile.trace.calls
    called = (graph.kind == CALL) & (graph.row >= 0)
    launch = np.zeros(len(graph), np.bool_)
    launch[called] = np.isin(calls.kind[graph.row[called]], _LAUNCHES)
    if not launch.any():
        return Change(graph, notes=("no launch of a kernel in the trace: nothing to capture",))
    other = np.zeros(len(graph), np.bool_)
    other[called] = np.isin(
        calls.kind[graph.row[called]], (kinds.OTHER_CALL, kinds.RECORD_CALL, kinds.MEMORY_CALL)
    )
    captured = (graph.layer >= 0) & ~select(graph, layer=r"DataLoader")
    work = captured & ((graph.kind == WORK) | other) & ~graph.removed
    first = np.zeros(len(graph), np.bool_)
    for place in np.unique(graph.iteration[launch]).tolist():
        first[np.flatnonzero(launch & (graph.iteration == place))[0]] = True
    return Change(remove(graph, (launch & ~first) | work))
