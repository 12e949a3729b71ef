"""``seer trace summary``: the bound of a step, a comparison of ranks, or one model at several batch sizes."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import COUNT, HELP, option
from surrogate.features.errors import InputError, read_toml

if TYPE_CHECKING:
    from surrogate.trace.events.tables import Trace
    from surrogate.trace.profiling import Profile
    from surrogate.trace.result import ResultTable

FIGURES: dict[str, list[str]] = read_toml(__file__)
"""Figure → the part of the trace that it covers, and its meaning, in the order of display."""
_CAUSES = 8
"""Displayed rows of the causes of idle time; one more row has the sums of all others."""
SWEEP_COLUMNS = ("trace", "gpu", "batch", "iteration_ms", "samples_per_s", "busy_pct", "kernel_ms", "best")
"""Displayed columns of several batch sizes."""


@click.command()
@shared.files_argument
@shared.part_options
@option("--by", HELP["trace summary"]["by"], ("model", "layer", "type", "label", "copy"), default="model")
@option("--batch", "Batch size of each file, if shapes do not show it; repeatable.", COUNT, multiple=True)
@shared.gpu_option
@shared.table_options
def command(
    files: tuple[Path, ...], by: str, batch: Sequence[int], gpu: str | None, out: shared.Output, part: shared.TracePart
) -> None:
    """Show the bound of a trace's step: the device, the host, communication or copies.

    Then follow iteration times, the device's busy time, the causes of its idle time, layer types and copies. Findings
    end the summary. Each is a change to the program, with its evidence and its gain in a simulation.

    Several FILES, or a folder or .tar.gz of them, may be ranks of one run. Then a row per rank shows the device's
    activity and how much communication overlaps with compute. The rank that the others wait for is named. Other FILES,
    or FILES with --batch, are one model at several batch sizes. Then a row per file shows the throughput, and the best
    batch is marked.

    Examples:
      seer trace summary trace.json.gz --html profile.html
      seer trace summary ranks/
      seer trace summary b8.json b16.json b32.json
    """
    from surrogate.trace import tables
    from surrogate.trace.labels import label_table
    from surrogate.trace.profiling import profile, renamed_note, steady

    trace_files = part.files(files)
    if len(trace_files) > 1 and (by != "model" or out.html):
        table = f"{len(trace_files)} traces make a table of ranks or batch sizes"
        raise InputError(f"{table}; give one trace with {'--html' if out.html else f'--by {by}'}")
    in_headline = by == "model" and len(trace_files) == 1 and not out.form
    traces = [part.of(file, (lambda trace: trace.notes) if in_headline else None) for file in trace_files]
    if len({trace.rank for trace in traces} - {None}) == len(traces) > 1 and not batch:
        _show_ranks(traces, out)
        return
    profiles = [steady(profile(trace, gpu)) for trace in traces]
    shared.echo_notes(filter(None, map(renamed_note, profiles)))
    if len(profiles) > 1:
        sweep = tables.batch_sweep(profiles, batch).top(out.top)
        if not batch and len({row["batch"] for row in sweep}) < len(sweep):
            shared.echo_notes([tables.TEXTS["notes"]["no_ranks"]])
        shared.show(sweep.rows, out.form, table=shared.columns_of(sweep.rows, SWEEP_COLUMNS))
        return
    (profiled,) = profiles
    out.write_page(profiled)
    if by != "model":
        kinds = {"layer": tables.layer_table, "type": tables.type_table, "label": label_table}
        table = kinds.get(by, tables.copy_table)(profiled).top(out.top)
        shared.show(table.rows, out.form, table=shared.display_table(table))
        return
    _show_summary(profiled, batch, out)


def _show_summary(profiled: "Profile", batch: Sequence[int], out: shared.Output) -> None:
    """Print the bound of a step, figures of the whole model, its layer types and copies, and the findings."""
    from surrogate.trace import tables
    from surrogate.trace.findings import find_all, format_findings, is_judged
    from surrogate.trace.idle import idle_table
    from surrogate.trace.labels import label_table
    from surrogate.trace.result import ResultTable

    facts = tables.summary(profiled, *batch[:1])
    findings, unchecked = ([], "") if out.form == "csv" else find_all(profiled)
    idle, listed = idle_table(profiled), (label_table, tables.type_table, tables.copy_table)
    labels, types, copies = (table(profiled).top(out.top) for table in listed)
    if out.form:
        listed = {"idle": list(idle), "labels": list(labels), "types": list(types), "copies": list(copies)}
        advice = {"findings": [finding.to_dict() for finding in findings], "not_looked_for": unchecked}
        steps = list(tables.step_table(profiled))
        shared.show([facts], out.form, json_value={"summary": facts, "steps": steps, **listed, **advice})
        return
    if head := tables.headline(facts):
        shared.echo(*head.split("\n"), "")
    has_device = len(profiled.trace.activities) > 0
    values = {key: value for key, value in facts.items() if key not in ("bound", "notes") and (has_device or value)}
    figures = tuple(
        {"figure": key, "value": values[key], "of": part, "is": meaning}
        for key, (part, meaning) in FIGURES.items()
        if values.get(key) is not None
    )
    shared.show([{"of the trace": key, "value": values[key]} for key in values if key not in FIGURES])
    shared.echo("")
    shared.show(figures, table=ResultTable("", figures).table())
    for table in (_shortened(idle, out.top or _CAUSES), labels, types, copies):
        if len(table):
            shared.echo("")
            keys = list(table.rows[0])
            filled = {key for key in keys if any(row[key] for row in table)}
            columns = [key for key in keys if (key != "backward_host_us" if has_device else key in filled)]
            shared.show(table.rows, table=shared.display_table(table, columns))
    shared.echo("", *format_findings(findings, unchecked, evaluated=is_judged(profiled)).split("\n"))


def _shortened(idle: "ResultTable", count: int) -> "ResultTable":
    """Return the longest causes of idle time, and a row with the sums of the others."""
    others = idle.rows[count:]
    if not others:
        return idle
    sums = {name: sum(row[name] for row in others) for name in others[0] if name not in ("cause", "name")}
    last = {"cause": "others", "name": f"{len(others):,} cause{'s' * (len(others) > 1)}", **sums}
    return replace(idle, rows=(*idle.rows[:count], last))


def _show_ranks(traces: "Sequence[Trace]", out: shared.Output) -> None:
    """Print a row per rank, then the collectives in which the others wait."""
    from surrogate.trace.findings import TEXTS, format_findings, straggler
    from surrogate.trace.iteration.ranks import rank_summary

    compared = rank_summary(traces)
    found = straggler(compared)
    shared.echo_notes(compared.notes)
    rows = compared.ranks[: out.top]
    columns = [
        name for name in rows[0] if not name.startswith(("trace", "non_", "kernel_", "other_", "iter", "steps_"))
    ]
    table = shared.columns_of([*rows, *compared.spread()], columns, title=compared.title, references=2)
    findings = [found] if found else []
    shared.show(
        rows, out.form, json_value=asdict(compared) | {"findings": [each.to_dict() for each in findings]}, table=table
    )
    if compared.collectives and not out.form:
        shared.echo("", "Collectives: the last rank to reach each, and the others' mean wait for it")
        shared.show(compared.collectives)
    if findings and not out.form:
        shared.echo("", *format_findings(findings, step=TEXTS["ranks_step"]).split("\n"))
