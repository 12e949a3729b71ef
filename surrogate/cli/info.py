"""``seer info``, which shows a bundle's model card, and ``seer evaluate``, which judges a bundle on measurements."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import PATH, Form, echo, output_options, rows_options, show
from surrogate.features import read_toml
from surrogate.report.tables import FactTable, Format, Table, format_count, format_value, ratio, terminal_width

_PERCENT = "{:.1%}".format
FORMATS: dict[str, Format] = {"rows": format_count, "shapes": format_count, "median_ape": _PERCENT}
FORMATS |= {"p90_ape": _PERCENT, "slowdown": ratio, "coverage": _PERCENT, "interval_factor": ratio}
_TABLE = read_toml(__file__)
LEGEND: str = _TABLE["legend"]
WORDS: dict[str, str] = _TABLE["words"]
"""Figure of `seer evaluate` → its name for people. Others keep their key."""
FRACTIONS: list[str] = _TABLE["fractions"]
"""Figures that are printed as percentages."""


@click.command()
@click.argument("bundle")
@output_options
def command(bundle: str, form: Form) -> None:
    """Show the training data of BUNDLE, its held-out errors and intervals, and its licence notices.

    BUNDLE is a folder, or the name of a shipped bundle. Errors, slowdowns and the coverage of the 90 % intervals are on
    held-out shapes. The table has one row per family of kernels, and one per GPU if there is a single family; --csv
    always has a row per GPU. --json prints the whole index. The name of a GPU lists the shipped bundles that answer
    for it; --json and --csv show the bundle of its convolutions.

    Examples:
      seer info bundle
      seer info h100
    """
    from surrogate.bundle.bundle import stored_index
    from surrogate.cli.gpus import answers_on, family_table
    from surrogate.models.json_types import input_error_if_damaged
    from surrogate.prediction.shipped import bundle_path, shipped_gpu

    if not form and (board := shipped_gpu(bundle)):
        answers = answers_on(board)
        show([], table=family_table(answers, f"shipped bundles that answer for {board.name}", _TABLE["cards"]))
        if bundle not in {row["bundle"] for row in answers.values()}:
            return
        echo("")
    index, _ = stored_index(bundle_path(bundle))
    with input_error_if_damaged(f"{bundle}: the model card"):
        records = [record for family in index["parts"] for record in _family_records(index, family)]
        facts = _facts(index["card"])
    if form:
        show(records, form, json_value=index)
        return
    echo(*FactTable(facts).text(terminal_width() or 80).split("\n"), "")
    totals = [record for record in records if record.get("gpu") == "all"]
    show(records, table=Table(totals if len(totals) > 1 else records, FORMATS, notes=[LEGEND]))


def held_out_record(family: str, held_out: Mapping[str, Any]) -> dict[str, object]:
    """Return time errors, the slowdown of choices and the coverage of intervals on a family's held-out rows."""
    from surrogate.features.families import FAMILIES, Family

    intervals = (held_out["intervals"] or [{}])[0]
    return {
        "median_ape": held_out["time"]["median_ape"],
        "p90_ape": held_out["time"]["p90_ape"],
        "slowdown": held_out["choice"].get(FAMILIES.get(family, Family).primary, {}).get("slowdown_macro"),
        "coverage": intervals.get("coverage"),
        "interval_factor": intervals.get("interval_factor"),
    }


def _family_records(index: Mapping[str, Any], family: str) -> list[dict[str, object]]:
    """Return the family's figures over all GPUs, then the rows and intervals of each GPU."""
    card = index["card"]
    data = card["data"]["families"][family]
    held_out = card["held_out"][family]
    gpus = [
        {"family": family, **{name: row[name] for name in ("gpu", "dtype", *FORMATS) if name in row}}
        for row in held_out["intervals"][1:]
    ]
    fitted = {"model": index["parts"][family]["model"], "rows": data["ok_rows"], "shapes": data["shapes"]}
    return [{"family": family, "gpu": "all", **fitted, **held_out_record(family, held_out)}, *gpus]


def _facts(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) facts about the bundle's training data."""
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
    """Judge BUNDLE on DATA: time errors, interval coverage and slowdowns, separately for unseen and seen shapes.

    BUNDLE is a folder, or the name of a GPU for its shipped bundle.

    In --json and --csv, errors and shares are fractions. A slowdown is the ratio to the best candidate's time. An
    interval reaches from the predicted time divided by its factor to the predicted time multiplied by it.

    Examples:
      seer evaluate bundle run.parquet --where gpu=v100-sxm2-16gb
    """
    from surrogate.cli.datasets import load_dataset as load_data
    from surrogate.prediction.evaluate import evaluate as evaluate_bundle
    from surrogate.prediction.shipped import as_bundle

    opened = as_bundle(bundle)
    records = evaluate_bundle(opened, load_data(data, candidates, where, opened.kernel))
    several = len({record["family"] for record in records}) > 1
    flat = {" ".join([row["family"]] * several + [row["part"], row["stratum"]]): _flat(row) for row in records}
    # A figure without a value in any part, such as the difference to a model that is not evaluated, has no row.
    names = dict.fromkeys(name for figures in flat.values() for name, value in figures.items() if value is not None)
    rows = [{"figure": name} | {part: figures.get(name) for part, figures in flat.items()} for name in names]
    show(records, form, table=Table(rows))


def _flat(record: Mapping[str, Any]) -> dict[str, object]:
    """Return the figures of a record by name, formatted for people, with the intervals of each GPU."""
    keys = ("family", "part", "stratum", "intervals")
    figures = {WORDS.get(name, name): _formatted(name, value) for name, value in record.items() if name not in keys}
    figures = {name: value for name, value in figures.items() if value or not name.startswith("paired_problems")}
    for row in record.get("intervals", []):
        where = row["gpu"] if row["dtype"] == "all" else f"{row['gpu']} {row['dtype']}"
        figures[f"{WORDS['interval_coverage']} {where}"] = _formatted("interval_coverage", row["coverage"])
        figures[f"interval_factor {where}"] = row["interval_factor"]
    return figures


def _formatted(name: str, value: object) -> object:
    """Return a fraction, or an interval of fractions, in percent; another figure unchanged."""
    ends = value if isinstance(value, list) else [value]
    return value if value is None or name not in FRACTIONS else " to ".join(map("{:.1%}".format, ends))
