"""A GPU's measuring campaign, in slices that end by themselves: ``python -m experiments.collect_gpu``.

Each slice is a run of its own: it stops within its minutes, and the same command goes on with it. Slice 0 tells what
the GPU can do (PROBE.md); 1 to 5 measure convolutions; 6 other operators. ``--device cpu`` runs all but the last on
this CPU, with few problems, before a GPU is there.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click

from experiments.campaign.context import Context
from experiments.campaign.convolutions import run_slice
from experiments.campaign.probe import run_probe
from experiments.campaign.slices import SLICES, Slice, chosen
from experiments.experiment import told
from surrogate.cli.datasets import progress_bar
from surrogate.collect.device import DeviceLostError
from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError

LISTED = "\b\n" + "\n".join(f"{one.number}  {one.title}" for one in SLICES.values())


@click.command(help=f"{__doc__}\n\nSlices:\n\n{LISTED}")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where to write.")
@click.option("--slices", default="0", show_default=True, metavar="LIST", help="As in 0,1 or 1-5.")
@click.option(
    "--minutes", default=7.5, show_default=True, type=click.FloatRange(min=0, min_open=True),
    help="Wall clock per slice.",
)  # fmt: skip
@click.option(
    "--device", default="cudnn", show_default=True, type=click.Choice(["cudnn", "cpu", "reference"]),
    help="cudnn measures on this GPU; cpu (also: reference) rehearses on this CPU.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=int, help="Draws problems and their order.")
@click.option("--problems", type=click.IntRange(min=1), help="Shapes per slice instead of its own number.")
@click.option(
    "--earlier", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the packed logs of an earlier part, to go on with.",
)  # fmt: skip
def main(
    out: Path, slices: str, minutes: float, device: str, seed: int, problems: int | None, earlier: Path | None
) -> None:
    """Run the slices in order."""
    with told("collect_gpu"):
        wanted = chosen(slices)
        out.mkdir(parents=True, exist_ok=True)
    context = Context(out, minutes, device, seed, problems, earlier)
    failed = [one for one in wanted if not _run(one, context)]
    sys.exit(1 if failed else 0)


def _run(one: Slice, context: Context) -> bool:
    """Run one slice and write its summary; False where it failed. The next slice runs all the same."""
    try:
        with progress_bar(one.stem, "problem") as progress:
            measure = run_probe if one.source == "probe" else run_slice
            report = measure(one, replace(context, progress=progress))
    except (InputError, DeviceLostError, OSError) as error:
        click.echo(f"collect_gpu: slice {one.number}: {' '.join(str(error).split())}", err=True)
        return False
    write_text(context.out / f"{one.stem}.json", json.dumps(asdict(report), indent=1) + "\n")
    click.echo(report.line())
    for note in report.notes:
        click.echo(f"  {note}", err=True)
    return not report.stopped or "time" in report.stopped


if __name__ == "__main__":
    main()
