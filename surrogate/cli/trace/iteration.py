"""``seer trace iteration``: predicted and measured iterations of one trace, or of all ranks of a run."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import COUNT, GPU, HELP, INDEX, OUT, PATH, Form, option, output_options
from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from surrogate.trace.events.tables import Trace

COLUMNS = (
    *("label", "measured_us", "predicted_us", "error_pct", "unprofiled_us", "alone_us", "host_us", "device_us"),
    "coverage",
)
"""Displayed columns."""


@click.command()
@shared.files_argument
@option("--gpu", "Predict for this GPU, with the host of the trace.", GPU)
@option("--batch", "Predict for this batch size.", COUNT)
@option("--times", HELP["trace iteration"]["times"], ("measured", "surrogate"))
@option("--overheads overheads_file", "Host overheads of another trace, written by --save-overheads.", PATH)
@option("--save-overheads", "Write host overheads, and the models of ranks' collectives, as JSON.", OUT)
@option("--leave-one-out", "Overheads of each iteration from the other iterations.", is_flag=True)
@option("--iteration", "Only this iteration.", INDEX, metavar="K")
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
    """Predict the iterations of a trace, compare them with measured ones, and list times by operator.

    The host runs its operators with overheads T1 to T5 (Lin et al.), and the device runs their kernels. Kernels without
    a prediction are listed, and reduce the coverage. They keep their measured time; on another GPU they follow rates.
    --top limits the operators. On another GPU, a kernel's measured time is scaled by predictions or by the GPUs' rates.

    Like measured_us, predicted_us includes the profiler's cost and is simulated after the iterations before.
    unprofiled_us excludes this cost. alone_us is a single iteration without this cost, up to the later end of host and
    device. A warm-up is left out; --iteration chooses any iteration.

    Several FILES, or a folder or .tar.gz of them, are the ranks of one run, with a row each. A collective ends when the
    last rank has reached it. Predicted collectives use a model fitted on other sizes, or the model of --overheads.

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
            raise InputError(f"{len(traces)} ranks are predicted together; leave out --iteration, or give one trace")
        _show_ranks([part.of(file) for file in traces], settings, save_overheads, top, form)
        return
    result = iteration_times(part.of(traces[0]), iteration=iteration, **settings)
    if save_overheads:
        result.overheads.save(save_overheads)
    rows = [asdict(row) for row in result]
    shared.show(
        rows, form, json_value=result.to_dict(), table=shared.columns_of(rows, COLUMNS, title=result.table().title)
    )
    if form:
        return
    for title, rows_of_part in (
        ("Operators, mean of the iterations", result.operators[:top]),
        (result.unknown_title, result.unknown),
    ):
        if rows_of_part:
            shared.echo("", title)
            shared.show([asdict(part) for part in rows_of_part])
    shared.echo(*result.notes)


def _show_ranks(
    traces: "Sequence[Trace]", settings: dict[str, object], save_overheads: Path | None, top: int | None, form: Form
) -> None:
    """Print a row per rank, then the collectives."""
    from surrogate.trace.iteration.ranks import rank_times

    ranks = rank_times(traces, **settings)
    if save_overheads:
        ranks.overheads.save(save_overheads)
    columns = [name for name in ranks.ranks.rows[0] if name != "trace"]
    table = shared.columns_of(ranks.ranks.rows, columns, title=ranks.ranks.title)
    shared.show(ranks.ranks.rows, form, json_value=ranks.to_dict(), table=table)
    if not form:
        shared.echo("", ranks.collectives.title)
        shared.show(ranks.collectives.top(top).rows)
