"""``seer trace``: what profiler traces say. Each command is a module of this folder, imported only when it runs; here
stands what they share: the options that choose a part of a trace, and how its tables are printed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from surrogate.cli.groups import CommandGroup
from surrogate.cli.options import COUNT, GPU, INDEX, PATH, Form, Function, combined, html_option, option, output_options
from surrogate.features.errors import InputError
from surrogate.report.tables import Table

if TYPE_CHECKING:
    from surrogate.trace.events.read import TraceFile
    from surrogate.trace.events.tables import Trace
    from surrogate.trace.profiling import Profile
    from surrogate.trace.result import ResultTable

_SUMMARY = "seer trace summary FILE"
GUESSES = {
    **dict.fromkeys(("advice", "findings"), f"{_SUMMARY}, which ends with what to change"),
    **dict.fromkeys(("analyze", "analyse", "profile", "show"), _SUMMARY),
    "vgg13_h100": "the trace that ships: seer trace summary vgg13_h100",
    **dict.fromkeys(("report", "page", "timeline"), f"{_SUMMARY} --html PAGE.html"),
    "layers": f"{_SUMMARY} --by layer",
    "compare": "seer trace diff A B",
    "predict": "seer trace whatif FILE gpu=h100",
    **dict.fromkeys(("fp16", "bf16", "mixed-precision", "autocast", "amp-tensor", "amp-roofline"), "amp"),
    "compile": "cuda-graphs",
    "ddp": "data-parallel=8",
    **dict.fromkeys(("fused", "fused-adam"), "fused-optimizer"),
    **dict.fromkeys(("channels-last", "tf32"), "a finding; seer trace summary FILE says what it gains"),
}
"""Name of a command or a what-if elsewhere, or in an older version → what the answer names."""


class TraceGroup(CommandGroup):
    """A group that knows what its commands are elsewhere called, and a trace in the place of a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names. A usage error names the one that is meant, where it can be told."""
        name = args[0]
        if name not in self.list_commands(ctx) and not ctx.resilient_parsing:
            if name.lower() in GUESSES:
                raise click.UsageError(f"no command {name!r}; it is {GUESSES[name.lower()]}", ctx)
            if Path(name).suffixes or Path(name).exists():
                raise click.UsageError(f"no command {name!r}; for a trace of that name: seer trace summary {name}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=TraceGroup, table="trace")
def command() -> None:
    """Analyse a trace: PyTorch profiler JSON (.json, .json.gz) or an Nsight Systems sqlite export.

    Examples:
      seer trace summary trace.json.gz
    """


PIPE_WIDTH = 160
file_argument = click.argument("file", type=PATH)
files_argument = click.argument("files", nargs=-1, required=True, type=PATH)
top_option = option("--top", "Only the first K rows.", COUNT, metavar="K")
gpu_option = option("--gpu", "The GPU whose peaks count, where the trace names none or another.", GPU)
counters_option = option(
    "--counters", "Counters of the same program, by Nsight Compute or nvprof; repeatable.", PATH, multiple=True
)
bundle_option = option("--bundle", "Fitted model of convolutions, a folder; else the shipped one.", PATH)


@dataclass(frozen=True)
class TracePart:
    """The part of a trace that the options of `part_options` choose."""

    iteration: Sequence[int] = ()
    from_ms: float | None = None
    to_ms: float | None = None
    device: int | None = None
    max_bytes: int | None = None

    def files(self, paths: Sequence[Path]) -> "list[TraceFile]":
        """The files, or in the place of a folder or an archive the traces in it, until the command ends."""
        from surrogate.trace.events.read import DEFAULT_MAX_BYTES, trace_files

        return click.get_current_context().with_resource(trace_files(paths, self.max_bytes or DEFAULT_MAX_BYTES))

    def load(self, path: Path) -> "Trace":
        """This part of the only trace in ``path``. Raises `InputError` for a folder or an archive of several."""
        files = self.files([path])
        if len(files) > 1:
            raise InputError(f"{path}: holds {len(files)} traces, one per rank; unpack an archive and give one of them")
        return self.of(files[0])

    def steady(self, path: Path, gpu: str | None) -> "Profile":
        """The profile of this part's steady iterations; notes say which are left out, and whose peaks count."""
        from surrogate.trace.profiling import profile, renamed_note, steady

        profiled = steady(profile(self.load(path), gpu))
        echo_notes(filter(None, (profiled.left_out, renamed_note(profiled))))
        return profiled

    def of(self, file: "TraceFile") -> "Trace":
        """This part of a trace; its notes go to standard error, a line each."""
        from surrogate.cli.datasets import progress_bar
        from surrogate.trace.events.parts import trim
        from surrogate.trace.events.read import DEFAULT_MAX_BYTES

        with progress_bar(Path(file.display_name).name, "byte", unit_scale=True, delay=1.0) as step:
            trace = file.read(max_bytes=self.max_bytes or DEFAULT_MAX_BYTES, progress=step)
        unused = (f"{count:,} events of {category} are not used" for category, count in sorted(trace.ignored.items()))
        echo_notes(f"{file.display_name}: {note}" for note in (*trace.notes, *unused))
        from_us, to_us = (None if limit_ms is None else limit_ms * 1e3 for limit_ms in (self.from_ms, self.to_ms))
        return trim(trace, iterations_kept=self.iteration or None, from_us=from_us, to_us=to_us, gpu=self.device)


@dataclass(frozen=True)
class Output:
    """What a command prints: the first ``top`` rows, as ``form``; and ``html``, the page that it writes."""

    top: int | None
    html: Path | None
    form: Form

    def write_page(self, profiled: "Profile") -> None:
        """Write the profile's page, if ``--html`` asks for it."""
        if self.html:
            from surrogate.dataset.files import write_text
            from surrogate.trace.page import trace_page

            write_text(self.html, trace_page(profiled))


def _gathered(kind: type, name: str, *options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """A decorator that adds ``options``, which the command gets as one ``kind``, by ``name``."""

    def gather(function: Function) -> Function:
        @wraps(function)
        def with_one(**values: Any) -> Any:
            own = {each.name: values.pop(each.name) for each in fields(kind)}
            return function(**values, **{name: kind(**own)})

        return combined(*options)(cast(Function, with_one))

    return gather


part_options = _gathered(
    TracePart,
    "part",
    option("--iteration", "Only this one; repeatable.", INDEX, multiple=True),
    option("--from from_ms", "Only what starts at this time or later.", float, metavar="MS"),
    option("--to to_ms", "Only what starts before this time.", float, metavar="MS"),
    option("--device", "Only this GPU's activities.", INDEX),
    option("--max-bytes", "Most bytes a packed trace may unpack to [2 GiB].", COUNT),
)
"""Options that choose a part of the trace; the command gets them as ``part``."""
table_options = _gathered(Output, "out", top_option, html_option, output_options)
"""``--top``, ``--html``, ``--json`` and ``--csv``; the command gets them as ``out``."""


def echo_notes(notes: Iterable[str]) -> None:
    """Print notes to standard error, a line each."""
    for note in notes:
        click.echo(f"seer: {note}", err=True)


def columns_of(
    records: Sequence[Mapping[str, object]], names: Sequence[str], title: str = "", references: int = 0
) -> Table:
    """A table of some columns."""
    return Table([{name: record[name] for name in names} for record in records], title=title, references=references)


def for_people(result: "ResultTable", columns: Sequence[str] = ()) -> Table:
    """The table with short names, in the width of the terminal or of a pipe."""
    table = result.table()
    kept = [{name: row[name] for name in columns or row} for row in table.records]
    return replace(table, records=kept, widest=PIPE_WIDTH)
