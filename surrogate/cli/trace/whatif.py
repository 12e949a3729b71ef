"""``seer trace whatif``: the gain of optimisations; help lists all declared what-ifs.

``seer trace simulate``: the replay of a trace, compared with the measured times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import COUNT, GPU, HELP, NOT_NEGATIVE, OUT, POSITIVE, Form, option, output_options
from surrogate.features.errors import InputError, UnknownGpuError
from surrogate.report.tables import format_value, interval_us

if TYPE_CHECKING:
    from surrogate.trace.whatif import WhatIf


class WhatIfCommand(click.Command):
    """A command with a help that also lists the what-ifs, and imports them for this."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the what-ifs, then the options."""
        from surrogate.trace.whatif import help_texts

        with formatter.section("WHAT-IF"):
            formatter.write_dl(list(help_texts().items()))
        super().format_options(ctx, formatter)


@click.command(cls=WhatIfCommand)
@shared.file_argument
@click.argument("what_ifs", nargs=-1, metavar="WHAT-IF…")
@shared.part_options
@option("--gpu", "The target GPU, like gpu=G.", GPU)
@option("--own-gpu", "The GPU of the trace, if it names none or another.", GPU)
@option("--workers", "GPUs of data-parallel.", COUNT, default=8)
@option("--bandwidth bandwidth_gbs", "Bandwidth of a machine's network.", POSITIVE, default=10.0, metavar="GB/s")
@option("--latency latency_us", "Latency of a network step in µs.", NOT_NEGATIVE, default=10.0, metavar="US")
@option("--gpus-per-machine", "GPUs of each machine.", COUNT, default=1)
@option("--link-bandwidth link_gbs", "Bandwidth between a machine's GPUs.", POSITIVE, default=150.0, metavar="GB/s")
@option("--all-reduce algorithm", HELP["trace whatif"]["all-reduce"], ("ring", "tree", "hierarchical"), default="ring")
@shared.bundle_option
@option("--function functions", HELP["trace whatif"]["function"], multiple=True, metavar="MODULE:CALLABLE")
@option("--together", "Also all what-ifs at once, in the given order.", is_flag=True)
@option("--timeline", "Write the timeline of the last answer, for Perfetto.", OUT)
@output_options
def command(
    file: Path,
    what_ifs: tuple[str, ...],
    functions: tuple[str, ...],
    timeline: Path | None,
    form: Form,
    part: shared.TracePart,
    **settings: Any,
) -> None:
    """Predict the time per iteration of FILE with each WHAT-IF, and compare it with the traced time.

    Times are the mean over iterations, from the end of one iteration to the end of the next. summary and diff have the
    median from start to end. If device work ends after the host, only the part that the WHAT-IF adds is counted. If the
    device falls further behind the host in each iteration, iterations end with the device's work. throughput (speedup
    in JSON) compares the samples per second of one GPU, and all_gpus of all GPUs with one before. A warm-up is left
    out; --iteration chooses other iterations. A WHAT-IF that does not apply to FILE is a row with the reason and
    without figures. The exit status is 0 if one is answered, else 2; an unknown WHAT-IF ends the command with 2.

    Examples:
      seer trace whatif trace.json.gz amp fused-optimizer cuda-graphs
      seer trace whatif trace.json.gz gpu=h100 batch=64 --timeline h100.json
    """
    from surrogate.trace.graph import graph_of
    from surrogate.trace.result import deduplicated
    from surrogate.trace.whatif import Interconnect, evaluate, setting_of, write_timeline

    gpu, own_gpu, bundle, together = map(settings.pop, ("gpu", "own_gpu", "bundle", "together"))
    chosen = _requested(what_ifs, functions, gpu)
    refusals: dict[str, str] = {}
    profiled = part.steady(file, own_gpu)
    setting = setting_of(profiled, target=gpu, network=Interconnect(**settings), bundle=bundle)
    graph = graph_of(profiled.trace, profiled.layers)
    answers = evaluate(graph, chosen, setting, together=together, refusals=refusals)
    if not answers:
        if form:
            shared.show([{"name": name, "refused": reason} for name, reason in refusals.items()], form)
        raise InputError("; ".join(dict.fromkeys(refusals.values())))
    if timeline is not None:
        write_timeline(answers[-1].predicted, timeline, answers[-1].name)
    answered = {answer.name: answer.to_dict() for answer in answers}
    # A what-if that does not apply is a row without figures, in the requested order.
    empty: dict[str, Any] = dict.fromkeys(answered[answers[0].name])
    reasons = {name: reason.removeprefix(f"{name}: ") for name, reason in refusals.items()}
    names = dict.fromkeys([*(what_if.label for what_if in chosen), *answered, *reasons])
    rows = [{**answered.get(name, empty), "name": name, "refused": reasons.get(name)} for name in names]
    if form:
        flat = [name for name, value in answers[0].to_dict().items() if not isinstance(value, dict | list)]
        shared.show(rows if form == "json" else shared.columns_of(rows, [*flat, "refused"]).records, form)
        return
    cells = [_cells(row) for row in rows]
    filled = [name for name in cells[0] if any(row[name] != format_value(None) for row in cells)]
    count = len(graph.iterations)
    title = f"Mean of {count} iterations, from one's end to the next one's; summary has the median, from start to end"
    shared.show(cells, table=replace(shared.columns_of(cells, filled, title * (count > 1)), widest=shared.line_width()))
    shared.echo(*deduplicated(remark for row in rows for remark in _remarks(row)))


def _requested(what_ifs: Sequence[str], functions: Sequence[str], gpu: str | None) -> "list[WhatIf]":
    """Return the what-ifs in the given order. Raises `InputError` for an unknown name, value or GPU."""
    from surrogate.trace.whatif import WHAT_IF_RULES, user_function

    chosen = [_parsed(text) for text in what_ifs or ("gpu",) * bool(gpu and not functions)]
    chosen += map(user_function, functions)
    if not chosen:
        raise InputError(f"no what-if given; name at least one of {', '.join(WHAT_IF_RULES)}")
    if gpu and (with_gpu := next((what_if for what_if in chosen if what_if.target), None)):
        raise InputError(f"--gpu {gpu} and {with_gpu.label} name a GPU each; write gpu={gpu} instead of --gpu")
    if gpu and not any(getattr(WHAT_IF_RULES.get(each.name), "takes_gpu", False) for each in chosen):
        shared.echo_notes([f"--gpu {gpu} changes none of these answers; add gpu={gpu}"])
    return list({what_if.label: what_if for what_if in chosen}.values())


def _remarks(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the remarks on an answer, each with the answer's name, for the lines below the table."""
    if row["refused"]:
        return [(row["name"], f"refused: {row['refused']}")]
    assumes = [f"assumes {part}" for part in (row["assumes"] or "").split("; ") if not row["name"].endswith(part)]
    return [(row["name"], note) for note in (*assumes, *row["notes"], row["evidence"])]


def _parsed(text: str) -> "WhatIf":
    """Return the what-if of a text. The error for another tool's name, or for a GPU, suggests the what-if."""
    from surrogate.features.gpu import gpu
    from surrogate.trace.whatif import WHAT_IF_RULES, what_if

    suggestion = shared.SUGGESTIONS.get(text.lower().replace("_", "-"))
    if text.partition("=")[0] in WHAT_IF_RULES:
        return what_if(text)
    if suggestion is None:
        try:
            suggestion = f"gpu={gpu(text).name}"
        except UnknownGpuError:
            return what_if(text)
    raise InputError(f"what-if {text!r} is unknown; use {suggestion}")


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return an answer's displayed cells: an interval, and the values before and after, in a cell each."""

    def ends(low: str, high: str) -> str:
        return format_value(None) if row[low] is None else interval_us((row[low], row[high]))

    cells = {"name": str(row["name"]), **{name: format_value(row[name]) for name in ("baseline_us", "predicted_us")}}
    speedup = row["speedup"]
    cells |= {"throughput": format_value(None) if speedup is None else f"{format_value(speedup)}×"}
    several = f" of {row['gpus']} GPUs" if row["gpus"] and row["gpus"] > 1 else ""
    efficiency = f"{format_value(row['speedup_all_gpus'])}×{several} ({100 * (speedup or 0.0):.3g} %)"
    cells |= {"all_gpus": efficiency if several else format_value(None)}
    cells |= {"interval_us": ends("low_us", "high_us"), "interval_device_us": ends("device_low_us", "device_high_us")}
    for name in ("device_us", "samples_per_s", "bound"):
        values = [format_value(row[f"{name}_{when}"]) for when in ("before", "after")]
        cells[name] = " → ".join(values).replace(f"{format_value(None)} → {format_value(None)}", format_value(None))
    cells["samples_per_s"] += several if row["samples_per_s_after"] else ""
    return cells


@click.command()
@shared.file_argument
@shared.part_options
@output_options
def simulate(file: Path, form: Form, part: shared.TracePart) -> None:
    """Compare measured and simulated time of every iteration of FILE, without a change.

    A task starts when all tasks that it depends on have ended. --json also gives the coverage: tasks without a launch,
    and waits that the trace does not explain. A replay keeps these waits. A warm-up is left out; --iteration chooses
    other iterations.

    Examples:
      seer trace simulate trace.json.gz --json
    """
    from surrogate.trace import graph as graphs

    profiled = part.steady(file, None)
    graph = graphs.graph_of(profiled.trace, profiled.layers)
    timeline = graphs.simulate(graph)
    rows = [
        {"index": iteration.index, "measured_us": iteration.time_us, "simulated_us": time_us}
        for iteration, time_us in zip(graph.iterations, timeline.iteration_us(), strict=False)
    ]
    path = graphs.critical_path(timeline)
    coverage = graph.coverage
    serial = graphs.serialised_pct(timeline)
    path_us = {**path.by_kind_us, "waiting": path.waiting_us}
    json_value = {"iterations": rows, "coverage": coverage, "critical_path_us": path_us}
    json_value["serialised_pct"] = serial if serial == serial else None
    shared.show(rows, form, json_value=json_value)
    if form:
        return
    attached = "{attached_pct:.4g} % of {device_tasks:,} device tasks follow a launch".format_map(coverage)
    unexplained = "{unexplained_us:,.0f} µs of waits unexplained ({unexplained_tasks})".format_map(coverage)
    on_device = attached if coverage["device_tasks"] else "none of them on a device"
    shared.echo(f"{len(graph):,} tasks; {on_device}; {unexplained}")
    parts = ", ".join(f"{name} {time / 1e3:,.1f}" for name, time in path_us.items())
    shared.echo(f"critical path in ms: {parts}")
