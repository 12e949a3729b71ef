"""Tables for people, JSON and CSV for pipes: the options that every command with a table shares."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

Records = Sequence[dict[str, Any]]


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json`` and ``--csv``; the command gets ``as_json`` and ``as_csv``."""
    for option in (
        click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
    ):
        function = option(function)
    return function


def show(records: Records, *, as_json: bool, as_csv: bool, whole: Any = None) -> None:
    """Print ``records`` as a table, JSON (``whole`` in their place, if given) or CSV."""
    if as_json:
        click.echo(json.dumps(records if whole is None else whole, indent=1, default=str))
    elif as_csv:
        click.echo(to_csv(records), nl=False)
    else:
        click.echo(to_table(records))


def to_csv(records: Records) -> str:
    """A header line and a line per record; nested values as JSON."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_columns(records), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in record.items()})
    return text.getvalue()


def to_table(records: Records) -> str:
    """Columns padded to their widest cell; numbers to the right."""
    if not records:
        return "(no rows)"
    columns = _columns(records)
    cells = [[_cell(record.get(column)) for column in columns] for record in records]
    widths = [max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    right = [all(not isinstance(record.get(column), str) for record in records) for column in columns]

    def line(row: list[str]) -> str:
        parts = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join([line(columns), *map(line, cells)])


def _columns(records: Records) -> list[str]:
    return list(dict.fromkeys(key for record in records for key in record))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(v) for v in value)
    return str(value)
