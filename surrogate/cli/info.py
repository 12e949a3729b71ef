"""``seer info``: a bundle's model card; and ``seer evaluate``: a bundle against measurements."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import PATH, Form, output_options, rows_options, show
from surrogate.report.tables import FactTable, Format, Table, format_value, ratio, terminal_width, format_count

FORMATS: dict[str, Format] = {
    "rows": format_count,
    "shapes": format_count,
    "median_ape": "{:.1%}".format,
    "p90_ape": "{:.1%}".format,
    "slowdown": ratio,
    "coverage": "{:.1%}".format,
    "interval_factor": ratio,
}
LEGEND = (
    "Figures are of rows left out of fits, by whole shapes: half of the times are off by less than median_ape, nine in"
    " ten by less than p90_ape; slowdown is the time of what is chosen over the fastest's; coverage of the times lie in"
    " their 90 % intervals, which reach from the predicted time divided by interval_factor to the time multiplied by it"
)
WORDS = {
    "median_ape": "time error, median",
    "p90_ape": "time error, 90th percentile",
    "interval_coverage": "90 % intervals cover",
    "slowdown_macro": "slowdown",
}
"""What figures of `seer evaluate` are called for people, as `seer train` calls them; others keep their key."""
FRACTIONS = {
    *("median_ape", "p90_ape", "mape", "rmspe", "gmae", "in_domain", "interval_coverage", "interval_coverage_ci"),
    *("top1", "within_10pct", "pick_probability", "pick_was_best"),
}
"""Those that people read as percentages."""


@click.command()
@click.argument("bundle")
@output_options
def command(bundle: str, form: Form) -> None:
    """Show what BUNDLE was fitted on, its held-out errors and intervals, and its licence notices.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it. Errors, slowdowns of the choices and the
    coverage of the 90 % intervals are of shapes that the fit never saw; a row for each family of kernels, then a row
    for each of its GPUs (of several families in --csv alone). --json prints the whole index.

    Examples:
      seer info bundle
    """
    from surrogate.bundle.bundle import read_index
    from surrogate.models.json_types import input_error_if_damaged
    from surrogate.prediction.shipped import bundle_path

    index = read_index(bundle_path(bundle))
    with input_error_if_damaged(f"{bundle}: the model card"):
        records = [record for family in index["parts"] for record in _family_records(index, family)]
        facts = _facts(index["card"])
    if form:
        show(records, form, json_value=index)
        return
    click.echo(FactTable(facts).text(terminal_width() or 80))
    click.echo()
    totals = [record for record in records if record.get("gpu") == "all"]
    show(records, table=Table(totals if len(totals) > 1 else records, FORMATS, notes=[LEGEND]))


def held_out_record(family: str, held: Mapping[str, Any]) -> dict[str, object]:
    """Time errors, the slowdown of the choices and the coverage of the intervals on a family's held-out rows."""
    from surrogate.features.families import FAMILIES, Family

    choice = held["choice"].get(FAMILIES.get(family, Family).primary, {})
    intervals = (held["intervals"] or [{}])[0]
    return {
        "median_ape": held["time"]["median_ape"],
        "p90_ape": held["time"]["p90_ape"],
        "slowdown": choice.get("slowdown_macro"),
        "coverage": intervals.get("coverage"),
        "interval_factor": intervals.get("interval_factor"),
    }


def _family_records(index: Mapping[str, Any], family: str) -> list[dict[str, object]]:
    """The family's figures over all GPUs, then the rows and intervals on each of them."""
    card = index["card"]
    data = card["data"]["families"][family]
    held = card["held_out"][family]
    gpus = [
        {"family": family, **{name: row[name] for name in ("gpu", "dtype", *FORMATS) if name in row}}
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
    return [(name, format_value(value)) for name, value in pairs.items() if value]


@click.command()
@click.argument("bundle")
@click.argument("data", type=PATH)
@rows_options
@output_options
def evaluate(bundle: str, data: Path, candidates: str | None, where: tuple[str, ...], form: Form) -> None:
    """Judge BUNDLE on DATA: time errors, interval coverage and slowdowns, for shapes unseen and seen in training apart.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it.

    In --json and --csv errors and shares are fractions. Slowdowns are ratios to the best candidate; an interval
    reaches from the predicted time divided by its factor to the time multiplied by it.

    Examples:
      seer evaluate bundle run.parquet --where gpu=v100-sxm2-16gb
    """
    from surrogate.cli.datasets import load_dataset as load_data
    from surrogate.prediction.evaluate import evaluate as judged
    from surrogate.prediction.shipped import as_bundle

    known = as_bundle(bundle)
    records = judged(known, load_data(data, candidates, where, known.kernel))
    several = len({record["family"] for record in records}) > 1
    flat = {
        " ".join([record["family"]] * several + [record["part"], record["stratum"]]): _flat(record)
        for record in records
    }
    names = dict.fromkeys(name for figures in flat.values() for name in figures)
    rows = [{"figure": name} | {part: figures.get(name) for part, figures in flat.items()} for name in names]
    show(records, form, table=Table(rows))


def _flat(record: Mapping[str, Any]) -> dict[str, object]:
    """Figures as people read them, by name; those of the intervals one by one for each GPU."""
    apart = ("family", "part", "stratum", "intervals")
    figures = {WORDS.get(name, name): _shown(name, value) for name, value in record.items() if name not in apart}
    for row in record.get("intervals", []):
        where = row["gpu"] if row["dtype"] == "all" else f"{row['gpu']} {row['dtype']}"
        figures[f"{WORDS['interval_coverage']} {where}"] = _shown("interval_coverage", row["coverage"])
        figures[f"interval_factor {where}"] = row["interval_factor"]
    return figures


def _shown(name: str, value: object) -> object:
    """A fraction, or an interval of them, in percent; another figure as it is."""
    ends = value if isinstance(value, list) else [value]
    return value if value is None or name not in FRACTIONS else " to ".join(map("{:.1%}".format, ends))
