"""``seer trace``: what profiler traces say; one small file per command, each imported only when it runs."""

import click

from surrogate.cli.groups import LazyGroup

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


@click.group(cls=LazyGroup, package="surrogate.cli.trace", lazy=COMMANDS)
def command() -> None:
    """Analyse a trace: PyTorch profiler JSON (.json, .json.gz) or an Nsight Systems sqlite export."""
