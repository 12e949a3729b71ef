"""`interpolated-terms`: measured times, interpolation between them, and `boosted-terms` away from them.

Beside problems that were measured with a candidate on a GPU, times lie near an interpolation along the family's lines
(`surrogate.models.grid`). Trees correct that interpolation: they see the terms, every line's value and its gap. Their
training rows are interpolated without the row's own shape, so that they meet new shapes as they learned them. The
answer is a weighted mean of both models in log time; the farther the neighbours, the less of the interpolation it
holds, and none is left a few doublings away. At a measured problem the measured time is the answer.
"""

import json
from collections.abc import Mapping
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.base import TimeModel
from surrogate.models.boosted import BoostedTerms, threads_for
from surrogate.models.grid import Asked, Grid
from surrogate.models.trees import StoredBooster, Trees

SHARE = 0.7
"""Of the corrected interpolation in the mean, where neighbours are near."""
NEAR, FAR = 1.0, 3.0
"""Gaps in doublings up to which that share is whole, and from which on it is nothing."""
_TERMS, _TREES, _GRID, _LABELS = "terms.", "residual.npz", "grid.", "labels.json"


class InterpolatedTerms(TimeModel):
    """Parameters are those of the trees of both models.

    Trees are fitted on ``most_rows`` rows at most, drawn at random; the interpolation keeps every row.
    """

    name: ClassVar[str] = "interpolated-terms"
    storable: ClassVar[bool] = True

    def __init__(
        self,
        rounds: int = 300,
        learning_rate: float = 0.08,
        max_leaves: int = 256,
        min_child_weight: float = 3.0,
        subsample: float = 0.7,
        colsample_bynode: float = 0.4,
        most_rows: int = 200_000,
        random_state: int = 0,
        device: str = "cpu",
    ) -> None:
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.max_leaves = max_leaves
        self.min_child_weight = min_child_weight
        self.subsample = subsample
        self.colsample_bynode = colsample_bynode
        self.most_rows = most_rows
        self.random_state = random_state
        self.device = device

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Both models' trees by absolute error: spikes of a table shall not lead them."""
        import xgboost

        if not rows.family.lines:
            raise InputError(
                f"{self.name} has no lines to interpolate {rows.family.name} along; use boosted-terms"
            )
        drawn = np.random.default_rng(self.random_state).permutation(len(rows))[: self.most_rows]
        sample, sample_us = rows.take(drawn), time_us[drawn]
        self.terms_ = self.elsewhere().fit(sample, sample_us)
        self.grid_ = Grid.fit(rows, np.log(time_us / self.terms_.base_us(rows)))
        target = np.log(sample_us / self.terms_.base_us(sample))
        self.trees_ = None
        inputs, labels = [], []
        for asked in self.grid_.asked(sample):
            design, start, _ = self._design(sample.take(asked.position), asked)
            known = np.isfinite(start)
            inputs.append(design[known])
            labels.append((target[asked.position] - start)[known])
        if sum(map(len, inputs)):
            threads = threads_for(len(sample))
            data = xgboost.QuantileDMatrix(
                np.concatenate(inputs), label=np.concatenate(labels), max_bin=256, nthread=threads
            )
            settings = {**self.terms_.settings(), "nthread": threads}
            self._set_trees(xgboost.train(settings, data, num_boost_round=self.rounds), data.num_col())

    def elsewhere(self) -> BoostedTerms:
        """The terms alone."""
        own = self.get_params(deep=False)
        del own["most_rows"]
        return BoostedTerms(**own, max_depth=0, max_bin=256, best_weight=0.0, objective="reg:absoluteerror")

    def _set_trees(self, booster: Any, columns: int) -> None:
        self.trees_, self.booster_, self.columns_ = (
            Trees.from_booster(booster.save_raw("json")),
            booster,
            columns,
        )

    def _design(self, rows: Rows, asked: Asked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The residual trees' input (rows, columns), the interpolation (rows,), and the nearest line's gap (rows,).

        The columns are those of `BoostedTerms.design`, the interpolation, and of every line its difference from that
        and its gap. The interpolation is the lines' mean, weighed by 1 / gap²; NaN where no line has a neighbour.
        """
        values, gaps = asked.neighbours()
        weight = np.where(np.isfinite(values), 1.0 / np.maximum(gaps, 1e-3) ** 2, 0.0)
        with np.errstate(invalid="ignore"):
            start = (np.nan_to_num(values) * weight).sum(axis=1) / weight.sum(axis=1)
        extra = np.column_stack([start, values - start[:, None], gaps]).astype(np.float32)
        return np.hstack([self.terms_.design(rows), extra]), start, np.fmin.reduce(gaps, axis=1)

    def _predict(self, rows: Rows) -> np.ndarray:
        time_us = self.terms_.predict(rows)
        for asked in self.grid_.asked(rows):
            own = rows if len(asked.position) == len(rows) else rows.take(asked.position)
            time_us[asked.position] *= np.exp(self._interpolated(own, asked, time_us[asked.position]))
        return time_us

    def _interpolated(self, rows: Rows, asked: Asked, terms_us: np.ndarray) -> np.ndarray:
        """(rows,) what to add to the log of the terms' time (rows,).

        A size between two measured ones takes the mean over both, each weighed by its nearness; outside the range that
        of the last one counts, and fades.
        """
        ends = {name: asked.ends(name) for name in rows.family.ticks}
        off = {
            name: (low != asked.sizes[name]) | (high != asked.sizes[name])
            for name, (low, high) in ends.items()
        }
        between = np.logical_or.reduce(list(off.values())) if off else np.zeros(len(rows), dtype=bool)
        added = np.zeros(len(rows))
        exact = np.flatnonzero(~between)
        if len(exact):
            added[exact] = self._at_ticks(rows.take(exact), terms_us[exact])
        inner = np.flatnonzero(between)
        if not len(inner):
            return added
        sizes = {name: asked.sizes[name][inner] for name in ends}
        held = {name: size[inner] for name, size in asked.sizes.items()}
        library = rows.frame["library"].to_numpy()[inner]
        names = [name for name in ends if off[name].any()]
        corners, weights, owners, whole = [], [], [], np.zeros(len(inner))
        for corner in product((0, 1), repeat=len(names)):
            weight, places = np.ones(len(inner)), {}
            for name, side in zip(names, corner, strict=True):
                low, high = (end[inner] for end in ends[name])
                places[name] = (low, high)[side]
                weight *= _nearness(sizes[name], low, high, side)
            fits = weight > 0
            for _, misfit, _ in rows.family.geometry({**held, **places}, library):
                fits &= ~misfit
            counted = np.flatnonzero(fits)
            changed = {name: place[counted] for name, place in places.items()}
            corners.append(rows.frame.iloc[inner[counted]].assign(**changed))
            weights.append(weight[counted])
            owners.append(counted)
            whole += weight
        owner, weight = np.concatenate(owners), np.concatenate(weights)
        if not len(owner):
            return added
        # All corners of all rows are one table, which is asked about once.
        at = rows_of(pd.concat(corners, ignore_index=True), rows.family, rows.devices)
        found = weight * self._at_ticks(at, self.terms_.predict(at))
        total, used = (np.bincount(owner, weights=values, minlength=len(inner)) for values in (found, weight))
        # All weights sum to 1, to less outside the range; those of corners that are no problems go to the others.
        added[inner] = np.divide(total * whole, used, out=np.zeros(len(inner)), where=used > 0)
        return added

    def _at_ticks(self, rows: Rows, terms_us: np.ndarray) -> np.ndarray:
        """(rows,) as `_interpolated`, where every size is a measured one: exact there, else from neighbours."""
        added = np.zeros(len(rows))
        for asked in self.grid_.asked(rows):
            own = asked.position
            log_terms = np.log(terms_us[own] / self.terms_.base_us(rows.take(own)))
            measured = asked.measured()
            known = np.isfinite(measured)
            added[own[known]] = (measured - log_terms)[known]
            rest = np.flatnonzero(~known)
            if self.trees_ is None or not len(rest):
                continue
            design, start, gap = self._design(rows.take(own[rest]), asked.take(rest))
            corrected = start + self.booster_.inplace_predict(design)
            share = SHARE * np.clip((FAR - gap) / (FAR - NEAR), 0.0, 1.0)
            added[own[rest]] = np.where(share > 0, share * np.nan_to_num(corrected - log_terms[rest]), 0.0)
        return added

    def to_files(self) -> dict[str, bytes]:
        """The terms' files, the residual's trees, every GPU's measured times."""
        files = {f"{_TERMS}{name}": content for name, content in self.terms_.to_files().items()}
        files |= {f"{_GRID}{gpu}.parquet": content for gpu, content in self.grid_.packed.items()}
        facts = {"labels": self.grid_.labels, "lines": self.grid_.lines}
        if self.trees_ is not None:
            files[_TREES] = self.trees_.to_bytes()
            facts["columns"] = self.columns_
        return {**files, _LABELS: json.dumps(facts).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        inner = {name.removeprefix(_TERMS): data for name, data in files.items() if name.startswith(_TERMS)}
        model.terms_ = BoostedTerms.from_files({}, inner)
        facts = json.loads(files[_LABELS])
        packed = {
            name.removeprefix(_GRID).removesuffix(".parquet"): data
            for name, data in files.items()
            if name.startswith(_GRID)
        }
        model.grid_ = Grid(facts["labels"], packed, tuple(facts["lines"]))
        model.trees_ = None
        if _TREES in files:
            model.trees_, model.columns_ = Trees.from_bytes(files[_TREES]), facts["columns"]
            model.booster_ = StoredBooster(model.trees_, model.columns_)
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Size and number of trees, rate and sampling."""
        return {
            "rounds": trial.suggest_int("rounds", 100, 600, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.04, 0.15, log=True),
            "max_leaves": trial.suggest_int("max_leaves", 64, 512, log=True),
            "colsample_bynode": trial.suggest_float("colsample_bynode", 0.2, 0.8),
        }


def _nearness(size: np.ndarray, low: np.ndarray, high: np.ndarray, side: int) -> np.ndarray:
    """(rows,) what the lower (side 0) or upper (1) end counts for a size, in its logarithm.

    Outside the range both ends are the same one, which counts once, the less the farther away.
    """
    inside = low < high
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.log2(size / low) / np.log2(high / low)
    outside = np.clip(1.0 - np.abs(np.log2(np.maximum(size, 1) / np.maximum(low, 1))) / FAR, 0.0, 1.0)
    once = outside if side == 0 else np.zeros(len(size))
    return np.where(inside, np.abs(1.0 - side - np.nan_to_num(share)), once)
