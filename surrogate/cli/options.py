"""Options that several commands share; nothing heavy is imported for their help."""

import click

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
