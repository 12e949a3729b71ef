"""What a comparison leaves: results, row-level predictions, problem-level choices, folds; and how they are written."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.columns import SETTING_COLUMNS, SIZE_COLUMNS
from surrogate.dataset.files import staged, write_text
from surrogate.dataset.problems import groups, shape_columns
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import Fold
from surrogate.dataset.tables import write_table
from surrogate.evaluation.judge import Choice
from surrogate.evaluation.scorecard import ORACLE, Judged
from surrogate.models import model_class

RESULTS_SCHEMA = 1
"""Version of `results.json`. History: 1, the first."""


@dataclass(frozen=True)
class FamilyRuns:
    """One family's rows, folds, and what its fits predicted.

    ``rows`` of all tables, of which the first ``count`` are held out in turn; ``rounds`` the folds of each seed;
    ``judged`` (count,) rows of judged problems. ``predicted`` model → one array (count,) in µs per seed, NaN where
    never held out; ``supported`` one mask (count,) per seed; ``settings`` model → the hyperparameters of its first fit;
    ``reasons`` model → why it could not be fitted.
    """

    rows: Rows
    count: int
    rounds: list[list[Fold]]
    judged: np.ndarray
    predicted: dict[str, list[np.ndarray]] = field(default_factory=dict)
    supported: list[np.ndarray] = field(default_factory=list)
    settings: dict[str, dict[str, object]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Rows:
        """The rows that are held out in turn."""
        return self.rows.take(np.arange(self.count))

    @property
    def fits(self) -> int:
        """Fits of one model."""
        return sum(map(len, self.rounds))


@dataclass(frozen=True)
class Compared:
    """What a comparison found.

    ``results`` is the content of results.json; ``predictions`` has a row per model, seed and dataset row, ``choices``
    one per model, seed and judged problem, ``folds`` one per seed and held-out shape.
    """

    results: dict[str, Any]
    predictions: pd.DataFrame
    choices: pd.DataFrame
    folds: pd.DataFrame

    def write(self, directory: str | Path) -> None:
        """Write ``results.json``, ``predictions.parquet``, ``choices.parquet`` and ``folds.csv``, all or none of them.

        The folder is made. Raises `InputError` where it cannot be written.
        """
        with staged(directory) as folder:
            write_table(self.predictions, folder / "predictions.parquet", {"schema": RESULTS_SCHEMA})
            write_table(self.choices, folder / "choices.parquet", {"schema": RESULTS_SCHEMA})
            write_text(folder / "folds.csv", self.folds.to_csv(index=False))
            write_text(folder / "results.json", json.dumps(self.results, indent=1, allow_nan=False))


def prediction_table(part: FamilyRuns) -> pd.DataFrame:
    """Row-level predictions of every model and seed."""
    main = part.main
    mechanism = _mechanisms(main)
    columns = _present(main.frame, "algorithm", "solver", "status", "time_us")
    parts = []
    for seed, folds in enumerate(part.rounds):
        label = np.full(len(main), "", dtype=object)
        for fold in folds:
            label[fold.test] = fold.name
        table = main.frame[columns].assign(mechanism=mechanism, supported=part.supported[seed])
        table.insert(0, "fold", label)
        for name, runs in part.predicted.items():
            known = np.isfinite(runs[seed])
            shown = runs[seed] if model_class(name).predicts_time else np.nan
            parts.append(_named(table.assign(predicted_us=shown)[known], name, seed))
    return pd.concat(parts, ignore_index=True)


def _named(table: pd.DataFrame, model: str, seed: int) -> pd.DataFrame:
    """The table with model and seed in front."""
    return table.assign(model=model, seed=seed)[["model", "seed", *table.columns]]


def _mechanisms(rows: Rows) -> np.ndarray:
    """(rows,) how each row's candidate works, as its family tells."""
    family = rows.family
    out = np.full(len(rows), "", dtype=object)
    names = ("library", *family.setting_names, "algorithm")
    for (library, *setting, algorithm), positions in groups(rows.frame, names):
        out[positions] = family.mechanism(library, tuple(setting), algorithm)
    return out


def choice_table(judged: Judged, picks: Mapping[str, Sequence[Choice]]) -> pd.DataFrame:
    """Problem-level choices of every model and seed."""
    frame = judged.rows.frame
    names = frame["solver" if "solver" in frame else "algorithm"].to_numpy(dtype=object)
    problems = frame[_present(frame, "networks")].iloc[judged.problem_row].reset_index(drop=True)
    problems["stratum"] = judged.rows.stratum[judged.problem_row]
    problems["best"] = names[picks[ORACLE][0].row]
    parts = []
    for model, choices in picks.items():
        for seed, choice in enumerate(choices):
            table = problems.assign(
                picked=pd.Series(names[choice.row], dtype=object).where(choice.row >= 0, None),
                slowdown=choice.slowdown,
                infeasible=choice.infeasible,
                top2_slowdown=choice.top2_slowdown,
            )
            parts.append(_named(table[choice.chosen], model, seed))
    return pd.concat(parts, ignore_index=True)


def fold_table(part: FamilyRuns, by: str) -> pd.DataFrame:
    """Family, seed, fold and the shapes that it holds out; for a split by row, the rows."""
    main = part.main
    family = part.rows.family
    shapes = pd.Series(main.shape)
    tables = []
    for seed, folds in enumerate(part.rounds):
        for fold in folds:
            held = fold.test if by == "random" else fold.test[~shapes.iloc[fold.test].duplicated().to_numpy()]
            table = main.frame.iloc[held][list(shape_columns(main.frame, family))].assign(seed=seed, fold=fold.name)
            tables.append(table.assign(row=held) if by == "random" else table)
    return pd.concat(tables, ignore_index=True).assign(family=family.name)


def _present(frame: pd.DataFrame, *further: str) -> list[str]:
    """Those of the key's columns and the ``further`` ones that the table has."""
    return [column for column in (*SETTING_COLUMNS, *SIZE_COLUMNS, *further) if column in frame]
