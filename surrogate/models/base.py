"""The `Model` protocol: what a predictor of kernel time must do to be fitted, judged, tuned and saved."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from surrogate.dataset.rows import Rows


class Model(Protocol):
    """A predictor. Instances are values: ``fit`` returns a new, fitted one and leaves this one as it was.

    ``params`` are its hyperparameters (plain JSON values); the class's defaults are its stored, sensible settings.
    ``predicts_time`` is False for a model that only ranks: it is judged by its choices alone.
    """

    name: ClassVar[str]
    predicts_time: ClassVar[bool]
    params: Mapping[str, Any]

    def __init__(self, **params: Any) -> None: ...

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """A model fitted on the ok rows of ``rows``. Raises `InputError` where the rows cannot carry it."""
        ...

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Predicted times in µs, (rows,); NaN where the model does not apply."""
        ...

    def save(self) -> dict[str, bytes]:
        """The fitted model as files: name → content, JSON, UBJ or plain arrays, nothing that executes."""
        ...

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """The model that ``save`` described."""
        ...

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Hyperparameters drawn from an optuna trial; empty where there is nothing to tune."""
        ...
