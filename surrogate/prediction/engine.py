"""How times come out of a fitted model: in numpy for boosted trees, by way of a table for every other model.

Both engines ask the family's formula for the columns of one problem in Python numbers, or of many in arrays; what no
problem changes is worked out once per setting. In half precision, where neither a GPU's convolutions nor its sweeps
were measured, one law fitted to whole networks stands in for the trees: those saw cuDNN 7's kernels on Volta and
Turing, and today's are up to twice as fast.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import exp
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from surrogate import bundled
from surrogate.features.families import Family, Formula, ProblemTerms
from surrogate.features.gpu import Gpu
from surrogate.features.problem import HALF
from surrogate.features.terms.tensor_core import TensorCoreLaw
from surrogate.features.text import version_column
from surrogate.models.neighbours import log_corrections
from surrogate.models.plain import from_plain
from surrogate.models.trees import BoostedTimes, ReadyTrees, call_cost_us
from surrogate.uncertainty.intervals import ALL, UnseenGpu, Widths

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Part
    from surrogate.models.calibrated import Correction
    from surrogate.models.grid import Measured

VERSION_COLUMN = "library_version"


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

    def problem(self, sizes: Iterable[Any]) -> Any:
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


@dataclass(frozen=True, slots=True)
class Engine(ABC):
    """Times in µs (NaN where the model does not apply) and workspaces in bytes of a setting's candidates."""

    setting: Setting
    device: Gpu
    candidates: tuple[Candidate, ...]
    formula: Formula
    least_us: np.ndarray
    """(candidates,) No time is below it: launch and tail of the shortest kernels."""

    def one(self, problem: Any, wanted: Sequence[int]) -> tuple[list[float], list[float]]:
        """Of the candidates at ``wanted``, for one problem."""
        sizes, index = np.array([self.setting.family.sizes_of(problem)]), np.array(wanted, dtype=int)
        times_us, workspace = self.many(sizes, np.zeros(len(index), dtype=int), index)
        return times_us.tolist(), workspace.tolist()

    @abstractmethod
    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows,) each, of candidate ``index[i]`` for problem ``problem[i]`` of ``sizes`` (problems, sizes)."""
        ...

    def candidate_columns(self, terms: ProblemTerms, candidate: int) -> tuple[tuple[Any, ...], Any]:
        """The candidate's own columns on problems, and its workspace in bytes."""
        if not self.setting.family.candidate_names:
            return (), 0
        return self.formula.candidate(terms, self.candidates[candidate].mechanism)

    def roofline_us(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> np.ndarray:
        """(rows,) the candidate's own roofline time, which stands in where the model says nothing."""
        terms = self.formula.problem(self.setting.problem(sizes[problem].T))
        kind, out = self.setting.family, np.array(terms.roofline_us, dtype=np.float64)
        if kind.own_roofline:
            position = kind.candidate_names.index(kind.own_roofline)
            for candidate in np.unique(index):
                rows = np.flatnonzero(index == candidate)
                columns, _ = self.candidate_columns(_taken(terms, rows), candidate)
                out[rows] *= np.exp2(columns[position])
        return np.maximum(out, self.least_us[index])


@dataclass(frozen=True, slots=True)
class TableEngine(Engine):
    """Asks any `TimeModel` by way of a table: milliseconds a call."""

    model: Any

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        import pandas as pd

        from surrogate.dataset.rows import rows_of

        kind = self.setting.family
        frame = pd.DataFrame(sizes[problem], columns=list(kind.size_names))
        frame = frame.assign(gpu=self.setting.gpu, **self.setting.named)
        for name in ("library", "algorithm", "solver"):
            frame[name] = [getattr(self.candidates[i], name) for i in index]
        frame["library_version"] = frame["library"].map(dict(self.setting.versions))
        if not any(candidate.solver for candidate in self.candidates):
            del frame["solver"]
        rows = rows_of(frame, kind, {self.setting.gpu: self.device})
        return np.maximum(self.model.predict(rows), self.least_us[index]), rows.workspace_bytes


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
class BoosterEngine(Engine):
    """Boosted trees made ready for one setting, and what was measured in it.

    A row of the trees' input holds the problem's columns, the candidate's own, its library's version and its code;
    these two are all of ``template`` (candidates, columns) that is not zero. ``call_us`` (candidates,).
    ``trend_places`` (terms,) says where in a row the trend's terms stand, and ``trend_ranges`` (candidates, 2, terms)
    outside which values it counts on this GPU. ``correction_inputs`` are the columns that a calibration's correction
    sees: where each stands in a row, or −1 and the value that the setting decides.
    ``codes`` (candidates,) are those of ``measured``, −1 where a candidate was not measured; ``residual`` corrects what
    is interpolated. ``lenders``: library → the GPU on which what counts as measured was.
    """

    times: BoostedTimes
    trees: ReadyTrees
    template: np.ndarray
    own_column: int
    call_us: np.ndarray
    trend_places: list[int]
    trend_ranges: np.ndarray
    correction: "Correction | None"
    correction_inputs: list[tuple[int, float]]
    measured: "Measured | None" = None
    codes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    residual: ReadyTrees | None = None
    lenders: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        setting: Setting,
        device: Gpu,
        candidates: tuple[Candidate, ...],
        times: BoostedTimes,
        least_us: np.ndarray,
        siblings: Sequence[str] = (),
    ) -> "BoosterEngine":
        """The model's trees with everything cut out that the setting decides.

        Where nothing was measured in the setting with a library on the GPU, the first of its ``siblings`` with
        measurements lends its time / base.
        """
        kind, formula = setting.family, setting.family.formula(setting.values, device)
        constant = dict(zip(kind.constant_names, map(float, formula.constant), strict=True))
        versions = {library: version_column(version) for library, version in setting.versions}
        if len(versions) == 1:
            (constant[VERSION_COLUMN],) = versions.values()
        column = {name: number for number, name in enumerate(times.columns)}
        varying = (*kind.problem_names, *kind.candidate_names, VERSION_COLUMN)
        places = [*(-1 if name in constant else column.get(name, -1) for name in varying), len(times.columns)]
        decided = {column[name]: value for name, value in constant.items() if name in column}
        template = np.zeros((len(candidates), len(varying) + 1), dtype=np.float32)
        template[:, -2] = [versions[candidate.library] for candidate in candidates]
        template[:, -1] = [times.codes.get(candidate.key, np.nan) for candidate in candidates]
        trend_places, trend_ranges = [], np.empty(0)
        if times.trend:
            trend_places = [varying.index(name) for name in times.trend.names]
            trend_ranges = np.array([times.trend.range_of(c.key, setting.gpu) for c in candidates])
        correction, inputs = times.corrections.get(setting.gpu), []
        if correction is not None:
            from surrogate.models.calibrated import correction_columns  # needs pandas

            index = {name: number for number, name in enumerate(varying)}
            inputs = [(index.get(name, -1), constant.get(name, 0.0)) for name in correction_columns(kind)]
        engine = cls(
            setting,
            device,
            candidates,
            formula,
            least_us,
            times,
            ReadyTrees(lambda: times.trees, places, decided),
            template,
            varying.index(kind.own_roofline) if kind.own_roofline else -1,
            np.array([call_cost_us(times.call_us, setting.gpu, c.library) for c in candidates]),
            trend_places,
            trend_ranges,
            correction,
            inputs,
        )
        near = times.neighbours
        if near is None:
            return engine
        codes = near.grid.codes(setting.values, [candidate.key for candidate in candidates])
        owner, lenders, lent = np.array([candidate.library for candidate in candidates]), {}, {}
        for library in versions:
            library_codes = codes[owner == library]
            if name := near.grid.lender((setting.gpu, *siblings), library_codes):
                lenders[library], lent[name] = name, np.append(lent.get(name, library_codes[:0]), library_codes)
        if not lent:
            return engine
        measured = near.grid.measured(kind, lent)
        more = range(places[-1] + 1, places[-1] + 2 + 2 * len(near.grid.lines))
        residual = ReadyTrees(lambda: near.trees, [*places, *more], decided) if near.stored else None
        codes = np.where(np.isin(codes, measured.codes), codes, -1)
        return replace(engine, measured=measured, codes=codes, residual=residual, lenders=lenders)

    def one(self, problem: Any, wanted: Sequence[int]) -> tuple[list[float], list[float]]:
        """As `Engine.one`."""
        terms = self.formula.problem(problem)
        shared, kind = len(terms.values), self.setting.family
        x = self.template[wanted]
        x[:, :shared] = np.fromiter(terms.values, np.float32, shared)
        values: list[float] = []
        workspace: list[float] = []
        for candidate in wanted:
            columns, bytes_needed = self.candidate_columns(terms, candidate)
            values += columns
            workspace.append(bytes_needed)
        x[:, shared:-2] = np.fromiter(values, np.float32, len(values)).reshape(len(wanted), -1)
        index = np.array(wanted)
        if self.measured is None:
            log_correction = self._log_terms(x, index)
        else:
            sizes = np.array([kind.sizes_of(problem)] * len(wanted))
            log_correction = self._near(self.measured, sizes, np.zeros(len(wanted), dtype=int), x, index)
        return self._times(x, index, terms.roofline_us, log_correction).tolist(), workspace

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        if not len(index):
            return np.empty(0), np.empty(0)
        x, roofline_us, workspace = self._inputs(sizes, problem, index)
        if self.measured is None:
            log_correction = self._log_terms(x, index, problem)
        else:
            log_correction = self._near(self.measured, sizes[problem], problem, x, index)
        return self._times(x, index, roofline_us, log_correction), workspace

    def _inputs(
        self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The trees' input (rows, columns), rooflines in µs and workspaces (rows,); arguments as of `Engine.many`."""
        terms = self.formula.problem(self.setting.problem(sizes.T))
        shared = len(terms.values)
        values = np.empty((len(sizes), shared), dtype=np.float32)
        for number, column in enumerate(terms.values):
            values[:, number] = column
        x = np.empty((len(index), self.template.shape[1]), dtype=np.float32)
        x[:, :shared] = values[problem]
        x[:, -2:] = self.template[index, -2:]
        workspace = np.zeros(len(index))
        if self.setting.family.candidate_names:
            for candidate in np.unique(index).tolist():
                rows = np.flatnonzero(index == candidate)
                columns, bytes_needed = self.candidate_columns(_taken(terms, problem[rows]), candidate)
                for number, column in enumerate(columns, shared):
                    x[rows, number] = column
                workspace[rows] = bytes_needed
        return x, terms.roofline_us[problem], workspace

    def _log_terms(self, x: np.ndarray, candidate: np.ndarray, problem: np.ndarray | None = None) -> np.ndarray:
        """(rows,) log(time / base) by the terms, of rows of the ``candidate`` (rows,) positions; ``problem`` (rows,) as
        of `ReadyTrees.inplace_predict`."""
        shared = len(self.setting.family.problem_names)
        log_correction = self.trees.inplace_predict(x, shared, problem).astype(np.float64)
        if self.times.trend is not None:
            log_correction += self.times.trend.outside(x[:, self.trend_places], self.trend_ranges[candidate])
        return log_correction

    def _near(
        self, measured: "Measured", sizes: np.ndarray, problem: np.ndarray, x: np.ndarray, index: np.ndarray
    ) -> np.ndarray:
        """(rows,) log(time / base) at ``sizes`` (rows, sizes): by what was measured, else by the terms alone."""
        known = np.flatnonzero(self.codes[index] >= 0)
        candidates = index[known]
        library = np.array([self.candidates[i].library for i in candidates.tolist()], dtype=object)

        def terms(same: np.ndarray, owner: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            design, candidate, group = (x[known[same]], candidates[np.concatenate([same, owner])], problem[known[same]])
            if len(owner):
                places, group_of = np.unique(changed, axis=0, return_inverse=True)
                more, _, _ = self._inputs(places, group_of, candidates[owner])
                design = np.concatenate([design, more])
                group = np.concatenate([group, group_of + group.max() + 1])
            return design, self._log_terms(design, candidate, group)

        residual = self.residual.inplace_predict if self.residual else None
        codes, kind = self.codes[candidates], self.setting.family
        near = log_corrections(measured, kind, codes, sizes[known], library, terms, residual)
        if len(known) == len(index):
            return near
        log_correction = np.empty(len(index))
        log_correction[known] = near
        rest = np.flatnonzero(self.codes[index] < 0)
        log_correction[rest] = self._log_terms(x[rest], index[rest], problem[rest])
        return log_correction

    def _times(self, x: np.ndarray, candidate: np.ndarray, roofline_us: Any, log_correction: np.ndarray) -> np.ndarray:
        """Times in µs (rows,) of log(time / base) (rows,), of rows of the ``candidate`` (rows,) positions."""
        base_us = roofline_us
        if self.times.own_weight and self.own_column >= 0:
            base_us = base_us * np.exp2(self.times.own_weight * x[:, self.own_column].astype(np.float64))
        time_us = (base_us + self.call_us[candidate]) * np.exp(log_correction)
        if self.correction is not None:
            columns = (np.full(len(x), value) if index < 0 else x[:, index] for index, value in self.correction_inputs)
            seen = np.column_stack([*columns])
            keys = np.array([self.candidates[i].key for i in candidate])
            time_us *= np.exp(self.correction.log_factor(seen, keys, time_us))
        return np.maximum(time_us, self.least_us[candidate])


def _taken(terms: ProblemTerms, rows: np.ndarray) -> ProblemTerms:
    """The terms of the problems at ``rows``, as far as a candidate's columns need them."""
    sized = terms.sized
    if len(rows) == len(terms.roofline_us) and (rows[1:] > rows[:-1]).all():
        return terms
    taken = type(sized)._make(v[rows] if isinstance(v, np.ndarray) else v for v in sized)
    return ProblemTerms((), terms.roofline_us[rows], taken)


FILE = "tensor_cores.json"


@dataclass(frozen=True, slots=True)
class Specification:
    """The law, the GPUs that it was fitted on, and how far off whole networks were on one of them left out, of families
    that it was not fitted to: the median error, and the half width in log time that nine in ten keep within."""

    law: TensorCoreLaw
    gpus: int
    median_ape: float
    half_width: float

    def instead_of(self, part: "Part") -> "Part":
        """The part without what its training data says of support and widths."""
        support = replace(part.support, exact={}, general={})
        widths = Widths({ALL: self.half_width})
        unseen = UnseenGpu({ALL: 1.0}, 1.0, self.gpus, self.median_ape, exp(self.half_width))
        return replace(part, support=support, widths=widths, unseen_gpu=unseen)


@cache
def shipped_specification() -> Specification:
    """What ships with the package."""
    return from_plain(Specification, json.loads((bundled.FOLDER / FILE).read_bytes()))


def specification_of(gpu: Gpu, dtype: str) -> Specification | None:
    """The law for kernels of a type on a GPU; None but for half precision on NVIDIA's GPUs since Ampere."""
    fits = dtype in HALF and gpu.vendor == "nvidia" and gpu.bf16_tensor_tflops > 0
    return shipped_specification() if fits else None


@dataclass(frozen=True, slots=True)
class TensorCoreEngine(Engine):
    """Times of the law, alike for all candidates; none needs a workspace."""

    law: TensorCoreLaw

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        sized = self.formula.problem(self.setting.problem(sizes.T)).sized
        time_us = self.law.convolution_us(sized, self.device, self.setting.named["dtype"])
        return time_us[problem], np.zeros(len(index))
