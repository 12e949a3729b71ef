"""``seer calibrate``: adapt a bundle to a GPU from a few measurements, or choose what to measure for it."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from surrogate.cli.options import BUNDLE_OR_FILE, PATH, declared, output_option, rows_options, said, seed_option
from surrogate.dataset.files import STDOUT, require_writable
from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Bundle
    from surrogate.dataset.store import Dataset


@click.command()
@click.argument("bundle")
@click.argument("data", nargs=-1, type=PATH)
@declared("calibrate")
@rows_options
@seed_option
@output_option("The bundle, or the plan, to write.", kind=BUNDLE_OR_FILE)
def command(
    bundle: str,
    data: tuple[Path, ...],
    count: int | None,
    gpu: str | None,
    library: str | None,
    problems: Path | None,
    candidates: str | None,
    where: tuple[str, ...],
    seed: int,
    output: Path,
) -> None:
    """Correct the times of BUNDLE on the GPUs of DATA, from at least 10 measured problems each.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it (the vendor's, for one never measured). Times
    on other GPUs stay as they are. Intervals come from held-out shapes. A bundle of a kernel of your own, which holds
    the table that it was fitted on, is fitted again with any number of new rows.

    Examples:
      seer calibrate bundle --plan 30 --gpu "RTX 4090" -o plan.jsonl
      seer collect --device cudnn --plan plan.jsonl -o run.jsonl
      seer data merge run.jsonl -o run.parquet
      seer calibrate bundle run.parquet -o calibrated
    """
    from surrogate.cli.datasets import load_all
    from surrogate.prediction.shipped import as_bundle

    if count is None:
        if gpu or problems:
            raise InputError("--gpu and --problems go with --plan N; DATA names its GPUs itself")
        if output == STDOUT:
            raise InputError("a bundle is a folder; name one with -o")
        if not data:
            raise InputError("no DATA; give measurements, or --plan N --gpu G to choose what to measure")
        require_writable(output, "replaced")
        _calibrate(known := as_bundle(bundle), load_all(data, candidates, where, known.kernel), seed, output)
    else:
        if data:
            raise InputError("--plan chooses problems before anything is measured; leave DATA out")
        if not gpu:
            raise InputError("--plan needs --gpu G, the GPU that will measure; `seer gpus` lists them")
        require_writable(output)
        _plan(as_bundle(bundle), gpu, count, problems, library=library, seed=seed, output=output)


def _calibrate(fitted: "Bundle", measured: "Dataset", seed: int, output: Path) -> None:
    from surrogate.bundle.bundle import save
    from surrogate.cli.datasets import progress_bar
    from surrogate.prediction.calibrate import calibrate

    with progress_bar("calibrate") as step:
        calibrated = calibrate(fitted, measured, seed=seed, progress=step)
    save(calibrated, output)
    for device, row in sorted(calibrated.card["calibration"].items()):
        click.echo(
            f"{output}: {device}, {row['problems']} problems of {row['shapes']} shapes; {_change(row)}"
            f" ({row['method']})"
        )


def _change(row: Mapping[str, object]) -> str:
    """The median time error before and after, where the model had not been trained on all of the rows."""
    if row["median_ape_before"] is None:
        return "all of them were in the bundle's training, so nothing tells what it gained; its intervals stay"
    return (
        f"median time error {row['median_ape_before']:.1%} before, {row['median_ape_held_out']:.1%} after,"
        " held out by shape"
    )


def _plan(
    fitted: "Bundle", gpu: str, count: int, problems: Path | None, *, library: str | None, seed: int, output: Path
) -> None:
    """Choose ``count`` problems, of a file or of all kinds, and write them as a plan."""
    from surrogate.bundle.plan import plan_calibration, write_plan
    from surrogate.cli.datasets import progress_bar
    from surrogate.collect.plan_source import file_problems
    from surrogate.prediction.calibrate import LEAST_PROBLEMS

    given = file_problems(problems) if problems else None
    with progress_bar("plan", "problem") as step:
        chosen = plan_calibration(fitted, gpu, count, given, library=library, seed=seed, progress=step)
    write_plan(chosen, output)
    need = f"; `seer calibrate` needs {LEAST_PROBLEMS} measured ones" if len(chosen) < LEAST_PROBLEMS else ""
    said(
        output,
        f"{output}: {len(chosen)} problems; measure them with"
        f" `seer collect --plan {quote(str(output))} --device cudnn -o run.jsonl`{need}",
    )
