"""Times from the fitted model of a bundle: boosted trees in numpy, and any other model through a table.

A setting decides most of the trees' columns, so the trees are specialised to a setting once. A row of the trees' input
holds the problem's columns, the candidate's own, its library's version and its code. The trees are combined with
measurements in the setting. If the candidate was not measured on the GPU, measurements of a similar GPU, the donor,
replace the GPU's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from surrogate.bundle.bundle import FamilyModel
from surrogate.features import Formula, Gpu, Number, ProblemTerms, one_line_errors, tiled_product_us, version_column
from surrogate.features.families import AnyProblem
from surrogate.models.call_cost import call_cost_us
from surrogate.models.grid import MeasuredCandidates, distinct_rows, log_corrections
from surrogate.models.times import BoostedArrays
from surrogate.models.trees import ReadyTrees
from surrogate.prediction.sources.source import Context, QuerySetting, Source, Times

if TYPE_CHECKING:
    from surrogate.models import TimeModel
    from surrogate.models.grid import MeasuredRows, MeasuredTimes

VERSION_COLUMN = "library_version"


class Columns(NamedTuple):
    """The trees' columns in one setting.

    ``varying`` are the columns that the setting does not decide, in the order of an input row, where the candidate's
    code follows them. ``positions`` are the positions of these columns and of the code among the columns that the trees
    were fitted on (−1 for a column that no tree uses). ``decided``: position of any other column → its value.
    """

    varying: tuple[str, ...]
    positions: list[int]
    decided: Mapping[int, float]

    @classmethod
    def of(cls, setting: QuerySetting, formula: Formula, arrays: BoostedArrays) -> "Columns":
        """Return the columns of the trees in a setting. The version is constant if only one library competes."""
        family = setting.family
        constant = dict(zip(family.constant_names, map(float, formula.constant), strict=True))
        if len(setting.versions) == 1:
            constant[VERSION_COLUMN] = version_column(setting.versions[0][1])
        fitted = {name: position for position, name in enumerate(arrays.columns)}
        varying = (*family.problem_names, *family.candidate_names, VERSION_COLUMN)
        positions = [-1 if name in constant else fitted.get(name, -1) for name in varying]
        decided = {fitted[name]: value for name, value in constant.items() if name in fitted}
        return cls(varying, [*positions, len(arrays.columns)], decided)


class SettingMeasurements(NamedTuple):
    """The measurements in the setting.

    ``codes`` (candidates,) are the candidates' codes in ``measured``, −1 for an unmeasured candidate. ``residual`` are
    the trees that correct the interpolation, or None if no such trees were fitted.
    """

    measured: "MeasuredRows"
    codes: np.ndarray
    residual: ReadyTrees | None


@dataclass(frozen=True, slots=True)
class TreeSource(Source):
    """Boosted trees specialised to one setting, and the measurements in it.

    ``template`` (candidates, columns) holds each candidate's version and code, and zeros in all other columns.
    ``own_column`` is the column of the candidate's own roofline (−1 if there is none). ``call_us`` (candidates,) are
    the call costs in µs. ``trend_positions`` (terms,) are the columns of the trend's terms. The trend applies outside
    the ``trend_ranges`` (candidates, 2, terms) of this GPU. ``donors`` (candidates,) names the GPU that gives each
    candidate's measurements, or "". ``donor_formulas`` has the family's formulas on the donors other than this GPU, and
    ``own_formulas`` has this GPU's. The second formula has the bandwidth that copies reach.
    """

    boosted: BoostedArrays
    trees: ReadyTrees
    template: np.ndarray
    own_column: int
    call_us: np.ndarray
    trend_positions: np.ndarray
    trend_ranges: np.ndarray
    donors: tuple[str, ...]
    donor_formulas: Mapping[str, tuple[Formula, Formula]]
    own_formulas: tuple[Formula, Formula]
    near: SettingMeasurements | None

    @classmethod
    def of(cls, context: Context, arrays: BoostedArrays, similar: Mapping[str, Gpu]) -> "TreeSource":
        """Return the model's trees specialised to the setting.

        A candidate without measurements in the setting on the GPU takes time / base and the call cost of a donor. The
        donor is the first of the ``similar`` GPUs (name → GPU) with measurements of the candidate.
        """
        setting, _, candidates, formula, _ = context
        family, gpu, _, _ = setting
        trend = arrays.trend
        columns = Columns.of(setting, formula, arrays)
        codes = np.full(len(candidates), -1)
        donors = ("",) * len(candidates)
        if arrays.interpolation:
            measured = arrays.interpolation.measured_times
            codes = measured.codes(setting.values, [candidate.key for candidate in candidates])
            donors = _donors(context, measured, codes, (gpu, *similar))
        scaled = set() if arrays.tiles else {*donors} & {*similar}
        libraries = zip(donors, (candidate.library for candidate in candidates), strict=True)
        return cls(
            context=context,
            boosted=arrays,
            trees=ReadyTrees(lambda: arrays.trees, columns.positions, columns.decided),
            template=_template(context, arrays, len(columns.positions)),
            own_column=columns.varying.index(family.own_roofline) if family.own_roofline else -1,
            call_us=np.array([call_cost_us(arrays.call_us, donor or gpu, library) for donor, library in libraries]),
            trend_positions=np.array([columns.varying.index(name) for name in trend.names] if trend else []),
            trend_ranges=np.array([trend.range_of(candidate.key, gpu) for candidate in candidates] if trend else []),
            donors=donors,
            donor_formulas={name: _formulas(setting, similar[name]) for name in scaled},
            own_formulas=_formulas(setting, context.device),
            near=_setting_measurements(context, arrays, columns, codes, donors),
        )

    def one(self, problem: AnyProblem, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.one` with Python numbers up to the trees' input."""
        terms = self.context.formula.problem(problem)
        shared = len(terms.values)
        # 1. The trees' input (rows, columns): the problem's columns in every row, then the candidates' own.
        x = self.template[candidate_of_row]
        x[:, :shared] = np.fromiter(terms.values, np.float32, shared)
        values: list[Number] = []
        workspace: list[Number] = []
        for candidate in candidate_of_row.tolist():
            columns, bytes_needed = self.candidate_columns(terms, candidate)
            values += columns
            workspace.append(bytes_needed)
        x[:, shared:-2] = np.fromiter(values, np.float32, len(values)).reshape(len(candidate_of_row), -1)
        # 2. The times, from the terms or from nearby measurements.
        sizes = np.array([self.context.setting.family.sizes_of(problem)] * len(candidate_of_row))
        times_us = self._times(sizes, x, candidate_of_row, self._base_us(terms))
        return Times(times_us, np.array(workspace, dtype=np.float64))

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        if not len(candidate_of_row):
            return Times(np.empty(0), np.empty(0))
        x, base_us, workspace = self._inputs(sizes, problem_of_row, candidate_of_row)
        return Times(self._times(sizes[problem_of_row], x, candidate_of_row, base_us), workspace)

    def _inputs(
        self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the trees' input (rows, columns), bases in µs and workspaces (rows,), for `Source.times`."""
        x, terms, workspace = self.inputs(sizes, problem_of_row, candidate_of_row, further=2)
        x[:, -2:] = self.template[candidate_of_row, -2:]
        return x, self._base_us(terms)[problem_of_row], workspace

    def _base_us(self, terms: ProblemTerms) -> Any:
        """Return the base in µs, (problems,) or of one problem: the roofline, or the time of output tiles."""
        return tiled_product_us(terms.problem, self.context.device) if self.boosted.tiles else terms.roofline_us

    def _log_terms(self, x: np.ndarray, candidate: np.ndarray) -> np.ndarray:
        """Return log(time / base) from the terms, (rows,), for the candidates at positions ``candidate`` (rows,)."""
        log_correction = self.trees.inplace_predict(x).astype(np.float64)
        if (trend := self.boosted.trend) is not None:
            log_correction += trend.extrapolation_outside(x[:, self.trend_positions], self.trend_ranges[candidate])
        return log_correction

    def _log_correction(self, sizes: np.ndarray, x: np.ndarray, candidate_of_row: np.ndarray) -> np.ndarray:
        """Return log(time / base) at ``sizes`` (rows, sizes), from measurements if possible, else from the terms."""
        near = self.near
        if near is None:
            return self._log_terms(x, candidate_of_row)
        code = near.codes[candidate_of_row]
        rows = np.flatnonzero(code >= 0)
        candidates = candidate_of_row[rows]

        def terms(same: np.ndarray, owner: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Implement `surrogate.models.grid.Terms`; positions count the rows with measurements."""
            design = x[rows[same]]
            candidate = candidates[np.concatenate([same, owner])]
            if len(owner):
                first, problem_of_row = distinct_rows(changed)
                changed_design, _, _ = self._inputs(changed[first], problem_of_row, candidates[owner])
                design = np.concatenate([design, changed_design])
            return design, self._log_terms(design, candidate)

        library = np.array([each.library for each in self.context.candidates], dtype=object)
        measured_log = log_corrections(
            near.measured,
            self.context.setting.family,
            MeasuredCandidates(code[rows], library[candidates], candidates),
            sizes[rows],
            terms=terms,
            residual=near.residual.inplace_predict if near.residual else None,
        )
        if len(rows) == len(candidate_of_row):
            return measured_log
        log_correction = np.empty(len(candidate_of_row))
        log_correction[rows] = measured_log
        rest = np.flatnonzero(code < 0)
        log_correction[rest] = self._log_terms(x[rest], candidate_of_row[rest])
        return log_correction

    def _times(self, sizes: np.ndarray, x: np.ndarray, candidate_of_row: np.ndarray, base_us: Number) -> np.ndarray:
        """Return times in µs (rows,) at ``sizes`` (rows, sizes), for candidate ``candidate_of_row[i]`` in row i."""
        # The base: the weighted mean of the problem's and the candidate's log roofline, plus the call cost.
        if self.boosted.algorithm_weight and self.own_column >= 0:
            base_us = base_us * np.exp2(self.boosted.algorithm_weight * x[:, self.own_column].astype(np.float64))
        base_us = base_us + self.call_us[candidate_of_row]
        ratio = np.exp(self._log_correction(sizes, x, candidate_of_row))
        time_us = base_us * ratio
        # On a donor, the time above its roofline is first what its memory loses, for example to error correction. This
        # GPU's memory has a loss of its own. The rest is latency and waits, which do not scale with the peaks.
        donor_of_row = np.array(self.donors, dtype=object)[candidate_of_row]
        for donor, formulas in self.donor_formulas.items():
            rows = np.flatnonzero((donor_of_row == donor) & (ratio > 1))
            if not len(rows):
                continue
            problem = self.context.setting.problem(sizes[rows].T)
            donor_us, donor_loss_us = _roofline_and_loss(formulas, problem)
            _, own_loss_us = _roofline_and_loss(self.own_formulas, problem)
            excess_us = (donor_us + self.call_us[candidate_of_row[rows]]) * (ratio[rows] - 1)
            loss_us = np.minimum(excess_us, donor_loss_us)
            share = loss_us / np.maximum(donor_loss_us, np.finfo(float).tiny)
            time_us[rows] = base_us[rows] + share * own_loss_us + excess_us - loss_us
        return np.maximum(time_us, self.context.min_us[candidate_of_row])


def _formulas(setting: QuerySetting, gpu: Gpu) -> tuple[Formula, Formula]:
    """Return the family's formulas with the datasheet's bandwidth, and with the bandwidth that copies reach."""
    copying = replace(gpu, dram_gbs=gpu.dram_share * gpu.dram_gbs)
    return setting.family.formula(setting.values, gpu), setting.family.formula(setting.values, copying)


def _roofline_and_loss(formulas: tuple[Formula, Formula], problem: AnyProblem) -> tuple[np.ndarray, np.ndarray]:
    """Return the roofline time in µs, and the time that the bandwidth of copies adds to it, (rows,)."""
    roofline_us, copied_us = (np.asarray(formula.problem(problem).roofline_us) for formula in formulas)
    return roofline_us, copied_us - roofline_us


def _template(context: Context, arrays: BoostedArrays, width: int) -> np.ndarray:
    """Return (candidates, width) float32: version and code of each candidate in the last two columns, else zeros."""
    versions = {library: version_column(version) for library, version in context.setting.versions}
    template = np.zeros((len(context.candidates), width), dtype=np.float32)
    template[:, -2] = [versions[candidate.library] for candidate in context.candidates]
    template[:, -1] = [arrays.codes.get(candidate.key, np.nan) for candidate in context.candidates]
    return template


def _donors(context: Context, measured: "MeasuredTimes", codes: np.ndarray, gpus: Sequence[str]) -> tuple[str, ...]:
    """Return for each candidate the first of the ``gpus`` on which it was measured in the setting, or ""."""
    donors = np.full(len(codes), "", dtype=object)
    for gpu in gpus:
        missing = (donors == "") & (codes >= 0)
        if gpu in measured.packed and missing.any():
            donors[missing & np.isin(codes, measured.rows(context.setting.family, gpu).codes)] = gpu
    return tuple(donors)


def _setting_measurements(
    context: Context, arrays: BoostedArrays, columns: Columns, codes: np.ndarray, donors: Sequence[str]
) -> SettingMeasurements | None:
    """Return the measurements of each candidate, by its code, on its donor GPU."""
    interpolation = arrays.interpolation
    if interpolation is None or not any(donors):
        return None
    owner = np.array(donors, dtype=object)
    donor_codes = {gpu: codes[owner == gpu] for gpu in dict.fromkeys(filter(None, donors))}
    measured = interpolation.measured_times.measured(context.setting.family, donor_codes)
    # Columns of the residual's trees: those of the terms, the interpolation, and for every line its difference from the
    # interpolation and its gap.
    residual = None
    if interpolation.stored:
        first = columns.positions[-1] + 1
        positions = [*columns.positions, *range(first, first + 1 + 2 * len(interpolation.measured_times.lines))]
        residual = ReadyTrees(lambda: interpolation.trees, positions, columns.decided)
    return SettingMeasurements(measured, np.where(owner != "", codes, -1), residual)


@dataclass(frozen=True, slots=True)
class TableSource(Source):
    """Times of any `TimeModel`, through a table; a call takes milliseconds."""

    model: "TimeModel"

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        import pandas as pd

        from surrogate.dataset.rows import rows_of

        setting, device, candidates, _, min_us = self.context
        frame = pd.DataFrame(sizes[problem_of_row], columns=list(setting.family.size_names))
        frame = frame.assign(gpu=setting.gpu, **setting.by_name)
        for name in ("library", "algorithm", "solver"):
            frame[name] = [getattr(candidates[i], name) for i in candidate_of_row]
        frame["library_version"] = frame["library"].map(dict(setting.versions))
        if not any(candidate.solver for candidate in candidates):
            del frame["solver"]
        rows = rows_of(frame, setting.family, {setting.gpu: device})
        with one_line_errors(f"the model {self.model.name} cannot answer"):  # a bundle's model need not fit the rows
            return Times(np.maximum(self.model.predict(rows), min_us[candidate_of_row]), rows.workspace_bytes)


def model_source(context: Context, family_model: FamilyModel, donors: Mapping[str, Gpu]) -> Source:
    """Return the source of a family's model. It may use measurements of the ``donors``, similar GPUs, nearest first."""
    if family_model.family.parameter_names:  # a described kernel's model needs pandas and scikit-learn
        from surrogate.prediction.sources.measured import ConfigurationSource

        if family_model.fitted.name == ConfigurationSource.MODEL:
            return ConfigurationSource.of(context, family_model.model)
    if family_model.boosted_arrays is None:
        return TableSource(context, getattr(family_model.model, "base", family_model.model))
    return TreeSource.of(context, family_model.boosted_arrays, donors)
