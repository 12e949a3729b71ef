"""``seer trace``: what profiler traces say; one small file per command, each imported only when it runs."""

import importlib

import click

COMMANDS = {
    "summary": (
        "summary",
        "The whole model: iterations, busy and idle time, layer types, copies; batch sweeps.",
    ),
    "kernels": ("kernels", "Kernels by name, layer or type, with occupancy, roofline and bound."),
    "spans": ("spans", "The across-stack profile: model, layers, operators, calls, kernels."),
    "simulate": ("simulate", "Replay the trace from its dependency graph: measured and simulated times."),
    "whatif": ("whatif", "What an optimisation would gain: mixed precision, fusion, more workers, …"),
    "iteration": ("iteration", "Iteration times from host overheads and measured or predicted kernels."),
}
"""Command → (module, one-line help); the help of all is shown without importing any."""


class LazyTraceGroup(click.Group):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command object of a module, or None."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"surrogate.cli.trace.{COMMANDS[cmd_name][0]}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from `COMMANDS`, no module imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyTraceGroup)
def command() -> None:
    """Analyse a trace: PyTorch profiler JSON (.json, .json.gz) or an Nsight Systems sqlite export."""
