"""Training written otherwise: a fused optimizer, batch norm merged into its neighbours."""

import re

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.calls import known_parameters
from surrogate.trace.graph.tasks import CALL, DEVICE_KINDS, LAUNCH, WORK, Graph, Mask
from surrogate.trace.whatif.primitives import OPTIMIZER, remove, scale, select
from surrogate.trace.whatif.setting import UNJUDGED, Change, Known, Setting, published, rule

FUSED_BYTES = {"Adam": 28.0, "AdamW": 28.0, "SGD": 20.0, "Adagrad": 20.0}
"""Optimizers that PyTorch has as one kernel → what that moves per parameter in fp32: weight, gradient and state (two
moments of Adam, the momentum of SGD, a sum of squares) read, weight and state written."""
_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_NORM = re.compile(r"(?i)^batch_?norm")


def optimizer_of(graph: Graph) -> str:
    """The optimizer's class by its ``Optimizer.step`` range, such as SGD; "" where none names it."""
    return next((found[1] for name in graph.names if (found := _STEP.search(name))), "")


def update_tasks(graph: Graph) -> Mask:
    """Tasks of the optimizer's update, on the host and the device; not those that clear gradients."""
    return select(graph, layer=OPTIMIZER) & ~select(graph, layer="zero_grad")


# 28 MB at 900 GB/s.
@rule(
    "fused-optimizer",
    evidence=published({"BERT-base": 1.9, "BERT-large": 12.5, "Seq2Seq": 4.5}, " for Adam"),
    known=Known(2110 - 100 + 28e6 / 900e3),
)
def fused_optimizer(graph: Graph, setting: Setting, value: float | None) -> Change:
    """The optimizer's kernels and launches become one of each per iteration: Adam's, AdamW's, SGD's or Adagrad's.

    The kernel passes once over weight, gradient and state (`FUSED_BYTES`) at the GPU's bandwidth, and takes never more
    than the kernels it replaces. Only Adam's errors were published. Raises `InputError` where the trace names no
    optimizer or another one, and where parameters or GPU are not known.
    """
    name = optimizer_of(graph)
    if name not in FUSED_BYTES:
        raise InputError(
            f"fused-optimizer: the trace's optimizer is {name or 'not named'}; PyTorch has one kernel for each of"
            f" {', '.join(FUSED_BYTES)}"
        )
    inside = update_tasks(graph)
    kernels = inside & np.isin(graph.kind, DEVICE_KINDS)
    if not kernels.any():
        raise InputError("no kernel is of an Optimizer.step range, so there is none to fuse; record one")
    host = inside & np.isin(graph.kind, (CALL, WORK))
    every = known_parameters(setting.profile.trace, graph.iterations)
    keep = np.zeros(len(graph), np.bool_)
    factor = np.ones(len(graph))
    for iteration in np.unique(graph.iteration[kernels]).tolist():
        members = np.flatnonzero(kernels & (graph.iteration == iteration))
        time_us = float(graph.duration_us[members].sum())
        if iteration >= 0 and every[iteration]:
            moved = FUSED_BYTES[name] * sum(parameter.elements for parameter in every[iteration])
            time_us = min(time_us, moved / (setting.own_gpu.dram_gbs * 1e3))
        # The last kernel that takes time stands for all of them, with its launch.
        lasting = members[graph.duration_us[members] > 0]
        last = (lasting if len(lasting) else members)[-1]
        factor[last] = time_us / graph.duration_us[last] if graph.duration_us[last] else 1.0
        keep[last] = True
        keep[graph.src[(graph.dst == last) & (graph.edge_kind == LAUNCH)]] = True
    changed = scale(remove(graph, (kernels | host) & ~keep), keep & kernels, factor)
    evidence = None if name.startswith("Adam") else UNJUDGED
    return Change(changed, assumes=f"{name}, {FUSED_BYTES[name]:g} bytes a parameter", evidence=evidence)


@rule("batch-norm", evidence=published({"DenseNet-121": 6.1}), known=Known(2110 - (200 + 200) / 2 - (100 + 100)))
def restructured_batch_norm(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Batch norm split and merged into the neighbouring layers: its kernels ÷2, those of the ReLU after it gone.

    The rule of Daydream, ATC 2020, section 5.2, for the restructuring of Jung et al., SysML 2019. Raises `InputError`
    where the trace shows no batch norm.
    """
    norm = select(graph, kind="kernel", layer=_NORM.pattern)
    if not norm.any():
        raise InputError("batch-norm: no layer of this trace is a batch norm; the what-if applies to none")
    # Layers right behind a batch norm in forward order. An addition that makes a residual block stands between some
    # batch norms and their ReLU: those stay.
    follows = np.array([False, *(bool(_NORM.match(name)) for name in graph.layers[:-1])])
    relu = select(graph, kind="kernel", layer=r"(?i)^relu") & (graph.layer >= 0) & follows[graph.layer]
    launches = np.zeros(len(graph), np.bool_)
    launches[graph.src[(graph.edge_kind == LAUNCH) & relu[graph.dst]]] = True
    return Change(remove(scale(graph, norm, 1 / 2), relu | launches))
