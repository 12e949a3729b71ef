"""An experiment: one question, the files it needs, and a run that answers with a table, a figure and a sentence."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from experiments.effort import Effort
from experiments.sources import Sources
from surrogate.dataset.files import write_text

HOME = Path(__file__).resolve().parent
"""Where tables/, figures/ and README.md lie."""


@dataclass(frozen=True)
class Outcome:
    """``table`` (plain columns), ``figure`` as SVG text (None: nothing to draw), ``answer`` in one sentence or two."""

    table: pd.DataFrame
    figure: str | None
    answer: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """``needs`` are source names of `experiments.sources.FILES`, all of them required."""

    name: str
    question: str
    needs: tuple[str, ...]
    run: Callable[[Sources, Effort], Outcome]

    @classmethod
    def of(cls, run: Callable[[Sources, Effort], Outcome], needs: tuple[str, ...]) -> "Experiment":
        """The experiment of the module that defines ``run``: its name, and as question the first line of its docstring."""
        module = sys.modules[run.__module__]
        name = Path(str(module.__file__)).stem
        return cls(name, str(module.__doc__).split("\n")[0], needs, run)

    def missing(self, sources: Sources) -> str | None:
        """One line that names the files that are not there, or None where all are."""
        absent = sources.missing(self.needs)
        if not absent:
            return None
        return f"{self.name}: skipped, {', '.join(map(str, absent))} missing; --data DIR says where the files lie"


def columns_first(table: pd.DataFrame, *first: str) -> pd.DataFrame:
    """``table`` with these columns before the others, which keep their order."""
    return table[[*first, *(column for column in table.columns if column not in first)]]


def write_outcome(name: str, outcome: Outcome, home: Path = HOME) -> None:
    """``tables/NAME.csv`` (six significant digits) and ``figures/NAME.svg``, each whole or not at all."""
    for folder in ("tables", "figures"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    text = outcome.table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_text(home / "tables" / f"{name}.csv", text)
    drawn = home / "figures" / f"{name}.svg"
    if outcome.figure is None:
        drawn.unlink(missing_ok=True)  # an earlier run's figure must not pass for this one's
    else:
        write_text(drawn, outcome.figure)
