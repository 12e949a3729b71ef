"""The experiments, and the recorded commands and times of their runs."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pandas as pd

from experiments.experiment import HOME, Experiment
from surrogate.dataset.files import write_text
from surrogate.features.errors import read_toml

_CONTENT = read_toml(__file__)
NAMES: tuple[str, ...] = tuple(_CONTENT["names"])
"""All experiments, in the order of their pages."""
ALONE: tuple[str, ...] = tuple(_CONTENT["alone"])
"""Experiments that measure time. They run alone, and their results differ from run to run."""
RUN_TIMES = HOME / "tables" / "run_times.csv"
"""Commands and seconds of the runs that wrote the committed tables."""


def experiment(name: str) -> Experiment:
    """Return the experiment of a module name (one of `NAMES`)."""
    return import_module(f"experiments.{name}").EXPERIMENT


def record_times(path: Path, runs: Mapping[str, tuple[str, float]]) -> None:
    """Write commands and seconds of ``runs`` (name → both) into the file atomically. Other runs keep their rows."""
    table = pd.read_csv(path if path.is_file() else RUN_TIMES).set_index("experiment")
    for name, (command, seconds) in runs.items():
        table.loc[name] = [command, round(seconds)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, table.to_csv(float_format="%.0f", lineterminator="\n"))
