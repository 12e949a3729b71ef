"""The pages of this folder: templates (``templates/PAGE.md.j2``) with figures of the committed tables.

``python -m tests pages`` writes them, and a test compares them. A template has these functions:

- ``value(table, where, text, …)`` formats the only row that the query selects.
- ``table(table, columns, where, …)`` returns a table in Markdown, with a format string for each column.
- ``count(table, where)`` and ``took(name)`` return the number of selected rows, and a run's command with its time.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments import gpu_table
from experiments.sources import HOME
from surrogate.features.errors import InputError

TEMPLATES = HOME / "templates"
FRONT = "how_good"
"""Template of the table on the front page."""
NAMES = tuple(sorted({path.name.removesuffix(".md.j2") for path in TEMPLATES.glob("*.md.j2")} - {FRONT}))
"""Pages of this folder that have a template."""


Source = str | Sequence[str] | pd.DataFrame
"""One committed table, several of them, or a table made from them."""


class _Cells(Formatter):
    """Formats rows of tables: a dash for a missing value, a minus sign, and a space before a percent sign."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of a column, or of one label of it; missing if the label has no row."""
        try:
            return super().get_field(field_name, args, kwargs)
        except KeyError:
            if field_name.partition("[")[0] not in kwargs:
                raise InputError(f"no column {field_name}; there are {', '.join(kwargs)}") from None
            return float("nan"), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return the formatted value."""
        if pd.isna(value) or value == float("inf"):
            return "–" if pd.isna(value) else "never"
        if format_spec == "short":
            format_spec = ",.0f" if abs(value) >= 100 else ".3g"
        text = super().format_field(value, format_spec)
        return text.replace("%", " %").replace("-", "−") if format_spec else text


def cell(text: str, row: Mapping[Hashable, Any]) -> str:
    """Return a format string with the values of a row, or one dash if no value is there."""
    found = _Cells().vformat(text, (), {str(name): value for name, value in row.items()})
    return found if any(letter.isalnum() for letter in found) else "–"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *([each.replace("|", "\\|") for each in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Tables:
    """The committed tables, and the functions of the templates."""

    def __init__(self) -> None:
        """Read tables when they are first used."""
        self._read: dict[str, pd.DataFrame] = {}

    def rows(self, names: Source, where: str = "", add: Mapping[str, str] | None = None) -> pd.DataFrame:
        """Return the selected rows of one table or of several, with the column ``table`` and the added columns."""
        parts = []
        for name in [names] if isinstance(names, str | pd.DataFrame) else names:
            if isinstance(name, pd.DataFrame):
                parts.append(name)
                continue
            if name not in self._read:
                self._read[name] = pd.read_csv(HOME / "tables" / f"{name}.csv")
            parts.append(self._read[name].assign(table=name))
        frame = pd.concat(parts, ignore_index=True)
        frame = frame.query(where, engine="python") if where else frame
        for column, formula in (add or {}).items():
            frame = frame.assign(**{column: frame.eval(formula, engine="python")})
        return frame

    def value(self, name: str, where: str, text: str, largest: str = "", smallest: str = "", **add: str) -> str:
        """Return ``text`` with the values of the only selected row, or of the row with an extreme value.

        Raises `InputError` if the query selects another number of rows.
        """
        frame = self.rows(name, where, add)
        if largest or smallest:
            frame = frame.sort_values(largest or smallest, ascending=not largest, kind="stable").head(1)
        if len(frame) != 1:
            raise InputError(f"{name}: {len(frame)} rows for {where!r}; select one")
        return cell(text, frame.iloc[0].to_dict())

    def count(self, name: str, where: str = "") -> str:
        """Return the number of selected rows."""
        return f"{len(self.rows(name, where)):,}"

    def median(self, name: str, where: str, column: str) -> str:
        """Return the median of a column over the selected rows."""
        return f"{self.rows(name, where)[column].median():.0f}"

    def labels(self, name: str, column: str) -> list[str]:
        """Return the distinct values of a column in their order."""
        return list(dict.fromkeys(self.rows(name)[column]))

    def table(
        self,
        names: Source,
        columns: Mapping[str, str],
        where: str = "",
        by: Sequence[str] = (),
        across: str = "",
        only: Mapping[str, Any] | None = None,
        sort: str = "",
        add: Mapping[str, str] | None = None,
    ) -> str:
        """Return a table in Markdown.

        ``columns`` are heading → format string. ``only`` is column → labels in their order, as a list or as label →
        shown text. With ``across``, a row is a group of ``by``, and ``{column[label]}`` is a value of one label.
        """
        frame = self.rows(names, where, add)
        for column, labels in (only or {}).items():
            frame = frame[frame[column].isin(list(labels))]
            frame = frame.sort_values(column, key=lambda each, o=list(labels): each.map(o.index), kind="stable")
            frame = frame.assign(**{column: frame[column].map(labels)}) if isinstance(labels, Mapping) else frame
        frame = frame.sort_values(sort, kind="stable") if sort else frame
        rows = _pivoted(frame, by, across) if across else frame.to_dict("records")
        if not rows:
            raise InputError(f"{names}: no rows for {where!r}")
        return markdown(list(columns), [[cell(text, row) for text in columns.values()] for row in rows])

    def took(self, name: str) -> str:
        """Return the command of a run and its time."""
        return f"`{self._run(name)['command']}` ({self.time(name)})".removesuffix(" (–)")

    def time(self, name: str) -> str:
        """Return the time of a run, or a dash if it was not recorded."""
        seconds = float(self._run(name)["seconds"])
        if pd.isna(seconds):
            return "–"
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"

    def _run(self, name: str) -> pd.Series:
        return self.rows("run_times", f"experiment == '{name}'").iloc[0]


class _Shown(Tables):
    """Collects the pages' tables that show one table, from another folder, and leaves everything else out."""

    def __init__(self, name: str, home: Path) -> None:
        super().__init__()
        self._read[name] = pd.read_csv(home / "tables" / f"{name}.csv")
        self.name = name
        self.found: list[str] = []

    def value(self, *words: str, **more: str) -> str:
        """Return nothing: a partial run may lack the row."""
        del words, more
        return ""

    def table(self, names: Source, *words: Any, **more: Any) -> str:
        """Collect the table if it shows the named one."""
        own = self.name == "widths" if isinstance(names, pd.DataFrame) else self.name in names
        with suppress(InputError):  # a partial run may lack all rows
            self.found += [super().table(names, *words, **more)] if own else []
        return ""


def _pivoted(frame: pd.DataFrame, by: Sequence[str], across: str) -> list[dict[Hashable, Any]]:
    """Return a row for each group of ``by``: each other column is label of ``across`` → value."""
    rows = []
    for key, part in frame.groupby(list(by), sort=False):
        values = part.set_index(across).to_dict()
        rows.append({column: dict(each) for column, each in values.items()} | dict(zip(by, key, strict=True)))
    return rows


def page(name: str, tables: Tables | None = None) -> str:
    """Return the text of a template, with the figures of ``tables`` (None: of the committed ones)."""
    tables = tables or Tables()
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for function in (tables.value, tables.table, tables.count, tables.median, tables.labels, tables.took, tables.time):
        environment.globals[function.__name__] = function
    environment.globals |= {
        "ALL": "part == 'all' and frameworks == 'all' and ",
        "widths": gpu_table.summary(tables.rows("widths")),
        "published": tables.rows("published").set_index("name")["figure"].to_dict(),
        "gpus": lambda rows: markdown(gpu_table.HEAD, rows()),
        "gpu_table": gpu_table,
        "exists": lambda table: (HOME / "tables" / f"{table}.csv").is_file(),
    }
    return environment.get_template(f"{name}.md.j2").render().rstrip() + "\n"


def how_good() -> str:
    """Return the front page's table of accuracy."""
    return page(FRONT).strip()


def shown(name: str, home: Path) -> str:
    """Return the pages' tables that show one table, made from ``home/tables/NAME.csv``, or the table itself."""
    tables = _Shown(name, home)
    for template in NAMES:
        if name in (TEMPLATES / f"{template}.md.j2").read_text(encoding="utf-8"):
            page(template, tables)
    return "\n\n".join(tables.found) or tables.rows(name).to_string(index=False)
