"""PROBLEM on the command line: its text, or the field's flags after ``--``; and the options that go with it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from features.conv import Conv
    from surrogate.predictor import Predictor

# written out here, so that help needs no numeric library; a test holds them to `features.problem`
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
        click.option("--direction", type=click.Choice(DIRECTIONS), default="fwd", show_default=True),
        click.option("--layout", type=click.Choice(LAYOUTS), default="NCHW", show_default=True),
        click.option("--math", type=click.Choice(MATHS), default="fma", show_default=True, help="Math type."),
        click.option(
            "--dtype", type=click.Choice(DTYPES), default="fp32", show_default=True, help="Element type."
        ),
        click.option(
            "--library-version", metavar="V", help="As in 8.9.2. [the newest that the bundle knows]"
        ),
        click.option(
            "--library", metavar="NAME", help="cudnn, miopen or reference, where the bundle knows several."
        ),
        click.option(
            "--bundle",
            type=click.Path(),
            help="A folder made by `seer train`. [the one that ships for the GPU]",
        ),
        click.option(
            "--gpu", metavar="G", help="The GPU that is asked about, by any name; `seer gpus` lists them."
        ),
    ):
        function = option(function)
    return function


def read_problem(words: tuple[str, ...], options: dict[str, Any]) -> "Conv":
    """The problem that the words name. Raises `InputError` naming what is wrong."""
    from features.errors import InputError
    from features.text import EXAMPLE, parse, parse_flags

    settings = {name: options[name] for name in ("dtype", "math", "layout", "direction")}
    if not words:
        raise InputError(f"no PROBLEM given; it looks like {EXAMPLE}, or like -- -n 32 -c 256 -H 14 …")
    if len(words) == 1:
        return parse(words[0], **settings)
    return parse_flags(list(words), **settings)


def open_predictor(options: dict[str, Any]) -> "Predictor":
    """The predictor that ``--gpu`` and ``--bundle`` name: numpy alone answers, since one question is all there is."""
    from pathlib import Path

    from features.errors import InputError
    from surrogate.predictor import load

    gpu, bundle, library = options["gpu"], options["bundle"], options["library"]
    if bundle:
        return load(Path(bundle), gpu=gpu, library=library, backend="numpy")
    if not gpu:
        raise InputError("no GPU named; give --gpu G (`seer gpus` lists them), or --bundle B")
    return load(gpu, library=library, backend="numpy")
