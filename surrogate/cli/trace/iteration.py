"""``seer trace iteration``: iteration times from host overheads and kernel times."""

from dataclasses import asdict
from pathlib import Path

import click

from surrogate.cli.options import output_options, show
from surrogate.cli.trace.options import file_argument, load, top_option

_NARROW = (
    "label", "measured_us", "predicted_us", "error_pct", "unprofiled_us", "alone_us", "host_us", "device_us",
    "coverage",
)  # fmt: skip


@click.command()
@file_argument
@click.option("--gpu", metavar="G", help="Predict for this GPU; the host stays the traced one.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Predict for this batch size.")
@click.option(
    "--times",
    type=click.Choice(["measured", "surrogate"]),
    help="Kernel times of the trace, or predicted [measured; surrogate for another GPU or batch].",
)
@click.option(
    "--overheads",
    "overheads_file",
    type=click.Path(path_type=Path),
    help="Host overheads of another trace, as --save-overheads writes them.",
)
@click.option(
    "--save-overheads", type=click.Path(path_type=Path), help="Write this trace's host overheads as JSON."
)
@click.option("--leave-one-out", is_flag=True, help="Overheads of each iteration from the other ones.")
@click.option("--iteration", type=click.IntRange(min=0), metavar="K", help="Only this one.")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="Fitted model of convolutions, a folder; else the shipped one.",
)
@click.option(
    "--execution-trace",
    type=click.Path(path_type=Path),
    help="A PyTorch execution trace of the same program: adds shapes.",
)
@top_option
@output_options
def command(
    file: Path,
    gpu: str | None,
    batch: int | None,
    times: str | None,
    overheads_file: Path | None,
    save_overheads: Path | None,
    leave_one_out: bool,
    iteration: int | None,
    bundle: Path | None,
    execution_trace: Path | None,
    top: int | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Predicted beside measured iterations of FILE, time by operator, and what the trace does not say.

    The host walks its operators with overheads T1 to T5 (Lin et al.), the device their kernels. Sizes that the trace
    lacks are listed; those kernels keep their measured time and count against the coverage. --top limits the operators.
    """
    from surrogate.trace.iteration import iteration_times, load_overheads

    given = load_overheads(overheads_file) if overheads_file else None
    found = iteration_times(
        load(file, execution_trace=execution_trace),
        times=times,
        gpu=gpu,
        batch=batch,
        overheads=given,
        leave_one_out=leave_one_out,
        iteration=iteration,
        bundle=bundle,
    )
    if save_overheads:
        found.overheads.save(save_overheads)
    rows = [asdict(one) for one in found]
    if as_json or as_csv:
        show(rows, as_json=as_json, as_csv=as_csv, whole=found.to_dict())
        return
    click.echo(found.table.title)
    show([{key: row[key] for key in _NARROW} for row in rows], as_json=False, as_csv=False)
    click.echo("\nOperators, mean of the iterations")
    show([asdict(one) for one in found.operators[:top]], as_json=False, as_csv=False)
    if found.unknown:
        click.echo("\nKept as measured, for the trace lacks")
        show([asdict(one) for one in found.unknown], as_json=False, as_csv=False)
    for note in found.notes:
        click.echo(note)
