"""``seer trace``: the analysis of profiler traces.

Each command is a module of this folder, imported only when it runs. This module has the parts that they share: the
options that choose a part of a trace, and the printing of its tables.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from surrogate.cli import options
from surrogate.cli.groups import CommandGroup
from surrogate.cli.options import (
    COUNT,
    GPU,
    HELP,
    INDEX,
    PATH,
    Form,
    as_object,
    html_option,
    option,
    output_options,
    show as print_records,
)
from surrogate.features.errors import InputError, read_toml
from surrogate.report.tables import Table, terminal_width

if TYPE_CHECKING:
    from surrogate.trace.events.read import TraceFile
    from surrogate.trace.events.tables import Trace
    from surrogate.trace.profiling import Profile
    from surrogate.trace.result import ResultTable

    NotesOf = Callable[[Trace], Collection[str]]

SUGGESTIONS: dict[str, str] = read_toml(__file__, "suggestions.toml")
"""Name of a command or a what-if in other tools or older versions → the text that a refusal suggests."""


class TraceGroup(CommandGroup):
    """A group that suggests a command for names from other tools, and for a trace instead of a command."""

    def suggestion(self, name: str) -> str:
        """Return the command in `SUGGESTIONS` for the name, or the command for a trace; else the nearest names."""
        if name.lower() in SUGGESTIONS:
            return f"; use {SUGGESTIONS[name.lower()]}"
        if Path(name).suffixes or Path(name).exists():
            return f"; for a trace, use seer trace summary {name}"
        return super().suggestion(name)


@click.group(cls=TraceGroup, table="trace")
def command() -> None:
    """Analyse a trace: PyTorch profiler JSON (.json, .json.gz) or an Nsight Systems sqlite export.

    Examples:
      seer trace summary trace.json.gz
    """


PIPE_WIDTH = 160
"""Maximum characters of a line in a pipe, if the environment variable COLUMNS does not say another width."""
file_argument = click.argument("file", type=PATH)
files_argument = click.argument("files", nargs=-1, required=True, type=PATH)
top_option = option("--top", "Only the first K rows.", COUNT, metavar="K")
gpu_option = option("--gpu", "The GPU that gives the peaks, if the trace names none or another.", GPU)
counters_option = option("--counters", HELP["trace"]["counters"], PATH, multiple=True)
bundle_option = option("--bundle", "Folder of a fitted model of convolutions [the shipped model].", PATH)


@dataclass(frozen=True)
class TracePart:
    """The part of a trace that the options of `part_options` choose."""

    iteration: Sequence[int] = ()
    from_ms: float | None = None
    to_ms: float | None = None
    device: int | None = None
    max_bytes: int | None = None

    def files(self, paths: Sequence[Path]) -> "list[TraceFile]":
        """Return the trace files of ``paths``, with folders and archives unpacked until the command ends."""
        from surrogate.trace.events.read import DEFAULT_MAX_BYTES, trace_files

        return click.get_current_context().with_resource(trace_files(paths, self.max_bytes or DEFAULT_MAX_BYTES))

    def load(self, path: Path, on_stdout: "NotesOf | None" = None) -> "Trace":
        """Return this part of the only trace in ``path``. Raises `InputError` if there are several."""
        files = self.files([path])
        if len(files) > 1:
            raise InputError(f"{path}: holds {len(files)} traces, one per rank; unpack an archive and give one of them")
        return self.of(files[0], on_stdout)

    def steady(self, path: Path, gpu: str | None, on_stdout: "NotesOf | None" = None) -> "Profile":
        """Return the profile of this part's steady iterations. Print notes on left-out iterations and on the GPU."""
        from surrogate.trace.profiling import profile, renamed_note, steady

        profiled = steady(profile(self.load(path, on_stdout), gpu))
        echo_notes(filter(None, (profiled.left_out, renamed_note(profiled))))
        return profiled

    def of(self, file: "TraceFile", on_stdout: "NotesOf | None" = None) -> "Trace":
        """Return this part of a trace, and print its notes on standard error, a line each.

        ``on_stdout`` returns the notes that the command prints with its tables instead.
        """
        from surrogate.cli.datasets import progress_bar
        from surrogate.trace.events.parts import trim
        from surrogate.trace.events.read import DEFAULT_MAX_BYTES

        with progress_bar(Path(file.display_name).name, "byte", unit_scale=True, delay=1.0) as step:
            trace = file.read(max_bytes=self.max_bytes or DEFAULT_MAX_BYTES, progress=step)
        unused = [f"{count:,} events of {category} are not used" for category, count in sorted(trace.ignored.items())]
        printed = on_stdout(trace) if on_stdout else ()
        echo_notes(f"{file.display_name}: {note}" for note in (*trace.notes, *unused) if note not in printed)
        from_us, to_us = (None if limit_ms is None else limit_ms * 1e3 for limit_ms in (self.from_ms, self.to_ms))
        part = trim(trace, iterations_kept=self.iteration or None, from_us=from_us, to_us=to_us, gpu=self.device)
        if (from_us or to_us) and len(trace.activities) and not len(part.activities):
            raise no_launch(trace, from_us or 0.0, to_us)
        return part


def no_launch(trace: "Trace", from_us: float, to_us: float | None) -> InputError:
    """Return the refusal of a time in which the host launches no work, with the work of earlier launches in it."""
    from surrogate.trace import events

    start_us = (trace.activities.start_ns - trace.span_ns[0]) / 1e3
    running = int(((start_us >= from_us) & (start_us < (to_us or float("inf")))).sum())
    span = f"from {from_us / 1e3:g} ms" + (f" to {to_us / 1e3:g} ms" if to_us else "")
    return events.refusal("no_launch_then", source=trace.source, span=span, running=running)


@dataclass(frozen=True)
class Output:
    """The output of a command: the first ``top`` rows in a ``form``, and the ``html`` page that it writes."""

    top: int | None
    html: Path | None
    form: Form

    def write_page(self, profiled: "Profile") -> None:
        """Write the profile's page if ``--html`` is given."""
        if self.html:
            from surrogate.dataset.files import write_text
            from surrogate.trace.page import trace_page

            write_text(self.html, trace_page(profiled))


part_options = as_object(
    TracePart,
    "part",
    option("--iteration", "Only this iteration; repeatable.", INDEX, multiple=True),
    option(
        "--from from_ms",
        "Only calls and ranges from this time on, and the work that they launch.",
        options.NOT_NEGATIVE,
        metavar="MS",
    ),
    option(
        "--to to_ms",
        "Only calls and ranges before this time, and the work that they launch.",
        options.NOT_NEGATIVE,
        metavar="MS",
    ),
    option("--device", "Only this GPU's activities.", INDEX),
    option("--max-bytes", "Maximum bytes of an unpacked trace [2 GiB].", COUNT),
)
"""Options that choose a part of the trace; the command receives them as ``part``."""
table_options = as_object(Output, "out", top_option, html_option, output_options)
"""``--top``, ``--html``, ``--json`` and ``--csv``; the command receives them as ``out``."""


def line_width() -> int:
    """Return the maximum characters of a line: the terminal's, or a pipe's."""
    return terminal_width() or get_terminal_size((PIPE_WIDTH, 0)).columns


def echo_notes(notes: Iterable[str]) -> None:
    """Print notes to standard error, a line each."""
    options.echo(*(f"seer: {note}" for note in notes), err=True)


def echo(*lines: str) -> None:
    """Print lines of at most `line_width`."""
    options.echo(*lines, width=line_width())


def show(
    records: Sequence[Mapping[str, object]], form: Form = "", *, json_value: object = None, table: Table | None = None
) -> None:
    """Print records as `surrogate.cli.options.show` does, in lines of `line_width`."""
    table = table or Table(records)
    print_records(records, form, json_value=json_value, table=table, width=None if table.widest else line_width())


def columns_of(
    records: Sequence[Mapping[str, object]], names: Sequence[str], title: str = "", references: int = 0
) -> Table:
    """Return a table of some columns."""
    return Table([{name: record[name] for name in names} for record in records], title=title, references=references)


def display_table(result: "ResultTable", columns: Sequence[str] = ()) -> Table:
    """Return the table with short names, in lines of `line_width`.

    Without ``columns`` all columns are displayed. The last ones may not fit, so texts follow the first three numbers.
    """
    table = result.table()
    keys = list(table.records[0]) if table.records else []
    texts = [key for key in keys[1:] if any(isinstance(row[key], str) for row in table.records)]
    numbers = [key for key in keys if key not in texts]
    names = columns or [*numbers[:4], *texts[:2], *numbers[4:], *texts[2:]]
    kept = [{name: row[name] for name in names} for row in table.records]
    return replace(table, records=kept, widest=line_width())
