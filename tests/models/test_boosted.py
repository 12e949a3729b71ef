"""Boosted trees: learn, repeat, save without loss, and meet the unseen calmly."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from surrogate.models.bounds import bound_rows

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.boosted import BoostedDims, BoostedTerms

Table = Callable[..., pd.DataFrame]
KINDS = [BoostedDims, BoostedTerms]
FEW = {"rounds": 40, "learning_rate": 0.2, "max_depth": 5, "nthread": 1}


def _rows(frame: pd.DataFrame) -> Rows:
    return rows_of(normalise(frame, "test"))


@pytest.mark.parametrize("kind", KINDS)
def test_learns_the_correction(table: Table, kind: type[BoostedDims]) -> None:
    rows = _rows(table(16, batches=(1, 2, 4, 8, 16, 32), noise=0.0))
    predicted = kind(**FEW, min_child_weight=1.0).fit(rows).predict_us(rows)
    error = np.abs(predicted / rows.time_us - 1)[rows.ok]
    assert np.median(error) < 0.1
    assert np.median(np.abs(rows.roofline_us / rows.time_us - 1)[rows.ok]) > 0.3  # what it started from


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_predicts_the_same_bits(table: Table, kind: type[BoostedDims]) -> None:
    rows = _rows(table(6))
    fitted = kind(**FEW).fit(rows)
    files = fitted.save()
    assert set(files) == {"booster.ubj", "candidates.json"} and all(type(f) is bytes for f in files.values())
    again = kind.load(fitted.params, files)
    assert again.params == fitted.params
    np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))
    assert again.save()["booster.ubj"] == files["booster.ubj"]


@pytest.mark.parametrize("kind", KINDS)
def test_fitting_changes_neither_the_model_nor_the_rows_and_repeats_with_its_seed(
    table: Table, kind: type[BoostedDims]
) -> None:
    rows = _rows(table(6))
    features = rows.features.copy()
    model = kind(**FEW)
    first = model.fit(rows, seed=3)
    assert model._booster is None and model._candidates == {}
    np.testing.assert_array_equal(rows.features, features)
    np.testing.assert_array_equal(model.fit(rows, seed=3).predict_us(rows), first.predict_us(rows))
    assert (model.fit(rows, seed=4).predict_us(rows) != first.predict_us(rows)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_unseen_candidates_gpus_and_libraries(table: Table, kind: type[BoostedDims]) -> None:
    fitted = kind(**FEW).fit(_rows(table(6)))
    new = table(2, gpus=("TITAN V", "h200"), algorithms=("GEMM", "WINOGRAD_NONFUSED"), version="9.1")
    miopen = table(2, gpus=("mi210",), algorithms=("IMPLICIT_GEMM",)).assign(
        library="miopen", algorithm="Direct", status="ok"
    )
    for frame in (new, miopen):
        predicted = fitted.predict_us(_rows(frame))
        assert np.isfinite(predicted).all() and (predicted > 0).all()


def test_prediction_does_not_depend_on_neighbours_or_order(table: Table) -> None:
    rows = _rows(table(6))
    fitted = BoostedTerms(**FEW).fit(rows)
    whole = fitted.predict_us(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_array_equal(fitted.predict_us(rows.take(order)), whole[order])
    np.testing.assert_array_equal(fitted.predict_us(rows.take(np.array([5]))), whole[[5]])
    assert len(fitted.predict_us(rows.take(np.array([], dtype=int)))) == 0


def test_rows_that_did_not_run_are_not_learned_from(table: Table) -> None:
    frame = table(6)
    rows = _rows(frame)
    lies = _rows(frame.assign(time_us=frame["time_us"].fillna(1e9)))
    np.testing.assert_array_equal(
        BoostedTerms(**FEW).fit(lies).predict_us(rows), BoostedTerms(**FEW).fit(rows).predict_us(rows)
    )


def test_beyond_the_training_range_the_roofline_carries_on(table: Table) -> None:
    """Trees clamp; the factor that they multiply does not: eight times the images take about eight times as long."""
    fitted = BoostedDims(**FEW).fit(_rows(table(8, batches=(1, 8), noise=0.0)))
    small, large = (fitted.predict_us(_rows(table(8, batches=(n,)))) for n in (512, 4096))
    assert np.median(large / small) == pytest.approx(8, rel=0.1)


def _partial(table: Table) -> pd.DataFrame:
    """Problems of one shape set; half of them keep only their best row, as a table of winners does."""
    frame = table(10)
    ok = frame[frame["status"] == "ok"]
    key = ["gpu", "n", "c", "h", "w", "k", "r", "stride_h", "groups"]
    best = ok.sort_values("time_us").drop_duplicates(key)
    whole = frame["n"] == frame["n"].min()
    return pd.concat([frame[whole], best[best["n"] > frame["n"].min()]], ignore_index=True)


def _bits(model: BoostedDims | BoostedTerms) -> bytes:
    return model.save()["booster.ubj"]


def test_weights_of_choice_change_the_fit_and_zero_leaves_it_alone(table: Table) -> None:
    """Without weights the fit is XGBoost's own squared error, whatever the temperature is."""
    rows = _rows(table(6))
    plain = BoostedTerms(**FEW).fit(rows, seed=3)
    assert _bits(BoostedTerms(**FEW, choice_temperature=0.5).fit(rows, seed=3)) == _bits(plain)
    for settings in ({"choice_weight": 1.0}, {"choice_weight": 1.0, "choice_loss": "pairwise"}):
        fitted = BoostedTerms(**FEW, **settings).fit(rows, seed=3)
        assert (fitted.predict_us(rows) != plain.predict_us(rows)).any()
        again = BoostedTerms.load(fitted.params, fitted.save())
        np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))
        assert again.save()["booster.ubj"] == _bits(fitted)


def test_squared_error_by_our_own_objective_is_that_of_xgboost(table: Table) -> None:
    """A weight of choice too small to matter: the custom objective's path meets XGBoost's own to rounding."""
    rows = _rows(table(6))
    few = FEW | {"subsample": 1.0, "colsample_bynode": 1.0}
    own = BoostedTerms(**few, choice_weight=1e-12).fit(rows).predict_us(rows)
    np.testing.assert_allclose(own, BoostedTerms(**few).fit(rows).predict_us(rows), rtol=0.02)


@pytest.mark.parametrize("loss", ["listwise", "pairwise"])
def test_choice_alone_learns_to_pick(table: Table, loss: str) -> None:
    rows = _rows(table(12, batches=(1, 8, 32), noise=0.0))
    settings = FEW | {"time_weight": 0.0, "choice_weight": 1.0, "choice_loss": loss, "min_child_weight": 0.1}
    predicted = BoostedTerms(**settings).fit(rows).predict_us(rows)
    picked, best = (
        pd.Series(np.where(rows.ok, times, np.inf)).groupby(rows.problem).idxmin().to_numpy()
        for times in (predicted, rows.time_us)
    )
    slowdown = rows.time_us[picked] / rows.time_us[best]
    by_roofline = (
        pd.Series(np.where(rows.ok, rows.roofline_us, np.inf)).groupby(rows.problem).idxmin().to_numpy()
    )
    assert np.log(slowdown).mean() < 0.5 * np.log(rows.time_us[by_roofline] / rows.time_us[best]).mean()


def test_bounds_raise_what_was_predicted_below_them(table: Table) -> None:
    """Candidates that a winners' table leaves out are predicted faster than the winner less often."""
    rows = _rows(_partial(table))
    bounds = bound_rows(rows)
    assert bounds is not None
    below = [
        np.maximum(
            np.log(bounds.time_us / BoostedTerms(**FEW, bounds_weight=w).fit(rows).predict_us(bounds)), 0
        )
        for w in (0.0, 3.0)
    ]
    assert below[0].mean() > 0
    assert below[1].mean() < 0.7 * below[0].mean()


def test_pages_carry_squared_error_alone() -> None:
    names = np.array(["cudnn|fwd|FFT"])
    assert BoostedTerms().paged(names)._candidates == {"cudnn|fwd|FFT": 0}
    for settings in ({"choice_weight": 0.5}, {"bounds_weight": 0.5}):
        with pytest.raises(InputError, match="all rows at once"):
            BoostedTerms(**settings).paged(names)


def test_what_xgboost_is_told_holds_no_weight_of_the_objective() -> None:
    told = BoostedTerms(choice_weight=0.5, nthread=8).settings(seed=7, threads=2)
    assert told["seed"] == 7
    assert told["nthread"] == 2
    assert told["learning_rate"] == BoostedTerms.DEFAULTS["learning_rate"]
    assert not {"rounds", "choice_weight", "time_weight", "bounds_weight"} & set(told)


def test_nothing_to_learn_from(table: Table) -> None:
    with pytest.raises(InputError, match="at least one ok row"):
        BoostedTerms(**FEW).fit(_rows(table(1).assign(status="failed")))
