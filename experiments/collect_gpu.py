"""A GPU's measuring campaign, in slices that end by themselves: ``python -m experiments.collect_gpu``.

Each slice is a run of its own: it stops within its minutes, and the same command goes on with it. Slice 0 tells what
the GPU can do (PROBE.md); 1 to 5 measure convolutions; 6 other operators. ``--device cpu`` runs every slice on this
CPU, with few problems, before a GPU is there.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import click

from experiments.campaign.context import Context
from experiments.campaign.convolutions import SliceReport, run_convolutions, run_operators
from experiments.campaign.probe import run_probe
from experiments.campaign.slices import SLICES, Kind, Slice, chosen
from surrogate.collect.device import DeviceLostError
from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError

RUNNERS: dict[Kind, Callable[[Slice, Context], SliceReport]] = {
    Kind.PROBE: run_probe,
    Kind.CONVOLUTIONS: run_convolutions,
    Kind.OPERATORS: run_operators,
}
LISTED = "\b\n" + "\n".join(f"{one.number}  {one.title}" for one in SLICES.values())


@click.command(help=f"{__doc__}\n\nSlices:\n\n{LISTED}")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where to write."
)
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
    try:
        wanted = chosen(slices)
        out.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError) as error:
        raise click.exceptions.Exit(_fail(str(error))) from None
    context = Context(out, minutes, device, seed, problems, earlier)
    failed = [one for one in wanted if not _run(one, context)]
    raise click.exceptions.Exit(1 if failed else 0)


def _run(one: Slice, context: Context) -> bool:
    """Run one slice and write its summary; False where it failed. The next slice runs all the same."""
    try:
        with _bar(one) as progress:
            report = RUNNERS[one.kind](one, replace(context, progress=progress))
    except (InputError, DeviceLostError, OSError) as error:
        _fail(f"slice {one.number}: {' '.join(str(error).split())}")
        return False
    write_text(context.out / f"{one.stem}.json", json.dumps(asdict(report), indent=1) + "\n")
    click.echo(report.line())
    for note in report.notes:
        click.echo(f"  {note}", err=True)
    return not report.stopped or "time" in report.stopped


@contextmanager
def _bar(one: Slice) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error, silent where that is no terminal."""
    from tqdm import tqdm

    with tqdm(desc=one.stem, unit="problem", disable=None, dynamic_ncols=True) as bar:

        def progress(done: int, total: int, _problem: str) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def _fail(message: str) -> int:
    """Tell the one line of an error; returns a user error's exit status."""
    click.echo(f"collect_gpu: {message}", err=True)
    return 2


if __name__ == "__main__":
    main()
