"""PROBLEM on the command line: its text, or the field's flags after ``--``; and the options that go with it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.options import GPU, option

if TYPE_CHECKING:
    from surrogate.features.families import AnyProblem
    from surrogate.prediction.predictor import Predictor

# Written out here, so that help needs no numeric library; a test holds them to the families.
DTYPES = (
    "fp32", "fp16", "bf16", "fp64", "int8", "fp8", "fp8_block", "nvfp4", "int8_wo", "int4_wo", "int8_sq",
    "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "w4afp8",
)  # fmt: skip
CHOICES = {
    "dtype": (DTYPES, f"Element type: {', '.join(DTYPES)}."),
    "math": (("fma", "default", "tensor_op", "tensor_op_allow_conversion"), "Math type."),
    "layout": (("NCHW", "NHWC"), "Of a convolution's tensors in memory."),
    "direction": (("fwd", "bwd_data", "bwd_filter"), "A convolution forward, or one of its gradients."),
    "phase": (("context", "generation", "encoder"), "Of attention: a prompt, tokens after it, or an encoder."),
    "kv_dtype": (("bf16", "fp16", "fp8", "fp32"), "Element type of cached keys and values."),
    "routing": ((), "How tokens spread over experts, as power_law_1.2."),
}  # fmt: skip
DEFAULTS = {
    "dtype": "fp32; bf16 for attention and experts", "math": "as PyTorch runs it on the GPU",
    "layout": "NCHW", "direction": "fwd", "phase": "by the query's length", "kv_dtype": "as --dtype",
    "routing": "balanced",
}  # fmt: skip
FLAGS = {"ignore_unknown_options": True}
"""Context settings of a command that takes PROBLEM as flags."""


def problem_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add PROBLEM; the command gets ``problem``, a tuple of words."""
    return click.argument("problem", nargs=-1, type=click.UNPROCESSED)(function)


def problem_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say on what, and how, a problem is computed."""
    for name, (known, text) in reversed(CHOICES.items()):
        kind = click.Choice(known, case_sensitive=False) if known else str
        shown = f"{text}  [default: {DEFAULTS[name]}]"
        metavar = "TYPE" if known is DTYPES else f"[{'|'.join(known)}]" if known else None
        function = option(f"--{name.replace('_', '-')}", shown, kind, metavar=metavar)(function)
    for add in (
        option("--library-version", "As in 8.9.2.  [default: the newest that the bundle knows]", metavar="V"),
        option("--library", "Candidates of one library only, as cudnn or miopen.", metavar="NAME"),
        option("--bundle", "A folder made by `seer train`.  [default: the one that ships for the GPU]", click.Path()),
        option("--gpu", "The GPU that is asked about, by any name; `seer gpus` lists them.", GPU),
    ):
        function = add(function)
    return function


def settings_of(options: dict[str, Any]) -> dict[str, str]:
    """The settings that were given, of those that `problem_options` adds."""
    return {name: options[name] for name in CHOICES if options.get(name) is not None}


def read_problem(words: tuple[str, ...], options: dict[str, Any]) -> "tuple[AnyProblem, Predictor]":
    """The problem that the words name, of any family, and the predictor that is asked. Raises `InputError`.

    What a line of MIOpenDriver says of element type, direction and layout counts before the options.
    """
    from surrogate.features.errors import InputError
    from surrogate.features.text import EXAMPLE, is_driver_line

    if not words:
        raise InputError(f"no PROBLEM given; it looks like {EXAMPLE}, or like -- -n 32 -c 256 -H 14 …")
    if len(words) > 1 and not words[0].startswith("-") and not is_driver_line(words):
        raise InputError(
            f"{len(words)} words came as PROBLEM, {words[0]!r} first; give one, or a file of them to `seer export`"
        )
    predictor = open_predictor(options)
    return predictor.read(" ".join(words), **settings_of(options)), predictor


def open_predictor(options: dict[str, Any]) -> "Predictor":
    """The predictor that ``--gpu`` and ``--bundle`` name."""
    from pathlib import Path

    from surrogate.features.errors import InputError
    from surrogate.prediction.shipped import load

    gpu, bundle, library = options["gpu"], options["bundle"], options["library"]
    if bundle is not None:
        return load(Path(bundle), gpu=gpu, library=library)
    if not gpu:
        raise InputError("no GPU named; give --gpu G (`seer gpus` lists them), or --bundle B")
    return load(gpu, library=library)
