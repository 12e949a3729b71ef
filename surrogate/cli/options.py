"""Options that several commands share, and the printing of --json and --csv. Help needs no heavy import."""

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from inspect import signature
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from surrogate.dataset.files import STDOUT, require_writable
from surrogate.features import STDIN, InputError, UnknownGpuError, nearest, printable, read_toml
from surrogate.report.tables import GAP, Table, terminal_width, to_csv, to_json, wrapped

if TYPE_CHECKING:
    from surrogate.dataset.described import Kernel

Function = TypeVar("Function", bound=Callable[..., object])
"""The type of a command's function. Option decorators return the same type."""
Form = Literal["", "json", "csv"]
"""Output form of an answer. The empty text means a table for people."""
HELP: dict[str, dict[str, str]] = read_toml(__file__)
"""Command → option → its help, for texts that are longer than a line."""


class DataPath(click.Path):
    """A file, ``-`` for ``stream``, or a folder if there is no stream. An output is checked before work begins.

    ``folder`` is the rule for an existing folder (`require_writable`). With ``checked=False`` the command itself
    checks the path.
    """

    def __init__(
        self, stream: Path | None, *, folder: Literal["", "filled", "replaced"] = "", checked: bool = True
    ) -> None:
        super().__init__(path_type=Path)
        self.stream = stream
        self.folder: Literal["", "filled", "replaced"] = folder
        self.checked = checked

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; ``-`` gives the stream's path. Raises `InputError` if the path is not writable."""
        if value == "-" and self.stream:
            return self.stream
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if value == "-" and self.folder:
            self.fail("the output is a folder, not a stream; give its name", param, ctx)
        if self.checked and not (ctx and ctx.resilient_parsing):
            require_writable(path, self.folder)
        return path


PATH = DataPath(STDIN, checked=False)
OUT = DataPath(STDOUT)
FOLDER = DataPath(None, folder="filled")
BUNDLE = DataPath(None, folder="replaced")


INTEGER_TEXT = re.compile(r"[+-]?[0-9]{1,18}")
"""The digits of an integer that fits 64 bits. ``int`` would also read 1_000 and digits of other scripts."""
NUMBER_TEXT = re.compile(r"\+?inf|[+-]?(?=\.?[0-9])[0-9]*\.?[0-9]*(?:e[+-]?[0-9]+)?", re.IGNORECASE)


class IntegerRange(click.IntRange):
    """An integer in a range. The usage error for another text has an example."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the integer. Raises a usage error with an example for another text."""
        if INTEGER_TEXT.fullmatch(str(value).strip()) is None:
            self.fail(f"{value!r} is not an integer; write at most 18 digits, as in 1024", param, ctx)
        return super().convert(value, param, ctx)


class NumberRange(click.FloatRange):
    """A number in a range, in the unit of the option's help. inf is valid, but no number that is too large to hold."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises a usage error with an example for another text."""
        text = str(value).strip()
        if NUMBER_TEXT.fullmatch(text) is None or (isinf(float(text)) and "inf" not in text.lower()):
            unit = f" of {param.metavar.lower()}" if isinstance(param, click.Option) and param.metavar else ""
            self.fail(f"{value!r} is not a number{unit}; write it without a unit, as in 30", param, ctx)
        return super().convert(value, param, ctx)


MAX_INT32 = 2**31 - 1
"""The largest size. It is repeated here, because the features' modules import NumPy."""
COUNT = IntegerRange(min=1)
INDEX = IntegerRange(min=0)
SIZE = IntegerRange(1, MAX_INT32)
POSITIVE = NumberRange(min=0, min_open=True)
NOT_NEGATIVE = NumberRange(min=0)


class WordChoice(click.Choice):
    """One of several words, in upper or lower case. The usage error names the nearest word."""

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__(choices, case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.rstrip('.')}{nearest(str(value), self.choices)}", param, ctx)


class SettingChoice(WordChoice):
    """A value of a problem's setting, by any of its names, such as ``float16`` for fp16."""

    def __init__(self, setting: str, choices: Sequence[str]) -> None:
        super().__init__(choices)
        self.setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value by the name that this package uses."""
        from surrogate.features.problem import setting as setting_value

        return super().convert(setting_value(self.setting, value), param, ctx)


class SingleOption(click.Option):
    """An option that may be given once. click itself would silently take the last of several values.

    In the help, an unnamed integer is N and an unnamed number is X.
    """

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, **settings)
        if self.metavar is None and isinstance(self.type, click.types.IntParamType | click.types.FloatParamType):
            self.metavar = "N" if isinstance(self.type, click.types.IntParamType) else "X"

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Make the parser keep every value."""
        if self.is_flag or self.multiple:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Any) -> tuple[Any, Any]:
        """Return the value. Raises a usage error if there are several."""
        values = opts.get(self.name)
        if self.multiple or not isinstance(values, list):
            return super().consume_value(ctx, opts)
        if len(values) > 1 and not ctx.resilient_parsing:
            compares_gpus = self.name == "gpu" and any(each.name == "compare_gpus" for each in ctx.command.params)
            is_list = "," in (self.metavar or "")
            remedy = "the others with --compare-gpus" if compares_gpus else "them with commas" if is_list else "one"
            given = f"{self.opts[0]} is given {len(values)} times ({', '.join(values)})"
            raise click.UsageError(f"{given}; give {remedy}", ctx)
        return super().consume_value(ctx, {**opts, self.name: values[0]})


def option(
    names: str, text: str, kind: click.ParamType | type | Collection[str] | None = None, **settings: Any
) -> Callable[[Function], Function]:
    """Return a decorator that adds an option to a command.

    ``names`` are the flags, followed by the parameter's name if it differs. ``text`` is the help. ``kind`` is a type of
    click, or the words to choose from. ``settings`` are arguments of `click.option`.
    """
    if kind is not None and not isinstance(kind, click.ParamType | type):
        kind = WordChoice(tuple(kind))
    return click.option(*names.split(), cls=SingleOption, help=text, type=kind, **settings)


def combined(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return one decorator that adds several options in the order given."""

    def add(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


class GpuName(click.ParamType):
    """A GPU by any name. If the name fits several boards, a note on standard error names the one that is used."""

    name = "G"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name unchanged. The note is printed after the answer, but not after an error."""

        def print_note() -> None:
            if isinstance(sys.exc_info()[1], SystemExit | click.exceptions.Exit | None):
                echo(f"seer: {board_notes(value)[0]}", err=True)

        if board_notes(value) and ctx:
            ctx.call_on_close(print_note)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return registry names, or else aliases, that begin with ``incomplete``; [] if SEER_GPUS is unreadable."""
        from surrogate.features.gpu import gpus

        try:
            registered = gpus()
        except InputError:
            return []
        prefix = incomplete.casefold()
        names = [gpu.name for gpu in registered if gpu.name.casefold().startswith(prefix)]
        aliases = {alias for gpu in registered for alias in gpu.aliases if alias.casefold().startswith(prefix)}
        return [CompletionItem(name) for name in names or sorted(aliases)]


GPU = GpuName()


class Bytes(click.ParamType):
    """A number of bytes, as in 64MiB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        from surrogate.prediction.results import parse_bytes

        return value if isinstance(value, int) else parse_bytes(value)


BYTES = Bytes()


def sizes_option(names: str, text: str) -> Callable[[Function], Function]:
    """Return a decorator that adds an option of integers with commas between them, as in 1,2,4."""
    return option(names, text, metavar="N,N,…", callback=_sizes)


def _sizes(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return the distinct numbers. Raises a usage error for another text."""
    parts = [] if text is None else text.split(",")
    try:
        return tuple(dict.fromkeys(SIZE.convert(part, None, None) for part in parts))
    except click.BadParameter:
        message = f"{text!r} is not a list of integers from 1; write them as in 1,2,4,8"
        raise click.BadParameter(message, context, parameter) from None


def _gpu_names(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str]:
    """Return the names in ``A,B,…``."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text and not names:
        raise click.BadParameter(f"{text!r} names no GPU; write them as in v100,t4", context, parameter)
    return [GPU.convert(name, parameter, context) for name in names]


def _price(context: click.Context, parameter: click.Parameter, text: str | None) -> float | dict[str, float] | None:
    """Return US dollars per GPU and hour: one number, or NAME=X,NAME=X."""
    parts = [part.partition("=") for part in (text or "").split(",") if part.strip()]
    try:
        prices = {name.strip(): POSITIVE.convert(usd or name, None, None) for name, _, usd in parts}
    except click.BadParameter:
        prices = {}
    is_one = len(parts) == 1 and not parts[0][1]
    # A decimal comma would give two parts, and a name that comes twice one price.
    is_list = is_one or (all(equals for _, equals, _ in parts) and len(prices) == len(parts))
    if text is not None and not (prices and is_list and float("inf") not in prices.values()):
        message = f"{text!r} is not a price; write US dollars per GPU and hour, each GPU once: 2.5 or h100=2.5,h200=3.8"
        raise click.BadParameter(message, context, parameter)
    return next(iter(prices.values())) if is_one else prices or None


price_option = option("--price", HELP["shared"]["price"], metavar="USD", callback=_price)
compare_gpus_option = option("--compare-gpus", "Answer for these GPUs, too.", metavar="A,B,…", callback=_gpu_names)
html_option = option("--html", "Write everything into one HTML file, too.", OUT)
seed_option = option("--seed", "Seed of folds, sampling and search.", INDEX, default=0)
candidates_option = option("--candidates", HELP["shared"]["candidates"], ("all", "listed"))
where_option = option("--where", HELP["shared"]["where"], multiple=True, metavar="COLUMN=VALUE")
rows_options = combined(candidates_option, where_option)
"""The rows of the data that count, and the meaning of missing candidates."""
limit_options = combined(
    option("--workspace-limit", "Maximum workspace of a pick, as in 64MiB, 1GB or 1048576.", BYTES),
    option("--deterministic", "Only algorithms that give the same bits in every run.", is_flag=True),
)
"""Limits on the picked algorithm."""
_COLUMNS = "Columns of a table of your own kernel's configurations:"
_kernel_columns = combined(
    option("--kernel kernel_file", "A description of your own kernel, TOML (`seer data describe`).", PATH),
    option("--sizes", f"{_COLUMNS} numbers of a problem, such as m,n,k.", metavar="A,B"),
    option("--parameters", f"{_COLUMNS} the tuned parameters.", metavar="A,B"),
    option("--settings texts", f"{_COLUMNS} texts of a problem, such as dtype.", metavar="A,B"),
)


def kernel_options(function: Function) -> Function:
    """Add ``--kernel``, ``--sizes``, ``--parameters`` and ``--settings``. The command gets a kernel, or None."""

    @wraps(function)
    def with_kernel(*words: Any, **options: Any) -> Any:
        columns = [options.pop(name) for name in ("kernel_file", "sizes", "parameters", "texts")]
        files = [each for name in ("data", "paths") if isinstance(each := options.get(name), tuple)]
        unmatched = [str(file) for each in files for file in each if not file.suffix and not file.exists()]
        kernel = None
        if any(columns):
            if unmatched:
                raise InputError(
                    f"{', '.join(unmatched)}: no such file; write names of columns with commas, as in m,n,k"
                )
            from surrogate.dataset.described import KernelOptions

            kernel = KernelOptions(*columns).description_or_columns
        return function(*words, kernel=kernel, **options)

    return cast(Function, _kernel_columns(with_kernel))


def _tree_device(context: click.Context, parameter: click.Parameter, device: str) -> str:
    """Return the device. Raises a usage error if XGBoost finds no GPU; it would silently use the CPU."""
    if device == "cuda":
        import warnings

        import xgboost

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            xgboost.train({"device": device}, xgboost.DMatrix([[0.0]], label=[0.0]), num_boost_round=1)
        if warned:
            raise click.BadParameter("XGBoost finds no CUDA device; leave the option out", context, parameter)
    return device


class RowOptions(NamedTuple):
    """The values of `fit_options` that concern rows of tables, in the order of `load_dataset`'s parameters."""

    candidates: str | None
    where: tuple[str, ...]
    kernel: "Kernel | None"


def as_object(kind: type, name: str, *options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return a decorator that adds ``options``; the command receives them as one ``kind`` object called ``name``."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def with_object(**values: Any) -> Any:
            field_values = {field: values.pop(field) for field in signature(kind).parameters}
            return function(**values, **{name: kind(**field_values)})

        return combined(*options)(cast(Function, with_object))

    return decorate


fit_options = combined(
    option("--device", "The device on which XGBoost trains.", ("cpu", "cuda"), default="cpu", callback=_tree_device),
    option("--candidate", HELP["shared"]["candidate"], ("algorithm", "solver"), default="algorithm"),
    as_object(RowOptions, "rows", rows_options, kernel_options),
)
"""Options of a fit. The command gets `RowOptions`."""
training_options = combined(click.argument("data", nargs=-1, required=True, type=PATH), fit_options, seed_option)
"""DATA, the options of a fit, and the seed."""


def echo(*lines: str, width: int | None = None, indent: str = GAP, err: bool = False) -> None:
    """Print lines. Each is one line of printable characters, wrapped to ``width`` characters if it is given."""
    for line in lines:
        click.echo(wrapped(printable(line), width, indent), err=err)


def output_option(text: str, required: bool = True, kind: DataPath = OUT) -> Callable[[Function], Function]:
    """Return a decorator that adds ``-o``: a file, or a folder if ``kind`` is `FOLDER` or `BUNDLE`."""
    return option("-o --output", text, kind, required=required)


def refuse_input(output: Path, *inputs: Path) -> None:
    """Raise `InputError` if the output would replace an input by a file of another kind."""
    if output.is_file() and any(path.exists() and path.samefile(output) for path in inputs):
        raise InputError(f"{output} is also the input, which would be lost; give another name for the output")


def print_written(output: Path, text: str) -> None:
    """Print a line about the written output. If the output is standard output, the line goes to standard error."""
    echo(*text.split("\n"), err=output == STDOUT)


def output_options(function: Function) -> Function:
    """Add ``--json`` and ``--csv``. The command gets the output ``form``."""

    @wraps(function)
    def with_form(*words: Any, as_json: bool, as_csv: bool, **options: Any) -> Any:
        if as_json and as_csv:
            raise InputError("--json and --csv exclude each other; give one of them")
        return function(*words, form="json" if as_json else "csv" if as_csv else "", **options)

    form_flags = combined(
        option("--json as_json", "Print JSON instead of a table.", is_flag=True),
        option("--csv as_csv", "Print CSV instead of a table.", is_flag=True),
    )
    return cast(Function, form_flags(with_form))


def show(
    records: Sequence[Mapping[str, object]],
    form: Form = "",
    *,
    json_value: object = None,
    table: Table | None = None,
    width: int | None = None,
) -> None:
    """Print ``records`` as CSV or as ``table``, or print ``json_value`` (by default the records) as JSON.

    ``width`` is the maximum length of a table's lines if the output is not a terminal.
    """
    if form == "json":
        click.echo(to_json(records if json_value is None else json_value))
    elif form == "csv":
        click.echo(to_csv(records), nl=False)
    else:
        click.echo((table or Table(records)).text(terminal_width() or width))


def board_notes(name: str | None) -> list[str]:
    """Return a note if a name fits several boards, and no note for an unknown name."""
    from surrogate.features.gpu import registry

    try:
        note = registry().ambiguity_note(name) if name else None
    except UnknownGpuError:  # the code that needs the GPU raises it again
        return []
    return [note] if note else []
