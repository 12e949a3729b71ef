"""What a fitted model is asked with, and engines that answer: tables for any model, and what is made of other engines'
times, TF32 from both kinds of math and a calibration's correction.

An engine gives times and workspaces of the candidates of one setting. Each asks the family's formula for the columns of
one problem in Python numbers, or of many in arrays; what no problem changes is worked out once per setting. Boosted
trees have an engine of their own (`surrogate.prediction.tree_engine`), and so has the law that stands in where nothing
like the question was measured (`surrogate.prediction.specification`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from surrogate.features.elementwise import Number
from surrogate.features.errors import in_one_line
from surrogate.features.families import AnyProblem, Family, Formula, ProblemTerms
from surrogate.features.gpu import Gpu

if TYPE_CHECKING:
    from surrogate.models import TimeModel
    from surrogate.models.correction import Correction


EXPECTED_TO_FAIL = "expected to fail, as on problems that were measured"
FAILED = "failed when it was measured"


class Setting(NamedTuple):
    """Everything about a question but the sizes. ``gpu`` by its registry name; ``values`` of `Family.setting_names`.

    ``versions`` are the libraries whose kernels compete, each with its version.
    """

    family: Family
    gpu: str
    versions: tuple[tuple[str, str], ...]
    values: tuple[str, ...]

    @property
    def named(self) -> dict[str, str]:
        """Name → value of the family's settings."""
        return dict(zip(self.family.setting_names, self.values, strict=True))

    def problem(self, sizes: Iterable[Number]) -> Any:
        """The problem of these sizes, each a number; of arrays (rows,) several problems as one."""
        return self.family.problem(dict(zip(self.family.size_names, sizes, strict=True)), self.named)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What can be chosen: an algorithm of a library, and its solver where solvers are chosen ("" else).

    ``key`` is how a model names it; ``mechanism`` what its columns depend on.
    """

    key: str
    library: str
    algorithm: str
    solver: str = ""
    mechanism: str = ""
    deterministic: bool = True

    @property
    def name(self) -> str:
        """The solver's name where there is one, else the algorithm's."""
        return self.solver or self.algorithm


class Context(NamedTuple):
    """What every engine of a setting is about: its candidates on a device, and the family's physics there.

    ``least_us`` (candidates,): no time is below it, since launch and tail of the shortest kernels take that long.
    """

    setting: Setting
    device: Gpu
    candidates: tuple[Candidate, ...]
    formula: Formula
    least_us: np.ndarray


@dataclass(frozen=True, slots=True)
class Engine(ABC):
    """Times in µs (NaN where the model does not apply) and workspaces in bytes of a setting's candidates."""

    context: Context

    def one(self, problem: AnyProblem, wanted: Sequence[int]) -> tuple[list[float], list[float]]:
        """Of the candidates at ``wanted``, for one problem."""
        sizes = np.array([self.context.setting.family.sizes_of(problem)])
        index = np.array(wanted, dtype=int)
        times_us, workspace = self.many(sizes, np.zeros(len(index), dtype=int), index)
        return times_us.tolist(), workspace.tolist()

    def measured(self, problem: AnyProblem, wanted: Sequence[int]) -> frozenset[int]:
        """Those of the candidates at ``wanted`` whose times on the problem are measurements."""
        return frozenset()

    def least_us(self, problem: AnyProblem) -> float:
        """What no candidate's time on the problem, nor an interval's end, lies below, in µs; 0 where nothing tells."""
        return 0.0

    def failures(self, problem: AnyProblem, failing: Sequence[int]) -> list[str]:
        """Why each of the candidates at ``failing``, whose time is infinite, does not run."""
        return [EXPECTED_TO_FAIL] * len(failing)

    @abstractmethod
    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows,) each, of candidate ``index[i]`` for problem ``problem[i]`` of ``sizes`` (problems, sizes)."""
        ...

    def candidate_columns(self, terms: ProblemTerms, candidate: int) -> tuple[tuple[Number, ...], Number]:
        """The candidate's own columns on problems, and its workspace in bytes."""
        setting, _, candidates, formula, _ = self.context
        if not setting.family.candidate_names:
            return (), 0
        return formula.candidate(terms, candidates[candidate].mechanism)

    def inputs(
        self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray, behind: int = 0
    ) -> tuple[np.ndarray, ProblemTerms, np.ndarray]:
        """Float32 (rows, columns), the problem's columns, the candidate's own, and ``behind`` that are not set; the
        problems' terms; workspaces in bytes (rows,). Other arguments as of `many`."""
        terms = self.context.formula.problem(self.context.setting.problem(sizes.T))
        shared = len(terms.values)
        # 1. The problems' columns (problems, shared), worked out once per problem and then spread over the rows.
        values = np.empty((len(sizes), shared), dtype=np.float32)
        for number, column in enumerate(terms.values):
            values[:, number] = column
        names = self.context.setting.family.candidate_names
        x = np.empty((len(index), shared + len(names) + behind), dtype=np.float32)
        x[:, :shared] = values[problem]
        # 2. The candidates' own columns, candidate by candidate.
        workspace = np.zeros(len(index))
        for candidate in np.unique(index).tolist() if names else ():
            rows = np.flatnonzero(index == candidate)
            columns, bytes_needed = self.candidate_columns(taken(terms, problem[rows]), candidate)
            for number, column in enumerate(columns, shared):
                x[rows, number] = column
            workspace[rows] = bytes_needed
        return x, terms, workspace

    def roofline_us(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> np.ndarray:
        """(rows,) the candidate's own roofline time, which stands in where the model says nothing."""
        family = self.context.setting.family
        terms = self.context.formula.problem(self.context.setting.problem(sizes[problem].T))
        time_us = np.array(terms.roofline_us, dtype=np.float64)
        if family.own_roofline:
            # The column holds log2(candidate's roofline / problem's roofline).
            position = family.candidate_names.index(family.own_roofline)
            for candidate in np.unique(index):
                rows = np.flatnonzero(index == candidate)
                columns, _ = self.candidate_columns(taken(terms, rows), candidate)
                time_us[rows] *= np.exp2(columns[position])
        return np.maximum(time_us, self.context.least_us[index])


def taken(terms: ProblemTerms, rows: np.ndarray) -> ProblemTerms:
    """The terms of the problems at ``rows``, as far as a candidate's columns need them."""
    sized = terms.sized
    if len(rows) == len(terms.roofline_us) and (rows[1:] > rows[:-1]).all():
        return terms
    of_rows = type(sized)._make(v[rows] if isinstance(v, np.ndarray) else v for v in sized)
    return ProblemTerms((), terms.roofline_us[rows], of_rows)


@dataclass(frozen=True, slots=True)
class TableEngine(Engine):
    """Asks any `TimeModel` by way of a table: milliseconds a call."""

    model: "TimeModel"

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        import pandas as pd

        from surrogate.dataset.rows import rows_of

        setting, device, candidates, _, least_us = self.context
        frame = pd.DataFrame(sizes[problem], columns=list(setting.family.size_names))
        frame = frame.assign(gpu=setting.gpu, **setting.named)
        for name in ("library", "algorithm", "solver"):
            frame[name] = [getattr(candidates[i], name) for i in index]
        frame["library_version"] = frame["library"].map(dict(setting.versions))
        if not any(candidate.solver for candidate in candidates):
            del frame["solver"]
        rows = rows_of(frame, setting.family, {setting.gpu: device})
        with in_one_line(f"the model {self.model.name} cannot answer"):  # what a bundle holds need not fit the rows
            return np.maximum(self.model.predict(rows), least_us[index]), rows.workspace_bytes


@dataclass(frozen=True, slots=True)
class Tf32Engine(Engine):
    """fp32 where TF32 is allowed and was never measured: candidates with tensor-core kernels take the shorter time.

    ``plain`` gives times by multiply-adds, ``tensor`` times at TF32's peak; ``able`` (candidates,) says who has both,
    ``unseen`` (candidates,) whose library was never measured so.
    """

    plain: Engine
    tensor: Engine
    able: np.ndarray
    unseen: np.ndarray

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        plain_us, workspace = self.plain.many(sizes, problem, index)
        tensor_us = self.tensor.many(sizes, problem, index)[0]
        faster_us = np.where(self.able[index], np.minimum(plain_us, tensor_us), plain_us)
        return np.where(self.unseen[index], faster_us, tensor_us), workspace


@dataclass(frozen=True, slots=True)
class BesideEngine(Engine):
    """``law``'s times of the ``described`` candidates (candidates,) beside another engine's of the rest."""

    others: Engine
    law: Engine
    described: np.ndarray

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        times_us, workspace = self.others.many(sizes, problem, index)
        return np.where(self.described[index], self.law.many(sizes, problem, index)[0], times_us), workspace


@dataclass(frozen=True, slots=True)
class CorrectedEngine(Engine):
    """Another engine's times, multiplied by what a calibration found on the GPU."""

    model: Engine
    correction: "Correction"

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        from surrogate.models.correction import correction_columns

        setting, _, candidates, formula, least_us = self.context
        family = setting.family
        times_us, workspace = self.model.many(sizes, problem, index)
        # The columns (rows, inputs) that the correction sees: those of the setting, of the problems, of the candidates.
        names = (*family.problem_names, *family.candidate_names)
        columns = dict(zip(names, self.inputs(sizes, problem, index)[0].T, strict=True))
        columns |= zip(family.constant_names, formula.constant, strict=True)
        wanted = correction_columns(family)
        x = np.empty((len(index), len(wanted)), dtype=np.float32)
        for place, name in enumerate(wanted):
            x[:, place] = columns[name]
        keys = np.array([candidate.key for candidate in candidates], dtype=object)[index]
        return np.maximum(times_us * np.exp(self.correction.log_factor(x, keys, times_us)), least_us[index]), workspace
