"""Find the measured GPUs that are similar to an unmeasured GPU, and order the candidates by their data.

Kernels are compiled for a compute capability. The ratio of their time to the roofline depends on what bounds them, and
so on the ratio of peak to bandwidth. The nearest GPU therefore has the same compute capability and the nearest ratio.
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
"""Maximum factor between the peak-to-bandwidth ratios of a GPU and its donor, for the setting's type."""


class SimilarGpus(NamedTuple):
    """The measured GPUs that are similar to one, in groups of falling similarity.

    ``architecture``: GPUs of the same architecture, the nearest first. ``donors``: the GPUs among them whose
    measurements may replace its own, by name. ``vendor``: GPUs of its vendor. ``all_gpus``: all measured GPUs.
    ``is_calibrated``: whether all measurements of the GPU itself come from a calibration.
    """

    own: str
    architecture: tuple[str, ...]
    donors: Mapping[str, Gpu]
    vendor: frozenset[str]
    all_gpus: frozenset[str]
    is_calibrated: bool

    @classmethod
    def of(cls, family_model: FamilyModel, values: tuple[str, ...], device: Gpu, others: Mapping[str, Gpu]) -> Self:
        """Return the groups of ``others``, the GPUs that a model was fitted on, for a setting on a device."""
        nearest_first, donor_names = same_architecture_gpus(family_model.family, values, device, others)
        donors = {name: others[name] for name in donor_names}
        vendor = frozenset(name for name, other in others.items() if other.vendor == device.vendor)
        return cls(
            device.name, nearest_first, donors, vendor, frozenset(others), family_model.is_calibrated(device.name)
        )

    def evidence(self, find: Callable[[frozenset[str]], Iterable[str]], *, each: bool = True) -> set[str]:
        """Return what ``find`` finds for the first group with a result; the GPU itself comes first.

        The result of a calibrated GPU is combined with the next group's result. If ``each``, every GPU of the
        architecture is its own group.
        """
        same = [frozenset({name}) for name in self.architecture] if each else [frozenset(self.architecture)]
        own = set(find(frozenset({self.own})))
        if own and not self.is_calibrated:
            return own
        return own | next(filter(None, (set(find(group)) for group in (*same, self.vendor, self.all_gpus))), set())


@dataclass(frozen=True, slots=True)
class AverageRankSource(Source):
    """A model's times of the competing candidates, assigned in the order of their average rank on measured GPUs.

    ``costs`` (candidates,) are the mean log slowdowns on measured GPUs; an unmeasured candidate has NaN and comes last.
    Candidates compete if they are ``choosable`` (candidates,) and the ``rules`` allow them. The others keep the model's
    times.
    """

    model: Source
    costs: np.ndarray
    rules: SupportRules
    choosable: np.ndarray

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        # 1. Times of all candidates; all arrays are (problems, candidates).
        shape = len(sizes), len(self.context.candidates)
        every_problem, every_candidate = (positions.ravel() for positions in np.indices(shape))
        every = self.model.times(sizes, every_problem, every_candidate)
        times_us, workspace = every.time_us.reshape(shape), every.workspace_bytes.reshape(shape)
        competes = self.rules.allowed(sizes) & self.choosable & np.isfinite(times_us)
        # 2. The shortest time goes to the best average rank, and so on. Times differ by 1e-9 at least, so that the
        #    order is unique. Candidates that do not compete come last in both orders.
        costs = np.broadcast_to(np.nan_to_num(self.costs, nan=np.finfo(float).max), shape)
        rank = np.argsort(np.argsort(np.where(competes, costs, np.inf), axis=1, kind="stable"), axis=1)
        in_order_us = np.sort(np.where(competes, times_us, np.inf), axis=1) * (1 + 1e-9 * np.arange(shape[1]))
        assigned_us = np.where(competes, np.take_along_axis(in_order_us, rank, axis=1), times_us)
        return Times(assigned_us[problem_of_row, candidate_of_row], workspace[problem_of_row, candidate_of_row])


def same_architecture_gpus(
    family: Family, values: tuple[str, ...], gpu: Gpu, others: Mapping[str, Gpu]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ``others`` of the GPU's architecture, the nearest first; and the possible donors among them.

    GPUs of the same compute capability come first, then the order is that of the ratio of peak to bandwidth in the
    setting. A GPU without an architecture has no such GPUs.
    """
    same = {name: other for name, other in others.items() if other.architecture == gpu.architecture}
    if not same or not gpu.architecture:
        return (), ()
    ridge = _ridge(family, values, gpu)
    distance = {name: abs(_ridge(family, values, other) - ridge) for name, other in same.items()}
    order = sorted(distance, key=lambda name: (same[name].compute_capability != gpu.compute_capability, distance[name]))
    return tuple(order), tuple(name for name in order if distance[name] <= log2(MAX_RATIO))


def _ridge(family: Family, values: tuple[str, ...], gpu: Gpu) -> float:
    """Return the base-2 logarithm of the setting's peak in TFLOP/s over the bandwidth in GB/s."""
    constant = dict(zip(family.constant_names, family.formula(values, gpu).constant, strict=True))
    return float(constant["log2_peak_tflops"]) - float(constant["log2_dram_gbs"])
