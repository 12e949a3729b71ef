"""What the trace commands share: reading a file, cutting out a part of it, printing its notes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.completion import gpu_names

if TYPE_CHECKING:
    from surrogate.trace.events import Trace

file_argument = click.argument("file", type=click.Path(path_type=Path))
top_option = click.option("--top", type=click.IntRange(min=1), metavar="K", help="Only the first K rows.")
gpu_option = click.option(
    "--gpu",
    metavar="G",
    shell_complete=gpu_names,
    help="The GPU whose peaks count, where the trace names none or another.",
)
html_option = click.option(
    "--html", "html", type=click.Path(path_type=Path), help="Also write everything as one HTML file."
)


def part_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a part of the trace; the command passes them on to `load` as keywords."""
    for option in (
        click.option(
            "--max-bytes", type=click.IntRange(min=1), help="Most bytes a packed trace may unpack to [2 GiB]."
        ),
        click.option(
            "--execution-trace",
            type=click.Path(path_type=Path),
            help="A PyTorch execution trace of the same program: adds shapes.",
        ),
        click.option("--device", type=click.IntRange(min=0), metavar="N", help="Only this GPU's activities."),
        click.option("--to", "to_ms", type=float, metavar="MS", help="Only what starts before this time."),
        click.option(
            "--from", "from_ms", type=float, metavar="MS", help="Only what starts at this time or later."
        ),
        click.option(
            "--iteration",
            type=click.IntRange(min=0),
            multiple=True,
            metavar="N",
            help="Only this one; repeatable.",
        ),
    ):
        function = option(function)
    return function


def load(
    path: Path,
    *,
    iteration: Sequence[int] = (),
    from_ms: float | None = None,
    to_ms: float | None = None,
    device: int | None = None,
    execution_trace: Path | None = None,
    max_bytes: int | None = None,
) -> "Trace":
    """The chosen part of the trace in ``path``; its notes go to standard error, a line each."""
    from surrogate.trace.events import trim, with_execution_trace

    trace = _read(path, max_bytes)
    if execution_trace is not None:
        trace = with_execution_trace(trace, execution_trace)
    for note in trace.notes:
        click.echo(f"seer: {path}: {note}", err=True)
    for category, count in sorted(trace.ignored.items()):
        click.echo(f"seer: {path}: {count:,} events of {category} are not used", err=True)
    return trim(
        trace,
        iterations_kept=iteration or None,
        from_us=None if from_ms is None else from_ms * 1e3,
        to_us=None if to_ms is None else to_ms * 1e3,
        gpu=device,
    )


def _read(path: Path, max_bytes: int | None) -> "Trace":
    """The trace, with a bar on standard error while a large one is read."""
    from tqdm import tqdm

    from surrogate.trace.events import read_trace

    with tqdm(
        desc=path.name, unit="B", unit_scale=True, disable=None, leave=False, dynamic_ncols=True, delay=1.0
    ) as bar:

        def step(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return read_trace(path, max_bytes=max_bytes, progress=step)
