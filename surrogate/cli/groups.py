"""Groups of commands. A command's module is imported only when the command runs or prints its help."""

import importlib
from collections.abc import Callable
from inspect import cleandoc
from typing import Any

import click

from surrogate.cli.options import Function
from surrogate.features import nearest, read_toml

TABLE: dict[str, dict[str, list[str]]] = read_toml(__file__, "commands.toml")
"""Group → command → its module or module:function, and its one-line help."""


class CommandGroup(click.Group):
    """The commands of one group of `TABLE`. Each is imported when it runs; its examples follow its options.

    Without a command, the group prints its help. The error for an unknown command names the nearest commands.
    """

    def __init__(self, *, table: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._table = TABLE[table]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands, in the order of the table."""
        return list(self._table)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands with their one-line helps. No module is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the command's words. Without any, print the help on standard error and exit with status 2."""
        if not args and not ctx.resilient_parsing:  # a shell's completion parses resiliently
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or return None."""
        if cmd_name not in self._table:
            return None
        module, _, function = self._table[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"surrogate.cli.{module}"), function or "command")
        _examples_last(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. Raises a usage error with the nearest names."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and name not in self._table:
            raise click.UsageError(f"no command {name!r}{self.suggestion(name)}", ctx)
        return super().resolve_command(ctx, args)

    def suggestion(self, name: str) -> str:
        """Return the end of the error for an unknown command: the nearest names."""
        return nearest(name, self._table)


class Grouped(click.Command):
    """A command whose help lists its options in sections. `section` begins one; --help comes last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list per section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                sections.setdefault(getattr(each, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def section(title: str) -> Callable[[Function], Function]:
    """Return a decorator that begins a section in the help of a `Grouped` command.

    The section has the options below, up to the next section.
    """

    def begin(function: Function) -> Function:
        for each in getattr(function, "__click_params__", ()):
            each.section = getattr(each, "section", title)
        return function

    return begin


def _examples_last(command: click.Command) -> None:
    """Move the examples at the end of a command's docstring below its options, line by line."""
    text, title, lines = cleandoc(command.help or "").partition("Examples:\n")
    if title:
        command.help = text.rstrip()
        command.epilog = f"\b\n{title}{lines}"
