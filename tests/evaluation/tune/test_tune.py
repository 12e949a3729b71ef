"""Hyperparameters are searched inside the training part, fairly and repeatably."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import optuna
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surrogate.dataset.normalise import normalise
from surrogate.dataset.problems import shape_codes
from surrogate.dataset.rows import Rows, rows_of
from surrogate.evaluation.tune import (
    INNER_FOLDS,
    OBJECTIVES,
    TIME_WEIGHT,
    TUNE_TRIALS,
    InnerFolds,
    loss,
    search,
    tuned,
)
from surrogate.evaluation.tune.sampler import COUNTED, RankedTPE
from surrogate.evaluation.tune.worker import Work, pruner, run
from surrogate.features.errors import InputError
from surrogate.models.boosted import BoostedTerms
from surrogate.models.linear import LinearTerms
from surrogate.models.roofline import Roofline
from surrogate.models.single import AlwaysBestSingle

LINEAR: Any = LinearTerms
BOOSTED: Any = BoostedTerms
Table = Callable[..., pd.DataFrame]


@pytest.fixture
def rows(table: Table) -> Rows:
    return rows_of(normalise(table(9), "test"))


class Constant(Roofline):
    """Predicts ``time_us`` everywhere and notes what it saw."""

    seen: ClassVar[list[tuple[set[int], set[int]]]] = []

    def __init__(self, **params: Any) -> None:
        super().__init__(**{"time_us": 100.0, **params})

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        self.trained = set(rows.shape.tolist())
        return self

    def predict_us(self, rows: Rows) -> np.ndarray:
        self.seen.append((self.trained, set(rows.shape.tolist())))
        assert rows.ok.all()
        return np.full(len(rows), self.params["time_us"])

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


class Fixed(Roofline):
    """Predicts 1 µs for the algorithm that its params name and 2 µs for others."""

    def predict_us(self, rows: Rows) -> np.ndarray:
        return np.where(rows.frame["algorithm"] == self.params["algorithm"], 1.0, 2.0)


class Oracle(Roofline):
    """Predicts measured times, times a factor."""

    def predict_us(self, rows: Rows) -> np.ndarray:
        return self.params.get("factor", 1.0) * rows.time_us


def test_choice_loss_is_the_mean_over_shapes_of_log_slowdown(table: Table) -> None:
    """By hand: one shape has two problems where GEMM takes 2 and 8 times the best, the other one where it is best."""
    frame = table(2, batches=(1, 8), gpus=("Tesla T4",), algorithms=("IMPLICIT_GEMM", "GEMM"))
    frame = frame[(frame["n"] == 1) | (frame["c"] == frame["c"].iloc[0])].assign(
        status="ok", heuristic_algorithm=None
    )
    shape, n, name = (frame[column].to_numpy() for column in ("r", "n", "algorithm"))
    frame["time_us"] = np.select(
        [name == "IMPLICIT_GEMM", shape == shape[0]], [10.0, np.where(n == 1, 20.0, 80.0)], default=10.0
    )
    frame = frame[(shape == shape[0]) | (n == 1)]
    rows = rows_of(normalise(frame, "test"))
    both_shapes = (0.5 * (np.log(2) + np.log(8)) + 0.0) / 2
    assert loss(Fixed(algorithm="GEMM"), rows, 0, "choice") == pytest.approx(both_shapes)
    assert loss(Fixed(algorithm="IMPLICIT_GEMM"), rows, 0, "choice") == 0.0


def test_both_adds_half_the_mean_absolute_error(rows: Rows) -> None:
    model = Fixed(algorithm="FFT")
    choice, both = (loss(model, rows, 0, name) for name in OBJECTIVES[1:])
    ok = rows.take(rows.ok)
    error = np.abs(np.log(model.predict_us(ok) / ok.time_us)).mean()
    assert both == pytest.approx(choice + TIME_WEIGHT * error) and min(error, choice) > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(factor=st.floats(1e-3, 1e3))
def test_a_perfect_order_costs_nothing_and_a_common_factor_is_a_time_error(rows: Rows, factor: float) -> None:
    assert loss(Oracle(factor=factor), rows, 0, "choice") == 0.0
    assert loss(Oracle(factor=factor), rows, 0, "time") == pytest.approx(abs(np.log(factor)), abs=1e-12)


def test_where_nothing_can_be_chosen_times_alone_count(table: Table) -> None:
    one = rows_of(normalise(table(6, algorithms=("IMPLICIT_GEMM",)), "test"))
    error = np.abs(np.log(100.0 / one.time_us[one.ok])).mean()
    assert loss(Constant(), one, 0, "both") == pytest.approx(TIME_WEIGHT * error)
    with pytest.raises(InputError, match="two measured candidates"):
        search(LINEAR, one, 2, 0, objective="choice")
    with pytest.raises(InputError, match="'speed' is unknown; known: time, choice, both"):
        search(LINEAR, one, 2, 0, objective="speed")


def test_problems_a_model_does_not_apply_to_cost_the_slowest_candidate(rows: Rows) -> None:
    class Nothing(Roofline):
        def predict_us(self, rows: Rows) -> np.ndarray:
            return np.full(len(rows), np.nan)

    worst = loss(Nothing(), rows, 0, "choice")
    assert worst >= max(loss(Fixed(algorithm=name), rows, 0, "choice") for name in ("FFT", "IMPLICIT_GEMM"))
    assert loss(Nothing(), rows, 0, "time") == np.inf


def test_hopeless_trials_end_early_and_progress_tells_the_best(rows: Rows) -> None:
    told: list[tuple[int, int, str]] = []
    Constant.seen.clear()
    best = search(Constant, rows, 20, 0, objective="time", progress=lambda *words: told.append(words))
    assert len(Constant.seen) < 20 * INNER_FOLDS
    assert told[0] == (0, 20, "") and told[-1][:2] == (20, 20)
    assert told[-1][2] == f"best {loss(Constant(**best), rows, 0):.5f}"


def test_an_interrupted_search_gives_its_trial_back_and_ends_as_if_nothing_had_happened(rows: Rows) -> None:
    class Interrupted(Constant):
        left: ClassVar[int] = 7

        def fit(self, rows: Rows, *, seed: int = 0) -> Self:
            Interrupted.left -= 1
            if Interrupted.left == 0:
                raise KeyboardInterrupt
            return super().fit(rows, seed=seed)

    def study(cls: type[Roofline], tries: int) -> list[tuple[float, float | None]]:
        made = optuna.create_study(sampler=RankedTPE(0), pruner=pruner())
        made.enqueue_trial({"time_us": 100.0})
        for last in range(tries):
            try:
                run(made, Work(cls, InnerFolds.of(rows, 0), "time", 0), 14)
            except KeyboardInterrupt:
                assert last == 0
        counted = made.get_trials(states=COUNTED)
        assert len(counted) == 14
        return [(trial.params["time_us"], trial.value) for trial in counted]

    assert study(Interrupted, 2) == study(Constant, 1)


def test_a_failed_fit_ends_the_search_with_its_own_error(rows: Rows) -> None:
    class Broken(Constant):
        def fit(self, rows: Rows, *, seed: int = 0) -> Self:
            raise InputError("no such rows")

    with pytest.raises(InputError, match="no such rows"):
        search(Broken, rows, 3, 0)
