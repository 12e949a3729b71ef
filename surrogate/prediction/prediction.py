"""What `Predictor.predict` gives: one `Prediction`, or `Predictions` as columns for a table of problems."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features.conv import Conv
from surrogate.prediction.text import (
    binary_size,
    html_table,
    interval_us,
    microseconds,
    setting_line,
    text_table,
)

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 5


@dataclass(frozen=True, slots=True, repr=False)
class Prediction:
    """The time of one algorithm on one problem, in µs, with its 90 % interval.

    ``source``: ``model``, ``spec`` (the GPU was never measured) or ``roofline`` (the model does not know the
    algorithm); ``supported`` says whether the library is expected to run it at all; ``reason`` why it is not, or what
    training did not see.
    """

    problem: Conv
    gpu: str
    library_version: str
    algorithm: str
    time_us: float
    lower_us: float
    upper_us: float
    workspace_bytes: int
    source: str
    in_domain: bool
    reason: str | None
    supported: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Field name → value; the problem as text."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"problem": str(self.problem)}

    def to_frame(self) -> "pd.DataFrame":
        """A pandas table of one row."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def _records(self) -> list[dict[str, str]]:
        return [
            {
                "algorithm": self.algorithm,
                "time_us": microseconds(self.time_us),
                "90 %": interval_us(self.lower_us, self.upper_us),
                "workspace": binary_size(self.workspace_bytes),
                "source": self.source,
                "in_domain": "yes" if self.in_domain else "no",
                "supported": "yes" if self.supported else "no",
            }
        ]

    @property
    def title(self) -> str:
        """The question in one line."""
        return f"{setting_line(self.problem)} on {self.gpu}, library {self.library_version}"

    def _notes(self) -> list[str]:
        return [f"note: {self.reason}"] if self.reason else []

    def __repr__(self) -> str:
        return "\n".join([self.title, text_table(self._records()), *self._notes()])

    def _repr_html_(self) -> str:
        return html_table(self.title, self._records(), self._notes())


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Predictions:
    """Columns (rows,) in the order of the table that was asked about; NaN and "" where no candidate is feasible."""

    algorithm: np.ndarray
    predicted_us: np.ndarray
    lower_us: np.ndarray
    upper_us: np.ndarray
    in_domain: np.ndarray
    supported: np.ndarray
    workspace_bytes: np.ndarray

    def __len__(self) -> int:
        return len(self.predicted_us)

    def __getitem__(self, name: str) -> np.ndarray:
        """A column by its name. Raises `KeyError` for another."""
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    @property
    def time_us(self) -> np.ndarray:
        """``predicted_us`` by the name that a single `Prediction` has for it."""
        return self.predicted_us

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and values of every column."""
        return ((name, getattr(self, name)) for name in self.__slots__)

    def to_dict(self) -> dict[str, list[Any]]:
        """Column name → plain values."""
        return {name: values.tolist() for name, values in self.columns()}

    def to_frame(self) -> "pd.DataFrame":
        """A pandas table."""
        import pandas as pd

        return pd.DataFrame(dict(self.columns()))

    def _records(self) -> list[dict[str, str]]:
        places = range(min(len(self), SHOWN))
        return [
            {
                "row": str(i),
                **{
                    name: microseconds(values[i]) if values.dtype.kind == "f" else str(values[i])
                    for name, values in self.columns()
                },
            }
            for i in places
        ]

    def __repr__(self) -> str:
        more = f"\n… {len(self)} rows" if len(self) > SHOWN else ""
        return (text_table(self._records()) or "no rows") + more

    def _repr_html_(self) -> str:
        return html_table(f"{len(self)} predictions", self._records())
