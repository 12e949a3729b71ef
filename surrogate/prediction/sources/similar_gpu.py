"""Similar GPUs: which measured GPUs answer for one that was not measured, and in which order of the candidates.

Kernels are compiled for a compute capability, and their times over the roofline depend on what bounds them, which is
the ratio of the peak to the bandwidth. So the nearest GPU has the compute capability and the nearest ratio.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import log2
from typing import NamedTuple, Self

import numpy as np

from surrogate.bundle.bundle import FamilyModel
from surrogate.features.families import Family
from surrogate.features.gpu import Gpu
from surrogate.prediction.sources.source import Source, Times
from surrogate.prediction.support_rules import SupportRules

MAX_RATIO = 1.6
"""No GPU is a donor if its ratio of peak to bandwidth, for the setting's type, differs by more."""


class SimilarGpus(NamedTuple):
    """The measured GPUs that are similar to one, in groups of falling similarity.

    ``architecture``: GPUs of its architecture, the nearest first; ``donors``: those of them whose measurements may be
    used in place of its own. ``vendor``: its vendor's, ``everywhere``: all. ``is_calibrated``: a calibration alone
    measured the GPU itself.
    """

    own: str
    architecture: tuple[str, ...]
    donors: tuple[str, ...]
    vendor: frozenset[str]
    everywhere: frozenset[str]
    is_calibrated: bool

    @classmethod
    def of(cls, part: FamilyModel, values: tuple[str, ...], device: Gpu, others: Mapping[str, Gpu]) -> Self:
        """Return the groups of ``others``, the GPUs that a part was fitted on, for a setting on a device."""
        nearest_first, donors = same_architecture_gpus(part.family, values, device, others)
        vendor = frozenset(name for name, other in others.items() if other.vendor == device.vendor)
        return cls(device.name, nearest_first, donors, vendor, frozenset(others), part.is_calibrated(device.name))

    def evidence(self, of: Callable[[frozenset[str]], Iterable[str]], *, each: bool = True) -> set[str]:
        """Return ``of`` the first group that has anything, the GPU itself first; a calibration's sample only adds.

        ``each``: GPUs of the architecture are groups of their own.
        """
        alike = [frozenset({name}) for name in self.architecture] if each else [frozenset(self.architecture)]
        own = set(of(frozenset({self.own})))
        if own and not self.is_calibrated:
            return own
        return own | next(filter(None, (set(of(group)) for group in (*alike, self.vendor, self.everywhere))), set())


@dataclass(frozen=True, slots=True)
class AverageRankSource(Source):
    """A model's times of the competing candidates, assigned in the order that is best on average on measured GPUs.

    ``costs`` (candidates,): mean log slowdowns there; NaN, which comes last, for an unknown candidate. ``choosable``
    (candidates,) candidates compete if the ``rules`` allow them; the others keep the model's times.
    """

    model: Source
    costs: np.ndarray
    rules: SupportRules
    choosable: np.ndarray

    def times(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> Times:
        """As `Source.times`."""
        # 1. Times of all candidates; all arrays are (problems, candidates).
        shape = len(sizes), len(self.context.candidates)
        every_problem, every_candidate = (places.ravel() for places in np.indices(shape))
        every = self.model.times(sizes, every_problem, every_candidate)
        times_us, workspace = every.time_us.reshape(shape), every.workspace_bytes.reshape(shape)
        competes = self.rules.allowed(sizes) & self.choosable & np.isfinite(times_us)
        # 2. The competing candidates by average rank, and as many times, the shortest first; a hair apart, so that the
        #    order shows. Candidates that do not compete come last in both.
        costs = np.broadcast_to(np.nan_to_num(self.costs, nan=np.finfo(float).max), shape)
        rank = np.argsort(np.argsort(np.where(competes, costs, np.inf), axis=1, kind="stable"), axis=1)
        in_order_us = np.sort(np.where(competes, times_us, np.inf), axis=1) * (1 + 1e-9 * np.arange(shape[1]))
        assigned_us = np.where(competes, np.take_along_axis(in_order_us, rank, axis=1), times_us)
        return Times(assigned_us[problem, index], workspace[problem, index])


def same_architecture_gpus(
    family: Family, values: tuple[str, ...], gpu: Gpu, others: Mapping[str, Gpu]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ``others`` of the GPU's architecture in a setting, the nearest first; and those of them that may lend.

    Of the same compute capability first, then by the ratio of peak to bandwidth. A GPU without an architecture has no
    siblings.
    """
    alike = {name: other for name, other in others.items() if other.architecture == gpu.architecture}
    if not alike or not gpu.architecture:
        return (), ()
    ridge = _ridge(family, values, gpu)
    apart = {name: abs(_ridge(family, values, other) - ridge) for name, other in alike.items()}
    order = sorted(apart, key=lambda name: (alike[name].compute_capability != gpu.compute_capability, apart[name]))
    return tuple(order), tuple(name for name in order if apart[name] <= log2(MAX_RATIO))


def _ridge(family: Family, values: tuple[str, ...], gpu: Gpu) -> float:
    """Base-2 logarithm of the peak that the setting's kernels run at, in TFLOP/s, over the bandwidth in GB/s."""
    constant = dict(zip(family.constant_names, family.formula(values, gpu).constant, strict=True))
    return float(constant["log2_peak_tflops"]) - float(constant["log2_dram_gbs"])
