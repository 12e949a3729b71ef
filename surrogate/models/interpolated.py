"""`interpolated-terms`: measured times, interpolation between them, and `boosted-terms` away from them.

How the three are put together says `surrogate.models.neighbours`; here both models' trees are fitted. Training rows of
the trees that correct the interpolation are interpolated without the row's own shape, so that they meet new shapes as
they learned them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.problems import device_names, joined
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.base import TimeModel
from surrogate.models.boosted import BoostedTerms, threads_for
from surrogate.models.grid import Grid, GridPart, Measured
from surrogate.models.neighbours import GRID, LABELS, TERMS, TREES, line_columns, log_corrections, times_from_files
from surrogate.models.trees import BoostedTimes, ReadyTrees, Trees


@dataclass(eq=False, repr=False)
class InterpolatedTerms(TimeModel):
    """Parameters are those of the trees of both models.

    Trees are fitted on ``most_rows`` rows at most, drawn at random; the interpolation keeps every row.
    """

    name: ClassVar[str] = "interpolated-terms"
    storable: ClassVar[bool] = True

    rounds: int = 300
    learning_rate: float = 0.08
    max_leaves: int = 256
    min_child_weight: float = 3.0
    subsample: float = 0.7
    colsample_bynode: float = 0.4
    most_rows: int = 200_000
    random_state: int = 0
    device: str = "cpu"

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit both models' trees by absolute error, which the outliers of a table hardly change."""
        import xgboost

        if not rows.family.lines:
            raise InputError(f"{self.name} has no lines to interpolate {rows.family.name} along; use boosted-terms")
        drawn = np.random.default_rng(self.random_state).permutation(len(rows))[: self.most_rows]
        sample, sample_us = rows.take(drawn), time_us[drawn]
        self.terms_ = self.elsewhere().fit(sample, sample_us)
        self.grid_ = _fitted_grid(rows, np.log(time_us / self.terms_.base_us(rows)))
        self.trees_, self._measured = None, {}
        target, inputs, labels = np.log(sample_us / self.terms_.base_us(sample)), [], []
        for members, codes, measured in self._measured_rows(sample):
            part = sample.take(members)
            extra, start, _ = line_columns(measured, measured.lines.keys(codes, part.sizes)[:, 1:])
            known = np.isfinite(start)
            inputs.append(np.hstack([self.terms_.design(part), extra])[known])
            labels.append((target[members] - start)[known])
        if sum(map(len, inputs)):
            threads = threads_for(len(sample))
            data = xgboost.QuantileDMatrix(
                np.concatenate(inputs), label=np.concatenate(labels), max_bin=256, nthread=threads
            )
            settings = {**self.terms_.settings(), "objective": "reg:absoluteerror", "nthread": threads}
            self.booster_ = xgboost.train(settings, data, num_boost_round=self.rounds)
            self.trees_ = Trees.from_booster(self.booster_.save_raw("json"))

    def elsewhere(self) -> BoostedTerms:
        """The terms alone."""
        params = self.get_params(deep=False)
        del params["most_rows"]
        params |= {"rounds": 0, "median_rounds": self.rounds}
        return BoostedTerms(**params, max_depth=0, max_bin=256, best_weight=0.0)

    def _measured_rows(self, rows: Rows) -> Iterator[tuple[np.ndarray, np.ndarray, Measured]]:
        """GPU by GPU the rows whose candidate was measured there: positions, codes, and what was measured."""
        device = device_names(rows.frame)
        names, name_index = np.unique(_labels(rows), return_inverse=True)
        codes = np.array([self.grid_.labels.get(name, -1) for name in names])[name_index]
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
            sizes, library = part.sizes, part.frame["library"].to_numpy()

            def terms(
                same: np.ndarray, owner: np.ndarray, changed: np.ndarray, part: Rows = part
            ) -> tuple[np.ndarray, np.ndarray]:
                whole = [part.take(same)]
                if len(owner):
                    columns = dict(zip(part.family.size_names, changed.T, strict=True))
                    frame = part.frame.iloc[owner].assign(**columns).reset_index(drop=True)
                    whole.append(rows_of(frame, part.family, part.devices))
                design = [self.terms_.design(part) for part in whole]
                logs = [np.log(self.terms_.predict(part) / self.terms_.base_us(part)) for part in whole]
                return np.concatenate(design), np.concatenate(logs)

            log[members] = log_corrections(measured, rows.family, codes, sizes, library, terms, residual)
        time_us, far = self.terms_.base_us(rows) * np.exp(log), np.flatnonzero(np.isnan(log))
        time_us[far] = self.terms_.predict(rows.take(far))
        return time_us

    def times(self) -> BoostedTimes:
        """The model as arrays."""
        return times_from_files(self.to_files())[0]

    def to_files(self) -> dict[str, bytes]:
        """The terms' files, the residual's trees, every GPU's measured times."""
        files = {f"{TERMS}{name}": content for name, content in self.terms_.to_files().items()}
        files |= {f"{GRID}{gpu}.parquet": content for gpu, content in self.grid_.packed.items()}
        if self.trees_ is not None:
            files[TREES] = self.trees_.to_bytes()
        facts = {"labels": self.grid_.labels, "lines": self.grid_.lines}
        return {**files, LABELS: json.dumps(facts).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        times, near = times_from_files(files)
        model.terms_ = BoostedTerms.from_times(times)
        model.grid_, model.trees_, model._measured = near.grid, near.trees if near.stored else None, {}
        if near.stored:
            columns = len(times.columns) + 2 + 2 * len(near.grid.lines)
            model.booster_ = ReadyTrees(lambda: near.trees, range(columns))
        return model


def _fitted_grid(rows: Rows, values: np.ndarray) -> Grid:
    """Of log(time / base) (rows,)."""
    names, codes = np.unique(_labels(rows), return_inverse=True)
    sizes, device, packed = rows.sizes, device_names(rows.frame), {}
    for gpu in np.unique(device).tolist():
        on_gpu = device == gpu
        packed[gpu] = GridPart.of(codes[on_gpu], sizes[on_gpu], values[on_gpu]).to_bytes(rows.family.size_names)
    return Grid({name: code for code, name in enumerate(names.tolist())}, packed, rows.family.lines)


def _labels(rows: Rows) -> np.ndarray:
    """(rows,) as `surrogate.models.grid.label`."""
    settings = joined(rows.frame, rows.family.setting_names)
    return (settings + "|" + rows.candidate.astype(str)).to_numpy().astype(str)
