"""PROBLEM on the command line, as a text or as flags after ``--``, and its options."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.options import GPU, SettingChoice, board_notes, combined, option
from surrogate.features import InputError, nearest, read_toml

if TYPE_CHECKING:
    from surrogate.features.families import AnyProblem
    from surrogate.prediction.predictor import Predictor

_SETTINGS = read_toml(__file__)
CHOICES: dict[str, tuple[str, ...]] = {name: tuple(row["choices"]) for name, row in _SETTINGS.items()}
"""Setting of a problem → the values of its option. An empty tuple means any value."""
MIN_SIMILARITY = 0.85
"""A word of at least this similarity is a misspelled option, not a problem's flag (--in_layout to --layout: 0.84)."""
FLAGS = {"ignore_unknown_options": True}
"""Context settings of a command that takes PROBLEM as flags."""


Options = Mapping[str, Any]
"""Parameters of `problem_options` or `setting_options` → values; None for an option that was not given."""


def _setting(name: str, choices: list[str], meaning: str, default: str, **settings: str) -> Callable[..., Any]:
    """Return the option of a problem's setting. ``default`` explains its default value."""
    text = f"{meaning.format(choices=', '.join(choices))}  [default: {default}]"
    return option(f"--{name.replace('_', '-')}", text, SettingChoice(name, choices) if choices else str, **settings)


setting_options = combined(*(_setting(name, **row) for name, row in _SETTINGS.items()))
"""The settings of a problem."""

problem_options = combined(
    click.argument("problem", nargs=-1, type=click.UNPROCESSED),
    option("--gpu", "The GPU, by any name; `seer gpus` lists them.", GPU),
    option("--bundle", "A folder of `seer train`.  [default: the shipped bundle for the GPU]", click.Path()),
    option("--library", "Candidates of one library only, such as cudnn or miopen.", metavar="NAME"),
    option("--library-version", "Version, such as 8.9.2.  [default: the newest in the bundle]", metavar="V"),
    setting_options,
)
"""PROBLEM, a tuple of words, and the options of its GPU, bundle and settings."""


def settings_of(options: Options) -> dict[str, str]:
    """Return the settings that were given."""
    return {name: str(options[name]) for name in CHOICES if options.get(name) is not None}


def read_problem(words: tuple[str, ...], options: Options) -> "tuple[AnyProblem, Predictor]":
    """Return the problem that the words name, of any family, and its predictor. Raises `InputError`.

    Element type, direction and layout in a line of MIOpenDriver override the options.
    """
    from surrogate.features.conv import EXAMPLE, is_driver_line

    if not words:
        raise InputError(f"no PROBLEM given; write it as {EXAMPLE}, or as -- -n 32 -c 256 -H 14 …")
    flags = [name for each in click.get_current_context().command.params for name in each.opts if name[:2] == "--"]
    is_line = is_driver_line(" ".join(words))
    for word in () if is_line else words:
        if word.startswith("--") and (hint := nearest(word, flags, cutoff=MIN_SIMILARITY)):
            raise InputError(f"no option {word}{hint}")
    is_text = not words[0].startswith("-")
    wrong = next((word for word in words if word.startswith("--")), None)
    if wrong and (len(words) % 2 or is_text) and not is_line:  # flags of a problem are pairs of words
        raise InputError(f"no option {wrong}; --help lists the options")
    if len(words) > 1 and is_text and not is_line:
        raise InputError(f"PROBLEM is {len(words)} words, {words[0]!r} first; give one, or a file to `seer export`")
    predictor = open_predictor(options)
    return predictor.read(" ".join(words), **settings_of(options)), predictor


def open_predictor(options: Options) -> "Predictor":
    """Return the predictor for ``--gpu`` and ``--bundle``."""
    from surrogate.prediction.shipped import load

    gpu = options["gpu"]
    if options["bundle"] is not None:
        return load(Path(options["bundle"]), gpu=gpu, library=options["library"])
    if not gpu:
        raise InputError(
            "no GPU given; give --gpu G (`seer gpus` lists them), or --bundle B; a table of several GPUs needs a bundle"
            " of them, or a file for each GPU"
        )
    return load(gpu, library=options["library"])


def with_notes(answer: dict[str, Any], name: str | None) -> dict[str, Any]:
    """Return an answer for JSON with `board_notes` before its notes."""
    return answer | {"notes": board_notes(name) + answer["notes"]}
