"""Trees that learn another model's times: nearby sizes by hand, labels and their weights, files, refusals."""

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.problems import problems_of
from surrogate.dataset.rows import Rows
from surrogate.features.gpu import gpu, gpus
from surrogate.models.base import TimeModel
from surrogate.models.boosted import DistilledTerms, nearby_rows, on_other_gpus, scaled_sizes
from surrogate.models.registry import DECLARED, ModelDeclaration
from tests.known import cases
from tests.models.test_interpolated import products
from tests.tables import Table, checked

NVIDIA = [board.name for board in gpus() if board.vendor == "nvidia"]
FEW = {"rounds": 40, "learning_rate": 0.2, "max_leaves": 32}


class Tripled(TimeModel):
    """Predict three times the roofline."""

    name: ClassVar[str] = "triple"

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        pass

    def _predict(self, rows: Rows) -> np.ndarray:
        return 3.0 * rows.roofline_us


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(DECLARED, Tripled.name, ModelDeclaration(__name__, Tripled.__name__, Tripled.name))
    load = ModelDeclaration.load
    monkeypatch.setattr(ModelDeclaration, "load", lambda self: Tripled if self.name == Tripled.name else load(self))
    return Tripled.name


@pytest.fixture
def rows(table: Table) -> Rows:
    rows = checked(table(12, batches=(1, 8)))
    return rows.take(rows.ok)


@cases(__file__)
def test_scaled_size_is_a_multiple_of_a_power_of_two(size: int, factor: float, scaled: int) -> None:
    np.testing.assert_array_equal(scaled_sizes(np.array([size]), np.array([factor])), [scaled])


def test_nearby_problems_differ_only_in_sizes(rows: Rows) -> None:
    family = rows.family
    same = nearby_rows(rows, 2, 0.0, 0)
    assert len(same) == 2 * len(rows)
    pd.testing.assert_frame_equal(same.frame.iloc[: len(rows)], rows.frame.reset_index(drop=True), check_dtype=False)
    found = nearby_rows(rows, 3, 1.0, 0)
    assert len(rows) < len(found) <= 3 * len(rows)
    kept = [name for name in family.row_key if name not in {size for names in family.scaled for size in names}]
    assert set(found.frame[kept].itertuples(index=False)) <= set(rows.frame[kept].itertuples(index=False))
    assert (found.frame["n"] != 1).any() and (found.frame["c"] % found.frame["groups"] == 0).all()
    # The rows of a problem stay together, and each candidate gets problems of the traits that it ran.
    assert pd.Series(found.candidate).groupby(found.problem).nunique().max() > 1
    assert _signatures(found) <= _signatures(rows)


def test_each_problem_is_assigned_to_one_unmeasured_gpu(rows: Rows) -> None:
    found = on_other_gpus(rows, rows, 0)
    measured = set(rows.frame["gpu"])
    assert not measured & set(found["gpu"]) and {gpu(name).vendor for name in set(found["gpu"])} == {"nvidia"}
    assert found["gpu"].groupby(rows.problem).nunique().max() == 1
    pd.testing.assert_frame_equal(found.drop(columns="gpu"), rows.frame.drop(columns="gpu"))
    everywhere = checked(rows.frame.iloc[:1].drop(columns="gpu").merge(pd.DataFrame({"gpu": NVIDIA}), how="cross"))
    assert on_other_gpus(rows, everywhere, 0).empty


def _signatures(rows: Rows) -> set[tuple[object, ...]]:
    """Return each row's candidate and traits; all rows have one setting."""
    setting = tuple(rows.frame.iloc[0][list(rows.family.setting_names)])
    traits = rows.family.traits(problems_of(rows.frame, rows.family, setting))
    return set(zip(rows.candidate.tolist(), *(np.asarray(trait).tolist() for trait in traits), strict=True))


@pytest.mark.parametrize(("weight", "factor"), [(1e-6, 3.0), (1e6, 5.0)])
def test_weights_decide_between_measurements_and_labels(teacher: str, rows: Rows, weight: float, factor: float) -> None:
    """Measured times are five rooflines and labels three; the trees follow the heavier ones."""
    model = DistilledTerms(teacher=teacher, octaves=0.0, measured_weight=weight, **FEW)
    ratio = model.fit(rows, 5.0 * rows.roofline_us).predict(rows) / rows.roofline_us
    assert np.median(ratio) == pytest.approx(factor, rel=0.02)


def test_labels_reduce_the_error_on_unmeasured_shapes(teacher: str, table: Table, rows: Rows) -> None:
    """Measurements and labels are both three times the roofline."""
    new = checked(table(40, seed=5))
    new = new.take(new.ok)
    truth = 3.0 * new.roofline_us
    models = {copies: DistilledTerms(teacher=teacher, copies=copies, **FEW) for copies in (1, 8)}
    fits = {copies: model.fit(rows, 3.0 * rows.roofline_us) for copies, model in models.items()}
    error = {copies: np.median(np.abs(fit.predict(new) / truth - 1)) for copies, fit in fits.items()}
    assert error[8] < error[1] < 0.3


def test_model_is_stored_as_one_ensemble(rows: Rows) -> None:
    model = DistilledTerms(teacher="boosted-seer", copies=1, **FEW).fit(rows)
    arrays = model.boosted_arrays()
    assert arrays is not None and len(arrays.trees.roots) == FEW["rounds"]
    loaded = DistilledTerms.from_files(model.get_params(), model.to_files())
    np.testing.assert_allclose(loaded.predict(rows), model.predict(rows), rtol=1e-6)
    assert np.median(np.abs(model.predict(rows) / rows.time_us - 1)) < 0.1
    taught = DistilledTerms(teacher="boosted-seer", copies=1, **FEW)
    taught.fitted_parts = {"boosted-seer": Tripled().fit(rows)}
    assert (taught.fit(rows).predict(rows) != model.predict(rows)).any()


def test_a_family_without_sizes_to_scale_is_refused(refused) -> None:
    with refused("gemm has no sizes to scale; use boosted-terms"):
        nearby_rows(products(), 1, 1.0, 0)
