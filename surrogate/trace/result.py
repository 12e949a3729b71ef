"""The result every analysis returns: titled rows that print as a table and convert to dicts, frames and HTML."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from surrogate.prediction.text import html_table, text_table

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class ResultTable:
    """A table: ``rows`` share their keys, every key that is a quantity ends in its unit; None where unknown."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return "\n".join([self.title, text_table(self._shown()) or "(no rows)", *self.notes])

    def _repr_html_(self) -> str:
        return html_table(self.title, self._shown(), self.notes)

    def _shown(self) -> list[dict[str, str]]:
        return [{key: show(value) for key, value in row.items()} for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Title, rows and notes as plain JSON values."""
        return {"title": self.title, "rows": list(self.rows), "notes": list(self.notes)}

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def top(self, count: int | None) -> "ResultTable":
        """The first ``count`` rows, all where it is None."""
        return ResultTable(self.title, self.rows[:count], self.notes)


def show(value: Any) -> str:
    """A value for people: – for what is unknown, four significant digits, whole numbers from 1,000."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
