"""The results of a predictor: `Selection`, `Prediction`, `Predictions`, `KernelTime`; and the limits of a caller."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from surrogate.features import Configuration, InputError, read_toml
from surrogate.features.families import DEFAULT_FAMILY, AnyProblem, DescribedProblem, family_of
from surrogate.prediction.sources.source import LibraryCandidate
from surrogate.report.tables import Table, TableResult, binary_size, interval_us
from surrogate.uncertainty.intervals import NORMAL, STUDENT, probability_best

if TYPE_CHECKING:
    import pandas as pd

MEASURED, MODEL, SIMILAR_GPU = "measured", "model", "similar-gpu"
DATASHEET, ROOFLINE, FLOOR = "datasheet", "roofline", "floor"
NOTES: dict[str, str] = read_toml(__file__, "notes.toml")
"""Notes on answers, and reasons why a candidate is left out."""
SOURCES: dict[str, str] = read_toml(__file__)
"""The sources, in order of preference: `source` of an answer → the origin of its time. The first source that covers a
candidate gives its time. `FLOOR` marks a time that is shorter than its harness can measure."""
FALLBACK_SOURCES = (SIMILAR_GPU, DATASHEET)
"""Sources of answers for an unmeasured GPU, or for an unmeasured setting on a GPU."""
UNMEASURED_SOURCES = (*FALLBACK_SOURCES, ROOFLINE)
"""Sources of times that no measurement of the setting on the GPU supports: the datasheet peaks limit them."""
TITLE_SUFFIXES = {SIMILAR_GPU: ", from other GPUs", DATASHEET: ", from its datasheet"}
"""Source of a setting → text that the heading adds."""
MEASURED_HALF_WIDTH = log(1.05)
"""Assumed half width, in log time, of a time in the training table of a described kernel. Such tables seldom state how
much repeated measurements differ."""
PRINTED_ROWS = 5
"""Number of rows of `Predictions` that are printed."""
FORMATS = {"90 %, µs": interval_us, "workspace": lambda size: size_text(size), "P(best)": "{:.2f}".format}
"""Column of a printed prediction or selection → formatter of its values."""
UNKNOWN = "unknown"
SIZE = re.compile(r"\s*(\d{1,20})(?:\.(\d{1,9}))?\s*(?:([KMGTkmgt])([Ii]?))?[Bb]?\s*", re.ASCII)
"""A number with decimals, and a unit. Units with an i are binary, the others are decimal (SI)."""
NUMBER = re.compile(r"(?<![\w.-])[0-9][0-9.,]*(?: [KMGT]iB)?(?![\w-])")
"""A number in a text, with its unit of memory; not one inside a name, as in ``fp16`` or ``rtx-4090``."""


class Estimate(NamedTuple):
    """A candidate's predicted or measured time in µs, its 90 % interval, and its workspace in bytes.

    ``half_width`` is the half width of the interval in log time, before the GPU's peak limited the lower end.
    ``workspace_bytes`` is None if it is unknown.
    """

    candidate: LibraryCandidate
    time_us: float
    lower_us: float
    upper_us: float
    half_width: float
    workspace_bytes: int | None
    source: str
    in_domain: bool = True


class Ranked(NamedTuple):
    """One candidate of a selection, with its 90 % prediction interval.

    ``source`` is one of `SOURCES`. ``probability_best`` is the probability that the candidate is the problem's fastest.
    ``workspace_bytes`` and ``deterministic`` are None if they are unknown.
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
    in_domain: bool = True
    """Whether the time is inside the training data."""
    parameters: Configuration | None = None
    """Parameters of the configuration, for a described kernel."""

    @classmethod
    def of(cls, estimate: Estimate, probability_best: float, problem: AnyProblem) -> Self:
        """Return an estimate for a problem together with its probability of being the fastest."""
        candidate = estimate.candidate
        return cls(
            algorithm=candidate.algorithm,
            library=candidate.library,
            time_us=estimate.time_us,
            lower_us=estimate.lower_us,
            upper_us=estimate.upper_us,
            workspace_bytes=estimate.workspace_bytes,
            deterministic=candidate.deterministic,
            source=estimate.source,
            probability_best=probability_best,
            solver=candidate.solver,
            in_domain=estimate.in_domain,
            parameters=configuration_of(problem, candidate.solver),
        )

    def to_dict(self) -> dict[str, object]:
        """Return field name → value. ``solver`` and ``parameters`` are left out if they are empty."""
        return {name: value for name, value in self._asdict().items() if value or name not in ("solver", "parameters")}


ResultT = TypeVar("ResultT", "Selection", "Prediction")


class Excluded(NamedTuple):
    """A candidate that the library, the model or the caller's limits rule out, and the reason."""

    algorithm: str
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The caller's limits: workspace in bytes, determinism (two runs give the same bits), and number of candidates."""

    workspace_bytes: int | None = None
    deterministic: bool = False
    top: int | None = None

    @classmethod
    def of(cls, workspace_limit: int | str | None = None, deterministic: bool = False, top: int | None = None) -> Self:
        """Return checked limits; ``workspace_limit`` is a number of bytes or a text such as ``64MiB``.

        Raises `InputError` if the workspace is negative or unreadable, or if ``top`` is less than 1.
        """
        size = parse_bytes(workspace_limit) if isinstance(workspace_limit, str) else workspace_limit
        if size is not None and size < 0:
            raise InputError(f"workspace_limit is {size}; give bytes, 0 or more")
        if top is not None and top < 1:
            raise InputError(f"top is {top}; give 1 or more candidates to keep")
        return cls(size, deterministic, top)

    def refusal(self, workspace_bytes: int | None, deterministic: bool | None) -> str | None:
        """Return why the limits refuse a candidate of this workspace and determinism (None: unknown), or None."""
        if self.deterministic and deterministic is not True:
            return NOTES["unknown_determinism" if deterministic is None else "nondeterministic"]
        limit = self.workspace_bytes
        if limit is not None and workspace_bytes is None:
            return NOTES["unknown_workspace"]
        if limit is not None and workspace_bytes is not None and workspace_bytes > limit:
            size = binary_size(workspace_bytes)
            return f"needs {workspace_bytes} bytes of workspace ({size}), the limit is {limit} bytes"
        return None


@dataclass(frozen=True, repr=False)
class Selection(TableResult):
    """The ranked candidates of one problem.

    Attributes
    ----------
    problem : problem of a family
        The problem that was asked about.
    gpu : str
        Registry name of the GPU.
    library, library_version : str
        Libraries of all candidates and their versions, joined by commas.
    estimates : tuple of Estimate
        Feasible candidates, the fastest first. Empty if no candidate is feasible.
    excluded : tuple of Excluded
        Candidates that are ruled out, with the reasons.
    reason : str or None
        Why the pick is outside the training data; None if it is inside. If there is no pick, it describes the problem.
    independent_share : float
        Share of a half width that is independent between candidates.
    top : int or None
        Number of estimates in ``candidates``; None means all. An estimate that is not listed may still be the fastest.
    source : str
        Source of the whole setting, one of `SOURCES`.
    notes : tuple of str
        Caveats of the setting.
    unmeasured_value : str
        The first value of the setting that was never measured on a measured GPU, such as ``math fma``; else empty.
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
    unmeasured_value: str = ""

    @property
    def in_domain(self) -> bool:
        """Whether the pick is inside the training data."""
        return self.reason is None

    @property
    def algorithm(self) -> str | None:
        """The pick's name, or None if no candidate is feasible.

        For a described kernel it is the configuration, such as ``block_m=64,warps=4``.
        """
        if not self.estimates:
            return None
        pick = self.estimates[0].candidate
        return pick.name if isinstance(self.problem, DescribedProblem) else pick.algorithm

    @property
    def time_us(self) -> float | None:
        """The pick's time in µs, or None if no candidate is feasible."""
        return self.estimates[0].time_us if self.estimates else None

    @property
    def best(self) -> Ranked | None:
        """The fastest candidate, or None if no candidate is feasible."""
        return self.candidates[0] if self.estimates else None

    @cached_property
    def candidates(self) -> tuple[Ranked, ...]:
        """The feasible candidates, the fastest first."""
        logs = [log(estimate.time_us) for estimate in self.estimates]
        # The errors of measurements are independent; predictions have a part of their errors in common.
        shares = [1.0 if estimate.source == MEASURED else self.independent_share for estimate in self.estimates]
        widths = [share * estimate.half_width for share, estimate in zip(shares, self.estimates, strict=True)]
        errors = NORMAL if isinstance(self.problem, DescribedProblem) else STUDENT
        probabilities = probability_best(logs, widths, errors=errors).tolist()
        pairs = zip(self.estimates[: self.top], probabilities, strict=False)
        return tuple(Ranked.of(estimate, probability, self.problem) for estimate, probability in pairs)

    def to_dict(self) -> dict[str, Any]:
        """Return the selection as JSON values."""
        return {
            "problem": str(self.problem),
            "gpu": self.gpu,
            "library_version": self.library_version,
            "source": self.source,
            "notes": self.caveats(),
            "candidates": [ranked.to_dict() for ranked in self.candidates],
            "excluded": [candidate._asdict() for candidate in self.excluded],
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return the candidates as a pandas table, the fastest first."""
        import pandas as pd

        return pd.DataFrame([ranked.to_dict() for ranked in self.candidates])

    def table(self) -> Table:
        """Return the table that is printed."""
        several_libraries = ", " in self.library
        described_problem = self.problem if isinstance(self.problem, DescribedProblem) else None
        records = []
        for ranked in self.candidates:
            name = {"algorithm": "/".join(filter(None, (ranked.algorithm, ranked.solver)))}
            costs = {"workspace": stated(ranked.workspace_bytes), "determ.": stated(ranked.deterministic)}
            if described_problem is not None:
                name, costs = varying_parameters(described_problem, ranked), {}
            library = {"library": ranked.library} if several_libraries else {}
            times = {"time_us": ranked.time_us, "90 %, µs": (ranked.lower_us, ranked.upper_us)}
            evidence = {"source": ranked.source, "P(best)": ranked.probability_best}
            records.append({**name, **library, **times, **costs, **evidence})
        notes = excluded_notes(self.excluded, described_problem is not None)
        return Table(records, FORMATS, _title(self), notes=notes + self.caveats(), empty="nothing is feasible")

    def caveats(self) -> list[str]:
        """Return the notes, and why the pick is outside the training data."""
        # A candidate without measurements may still be faster; limits and the library's rules exclude for good.
        unmeasured = not self.excluded or NOTES["never_measured"] in by_reason(self.excluded)
        is_single = family_of(self.problem).name == DEFAULT_FAMILY and len(self.estimates) == 1 and unmeasured
        notes = [*self.notes, *[NOTES["single_candidate"]] * is_single]
        return [*notes, *([f"outside the training data: {self.reason}"] if self.reason else [])]


def stated(value: int | bool | None) -> int | bool | str:
    """Return a value for a printed table; None is unknown."""
    return UNKNOWN if value is None else value


def size_text(size: int | str) -> str:
    """Return a size in bytes as text; `UNKNOWN` stays."""
    return size if isinstance(size, str) else binary_size(size)


def configuration_of(problem: AnyProblem, text: str) -> Configuration | None:
    """Return parameter → value of a described kernel's candidate, or None for any other candidate."""
    return problem.family.description.configuration(text) if isinstance(problem, DescribedProblem) and text else None


def varying_parameters(problem: DescribedProblem, ranked: Ranked) -> Configuration:
    """Return the parameters that have several values; a candidate without parameters gets its name as their value."""
    listed = problem.family.description.parameters
    values: Configuration = ranked.parameters or dict.fromkeys(listed, ranked.algorithm)
    return {name: values[name] for name, choices in listed.items() if len(choices) > 1}


def excluded_notes(excluded: Sequence[Excluded], is_described: bool) -> list[str]:
    """Return a line for each reason with its candidates; for a described kernel, with their count."""
    names = {reason: f"{count:,} configurations" for reason, count in by_reason(excluded).items()}
    if not is_described:
        names = {reason: ", ".join(each.algorithm for each in excluded if each.reason == reason) for reason in names}
    return [f"excluded {candidates}: {reason}" for reason, candidates in names.items()]


class NoteCounts:
    """Number of notes of each kind. Notes that differ only in their numbers are of one kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._varying: set[str] = set()

    def update(self, notes: Iterable[str]) -> None:
        """Add notes to the counts."""
        for note, count in Counter(notes).items():
            kind = without_numbers(note)
            self._counts[kind] += count
            if self._first.setdefault(kind, note) != note:
                self._varying.add(kind)

    def lines(self, unit: str, limit: int) -> list[str]:
        """Return a line for each kind, the most frequent first: the number of its ``unit`` and its first note."""
        lines = [
            f"{count:,} {unit}{'s' * (count > 1)}{', such as' * (kind in self._varying)}: {self._first[kind]}"
            for kind, count in self._counts.most_common(limit)
        ]
        more = len(self._counts) - limit
        return [*lines, *([f"{more} more notes"] if more > 0 else [])]


def without_numbers(text: str) -> str:
    """Return a text without its numbers and their units of memory; ``fp16`` and names of GPUs stay."""
    return NUMBER.sub("", text)


def by_reason(excluded: Sequence[Excluded]) -> Counter[str]:
    """Return reason → number of candidates that it excludes."""
    return Counter(candidate.reason for candidate in excluded)


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(TableResult):
    """The time of one algorithm on one problem, in µs, with its 90 % prediction interval.

    Attributes
    ----------
    problem : problem of a family
        The problem that was asked about.
    gpu, library, library_version, algorithm : str
        The candidate and its GPU, by registry names.
    time_us, lower_us, upper_us : float
        Predicted time and ends of its interval, in µs.
    workspace_bytes : int or None
        Estimated workspace; None if it is unknown.
    source : str
        Origin of the time, one of `SOURCES`.
    in_domain : bool
        Whether the question is inside the training data.
    reason : str or None
        Why the candidate is not supported, or why the question is outside the training data.
    supported : bool
        Whether the library is expected to run the candidate.
    notes : tuple of str
        Caveats of the setting.
    unmeasured_value : str
        As in `Selection`.
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
    unmeasured_value: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return field name → value, with the problem as text."""
        values: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        return values | {"problem": str(self.problem), "notes": list(self.notes)}

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas table of one row."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def table(self) -> Table:
        """Return the table that is printed."""
        record = {
            "algorithm": self.algorithm,
            "time_us": self.time_us,
            "90 %, µs": (self.lower_us, self.upper_us),
            **({} if isinstance(self.problem, DescribedProblem) else {"workspace": stated(self.workspace_bytes)}),
            "source": self.source,
            "in_domain": self.in_domain,
            "supported": self.supported,
        }
        notes = [*self.notes, *([f"note: {self.reason}"] if self.reason else [])]
        return Table([record], FORMATS, _title(self), notes=notes)


class Answers(list[ResultT]):
    """The answers for a list of problems, or the selections for a table, in order: a list with `to_frame`."""

    def to_frame(self) -> "pd.DataFrame":
        """Return the tables of all answers in one pandas table.

        The column ``row`` has the position of the answer, and ``problem`` its text. A selection has a row for each
        candidate, and no rows if no candidate is feasible.
        """
        import pandas as pd

        frames = [answer.to_frame().assign(row=row, problem=str(answer.problem)) for row, answer in enumerate(self)]
        frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["row", "problem"])
        return frame[["row", "problem", *frame.columns.drop(["row", "problem"])]]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the answers as JSON values."""
        return [answer.to_dict() for answer in self]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Predictions(TableResult):
    """Predictions for the rows of a table; each column is an array (rows,) in the table's order.

    Attributes
    ----------
    library, algorithm : array of str, (rows,)
        The candidate of each row; "" if no candidate is feasible.
    predicted_us, lower_us, upper_us : array of float, (rows,)
        Predicted times and ends of their 90 % intervals, in µs; NaN if no candidate is feasible.
    in_domain, supported : array of bool, (rows,)
        Whether the row is inside the training data, and whether the library is expected to run the candidate.
    workspace_bytes : array of float, (rows,)
        Estimated workspace; NaN if it is unknown.
    source : array of str, (rows,)
        Origin of each time, one of `SOURCES`.
    notes : array of tuple of str, (rows,)
        Caveats of each row's setting.
    reason : array of str, (rows,)
        As in `Prediction`; "" for rows inside the training data.
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
    reason: np.ndarray

    def __len__(self) -> int:
        return len(self.predicted_us)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column by its name. Raises `KeyError` for an unknown name."""
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    @property
    def time_us(self) -> np.ndarray:
        """The column ``predicted_us``, under the name that `Prediction` uses."""
        return self.predicted_us

    def to_dict(self) -> dict[str, list[object]]:
        """Return column name → list of values."""
        return {name: getattr(self, name).tolist() for name in self.__slots__}

    def to_frame(self) -> "pd.DataFrame":
        """Return the columns as a pandas table."""
        import pandas as pd

        return pd.DataFrame({name: getattr(self, name) for name in self.__slots__})

    def table(self) -> Table:
        """Return the table that is printed: the first rows."""
        first = self.to_frame().head(PRINTED_ROWS).reset_index(names="row")
        records = [dict(zip(map(str, first), row, strict=True)) for row in first.itertuples(index=False)]
        notes = [f"… {len(self)} rows"] if len(self) > PRINTED_ROWS else []
        return Table(records, title=f"{len(self)} predictions", notes=notes)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The fastest kernel of a problem in a busy stream, with times in µs and a 90 % prediction interval.

    ``time_us`` is the kernel's time. ``call_us`` is the time of an isolated call with its launch, as in training data.
    ``source`` is one of `SOURCES`. For ``roofline``, which is used if no model covers the problem, ``lower_us`` is a
    lower bound. ``library`` and ``algorithm`` name the predicted kernel.
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


def parse_bytes(text: str) -> int:
    """Return the bytes of ``64MiB``, ``1GB``, ``1.5 GiB`` or ``1048576``. Raises `InputError` for any other text."""
    parts = SIZE.fullmatch(text)
    if not parts or (parts[2] and not parts[3]):
        raise InputError(f"size {text!r} is not readable; write bytes, or a unit, as in 1048576, 64MiB or 1GB")
    units, decimals, prefix, binary = parts.groups("")
    factor = (1024 if binary else 1000) ** ("kmgt".index(prefix.lower()) + 1 if prefix else 0)
    return int(units) * factor + (int(decimals) * factor // 10 ** len(decimals) if decimals else 0)


def _title(answer: Selection | Prediction) -> str:
    """Return the heading: the problem, the GPU, the libraries, and the source if the setting was not measured."""
    place = f"{setting_line(answer.problem)} on {answer.gpu}"
    unmeasured = f", {answer.unmeasured_value} never measured"
    basis = unmeasured if answer.unmeasured_value else TITLE_SUFFIXES.get(answer.source, "")
    if isinstance(answer.problem, DescribedProblem):
        return f"{place}{basis}"
    return f"{', '.join(filter(None, (place, releases(answer))))}{basis}"


def releases(answer: Selection | Prediction) -> str:
    """Return the libraries of an answer, each with its version."""
    pairs = zip(answer.library.split(", "), answer.library_version.split(", "), strict=False)
    return ", ".join(" ".join(filter(None, pair)) for pair in pairs)


def setting_line(problem: AnyProblem) -> str:
    """Return a problem with its setting in one line: sizes, direction, element type, math and layout."""
    values = (value for value in family_of(problem).setting_of(problem) if value not in ("", problem.kind))
    return " ".join((str(problem), *values))
