"""What a what-if may ask about besides the graph: the profile, the target GPU, the network, the parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import InputError, require_known
from surrogate.features.gpu import Gpu, gpu
from surrogate.trace.calls import is_shape
from surrogate.trace.events.iterations import Iteration
from surrogate.trace.events.tables import Trace
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.profiling import Profile

if TYPE_CHECKING:
    from surrogate.network.predict import Predictors

OPTIMIZER = r"^(?:Optimizer|Optim)"
"""Layers that are the optimizer's, as a regular expression."""
NETWORK, LINKS = "network", "links inside machines"
"""Channels of the graph."""


ALGORITHMS = ("ring", "tree", "hierarchical")


@dataclass(frozen=True, slots=True)
class Network:
    """``workers`` GPUs on machines of ``gpus_per_machine`` each, or parameter servers.

    ``bandwidth_gbs`` (1e9 bytes per second) is a machine's network, ``latency_us`` a step over it; ``link_gbs`` and
    ``link_latency_us`` are those of the links between the GPUs of one machine. ``algorithm``: `ALGORITHMS`.
    """

    workers: int = 8
    bandwidth_gbs: float = 10.0
    latency_us: float = 10.0
    bucket_bytes: float = 25e6
    gpus_per_machine: int = 1
    link_gbs: float = 150.0
    link_latency_us: float = 3.0
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        speeds, delays = (self.bandwidth_gbs, self.link_gbs, self.bucket_bytes), (self.latency_us, self.link_latency_us)
        if self.workers < 1 or not min(speeds) > 0 or min(delays) < 0:
            raise InputError(
                f"{self.workers} workers, {self.bandwidth_gbs:g} GB/s, {self.latency_us:g} µs: no network;"
                " give at least 1 worker, bandwidths and a bucket above 0, latencies of 0 or more"
            )
        if self.gpus_per_machine < 1 or self.workers % self.gpus_per_machine:
            raise InputError(
                f"{self.workers} workers do not fill machines of {self.gpus_per_machine} GPUs; give a whole multiple"
            )
        require_known("all-reduce", self.algorithm, ALGORITHMS)

    def all_reduce_us(self, size_bytes: float) -> float:
        """All-reduce by ``algorithm``, µs; 0 for one worker.

        ``ring``, n workers on m machines: 2(n−1)/n · size over the slowest link, 2(n−1) steps, of which 2(m−1) between
        machines. ``tree``: 2 · size over the slowest link, up and down a chain in each machine and a binary tree of
        machines. ``hierarchical``: the stages of `stages` after one another. Source: Patarasuk, Yuan, JPDC 69(2), 2009;
        NCCL 2.4's account of its double binary trees, and its table of steps for tuning.
        """
        if self.algorithm == "hierarchical":
            return sum(time_us for *_, time_us in self.stages(size_bytes))
        workers, inside = self.workers, self.gpus_per_machine
        machines = workers // inside
        slowest = min(self.bandwidth_gbs if machines > 1 else np.inf, self.link_gbs if inside > 1 else np.inf)
        moved, steps, links = 2 * (workers - 1) / workers, 2 * (machines - 1), 2 * (workers - machines)
        if self.algorithm == "tree":
            moved, steps, links = 2 * (workers > 1), 2 * (machines - 1).bit_length(), 2 * (inside - 1)
        return moved * size_bytes / (slowest * 1e3) + steps * self.latency_us + links * self.link_latency_us

    def stages(self, size_bytes: float) -> list[tuple[str, str, float]]:
        """(name, channel, µs) of an all-reduce over the hierarchy: reduce-scatter inside machines, then between them
        (each GPU its part, all over the machine's one network), then all-gather back (BlueConnect, MLSys 2019)."""
        inside, machines = self.gpus_per_machine, self.workers // self.gpus_per_machine
        levels = (
            (LINKS, inside, self.link_gbs, self.link_latency_us),
            (NETWORK, machines, self.bandwidth_gbs, self.latency_us),
        )
        parts = [
            (channel, (count - 1) / count * size_bytes / (gbs * 1e3) + (count - 1) * latency_us)
            for channel, count, gbs, latency_us in levels
            if count > 1
        ]
        down, up = ([(name, *part) for part in parts] for name in ("reduce-scatter", "all-gather"))
        return [*down, *reversed(up)]

    def transfer_us(self, size_bytes: float) -> float:
        """One push or pull: size / bandwidth + latency."""
        return size_bytes / (self.bandwidth_gbs * 1e3) + self.latency_us


@dataclass
class Setting:
    """``profile`` of the same trace as the graph; ``target`` is the GPU asked about, where one is.

    ``bundle``: a folder with a fitted model of convolutions, else the shipped one predicts.
    """

    profile: Profile
    target: Gpu | None = None
    network: Network = field(default_factory=Network)
    bundle: str | Path | None = None

    @property
    def own_gpu(self) -> Gpu:
        """The GPU that the trace was taken on. Raises `InputError` where it is not known."""
        if self.profile.gpu is None:
            raise InputError(
                f"{self.profile.trace.source}: its GPU is not in the registry; name the one to count with by --own-gpu"
            )
        return self.profile.gpu

    def predictors(self, device: Gpu) -> "Predictors":
        """What predicts the trace's kernels on a GPU."""
        from surrogate.trace.iteration.predict import predictors_for

        return predictors_for(self.profile.trace, device, self.bundle)


def setting_of(
    profile: Profile, *, target: str | None = None, network: Network | None = None, bundle: str | Path | None = None
) -> Setting:
    """A setting for a profile; ``target`` a GPU's name, ``bundle`` a fitted bundle's folder.

    Raises `InputError` for an unknown GPU.
    """
    return Setting(profile, None if target is None else gpu(target), network or Network(), bundle)


@dataclass(frozen=True, slots=True)
class Change:
    """A changed graph; ``low`` and ``high`` where a prediction's interval makes it uncertain; what it left aside.

    ``samples``: a GPU's batch over that of the trace; ``gpus``: how many work at once.
    """

    graph: Graph
    low: Graph | None = None
    high: Graph | None = None
    notes: tuple[str, ...] = ()
    samples: float = 1.0
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor: its elements, and the time (ns) at which the host has launched everything that makes its gradient."""

    elements: int
    ready_ns: int

    @property
    def size_bytes(self) -> float:
        """In fp32."""
        return 4.0 * self.elements


def parameters_of(trace: Trace, position: int, iterations: Sequence[Iteration]) -> list[Parameter]:
    """The parameters in the order in which one iteration's backward pass finishes them; [] without shapes.

    Autograd accumulates each gradient in a range of its own that carries the parameter's shape.
    """
    if not 0 <= position < len(iterations):
        return []
    ranges, iteration = trace.ranges, iterations[position]
    inside = (ranges.start_ns >= iteration.start_ns) & (ranges.start_ns < iteration.end_ns)
    accumulates = trace.named(ranges, "torch::autograd::AccumulateGrad".__eq__)
    parameters = []
    for row in np.flatnonzero(accumulates & inside).tolist():
        shape = next(iter(trace.shapes_of(row) or ()), ())
        if shape and is_shape(shape) and prod(shape):
            parameters.append(Parameter(prod(shape), int(ranges.start_ns[row])))
    return parameters
