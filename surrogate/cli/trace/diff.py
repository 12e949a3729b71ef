"""``seer trace diff``: two traces of one program compared."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import INDEX, PATH, Form, option, output_options, show
from surrogate.report.tables import Table, terminal_width, wrapped

_BETWEEN_NAMES = re.compile(r"( → | and \d+ more(?= → |$))")


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@shared.part_options
@option("--iteration-b", "Only this one of B, in place of --iteration; repeatable.", INDEX, multiple=True)
@option("--by", "[operator, type or kernel: what matches most]", ("layer", "type", "operator", "kernel"))
@shared.top_option
@output_options
def command(
    a: Path, b: Path, iteration_b: tuple[int, ...], by: str | None, top: int | None, form: Form, part: shared.Part
) -> None:
    """Device time per iteration in A and in B, the same program on another GPU, in another version or setting.

    How much matches by what, and whether these seem to be different programs. Then totals: the median iteration, else
    means, busy and idle between an iteration's start and end. Then a row for all that matches, by name and shape, else
    by shape, by order or by the operator's name alone (kernels: by name, by operator, by family), and for what stands
    only in A or only in B, the largest change first. The changes of all rows add up to that of the device time.

    Examples:
      seer trace diff v100.json.gz h100.json.gz --by operator --top 20
      seer trace diff trace.json.gz trace.json.gz --iteration 1 --iteration-b 3
    """
    from surrogate.trace.diff import trace_diff
    from surrogate.trace.result import short_names

    whole = replace(part, iteration=())  # iterations are chosen when both traces are there
    compared = trace_diff(whole.load(a), whole.load(b), by, (part.iteration, iteration_b or part.iteration))
    rows = compared.rows[:top]
    if form:
        shared.echo_notes(compared.notes)
    else:
        click.echo("\n".join(wrapped(note, terminal_width()) for note in compared.notes) + "\n")
        click.echo(Table(compared.totals, title="A before, B after, µs per iteration").text(terminal_width()) + "\n")
    table = Table(rows)
    if compared.by == "kernel":
        short = short_names(name for row in rows for name in _BETWEEN_NAMES.split(row["kernel"])[::2])

        def shown(both: str) -> str:
            return "".join(short.get(part, part) for part in _BETWEEN_NAMES.split(both))

        table = replace(table, formats={"kernel": shown}, widest=shared.PIPE_WIDTH)
    show(rows, form, whole=asdict(compared) | {"rows": rows}, table=table)
