"""Training on several workers, from a trace of one: all-reduce in buckets, parameter servers, priorities (P3)."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.graph.tasks import DEVICE_KINDS, Graph
from surrogate.trace.whatif.setting import OPTIMIZER
from surrogate.trace.whatif.primitives import NewTask, insert, schedule, select
from surrogate.trace.whatif.setting import Change, Network, Parameter, Setting, parameters_of

NETWORK = "network"
SLICE_BYTES = 200e3
"""P3's slices hold 50,000 parameters (Jayarajan et al., MLSys 2019)."""


def data_parallel(graph: Graph, setting: Setting, value: float | None) -> Change:
    """An all-reduce in a ring per bucket of gradients, beside the backward pass; the optimizer waits for all of them.

    Buckets fill in the order in which gradients are ready, as PyTorch's do (25 MB). ``value``: workers. Raises
    `InputError` where the trace shows no parameters.
    """
    network = setting.network if value is None else _workers(setting, value)
    tasks = []
    for place, parameters in _iterations(graph, setting):
        update = _first_update(graph, place)
        for number, bucket in enumerate(_buckets(parameters, network.bucket_bytes)):
            size = sum(one.size_bytes for one in bucket)
            ready = _last_launched(graph, setting, bucket[-1].ready_ns)
            before = (update,) if update > ready >= 0 else ()
            tasks.append(
                NewTask(f"all-reduce of bucket {number}", "collective", NETWORK, network.ring_us(size),
                        (ready,) if ready >= 0 else (), before, iteration=place)
            )  # fmt: skip
    return Change(insert(graph, tasks))


def parameter_server(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Each gradient is pushed when ready and its weight pulled back, first come first served; the next iteration's
    first use of the weight waits for it. ``value``: GB/s."""
    return _servers(graph, setting, value, prioritised=False)


def priority_propagation(graph: Graph, setting: Setting, value: float | None) -> Change:
    """As `parameter_server`, in slices of 50,000 parameters, those that the next forward pass needs first ahead (P3,
    Jayarajan et al., MLSys 2019). ``value``: GB/s."""
    return _servers(graph, setting, value, prioritised=True)


def _servers(graph: Graph, setting: Setting, value: float | None, *, prioritised: bool) -> Change:
    network = setting.network if value is None else replace(setting.network, bandwidth_gbs=value)
    tasks: list[NewTask] = []
    for place, parameters in _iterations(graph, setting):
        uses = _forward_tasks(graph, place + 1, len(parameters))
        for order, one in enumerate(parameters):
            # Backward finishes parameters in the reverse order of the forward pass.
            forward = len(parameters) - 1 - order
            use = uses[forward] if uses else -1
            ready = _last_launched(graph, setting, one.ready_ns)
            parts = _slices(one.size_bytes) if prioritised else [one.size_bytes]
            for number, size in enumerate(parts):
                name = f"parameter {forward}" + (f" slice {number}" if prioritised else "")
                tasks.append(NewTask(f"push and pull of {name}", "collective", NETWORK, network.transfer_us(2 * size),
                                     (ready,) if ready >= 0 else (), (use,) if use > ready else (),
                                     -float(forward), place))  # fmt: skip
    made = insert(graph, tasks)
    notes = ("the trace holds one iteration, so no forward pass waits for a weight",) * (
        len(graph.iterations) < 2
    )
    return Change(schedule(made, NETWORK, "priority" if prioritised else "arrival"), notes=notes)


def _workers(setting: Setting, value: float) -> Network:
    if value != int(value):
        raise InputError(f"data-parallel={value:g} is no number of workers; give a whole number")
    return replace(setting.network, workers=int(value))


def _iterations(graph: Graph, setting: Setting) -> Iterator[tuple[int, list[Parameter]]]:
    found = [
        (place, parameters_of(setting.profile.trace, place, graph.iterations))
        for place in range(len(graph.iterations))
    ]
    if not any(parameters for _, parameters in found):
        raise InputError(
            "the trace shows no parameters (ranges of torch::autograd::AccumulateGrad with shapes);"
            " record a training step with shapes"
        )
    yield from ((place, parameters) for place, parameters in found if parameters)


def _buckets(parameters: list[Parameter], bucket_bytes: float) -> Iterator[list[Parameter]]:
    bucket: list[Parameter] = []
    for one in parameters:
        bucket.append(one)
        if sum(other.size_bytes for other in bucket) >= bucket_bytes:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _slices(size_bytes: float) -> list[float]:
    whole, rest = divmod(size_bytes, SLICE_BYTES)
    return [SLICE_BYTES] * int(whole) + ([rest] if rest else [])


def _last_launched(graph: Graph, setting: Setting, time_ns: int) -> int:
    """The last device task whose launch call started before that time, -1 for none."""
    trace = setting.profile.trace
    rows = np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & (graph.row >= 0))
    call = trace.activities.call[graph.row[rows]]
    launched = np.where(call >= 0, trace.calls.start_ns[call] if len(trace.calls) else 0, 2**62)
    before = np.flatnonzero(launched < time_ns)
    return int(rows[before[-1]]) if len(before) else -1


def _first_update(graph: Graph, place: int) -> int:
    """The optimizer's first device task, else the iteration's end mark."""
    update = np.flatnonzero(
        select(graph, layer=OPTIMIZER, iteration=place) & np.isin(graph.kind, DEVICE_KINDS)
    )
    # zero_grad is an Optimizer range too, and clears gradients before they are made.
    backward = np.flatnonzero(select(graph, phase="backward", iteration=place))
    later = update[update > backward[-1]] if len(backward) else update
    if len(later):
        return int(later[0])
    ends = np.flatnonzero(select(graph, kind="mark", name="iteration end", iteration=place))
    return int(ends[0]) if len(ends) else -1


def _forward_tasks(graph: Graph, place: int, count: int) -> list[int]:
    """For ``count`` parameters in forward order the device task of iteration ``place`` that uses each first.

    Layers with weights cannot be told from others by name alone, so the forward pass is shared out by position.
    """
    rows = np.flatnonzero(select(graph, phase="forward", iteration=place, kind="kernel"))
    if not len(rows):
        return []
    return rows[np.minimum(np.arange(count) * len(rows) // max(count, 1), len(rows) - 1)].tolist()
