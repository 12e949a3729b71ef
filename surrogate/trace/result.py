"""The result every analysis returns: titled rows that print as a table and convert to dicts, frames and HTML."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from surrogate.report.tables import Table

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Rows:
    """A table: ``rows`` share their keys, every key that is a quantity ends in its unit; None where unknown."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def table(self) -> Table:
        """What people see."""
        formats = dict.fromkeys((key for row in self.rows for key in row), show)
        return Table(self.rows, formats, self.title, notes=self.notes)

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().__html__()

    def to_dict(self) -> dict[str, Any]:
        """Title, rows and notes as plain JSON values."""
        return {"title": self.title, "rows": list(self.rows), "notes": list(self.notes)}

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def top(self, count: int | None) -> "Rows":
        """The first ``count`` rows, all where it is None."""
        return Rows(self.title, self.rows[:count], self.notes)


def show(value: Any) -> str:
    """A value for people: – for what is unknown, four significant digits, whole numbers from 1,000."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
