"""Permutation importance: only the columns that a model uses increase its error."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.rows import Rows
from surrogate.evaluation.fold_fits import column_importance, mean_importance
from surrogate.models.base import TimeModel
from tests.tables import checked


class ExponentialModel(TimeModel):
    """Predict the exponential of one column."""

    name: ClassVar[str] = "exact"

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """This model has nothing to learn."""

    def _predict(self, rows: Rows) -> np.ndarray:
        return np.exp(rows.column("log2_n").astype(np.float64))


def test_only_the_column_that_the_model_uses_is_important(table: Callable[..., pd.DataFrame]) -> None:
    frame = table(6, batches=(1, 4))
    frame = frame.assign(time_us=np.exp(np.log2(frame["n"])), status="ok")
    rows = checked(frame)
    before = rows.features.copy()
    found = column_importance(ExponentialModel().fit(rows), rows, ("log2_n", "log2_c"), seed=0)
    # Half of the rows have batch 1 and log time 0, half batch 4 and log time 2; permuting changes half of the rows.
    assert found["log2_c"] == 0 and found["log2_n"] == pytest.approx(1.0, abs=0.3)
    np.testing.assert_array_equal(rows.features, before)
    assert column_importance(ExponentialModel().fit(rows), rows.take([0]), ("log2_n",), seed=0) == {}


def test_mean_importance_equals_the_hand_calculation() -> None:
    found = mean_importance([{"a": 0.1, "b": 0.5}, {"a": 0.3, "b": 0.5}])
    assert [row["column"] for row in found] == ["b", "a"]
    assert found[1]["increase"] == pytest.approx(0.2) and found[1]["sd"] == pytest.approx(0.1)
    assert mean_importance([]) == []
