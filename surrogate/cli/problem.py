"""PROBLEM on the command line: its text, or the field's flags after ``--``; and the options that go with it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.options import GPU, SettingChoice, board_notes, combined, option
from surrogate.features.errors import InputError, nearest

if TYPE_CHECKING:
    from surrogate.features.families import AnyProblem
    from surrogate.prediction.predictor import Predictor

CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": (
        *("fp32", "fp16", "bf16", "fp64", "int8", "fp8", "fp8_block", "nvfp4", "int8_wo", "int4_wo", "int8_sq"),
        *("w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "w4afp8"),
    ),
    "math": ("fma", "default", "tensor_op", "tensor_op_allow_conversion"),
    "layout": ("NCHW", "NHWC"),
    "direction": ("fwd", "bwd_data", "bwd_filter"),
    "phase": ("context", "generation", "encoder"),
    "kv_dtype": ("bf16", "fp16", "fp8", "fp32"),
    "routing": (),
    "variant": (),
}
"""Setting of a problem → the values that its option takes (any if none are listed), which a test holds to the
families'; written here because the families' modules import NumPy."""
ALIKE = 0.85
"""From this likeness on a word is a misspelled option, and no flag of a problem (--in_layout is 0.84 of --layout)."""
FLAGS = {"ignore_unknown_options": True}
"""Context settings of a command that takes PROBLEM as flags."""


Options = Mapping[str, Any]
"""What a command gets of `problem_options` or `setting_options`: parameter → value, None if it was not given."""


def _setting(name: str, text: str, default: str, **settings: Any) -> Callable[..., Any]:
    """Return the option of a problem's setting; ``default`` says what stands in for it."""
    kind = SettingChoice(name, CHOICES[name]) if CHOICES[name] else str
    return option(f"--{name.replace('_', '-')}", f"{text}  [default: {default}]", kind, **settings)


setting_options = combined(
    _setting(
        "dtype", f"Element type: {', '.join(CHOICES['dtype'])}.", "fp32; bf16 for attention and experts", metavar="TYPE"
    ),
    _setting("math", "Math type.", "as PyTorch runs it on the GPU"),
    _setting("layout", "Of a convolution's tensors in memory.", "NCHW", metavar="[NCHW|NHWC]"),
    _setting("direction", "A convolution forward, or one of its gradients.", "fwd"),
    _setting("phase", "Of attention: a prompt, tokens after it, or an encoder.", "by the query's length"),
    _setting("kv_dtype", "Element type of cached keys and values.", "as --dtype"),
    _setting("routing", "How tokens spread over experts, as power_law_1.2.", "balanced"),
    _setting(
        "variant",
        "A mode of the kernel: of AMD's products Tensile's type and transposes, as 'HSS NT'; of experts, nongated.",
        "the usual one",
    ),
)
"""The settings of a problem."""

problem_options = combined(
    click.argument("problem", nargs=-1, type=click.UNPROCESSED),
    option("--gpu", "The GPU that is asked about, by any name; `seer gpus` lists them.", GPU),
    option("--bundle", "A folder made by `seer train`.  [default: the one that ships for the GPU]", click.Path()),
    option("--library", "Candidates of one library only, as cudnn or miopen.", metavar="NAME"),
    option("--library-version", "As in 8.9.2.  [default: the newest that the bundle knows]", metavar="V"),
    setting_options,
)
"""PROBLEM, a tuple of words, and the options that say on what, and how, it is computed."""


def settings_of(options: Options) -> dict[str, str]:
    """Return the settings that were given."""
    return {name: str(options[name]) for name in CHOICES if options.get(name) is not None}


def read_problem(words: tuple[str, ...], options: Options) -> "tuple[AnyProblem, Predictor]":
    """The problem that the words name, of any family, and the predictor that is asked. Raises `InputError`.

    What a line of MIOpenDriver says of element type, direction and layout counts before the options.
    """
    from surrogate.features.conv import EXAMPLE, is_driver_line

    if not words:
        raise InputError(f"no PROBLEM given; it looks like {EXAMPLE}, or like -- -n 32 -c 256 -H 14 …")
    known = [name for each in click.get_current_context().command.params for name in each.opts if name[:2] == "--"]
    for word in words:
        if word.startswith("--") and (hint := nearest(word, known, cutoff=ALIKE)):
            raise InputError(f"no option {word}{hint}")
    if len(words) > 1 and not words[0].startswith("-") and not is_driver_line(words):
        if wrong := next((word for word in words if word.startswith("--")), None):
            raise InputError(f"no option {wrong}; --help lists those that there are")
        raise InputError(
            f"{len(words)} words came as PROBLEM, {words[0]!r} first; give one, or a file of them to `seer export`"
        )
    predictor = open_predictor(options)
    return predictor.read(" ".join(words), **settings_of(options)), predictor


def open_predictor(options: Options) -> "Predictor":
    """The predictor that ``--gpu`` and ``--bundle`` name."""
    from surrogate.prediction.shipped import load

    gpu = options["gpu"]
    if options["bundle"] is not None:
        return load(Path(options["bundle"]), gpu=gpu, library=options["library"])
    if not gpu:
        raise InputError("no GPU named; give --gpu G (`seer gpus` lists them), or --bundle B")
    return load(gpu, library=options["library"])


def with_notes(answer: dict[str, Any], name: str | None) -> dict[str, Any]:
    """An answer for JSON, where `board_notes` stand first among its notes."""
    return answer | {"notes": board_notes(name) + answer["notes"]}
