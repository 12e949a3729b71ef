"""Groups of commands: each command imported only when it runs, and shown with its examples."""

import importlib
import tomllib
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import Function
from surrogate.features.errors import nearest

TABLE: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("commands.toml").read_text(encoding="utf-8")
)
"""Group → command → its module or module:function, and its one-line help."""


class CommandGroup(click.Group):
    """The commands of a table of `TABLE`: each imported when it runs, its examples below its help.

    Help alone is an answer to no command. An unknown command is answered with the nearest names.
    """

    def __init__(self, *, table: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._table = TABLE[table]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands, in the order people need them."""
        return list(self._table)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands with their one-line helps; no module is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words that are left for the command; without any, the help on standard error and exit status 2."""
        if not args and not ctx.resilient_parsing:  # as a shell's completion has it
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now, or None."""
        if cmd_name not in self._table:
            return None
        module, _, function = self._table[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"surrogate.cli.{module}"), function or "command")
        _examples_last(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names; a usage error with the nearest names for an unknown one."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and name not in self._table:
            raise click.UsageError(f"no command {name!r}{nearest(name, self._table)}", ctx)
        return super().resolve_command(ctx, args)


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
