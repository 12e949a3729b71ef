"""A what-if: its rule, the setting that it reads, the change that it returns, and the evidence of its error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import InputError, check_choice
from surrogate.features.gpu import Gpu, gpu
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.profiling import Profile

if TYPE_CHECKING:
    from surrogate.network.predict import Predictors

ALGORITHMS = ("ring", "tree", "hierarchical")


@dataclass(frozen=True, slots=True)
class Interconnect:
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
        speeds = (self.bandwidth_gbs, self.link_gbs, self.bucket_bytes)
        delays = (self.latency_us, self.link_latency_us)
        if self.workers < 1 or not min(speeds) > 0 or min(delays) < 0:
            raise InputError(
                f"{self.workers} workers, {self.bandwidth_gbs:g} GB/s, {self.latency_us:g} µs: no network;"
                " give at least 1 worker, bandwidths and a bucket above 0, latencies of 0 or more"
            )
        if self.gpus_per_machine < 1 or self.workers % self.gpus_per_machine:
            raise InputError(
                f"{self.workers} workers do not fill machines of {self.gpus_per_machine} GPUs; give a whole multiple"
            )
        check_choice("all-reduce", self.algorithm, ALGORITHMS)

    def __str__(self) -> str:
        inside = f", {self.link_gbs:g} GB/s and {self.link_latency_us:g} µs in them" * (self.gpus_per_machine > 1)
        return (
            f"GPUs a machine: {self.gpus_per_machine}, {self.bandwidth_gbs:g} GB/s and"
            f" {self.latency_us:g} µs a step between machines{inside}, {self.bucket_bytes / 1e6:g} MB a bucket,"
            f" {self.algorithm}"
        )

    def all_reduce_us(self, size_bytes: float) -> float:
        """All-reduce by ``algorithm``, µs; 0 for one worker.

        ``ring``, n workers on m machines: 2(n−1)/n · size over the slowest link, 2(n−1) steps, of which 2(m−1) between
        machines. ``tree``: 2 · size over the slowest link, up and down a chain in each machine and a binary tree of
        machines. ``hierarchical``: reduce-scatter inside machines, then between them (each GPU its part, all over the
        machine's one network), and all-gathers back. Source: Patarasuk, Yuan, JPDC 69(2), 2009; NCCL 2.4's account of
        its double binary trees, and its table of steps for tuning.
        """
        workers = self.workers
        inside = self.gpus_per_machine
        machines = workers // inside
        if self.algorithm == "hierarchical":
            levels = ((inside, self.link_gbs, self.link_latency_us), (machines, self.bandwidth_gbs, self.latency_us))
            return 2 * sum((n - 1) * (size_bytes / n / (gbs * 1e3) + latency_us) for n, gbs, latency_us in levels)
        slowest_gbs = min(self.bandwidth_gbs if machines > 1 else np.inf, self.link_gbs if inside > 1 else np.inf)
        # How often the message passes the slowest link, and the steps between machines and inside them.
        if self.algorithm == "tree":
            passes = 2.0 * (workers > 1)
            steps = 2 * (machines - 1).bit_length()
            link_steps = 2 * (inside - 1)
        else:
            passes = 2 * (workers - 1) / workers
            steps = 2 * (machines - 1)
            link_steps = 2 * (workers - machines)
        return passes * size_bytes / (slowest_gbs * 1e3) + steps * self.latency_us + link_steps * self.link_latency_us


@dataclass
class WhatIfSetting:
    """``profile`` of the same trace as the graph; ``target`` is the GPU asked about, where one is.

    ``bundle``: a folder with a fitted model of convolutions, else the shipped one predicts.
    """

    profile: Profile
    target: Gpu | None = None
    network: Interconnect = field(default_factory=Interconnect)
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
    profile: Profile,
    *,
    target: str | None = None,
    network: Interconnect | None = None,
    bundle: str | Path | None = None,
) -> WhatIfSetting:
    """A setting for a profile; ``target`` a GPU's name, ``bundle`` a fitted bundle's folder.

    Raises `InputError` for an unknown GPU, and for a network that is none.
    """
    if not isinstance(network, Interconnect | None):
        raise InputError(f"network: {network!r} is none; give such as surrogate.trace.whatif.Interconnect(workers=8)")
    return WhatIfSetting(profile, None if target is None else gpu(target), network or Interconnect(), bundle)


@dataclass(frozen=True, slots=True)
class Change:
    """A changed graph; ``low`` and ``high`` where a prediction's interval makes it uncertain; what it left aside.

    ``samples``: a GPU's batch over that of the trace; ``gpus``: how many work at once; ``assumes``: values beside the
    what-if's own that the answer rests on; ``other_host``: another machine runs it, of whose host nothing is known;
    ``evidence``: of this change, where it is not the rule's.
    """

    graph: Graph
    low: Graph | None = None
    high: Graph | None = None
    notes: tuple[str, ...] = ()
    samples: float = 1.0
    gpus: int = 1
    assumes: str = ""
    other_host: bool = False
    evidence: "ErrorEvidence | None" = None


Model = Callable[[Graph, WhatIfSetting, float | None], Change]
"""Changes a graph; the number is the what-if's value, None where it has none or leaves it to the setting."""


@dataclass(frozen=True, slots=True)
class WhatIfValue:
    """What a what-if's number means, and what stands in for it: a number, or what the setting tells, ``words`` of it.

    It is above 0, and ``minimum`` or more.
    """

    meaning: str
    default: float | Callable[[WhatIfSetting], float | None]
    words: str = ""
    minimum: float = 0.0

    def __str__(self) -> str:
        return f"{self.meaning} [{self.words or format(self.default, 'g')}]"

    def of(self, setting: WhatIfSetting) -> float | None:
        """The number that stands in; None where the setting does not tell it."""
        return self.default(setting) if callable(self.default) else self.default


@dataclass(frozen=True, slots=True)
class ErrorEvidence:
    """What is known of a rule's error, with its source; ``interval`` says in words of what an answer's interval is.

    ``error`` is the largest published one on whole iterations, from which `evaluate` makes an interval.
    """

    text: str
    interval: str = "none"
    error: float | None = None


def published(errors_pct: Mapping[str, float], of: str = "") -> ErrorEvidence:
    """Daydream's errors of a rule by model, in percent of whole iterations, and ``of`` what networks they are."""
    listed = ", ".join(f"{model} {error:g}" for model, error in errors_pct.items())
    text = f"errors of this rule in Daydream (ATC 2020){of}: {listed} %"
    return ErrorEvidence(text, error=max(errors_pct.values()) / 100)


NO_PUBLISHED_ERROR = ErrorEvidence("no times before and after were found in public, so no interval")


@dataclass(frozen=True, slots=True)
class Op:
    """An operator of a `StepAnswer` step: 10 µs on the host; it launches ``kernel``, if named, which takes ``us``.

    The host calls one operator behind the other, then waits; kernels run in order, each once its launch has returned.
    A name with ``Memcpy`` is a copy's, one with ``nccl`` a collective's. A positive ``sequence`` is autograd's number,
    which a backward operator (``ackward`` in its name) shares with its forward one. ``shapes`` are of fp32 tensors.
    """

    name: str
    kernel: str = ""
    us: float = 0.0
    sequence: int = -1
    shapes: Sequence[Sequence[int]] = ()


STEP = (
    Op("aten::copy_", "Memcpy HtoD (Pinned -> Device)", 200),
    Op("aten::conv2d", "volta_scudnn_128x64_relu_interior_nn_v1", 600, 1, [[10, 3, 350, 375], [16, 3, 3, 3]]),
    Op("aten::batch_norm", "batch_norm_kernel", 200, 2, [[10, 16, 348, 373], [16], [16]]),
    Op("aten::relu", "relu_kernel", 100, 3, [[10, 150, 1000]]),
    Op("ReluBackward0", "relu_backward_kernel", 100, 3),
    Op("CudnnBatchNormBackward0", "batch_norm_backward_kernel", 200, 2),
    Op("ConvolutionBackward0", "cudnn_wgrad_kernel", 600, 1),
    Op("torch::autograd::AccumulateGrad", shapes=[[1000, 1000]]),
    Op("Optimizer.step#Adam.step", "adam_kernel", 50),
    Op("Optimizer.step#Adam.step", "adam_kernel", 50),
)
"""A training step of 2,110 µs on a V100: 10 until the first launch is done, then the device without a pause, for which
the host waits. The convolution's input has 15.75 MB, the ReLU's 6 MB, the parameters 4 MB."""


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """A what-if's answer by hand: µs per iteration after it, where two steps of ``ops`` were traced on a V100.

    ``target`` is the GPU asked about, ``algorithms_us`` what the model of convolutions predicts of any.
    """

    us: float
    ops: Sequence[Op] = STEP
    value: float | None = None
    target: str | None = None
    algorithms_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WhatIfRule:
    """A what-if as `rule` declares it: how it changes a graph, what its number means, what is known of its answers.

    ``takes_gpu``: a GPU's name may stand in the place of a number.
    """

    name: str
    model: Model
    value: WhatIfValue | None = None
    evidence: ErrorEvidence | None = None
    known_answer: StepAnswer | None = None
    takes_gpu: bool = False

    @property
    def help(self) -> str:
        """The first sentence of the function's docstring, in one line; empty without one."""
        return " ".join(cleandoc(self.model.__doc__ or "").partition("\n\n")[0].split())

    def __call__(self, graph: Graph, setting: WhatIfSetting, value: float | None = None) -> Change:
        """The changed graph, and what it assumes; without a value the default one."""
        if value is None and self.value:
            value = self.value.of(setting)
        change = self.model(graph, setting, value)
        own = f"{self.value.meaning}: {value:g}" if self.value and value else ""
        return replace(change, assumes=", ".join(filter(None, (own, change.assumes))))


def rule(
    name: str,
    *,
    value: WhatIfValue | None = None,
    evidence: ErrorEvidence | None = None,
    known_answer: StepAnswer | None = None,
    takes_gpu: bool = False,
) -> Callable[[Model], WhatIfRule]:
    """Declare a function of this package as the what-if ``name``; the first paragraph of its docstring is its help.

    That is all that it takes: the command line, README's table and the test of known answers find it.
    """
    return lambda model: WhatIfRule(name, model, value, evidence, known_answer, takes_gpu)
