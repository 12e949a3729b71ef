"""`interpolated-terms`: measured times, interpolation between them, and `boosted-terms` away from them.

How the three are put together says `surrogate.models.neighbours`; here both models' trees are fitted. Training rows of
the trees that correct the interpolation are interpolated without the row's own shape, so that they meet new shapes as
they learned them.

Spikes are single measurements that something beside the kernel slowed down: in some tables one time in fifty is 1.3 to
2 times those at the next sizes, for one candidate alone, where another library times the same kernel without it. A
kernel that is slow at some size shows it at other problems of that size, at the next size, or in another library; a
time is a spike only where all of them differ. The `Grid` is fitted without them.
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
from surrogate.models.base import SearchRange, TimeModel
from surrogate.models.boosted import BoostedTerms
from surrogate.models.grid import POSITION_BITS, Grid, GridPart, Label, Lines, MeasuredRows, positions
from surrogate.models.neighbours import line_columns, log_corrections
from surrogate.models.times import TERMS, BoostedTimes, Neighbours, neighbour_files, times_from_files
from surrogate.models.trees import ReadyTrees, Trees


@dataclass(eq=False, repr=False)
class InterpolatedTerms(TimeModel):
    """Parameters are those of the trees of both models.

    Trees are fitted on ``most_rows`` rows at most, drawn at random; the interpolation keeps every row.
    """

    name: ClassVar[str] = "interpolated-terms"
    help: ClassVar[str] = "measured times, interpolation between them, boosted-terms away from them"
    storable: ClassVar[bool] = True

    rounds: Annotated[int, SearchRange(100, 600, log=True)] = 300
    learning_rate: Annotated[float, SearchRange(0.04, 0.15, log=True)] = 0.08
    max_leaves: Annotated[int, SearchRange(64, 512, log=True)] = 256
    min_child_weight: float = 3.0
    subsample: float = 0.7
    colsample_bynode: Annotated[float, SearchRange(0.2, 0.8)] = 0.4
    most_rows: int = 200_000
    random_state: int = 0
    device: str = "cpu"

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit both models' trees by absolute error, which the outliers of a table hardly change."""
        import xgboost

        if not rows.family.lines:
            raise InputError(f"{self.name} has no lines to interpolate {rows.family.name} along; use boosted-terms")
        drawn = np.random.default_rng(self.random_state).permutation(len(rows))[: self.most_rows]
        sample = rows.take(drawn)
        sample_us = time_us[drawn]
        self.terms_ = self.for_unmeasured_gpu().fit(sample, sample_us)
        self.grid_ = _fitted_grid(rows, np.log(time_us / self.terms_.base_us(rows)))
        self.trees_ = None
        self._measured = {}
        # The trees learn what the interpolation leaves over, on the rows that have neighbours; none is its own.
        target = np.log(sample_us / self.terms_.base_us(sample))
        inputs, labels = [], []
        for members, codes, measured in self._measured_rows(sample):
            part = sample.take(members)
            extra, start, _ = line_columns(measured, measured.lines.keys(codes, part.sizes)[:, 1:])
            near = np.isfinite(start)
            inputs.append(np.hstack([self.terms_.design(part), extra])[near])
            labels.append((target[members] - start)[near])
        if sum(map(len, inputs)):
            threads = threads_for(len(sample))
            label = np.concatenate(labels)
            data = xgboost.QuantileDMatrix(np.concatenate(inputs), label=label, max_bin=256, nthread=threads)
            settings = {**self.terms_.settings(), "objective": "reg:absoluteerror", "nthread": threads}
            self.booster_ = xgboost.train(settings, data, num_boost_round=self.rounds)
            self.trees_ = Trees.from_booster(self.booster_.save_raw("json"))

    def for_unmeasured_gpu(self) -> BoostedTerms:
        """The terms alone."""
        params = self.get_params(deep=False)
        del params["most_rows"]
        params |= {"rounds": 0, "median_rounds": self.rounds}
        return BoostedTerms(**params, max_depth=0, max_bin=256, best_weight=0.0)

    def _measured_rows(self, rows: Rows) -> Iterator[tuple[np.ndarray, np.ndarray, MeasuredRows]]:
        """GPU by GPU the rows whose candidate was measured there: positions, codes, and what was measured."""
        device = device_names(rows.frame)
        labels, position = _labels(rows)
        codes = np.array([self.grid_.labels.get(each, -1) for each in labels])[position]
        for gpu in self.grid_.packed:
            if not (device == gpu).any():
                continue
            if gpu not in self._measured:
                self._measured[gpu] = self.grid_.measured(rows.family, {gpu: None})
            measured = self._measured[gpu]
            members = np.flatnonzero((device == gpu) & np.isin(codes, measured.codes))
            if len(members):
                yield members, codes[members], measured

    def _predict(self, rows: Rows) -> np.ndarray:
        log = np.full(len(rows), np.nan)
        residual = None if self.trees_ is None else self.booster_.inplace_predict
        for members, codes, measured in self._measured_rows(rows):
            part = rows.take(members)
            log[members] = log_corrections(
                measured,
                rows.family,
                codes=codes,
                sizes=part.sizes,
                library=part.frame["library"].to_numpy(),
                terms=partial(self._terms_at, part),
                residual=residual,
            )
        time_us = self.terms_.base_us(rows) * np.exp(log)
        far = np.flatnonzero(np.isnan(log))
        time_us[far] = self.terms_.predict(rows.take(far))
        return time_us

    def _terms_at(
        self, part: Rows, same: np.ndarray, owner: np.ndarray, changed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `surrogate.models.neighbours.Terms`, of the rows ``same`` as they are and ``owner`` with other sizes."""
        asked = [part.take(same)]
        if len(owner):
            columns = dict(zip(part.family.size_names, changed.T, strict=True))
            frame = part.frame.iloc[owner].assign(**columns).reset_index(drop=True)
            asked.append(rows_of(frame, part.family, part.devices))
        design = [self.terms_.design(rows) for rows in asked]
        logs = [np.log(self.terms_.predict(rows) / self.terms_.base_us(rows)) for rows in asked]
        return np.concatenate(design), np.concatenate(logs)

    def times(self) -> BoostedTimes:
        """The model as arrays."""
        return times_from_files(self.to_files())[0]

    def to_files(self) -> dict[str, bytes]:
        """The terms' files, the residual's trees, every GPU's measured times."""
        files = {f"{TERMS}{name}": content for name, content in self.terms_.to_files().items()}
        return files | neighbour_files(Neighbours(self.grid_, self.trees_.to_bytes() if self.trees_ else b""))

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        times, near = times_from_files(files)
        model.terms_ = BoostedTerms.from_times(times)
        model.grid_ = near.grid
        model.trees_ = near.trees if near.stored else None
        model._measured = {}
        if near.stored:
            columns = len(times.columns) + 2 + 2 * len(near.grid.lines)
            model.booster_ = ReadyTrees(lambda: near.trees, range(columns))
        return model


def _fitted_grid(rows: Rows, values: np.ndarray) -> Grid:
    """Of log(time / base) (rows,), without spikes."""
    labels, codes = _labels(rows)
    _, setting = np.unique(["|".join(each.setting) for each in labels], return_inverse=True)
    family = rows.family
    along = [*family.lines, *({name: 1} for name in family.grid_sizes if {name: 1} not in family.lines)]
    lines = Lines.of(along, family.size_names)
    sizes = rows.sizes
    device = device_names(rows.frame)
    packed = {}
    for gpu in np.unique(device).tolist():
        on_gpu = device == gpu
        part = GridPart.of(codes[on_gpu], sizes[on_gpu], values[on_gpu])
        packed[gpu] = without_spikes(part, lines, setting).to_bytes(family.size_names)
    return Grid({each: code for code, each in enumerate(labels)}, packed, family.lines)


def _labels(rows: Rows) -> tuple[list[Label], np.ndarray]:
    """The distinct labels in the order of their texts, and the position of each row's among them, (rows,)."""
    names = rows.family.setting_names
    texts = (joined(rows.frame, names) + "|" + rows.candidate.astype(str)).to_numpy().astype(str)
    _, first, position = np.unique(texts, return_index=True, return_inverse=True)
    settings = rows.frame.iloc[first][list(names)].astype(str).itertuples(index=False, name=None)
    return list(map(Label, settings, rows.candidate[first].astype(str).tolist())), position


NOISE_MEDIANS = 3.0
"""Of a candidate's distances from the lines through both neighbours: two standard deviations, on two lines at once."""
MIN_RISE = 0.18
"""The least rise of a spike in log time, however little a candidate's times scatter."""
SPIKE_PASSES = 2
"""One spike hides another beside it, which the second pass meets."""


def without_spikes(part: GridPart, lines: Lines, setting: np.ndarray) -> GridPart:
    """The rows of ``part`` that are no spikes; ``setting`` (codes,) numbers the setting of every candidate.

    A spike rises above both its neighbours on two lines by more than its candidate's noise and `MIN_RISE`, and by half
    as much above its neighbours on all lines; and of several candidates of the problem no other rises so on two.
    """
    for _ in range(SPIKE_PASSES if len(lines.leading) > 2 else 0):
        # 1. Of each row along each line the neighbours' values, and what they say of it, (rows, lines) each.
        keys = part.keys(lines)[:, 1:]
        low, high, between = np.stack([_beside(line, part.values) for line in keys.T], axis=2)
        values = part.values[:, None]
        # 2. How far each row rises: the second least of all lines with both neighbours (NaN, where one is missing,
        #    sorts last), and the least of all lines with any.
        second = np.sort(values - np.maximum(low, high), axis=1)[:, 1]
        minimum = np.fmin.reduce(values - np.fmax(low, high), axis=1)
        # 3. Noise is the median distance from the lines, along the one where a candidate has the largest.
        noise = pd.DataFrame(np.abs(values - between)).groupby(part.codes).median().max(axis=1)
        limit = np.maximum(NOISE_MEDIANS * noise, MIN_RISE)[part.codes].to_numpy()
        # 4. Of each problem, how many of its candidates can be judged, and how many rise.
        _, problem = np.unique(lines.keys(setting[part.codes], part.sizes)[:, 0], return_inverse=True)
        judged = np.bincount(problem, np.isfinite(second))
        rising = np.bincount(problem, second > limit)
        alone = (judged > 1) & (rising == 1)
        kept = ~((second > limit) & (minimum > second / 2) & alone[problem])
        part = GridPart(part.codes[kept], part.sizes[kept], part.values[kept])
    return part


def _beside(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(3, rows) the next value below and above on the line of ``keys`` (rows,), and what lies between both; or NaN."""
    order = np.argsort(keys, kind="stable")
    line = keys[order] >> np.uint64(POSITION_BITS)
    gap = np.where(line[1:] == line[:-1], np.diff(positions(keys[order])), np.nan)
    out = np.full((3, len(keys)), np.nan)
    out[0, order[1:]] = np.where(np.isfinite(gap), values[order[:-1]], np.nan)
    out[1, order[:-1]] = np.where(np.isfinite(gap), values[order[1:]], np.nan)
    inner = order[1:-1]
    with np.errstate(invalid="ignore"):
        share = gap[:-1] / (gap[:-1] + gap[1:])
    out[2, inner] = out[0, inner] * (1 - share) + out[1, inner] * share
    return out
