"""Help texts: every command and option is explained within 80 columns, with examples that parse."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import click
import pytest

from surrogate.cli import seer
from surrogate.cli.groups import Grouped
from surrogate.collect.plan_source import ALL, GRIDS
from surrogate.features.families.attention import KV_DTYPES
from surrogate.features.gpu import gpu
from surrogate.features.problem import ELEMENTS, HALF, LAYOUTS, MATHS
from surrogate.network.network import FRAMEWORKS
from surrogate.network.optimizers import OPTIMIZERS
from surrogate.network.runtime import HOSTS, RUNTIMES

SAME_OPTIONS = {"--json", "--csv", "--where", "--candidate", "--candidates", "--html"}
"""Options that have the same meaning in every command."""


def _walk(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=80, help_option_names=["-h", "--help"]
    )
    yield context
    if isinstance(command, click.Group):
        for subcommand in command.list_commands(context):
            found = command.get_command(context, subcommand)
            assert found is not None
            yield from _walk(found, subcommand, context)


CONTEXTS = {context.command_path: context for context in _walk(seer, "seer")}


EXAMPLES = {
    path: [line.strip() for line in (context.command.epilog or "").splitlines()[2:]]
    for path, context in CONTEXTS.items()
}
"""Command → the example lines of its help."""


def _options(context: click.Context) -> list[click.Option]:
    return [option for option in context.command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize("path", CONTEXTS)
def test_every_option_has_a_help_text_within_80_columns(path: str) -> None:
    context = CONTEXTS[path]
    assert context.command.help or context.command.short_help
    assert [option.opts for option in _options(context) if not option.help] == []
    assert [line for line in context.get_help().splitlines() if len(line) > 80] == []
    assert "INTEGER" not in context.get_help() and "FLOAT" not in context.get_help()


@pytest.mark.parametrize("path", [path for path, c in CONTEXTS.items() if isinstance(c.command, Grouped)])
def test_every_option_of_a_grouped_help_is_in_a_group(path: str) -> None:
    _, _, rest = CONTEXTS[path].get_help().partition("\nOptions:\n")
    assert re.findall(r"^  (-\S+)", rest, re.MULTILINE) == ["-h,"]


@pytest.mark.parametrize("path", [path for path in CONTEXTS if path != "seer"])
def test_every_command_ends_with_examples_that_parse(path: str) -> None:
    assert EXAMPLES[path], f"end the docstring of {path} with Examples: and a line"
    assert f"    {EXAMPLES[path][0]}" in CONTEXTS[path].get_help().splitlines()
    for line in EXAMPLES[path]:
        words = shlex.split(line)
        names = [words.pop(0)]
        command: click.Command = seer
        while isinstance(command, click.Group):
            inside = command.get_command(CONTEXTS[" ".join(names)], words[0])
            assert inside is not None, line
            command = inside
            names.append(words.pop(0))
        command.make_context(names[-1], words, parent=CONTEXTS[" ".join(names[:-1])])


def test_options_with_the_same_name_are_the_same() -> None:
    found = defaultdict(set)
    for context in CONTEXTS.values():
        for option in _options(context):
            for name in SAME_OPTIONS & set(option.opts):
                found[name].add((option.help, option.is_flag, option.multiple))
            if "-o" in option.opts or ("--output" in option.opts and option.metavar != "TOKENS"):
                assert {"-o", "--output"} <= set(option.opts), context.command_path
    assert {name: len(kinds) for name, kinds in found.items()} == dict.fromkeys(SAME_OPTIONS, 1)


def test_the_help_of_collect_names_every_grid() -> None:
    (grid,) = (option for option in _options(CONTEXTS["seer collect"]) if option.name == "grid")
    assert set(re.findall(r"seer[\w-]*", str(grid.help))) == {ALL, *GRIDS}


def test_the_choices_of_network_match_the_modules() -> None:
    """The choices are written out, because the modules that define them import NumPy."""
    names = ("dtype", "amp", "math", "layout", "kv_dtype", "runtime", "host", "optimizer", "library")
    kinds = (ELEMENTS, HALF, MATHS, LAYOUTS, KV_DTYPES, RUNTIMES, HOSTS, OPTIMIZERS, FRAMEWORKS)
    expected = dict(zip(names, kinds, strict=True))
    types = {option.name: option.type for option in _options(CONTEXTS["seer network"])}
    offered = {name: set(kind.choices) for name, kind in types.items() if isinstance(kind, click.Choice)}
    assert offered == {name: set(words) for name, words in expected.items()}


def test_commands_with_json_also_have_csv() -> None:
    have_json = 0
    for context in CONTEXTS.values():
        names = {name for option in _options(context) for name in option.opts}
        assert ("--json" in names) == ("--csv" in names), context.command_path
        have_json += "--json" in names
    assert have_json > 10


def test_gpus_in_examples_are_registered() -> None:
    """An example must not be refused because its GPU is unknown or ambiguous."""
    lines = [line for examples in EXAMPLES.values() for line in examples]
    words = [shlex.split(line) for line in lines]
    options = {"--gpu", "--own-gpu", "--compare-gpus"}
    values = [value for line in words for option, value in pairwise(line) if option in options]
    assert values
    for name in ",".join(values).split(","):
        assert gpu(name).name
