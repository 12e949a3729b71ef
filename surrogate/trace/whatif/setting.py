"""What a what-if may ask about besides the graph: the profile, the target GPU, the network, the parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu, gpu
from surrogate.trace.calls import is_shape
from surrogate.trace.events.iterations import Iteration
from surrogate.trace.events.tables import Trace
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.profiling import Profile

if TYPE_CHECKING:
    from surrogate.prediction.predictor import Predictor

OPTIMIZER = r"^(?:Optimizer|Optim)"
"""Layers that are the optimizer's, as a regular expression."""


@dataclass(frozen=True, slots=True)
class Network:
    """Workers joined in a ring, or to parameter servers: GB/s (1e9 bytes) per link, µs per step."""

    workers: int = 8
    bandwidth_gbs: float = 10.0
    latency_us: float = 10.0
    bucket_bytes: float = 25e6

    def __post_init__(self) -> None:
        if self.workers < 1 or not self.bandwidth_gbs > 0 or self.latency_us < 0 or not self.bucket_bytes > 0:
            raise InputError(
                f"{self.workers} workers, {self.bandwidth_gbs:g} GB/s, {self.latency_us:g} µs: no network;"
                " give at least 1 worker, a bandwidth and bucket above 0, a latency of 0 or more"
            )

    def ring_us(self, size_bytes: float) -> float:
        """All-reduce in a ring: 2(n−1)/n · size / bandwidth + 2(n−1) steps of latency; 0 for one worker.

        Source: Patarasuk, Yuan, JPDC 69(2), 2009.
        """
        steps = 2 * (self.workers - 1)
        return steps / self.workers * size_bytes / (self.bandwidth_gbs * 1e3) + steps * self.latency_us

    def transfer_us(self, size_bytes: float) -> float:
        """One push or pull: size / bandwidth + latency."""
        return size_bytes / (self.bandwidth_gbs * 1e3) + self.latency_us


@dataclass
class Setting:
    """``profile`` of the same trace as the graph; ``target`` is the GPU asked about, where one is.

    ``predictor`` is loaded when a what-if first needs it: from the folder ``bundle``, else the shipped one.
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

    @cached_property
    def predictor(self) -> "Predictor":
        """The surrogate for the trace's own GPU."""
        from surrogate.prediction.shipped import load

        name = self.own_gpu.name
        return load(name) if self.bundle is None else load(Path(self.bundle), gpu=name)


def setting_of(
    profile: Profile,
    *,
    target: str | None = None,
    network: Network | None = None,
    bundle: str | Path | None = None,
) -> Setting:
    """A setting for a profile; ``target`` a GPU's name, ``bundle`` a fitted bundle's folder.

    Raises `InputError` for an unknown GPU.
    """
    return Setting(profile, None if target is None else gpu(target), network or Network(), bundle)


@dataclass(frozen=True, slots=True)
class Change:
    """A changed graph; ``low`` and ``high`` where a prediction's interval makes it uncertain; what it left aside."""

    graph: Graph
    low: Graph | None = None
    high: Graph | None = None
    notes: tuple[str, ...] = ()


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
