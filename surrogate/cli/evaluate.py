"""``seer evaluate``: a bundle against measurements."""

from pathlib import Path

import click

from surrogate.cli.options import candidates_option, where_option
from surrogate.cli.output import output_options, show


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@candidates_option
@where_option
@output_options
def command(
    bundle: Path, data: Path, candidates: str | None, where: tuple[str, ...], as_json: bool, as_csv: bool
) -> None:
    """Judge BUNDLE on DATA: time errors, interval coverage and slowdowns, for shapes unseen and seen in training apart.

    Errors and shares are fractions; slowdowns are ratios to the best candidate.
    """
    from surrogate.bundle import load
    from surrogate.cli.datasets import load as load_data
    from surrogate.training import evaluate

    records = evaluate(load(bundle), load_data(data, candidates, where))
    if as_json or as_csv:
        show(records, as_json=as_json, as_csv=as_csv)
        return
    names = list(dict.fromkeys(key for record in records for key in record if key not in ("part", "stratum")))
    table = [
        {"figure": name, **{f"{r['part']} {r['stratum']}": r.get(name) for r in records}} for name in names
    ]
    show(table, as_json=False, as_csv=False)
