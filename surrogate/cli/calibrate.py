"""``seer calibrate``: adapt a bundle to a GPU from a few measurements."""

from collections.abc import Mapping
from pathlib import Path

import click

from surrogate.cli.options import BUNDLE, PATH, output_option, rows_options, seed_option


@click.command()
@click.argument("bundle")
@click.argument("data", nargs=-1, required=True, type=PATH)
@rows_options
@seed_option
@output_option("The bundle to write, a folder.", kind=BUNDLE)
def command(
    bundle: str, data: tuple[Path, ...], candidates: str | None, where: tuple[str, ...], seed: int, output: Path
) -> None:
    """Correct the times of BUNDLE on the GPUs of DATA, from at least 10 measured problems each.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it (the vendor's, for one never measured). Times
    on other GPUs stay as they are. Intervals come from held-out shapes. A bundle of a kernel of your own, which holds
    the table that it was fitted on, is fitted again with any number of new rows.

    Examples:
      seer collect --device cudnn --sample 30 -o run.jsonl
      seer data merge run.jsonl -o run.parquet
      seer calibrate bundle run.parquet -o calibrated
    """
    from surrogate.bundle.bundle import save
    from surrogate.cli.datasets import load_all, progress_bar
    from surrogate.prediction.calibrate import calibrate
    from surrogate.prediction.shipped import as_bundle

    known = as_bundle(bundle)
    measured = load_all(data, candidates, where, known.kernel)
    with progress_bar("calibrate") as step:
        calibrated = calibrate(known, measured, seed=seed, progress=step)
    save(calibrated, output)
    for device, row in sorted(calibrated.card["calibration"].items()):
        measured_part = f"{row['problems']} problems of {row['shapes']} shapes"
        click.echo(f"{output}: {device}, {measured_part}; {_change(row)} ({row['method']})")


def _change(row: Mapping[str, object]) -> str:
    """Return the median time error before and after, if the model had not been trained on all of the rows."""
    if row["median_ape_before"] is None:
        return "all of them were in the bundle's training, so nothing tells what it gained; its intervals stay"
    return (
        f"median time error {row['median_ape_before']:.1%} before, {row['median_ape_held_out']:.1%} after,"
        " held out by shape"
    )
