"""`interpolated-terms`: measured times, interpolation between them, and `boosted-terms` away from them.

`surrogate.models.grid` combines the three; this module fits the trees of both models. The trees that correct the
interpolation are fitted on rows that are interpolated without their own shape, so that they learn errors on new shapes.

A spike is a single measurement that was slowed down by another cause than the kernel. In some tables, one time in fifty
is 1.3 to 2 times the times at the next sizes. Another candidate or library has no spike at the same problem. A kernel
that is slow at some size is also slow in other problems of this size, at the next size, or in another library. So a
time is a spike only if it differs from all of them. The `MeasuredTimes` are fitted without spikes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import device_names, joined
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.threads import threads_for
from surrogate.features.errors import InputError
from surrogate.models import grid
from surrogate.models.base import SearchRange, TimeModel
from surrogate.models.boosted import BoostedTerms
from surrogate.models.times import TERMS, BoostedArrays, StoredInterpolation, arrays_from_files, interpolation_files
from surrogate.models.trees import ReadyTrees, Trees


@dataclass(eq=False, repr=False)
class InterpolatedTerms(TimeModel):
    """Answer measured problems, interpolate near them, and use `boosted-terms` for all other problems.

    Parameters
    ----------
    rounds, learning_rate, max_leaves, min_child_weight, subsample, colsample_bynode, tiles
        Parameters of both models (see `BoostedTerms`).
    most_rows
        Maximum rows in the fit of the trees. More rows are sampled. The interpolation keeps every row.
    random_state
        Seed of the sample and of the trees.
    device
        Where XGBoost grows trees: ``cpu`` or ``cuda``.

    Attributes
    ----------
    terms_
        The fitted `BoostedTerms`.
    measured_times_
        The measured times without spikes.
    trees_
        Trees that correct the interpolation. None if no row has a neighbour.

    Raises
    ------
    InputError
        On fitting rows of a family without lines.
    """

    name: ClassVar[str] = "interpolated-terms"
    help: ClassVar[str] = "measured times, interpolation between them, and boosted-terms far from them"
    storable: ClassVar[bool] = True

    rounds: Annotated[int, SearchRange(100, 600, log=True)] = 300
    learning_rate: Annotated[float, SearchRange(0.04, 0.15, log=True)] = 0.08
    max_leaves: Annotated[int, SearchRange(64, 512, log=True)] = 256
    min_child_weight: float = 3.0
    subsample: float = 0.7
    colsample_bynode: Annotated[float, SearchRange(0.2, 0.8)] = 0.4
    tiles: bool = False
    most_rows: int = 200_000
    random_state: int = 0
    device: str = "cpu"

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit both models' trees by absolute error, which outliers hardly change."""
        import xgboost

        if not rows.family.lines:
            raise InputError(f"{self.name} has no lines to interpolate {rows.family.name} along; use boosted-terms")
        drawn = np.random.default_rng(self.random_state).permutation(len(rows))[: self.most_rows]
        sample = rows.take(drawn)
        sample_us = time_us[drawn]
        self.terms_ = self.for_unmeasured_gpu().fit(sample, sample_us)
        self.measured_times_ = _fitted_times(rows, np.log(time_us / self.terms_.base_us(rows)))
        self.trees_ = None
        self._measured = {}
        # The trees learn the residual of the interpolation, on rows with neighbours other than themselves.
        target = np.log(sample_us / self.terms_.base_us(sample))
        inputs, labels = [], []
        for members, codes, measured in self._measured_rows(sample):
            part = sample.take(members)
            line_inputs, interpolation, _ = grid.line_columns(measured, measured.lines.keys(codes, part.sizes)[:, 1:])
            has_neighbour = np.isfinite(interpolation)
            inputs.append(np.hstack([self.terms_.design(part), line_inputs])[has_neighbour])
            labels.append((target[members] - interpolation)[has_neighbour])
        if sum(map(len, inputs)):
            threads = threads_for(len(sample))
            label = np.concatenate(labels)
            data = xgboost.QuantileDMatrix(np.concatenate(inputs), label=label, max_bin=256, nthread=threads)
            settings = {**self.terms_.settings(), "objective": "reg:absoluteerror", "nthread": threads}
            self.booster_ = xgboost.train(settings, data, num_boost_round=self.rounds)
            self.trees_ = Trees.from_booster(self.booster_.save_raw("json"))

    def for_unmeasured_gpu(self) -> BoostedTerms:
        """Return the unfitted terms model."""
        params = self.get_params(deep=False)
        del params["most_rows"]
        params |= {"rounds": 0, "median_rounds": self.rounds}
        return BoostedTerms(**params, max_depth=0, max_bin=256, best_weight=0.0)

    def _measured_rows(self, rows: Rows) -> Iterator[tuple[np.ndarray, np.ndarray, grid.MeasuredRows]]:
        """Yield the rows whose candidate was measured on their GPU, by GPU: positions, codes, and the measured rows."""
        device = device_names(rows.frame)
        labels, position = _labels(rows)
        codes = np.array([self.measured_times_.labels.get(each, -1) for each in labels])[position]
        for gpu in self.measured_times_.packed:
            if not (device == gpu).any():
                continue
            if gpu not in self._measured:
                self._measured[gpu] = self.measured_times_.measured(rows.family, {gpu: None})
            measured = self._measured[gpu]
            members = np.flatnonzero((device == gpu) & np.isin(codes, measured.codes))
            if len(members):
                yield members, codes[members], measured

    def _predict(self, rows: Rows) -> np.ndarray:
        log = np.full(len(rows), np.nan)
        residual = None if self.trees_ is None else self.booster_.inplace_predict
        for members, codes, measured in self._measured_rows(rows):
            part = rows.take(members)
            terms = partial(self._terms_at, part)
            version = pd.factorize(part.frame["library_version"])[0]
            number = codes * (version.max() + 2) + version  # a missing version has the number −1
            candidates = grid.MeasuredCandidates(codes, part.frame["library"].to_numpy(), number)
            log[members] = grid.log_corrections(measured, rows.family, candidates, part.sizes, terms, residual)
        time_us = self.terms_.base_us(rows) * np.exp(log)
        open_rows = np.flatnonzero(np.isnan(log))
        time_us[open_rows] = self.terms_.predict(rows.take(open_rows))
        return time_us

    def _terms_at(
        self, part: Rows, same: np.ndarray, owner: np.ndarray, changed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the `surrogate.models.grid.Terms` of the rows ``same``, and of the rows ``owner`` with other
        sizes.
        """
        parts = [part.take(same)]
        if len(owner):
            columns = dict(zip(part.family.size_names, changed.T, strict=True))
            frame = part.frame.iloc[owner].assign(**columns).reset_index(drop=True)
            parts.append(rows_of(frame, part.family, part.devices))
        design = [self.terms_.design(rows) for rows in parts]
        logs = [np.log(self.terms_.predict(rows) / self.terms_.base_us(rows)) for rows in parts]
        return np.concatenate(design), np.concatenate(logs)

    def boosted_arrays(self) -> BoostedArrays:
        """Return the model as arrays."""
        return arrays_from_files(self.to_files())[0]

    def to_files(self) -> dict[str, bytes]:
        """Return the files of the terms model, of the residual's trees, and of every GPU's measured times."""
        files = {f"{TERMS}{name}": content for name, content in self.terms_.to_files().items()}
        trees = self.trees_.to_bytes() if self.trees_ else b""
        return files | interpolation_files(StoredInterpolation(self.measured_times_, trees))

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """Return the model from the output of `to_files`."""
        model = cls(**params)
        arrays, interpolation = arrays_from_files(files)
        model.terms_ = BoostedTerms.from_arrays(arrays)
        model.measured_times_ = interpolation.measured_times
        model.trees_ = interpolation.trees if interpolation.stored else None
        model._measured = {}
        if interpolation.stored:
            columns = len(arrays.columns) + 2 + 2 * len(interpolation.measured_times.lines)
            model.booster_ = ReadyTrees(lambda: interpolation.trees, range(columns))
        return model


def _fitted_times(rows: Rows, values: np.ndarray) -> grid.MeasuredTimes:
    """Return the table of values log(time / base) (rows,) without spikes."""
    labels, codes = _labels(rows)
    _, setting = np.unique(["|".join(each.setting) for each in labels], return_inverse=True)
    family = rows.family
    along = [*family.lines, *({name: 1} for name in family.grid_sizes if {name: 1} not in family.lines)]
    lines = grid.Lines.of(along, family.size_names)
    sizes = rows.sizes
    device = device_names(rows.frame)
    packed = {}
    for gpu in np.unique(device).tolist():
        on_gpu = device == gpu
        part = grid.GpuTimes.of(codes[on_gpu], sizes[on_gpu], values[on_gpu])
        packed[gpu] = without_spikes(part, lines, setting).to_bytes(family.size_names)
    return grid.MeasuredTimes({each: code for code, each in enumerate(labels)}, packed, family.lines)


def _labels(rows: Rows) -> tuple[list[grid.Label], np.ndarray]:
    """Return the distinct labels, sorted by their texts, and the position of each row's label, (rows,)."""
    names = rows.family.setting_names
    texts = (joined(rows.frame, names) + "|" + rows.candidate.astype(str)).to_numpy().astype(str)
    _, first, position = np.unique(texts, return_index=True, return_inverse=True)
    settings = rows.frame.iloc[first][list(names)].astype(str).itertuples(index=False, name=None)
    return list(map(grid.Label, settings, rows.candidate[first].astype(str).tolist())), position


NOISE_MEDIANS = 3.0
"""Limit in medians of a candidate's distances from the lines: two standard deviations, on two lines at once."""
MIN_RISE = 0.18
"""Minimum rise of a spike in log time, even if a candidate's times hardly scatter."""
SPIKE_PASSES = 2
"""A spike can hide another one next to it, which the second pass finds."""


def without_spikes(part: grid.GpuTimes, lines: grid.Lines, setting: np.ndarray) -> grid.GpuTimes:
    """Return the rows of ``part`` without spikes. ``setting`` (codes,) numbers the setting of every candidate.

    On two lines, a spike rises above both neighbours by more than its candidate's noise and `MIN_RISE`. On all lines it
    rises above its neighbours by at least half as much. No other candidate of the problem rises so on two lines.
    """
    for _ in range(SPIKE_PASSES if len(lines.leading) > 2 else 0):
        # 1. Each row's neighbours on each line, and the value between them, (rows, lines) each.
        keys = part.keys(lines)[:, 1:]
        low, high, between = np.stack([_neighbours(line, part.values) for line in keys.T], axis=2)
        values = part.values[:, None]
        # 2. The rise of each row: the second smallest over lines with both neighbours (NaN sorts last), and the
        #    smallest over lines with any neighbour.
        second = np.sort(values - np.maximum(low, high), axis=1)[:, 1]
        minimum = np.fmin.reduce(values - np.fmax(low, high), axis=1)
        # 3. A candidate's noise is its largest median distance from one of the lines.
        noise = pd.DataFrame(np.abs(values - between)).groupby(part.codes).median().max(axis=1)
        limit = np.maximum(NOISE_MEDIANS * noise, MIN_RISE)[part.codes].to_numpy()
        # 4. For each problem, count the candidates with a rise on two lines, and the candidates above the limit.
        _, problem = np.unique(lines.keys(setting[part.codes], part.sizes)[:, 0], return_inverse=True)
        comparable = np.bincount(problem, np.isfinite(second))
        alone = (comparable > 1) & (np.bincount(problem, second > limit) == 1)
        kept = ~((second > limit) & (minimum > second / 2) & alone[problem])
        part = grid.GpuTimes(part.codes[kept], part.sizes[kept], part.values[kept])
    return part


def _neighbours(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return (3, rows) the next values below and above on the line of ``keys`` (rows,), and the value between both; or
    NaN.
    """
    order = np.argsort(keys, kind="stable")
    line = keys[order] >> np.uint64(grid.POSITION_BITS)
    gap = np.where(line[1:] == line[:-1], np.diff(grid.positions(keys[order])), np.nan)
    out = np.full((3, len(keys)), np.nan)
    out[0, order[1:]] = np.where(np.isfinite(gap), values[order[:-1]], np.nan)
    out[1, order[:-1]] = np.where(np.isfinite(gap), values[order[1:]], np.nan)
    inner = order[1:-1]
    with np.errstate(invalid="ignore"):
        share = gap[:-1] / (gap[:-1] + gap[1:])
    out[2, inner] = out[0, inner] * (1 - share) + out[1, inner] * share
    return out
