"""The result every analysis returns: titled rows that print as a table and convert to dicts, frames and HTML."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from surrogate.report.tables import Shown, Table, plain

Row = dict[str, Any]
UNFOLDED = 15
"""Rows of a long table on a page that are not folded away."""


@dataclass(frozen=True, slots=True, repr=False)
class ResultTable(Shown):
    """A table: ``rows`` share their keys, every key that is a quantity ends in its unit; None where unknown.

    ``short`` holds what people read in the place of a long text, such as the name of a kernel.
    """

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    short: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def table(self, most: int | None = None) -> Table:
        """The table to print; for a page, of more than ``most`` rows the first ones, many of them folded away."""
        more = f"first {most} of {len(self):,}" if most is not None and len(self) > most else ""
        formats = {key: self._shown for row in self.rows[:1] for key in row}
        folds = {"note": more, "unfolded": most and UNFOLDED}
        return Table(self.rows[:most], formats, self.title, notes=self.notes, empty="None in this trace.", **folds)

    def to_dict(self) -> dict[str, Any]:
        """Title, rows and notes as plain JSON values."""
        return {"title": self.title, "rows": list(self.rows), "notes": list(self.notes)}

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def top(self, count: int | None) -> "ResultTable":
        """The first ``count`` rows, all where it is None."""
        return replace(self, rows=self.rows[:count])

    def _shown(self, value: Any) -> str:
        """Whole numbers from 1,000 with thousands separated, short names; the rest as `plain` has it."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        text = f"{value:,.0f}" if number and 1e3 <= abs(value) < 1e15 else plain(value)
        return text.replace(name := text.lstrip(), self.short.get(name, name))
