"""Find the measured GPUs that are similar to an unmeasured GPU, and order the candidates by their data.

Kernels are compiled for a compute capability. The ratio of their time to the roofline depends on what bounds them, and
so on the ratio of peak to bandwidth. The nearest GPU therefore has the same compute capability and the nearest ratio.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from surrogate.bundle.bundle import FamilyModel
from surrogate.features import Gpu
from surrogate.features.families import Family
from surrogate.prediction.ranking import SupportRules
from surrogate.prediction.results import MODEL, SIMILAR_GPU
from surrogate.prediction.sources.source import Source, Times

if TYPE_CHECKING:
    from surrogate.prediction.ranking import Ranker

MAX_RATIO = 1.6
"""Maximum factor between the peak-to-bandwidth ratios of a GPU and its donor, for the setting's type."""
SIMILAR_HALF_WIDTH = 0.18
"""Half width in log time of the ratio of the fastest algorithms' times on a GPU and its donor, over their rooflines'.

It is the 90 % quantile of 145 convolutions over 200 µs on TITAN V and V100 SXM2 with cuDNN 7.6.3 (rai-project/dlperf).
"""


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
        is_calibrated = family_model.is_calibrated(device.name)
        return cls(device.name, nearest_first, donors, vendor, frozenset(others), is_calibrated)

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
class CompetingSource(Source):
    """A ``model`` of times, changed with regard to all candidates that compete for a problem.

    Candidates compete if they are ``choosable`` (candidates,) and the ``rules`` allow them.
    """

    model: Source
    rules: SupportRules
    choosable: np.ndarray

    def every(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the times in µs, the workspaces in bytes, and whether candidates compete: (problems, candidates)."""
        shape = len(sizes), len(self.context.candidates)
        if len(sizes) == 1:
            problem = self.context.setting.problem(sizes[0].tolist())
            one = self.model.one(problem, np.arange(shape[1]))
            allowed = self.choosable & [reason is None for reason in self.rules.of(problem)]
            return one.time_us[None], one.workspace_bytes[None], (allowed & np.isfinite(one.time_us))[None]
        every_problem, every_candidate = (positions.ravel() for positions in np.indices(shape))
        every = self.model.times(sizes, every_problem, every_candidate)
        times_us, workspace = every.time_us.reshape(shape), every.workspace_bytes.reshape(shape)
        return times_us, workspace, self.rules.allowed(sizes) & self.choosable & np.isfinite(times_us)


@dataclass(frozen=True, slots=True)
class FastestSource(CompetingSource):
    """A model's times, multiplied so that the fastest candidate takes the measured time of the fastest.

    ``fastest`` answers `FASTEST` on the GPU or on a similar one. It covers the problems near its training data; the
    others keep the model's times.
    """

    fastest: "Ranker"

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        # 1. The measured time, and the best candidate of the model. A similar GPU has the same time / roofline time.
        times_us, workspace, competes = self.every(sizes)
        problems = np.arange(len(sizes))
        fastest = self.fastest.answers(sizes, problems, np.zeros_like(problems))
        own_us, donor_us = (
            each.formula.problem(each.setting.problem(sizes.T)).roofline_us
            for each in (self.context, self.fastest.source.context)
        )
        best = problems, np.where(competes, times_us, np.inf).argmin(axis=1)
        covered = fastest.in_domain & competes[best]
        # 2. One factor for all candidates of a problem keeps their order. Only the best one's time was measured.
        factor = np.where(covered, fastest.time_us * own_us / donor_us / times_us[best], 1.0)
        is_own = self.fastest.setting.gpu == self.context.setting.gpu
        half_width = np.full(times_us.shape, np.nan)
        half_width[best] = np.where(covered, np.hypot(fastest.half_width, 0 if is_own else SIMILAR_HALF_WIDTH), np.nan)
        rows = problem_of_row, candidate_of_row
        scaled_us = times_us * factor[:, None]
        return Times(scaled_us[rows], workspace[rows], half_width[rows], MODEL if is_own else SIMILAR_GPU)


@dataclass(frozen=True, slots=True)
class AverageRankSource(CompetingSource):
    """A model's times of the competing candidates, assigned in the order of their average rank on measured GPUs.

    ``costs`` (candidates,) are the mean log slowdowns on measured GPUs; an unmeasured candidate has NaN and comes last.
    Candidates that do not compete keep the model's times.
    """

    costs: np.ndarray

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        times_us, workspace, competes = self.every(sizes)
        # The shortest time goes to the best average rank, and so on. Times differ by 1e-9 at least, so that the order
        # is unique. Candidates that do not compete come last in both orders.
        costs = np.broadcast_to(np.nan_to_num(self.costs, nan=np.finfo(float).max), times_us.shape)
        rank = np.argsort(np.argsort(np.where(competes, costs, np.inf), axis=1, kind="stable"), axis=1)
        in_order_us = np.sort(np.where(competes, times_us, np.inf), axis=1) * (1 + 1e-9 * np.arange(len(self.costs)))
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
