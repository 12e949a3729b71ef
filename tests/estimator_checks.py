"""Run scikit-learn's estimator checks on every model: ``python -m tests.estimator_checks [MODEL…]`` counts the results.

The checks draw matrices of numbers. Models take tables of problems. So the functions of scikit-learn's module that draw
data return a `Table` here: rows of problems that are indexed like a matrix. `estimator_checks.toml` holds the problems,
and the checks that do not apply, with reasons.
"""

import inspect
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.utils import estimator_checks

from surrogate.dataset.store import as_dataset
from surrogate.models import TimeModel
from surrogate.models.baselines import Roofline
from surrogate.models.calibrated import Calibrated
from surrogate.models.registry import DECLARED, model_class
from surrogate.models.seer.physics import METRIC_COLUMNS
from tests.known import known_answers
from tests.tables import checked, every
from tests.tuning import made_up

CONTENT = known_answers(__file__)
Frame: Any = pd.DataFrame
CHECKS: Any = estimator_checks
DRAWS = ("normal", "standard_normal", "uniform")


class Table(Frame):
    """Rows of problems that a check treats as a matrix of floats. Column 0 is a size."""

    dtype = np.dtype(float)

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "Table":
        """Return the rows of ``frame``, with its description of a kernel."""
        table = cls(frame)
        table.attrs = frame.attrs
        return table

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return self.iloc[key].to_numpy(copy=True) if isinstance(key[1], int) else self.iloc[key]
        return self.iloc[key] if isinstance(key, int) else super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, tuple):
            self.isetitem(0, self.iloc[:, 0].astype(float))
            self.iloc[key] = value

    def __isub__(self, other: Any) -> "Table":  # a check subtracts the mean for negative numbers
        self.isetitem(0, -1 - self.iloc[:, 0])
        return self

    def __rmul__(self, other: Any) -> "Table":
        return self

    def __lt__(self, other: Any) -> "Table":
        return self

    def mean(self, *_: Any, **__: Any) -> Any:
        return np.float64(0)

    def tolist(self) -> "Table":
        return self

    def astype(self, dtype: Any, *_: Any, **__: Any) -> "Table":
        cast = self if dtype is object else self.select_dtypes("number")
        return self.of(self.assign(**{name: cast[name].astype(dtype) for name in cast}))


@cache
def problems(name: str) -> pd.DataFrame:
    """Return rows without times from which the model learns, in random order, and a size as the first column."""
    kind = CONTENT["problems"].get(name, "gemm")
    if kind == "made_up":
        measured = made_up.times(made_up.SHAPES[:2], ("our own gpu",)).query("status == 'ok'")
        data = as_dataset(measured, made_up.COLUMNS)
        frame = data.frame
        frame.attrs["description"] = data.description
    else:
        frame = checked(every(**CONTENT["tables"][kind]).assign(time_us=1.0)).frame
    if name == "seer-paper":
        counters = dict.fromkeys(METRIC_COLUMNS, 64.0) | {"variant": "128x64", "kernel_class": 0}
        frame = frame.assign(**counters)
    size = CONTENT["first_size"][kind]
    return frame[[size, *frame.columns.difference([size, "time_us", "status"])]].sample(frac=1.0, random_state=0)


def table(name: str, count: int, columns: int = 2) -> Table:
    """Return ``count`` rows of a model's problems; instead of a matrix of one column, only the first column."""
    frame = problems(name)
    drawn = frame.iloc[np.arange(count) % len(frame), : 1 if columns == 1 else None]
    return Table.of(drawn.reset_index(drop=True))


def copied(module: ModuleType, **changes: Any) -> ModuleType:
    """Return a copy of a module with other globals."""
    copy = ModuleType(module.__name__)
    vars(copy).update({**vars(module), **changes})
    return copy


def drawing_tables(name: str) -> dict[str, Any]:
    """Return the globals with which scikit-learn's module draws tables of the model's problems."""

    def drawn(method: str) -> Any:
        def draw(self: Any, *args: Any, **words: Any) -> Any:
            values = getattr(np.random.RandomState, method)(self, *args, **words)
            return table(name, *values.shape) if np.ndim(values) == 2 else values

        return draw

    def unless_table(function: Any) -> Any:
        return lambda value, *args, **words: value if isinstance(value, Table) else function(value, *args, **words)

    def labelled(*_: Any, n_samples: int = 150, **__: Any) -> tuple[Table, np.ndarray]:
        return table(name, n_samples), np.arange(n_samples) % 3

    def regression() -> tuple[Table, np.ndarray]:
        rows = table(name, 200)
        return rows, np.sqrt(Roofline().fit(rows, np.ones(200)).predict(rows))

    def batches(function: Any, rows: Table) -> tuple[np.ndarray, np.ndarray]:
        return function(rows), np.concatenate([function(rows.iloc[[row]]) for row in range(len(rows))])

    def matrix(kind: Any) -> Any:
        return lambda rows: kind(np.eye(len(rows)))

    random = copied(
        np.random, RandomState=type("Random", (np.random.RandomState,), {each: drawn(each) for each in DRAWS})
    )
    kept = {each: unless_table(getattr(np, each)) for each in ("asarray", "asfortranarray")}
    matrices = {each: matrix(getattr(sparse, each)) for each in ("csr_array", "csr_matrix")}
    return {
        "np": copied(np, random=random, **kept),
        "sparse": copied(sparse, **matrices),
        **dict.fromkeys(("make_blobs", "load_iris"), labelled),
        "_regression_dataset": regression,
        "_enforce_estimator_tags_X": lambda _, rows, **__: rows,
        "_apply_on_subsets": batches,
        "_NotAnArray": pd.DataFrame,
    }


def instance(name: str) -> TimeModel:
    """Return an unfitted model with settings of a small fit. The calibrated model has a fitted base."""
    if name == Calibrated.name:
        return Calibrated(Roofline().fit(table("roofline", 9), np.ones(9)), {})
    return model_class(name)(**CONTENT["settings"].get(name, {}))


def results(name: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the result of each check: "passed", "does not apply", or the error."""
    exceptions = CONTENT["exceptions"] | CONTENT["models"].get(name, {})
    with patch.multiple(estimator_checks, **drawing_tables(name)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for estimator, check in CHECKS.estimator_checks_generator(instance(name)):
            called = estimator_checks._check_name(check)
            fits = ".fit(" in inspect.getsource(getattr(estimator_checks, called))
            if called in exceptions or (fits and "fit" in exceptions):
                yield called, "does not apply"
                continue
            try:
                check(estimator)
            except Exception as error:
                yield called, f"{type(error).__name__}: {error}"
            else:
                yield called, "passed"


if __name__ == "__main__":
    found = [(name, *each) for name in sys.argv[1:] or DECLARED for each in results(name)]
    checks = pd.DataFrame(found, columns=["model", "check", "result"])
    is_error = ~checks["result"].isin(("passed", "does not apply"))
    print(pd.crosstab(checks["model"], checks["result"].mask(is_error, "failed"), margins=True, margins_name="all"))
    for error in checks[is_error].itertuples(index=False):
        print(*error, sep=": ")
