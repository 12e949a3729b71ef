"""What `Predictor.predict` gives: one `Prediction`, or `Predictions` as columns for a table of problems."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features.conv import Conv
from surrogate.report.tables import Table, binary_size, interval_us

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 5
FORMATS = {"90 %": interval_us, "workspace": binary_size}
"""How the columns of predictions and selections read."""


def setting_line(problem: Conv) -> str:
    """A problem with everything that is asked about it: sizes, direction, element type, math and layout."""
    p = problem
    return f"{p} {p.direction} {p.dtype} {p.math} {p.layout}"


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

    def table(self) -> Table:
        """What people see."""
        record = {
            "algorithm": self.algorithm,
            "time_us": self.time_us,
            "90 %": (self.lower_us, self.upper_us),
            "workspace": self.workspace_bytes,
            "source": self.source,
            "in_domain": self.in_domain,
            "supported": self.supported,
        }
        notes = [f"note: {self.reason}"] if self.reason else []
        return Table([record], FORMATS, self.title, notes=notes)

    @property
    def title(self) -> str:
        """The question in one line."""
        return f"{setting_line(self.problem)} on {self.gpu}, library {self.library_version}"

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().__html__()


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

    def table(self, title: str = "") -> Table:
        """The first rows, for people."""
        shown = range(min(len(self), SHOWN))
        records = [{"row": i} | {name: values[i] for name, values in self.columns()} for i in shown]
        more = [f"… {len(self)} rows"] if len(self) > SHOWN else []
        return Table(records, title=title, notes=more, empty="no rows")

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table(f"{len(self)} predictions").__html__()
