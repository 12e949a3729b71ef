"""Training in less memory: activations moved to the host and back (vDNN), or kept encoded (Gist).

Both pay in time for memory; launches that they add on the host are not counted. Daydream (ATC 2020) models both without
measuring its error.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.calls import is_shape
from surrogate.trace.graph.tasks import DEVICE_KINDS, LAUNCH, Graph
from surrogate.trace.layers import BACKWARD, FORWARD
from surrogate.trace.whatif.primitives import NewTask, insert, select
from surrogate.trace.whatif.setting import Change, Setting

TO_HOST, FROM_HOST = "copies to the host", "copies from the host"
COMPRESSION = 2.0
"""Half precision in the place of single: the mildest of Gist's lossy encodings (Jain et al., ISCA 2018)."""


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
    trace, layers = setting.profile.trace, setting.profile.layers
    sizes: dict[int, float] = {}
    forward = (layers.of_range >= 0) & (layers.phase_of_range == FORWARD) & (trace.ranges.shapes >= 0)
    for row in np.flatnonzero(forward).tolist():
        shape = next((shape for shape in trace.shapes_of(row) or () if shape and is_shape(shape)), None)
        kind = trace.types[int(trace.ranges.types[row])] if trace.ranges.types[row] >= 0 else ()
        if shape:
            width = 2 if kind and "half" in kind[0].lower().replace("bfloat16", "half") else 4
            sizes.setdefault(int(layers.of_range[row]), float(width * prod(shape)))
    on_device = np.isin(graph.kind, DEVICE_KINDS) & ~graph.removed
    chosen = np.flatnonzero(select(graph, layer=pattern) & on_device)
    tensors = []
    for layer in dict.fromkeys(graph.layer[chosen].tolist()):
        of_layer = chosen[graph.layer[chosen] == layer]
        ahead, back = of_layer[graph.phase[of_layer] == FORWARD], of_layer[graph.phase[of_layer] == BACKWARD]
        if layer in sizes and len(ahead) and len(back):
            stream = np.flatnonzero(on_device & (graph.resource == graph.resource[back[0]]))
            before = int(stream[max(np.searchsorted(stream, back[0]) - 1, 0)])
            tensors.append(Kept(layer, sizes[layer], int(ahead[0]), int(ahead[-1]), int(back[0]), before))
    if not tensors:
        raise InputError(f"no layer like {pattern} has shapes and both passes in this trace; record a training step")
    return tensors


def offloaded(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Inputs of convolutions go to the host during their layer's forward pass, which the next layer waits for, and come
    back while the convolution behind runs backwards (vDNN's policy for convolutions; Rhu et al., MICRO 2016)."""
    tensors = kept_inputs(graph, setting, r"(?i)^(?:aten::)?conv")
    per_byte = 1 / (setting.own_gpu.pcie_gbs * 1e3)
    tasks: list[NewTask] = []
    for tensor in tensors:
        stream = np.flatnonzero((graph.resource == graph.resource[tensor.first]) & ~graph.removed)
        at, behind = np.searchsorted(stream, tensor.first), stream[stream > tensor.last]
        launch = graph.src[(graph.dst == tensor.first) & (graph.edge_kind == LAUNCH)]
        after = (*launch.tolist(), *stream[:at][-1:].tolist())
        name = f"offload of {graph.layers[tensor.layer]}"
        constraints = (after, tuple(behind[:1].tolist()), 0.0, int(graph.iteration[tensor.first]))
        tasks.append(NewTask(name, "copy", TO_HOST, tensor.size_bytes * per_byte, *constraints))
    for number, tensor in reversed(list(enumerate(tensors))):
        # While the convolution behind it runs backwards; of an iteration's last one, once its own forward pass is over.
        later = tensors[number + 1 :][:1]
        ready = later[0].before_back if later and later[0].back < tensor.back else tensor.last
        constraints = ((len(graph) + number, ready), (tensor.back,), 0.0, int(graph.iteration[tensor.back]))
        name = f"prefetch of {graph.layers[tensor.layer]}"
        tasks.append(NewTask(name, "copy", FROM_HOST, tensor.size_bytes * per_byte, *constraints))
    moved = sum(tensor.size_bytes for tensor in tensors) / max(len(graph.iterations), 1)
    return Change(insert(graph, tasks), notes=(f"{moved / 1e6:,.0f} MB per iteration leave the GPU's memory",))


def encoded(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Inputs of ReLUs are kept ``value`` times smaller: a kernel behind the layer's forward pass encodes, one ahead of
    its backward pass decodes, each a pass over memory (Gist, Jain et al., ISCA 2018)."""
    ratio = value or COMPRESSION
    tensors = kept_inputs(graph, setting, r"(?i)^relu")
    per_byte = (1 + 1 / ratio) / (setting.own_gpu.dram_gbs * 1e3)
    tasks = [
        NewTask(
            f"{name} of {graph.layers[tensor.layer]}", "kernel", graph.resources[graph.resource[after]].label,
            tensor.size_bytes * per_byte, (after,), (), 0.0, int(graph.iteration[after]), tensor.layer,
        )
        for tensor in tensors
        for name, after in (("encoding", tensor.last), ("decoding", tensor.before_back))
    ]  # fmt: skip
    saved = (1 - 1 / ratio) * sum(tensor.size_bytes for tensor in tensors) / max(len(graph.iterations), 1)
    return Change(insert(graph, tasks), notes=(f"{saved / 1e6:,.0f} MB per iteration are saved",))
