"""The result every analysis returns: titled rows that print as a table and convert to dicts, frames and HTML."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

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

    def __repr__(self) -> str:
        columns = list(self.rows[0]) if self.rows else []
        cells = [columns, *([show(row[column]) for column in columns] for row in self.rows)]
        widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]
        return "\n".join([self.title, *(lines if columns else ["(no rows)"]), *self.notes])

    def _repr_html_(self) -> str:
        columns = list(self.rows[0]) if self.rows else []
        heads = "".join(f"<th>{escape(column)}</th>" for column in columns)
        lines = "".join(
            "<tr>" + "".join(f"<td>{escape(show(row[c]))}</td>" for c in columns) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"

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
    """A value for people: – for what is unknown, four significant digits."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
