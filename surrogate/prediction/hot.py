"""The hot path: features of one problem for many candidates in Python numbers, or of many problems in arrays.

Both call the formulas of `surrogate.features.table`; what no problem changes is worked out once per setting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features.algorithms import MECHANISM_CODE, Mechanism
from surrogate.features.conv import Conv
from surrogate.features.gpu import Gpu, canonical
from surrogate.features.machine import b_max, machine
from surrogate.features.problem import ConvColumns
from surrogate.features.table import (
    ALGORITHM_NAMES,
    DIMENSION_NAMES,
    MACHINE_NAMES,
    PROBLEM_NAMES,
    algorithm_features,
    dimensions,
    machine_features,
    problem_features,
    problem_roofline_us,
)
from surrogate.features.terms import MECHANISM_TERMS, KernelTerms, Sized, sized
from surrogate.prediction.bulk import Bulk
from surrogate.prediction.forest import Forest
from surrogate.prediction.parts import HotRows, Parts
from surrogate.prediction.scorers import ForestScorer, Scorer
from surrogate.prediction.setting import Candidate, Setting

if TYPE_CHECKING:
    from surrogate.prediction.correction import HotCorrection
    from surrogate.prediction.process import HotProcess

SIZES = len([name for name in DIMENSION_NAMES if name.startswith(("log2_", "pad_", "stride_", "dilation_"))])
"""Leading dimensions that vary with a problem; those behind them are the setting's."""
SHARED = (*DIMENSION_NAMES[:SIZES], *PROBLEM_NAMES)
"""Columns that the candidates of a problem share."""
VARYING = (*SHARED, *ALGORITHM_NAMES)
Formula = tuple[Callable[[Any, Any], KernelTerms], tuple[float, float, float], int]
"""A mechanism's terms, its B_max on the device, and its code."""
PLACES: Mapping[str, int] = {name: place for place, name in enumerate(VARYING)}


@dataclass(frozen=True, slots=True)
class HotSetting:
    """Parts of a model made ready for one setting.

    ``formulas`` are the candidates'; ``template`` (candidates, columns) holds what never changes of a row, ``constant``
    the model's other columns.
    """

    conv_flags: tuple[str, str, str, str]
    machine: Any
    candidates: tuple[Candidate, ...]
    formulas: tuple[Formula, ...]
    template: np.ndarray
    constant: Mapping[str, float]
    forest: Forest
    scorer: Scorer
    bulk: Bulk
    parts: Parts
    process: "HotProcess | None" = None
    correction: "HotCorrection | None" = None

    def one(self, conv: Conv, wanted: Sequence[int]) -> tuple[list[float], list[float]]:
        """Times in µs and workspaces in bytes of the candidates at ``wanted`` for one problem."""
        z, m = sized(conv), self.machine
        roofline_us = problem_roofline_us(z, m)
        x = self.template.take(wanted, axis=0)
        shared = dimensions(z)[:SIZES] + problem_features(z, m, roofline_us)
        x[:, : len(SHARED)] = np.fromiter(shared, np.float32, len(shared))
        own: list[Any] = []
        workspace = []
        for index in wanted:
            terms_of, slots, mechanism_code = self.formulas[index]
            terms = terms_of(z, slots)
            own += algorithm_features(z, m, roofline_us, mechanism_code, terms)
            workspace.append(terms.workspace_bytes)
        x[:, len(SHARED) : len(VARYING)] = np.fromiter(own, np.float32, len(own)).reshape(len(wanted), -1)
        score = self.scorer.score(x, wanted)
        if self.process:
            score = self.process.blend(score, x, wanted)
        return self._times(x, roofline_us, score, wanted).tolist(), workspace

    def many(
        self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Times in µs and workspaces in bytes (rows,): row i is the candidate ``index[i]`` of problem ``problem[i]``.

        ``sizes`` (problems, 14) are the problems' sizes.
        """
        if not len(index):
            return np.empty(0), np.empty(0)
        direction, dtype, math, layout = self.conv_flags
        columns = ConvColumns.of(list(sizes.T), dtype=dtype, math=math, layout=layout, direction=direction)
        z, m = sized(columns), self.machine
        roofline_us = problem_roofline_us(z, m)
        shared = _stack(dimensions(z)[:SIZES] + problem_features(z, m, roofline_us), len(sizes))
        order = np.argsort(index, kind="stable")
        at, codes = problem[order], index[order]
        ends = np.searchsorted(codes, np.arange(len(self.candidates) + 1)).tolist()
        parts = [(i, slice(*ends[i : i + 2])) for i in range(len(self.candidates)) if ends[i] < ends[i + 1]]
        x = np.empty((len(index), self.template.shape[1]), dtype=np.float32)
        x[:, : len(SHARED)] = shared[at]
        x[:, len(VARYING) :] = self.template[codes, len(VARYING) :]
        workspace = np.empty(len(index))
        for one, rows in parts:
            workspace[rows] = self._fill(x[rows], one, z, roofline_us, at[rows])
        log_correction = self._scores(x, codes, parts)
        time_us = self._times(x, roofline_us[at], log_correction, codes)
        return _scattered(time_us, order), _scattered(workspace, order)

    def _fill(self, x: np.ndarray, one: int, z: Sized, roofline_us: np.ndarray, at: np.ndarray) -> Any:
        """Write the candidate's own columns of ``x`` (rows, columns), of the problems ``at``; gives its workspaces."""
        every = len(at) == len(roofline_us) and bool((at[1:] > at[:-1]).all())
        own, own_us = (z, roofline_us) if every else (_take(z, at), roofline_us[at])
        terms_of, slots, mechanism_code = self.formulas[one]
        terms = terms_of(own, slots)
        features = algorithm_features(own, self.machine, own_us, mechanism_code, terms)
        for place, values in enumerate(features, len(SHARED)):
            x[:, place] = values
        return terms.workspace_bytes

    def _scores(self, x: np.ndarray, codes: np.ndarray, parts: Sequence[tuple[int, slice]]) -> np.ndarray:
        """Log corrections (rows,) of ``x`` (rows, columns) whose candidates' rows are the slices ``parts``."""
        pays = {one for one, rows in parts if self.bulk.pays(one, rows.stop - rows.start)}
        if pays:
            score = np.empty(len(x), dtype=np.float32)
            for one, rows in parts:
                part = x[rows]
                score[rows] = (
                    self.bulk.score(part, one) if one in pays else self.scorer.score(part, codes[rows])
                )
        else:
            score = self.scorer.score(x, codes)
        if self.process is None:
            return score
        return np.concatenate([self.process.blend_all(score[rows], x[rows], one) for one, rows in parts])

    def _times(
        self, x: np.ndarray, roofline_us: Any, score: np.ndarray, index: Sequence[int] | np.ndarray
    ) -> np.ndarray:
        """Times in µs (rows,) of log corrections ``score`` (rows,); row i is the candidate ``index[i]``."""
        time_us = self.parts.base_us(HotRows(x, PLACES, roofline_us)) * np.exp(
            score.astype(np.float64, copy=False)
        )
        return self.correction.correct(time_us, x, index) if self.correction else time_us


def hot_setting(
    parts: Parts,
    setting: Setting,
    device: Gpu,
    candidates: tuple[Candidate, ...],
    context: Mapping[str, float],
) -> HotSetting:
    """``context`` are the columns behind the features (library, version) and their values.

    Raises `ValueError` where the model has a column that is neither a feature nor of the context.
    """
    flags = Conv(
        n=1, c=1, h=1, k=1, r=1,
        dtype=setting.dtype, math=setting.math, layout=setting.layout, direction=setting.direction,
    )  # fmt: skip
    m = machine(device, flags.dtype, flags.uses_tensor_cores)
    constant = dict(zip(DIMENSION_NAMES[SIZES:], dimensions(sized(flags))[SIZES:], strict=True))
    constant |= dict(zip(MACHINE_NAMES, machine_features(m), strict=True)) | dict(context)
    column = {name: place for place, name in enumerate(parts.columns)}
    varying = [column.get(name, -1) for name in VARYING]
    codes = [candidate.code for candidate in candidates]
    numeric = parts.trees.category_column is None
    if numeric:  # the code is compared like a size
        varying.append(len(parts.columns))
    known = {column[name]: float(value) for name, value in constant.items() if name in column}
    forest = parts.trees.specialise(varying, known, codes)
    template = np.zeros((len(codes), len(varying) + forest.patterns.shape[1]), dtype=np.float32)
    template[:, len(varying) :] = forest.patterns
    if numeric:
        template[:, len(VARYING)] = codes
    process = correction = None
    device_name = canonical(setting.gpu)
    names = [candidate_name(setting, candidate) for candidate in candidates]
    if parts.process is not None and device_name in parts.process.devices:
        from surrogate.prediction.process import hot_process  # here: the models bring pandas with them

        process = hot_process(parts.process, parts.process_share, device_name, names, VARYING, constant)
    if device_name in parts.corrections:
        from surrogate.prediction.correction import hot_correction

        correction = hot_correction(parts.corrections[device_name], names, VARYING, constant)
    return HotSetting(
        (flags.direction, flags.dtype, flags.math, flags.layout),
        m,
        candidates,
        tuple(_formula(device, candidate.mechanism) for candidate in candidates),
        template,
        constant,
        forest,
        ForestScorer(forest),
        Bulk(parts.trees, varying, known, codes),
        parts,
        process,
        correction,
    )


def _formula(device: Gpu, mechanism: Mechanism) -> Formula:
    return MECHANISM_TERMS[mechanism], b_max(device, mechanism), MECHANISM_CODE[mechanism]


def candidate_name(setting: Setting, candidate: Candidate) -> str:
    """As `surrogate.models.columns.candidate_names` writes it."""
    solver = (candidate.solver,) if candidate.solver else ()
    return "|".join((setting.library, setting.direction, candidate.algorithm, *solver))


def _stack(columns: Sequence[Any], length: int) -> np.ndarray:
    """(length, columns) float32 of arrays and constants."""
    out = np.empty((length, len(columns)), dtype=np.float32)
    for place, values in enumerate(columns):
        out[:, place] = values
    return out


def _scattered(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """(rows,) with ``values[i]`` at the place ``order[i]``."""
    out = np.empty_like(values)
    out[order] = values
    return out


def _take(z: Sized, at: np.ndarray) -> Sized:
    """The problems at these positions."""
    return Sized(*(value[at] if isinstance(value, np.ndarray) else value for value in z))
