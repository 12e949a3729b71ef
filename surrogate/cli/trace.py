"""``seer trace``: what profiler traces say. Each command imports what it needs only when it runs."""

import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.groups import CommandGroup
from surrogate.cli.options import COUNT, FOLDER, GPU, OUT, PATH, choice_option, option, output_options, show
from surrogate.features.errors import InputError
from surrogate.report.tables import Table, terminal_width, wrapped

if TYPE_CHECKING:
    from surrogate.trace.events.tables import Trace
    from surrogate.trace.profiling import Profile
    from surrogate.trace.result import ResultTable

_KERNEL_COLUMNS = (  # the last ones go first where a line is too long
    "kernel", "time_pct", "total_us", "calls", "avg_us", "bound", "unit", "tflops", "dram_gbs", "occupancy_pct",
    "limited_by", "min_us", "max_us",
)  # fmt: skip
_COUNTER_COLUMNS = (
    "kernel", "time_pct", "total_us", "calls", "counted", "bound", "measured_bound", "occupancy_pct",
    "measured_occupancy_pct", "gflop", "measured_gflop", "dram_mb", "read_mb", "write_mb", "measured_flop_per_byte",
)  # fmt: skip
_PIPE_WIDTH = 160
_BETWEEN_NAMES = re.compile(r"( → | and \d+ more(?= → |$))")
_SPAN_COLUMNS = ("span", "level", "start_us", "time_us", "track", "id", "parent")
_SWEEP_COLUMNS = ("trace", "gpu", "batch", "iteration_ms", "samples_per_s", "busy_pct", "kernel_ms", "best")
_ITERATION_COLUMNS = (
    "label", "measured_us", "predicted_us", "error_pct", "unprofiled_us", "alone_us", "host_us", "device_us",
    "coverage",
)  # fmt: skip

_TRACES = (".json", ".json.gz", ".sqlite")

_file = click.argument("file", type=PATH)
_files = click.argument("files", nargs=-1, required=True, type=PATH)
_top = option("--top", "Only the first K rows.", COUNT, metavar="K")
_gpu = option("--gpu", "The GPU whose peaks count, where the trace names none or another.", GPU)
_html = option("--html", "Also write everything as one HTML file.", OUT)
_bundle = option("--bundle", "Fitted model of convolutions, a folder; else the shipped one.", PATH)
_execution_trace = option("--execution-trace", "A PyTorch execution trace of the same program: adds shapes.", PATH)
_INDEX = click.IntRange(min=0)
_PART = (
    option("--iteration", "Only this one; repeatable.", _INDEX, multiple=True, metavar="N"),
    option("--from from_ms", "Only what starts at this time or later.", float, metavar="MS"),
    option("--to to_ms", "Only what starts before this time.", float, metavar="MS"),
    option("--device", "Only this GPU's activities.", _INDEX, metavar="N"),
    _execution_trace,
    option("--max-bytes", "Most bytes a packed trace may unpack to [2 GiB].", COUNT),
)


def _part_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a part of the trace; the command passes them on to `_load` as keywords."""
    for declare in reversed(_PART):
        function = declare(function)
    return function


def _load(
    path: Path,
    *,
    iteration: Sequence[int] = (),
    from_ms: float | None = None,
    to_ms: float | None = None,
    device: int | None = None,
    execution_trace: Path | None = None,
    max_bytes: int | None = None,
) -> "Trace":
    """The chosen part of the trace in ``path``; its notes go to standard error, a line each.

    A trace out of an archive is called by both names. Raises `InputError` for a folder or an archive of several.
    """
    from surrogate.cli.datasets import progress_bar
    from surrogate.trace.events.execution import with_execution_trace
    from surrogate.trace.events.iterations import trim
    from surrogate.trace.events.read import DEFAULT_MAX_BYTES, read_trace

    files = _rank_files([path], max_bytes)
    if len(files) > 1:
        raise InputError(f"{path}: holds {len(files)} traces, one per rank; unpack an archive and give one of them")
    (path,) = files
    shown = click.get_current_context().meta.get(str(path), path)
    with progress_bar(path.name, "byte", unit_scale=True, delay=1.0) as step:
        try:
            trace = read_trace(path, max_bytes=max_bytes or DEFAULT_MAX_BYTES, progress=step)
        except InputError as error:
            raise InputError(str(error).replace(str(path), str(shown))) from None
    trace = replace(trace, source=trace.source.replace(str(path), str(shown)))
    if execution_trace is not None:
        trace = with_execution_trace(trace, execution_trace)
    ignored = (f"{count:,} events of {category} are not used" for category, count in sorted(trace.ignored.items()))
    _echo_notes(f"{shown}: {note}" for note in (*trace.notes, *ignored))
    return trim(
        trace,
        iterations_kept=iteration or None,
        from_us=None if from_ms is None else from_ms * 1e3,
        to_us=None if to_ms is None else to_ms * 1e3,
        gpu=device,
    )


def _echo_notes(notes: Iterable[str]) -> None:
    for note in notes:
        click.echo(f"seer: {note}", err=True)


def _write_page(profiled: "Profile", html: Path | None) -> None:
    if html:
        from surrogate.dataset.files import write_text
        from surrogate.trace.page import trace_page

        write_text(html, trace_page(profiled))


def _rank_files(paths: Sequence[Path], max_bytes: int | None = None) -> list[Path]:
    """The files, and in the place of a folder or a .tar.gz the traces in it, by name.

    Raises `InputError` where a folder holds none, and for an archive that is damaged or unpacks to too much.
    """
    files = []
    for path in paths:
        folder = _unpacked(path, max_bytes) if path.name.endswith((".tar.gz", ".tgz")) else path
        inside = sorted(file for file in folder.iterdir() if file.name.endswith(_TRACES)) if folder.is_dir() else [path]
        if not inside:
            raise InputError(f"{path}: holds no .json, .json.gz or .sqlite; give a folder of traces, one per rank")
        files += inside
    return files


def _unpacked(archive: Path, max_bytes: int | None) -> Path:
    """A folder, which is gone when the command ends, with the traces of an archive and nothing else of it.

    The command's context knows the archive and the member that each file comes from.
    """
    from surrogate.trace.events.read import DEFAULT_MAX_BYTES

    context, left = click.get_current_context(), max_bytes or DEFAULT_MAX_BYTES
    folder = Path(context.with_resource(TemporaryDirectory()))
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                left -= member.size
                if left < 0:
                    raise InputError(f"{archive}: unpacks to more than --max-bytes; unpack it and give the folder")
                content = members.extractfile(member) if member.isfile() and member.name.endswith(_TRACES) else None
                if content:
                    file = folder / Path(member.name).name
                    file.write_bytes(content.read())
                    context.meta[str(file)] = f"{archive}/{member.name}"
    except (tarfile.TarError, zlib.error, OSError, EOFError):
        raise InputError(f"{archive}: is no archive, or a damaged one; give a folder of traces") from None
    return folder


def _columns(records: Sequence[dict[str, Any]], names: Sequence[str], **around: Any) -> Table:
    return Table([{name: record[name] for name in names} for record in records], **around)


def _people(result: "ResultTable", columns: Sequence[str] = ()) -> Table:
    """The table with short names, in the width of the terminal or of a pipe."""
    table = result.table()
    kept = [{name: row[name] for name in columns or row} for row in table.records]
    return replace(table, records=kept, widest=_PIPE_WIDTH)


class _TraceGroup(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order people need them."""
        return list(self.commands)


@click.group(cls=_TraceGroup)
def command() -> None:
    """Analyse a trace: PyTorch profiler JSON (.json, .json.gz) or an Nsight Systems sqlite export.

    Examples:
      seer trace summary trace.json.gz
    """


@command.command(short_help="The whole model: iterations, busy and idle time, layer types, copies; ranks; batches.")
@_files
@_part_options
@choice_option(
    "--by",
    ("model", "layer", "type", "copy"),
    "The whole model, or a table of its layers, layer types or copies.",
    "model",
)
@option("--batch", "Batch size of each file, where no shape tells.", COUNT, multiple=True)
@_gpu
@_top
@_html
@output_options
def summary(
    files: tuple[Path, ...], by: str, batch: tuple[int, ...], gpu: str | None, top: int | None, html: Path | None,
    as_json: bool, as_csv: bool, **part: Any,
) -> None:  # fmt: skip
    """What bounds a step of a trace: the device, the host, communication or copies. Then iteration times, busy and
    idle time of the device, layers, layer types and copies.

    Several FILES, a folder or a .tar.gz of them, that name ranks of one run: a row per rank with what its device does,
    how much communication is hidden behind compute, and the rank that the others wait for. Other FILES are one model at
    several batch sizes: a row each, with throughput and the best batch; so are those with --batch.

    Examples:
      seer trace summary trace.json.gz --html profile.html
      seer trace summary ranks/
      seer trace summary b8.json b16.json b32.json
    """
    from surrogate.trace import tables
    from surrogate.trace.profiling import profile

    files = tuple(_rank_files(files, part["max_bytes"]))
    if len(files) > 1 and (by != "model" or html):
        raise InputError(f"{len(files)} files make a table of ranks or batch sizes; give one with --by {by} or --html")
    traces = [_load(file, **part) for file in files]
    ranks = {trace.rank for trace in traces} - {None}
    if len(ranks) == len(files) > 1 and not batch:
        _show_ranks(traces, top, as_json, as_csv)
        return
    profiles = [profile(trace, gpu) for trace in traces]
    if len(files) > 1:
        sweep = tables.batch_sweep(profiles, batch).top(top)
        show(sweep.rows, as_json=as_json, as_csv=as_csv, table=_columns(sweep.rows, _SWEEP_COLUMNS))
        return
    (only,) = profiles
    _write_page(only, html)
    if by != "model":
        of = {"layer": tables.layer_table, "type": tables.type_table, "copy": tables.copy_table}[by]
        table = of(only).top(top)
        show(table.rows, as_json=as_json, as_csv=as_csv, table=_people(table))
        return
    facts = tables.summary(only)
    if batch:
        facts |= {"batch": batch[0], "samples_per_s": batch[0] / facts["iteration_ms"] * 1e3}
    types, copies = tables.type_table(only).top(top), tables.copy_table(only).top(top)
    has_device = len(only.trace.activities) > 0
    pairs = Table([{"figure": k, "value": v} for k, v in facts.items() if k != "bound" and (has_device or v)])
    whole = {"summary": facts, "steps": list(tables.step_table(only)), "types": list(types), "copies": list(copies)}
    if (facts["bound"] or not has_device) and not (as_json or as_csv):
        first = f"Bound by {facts['bound']}" if has_device else "No device activity in this trace"
        click.echo(wrapped(f"{first}\n", terminal_width()))
    show([facts], as_json=as_json, as_csv=as_csv, whole=whole, table=pairs)
    for table in (types, copies) if not (as_json or as_csv) else ():
        if len(table):
            click.echo()
            columns = [key for key in table.rows[0] if has_device or any(row[key] for row in table)]
            show(table.rows, table=_people(table, columns))


def _show_ranks(traces: "Sequence[Trace]", top: int | None, as_json: bool, as_csv: bool) -> None:
    from surrogate.trace.iteration.ranks import rank_summary

    found = rank_summary(traces)
    _echo_notes(found.notes)
    rows = found.ranks[:top]
    narrow = [name for name in rows[0] if not name.startswith(("trace", "non_", "kernel_", "other_"))]
    table = _columns([*rows, *found.spread()], narrow, title=found.title, references=2)
    show(rows, as_json=as_json, as_csv=as_csv, whole=asdict(found), table=table)
    if found.collectives and not (as_json or as_csv):
        click.echo("\nCollectives: the last rank to reach each, and the others' mean wait for it")
        show(found.collectives)


@command.command(short_help="Kernels by name, layer or type, with occupancy, roofline and bound.")
@_file
@_part_options
@choice_option(
    "--by",
    ("name", "layer", "type", "model"),
    "One row per kernel name, layer, layer type, or for the whole model.",
    "name",
)
@option("--counters", "Counters of the same program, by Nsight Compute or nvprof; repeatable.", PATH, multiple=True)
@_gpu
@_top
@_html
@output_options
def kernels(
    file: Path, by: str, counters: tuple[Path, ...], gpu: str | None, top: int | None, html: Path | None,
    as_json: bool, as_csv: bool, **part: Any,
) -> None:  # fmt: skip
    """Time %, total, calls, average, minimum and maximum of the kernels in FILE, the longest total first.

    Where shapes tell the work: the rate reached and the bound. Under 60 % of both peaks a launch is latency-bound for
    too few bytes, FLOPs or blocks; a full one is below both peaks. Occupancy is the launch's, with what limits it.
    Names are shortened; --json and --csv hold the full ones, and grid, block, registers, FLOPs and bytes.
    With --counters what was counted stands beside it: FLOPs, DRAM traffic, achieved occupancy and the bound by them.
    FILE may be what `nvprof PROGRAM` prints, too: its kernels, copies and API calls by name.

    Examples:
      seer trace kernels trace.json.gz --by layer --top 20
      seer trace kernels trace.json.gz --counters ncu.csv
      seer trace kernels nvprof.log --counters metrics.csv --gpu "GTX 1080 Ti"
    """
    from surrogate.formats.nvprof import is_summary, read_summary
    from surrogate.trace.counters import summary_table, with_counters
    from surrogate.trace.kernels import kernel_table
    from surrogate.trace.profiling import profile

    if is_summary(file):
        from surrogate.features.gpu import gpu as gpu_named

        if by != "name" or html or any(part.values()):
            raise InputError(
                f"{file}: nvprof's summary knows kernels by name alone; leave out every option for a trace"
            )
        summarised = summary_table(read_summary(file), counters, gpu_named(gpu) if gpu else None).top(top)
        show(summarised.rows, as_json=as_json, as_csv=as_csv, table=_people(summarised))
        return
    profiled = profile(_load(file, **part), gpu)
    profiled = with_counters(profiled, counters) if counters else profiled
    _write_page(profiled, html)
    result = kernel_table(profiled, by).top(top)
    names = ("kernel" if by == "name" else by, *(_COUNTER_COLUMNS if counters else _KERNEL_COLUMNS)[1:])
    show(result.rows, as_json=as_json, as_csv=as_csv, table=_people(result, names))


@command.command(short_help="Two traces of one program compared: what became slower or faster, and by how much.")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@_part_options
@option("--iteration-b", "Only this one of B, in place of --iteration; repeatable.", _INDEX, multiple=True, metavar="N")
@choice_option("--by", ("layer", "type", "operator", "kernel"), "[operator, type or kernel: what matches most]")
@_top
@output_options
def diff(
    a: Path, b: Path, iteration: tuple[int, ...], iteration_b: tuple[int, ...], by: str | None, top: int | None,
    as_json: bool, as_csv: bool, **part: Any,
) -> None:  # fmt: skip
    """Device time per iteration in A and in B, the same program on another GPU, in another version or setting.

    How much matches by what, and whether these seem to be different programs. Then totals: the median iteration, else
    means, busy and idle between an iteration's start and end. Then a row for all that matches, by name and shape, else
    by shape, by order or by the operator's name alone (kernels: by name, by operator, by family), and for what stands
    only in A or only in B, the largest change first. The changes of all rows add up to that of the device time.
    --execution-trace counts for both.

    Examples:
      seer trace diff v100.json.gz h100.json.gz --by operator --top 20
      seer trace diff trace.json.gz trace.json.gz --iteration 1 --iteration-b 3
    """
    from surrogate.trace.diff import trace_diff
    from surrogate.trace.names import short_names

    found = trace_diff(_load(a, **part), _load(b, **part), by, (iteration, iteration_b or iteration))
    rows = found.rows[:top]
    if as_json or as_csv:
        _echo_notes(found.notes)
    else:
        click.echo("\n".join(wrapped(note, terminal_width()) for note in found.notes) + "\n")
        click.echo(Table(found.totals, title="A before, B after, µs per iteration").text(terminal_width()) + "\n")
    table = Table(rows)
    if found.by == "kernel":
        short = short_names(name for row in rows for name in _BETWEEN_NAMES.split(row["kernel"])[::2])

        def shown(both: str) -> str:
            return "".join(short.get(part, part) for part in _BETWEEN_NAMES.split(both))

        table = replace(table, formats={"kernel": shown}, widest=_PIPE_WIDTH)
    show(rows, as_json=as_json, as_csv=as_csv, whole=asdict(found) | {"rows": rows}, table=table)


@command.command(short_help="The across-stack profile: model, layers, operators, calls, kernels.")
@_files
@_part_options
@choice_option("--level", ("model", "layer", "operator", "call", "kernel"), "The deepest level to show.", "layer")
@_top
@_html
@output_options
def spans(
    files: tuple[Path, ...], level: str, top: int | None, html: Path | None, as_json: bool, as_csv: bool, **part: Any
) -> None:
    """Spans of a trace from the iteration down to the kernel, each below its parent, in time order.

    A kernel's span is its time on the stream; its parent is the call that launched it. Several FILES are one program
    recorded ever deeper, the outermost level first: one timeline, in which each level has the time of the file that
    goes only down to it, and what recording each level costs.

    Examples:
      seer trace spans trace.json.gz --level kernel --iteration 1
      seer trace spans steps.json operators.json kernels.json --level kernel
    """
    from surrogate.trace.levels import leveled_traces
    from surrogate.trace.profiling import profile
    from surrogate.trace.spans import trace_spans

    traces = [_load(file, **part) for file in files]
    if html:
        _write_page(profile(traces[-1]), html)
    if len(traces) == 1:
        table = trace_spans(traces[0]).rows(level).top(top)
        show(table.rows, as_json=as_json, as_csv=as_csv, table=_people(table, _SPAN_COLUMNS))
        return
    experiment = leveled_traces(traces)
    merged, lost = experiment.merged()
    table, levels = merged.rows(level).top(top), experiment.rows()
    whole = {"levels": list(levels), "spans": list(table), "without_counterpart": lost}
    show(table.rows, as_json=as_json, as_csv=as_csv, whole=whole, table=_people(table, _SPAN_COLUMNS))
    if not (as_json or as_csv):
        click.echo(f"\n{lost:,} spans without a counterpart in the file before are left out\n")
        show(levels.rows)


@command.command(short_help="Replay the trace from its dependency graph: measured and simulated times.")
@_file
@_part_options
@output_options
def simulate(file: Path, as_json: bool, as_csv: bool, **part: Any) -> None:
    """Measured and simulated time of every iteration of FILE, unchanged.

    A task starts when everything it depends on has ended. --json also gives the coverage: what could not be attached,
    and the waits that the trace does not explain, which a replay keeps as they are.

    Examples:
      seer trace simulate trace.json.gz --json
    """
    from surrogate.trace import graph as graphs

    graph = graphs.graph_of(_load(file, **part))
    timeline = graphs.simulate(graph)
    rows = [
        {"index": iteration.index, "measured_us": iteration.time_us, "simulated_us": time_us}
        for iteration, time_us in zip(graph.iterations, timeline.iteration_us(), strict=False)
    ]
    path, coverage = graphs.critical_path(timeline), graph.coverage
    serial = graphs.serialised_pct(timeline)
    path_us = {**path.by_kind_us, "waiting": path.waiting_us}
    whole = {
        "iterations": rows,
        "coverage": coverage,
        "critical_path_us": path_us,
        "serialised_pct": serial if serial == serial else None,
    }
    show(rows, as_json=as_json, as_csv=as_csv, whole=whole)
    if as_json or as_csv:
        return
    attached = "{attached_pct:.4g} % of {device_tasks:,} device tasks follow a launch".format_map(coverage)
    unexplained = "{unexplained_us:,.0f} µs of waits unexplained ({unexplained_tasks})".format_map(coverage)
    click.echo(
        f"{len(graph):,} tasks; {attached if coverage['device_tasks'] else 'none of them on a device'}; {unexplained}"
    )
    parts = ", ".join(f"{name} {time / 1e3:,.1f}" for name, time in path_us.items())
    click.echo(f"critical path in ms: {parts}")


@command.command(short_help="What an optimisation would gain: mixed precision, fusion, more workers, …")
@_file
@click.argument("what_ifs", nargs=-1, metavar="WHAT-IF…")
@_part_options
@option("--gpu", "The GPU asked about (gpu, amp-roofline).", GPU)
@option("--own-gpu", "The GPU of the trace, where it names none or another.", GPU)
@option("--workers", "Of data-parallel, blueconnect, dgc: GPUs.", COUNT, default=8)
@option("--bandwidth", "Of a machine's network.", float, default=10.0, metavar="GB/s")
@option("--latency", "µs per step.", float, default=10.0, metavar="US")
@option("--gpus-per-machine", "Of the workers.", COUNT, default=1, metavar="N")
@option("--link-bandwidth", "Between a machine's GPUs.", float, default=150.0, metavar="GB/s")
@choice_option("--all-reduce", ("ring", "tree", "hierarchical"), "NCCL's algorithm, of data-parallel and dgc.", "ring")
@_bundle
@option("--function functions", "Your own: imported, called with the graph, returns one. Repeatable.", multiple=True,
        metavar="MODULE:CALLABLE")  # fmt: skip
@option("--together", "Also all of them at once, in the given order.", is_flag=True)
@option("--timeline", "The last one's timeline, for Perfetto.", OUT)
@option("--figures", "Folder for SVG figures.", FOLDER)
@output_options
def whatif(
    file: Path, what_ifs: tuple[str, ...], gpu: str | None, own_gpu: str | None, workers: int, bandwidth: float,
    latency: float, gpus_per_machine: int, link_bandwidth: float, all_reduce: str, bundle: Path | None,
    functions: tuple[str, ...], together: bool, timeline: Path | None, figures: Path | None, as_json: bool,
    as_csv: bool, **part: Any,
) -> None:  # fmt: skip
    """Time per iteration of FILE as measured and as predicted with each WHAT-IF.

    WHAT-IF: amp, amp-tensor, amp-roofline, fused-adam, batch-norm, cuda-graphs, best-convolution, batch=N, gpu,
    faster-kernels=N, faster-host=N, faster-network=N (N times as fast, 2 without), vdnn, gist=N (times smaller),
    data-parallel=N and blueconnect=N (workers), dgc=N (times smaller), parameter-server=N and p3=N (GB/s, in the place
    of --bandwidth). batch without a number doubles it.

    Times are the mean of the iterations, from one end to the next; summary and diff have the median of those from start
    to end. What the device still does behind the host's last end counts as far as the WHAT-IF adds to it. speedup
    compares the samples per second of one GPU. Leave a warm-up out with --iteration.

    Examples:
      seer trace whatif trace.json.gz amp fused-adam cuda-graphs
      seer trace whatif trace.json.gz gpu --gpu h100-sxm --timeline h100.json
    """
    from surrogate.trace import whatif as models
    from surrogate.trace.graph import graph_of
    from surrogate.trace.profiling import profile

    chosen = [*map(models.what_if, what_ifs), *map(models.user_function, functions)]
    if not chosen:
        raise InputError(f"no what-if given; name at least one of {', '.join(models.MODELS)}")
    profiled = profile(_load(file, **part), own_gpu)
    network = models.Network(
        workers, bandwidth, latency, gpus_per_machine=gpus_per_machine, link_gbs=link_bandwidth, algorithm=all_reduce
    )
    setting = models.setting_of(profiled, target=gpu, network=network, bundle=bundle)
    answers = models.evaluate(graph_of(profiled.trace, profiled.layers), chosen, setting, together=together)
    if timeline is not None:
        models.write_timeline(answers[-1].predicted, timeline, answers[-1].name)
    if figures is not None:
        from surrogate.trace.whatif.output import write_figures

        write_figures(answers, figures)
    rows = [answer.to_dict() for answer in answers]
    flat = [name for name, value in rows[0].items() if not isinstance(value, dict | list)]
    cells = [_whatif_cells(row) for row in rows]
    known = [name for name in cells[0] if any(row[name].strip("– →") for row in cells)]
    table = replace(_columns(cells, known), widest=_PIPE_WIDTH)
    show(rows if as_json else _columns(rows, flat).records, as_json=as_json, as_csv=as_csv, table=table)
    for answer in answers if not (as_json or as_csv) else []:
        for note in (*answer.notes, answer.evidence):
            click.echo(f"{answer.name}: {note}")


def _whatif_cells(row: dict[str, Any]) -> dict[str, str]:
    """What people read of an answer: an interval, and what is known before and after, in a cell each."""
    from surrogate.report.tables import interval_us, plain

    def ends(low: str, high: str) -> str:
        return plain(row[low]) if row[low] == row[high] else interval_us((row[low], row[high]))

    cells = {name: plain(row[name]) for name in ("baseline_us", "predicted_us", "speedup")}
    cells = {"name": row["name"], **cells, "interval_us": ends("low_us", "high_us")}
    for name in ("device_us", "samples_per_s", "bound"):
        cells[name] = " → ".join(plain(row[f"{name}_{when}"]) for when in ("before", "after"))
    return cells | {"interval_device_us": ends("device_low_us", "device_high_us")}


@command.command(short_help="Iteration times from host overheads and measured or predicted kernels; ranks together.")
@_files
@option("--gpu", "Predict for this GPU; the host stays the traced one.", GPU)
@option("--batch", "Predict for this batch size.", COUNT, metavar="N")
@choice_option("--times", ("measured", "surrogate"),
               "Kernel times of the trace, or predicted [measured; surrogate for another GPU or batch].")  # fmt: skip
@option("--overheads overheads_file", "Host overheads of another trace, as --save-overheads writes them.", PATH)
@option("--save-overheads", "Write the host overheads, and the laws of ranks' collectives, as JSON.", OUT)
@option("--leave-one-out", "Overheads of each iteration from the other ones.", is_flag=True)
@option("--iteration", "Only this one.", _INDEX, metavar="K")
@_bundle
@_execution_trace
@_top
@output_options
def iteration(
    files: tuple[Path, ...], overheads_file: Path | None, save_overheads: Path | None, iteration: int | None,
    execution_trace: Path | None, top: int | None, as_json: bool, as_csv: bool, **settings: Any,
) -> None:  # fmt: skip
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
    from surrogate.trace.iteration.ranks import rank_times

    files = tuple(_rank_files(files))
    settings["overheads"] = load_overheads(overheads_file) if overheads_file else None
    if len(files) > 1:
        if execution_trace or iteration is not None:
            raise InputError(f"{len(files)} ranks go together; --execution-trace and --iteration are for one trace")
        ranks = rank_times([_load(file) for file in files], **settings)
        if save_overheads:
            ranks.overheads.save(save_overheads)
        columns = [name for name in ranks.ranks.rows[0] if name != "trace"]
        table = _columns(ranks.ranks.rows, columns, title=ranks.ranks.title)
        show(ranks.ranks.rows, as_json=as_json, as_csv=as_csv, whole=ranks.to_dict(), table=table)
        if not (as_json or as_csv):
            click.echo(f"\n{ranks.collectives.title}")
            show(ranks.collectives.top(top).rows)
        return
    result = iteration_times(_load(next(iter(files)), execution_trace=execution_trace), iteration=iteration, **settings)
    if save_overheads:
        result.overheads.save(save_overheads)
    rows = [asdict(row) for row in result]
    table = _columns(rows, _ITERATION_COLUMNS, title=result.table().title)
    show(rows, as_json=as_json, as_csv=as_csv, whole=result.to_dict(), table=table)
    if as_json or as_csv:
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
