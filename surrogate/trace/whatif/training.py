"""Training written otherwise: a fused optimizer, batch norm merged into its neighbours, activations that are moved to
the host and back (vDNN) or kept encoded (Gist).

The last two pay in time for memory; launches that they add on the host are not counted.
"""

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.calls import is_shape, parameters_of
from surrogate.trace.graph.tasks import CALL, DEVICE_KINDS, LAUNCH, WORK, Graph, Mask
from surrogate.trace.layers import BACKWARD, FORWARD
from surrogate.trace.whatif.primitives import OPTIMIZER, NewTask, insert, remove, scale, select
from surrogate.trace.whatif.setting import UNJUDGED, UNMEASURED, Change, Known, Setting, Value, published, rule

TO_HOST = "copies to the host"
FROM_HOST = "copies from the host"
COMPRESSION = 2.0
"""Half precision in the place of single: the mildest of Gist's lossy encodings (Jain et al., ISCA 2018)."""
FUSED_BYTES = {"Adam": 28.0, "AdamW": 28.0, "SGD": 20.0, "Adagrad": 20.0}
"""Optimizers that PyTorch has as one kernel → what that moves per parameter in fp32: weight, gradient and state (two
moments of Adam, the momentum of SGD, a sum of squares) read, weight and state written."""
_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_NORM = re.compile(r"(?i)^batch_?norm")


# 28 MB at 900 GB/s.
_ONE_PASS = Known(2110 - 100 + 28e6 / 900e3)


@rule("fused-adam", evidence=published({"BERT-base": 1.9, "BERT-large": 12.5, "Seq2Seq": 4.5}), known=_ONE_PASS)
def fused_adam(graph: Graph, setting: Setting, value: float | None) -> Change:
    """The kernels and launches of Adam's update become one kernel and one launch per iteration.

    The kernel passes once over weight, gradient and both moments: 28 bytes per parameter at the GPU's bandwidth, where
    parameters and GPU are known, and never more than the kernels it replaces. Raises `InputError` without an optimizer,
    and where the trace names another one.
    """
    name = optimizer_of(graph) or "Adam"
    if "adam" not in name.lower():
        raise InputError(f"fused-adam: the optimizer of this trace is {name}; ask for fused-optimizer")
    return _fused(graph, setting, "Adam")


@rule("fused-optimizer", evidence=UNJUDGED, known=_ONE_PASS)
def fused_optimizer(graph: Graph, setting: Setting, value: float | None) -> Change:
    """As fused-adam, for the optimizer that the trace names: Adam, AdamW, SGD or Adagrad."""
    name = optimizer_of(graph)
    if name not in FUSED_BYTES:
        raise InputError(
            f"fused-optimizer: the trace's optimizer is {name or 'not named'}; PyTorch has one kernel for each of"
            f" {', '.join(FUSED_BYTES)}"
        )
    return _fused(graph, setting, name)


def optimizer_of(graph: Graph) -> str:
    """The optimizer's class by its ``Optimizer.step`` range, such as SGD; "" where none names it."""
    return next((found[1] for name in graph.names if (found := _STEP.search(name))), "")


def update_tasks(graph: Graph) -> Mask:
    """Tasks of the optimizer's update, on the host and the device; not those that clear gradients."""
    return select(graph, layer=OPTIMIZER) & ~select(graph, layer="zero_grad")


def _fused(graph: Graph, setting: Setting, name: str) -> Change:
    inside = update_tasks(graph)
    kernels = inside & np.isin(graph.kind, DEVICE_KINDS)
    if not kernels.any():
        raise InputError("no kernel is of an Optimizer.step range, so there is none to fuse; record one")
    host = inside & np.isin(graph.kind, (CALL, WORK))
    every = parameters_of(setting.profile.trace, graph.iterations)
    keep = np.zeros(len(graph), np.bool_)
    factor = np.ones(len(graph))
    for iteration in np.unique(graph.iteration[kernels]).tolist():
        members = np.flatnonzero(kernels & (graph.iteration == iteration))
        time_us = float(graph.duration_us[members].sum())
        if iteration >= 0 and every[iteration] and setting.profile.gpu is not None:
            moved = FUSED_BYTES[name] * sum(parameter.elements for parameter in every[iteration])
            time_us = min(time_us, moved / (setting.own_gpu.dram_gbs * 1e3))
        # The last kernel that takes time stands for all of them, with its launch.
        lasting = members[graph.duration_us[members] > 0]
        last = (lasting if len(lasting) else members)[-1]
        factor[last] = time_us / graph.duration_us[last] if graph.duration_us[last] else 1.0
        keep[last] = True
        keep[graph.src[(graph.dst == last) & (graph.edge_kind == LAUNCH)]] = True
    changed = scale(remove(graph, (kernels | host) & ~keep), keep & kernels, factor)
    return Change(changed, assumes=f"{name}, {FUSED_BYTES[name]:g} bytes a parameter")


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


@dataclass(frozen=True, slots=True)
class Kept:
    """A layer's input that the backward pass needs again: its bytes, and device tasks of the layer (places in the
    graph): the first and the last of its forward pass, the first of its backward pass, and the one before that."""

    layer: int
    size_bytes: float
    first: int
    last: int
    back: int
    before_back: int


def kept_inputs(graph: Graph, setting: Setting, pattern: str) -> list[Kept]:
    """The inputs of layers whose name matches, in the order of the forward pass; `InputError` where there is none."""
    trace = setting.profile.trace
    layers = setting.profile.layers
    # Layer → the bytes of the first tensor that goes into its forward pass.
    sizes: dict[int, float] = {}
    forward = (layers.of_range >= 0) & (layers.phase_of_range == FORWARD) & (trace.ranges.shapes >= 0)
    for row in np.flatnonzero(forward).tolist():
        shape = next((shape for shape in trace.shapes_of(row) or () if shape and is_shape(shape)), None)
        types = trace.types[int(trace.ranges.types[row])] if trace.ranges.types[row] >= 0 else ()
        if shape:
            width = 2 if types and "half" in types[0].lower().replace("bfloat16", "half") else 4
            sizes.setdefault(int(layers.of_range[row]), float(width * prod(shape)))
    on_device = np.isin(graph.kind, DEVICE_KINDS) & ~graph.removed
    chosen = np.flatnonzero(select(graph, layer=pattern) & on_device)
    tensors = []
    for layer in dict.fromkeys(graph.layer[chosen].tolist()):
        of_layer = chosen[graph.layer[chosen] == layer]
        ahead = of_layer[graph.phase[of_layer] == FORWARD]
        back = of_layer[graph.phase[of_layer] == BACKWARD]
        if layer in sizes and len(ahead) and len(back):
            stream = np.flatnonzero(on_device & (graph.resource == graph.resource[back[0]]))
            before = int(stream[max(np.searchsorted(stream, back[0]) - 1, 0)])
            tensors.append(Kept(layer, sizes[layer], int(ahead[0]), int(ahead[-1]), int(back[0]), before))
    if not tensors:
        raise InputError(f"no layer like {pattern} has shapes and both passes in this trace; record a training step")
    return tensors


# The convolution's 15.75 MB leave in 1,000 µs, from its start on, so that the next layer waits 400; they come back
# behind that, for which its backward pass, four kernels of 600 later, waits another 400.
@rule("vdnn", evidence=UNMEASURED, known=Known(2110 + 400 + 400))
def offloaded(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Inputs of convolutions go to the host in the forward pass and come back for the backward pass (vDNN, MICRO 2016).

    They go during their layer's forward pass, which the next layer waits for, and come back while the convolution
    behind runs backwards: vDNN's policy for convolutions (Rhu et al.).
    """
    tensors = kept_inputs(graph, setting, r"(?i)^(?:aten::)?conv")
    per_byte = 1 / (setting.own_gpu.pcie_gbs * 1e3)
    tasks: list[NewTask] = []
    for tensor in tensors:
        stream = np.flatnonzero((graph.resource == graph.resource[tensor.first]) & ~graph.removed)
        at = np.searchsorted(stream, tensor.first)
        behind = stream[stream > tensor.last]
        launch = graph.src[(graph.dst == tensor.first) & (graph.edge_kind == LAUNCH)]
        after = (*launch.tolist(), *stream[:at][-1:].tolist())
        name = f"offload of {graph.layers[tensor.layer]}"
        before = tuple(behind[:1].tolist())
        iteration = int(graph.iteration[tensor.first])
        time_us = tensor.size_bytes * per_byte
        tasks.append(NewTask(name, "copy", TO_HOST, time_us, after=after, before=before, iteration=iteration))
    for number, tensor in reversed(list(enumerate(tensors))):
        # While the convolution behind it runs backwards; of an iteration's last one, once its own forward pass is over.
        later = tensors[number + 1 :][:1]
        ready = later[0].before_back if later and later[0].back < tensor.back else tensor.last
        after = (len(graph) + number, ready)
        iteration = int(graph.iteration[tensor.back])
        time_us = tensor.size_bytes * per_byte
        name = f"prefetch of {graph.layers[tensor.layer]}"
        tasks.append(NewTask(name, "copy", FROM_HOST, time_us, after=after, before=(tensor.back,), iteration=iteration))
    moved = sum(tensor.size_bytes for tensor in tensors) / max(len(graph.iterations), 1)
    return Change(insert(graph, tasks), notes=(f"{moved / 1e6:,.0f} MB per iteration leave the GPU's memory",),
                  assumes=f"{setting.own_gpu.pcie_gbs:g} GB/s to and from the host")  # fmt: skip


# Each of two passes reads or writes 6 MB, and half as much encoded, at 900 GB/s: 10 µs.
@rule("gist", value=Value("how many times smaller", COMPRESSION, least=1), evidence=UNMEASURED,
      known=Known(2110 + 10 + 10, value=2))  # fmt: skip
def encoded(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Inputs of ReLUs are kept N times smaller for the backward pass (Gist, ISCA 2018).

    A kernel behind the layer's forward pass encodes, one ahead of its backward pass decodes, each a pass over memory
    (Jain et al.).
    """
    ratio = value or COMPRESSION
    tensors = kept_inputs(graph, setting, r"(?i)^relu")
    per_byte = (1 + 1 / ratio) / (setting.own_gpu.dram_gbs * 1e3)
    tasks = [
        NewTask(
            f"{name} of {graph.layers[tensor.layer]}", "kernel", graph.resources[graph.resource[after]].label,
            tensor.size_bytes * per_byte, after=(after,), iteration=int(graph.iteration[after]), layer=tensor.layer,
        )
        for tensor in tensors
        for name, after in (("encoding", tensor.last), ("decoding", tensor.before_back))
    ]  # fmt: skip
    saved = (1 - 1 / ratio) * sum(tensor.size_bytes for tensor in tensors) / max(len(graph.iterations), 1)
    return Change(insert(graph, tasks), notes=(f"{saved / 1e6:,.0f} MB per iteration are saved",))
