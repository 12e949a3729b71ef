"""Hyperparameters are searched inside the training part, fairly and repeatably."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import optuna
import pandas as pd
import pytest

from surrogate.dataset import normalise, shape_codes
from surrogate.dataset.rows import Rows, rows_of
from surrogate.models.boosted import BoostedTerms
from surrogate.models.linear import LinearTerms
from surrogate.models.roofline import Roofline
from surrogate.models.single import AlwaysBestSingle
from surrogate.tune import INNER_FOLDS, TUNE_TRIALS, loss, search, tuned

LINEAR: Any = LinearTerms
BOOSTED: Any = BoostedTerms
Table = Callable[..., pd.DataFrame]


@pytest.fixture
def rows(table: Table) -> Rows:
    return rows_of(normalise(table(9), "test"))


class Constant(Roofline):
    """Predicts ``time_us`` everywhere and notes what it saw."""

    seen: ClassVar[list[tuple[set[int], set[int]]]] = []

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        self.trained = set(rows.shape.tolist())
        return self

    def predict_us(self, rows: Rows) -> np.ndarray:
        self.seen.append((self.trained, set(rows.shape.tolist())))
        assert rows.ok.all()
        return np.full(len(rows), self.params.get("time_us", 100.0))

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        return {"time_us": trial.suggest_float("time_us", 1.0, 1000.0, log=True)}


def test_loss_is_the_root_mean_square_log_error_of_held_out_rows(rows: Rows) -> None:
    expected = np.sqrt(np.mean(np.log(100.0 / rows.time_us[rows.ok]) ** 2))
    assert loss(Constant(), rows, seed=0) == pytest.approx(expected)


def test_inner_folds_keep_shapes_together(rows: Rows) -> None:
    Constant.seen.clear()
    loss(Constant(), rows, seed=0)
    assert len(Constant.seen) == INNER_FOLDS
    for trained, held in Constant.seen:
        assert held and not trained & held
    assert set().union(*(held for _, held in Constant.seen)) == set(shape_codes(rows.frame).tolist())


def test_the_stored_settings_are_tried_first(rows: Rows) -> None:
    assert search(LINEAR, rows, 1, 0) == LINEAR.DEFAULTS


def test_stored_settings_lie_within_the_space() -> None:
    for cls in (LINEAR, BOOSTED):
        drawn = cls.space(
            optuna.trial.FixedTrial(cls.DEFAULTS)
        )  # warns, an error here, where one lies outside
        assert drawn and drawn == {name: cls.DEFAULTS[name] for name in drawn}


def test_more_trials_find_no_worse_and_repeat_with_the_seed(rows: Rows) -> None:
    few, many = search(LINEAR, rows, 1, 0), search(LINEAR, rows, 6, 0)
    assert loss(LINEAR(**many), rows, 0) <= loss(LINEAR(**few), rows, 0)
    assert search(LINEAR, rows, 6, 0) == many


def test_models_without_a_space_are_left_alone(rows: Rows) -> None:
    for cls in (Roofline, AlwaysBestSingle):
        assert search(cls, rows, 3, 0) == {}
        assert dict(tuned(cls, rows, "light", 0).params) == {}


def test_none_keeps_the_stored_settings_without_fitting(rows: Rows) -> None:
    assert TUNE_TRIALS["none"] == 0 < TUNE_TRIALS["light"] < TUNE_TRIALS["full"]
    assert dict(tuned(LINEAR, rows, "none", 0).params) == LINEAR.DEFAULTS


def test_a_training_part_of_one_shape_keeps_the_stored_settings(rows: Rows) -> None:
    """Nothing can be held out of one shape: no search, no failure."""
    one = rows.take(rows.shape == 0)
    assert search(LINEAR, one, 2, 0) == LINEAR.DEFAULTS
