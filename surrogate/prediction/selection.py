"""`Selection`: the candidates of one problem in the order of their predicted times, and those that are excluded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.features.conv import Conv
from surrogate.prediction.prediction import FORMATS, setting_line
from surrogate.prediction.setting import Candidate
from surrogate.report.tables import Table

if TYPE_CHECKING:
    import pandas as pd

MEASURED = "measured"


class Estimate(NamedTuple):
    """A candidate's predicted (or measured) time in µs, the half width of its interval in log time, its workspace."""

    candidate: Candidate
    time_us: float
    half_width: float
    workspace_bytes: int
    source: str


class Ranked(NamedTuple):
    """One candidate of a selection; the interval holds in 90 % of cases.

    ``source``: ``model``, ``measured``, ``spec`` (the GPU was never measured) or ``roofline`` (the model does not know
    the algorithm); ``probability_best`` that it is the fastest of the candidates.
    """

    algorithm: str
    time_us: float
    lower_us: float
    upper_us: float
    workspace_bytes: int
    deterministic: bool
    source: str
    probability_best: float
    solver: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Field name → value; ``solver`` only where solvers are chosen."""
        values = self._asdict()
        if not self.solver:
            del values["solver"]
        return values


class Excluded(NamedTuple):
    """A candidate that the library, the model or the caller's limits rule out, and why."""

    algorithm: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Field name → value."""
        return self._asdict()


@dataclass(frozen=True)
class Selection:
    """What to run on one problem. ``estimates`` are ranked; empty where nothing is feasible.

    ``in_domain`` says whether training saw anything like the pick (the problem, where there is none), ``reason`` what
    it did not see.
    """

    problem: Conv
    gpu: str
    library: str
    library_version: str
    estimates: tuple[Estimate, ...]
    excluded: tuple[Excluded, ...]
    reason: str | None = None
    own_share: float = 1.0
    cut: tuple[Estimate, ...] = ()
    """Feasible candidates that ``top`` left out: they are not shown, but may be the best."""

    @property
    def in_domain(self) -> bool:
        """True where ``reason`` is None."""
        return self.reason is None

    @property
    def algorithm(self) -> str | None:
        """The pick's name, None where nothing is feasible."""
        return self.estimates[0].candidate.algorithm if self.estimates else None

    @property
    def time_us(self) -> float | None:
        """The pick's time in µs."""
        return self.estimates[0].time_us if self.estimates else None

    @property
    def best(self) -> Ranked | None:
        """The pick."""
        return self.candidates[0] if self.estimates else None

    @cached_property
    def candidates(self) -> tuple[Ranked, ...]:
        """All feasible candidates, the fastest first."""
        return tuple(
            Ranked(
                one.candidate.algorithm,
                one.time_us,
                one.time_us * exp(-one.half_width),
                one.time_us * exp(one.half_width),
                one.workspace_bytes,
                one.candidate.deterministic,
                one.source,
                probability,
                one.candidate.solver,
            )
            for one, probability in zip(self.estimates, self._probabilities(), strict=True)
        )

    def _probabilities(self) -> list[float]:
        """Of being the fastest; a measured pick is certain among the measured, and stands first by right."""
        from surrogate.uncertainty.probability import probability_best

        every = self.estimates + self.cut
        logs = [log(one.time_us) for one in every]
        widths = [one.half_width for one in every]
        return probability_best(logs, widths, self.own_share).tolist()[: len(self.estimates)]

    def with_measured(self, times_us: Mapping[str, float]) -> "Selection":
        """The selection with measured times (algorithm → µs) in the place of predictions.

        Measured candidates come first, by their times; predictions follow. A candidate that is not feasible stays out.
        """
        estimates = [
            one._replace(time_us=times_us[one.candidate.algorithm], half_width=0.0, source=MEASURED)
            if one.candidate.algorithm in times_us
            else one
            for one in self.estimates
        ]
        estimates.sort(key=lambda one: (one.source != MEASURED, one.time_us))
        return replace(self, estimates=tuple(estimates))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: problem, gpu, library_version, candidates, excluded."""
        return {
            "problem": str(self.problem),
            "gpu": self.gpu,
            "library_version": self.library_version,
            "candidates": [one.to_dict() for one in self.candidates],
            "excluded": [one.to_dict() for one in self.excluded],
        }

    def to_frame(self) -> "pd.DataFrame":
        """The candidates as a pandas table, the fastest first."""
        import pandas as pd

        return pd.DataFrame([one.to_dict() for one in self.candidates])

    @property
    def title(self) -> str:
        """The question in one line."""
        return f"{setting_line(self.problem)} on {self.gpu}, {self.library} {self.library_version}"

    def table(self) -> Table:
        """What people see."""
        records = [
            {
                "algorithm": "/".join(part for part in (ranked.algorithm, ranked.solver) if part),
                "time_us": ranked.time_us,
                "90 %": (ranked.lower_us, ranked.upper_us),
                "workspace": ranked.workspace_bytes,
                "determ.": ranked.deterministic,
                "source": ranked.source,
                "P(best)": ranked.probability_best,
            }
            for ranked in self.candidates
        ]
        notes = [f"excluded {candidate.algorithm}: {candidate.reason}" for candidate in self.excluded]
        notes += [f"outside the training data: {self.reason}"] if self.reason else []
        formats = FORMATS | {"P(best)": "{:.2f}".format}
        return Table(records, formats, self.title, notes=notes, empty="nothing is feasible")

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().__html__()
