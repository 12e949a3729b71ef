"""PROBLEM on the command line: its text, or the field's flags after ``--``; and the options that go with it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.completion import gpu_names

if TYPE_CHECKING:
    from surrogate.features.conv import Conv
    from surrogate.prediction.predictor import Predictor

# written out here, so that help needs no numeric library; a test holds them to `surrogate.features.problem`
MATHS = ("fma", "default", "tensor_op", "tensor_op_allow_conversion")
DTYPES = ("fp32", "fp16", "bf16", "fp64", "int8")
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
LAYOUTS = ("NCHW", "NHWC")
FLAGS = {"ignore_unknown_options": True}
"""Context settings of a command that takes PROBLEM as flags."""


def problem_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add PROBLEM; the command gets ``problem``, a tuple of words."""
    return click.argument("problem", nargs=-1, type=click.UNPROCESSED)(function)


def problem_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say on what, and how, a problem is computed."""
    for option in (
        _choice("--direction", DIRECTIONS, "fwd", "Forward, or one of the gradients."),
        _choice("--layout", LAYOUTS, "NCHW", "Of the tensors in memory."),
        _choice("--math", MATHS, "fma", "Math type."),
        _choice("--dtype", DTYPES, "fp32", "Element type."),
        click.option(
            "--library-version", metavar="V", help="As in 8.9.2.  [default: the newest that the bundle knows]"
        ),
        click.option(
            "--library", metavar="NAME", help="cudnn, miopen or reference, where the bundle knows several."
        ),
        click.option(
            "--bundle",
            type=click.Path(),
            help="A folder made by `seer train`.  [default: the one that ships for the GPU]",
        ),
        click.option(
            "--gpu",
            metavar="G",
            shell_complete=gpu_names,
            help="The GPU that is asked about, by any name; `seer gpus` lists them.",
        ),
    ):
        function = option(function)
    return function


def _choice(name: str, known: tuple[str, ...], default: str, text: str) -> Callable[..., Any]:
    """An option of known values, in capitals or not."""
    kind = click.Choice(known, case_sensitive=False)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def read_problem(words: tuple[str, ...], options: dict[str, Any]) -> "Conv":
    """The problem that the words name. Raises `InputError` naming what is wrong.

    What a line of MIOpenDriver says of element type, direction and layout counts before the options.
    """
    from surrogate.cli.driver_line import is_driver_line, read_driver_line
    from surrogate.features.errors import InputError
    from surrogate.features.text import EXAMPLE, parse, parse_flags

    settings = {name: options[name] for name in ("dtype", "math", "layout", "direction")}
    if len(words) == 1:
        words = tuple(words[0].split())  # flags, or a driver's line, in quotes
    if not words:
        raise InputError(f"no PROBLEM given; it looks like {EXAMPLE}, or like -- -n 32 -c 256 -H 14 …")
    if is_driver_line(words):
        flags, own = read_driver_line(words)
        return parse_flags(flags, **settings | own)
    if len(words) == 1:
        return parse(words[0], **settings)
    if not words[0].startswith("-"):
        raise InputError(
            f"{len(words)} words came as PROBLEM, {words[0]!r} first; give one, or a file of them to `seer export`"
        )
    return parse_flags(list(words), **settings)


def open_predictor(options: dict[str, Any]) -> "Predictor":
    """The predictor that ``--gpu`` and ``--bundle`` name: numpy alone answers, since one question is all there is."""
    from pathlib import Path

    from surrogate.features.errors import InputError
    from surrogate.prediction.predictor import load

    gpu, bundle, library = options["gpu"], options["bundle"], options["library"]
    if bundle is not None:
        return load(Path(bundle), gpu=gpu, library=library, backend="numpy")
    if not gpu:
        raise InputError("no GPU named; give --gpu G (`seer gpus` lists them), or --bundle B")
    return load(gpu, library=library, backend="numpy")
