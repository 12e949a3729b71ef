"""`Site`: one setting of one bundle made ready to be asked: candidates, times, intervals, support, domain."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.prediction.engine import Engine
from surrogate.prediction.selection import Estimate, Excluded
from surrogate.prediction.setting import Candidate, Setting
from surrogate.prediction.verdicts import Verdicts
from surrogate.uncertainty.conformal import Factors, Widths
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.references import References

ROOFLINE_HALF_WIDTH = float(np.log(10.0))
"""Half width in log time of a roofline time: nothing is known but that kernels take up to some ten times as long."""
NEVER_MEASURED = "never measured in the bundle's training data"
ROOFLINE = "roofline"
ARRAYS_PAY = 12
"""Problems from which on arrays are faster than one problem after another."""
Ranking = tuple[tuple[Estimate, ...], tuple[Excluded, ...], float]
"""Estimates, the fastest first; what the library refuses; the problem's distance to the training data."""


@dataclass(frozen=True, slots=True)
class Site:
    """The first ``measured`` of ``candidates`` can be ranked; the library has the others, but training never saw them.

    ``widening`` multiplies half widths: 1 for a GPU that training saw.
    """

    setting: Setting
    candidates: tuple[Candidate, ...]
    measured: int
    engine: Engine
    roofline: Engine
    verdicts: Verdicts
    widths: Widths
    domain: Domain
    source: str
    widening: float
    bases: tuple[float, ...] = field(init=False)
    """Half width of every candidate before distance and time count, from ``widths``."""
    references: References | None = field(init=False)
    """The training shapes of the library and direction."""
    _reasons: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)
    _refusals: dict[tuple[str | None, ...], tuple[Excluded, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        plain, s = replace(self.widths, distance=Factors(), time_us=Factors()), self.setting
        bases = (plain.lookup(s.gpu, s.direction, one.algorithm, 0.0, 1.0) for one in self.candidates)
        object.__setattr__(self, "bases", tuple(bases))
        object.__setattr__(self, "references", self.domain.references.get(f"{s.library}|{s.direction}"))

    def rank(self, conv: Conv) -> Ranking:
        """Every candidate that the library accepts, by its predicted time (ties: the registry's order)."""
        verdicts = self.verdicts.of(conv)
        wanted = [place for place in range(self.measured) if verdicts[place] is None]
        distance = self.distance(conv)
        estimates = self.estimates(conv, wanted, distance)
        estimates.sort(key=_by_time)
        return tuple(estimates), self._refused(verdicts), distance

    def rank_many(self, convs: Sequence[Conv]) -> list[Ranking]:
        """`rank` of several problems: through arrays where there are enough of them to pay."""
        if len(convs) < ARRAYS_PAY:
            return [self.rank(conv) for conv in convs]
        sizes = np.array([conv.sizes for conv in convs])
        verdicts = [self.verdicts.of(conv) for conv in convs]
        allowed = np.array([[v is None for v in one[: self.measured]] for one in verdicts])
        problem, index = np.nonzero(allowed)
        columns = self.many(sizes, problem, index)
        times, halves, workspaces = (
            columns[name].tolist() for name in ("predicted_us", "half", "workspace_bytes")
        )
        sources = np.where(columns["known"], self.source, ROOFLINE).tolist()
        found: list[list[Estimate]] = [[] for _ in convs]
        rows = zip(problem.tolist(), index.tolist(), times, halves, workspaces, sources, strict=True)
        for number, place, time_us, half, workspace, source in rows:
            found[number].append(Estimate(self.candidates[place], time_us, half, int(workspace), source))
        for estimates in found:
            estimates.sort(key=_by_time)
        return [
            (tuple(estimates), self._refused(one), distance)
            for estimates, one, distance in zip(found, verdicts, columns["distance"].tolist(), strict=True)
        ]

    def _refused(self, verdicts: tuple[str | None, ...]) -> tuple[Excluded, ...]:
        """What the library refuses, and what training never saw."""
        found = self._refusals.get(verdicts)
        if found is None:
            found = self._refusals[verdicts] = tuple(
                Excluded(self.candidates[place].name, reason or NEVER_MEASURED)
                for place, reason in enumerate(verdicts)
                if reason is not None or place >= self.measured
            )
        return found

    def distance(self, conv: Conv) -> float:
        """Of the problem to the training data, as `Domain.distance`, whose references are looked up once."""
        return self.references.distance(conv.sizes) if self.references else inf

    def estimates(self, conv: Conv, wanted: list[int], distance: float) -> list[Estimate]:
        """Time, interval and workspace of the candidates at ``wanted``, in that order."""
        if not wanted:
            return []
        times_us, workspaces = self.engine.one(conv, wanted)
        near, by_time = self.widths.distance, self.widths.time_us
        edges, values = by_time.edges, by_time.values
        factor = near.values[bisect_right(near.edges, distance)] * self.widening
        candidates, bases, source, found = self.candidates, self.bases, self.source, []
        for place, time_us, workspace in zip(wanted, times_us, workspaces, strict=True):
            if time_us != time_us:  # NaN: the model does not know the algorithm
                floor_us = self.roofline.one(conv, [place])[0][0]
                one = Estimate(candidates[place], floor_us, ROOFLINE_HALF_WIDTH, int(workspace), ROOFLINE)
            else:
                half = bases[place] * factor * values[bisect_right(edges, time_us)]
                one = Estimate(candidates[place], time_us, half, int(workspace), source)
            found.append(one)
        return found

    def place_of(self, algorithm: str) -> int:
        """Where an algorithm (among solvers: a solver) stands. Raises `InputError` with the nearest names."""
        for place, candidate in enumerate(self.candidates):
            if candidate.name == algorithm:
                return place
        names = [candidate.name for candidate in self.candidates]
        raise InputError(
            f"algorithm {algorithm!r} is none of {self.setting.library} {self.setting.direction};"
            f" known: {', '.join(names)}{nearest(algorithm, names)}"
        )

    def reason(self, conv: Conv, algorithm: str, distance: float) -> str | None:
        """What of the question training did not see, or None."""
        s = self.setting
        return self.setting_reason(algorithm) or self.domain.size_reason(
            conv.sizes, s.library, s.direction, distance
        )

    def setting_reason(self, algorithm: str) -> str | None:
        """What of the setting training did not see with this algorithm, or None."""
        if algorithm not in self._reasons:
            s = self.setting
            self._reasons[algorithm] = self.domain.setting_reason(
                s.gpu, s.library, s.direction, s.dtype, s.math, s.layout, algorithm, s.library_version
            )
        return self._reasons[algorithm]

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
        """Columns (rows,) of `Predictions`, for candidate ``index[i]`` on problem ``problem[i]`` of ``sizes``.

        ``sizes`` (problems, 14). Beside them ``half``, the half width in log time, ``known``, False where the roofline
        stands in for the model, and ``distance`` (problems,).
        """
        s = self.setting
        time_us, workspace = self.engine.many(sizes, problem, index)
        distance = np.asarray(self.domain.distance(sizes, s.library, s.direction))
        inside = self._inside(sizes, distance)
        factors = self.widths.distance.at(distance)[problem]
        half = np.array(self.bases)[index]
        unseen = np.array([self.setting_reason(one.algorithm) is not None for one in self.candidates])
        in_domain = inside[problem] & ~unseen[index]
        half *= factors * self.widths.time_us.at(time_us) * self.widening
        known = ~np.isnan(time_us)
        unknown = np.flatnonzero(~known)
        if len(unknown):
            time_us[unknown] = self.roofline.many(sizes, problem[unknown], index[unknown])[0]
            half[unknown] = ROOFLINE_HALF_WIDTH
        factor = np.exp(half)
        return {
            "predicted_us": time_us,
            "lower_us": time_us / factor,
            "upper_us": time_us * factor,
            "in_domain": in_domain,
            "workspace_bytes": workspace,
            "half": half,
            "known": known,
            "distance": distance,
        }

    def _inside(self, sizes: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """(problems,) True where every size and the distance lie in the training data's."""
        key = f"{self.setting.library}|{self.setting.direction}"
        inside = distance <= self.domain.reach.get(key, np.inf)
        ranges: Mapping[str, Any] = self.domain.ranges
        for column, name in enumerate(SIZE_COLUMNS):
            least, greatest = ranges[name]
            inside &= (least <= sizes[:, column]) & (sizes[:, column] <= greatest)
        return inside


def _by_time(one: Estimate) -> float:
    return one.time_us
