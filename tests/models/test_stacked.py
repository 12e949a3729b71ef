"""Stacks of two models and trees on SEER's fits: weights by hand, no leakage, files, fallback to one part."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.dataset.problems import shape_names
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models.base import TimeModel
from surrogate.models.registry import DECLARED, ModelDeclaration
from surrogate.models.seer.time_only import FeatureRows, SeerTimeOnly
from surrogate.models.stacked import UNSEEN_GPU_SHARE, BoostedSeer, StackedTerms, stacking_weight
from tests.known import cases
from tests.tables import Table, checked

FEW = {"rounds": 40, "learning_rate": 0.2, "max_leaves": 32}


@cases(__file__)
def test_stacking_weight_equals_the_hand_calculation(residual: list[float], step: list[float], weight: float) -> None:
    assert stacking_weight(np.array(residual), np.array(step)) == pytest.approx(weight)


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=30))
def test_no_weight_of_a_grid_is_better(rows: list[tuple[float, float]]) -> None:
    residual, step = np.array(rows).T

    def loss(weight: float) -> float:
        return float(np.abs(residual - weight * step).sum())

    found = loss(stacking_weight(residual, step))
    assert all(found <= loss(weight) + 1e-9 for weight in np.linspace(0, 1, 41))


class OffByTwo(TimeModel):
    """Predict the column ``true_us``, times a factor for shapes that training did not contain."""

    name: ClassVar[str] = "factor"
    storable: ClassVar[bool] = True
    factor: ClassVar[float] = 2.0
    fits: ClassVar[list[set[str]]] = []

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        self.shapes_ = set(shape_names(rows.frame, rows.family))
        self.fits.append(self.shapes_)

    def _predict(self, rows: Rows) -> np.ndarray:
        is_new = np.array([shape not in self.shapes_ for shape in shape_names(rows.frame, rows.family)])
        return rows.frame["true_us"].to_numpy() * np.where(is_new, self.factor, 1.0)


class OffByHalf(OffByTwo):
    name: ClassVar[str] = "half"
    factor: ClassVar[float] = 0.5


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (OffByTwo, OffByHalf):
        monkeypatch.setitem(DECLARED, cls.name, ModelDeclaration(__name__, cls.__name__, cls.name))
        monkeypatch.setattr(ModelDeclaration, "load", lambda self: {"factor": OffByTwo, "half": OffByHalf}[self.name])
    OffByTwo.fits.clear()


@pytest.mark.usefixtures("parts")
def test_stacking_weights_use_out_of_fold_predictions(table: Table) -> None:
    """Out of fold, one model predicts twice and the other half the time, so the weight is 0.5."""
    frame = table(12)
    rows = checked(frame.assign(true_us=frame["time_us"]))
    stack = StackedTerms(first="factor", second="half").fit(rows)
    assert stack.weight_ == pytest.approx(0.5)
    assert stack.weights_ and all(weight == pytest.approx(0.5) for weight in stack.weights_.values())
    trained_shapes = set(shape_names(rows.take(rows.ok).frame, rows.family))
    inner = [shapes for shapes in OffByTwo.fits if shapes != trained_shapes]
    assert len(inner) == 2 * stack.inner_folds
    new = table(30, seed=5)
    new = checked(new.assign(true_us=new["time_us"]))
    unseen = new.ok & np.array([name not in trained_shapes for name in shape_names(new.frame, new.family)])
    is_primary = new.family.in_grouping(new.stratum, new.family.primary)
    predicted = stack.predict(new) / new.frame["true_us"].to_numpy()
    assert (unseen & is_primary).any() and (unseen & ~is_primary).any()
    np.testing.assert_allclose(predicted[unseen & is_primary], 1.0)  # sqrt(2 · 1/2)
    np.testing.assert_allclose(predicted[unseen & ~is_primary], 2.0)  # grouped: the first model alone
    on_unseen_gpu = checked(new.frame.assign(gpu="h200"))
    ratio = (stack.predict(on_unseen_gpu) / on_unseen_gpu.frame["true_us"].to_numpy())[unseen & is_primary]
    np.testing.assert_allclose(ratio, 2.0 ** (1 - 2 * 0.5 * UNSEEN_GPU_SHARE))


@pytest.mark.usefixtures("parts")
def test_fitted_parts_are_not_fitted_again(table: Table) -> None:
    frame = table(8)
    rows = checked(frame.assign(true_us=frame["time_us"]))
    ready = OffByTwo().fit(rows)
    OffByTwo.fits.clear()
    stack = StackedTerms(first="factor", second="half")
    stack.fitted_parts = {"factor": ready}
    assert stack.fit(rows).first_ is ready
    assert len(OffByTwo.fits) == 1 + 2 * stack.inner_folds


def test_feature_rows_give_the_same_fit_as_raw_rows(table: Table) -> None:
    rows = checked(table(16, batches=(1, 8)))
    rows = rows.take(rows.ok)
    index = np.flatnonzero(np.random.default_rng(0).random(len(rows)) < 0.7)
    features = FeatureRows.of(rows)
    fitted, raw = SeerTimeOnly().fit_rows(features, index, rows.time_us), rows.take(index)
    np.testing.assert_allclose(fitted.predict_rows(features, index), SeerTimeOnly().fit(raw).predict(raw))


def test_a_stored_stack_of_other_parts_is_refused(table: Table) -> None:
    rows = checked(table(12))
    stack = StackedTerms(second="seer-time-only")
    stack.fitted_parts = {"boosted-terms": BoostedSeer(**FEW).fit(rows)}
    files = stack.fit(rows).to_files()
    damaged = {**files, "weights.json": files["weights.json"].replace(b"seer-time-only", b"roofline")}
    with pytest.raises(InputError, match="roofline cannot be a part"):
        StackedTerms.from_files(stack.get_params(), damaged)
