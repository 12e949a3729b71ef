"""What a predictor answers with: `Selection`, `Prediction`, `Predictions`, `KernelTime`; and the limits of a caller."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from surrogate.features.description import Configuration
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem, DescribedProblem, family_of
from surrogate.prediction.sources.source import CandidateSetting
from surrogate.report.tables import Table, TableResult, binary_size, interval_us
from surrogate.uncertainty.intervals import probability_best

if TYPE_CHECKING:
    import pandas as pd

MEASURED, MODEL, SIMILAR_GPU = "measured", "model", "similar-gpu"
DATASHEET, ROOFLINE, FLOOR = "datasheet", "roofline", "floor"
SOURCES = {
    MEASURED: "the very problem was measured with the candidate on the GPU",
    MODEL: "a model of measurements with the candidate on the GPU",
    SIMILAR_GPU: "measurements with the candidate on other GPUs, of the same architecture if there are any",
    DATASHEET: "measurements on other GPUs or an analytical model, and the GPU's datasheet",
    ROOFLINE: "peak arithmetic rate and bandwidth alone, since no model knows the candidate",
    FLOOR: "at most this: the harness that measured such kernels here adds as much to every time",
}
"""The ladder of evidence: `source` of an answer → what the time comes from. The first one that covers a candidate
answers; `FLOOR` marks a time below what its harness can measure."""
UNMEASURED = (SIMILAR_GPU, DATASHEET)
"""Sources of answers for a GPU, or for a setting on it, that was never measured."""
BASES = {SIMILAR_GPU: ", from other GPUs", DATASHEET: ", from its datasheet"}
"""Source of a setting → what a heading adds."""
MEASURED_HALF_WIDTH = log(1.05)
"""Assumed of a time that the training table of a described kernel holds: such tables seldom say how repeats differ."""
SHOWN = 5
"""Rows of `Predictions` that are printed."""
FORMATS = {"90 %, µs": interval_us, "workspace": binary_size, "P(best)": "{:.2f}".format}
"""How the columns of predictions and selections read."""
UNITS = {"": 1, "b": 1} | {
    f"{prefix}{binary}{end}": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("kmgt", 1)
    for binary in ("", "i")
    for end in ("", "b")
}
"""Unit in lower case → bytes: decimal ones as SI has them, binary ones with an i."""


class Estimate(NamedTuple):
    """A candidate's predicted or measured time in µs, its 90 % interval, and its workspace in bytes.

    ``half_width`` is that of the interval in log time, before its lower end was limited by the GPU's peak.
    """

    candidate: CandidateSetting
    time_us: float
    lower_us: float
    upper_us: float
    half_width: float
    workspace_bytes: int
    source: str
    in_domain: bool = True

    @classmethod
    def around(
        cls, candidate: CandidateSetting, time_us: float, half_width: float, workspace_bytes: int, source: str
    ) -> Self:
        """Return an estimate whose interval is symmetric in log time."""
        spread = exp(half_width)
        return cls(candidate, time_us, time_us / spread, time_us * spread, half_width, workspace_bytes, source)


class Ranked(NamedTuple):
    """One candidate of a selection; the interval holds in 90 % of cases.

    ``source`` is one of `SOURCES`; ``probability_best`` that the candidate is the fastest of its problem's.
    ``workspace_bytes`` and ``deterministic`` are None for a described kernel, since nothing states them.
    """

    algorithm: str
    library: str
    time_us: float
    lower_us: float
    upper_us: float
    workspace_bytes: int | None
    deterministic: bool | None
    source: str
    probability_best: float
    solver: str = ""
    parameters: Configuration | None = None
    """Of a described kernel's configuration."""

    @classmethod
    def of(cls, estimate: Estimate, probability_best: float, problem: AnyProblem) -> Self:
        """An estimate for a problem, and how likely it is the fastest of its problem's."""
        candidate = estimate.candidate
        is_stated = not isinstance(problem, DescribedProblem)
        return cls(
            algorithm=candidate.algorithm,
            library=candidate.library,
            time_us=estimate.time_us,
            lower_us=estimate.lower_us,
            upper_us=estimate.upper_us,
            workspace_bytes=estimate.workspace_bytes if is_stated else None,
            deterministic=candidate.deterministic if is_stated else None,
            source=estimate.source,
            probability_best=probability_best,
            solver=candidate.solver,
            parameters=configuration_of(problem, candidate.solver),
        )

    def to_dict(self) -> dict[str, object]:
        """Field name → value; ``solver`` only where solvers are chosen, ``parameters`` of configurations."""
        return {name: value for name, value in self._asdict().items() if value or name not in ("solver", "parameters")}


class Excluded(NamedTuple):
    """A candidate that the library, the model or the caller's limits rule out, and why."""

    algorithm: str
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a caller allows: workspace in bytes, whether two runs must give the same bits, and how many candidates."""

    workspace_bytes: int | None = None
    deterministic: bool = False
    top: int | None = None

    @classmethod
    def of(cls, workspace_limit: int | str | None = None, deterministic: bool = False, top: int | None = None) -> Self:
        """``workspace_limit`` in bytes, or as in ``64MiB``.

        Raises `InputError` for a negative or unreadable workspace, or fewer than one candidate.
        """
        size = parse_bytes(workspace_limit) if isinstance(workspace_limit, str) else workspace_limit
        if size is not None and size < 0:
            raise InputError(f"workspace_limit is {size}; give bytes, 0 or more")
        if top is not None and top < 1:
            raise InputError(f"top is {top}; give 1 or more candidates to keep")
        return cls(size, deterministic, top)

    def refusal(self, workspace_bytes: int | None, deterministic: bool | None) -> str | None:
        """Why a candidate of this workspace and determinism (None: unknown) is refused, or None."""
        if self.deterministic and deterministic is False:
            return "nondeterministic: it adds in an order that changes from run to run"
        limit = self.workspace_bytes
        if limit is not None and workspace_bytes is not None and workspace_bytes > limit:
            return (
                f"needs {workspace_bytes} bytes of workspace ({binary_size(workspace_bytes)}), the limit is"
                f" {limit} bytes"
            )
        return None


@dataclass(frozen=True, repr=False)
class Selection(TableResult):
    """What to run on one problem. ``estimates`` are ranked; empty where nothing is feasible.

    ``library`` and ``library_version`` are those of all candidates, joined where there are several. ``in_domain`` says
    whether training saw anything like the pick (the problem, where there is none), ``reason`` what it did not see.
    Of the estimates ``top`` are shown (None: all), the others may yet be the best. ``source`` is that of the setting
    as a whole, and ``notes`` state its caveats.
    """

    problem: AnyProblem
    gpu: str
    library: str
    library_version: str
    estimates: tuple[Estimate, ...]
    excluded: tuple[Excluded, ...]
    reason: str | None = None
    independent_share: float = 1.0
    top: int | None = None
    source: str = MODEL
    notes: tuple[str, ...] = ()

    @property
    def in_domain(self) -> bool:
        """True where ``reason`` is None."""
        return self.reason is None

    @property
    def algorithm(self) -> str | None:
        """The pick's name, None where nothing is feasible; of a described kernel its configuration, as in
        ``block_m=64,warps=4``."""
        if not self.estimates:
            return None
        pick = self.estimates[0].candidate
        return pick.name if isinstance(self.problem, DescribedProblem) else pick.algorithm

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
        """The feasible candidates, the fastest first."""
        logs = [log(estimate.time_us) for estimate in self.estimates]
        widths = [estimate.half_width for estimate in self.estimates]
        probabilities = probability_best(logs, widths, self.independent_share).tolist()
        pairs = zip(self.estimates[: self.top], probabilities, strict=False)
        return tuple(Ranked.of(estimate, probability, self.problem) for estimate, probability in pairs)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "problem": str(self.problem),
            "gpu": self.gpu,
            "library_version": self.library_version,
            "source": self.source,
            "notes": self._caveats(),
            "candidates": [ranked.to_dict() for ranked in self.candidates],
            "excluded": [candidate._asdict() for candidate in self.excluded],
        }

    def to_frame(self) -> "pd.DataFrame":
        """The candidates as a pandas table, the fastest first."""
        import pandas as pd

        return pd.DataFrame([ranked.to_dict() for ranked in self.candidates])

    def table(self) -> Table:
        """What people see."""
        several = ", " in self.library
        described = self.problem if isinstance(self.problem, DescribedProblem) else None
        records = []
        for ranked in self.candidates:
            name = {"algorithm": "/".join(filter(None, (ranked.algorithm, ranked.solver)))}
            costs = {"workspace": ranked.workspace_bytes, "determ.": ranked.deterministic}
            if described is not None:
                name, costs = varying_parameters(described, ranked), {}
            records.append(
                {
                    **name,
                    **({"library": ranked.library} if several else {}),
                    "time_us": ranked.time_us,
                    "90 %, µs": (ranked.lower_us, ranked.upper_us),
                    **costs,
                    "source": ranked.source,
                    "P(best)": ranked.probability_best,
                }
            )
        notes = excluded_notes(self.excluded, described is not None)
        return Table(records, FORMATS, _title(self), notes=notes + self._caveats(), empty="nothing is feasible")

    def _caveats(self) -> list[str]:
        """Return the notes, and what training did not see."""
        return [*self.notes, *([f"outside the training data: {self.reason}"] if self.reason else [])]


def configuration_of(problem: AnyProblem, text: str) -> Configuration | None:
    """Parameter → value of a described kernel's candidate; None for any other."""
    return problem.family.description.configuration(text) if isinstance(problem, DescribedProblem) and text else None


def varying_parameters(problem: DescribedProblem, ranked: Ranked) -> Configuration:
    """The parameters that have several values; of a candidate without, such as a library's kernel, its name."""
    listed = problem.family.description.parameters
    values: Configuration = ranked.parameters or dict.fromkeys(listed, ranked.algorithm)
    return {name: values[name] for name, known in listed.items() if len(known) > 1}


def excluded_notes(excluded: Sequence[Excluded], described: bool) -> list[str]:
    """A line for each refused candidate; of a described kernel, one for each reason, with how many it refuses."""
    if not described:
        return [f"excluded {candidate.algorithm}: {candidate.reason}" for candidate in excluded]
    return [f"excluded {count:,} configurations: {reason}" for reason, count in by_reason(excluded).items()]


def by_reason(excluded: Sequence[Excluded]) -> Counter[str]:
    """Reason → how many candidates it refuses."""
    return Counter(candidate.reason for candidate in excluded)


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(TableResult):
    """The time of one algorithm on one problem, in µs, with its 90 % interval.

    ``source`` is one of `SOURCES`; ``supported`` says whether the library is expected to run it at all; ``reason`` says
    why it is not, or what training did not see.
    """

    problem: AnyProblem
    gpu: str
    library: str
    library_version: str
    algorithm: str
    time_us: float
    lower_us: float
    upper_us: float
    workspace_bytes: int | None
    source: str
    in_domain: bool
    reason: str | None
    supported: bool = True
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Field name → value; the problem as text."""
        values: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        return values | {"problem": str(self.problem), "notes": list(self.notes)}

    def to_frame(self) -> "pd.DataFrame":
        """A pandas table of one row."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def table(self) -> Table:
        """What people see."""
        record = {
            "algorithm": self.algorithm,
            "time_us": self.time_us,
            "90 %, µs": (self.lower_us, self.upper_us),
            **({} if self.workspace_bytes is None else {"workspace": self.workspace_bytes}),
            "source": self.source,
            "in_domain": self.in_domain,
            "supported": self.supported,
        }
        notes = [*self.notes, *([f"note: {self.reason}"] if self.reason else [])]
        return Table([record], FORMATS, _title(self), notes=notes)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Predictions(TableResult):
    """Columns (rows,) in the order of the table that was asked about; NaN and "" where no candidate is feasible.

    ``source`` is one of `SOURCES`; ``workspace_bytes`` is NaN for a described kernel, since nothing states it.
    ``notes`` holds the caveats of each row's setting, a tuple of texts.
    """

    library: np.ndarray
    algorithm: np.ndarray
    predicted_us: np.ndarray
    lower_us: np.ndarray
    upper_us: np.ndarray
    in_domain: np.ndarray
    supported: np.ndarray
    workspace_bytes: np.ndarray
    source: np.ndarray
    notes: np.ndarray

    def __len__(self) -> int:
        return len(self.predicted_us)

    def __getitem__(self, name: str) -> np.ndarray:
        """A column by its name. Raises `KeyError` for another."""
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    @property
    def time_us(self) -> np.ndarray:
        """``predicted_us`` by the name that a single `Prediction` has for it."""
        return self.predicted_us

    def to_dict(self) -> dict[str, list[object]]:
        """Column name → plain values."""
        return {name: getattr(self, name).tolist() for name in self.__slots__}

    def to_frame(self) -> "pd.DataFrame":
        """A pandas table."""
        import pandas as pd

        return pd.DataFrame({name: getattr(self, name) for name in self.__slots__})

    def table(self) -> Table:
        """The first rows."""
        shown = self.to_frame().head(SHOWN).reset_index(names="row")
        records = [dict(zip(map(str, shown), row, strict=True)) for row in shown.itertuples(index=False)]
        more = [f"… {len(self)} rows"] if len(self) > SHOWN else []
        return Table(records, title=f"{len(self)} predictions", notes=more)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The fastest kernel of a problem in a busy stream. Times in µs with a 90 % interval.

    ``time_us`` is the kernel's own; ``call_us`` that of an isolated call, launch included, as training data were timed.
    ``source`` is one of `SOURCES`; for ``roofline``, which answers if no model knows the problem, ``lower_us`` is the
    lower bound. ``library`` is the one whose kernel is predicted, ``algorithm`` its name.
    """

    problem: AnyProblem
    gpu: str
    library: str
    algorithm: str
    time_us: float
    lower_us: float
    upper_us: float
    call_us: float
    source: str
    in_domain: bool

    def to_dict(self) -> dict[str, object]:
        """Field name → value; the problem as text."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "problem": str(self.problem)}


def parse_bytes(text: str) -> int:
    """Bytes from ``64MiB``, ``1GB``, ``1.5 GiB`` or ``1048576``. Raises `InputError` for anything else."""
    parts = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text)
    if not parts or parts[2].lower() not in UNITS:
        raise InputError(f"size {text!r} is not readable; write bytes, or a unit, as in 1048576, 64MiB or 1GB")
    whole, _, decimals = parts[1].partition(".")
    factor = UNITS[parts[2].lower()]
    return int(whole) * factor + (int(decimals) * factor // 10 ** len(decimals) if decimals else 0)


def _title(answer: Selection | Prediction) -> str:
    """What was asked about, where, and whether anything was ever measured there."""
    asked = f"{setting_line(answer.problem)} on {answer.gpu}"
    basis = BASES.get(answer.source, "")
    if isinstance(answer.problem, DescribedProblem):
        return f"{asked}{basis}"
    releases = zip(answer.library.split(", "), answer.library_version.split(", "), strict=False)
    named = ", ".join(" ".join(filter(None, release)) for release in releases)
    return f"{asked}, {named}{basis}"


def setting_line(problem: AnyProblem) -> str:
    """A problem with everything that is asked about it: sizes, direction, element type, math and layout."""
    values = (value for value in family_of(problem).setting_of(problem) if value not in ("", problem.kind))
    return " ".join((str(problem), *values))
