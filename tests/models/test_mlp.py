"""`mlp`: gradients against differences, Adam by hand, early stopping by shape."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.mlp import Layers, Mlp, adam, forward, gradients, train

Table = Callable[..., pd.DataFrame]
SMALL = {"width": 24, "depth": 2, "epochs": 60, "batch": 32}


@pytest.fixture(scope="module")
def rows(table: Table) -> Rows:
    return rows_of(normalise(table(24, batches=(1, 4, 16)), "test"))


@pytest.fixture(scope="module")
def fitted(rows: Rows) -> Mlp:
    return Mlp(**SMALL).fit(rows, seed=1)


def _network(rng: np.random.Generator) -> Layers:
    shapes = [(4, 6), (6, 5), (5, 1)]
    return [(rng.normal(size=shape), rng.normal(size=shape[1])) for shape in shapes]


def test_gradients_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(5)
    layers, x, y = _network(rng), rng.normal(size=(7, 4)), rng.normal(size=7)

    def loss() -> float:
        return float(np.mean((forward(layers, x)[-1][:, 0] - y) ** 2) / 2)

    slopes = gradients(layers, x, y)
    for pair, slope in zip(layers, slopes, strict=True):
        for array, found in zip(pair, slope, strict=True):
            for at in (0, array.size // 2, array.size - 1):
                before = array.flat[at]
                array.flat[at] = before + 1e-6
                above = loss()
                array.flat[at] = before - 1e-6
                below = loss()
                array.flat[at] = before
                assert found.flat[at] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-7)


def test_the_first_step_of_adam_moves_by_the_rate() -> None:
    """Kingma & Ba: whatever its size, the first slope moves a parameter by the rate; decay shrinks weights only."""
    layers = [(np.array([[2.0]], dtype=np.float32), np.array([2.0], dtype=np.float32))]
    slopes = [(np.array([[300.0]]), np.array([-1e-3]))]
    moments = [np.zeros(a.shape) for layer in layers for a in layer for _ in (0, 1)]
    (weights, bias) = adam(layers, slopes, moments, 1, 0.1, 0.5)[0]
    assert weights[0, 0] == pytest.approx(2 * 0.95 - 0.1, rel=1e-5)
    assert bias[0] == pytest.approx(2.1, rel=1e-4)


def test_the_epoch_that_does_best_on_held_rows_is_kept() -> None:
    """Held rows that contradict the rest: more epochs only make them worse, so the first epoch's layers come back."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = x[:, 0] * 3
    held = np.arange(200) < 40
    y[held] *= -1
    params = {**Mlp.DEFAULTS, "width": 8, "depth": 1, "batch": 16, "learning_rate": 1e-2, "weight_decay": 0.0}

    def error(epochs: int) -> float:
        layers = train(x, y, held, {**params, "epochs": epochs}, np.random.default_rng(1))
        return float(np.mean((forward(layers, x[held])[-1][:, 0] - y[held]) ** 2))

    last = train(x, y, np.zeros(200, dtype=bool), {**params, "epochs": 30}, np.random.default_rng(1))
    assert error(30) < float(np.mean((forward(last, x[held])[-1][:, 0] - y[held]) ** 2))


def test_steps_are_capped_on_large_tables() -> None:
    """Ten steps an epoch: a cap of 20 makes 50 epochs the same as 2."""
    rng = np.random.default_rng(0)
    x, held = rng.normal(size=(100, 3)).astype(np.float32), np.zeros(100, dtype=bool)
    params = {**Mlp.DEFAULTS, "width": 4, "depth": 1, "batch": 10}
    runs = [
        train(x, x[:, 0], held, {**params, **settings}, np.random.default_rng(1))
        for settings in ({"epochs": 50, "max_steps": 20}, {"epochs": 2}, {"epochs": 3})
    ]
    capped, two, three = (layers[0][0] for layers in runs)
    np.testing.assert_array_equal(capped, two)
    assert (two != three).any()


def test_it_learns(rows: Rows, fitted: Mlp) -> None:
    predicted = fitted.predict_us(rows)
    assert np.isfinite(predicted).all() and (predicted > 0).all()
    assert np.median(np.abs(np.log(predicted[rows.ok] / rows.time_us[rows.ok]))) < 0.3


def test_saved_as_json_it_predicts_the_same(rows: Rows, fitted: Mlp) -> None:
    again = Mlp.load(fitted.params, fitted.save())
    np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))


def test_the_seed_decides(rows: Rows, fitted: Mlp) -> None:
    np.testing.assert_array_equal(Mlp(**SMALL).fit(rows, seed=1).predict_us(rows), fitted.predict_us(rows))
    assert (Mlp(**SMALL).fit(rows, seed=2).predict_us(rows) != fitted.predict_us(rows)).any()


def test_absurd_sizes_stay_finite(rows: Rows, fitted: Mlp) -> None:
    assert np.isfinite(fitted.predict_us(rows_of(rows.frame.assign(n=10**6)))).all()


def test_an_unknown_algorithm_has_no_time(rows: Rows, fitted: Mlp) -> None:
    assert np.isnan(fitted.predict_us(rows_of(rows.frame.assign(algorithm="GEMM")))).all()


def test_one_shape_is_enough(table: Table) -> None:
    rows = rows_of(normalise(table(1), "test"))
    assert np.isfinite(Mlp(**{**SMALL, "epochs": 2}).fit(rows).predict_us(rows)).all()


def test_without_times_there_is_nothing_to_fit(rows: Rows) -> None:
    with pytest.raises(InputError, match="at least one ok row"):
        Mlp().fit(rows_of(rows.frame.assign(status="failed", time_us=np.nan)))
