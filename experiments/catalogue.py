"""All experiments, in the order in which the results table lists them."""

from importlib import import_module

from experiments.experiment import Experiment

NAMES = (
    "test_set_i",
    "test_set_ii",
    "picker",
    "same_rows",
    "learning_curve",
    "leave_one_gpu_out",
    "calibration",
    "miopen",
    "small_to_large",
    "versions",
    "worst_errors",
    "winners_3x3",
    "objectives",
    "ablation",
    "networks",
    "end_to_end",
    "coverage",
    "operators",
    "dense_unseen_gpu",
    "iteration_time",
    "replay_error",
    "what_if",
    "speed",
)
ALONE = ("speed",)
"""Those that read clocks: nothing runs beside them, and they do not repeat bit for bit."""


def experiment(name: str) -> Experiment:
    """The experiment of that module name (one of `NAMES`)."""
    return import_module(f"experiments.{name}").EXPERIMENT
