"""The base class of sources, which give times and workspaces of the candidates of one setting.

A source gets the columns of one problem as Python numbers, or of many problems as arrays, from the family's formula.
Values that do not depend on the problem are computed once per setting.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from surrogate.features import Family, Formula, Gpu, Number, ProblemTerms
from surrogate.features.families import AnyProblem

if TYPE_CHECKING:
    from surrogate.models.times import Correction

EXPECTED_TO_FAIL = "expected to fail, as on problems that were measured"


class QuerySetting(NamedTuple):
    """A query without its sizes.

    ``gpu`` is a registry name and ``values`` are the values of `Family.setting_names`. ``versions`` are the competing
    libraries, each with its version.
    """

    family: Family
    gpu: str
    versions: tuple[tuple[str, str], ...]
    values: tuple[str, ...]

    @property
    def by_name(self) -> dict[str, str]:
        """The family's settings: name → value."""
        return dict(zip(self.family.setting_names, self.values, strict=True))

    def problem(self, sizes: Iterable[Number]) -> Any:
        """Return the problem of these sizes: one of numbers, or many of arrays (rows,)."""
        return self.family.problem(dict(zip(self.family.size_names, sizes, strict=True)), self.by_name)


@dataclass(frozen=True, slots=True)
class LibraryCandidate:
    """A candidate: an algorithm of a library, and its solver if solvers are chosen ("" otherwise).

    ``key`` is its name in a model. ``mechanism`` is how it works, which decides its columns. ``deterministic`` is None
    if neither the library nor the training data state it. ``has_workspace_formula`` is True if the mechanism's formula
    gives the workspace.
    """

    key: str
    library: str
    algorithm: str
    solver: str = ""
    mechanism: str = ""
    deterministic: bool | None = None
    has_workspace_formula: bool = False

    @property
    def name(self) -> str:
        """The solver's name if there is one, else the algorithm's."""
        return self.solver or self.algorithm


class Context(NamedTuple):
    """The data that every source of a setting shares: device, candidates and the family's formula.

    ``min_us`` (candidates,) are lower bounds of times: the launch and the tail of the shortest kernels.
    """

    setting: QuerySetting
    device: Gpu
    candidates: tuple[LibraryCandidate, ...]
    formula: Formula
    min_us: np.ndarray


class Times(NamedTuple):
    """Columns (rows,): times in µs and workspaces in bytes.

    A time is NaN if the source does not cover the candidate. ``half_width`` is the half width in log time where the
    problem decides it and not the setting, else NaN. Such times have the source ``source_name``. ``fails`` marks
    candidates that are expected not to run the problem; None marks no row. ``deviation`` multiplies the half widths;
    None: by 1. ``answers`` are the ends of intervals in µs and the sources of times, if they do not follow from the
    setting.
    """

    time_us: np.ndarray
    workspace_bytes: np.ndarray
    half_width: np.ndarray | float = np.nan
    source_name: str = ""
    fails: np.ndarray | None = None
    deviation: np.ndarray | None = None
    answers: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True, slots=True)
class Source(ABC):
    """Times of the candidates of one setting."""

    context: Context

    @abstractmethod
    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Return the times in row i of a candidate and a problem, by position; ``sizes`` is (problems, sizes)."""

    def one(self, problem: AnyProblem, candidate_of_row: np.ndarray) -> Times:
        """Return the times of the candidates at ``candidate_of_row`` (rows,) for one problem."""
        sizes = np.array([self.context.setting.family.sizes_of(problem)])
        return self.times(sizes, np.zeros(len(candidate_of_row), dtype=int), candidate_of_row)

    def min_us(self, problem: AnyProblem) -> float:
        """Return a lower bound in µs for all times on the problem and for the ends of their intervals; 0: none."""
        return 0.0

    def failures(self, problem: AnyProblem, failing: Sequence[int]) -> list[str]:
        """Return why each candidate at ``failing`` does not run."""
        return [EXPECTED_TO_FAIL] * len(failing)

    def candidate_columns(self, terms: ProblemTerms, candidate: int) -> tuple[tuple[Number, ...], Number]:
        """Return the candidate's own columns on problems, and its workspace in bytes."""
        setting, _, candidates, formula, _ = self.context
        if not setting.family.candidate_names:
            return (), 0
        return formula.candidate(terms, candidates[candidate].mechanism)

    def inputs(
        self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray, further: int = 0
    ) -> tuple[np.ndarray, ProblemTerms, np.ndarray]:
        """Return the inputs of a model in arrays.

        Parameters
        ----------
        sizes, problem_of_row, candidate_of_row
            As in `times`.
        further
            Number of additional columns, which are not set.

        Returns
        -------
        columns : float32 array, (rows, columns)
            The problem's columns, the candidate's own, and the additional ones.
        terms : ProblemTerms
            Terms of the problems.
        workspace : array, (rows,)
            Workspaces in bytes.
        """
        terms = self.context.formula.problem(self.context.setting.problem(sizes.T))
        shared = len(terms.values)
        # 1. The problems' columns (problems, shared) are computed once per problem and then expanded to the rows.
        values = np.empty((len(sizes), shared), dtype=np.float32)
        for number, column in enumerate(terms.values):
            values[:, number] = column
        names = self.context.setting.family.candidate_names
        x = np.empty((len(candidate_of_row), shared + len(names) + further), dtype=np.float32)
        x[:, :shared] = values[problem_of_row]
        # 2. The candidates' own columns, candidate by candidate.
        workspace = np.zeros(len(candidate_of_row))
        for candidate in np.unique(candidate_of_row).tolist() if names else ():
            rows = np.flatnonzero(candidate_of_row == candidate)
            columns, bytes_needed = self.candidate_columns(terms_at(terms, problem_of_row[rows]), candidate)
            for number, column in enumerate(columns, shared):
                x[rows, number] = column
            workspace[rows] = bytes_needed
        return x, terms, workspace

    def roofline_us(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> np.ndarray:
        """Return the candidates' own roofline times in µs, (rows,), for candidates that a source does not cover."""
        family = self.context.setting.family
        terms = self.context.formula.problem(self.context.setting.problem(sizes[problem_of_row].T))
        time_us = np.array(terms.roofline_us, dtype=np.float64)
        if family.own_roofline:
            # The column holds log2(candidate's roofline / problem's roofline).
            position = family.candidate_names.index(family.own_roofline)
            for candidate in np.unique(candidate_of_row):
                rows = np.flatnonzero(candidate_of_row == candidate)
                columns, _ = self.candidate_columns(terms_at(terms, rows), candidate)
                time_us[rows] *= np.exp2(columns[position])
        return np.maximum(time_us, self.context.min_us[candidate_of_row])


def terms_at(terms: ProblemTerms, rows: np.ndarray) -> ProblemTerms:
    """Return the terms of the problems at ``rows``, as far as a candidate's columns need them."""
    problem = terms.problem
    if len(rows) == len(terms.roofline_us) and (rows[1:] > rows[:-1]).all():
        return terms
    selected = type(problem)._make(v[rows] if isinstance(v, np.ndarray) else v for v in problem)
    return ProblemTerms((), terms.roofline_us[rows], selected)


@dataclass(frozen=True, slots=True)
class Mixed(Source):
    """For each candidate, the shortest time of the ``sources`` that cover it.

    ``covers`` (sources, candidates) marks the candidates of each source. Workspaces are those of the first source.
    """

    sources: tuple[Source, ...]
    covers: np.ndarray

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        answers = [source.times(sizes, problem_of_row, candidate_of_row) for source in self.sources]
        return self._shortest(answers, candidate_of_row)

    def one(self, problem: AnyProblem, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.one`."""
        return self._shortest([source.one(problem, candidate_of_row) for source in self.sources], candidate_of_row)

    def _shortest(self, answers: Sequence[Times], candidate_of_row: np.ndarray) -> Times:
        """Return the shortest times of the ``answers`` of the sources that cover the candidates."""
        covered_us = np.where(self.covers[:, candidate_of_row], [answer.time_us for answer in answers], np.inf)
        half_width = np.where(covered_us.argmin(axis=0), np.nan, answers[0].half_width)
        return answers[0]._replace(time_us=covered_us.min(axis=0), half_width=half_width)


@dataclass(frozen=True, slots=True)
class CalibratedSource(Source):
    """Times of ``source``, multiplied by a ``correction``. Intervals widen with the distance from its sample."""

    source: Source
    correction: "Correction"

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        from surrogate.models.times import correction_columns

        setting, _, candidates, formula, min_us = self.context
        family = setting.family
        times = self.source.times(sizes, problem_of_row, candidate_of_row)
        # The correction's columns (rows, inputs): of the setting, of the problems, and of the candidates.
        names = (*family.problem_names, *family.candidate_names)
        columns = dict(zip(names, self.inputs(sizes, problem_of_row, candidate_of_row)[0].T, strict=True))
        columns |= zip(family.constant_names, formula.constant, strict=True)
        needed = correction_columns(family)
        x = np.empty((len(candidate_of_row), len(needed)), dtype=np.float32)
        for position, name in enumerate(needed):
            x[:, position] = columns[name]
        keys = np.array([candidate.key for candidate in candidates], dtype=object)[candidate_of_row]
        factor = np.exp(self.correction.log_factor(x, keys, times.time_us))
        time_us = np.maximum(times.time_us * factor, min_us[candidate_of_row])
        return times._replace(time_us=time_us, deviation=self.correction.deviation(x, keys, times.time_us))
