"""``seer info``: a bundle's model card."""

from collections.abc import Mapping
from typing import Any

import click

from surrogate.cli.options import output_options, show
from surrogate.report.tables import Facts, Format, Table, plain, ratio, terminal_width, whole

FORMATS: dict[str, Format] = {
    "rows": whole,
    "shapes": whole,
    "median_ape": "{:.1%}".format,
    "p90_ape": "{:.1%}".format,
    "slowdown": ratio,
    "coverage": "{:.1%}".format,
    "interval_factor": ratio,
}


@click.command()
@click.argument("bundle")
@output_options
def command(bundle: str, as_json: bool, as_csv: bool) -> None:
    """Show what BUNDLE was fitted on, its held-out errors and intervals, and its licence notices.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it. Errors, slowdowns of the choices and the
    coverage of the 90 % intervals are of shapes that the fit never saw; a row for each family of kernels, then a row
    for each of its GPUs (of several families in --csv alone). --json prints the whole index.

    Examples:
      seer info bundle
    """
    from surrogate.bundle.bundle import read_index
    from surrogate.prediction.shipped import bundle_path

    index = read_index(bundle_path(bundle))
    records = [record for family in index["parts"] for record in _family_records(index, family)]
    if as_json or as_csv:
        show(records, as_json=as_json, as_csv=as_csv, whole=index)
        return
    click.echo(Facts(_facts(index["card"])).text(terminal_width() or 80))
    click.echo()
    totals = [record for record in records if record["gpu"] == "all"]
    show(records, table=Table(totals if len(totals) > 1 else records, FORMATS))


def held_out_record(family: str, held: Mapping[str, Any]) -> dict[str, Any]:
    """Time errors, the slowdown of the choices and the coverage of the intervals on a family's held-out rows."""
    from surrogate.features.families import FAMILIES

    choice = held["choice"].get(FAMILIES[family].primary, {})
    intervals = (held["intervals"] or [{}])[0]
    return {
        "median_ape": held["time"]["median_ape"],
        "p90_ape": held["time"]["p90_ape"],
        "slowdown": choice.get("slowdown_macro"),
        "coverage": intervals.get("coverage"),
        "interval_factor": intervals.get("interval_factor"),
    }


def _family_records(index: Mapping[str, Any], family: str) -> list[dict[str, Any]]:
    """The family's figures over all GPUs, then the rows and intervals on each of them."""
    card = index["card"]
    data, held = card["data"]["families"][family], card["held_out"][family]
    gpus = [
        {"family": family, "gpu": row["gpu"], **{name: row[name] for name in FORMATS if name in row}}
        for row in held["intervals"][1:]
    ]
    total = {
        "family": family,
        "gpu": "all",
        "model": index["parts"][family]["model"],
        "rows": data["ok_rows"],
        "shapes": data["shapes"],
        **held_out_record(family, held),
    }
    return [total, *gpus]


def _facts(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the bundle was fitted on, by name."""
    data = card["data"]
    pairs = {
        "data": data["name"],
        "only rows where": data["where"],
        "rows": f"{data['ok_rows']:,} measured times of {data['rows']:,} rows",
        "GPUs": data["gpus"],
        "libraries": data["libraries"],
        "origins": data["origins"],
        "calibrated": [f"{gpu} from {row['problems']} problems" for gpu, row in card.get("calibration", {}).items()],
        "licences": [notice.rstrip(".") for notice in card["licence_notices"]],
    }
    return [(name, plain(value)) for name, value in pairs.items() if value]
