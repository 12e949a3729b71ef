"""The `OperatorModel` protocol: a predictor of operators' times that can be fitted and judged."""

from typing import ClassVar, Protocol, Self

import numpy as np

from surrogate.operators.table import OperatorTable


class OperatorModel(Protocol):
    """Instances are values: ``fit`` returns a new, fitted one.

    ``handles_new_gpus`` is False where nothing is said about a GPU that training did not hold.
    """

    name: ClassVar[str]
    handles_new_gpus: ClassVar[bool]

    def __init__(self) -> None: ...

    def fit(self, table: OperatorTable, *, seed: int = 0) -> Self:
        """A model fitted on the table's rows."""
        ...

    def predict_us(self, table: OperatorTable) -> np.ndarray:
        """Times in µs, (rows,); NaN where the model does not apply."""
        ...
