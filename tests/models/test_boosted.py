"""Boosted trees: learn, repeat, save without loss, and meet the unseen calmly."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from features.errors import InputError
from surrogate.dataset import normalise
from surrogate.dataset.rows import Rows, rows_of
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


def test_nothing_to_learn_from(table: Table) -> None:
    with pytest.raises(InputError, match="at least one ok row"):
        BoostedTerms(**FEW).fit(_rows(table(1).assign(status="failed")))
