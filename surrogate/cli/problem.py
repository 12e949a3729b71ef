"""PROBLEM on the command line: its text, or the field's flags after ``--``; and the options that go with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

from surrogate.cli.groups import TABLE
from surrogate.cli.options import Function, SettingChoice, board_notes, declared, option
from surrogate.features.errors import InputError, nearest

if TYPE_CHECKING:
    from surrogate.features.families import AnyProblem
    from surrogate.prediction.predictor import Predictor

CHOICES: dict[str, list[str]] = {name: setting["choices"] for name, setting in TABLE["settings"].items()}
"""Setting of a problem → the values that its option takes; any where none are listed."""
ALIKE = 0.85
"""From this likeness on a word is a misspelled option, and no flag of a problem (--in_layout is 0.84 of --layout)."""
FLAGS = {"ignore_unknown_options": True}
"""Context settings of a command that takes PROBLEM as flags."""


class Options(TypedDict):
    """What a command gets of `problem_options`, beside the settings of `CHOICES`."""

    gpu: str | None
    bundle: str | None
    library: str | None
    library_version: str | None


def problem_options(function: Function) -> Function:
    """Add PROBLEM, a tuple of words, and the options that say on what, and how, it is computed."""
    for name, choices in reversed(CHOICES.items()):
        setting = TABLE["settings"][name]
        kind = SettingChoice(name, choices) if choices else str
        shown = f"{setting['help'].format(choices=', '.join(choices))}  [default: {setting['default']}]"
        metavar = setting.get("metavar", f"[{'|'.join(choices)}]" if choices else None)
        function = option(f"--{name.replace('_', '-')}", shown, kind, metavar=metavar)(function)
    function = declared("problem", folder_name=click.Path())(function)
    return click.argument("problem", nargs=-1, type=click.UNPROCESSED)(function)


def settings_of(options: Options) -> dict[str, str]:
    """The settings that were given, of those that `problem_options` adds."""
    given: dict[str, object] = {**options}
    return {name: str(given[name]) for name in CHOICES if given.get(name) is not None}


def read_problem(words: tuple[str, ...], options: Options) -> "tuple[AnyProblem, Predictor]":
    """The problem that the words name, of any family, and the predictor that is asked. Raises `InputError`.

    What a line of MIOpenDriver says of element type, direction and layout counts before the options.
    """
    from surrogate.features.text import EXAMPLE, is_driver_line

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
