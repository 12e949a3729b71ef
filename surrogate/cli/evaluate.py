"""``seer evaluate``: a bundle against measurements."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import PATH, output_options, rows_options, show


@click.command()
@click.argument("bundle")
@click.argument("data", type=PATH)
@rows_options
@output_options
def command(
    bundle: str, data: Path, candidates: str | None, where: tuple[str, ...], as_json: bool, as_csv: bool
) -> None:
    """Judge BUNDLE on DATA: time errors, interval coverage and slowdowns, for shapes unseen and seen in training apart.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it.

    Errors and shares are fractions; slowdowns are ratios to the best candidate; an interval reaches from the predicted
    time divided by its factor to the time multiplied by it.

    Examples:
      seer evaluate bundle run.parquet --where gpu=v100-sxm2-16gb
    """
    from surrogate.cli.datasets import load as load_data
    from surrogate.prediction.evaluate import evaluate

    records = evaluate(bundle, load_data(data, candidates, where))
    if as_json or as_csv:
        show(records, as_json=as_json, as_csv=as_csv)
        return
    several = len({record["family"] for record in records}) > 1
    flat = {
        " ".join([record["family"]] * several + [record["part"], record["stratum"]]): _flat(record)
        for record in records
    }
    names = dict.fromkeys(name for figures in flat.values() for name in figures)
    show([{"figure": name} | {part: figures.get(name) for part, figures in flat.items()} for name in names])


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Figures by name, those of the intervals one by one for each GPU."""
    apart = ("family", "part", "stratum", "intervals")
    figures = {name: value for name, value in record.items() if name not in apart}
    for row in record.get("intervals", []):
        figures[f"interval_coverage {row['gpu']}"] = row["coverage"]
        figures[f"interval_factor {row['gpu']}"] = row["interval_factor"]
    return figures
