"""Tables for people, JSON and CSV for pipes: the options that every command with a table shares."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from surrogate.cli.table import to_table

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
    columns = list(dict.fromkeys(key for record in records for key in record))
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in record.items()})
    return text.getvalue()
