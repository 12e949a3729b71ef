"""Options that several commands share, and what --json and --csv print; nothing heavy is imported for their help."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from surrogate.report.tables import Table, terminal_width, to_csv, to_json

candidates_option = click.option(
    "--candidates",
    type=click.Choice(["all", "listed"]),
    help="How the table lists candidates, where the file does not say: all were tried, or a censored list.",
)
candidate_option = click.option(
    "--candidate",
    type=click.Choice(["algorithm", "solver"]),
    default="algorithm",
    show_default=True,
    help="Choose among algorithms (each with its fastest solver) or among solvers.",
)
where_option = click.option(
    "--where",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Keep only rows with this value; repeat for more columns, or VALUE,VALUE for either.",
)


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json`` and ``--csv``; the command gets ``as_json`` and ``as_csv``."""
    for option in (
        click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
    ):
        function = option(function)
    return function


def show(
    records: Sequence[Mapping[str, Any]],
    *,
    as_json: bool = False,
    as_csv: bool = False,
    whole: Any = None,
    table: Table | None = None,
) -> None:
    """Print ``records`` as JSON (``whole`` in their place, if given), as CSV, or as ``table`` for people."""
    if as_json:
        click.echo(to_json(records if whole is None else whole))
    elif as_csv:
        click.echo(to_csv(records), nl=False)
    else:
        click.echo((table or Table(records)).text(terminal_width()))
