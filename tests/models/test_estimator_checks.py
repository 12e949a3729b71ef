"""Models are scikit-learn estimators: scikit-learn's checks, refusals of one line, and its tools on tables."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, learning_curve

from surrogate import compare, evaluate, load, train
from surrogate.bundle.bundle import save
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.store import Dataset
from surrogate.features.conv import Conv
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models import TimeModel
from surrogate.models.base import SETTING_LIMITS
from surrogate.models.baselines import Forest
from surrogate.models.registry import DECLARED, model_class
from tests.estimator_checks import problems, results

FAST = ("calibrated", "linear-terms")
MODELS = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in DECLARED]


@pytest.fixture(scope="module")
def measured() -> tuple[pd.DataFrame, np.ndarray]:
    """Return products of matrices, with times that are a power of their work."""
    frame = problems("forest").head(40)
    return frame, 1.0 + 1e-4 * (frame["m"] * frame["n"] * frame["k"]).to_numpy() ** 0.7


@pytest.mark.parametrize("name", MODELS)
def test_model_passes_the_checks_that_apply(name: str) -> None:
    found = [result for _, result in results(name)]
    assert "passed" in found and {*found} <= {"passed", "does not apply"}


@pytest.mark.parametrize("name", [name for name in DECLARED if name != "calibrated"])
def test_setting_outside_its_limits_is_refused(refused: Any, measured: Any, name: str) -> None:
    for setting, default in model_class(name)().get_params().items():
        for value in (-1, None, [2], *((np.nan, np.inf, 1e30) if type(default) is float else (2.5, "x"))):
            with refused(setting if isinstance(default, int | float) else ""):
                model_class(name)(**{setting: value}).fit(*measured)


@dataclass(eq=False, repr=False)
class OwnModel(TimeModel):
    """Predict the roofline. Its settings have names of other models' settings, and annotations of no JSON type."""

    name: ClassVar[str] = "own"
    width: float = 0.5
    device: str = "tpu"
    rounds: "np.ndarray | pd.DataFrame | None" = None

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        pass

    def _predict(self, rows: Rows) -> np.ndarray:
        return rows.roofline_us


def with_description(frame: pd.DataFrame, description: object) -> pd.DataFrame:
    """Return a copy of the table whose kernel has the description."""
    copy = frame.copy()
    copy.attrs["description"] = description
    return copy


def test_limits_of_other_models_do_not_hold_for_an_own_model(measured: Any) -> None:
    assert {*OwnModel().get_params()} <= {name for limits in SETTING_LIMITS.values() for name in limits}
    frame, time_us = measured
    np.testing.assert_array_equal(OwnModel().fit(frame, time_us).predict(frame), rows_of(frame).roofline_us)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x, y[:-1]), "40 rows and y has 39"),
        (lambda x, y: (x, np.c_[y, y]), "1d array"),
        (lambda x, y: (x, y.astype(str)), "bytes/strings"),
        (lambda x, y: (x, y > 0), "bool"),
        (lambda x, y: (x, y + 0j), "Complex"),
        (lambda x, y: (x, np.where(y > y[0], np.inf, y)), "infinity"),
        (lambda x, y: (x, -y), "above 0"),
        (lambda x, y: (x.to_numpy(), y), "named columns"),
        (lambda x, y: (x.iloc[:, 0], y), "Reshape"),
        (lambda x, y: (x.head(0), []), "0 sample"),
        (lambda x, y: (x.assign(m=x["m"] + 0.5), y), "whole number"),
        (lambda x, y: (x.assign(m=-x["m"]), y), "Negative values"),
        (lambda x, y: (x.assign(dtype="fp23"), y), "fp23"),
        (lambda x, y: (x.set_axis(["m", *x.columns[:-1]], axis=1), y), "two columns m"),
        (lambda x, y: (x.drop(columns="gpu"), y), "gpu"),
        (lambda x, y: (x, None), "y is None"),
        (lambda x, y: (with_description(x, "tiny.toml"), y), "a str"),
    ],
)
def test_wrong_table_or_times_are_refused(refused: Any, measured: Any, change: Callable[..., Any], words: str) -> None:
    with refused(words):
        Forest().fit(*change(*measured))


def test_columns_are_found_by_name(refused: Any, measured: Any) -> None:
    frame, time_us = measured
    model = Forest(trees=4).fit(frame, time_us)
    expected = model.predict(rows_of(frame))
    assert model.feature_names_in_.tolist() == list(frame) and model.n_features_in_ == frame.shape[1]
    for same in (
        *(frame[list(frame)[::-1]], frame.assign(note=1), frame.astype(object), frame.set_axis([0] * 40)),
        *(frame.assign(time_us="?"), frame.assign(time_us=-1.0, status="unknown")),
    ):
        np.testing.assert_array_equal(model.predict(same), expected)
    with refused("missing: k"):
        model.predict(frame.drop(columns="k"))
    for name, wrong, words in (("m", -1, "Negative"), ("dtype", "fp23", "fp23"), ("gpu", "", "gpu"), ("m", 1e10, "m")):
        with refused(words):
            model.predict(frame.assign(**{name: wrong}))


def test_rows_that_a_model_cannot_answer_get_a_typical_time_in_a_table(measured: Any) -> None:
    frame, time_us = measured
    model = Forest(trees=4).fit(frame, time_us)
    unseen = frame.assign(library="cutlass-2")
    assert np.isnan(model.predict(rows_of(unseen))).all()
    with pytest.warns(UserWarning, match="40 of 40 rows"):
        predicted = model.predict(unseen)
    rows = rows_of(frame)
    np.testing.assert_allclose(predicted, rows.roofline_us * np.median(time_us / rows.roofline_us))


def test_no_answer_of_a_command_is_a_typical_time(monkeypatch: pytest.MonkeyPatch, table: Any, tmp_path: Path) -> None:
    """The bundle's model has no time for Winograd, and one fold's forest has none."""
    monkeypatch.setattr(TimeModel, "_typical_us", lambda *_: pytest.fail("a typical time is an answer"))
    frame = table(6, batches=(1, 8), algorithms=("GEMM", "IMPLICIT_GEMM", "WINOGRAD"))
    known, of_one_shape = frame["algorithm"] != "WINOGRAD", frame.eval("c == 16 and groups == 1 and r == 3")
    bundle = tmp_path / "bundle"
    save(train(Dataset(frame[known]), model="seer-time-only"), bundle)
    predicted = load(bundle).predict(frame).to_frame()
    assert (predicted["source"] == np.where(known, "model", "roofline")).all() and not known.all()
    (conv,) = frame[list(SIZE_COLUMNS)].iloc[:1].to_dict("records")
    selected = load(bundle, gpu="t4").select(Conv(**conv))
    assert {each.source for each in selected.estimates} == {"model"}
    assert max(part["rows"] for part in evaluate(bundle, Dataset(frame))) == known.sum()
    compared = compare(Dataset(frame[known | of_one_shape]), models="forest", folds_count=2, seeds=1).predictions
    assert of_one_shape[~known].any() and len(compared) == known.sum() and "WINOGRAD" not in {*compared["algorithm"]}


@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_tools_of_scikit_learn_get_finite_scores(measured: Any) -> None:
    frame, time_us = measured
    model = Forest(trees=4)
    options: Any = {"error_score": "raise", "cv": 2}
    learned: Any = learning_curve(model, frame, time_us, train_sizes=np.array([2, 10]), **options)
    search = GridSearchCV(model, {"max_features": np.array([0.3, 0.6])}, **options).fit(frame, time_us)
    importances: Any = permutation_importance(search, frame, time_us, n_repeats=1, random_state=0)
    assert np.isfinite([*learned[1:]]).all() and np.isfinite(importances["importances_mean"]).all()
    assert importances["importances_mean"].max() > 0
