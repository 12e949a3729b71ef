"""Options that several commands share, and what --json and --csv print; nothing heavy is imported for their help."""

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from surrogate.dataset.files import STDOUT, require_writable
from surrogate.features.errors import STDIN, InputError, nearest
from surrogate.report.tables import Table, terminal_width, to_csv, to_json

if TYPE_CHECKING:
    from surrogate.dataset.described import Kernel

Function = TypeVar("Function", bound=Callable[..., object])
"""A command's function, which options leave as it is."""
Form = Literal["", "json", "csv"]
"""What an answer is printed as; nothing for people."""


class DataPath(click.Path):
    """A file, or ``-`` for ``stream``; without a stream a folder. What is written must be writable before work begins.

    ``folder``: how a folder is written (`require_writable`); ``checked``: False where the command itself finds out.
    """

    def __init__(
        self, stream: Path | None, *, folder: Literal["", "filled", "replaced"] = "", checked: bool = True
    ) -> None:
        super().__init__(path_type=Path)
        self.stream = stream
        self.folder: Literal["", "filled", "replaced"] = folder
        self.checked = checked

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, or the stream's where ``-`` came. Raises `InputError` where it could not be written."""
        if value == "-" and self.stream:
            return self.stream
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if value == "-" and self.folder:
            self.fail("a folder is written, no stream; give its name", param, ctx)
        if self.checked and not (ctx and ctx.resilient_parsing):
            require_writable(path, self.folder)
        return path


PATH = DataPath(STDIN, checked=False)
OUT = DataPath(STDOUT)
FOLDER = DataPath(None, folder="filled")
BUNDLE = DataPath(None, folder="replaced")


class IntegerRange(click.IntRange):
    """A whole number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; a usage error says how it is written."""
        if re.fullmatch(r"\s*[+-]?\d+\s*", str(value)) is None:
            self.fail(f"{value!r} is no whole number; write its digits, as in 1024", param, ctx)
        return super().convert(value, param, ctx)


class Positive(click.FloatRange):
    """A number above 0, in the unit that the option's help names; inf is one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error says how it is written."""
        try:
            is_number = not isnan(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            unit = f" of {param.metavar.lower()}" if isinstance(param, click.Option) and param.metavar else ""
            self.fail(f"{value!r} is no number{unit}; write it without a unit, as in 30", param, ctx)
        return super().convert(value, param, ctx)


MAX_INT32 = 2**31 - 1
"""The largest size; written here, because the features' modules import NumPy."""
COUNT = IntegerRange(min=1)
INDEX = IntegerRange(min=0)
SIZE = IntegerRange(1, MAX_INT32)
POSITIVE = Positive(min=0, min_open=True)


class WordChoice(click.Choice):
    """One of some words, in any case; a usage error names the nearest."""

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__(choices, case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.rstrip('.')}{nearest(str(value), self.choices)}", param, ctx)


class SettingChoice(WordChoice):
    """One of a problem's setting's values, by any name that people call it, such as ``float16``."""

    def __init__(self, setting: str, choices: Sequence[str]) -> None:
        super().__init__(choices)
        self.setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The value by its name here."""
        from surrogate.features.problem import setting as setting_value

        return super().convert(setting_value(self.setting, value), param, ctx)


class Once(click.Option):
    """An option, whose second value is refused where it has one: click would take the last without a word.

    In help a number without a name of its own is N or X, in the place of INTEGER RANGE.
    """

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, **settings)
        if self.metavar is None and isinstance(self.type, click.types.IntParamType | click.types.FloatParamType):
            self.metavar = "N" if isinstance(self.type, click.types.IntParamType) else "X"

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser keep every value."""
        if self.is_flag or self.multiple:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Any) -> tuple[Any, Any]:
        """The one value."""
        values = opts.get(self.name)
        if self.multiple or not isinstance(values, list):
            return super().consume_value(ctx, opts)
        if len(values) > 1 and not ctx.resilient_parsing:
            has_more = self.name == "gpu" and any(each.name == "compare_gpus" for each in ctx.command.params)
            is_list = "," in (self.metavar or "")
            remedy = "further ones by --compare-gpus" if has_more else "them with commas between" if is_list else "one"
            came = f"{self.opts[0]} is given {len(values)} times ({', '.join(values)})"
            raise click.UsageError(f"{came}; give {remedy}", ctx)
        return super().consume_value(ctx, {**opts, self.name: values[0]})


def option(
    names: str, text: str, kind: click.ParamType | type | Collection[str] | None = None, **settings: Any
) -> Callable[[Function], Function]:
    """Add an option to a command.

    ``names`` are its flags, then its parameter's name if that is another; ``text`` is its help; ``kind`` is click's
    type, or the words to choose from; ``settings`` are those of `click.option`.
    """
    if kind is not None and not isinstance(kind, click.ParamType | type):
        kind = WordChoice(tuple(kind))
    return click.option(*names.split(), cls=Once, help=text, type=kind, **settings)


def combined(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return one decorator that adds several options in the order given."""

    def add(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


class GpuName(click.ParamType):
    """A GPU by any name; a note on stderr says which board is taken where the name fits several."""

    name = "G"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it came; the note comes behind the answer, and not at all where there is none."""

        def tell() -> None:
            if isinstance(sys.exc_info()[1], SystemExit | click.exceptions.Exit | None):
                click.echo(f"seer: {board_notes(value)[0]}", err=True)

        if board_notes(value) and ctx:
            ctx.call_on_close(tell)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Registry names that begin with ``incomplete``, else such aliases; none where SEER_GPUS cannot be read."""
        from surrogate.features.gpu import gpus

        try:
            registered = gpus()
        except InputError:
            return []
        begun = incomplete.casefold()
        names = [gpu.name for gpu in registered if gpu.name.casefold().startswith(begun)]
        aliases = {alias for gpu in registered for alias in gpu.aliases if alias.casefold().startswith(begun)}
        return [CompletionItem(name) for name in names or sorted(aliases)]


GPU = GpuName()


class Bytes(click.ParamType):
    """A number of bytes, as in 64MiB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        from surrogate.prediction.results import parse_bytes

        return value if isinstance(value, int) else parse_bytes(value)


BYTES = Bytes()


def sizes_option(names: str, text: str) -> Callable[[Function], Function]:
    """Add an option whose value is whole numbers with commas between, as in 1,2,4."""
    return option(names, text, metavar="N,N,…", callback=_sizes)


def _sizes(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return the distinct numbers; a usage error for anything else."""
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(","))) if text is not None else ()
    except ValueError:
        numbers = (0,)
    if numbers and (min(numbers) < 1 or max(numbers) > MAX_INT32):
        message = f"{text!r} is no list of whole numbers from 1; write them as in 1,2,4,8"
        raise click.BadParameter(message, context, parameter)
    return numbers


def _gpu_names(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str]:
    """Return the names in ``A,B,…``."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text and not names:
        raise click.BadParameter(f"{text!r} names no GPU; write them as in v100,t4", context, parameter)
    return [GPU.convert(name, parameter, context) for name in names]


compare_gpus_option = option("--compare-gpus", "Also on these GPUs.", metavar="A,B,…", callback=_gpu_names)
html_option = option("--html", "Also write everything as one HTML file.", OUT)
seed_option = option("--seed", "Seed of folds, sampling and search.", default=0)
candidates_option = option(
    "--candidates",
    "How the table lists candidates, where the file does not say: all were tried, or a censored list.",
    ("all", "listed"),
)
where_option = option(
    "--where",
    "Keep only rows with this value; repeat for more columns, or VALUE,VALUE for either.",
    multiple=True,
    metavar="COLUMN=VALUE",
)
rows_options = combined(candidates_option, where_option)
"""Which rows of the data count, and how."""
limit_options = combined(
    option("--workspace-limit", "Largest workspace of a pick, as in 64MiB, 1GB or 1048576.", BYTES),
    option("--deterministic", "Only algorithms whose two runs give the same bits.", is_flag=True),
)
"""Which algorithms may be picked."""
_COLUMNS = "Columns of a table of your own kernel's configurations:"
_kernel_columns = combined(
    option("--kernel kernel_file", "A description of your own kernel, TOML (`seer data describe`).", PATH),
    option("--sizes", f"{_COLUMNS} numbers of a problem, as m,n,k.", metavar="A,B"),
    option("--parameters", f"{_COLUMNS} what is tuned.", metavar="A,B"),
    option("--settings texts", f"{_COLUMNS} texts of a problem, as dtype.", metavar="A,B"),
)


def kernel_options(function: Function) -> Function:
    """Add ``--kernel``, or ``--sizes``, ``--parameters`` and ``--settings``: a described kernel, or None."""

    @wraps(function)
    def described(*words: Any, **named: Any) -> Any:
        columns = [named.pop(name) for name in ("kernel_file", "sizes", "parameters", "texts")]
        files = [each for name in ("data", "paths") if isinstance(each := named.get(name), tuple)]
        strays = [str(file) for each in files for file in each if not file.suffix and not file.exists()]
        kernel = None
        if any(columns):
            if strays:
                raise InputError(
                    f"{', '.join(strays)}: no such file; names of columns are joined by commas, as in m,n,k"
                )
            from surrogate.dataset.described import KernelOptions

            kernel = KernelOptions(*columns).described
        return function(*words, kernel=kernel, **named)

    return cast(Function, _kernel_columns(described))


def _tree_device(context: click.Context, parameter: click.Parameter, device: str) -> str:
    """The device; a usage error where XGBoost, which would go on without a word, finds no GPU."""
    if device == "cuda":
        import warnings

        import xgboost

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            xgboost.train({"device": device}, xgboost.DMatrix([[0.0]], label=[0.0]), num_boost_round=1)
        if warned:
            raise click.BadParameter("XGBoost finds no CUDA device; leave --device out", context, parameter)
    return device


class RowOptions(NamedTuple):
    """Which rows of tables count, and how: what `fit_options` says of them, in the order that `load` takes it."""

    candidates: str | None
    where: tuple[str, ...]
    kernel: "Kernel | None"


def _as_rows(function: Function) -> Function:
    """Give the command the options of rows and kernels as one parameter, ``rows``."""

    @wraps(function)
    def given(
        *words: Any, candidates: str | None, where: tuple[str, ...], kernel: "Kernel | None", **named: Any
    ) -> Any:
        return function(*words, rows=RowOptions(candidates, where, kernel), **named)

    return cast(Function, given)


fit_options = combined(
    option("--device", "Where XGBoost grows trees.", ("cpu", "cuda"), default="cpu", callback=_tree_device),
    option(
        "--candidate",
        "Choose among algorithms (each with its fastest solver) or among solvers.",
        ("algorithm", "solver"),
        default="algorithm",
    ),
    rows_options,
    kernel_options,
    _as_rows,
)
"""What is fitted, and where; the command gets `RowOptions`."""
training_options = combined(click.argument("data", nargs=-1, required=True, type=PATH), fit_options, seed_option)
"""DATA, what is searched or trained, and where."""


def output_option(text: str, required: bool = True, kind: DataPath = OUT) -> Callable[[Function], Function]:
    """``-o``: what a command writes, which ``text`` explains: a file, or with `FOLDER` and `BUNDLE` a folder."""
    return option("-o --output", text, kind, required=required)


def print_written(output: Path, text: str) -> None:
    """Print a line about what was written; on standard error where standard output is what was written."""
    click.echo(text, err=output == STDOUT)


def output_options(function: Function) -> Function:
    """Add ``--json`` and ``--csv``; the command gets ``form``, what its answer is printed as."""

    @wraps(function)
    def printed(*words: Any, as_json: bool, as_csv: bool, **named: Any) -> Any:
        if as_json and as_csv:
            raise InputError("--json and --csv exclude each other; give one of them")
        return function(*words, form="json" if as_json else "csv" if as_csv else "", **named)

    form_flags = combined(
        option("--json as_json", "Print JSON instead of a table.", is_flag=True),
        option("--csv as_csv", "Print CSV instead of a table.", is_flag=True),
    )
    return cast(Function, form_flags(printed))


def show(
    records: Sequence[Mapping[str, object]], form: Form = "", *, json_value: object = None, table: Table | None = None
) -> None:
    """Print ``records`` as JSON (``json_value`` in their place, if given), as CSV, or as ``table`` for people."""
    if form == "json":
        click.echo(to_json(records if json_value is None else json_value))
    elif form == "csv":
        click.echo(to_csv(records), nl=False)
    else:
        click.echo((table or Table(records)).text(terminal_width()))


def board_notes(name: str | None) -> list[str]:
    """What is said of a name that fits several boards; nothing of one that is none."""
    from surrogate.features.gpu import registry

    try:
        note = registry().note(name) if name else None
    except InputError:  # whoever needs the GPU says so
        return []
    return [note] if note else []
