"""What a comparison leaves: results, row-level predictions, problem-level choices, folds; and how they are written."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.atomic import write_text
from surrogate.dataset.rows import Rows
from surrogate.dataset.schema import SETTING_COLUMNS, SHAPE_COLUMNS, SIZE_COLUMNS
from surrogate.dataset.splits import Fold, shape_names
from surrogate.dataset.staging import staged
from surrogate.dataset.store import write_parquet
from surrogate.evaluation.judge import Choice
from surrogate.evaluation.rounds import Runs
from surrogate.evaluation.scorecard import ORACLE, Judged
from surrogate.features.algorithms import MECHANISMS
from surrogate.models import MODELS

RESULTS_SCHEMA = 1
"""Version of `results.json`. History: 1, the first."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    ``results`` is the content of results.json; ``predictions`` has a row per model, seed and dataset row, ``choices``
    one per model, seed and judged problem, ``folds`` one per seed and held-out shape.
    """

    results: dict[str, Any]
    predictions: pd.DataFrame
    choices: pd.DataFrame
    folds: pd.DataFrame

    def __repr__(self) -> str:
        from surrogate.report.terminal import terminal_summary

        return terminal_summary(self.results)

    def to_dict(self) -> dict[str, Any]:
        """The content of results.json."""
        return self.results

    def to_frame(self) -> pd.DataFrame:
        """The choice rows as a table."""
        return pd.DataFrame(self.results["choice_rows"])

    def write(self, directory: str | Path) -> None:
        """Write ``results.json``, ``predictions.parquet``, ``choices.parquet`` and ``folds.csv``, all or none of them.

        The folder is made. Raises `InputError` where it cannot be written.
        """
        with staged(directory) as folder:
            write_parquet(self.predictions, folder / "predictions.parquet", {"schema": RESULTS_SCHEMA})
            write_parquet(self.choices, folder / "choices.parquet", {"schema": RESULTS_SCHEMA})
            write_text(folder / "folds.csv", self.folds.to_csv(index=False))
            write_text(folder / "results.json", json.dumps(self.results, indent=1, allow_nan=False))


def prediction_table(
    main: pd.DataFrame, rows: Rows, rounds: Sequence[Sequence[Fold]], runs: Runs
) -> pd.DataFrame:
    """Row-level predictions of every model and seed."""
    mechanism = np.array(MECHANISMS)[rows.column("mechanism")[: len(main)].astype(int)]
    columns = [
        c for c in (*SETTING_COLUMNS, *SIZE_COLUMNS, "algorithm", "solver", "status", "time_us") if c in main
    ]
    parts = []
    for seed, folds in enumerate(rounds):
        label = np.full(len(main), "", dtype=object)
        for fold in folds:
            label[fold.test] = fold.name
        for name in runs.predicted:
            predicted = runs.predicted[name][seed]
            shown = np.flatnonzero(np.isfinite(predicted))
            part = main[columns].iloc[shown].copy()
            part.insert(0, "model", name)
            part.insert(1, "seed", seed)
            part.insert(2, "fold", label[shown])
            part["mechanism"] = mechanism[shown]
            part["predicted_us"] = predicted[shown] if MODELS[name].predicts_time else np.nan
            part["supported"] = runs.supported[seed][shown]
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


def choice_table(judged: Judged, picks: Mapping[str, Sequence[Choice]]) -> pd.DataFrame:
    """Problem-level choices of every model and seed."""
    names = judged.frame["solver" if "solver" in judged.frame else "algorithm"].to_numpy(dtype=object)
    columns = [c for c in (*SETTING_COLUMNS, *SIZE_COLUMNS, "networks") if c in judged.frame]
    problems = judged.frame[columns].iloc[judged.problem_row].reset_index(drop=True)
    problems["stratum"] = judged.stratum[judged.problem_row]
    problems["best"] = names[picks[ORACLE][0].row]
    parts = []
    for model, choices in picks.items():
        for seed, choice in enumerate(choices):
            part = problems[choice.made].copy()
            part.insert(0, "model", model)
            part.insert(1, "seed", seed)
            row = choice.row[choice.made]
            part["picked"] = [names[r] if r >= 0 else None for r in row]
            part["slowdown"] = choice.slowdown[choice.made]
            part["infeasible"] = choice.infeasible[choice.made]
            part["top2_slowdown"] = choice.top2_slowdown[choice.made]
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


def fold_table(main: pd.DataFrame, rounds: Sequence[Sequence[Fold]], by: str) -> pd.DataFrame:
    """Seed, fold and the shapes that it holds out; for a split by row, the rows."""
    names = pd.Series(shape_names(main))
    parts = []
    for seed, folds in enumerate(rounds):
        for fold in folds:
            held = fold.test if by == "random" else fold.test[~names.iloc[fold.test].duplicated().to_numpy()]
            part = main.iloc[held][list(SHAPE_COLUMNS)].assign(seed=seed, fold=fold.name)
            parts.append(part.assign(row=held) if by == "random" else part)
    return pd.concat(parts, ignore_index=True)


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values: NumPy numbers as Python's, NaN and infinity as null."""

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(v) for v in value]
        if isinstance(value, np.generic):
            value = value.item()
        return None if isinstance(value, float) and not np.isfinite(value) else value

    return {key: convert(value) for key, value in row.items()}
