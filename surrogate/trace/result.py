"""The result every analysis returns: titled rows that print as a table and convert to dicts, frames and HTML."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from surrogate.report.tables import Shown, Table, plain

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class ResultTable(Shown):
    """A table: ``rows`` share their keys, every key that is a quantity ends in its unit; None where unknown."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def table(self, most: int | None = None) -> Table:
        """The table to print or show; of more than ``most`` rows the first ones, which its note says."""
        more = f"first {most} of {len(self):,}" if most is not None and len(self) > most else ""
        formats = {key: _with_thousands for row in self.rows[:1] for key in row}
        return Table(self.rows[:most], formats, self.title, note=more, notes=self.notes, empty="None in this trace.")

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


def _with_thousands(value: Any) -> str:
    """Whole numbers from 1,000 with thousands separated; the rest as `plain` has it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,.0f}" if number and 1e3 <= abs(value) < 1e15 else plain(value)
