"""``seer report``: the report of a comparison, drawn again."""

from pathlib import Path

import click

from surrogate.cli.options import output_options, show


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@output_options
def command(directory: Path, as_json: bool, as_csv: bool) -> None:
    """Draw figures, CSV tables and report.html anew from the results in DIRECTORY, and print the summary."""
    from surrogate.report.page import write_report
    from surrogate.report.results import read_results
    from surrogate.report.summary import terminal_summary

    results = read_results(directory)
    page = write_report(directory)
    if as_json or as_csv:
        show(results["choice_rows"], as_json=as_json, as_csv=as_csv, whole=results)
    else:
        click.echo(terminal_summary(results))
        click.echo(f"\n{page}")
