"""A what-if: its rule, the setting that it reads, the change that it returns, and the evidence of its error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features.errors import InputError, check_choice, read_toml
from surrogate.features.gpu import Gpu, gpu
from surrogate.report.tables import format_number
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.profiling import Profile

if TYPE_CHECKING:
    from surrogate.network.predict import Predictors

ALGORITHMS = ("ring", "tree", "hierarchical")
_TABLE = read_toml(__file__)


def sentence(name: str, /, **values: object) -> str:
    """Return a text of ``setting.toml`` with the values filled in."""
    return _TABLE["texts"][name].format(**values)


def refusal(name: str, /, **values: object) -> InputError:
    """Return the error with a text of ``setting.toml``."""
    return InputError(sentence(name, **values))


@dataclass(frozen=True, slots=True)
class Interconnect:
    """The network of several workers or parameter servers.

    Parameters
    ----------
    workers : int
        The number of GPUs.
    bandwidth_gbs : float
        Bandwidth of a machine's network, in 1e9 bytes per second.
    latency_us : float
        Latency of a step over the network, in µs.
    bucket_bytes : float
        Size of a bucket of gradients, in bytes.
    gpus_per_machine : int
        GPUs of each machine; it must divide ``workers``.
    link_gbs : float
        Bandwidth of the links between the GPUs of a machine, in 1e9 bytes per second.
    link_latency_us : float
        Latency of a step over these links, in µs.
    algorithm : str
        The all-reduce algorithm, one of `ALGORITHMS`.

    Raises
    ------
    InputError
        If a value is out of range, or the algorithm is unknown.
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
            gbs, latency_us = format_number(self.bandwidth_gbs), format_number(self.latency_us)
            raise refusal("network", workers=self.workers, gbs=gbs, latency_us=latency_us)
        if self.gpus_per_machine < 1 or self.workers % self.gpus_per_machine:
            raise refusal("machines", workers=self.workers, gpus=self.gpus_per_machine)
        check_choice("all-reduce", self.algorithm, ALGORITHMS)

    def __str__(self) -> str:
        count = self.gpus_per_machine
        sizes = (self.bandwidth_gbs, self.latency_us, self.link_gbs, self.link_latency_us, self.bucket_bytes / 1e6)
        gbs, latency, link_gbs, link_latency, bucket = map(format_number, sizes)
        inside = f"; inside {link_gbs} GB/s, {link_latency} µs" if count > 1 else ""
        return (
            f"{count} GPU{'s' * (count > 1)} per machine; between machines {gbs} GB/s, {latency} µs per step{inside};"
            f" buckets of {bucket} MB; {self.algorithm}"
        )

    def all_reduce_us(self, size_bytes: float) -> float:
        """Return the time of an all-reduce by ``algorithm``, in µs; 0 for one worker.

        There are n workers on m machines.

        - ``ring``: 2(n−1)/n · size passes the slowest link in 2(n−1) steps; 2(m−1) of the steps are between machines.
        - ``tree``: 2 · size passes the slowest link, up and down a chain in each machine and a binary tree of machines.
        - ``hierarchical``: a reduce-scatter inside machines, a reduce-scatter between machines, then both all-gathers.
          Between machines each GPU sends its part over the machine's one network.

        Parameters
        ----------
        size_bytes : float
            Size of the gradients, in bytes.

        References
        ----------
        Patarasuk, Yuan, JPDC 69(2), 2009. NCCL 2.4's account of its double binary trees, and its table of steps for
        tuning.
        """
        workers = self.workers
        gpus = self.gpus_per_machine
        machines = workers // gpus
        if self.algorithm == "hierarchical":
            levels = ((gpus, self.link_gbs, self.link_latency_us), (machines, self.bandwidth_gbs, self.latency_us))
            return 2 * sum((n - 1) * (size_bytes / n / (gbs * 1e3) + latency_us) for n, gbs, latency_us in levels)
        slowest_gbs = min(self.bandwidth_gbs if machines > 1 else np.inf, self.link_gbs if gpus > 1 else np.inf)
        # How often the message passes the slowest link, and the steps between machines and inside machines.
        if self.algorithm == "tree":
            passes = 2.0 * (workers > 1)
            steps = 2 * (machines - 1).bit_length()
            link_steps = 2 * (gpus - 1)
        else:
            passes = 2 * (workers - 1) / workers
            steps = 2 * (machines - 1)
            link_steps = 2 * (workers - machines)
        return passes * size_bytes / (slowest_gbs * 1e3) + steps * self.latency_us + link_steps * self.link_latency_us


@dataclass
class WhatIfSetting:
    """The setting of a what-if: the trace, the target GPU, the network and the model.

    Attributes
    ----------
    profile : Profile
        The profile of the same trace as the graph.
    target : Gpu or None
        The GPU to predict for.
    network : Interconnect
        The network of several workers.
    bundle : str, Path or None
        A folder with a fitted model of convolutions; None for the shipped model.
    """

    profile: Profile
    target: Gpu | None = None
    network: Interconnect = field(default_factory=Interconnect)
    bundle: str | Path | None = None

    @property
    def own_gpu(self) -> Gpu:
        """The GPU of the trace. Raises `InputError` if it is unknown."""
        if self.profile.gpu is None:
            raise InputError(f"{self.profile.trace.source}: its GPU is not in the registry; name one with --own-gpu")
        return self.profile.gpu

    def predictors(self, device: Gpu) -> "Predictors":
        """Return the predictors of the trace's kernels on a GPU."""
        from surrogate.trace.iteration.predict import predictors_for

        return predictors_for(self.profile.trace, device, self.bundle)


def setting_of(
    profile: Profile,
    *,
    target: str | None = None,
    network: Interconnect | None = None,
    bundle: str | Path | None = None,
) -> WhatIfSetting:
    """Return the setting of what-ifs on a profile.

    Parameters
    ----------
    profile : Profile
        The profile of the trace.
    target : str, optional
        The name of the GPU to predict for.
    network : Interconnect, optional
        The network of several workers.
    bundle : str or Path, optional
        The folder of a fitted bundle; without it the shipped model predicts.

    Returns
    -------
    WhatIfSetting
        The setting, to pass to `evaluate`.

    Raises
    ------
    InputError
        If the GPU is unknown, or ``network`` is no `Interconnect`.
    """
    if not isinstance(network, Interconnect | None):
        raise InputError(f"network: {network!r} is no network; give surrogate.trace.whatif.Interconnect(workers=8)")
    return WhatIfSetting(profile, None if target is None else gpu(target), network or Interconnect(), bundle)


@dataclass(frozen=True, slots=True)
class Change:
    """A changed graph, with the assumptions of its answer.

    Attributes
    ----------
    graph : Graph
        The changed graph.
    low, high : Graph or None
        The graphs at the ends of the interval, if predictions are uncertain.
    notes : tuple of str
        Remarks on the answer.
    samples : float
        A GPU's batch after the change, over the trace's.
    gpus : int
        The number of GPUs that work at once.
    assumes : str
        Values that the answer assumes, in addition to the what-if's own.
    other_host : bool
        Whether another machine with an unknown host runs the step.
    evidence : ErrorEvidence or None
        Evidence of this change's error, if it differs from the rule's.
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


GraphChange = Callable[[Graph, WhatIfSetting, float | None], Change]
"""A function that changes a graph. The number is the what-if's value; None if it has none or the setting gives it."""


@dataclass(frozen=True, slots=True)
class WhatIfValue:
    """The meaning and the default of a what-if's number, which is above 0 and at least ``minimum``.

    ``default`` is a number, or a function of the setting; help shows the function as ``default_text``.
    """

    meaning: str
    default: float | Callable[[WhatIfSetting], float | None]
    default_text: str = ""
    minimum: float = 0.0

    def __str__(self) -> str:
        return f"{self.meaning} [{self.default_text or format(self.default, 'g')}]"

    def of(self, setting: WhatIfSetting) -> float | None:
        """Return the default number; None if the setting does not give it."""
        return self.default(setting) if callable(self.default) else self.default


@dataclass(frozen=True, slots=True)
class ErrorEvidence:
    """The evidence of a rule's error, with its source.

    ``interval`` names in words the part that an answer's interval covers. ``error`` is the largest published relative
    error of whole iterations; `evaluate` derives the interval from it.
    """

    text: str
    interval: str = "none"
    error: float | None = None


def _published(errors_pct: Mapping[str, float], of: str = "") -> ErrorEvidence:
    """Return Daydream's errors of a rule by model, in percent of whole iterations; ``of`` qualifies the networks."""
    errors = ", ".join(f"{model} {error:g}" for model, error in errors_pct.items())
    text = f"errors of this rule in Daydream (ATC 2020){of}: {errors} %"
    return ErrorEvidence(text, error=max(errors_pct.values()) / 100)


NO_PUBLISHED_ERROR = ErrorEvidence("no times before and after are published, so no interval")
EVIDENCE = {"none": NO_PUBLISHED_ERROR}
EVIDENCE |= {name: ErrorEvidence(**row) for name, row in _TABLE["evidence"].items()}
EVIDENCE |= {name: _published(**row) for name, row in _TABLE["published"].items()}
"""What-if → the evidence of its error."""


@dataclass(frozen=True, slots=True)
class WhatIfRule:
    """A what-if as `rule` declares it.

    ``apply`` changes a graph, ``value`` describes the what-if's number, ``evidence`` its error. If
    ``takes_gpu``, its value is a GPU's name instead of a number. ``known_answer`` is an answer computed by hand, for
    the tests (`tests/trace/whatif/steps.py`).
    """

    name: str
    apply: GraphChange
    value: WhatIfValue | None = None
    evidence: ErrorEvidence | None = None
    known_answer: Mapping[str, Any] | None = None
    takes_gpu: bool = False

    @property
    def help(self) -> str:
        """The first paragraph of the function's docstring, in one line; empty without a docstring."""
        return " ".join(cleandoc(self.apply.__doc__ or "").partition("\n\n")[0].split())

    def __call__(self, graph: Graph, setting: WhatIfSetting, value: float | None = None) -> Change:
        """Return the changed graph with its assumptions; ``value`` None means the default."""
        if value is None and self.value:
            value = self.value.of(setting)
        change = self.apply(graph, setting, value)
        number = f"{self.value.meaning}: {format_number(value, 6)}" if self.value and value else ""
        return replace(change, assumes=", ".join(filter(None, (number, change.assumes))))


def rule(name: str, **declared: Any) -> Callable[[GraphChange], WhatIfRule]:
    """Declare a function of this package as a what-if; the first paragraph of its docstring is its help.

    The command line, README's table and the test of known answers find it without any other step.

    Parameters
    ----------
    name : str
        The what-if's name.
    **declared
        Fields of `WhatIfRule`: ``evidence``, ``known_answer``, ``value`` if it takes a number, ``takes_gpu`` if its
        value is a GPU's name.

    Returns
    -------
    callable
        A decorator of a function (graph, setting, value) → `Change`.
    """
    return lambda apply: WhatIfRule(name, apply, **declared)
