"""Groups of commands: each command imported only when it runs, and shown with its examples."""

import importlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import Function
from surrogate.features.errors import nearest

TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
"""What commands and options say of themselves; the file says what its sections are."""


class CommandGroup(click.Group):
    """A group whose help alone is an answer to no command, and that names the nearest to an unknown one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words that are left for the command; without any, the help on standard error and exit status 2."""
        if not args and not ctx.resilient_parsing:  # as a shell's completion has it
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with its examples below its help, or None."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _examples_last(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names; a usage error with the nearest names for an unknown one."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(f"no command {name!r}{nearest(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands with the whole first sentence of each one's help."""
        named = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=200)) for name, each in named.items() if each])


class Grouped(click.Command):
    """A command whose help has its options in sections, which `section` begins; --help comes last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list for each section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                sections.setdefault(getattr(each, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def section(title: str) -> Callable[[Function], Function]:
    """Begin a section of a `Grouped` command's help: it holds the options below, up to the next section."""

    def begin(function: Function) -> Function:
        for each in getattr(function, "__click_params__", ()):
            each.section = getattr(each, "section", title)
        return function

    return begin


def _examples_last(command: click.Command) -> None:
    """Move the examples that a command's docstring ends with below its options, their lines as they are."""
    text, title, lines = cleandoc(command.help or "").partition("Examples:\n")
    if title:
        command.help = text.rstrip()
        command.epilog = f"\b\n{title}{lines}"


class LazyGroup(CommandGroup):
    """Imports a command's module when the command is asked for, so that help stays fast.

    ``lazy`` maps each command to its module in ``package`` and its one-line help, in the order people need them; a
    module's ``command`` is the command.
    """

    def __init__(self, *, package: str, lazy: Mapping[str, Sequence[str]], **settings: Any) -> None:
        super().__init__(**settings)
        self._package = package
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order people need them."""
        return list(self._lazy)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands with their one-line helps, no module imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now, or None."""
        if cmd_name in self._lazy and cmd_name not in self.commands:
            module, _, function = self._lazy[cmd_name][0].partition(".")
            command = getattr(importlib.import_module(f"{self._package}.{module}"), function or "command")
            self.add_command(command, cmd_name)
        return super().get_command(ctx, cmd_name)
