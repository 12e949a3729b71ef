"""``seer trace iteration``: predicted beside measured iterations, of one trace or of all ranks of a run."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import COUNT, GPU, INDEX, OUT, PATH, Form, option, output_options, show
from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from surrogate.trace.events.tables import Trace

COLUMNS = (
    *("label", "measured_us", "predicted_us", "error_pct", "unprofiled_us", "alone_us", "host_us", "device_us"),
    "coverage",
)
"""Columns that people see."""


@click.command()
@shared.files_argument
@option("--gpu", "Predict for this GPU; the host stays the traced one.", GPU)
@option("--batch", "Predict for this batch size.", COUNT)
@option(
    "--times",
    "Kernel times of the trace, or predicted [measured; surrogate for another GPU or batch].",
    ("measured", "surrogate"),
)
@option("--overheads overheads_file", "Host overheads of another trace, as --save-overheads writes them.", PATH)
@option("--save-overheads", "Write the host overheads, and the laws of ranks' collectives, as JSON.", OUT)
@option("--leave-one-out", "Overheads of each iteration from the other ones.", is_flag=True)
@option("--iteration", "Only this one.", INDEX, metavar="K")
@shared.bundle_option
@shared.top_option
@output_options
def command(
    files: tuple[Path, ...],
    overheads_file: Path | None,
    save_overheads: Path | None,
    iteration: int | None,
    top: int | None,
    form: Form,
    **settings: object,
) -> None:
    """Predicted beside measured iterations of a trace, time by operator, and what the trace does not say.

    The host walks its operators with overheads T1 to T5 (Lin et al.), the device their kernels. Sizes that the trace
    lacks are listed; those kernels keep their measured time and count against the coverage. --top limits the operators.
    On another GPU a kernel takes its measured time, changed as predictions or the GPUs' rates do.

    predicted_us has the profiler's own cost in it, as measured_us has, and follows the iterations before; unprofiled_us
    is without that cost; alone_us is one iteration by itself without it: the host or the device, whichever ends later.

    Several FILES, a folder or a .tar.gz of them, are the ranks of one run: a row each, where a collective ends when the
    last rank has reached it. Predicted ones go by a law fitted on those of other sizes, or by that of --overheads.

    Examples:
      seer trace iteration trace.json.gz --leave-one-out
      seer trace iteration trace.json.gz --gpu a100-sxm4-40gb
      seer trace iteration ranks/ --times surrogate
    """
    from surrogate.trace.iteration.overheads import load_overheads
    from surrogate.trace.iteration.predict import iteration_times

    part = shared.TracePart()
    traces = part.files(files)
    settings["overheads"] = load_overheads(overheads_file) if overheads_file else None
    if len(traces) > 1:
        if iteration is not None:
            raise InputError(f"{len(traces)} ranks go together; --iteration is for one trace")
        _show_ranks([part.of(file) for file in traces], settings, save_overheads, top, form)
        return
    result = iteration_times(part.of(traces[0]), iteration=iteration, **settings)
    if save_overheads:
        result.overheads.save(save_overheads)
    rows = [asdict(row) for row in result]
    table = shared.columns_of(rows, COLUMNS, title=result.table().title)
    show(rows, form, json_value=result.to_dict(), table=table)
    if form:
        return
    for title, parts in (
        ("Operators, mean of the iterations", result.operators[:top]),
        ("Kept as measured, for the trace lacks", result.unknown),
    ):
        if parts:
            click.echo(f"\n{title}")
            show([asdict(part) for part in parts])
    for note in result.notes:
        click.echo(note)


def _show_ranks(
    traces: "Sequence[Trace]", settings: dict[str, object], save_overheads: Path | None, top: int | None, form: Form
) -> None:
    """A row per rank, then the collectives that hold them together."""
    from surrogate.trace.iteration.ranks import rank_times

    ranks = rank_times(traces, **settings)
    if save_overheads:
        ranks.overheads.save(save_overheads)
    columns = [name for name in ranks.ranks.rows[0] if name != "trace"]
    table = shared.columns_of(ranks.ranks.rows, columns, title=ranks.ranks.title)
    show(ranks.ranks.rows, form, json_value=ranks.to_dict(), table=table)
    if not form:
        click.echo(f"\n{ranks.collectives.title}")
        show(ranks.collectives.top(top).rows)
