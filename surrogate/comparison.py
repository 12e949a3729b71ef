"""The main job: folds × models × judge, on real measurements."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from features.algorithms import FAMILIES
from features.errors import InputError
from surrogate import scorecard
from surrogate.atomic import write_text
from surrogate.dataset.problems import fastest_solver, judged_rows, newest_version
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.schema import SETTING_COLUMNS, SHAPE_COLUMNS, SIZE_COLUMNS
from surrogate.dataset.splits import Fold, folds, shape_names
from surrogate.dataset.store import Dataset, write_parquet
from surrogate.dataset.strata import strata
from surrogate.judge import Choice
from surrogate.models import MODELS, Model, Support, model_class
from surrogate.tune import TUNE_TRIALS, tuned

RESULTS_SCHEMA = 1
"""Version of `results.json`. History: 1, the first."""

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what is being done)."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found: ``results`` (the content of results.json), row-level predictions, problem-level choices,

    and the fold of every shape (or row) per seed.
    """

    results: dict[str, Any]
    predictions: pd.DataFrame
    choices: pd.DataFrame
    folds: pd.DataFrame

    def __repr__(self) -> str:
        from surrogate.report import terminal_summary

        return terminal_summary(self.results)

    def to_dict(self) -> dict[str, Any]:
        """The content of results.json."""
        return self.results

    def to_frame(self) -> pd.DataFrame:
        """The choice rows as a table."""
        return pd.DataFrame(self.results["choice_rows"])

    def write(self, directory: str | Path) -> None:
        """``results.json``, ``predictions.parquet``, ``choices.parquet`` and ``folds.csv`` into a folder (made if missing)."""
        directory = Path(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{directory}: cannot be made ({error.strerror}); choose another place"
            ) from None
        write_parquet(self.predictions, directory / "predictions.parquet", {"schema": RESULTS_SCHEMA})
        write_parquet(self.choices, directory / "choices.parquet", {"schema": RESULTS_SCHEMA})
        write_text(directory / "folds.csv", self.folds.to_csv(index=False))
        write_text(directory / "results.json", json.dumps(self.results, indent=1, allow_nan=False))


def compare(
    data: Dataset,
    also_train: Sequence[Dataset] = (),
    *,
    by: str = "shape",
    folds_count: int = 10,
    seeds: int = 1,
    models: Sequence[str] | None = None,
    tune: str = "none",
    candidate: str = "algorithm",
    progress: Progress | None = None,
) -> Comparison:
    """Fit every model on every fold's training rows, predict the held-out rows, judge times and choices.

    ``by``: what is held out (see `surrogate.dataset.splits.folds`); ``seeds`` runs, each with its own folds;
    ``candidate``: choose among ``algorithm``s (each with its fastest solver) or ``solver``s; ``tune``: none (stored
    settings), light or full (inside the training part). Rows of ``also_train`` only train.
    Raises `InputError` where the data cannot carry the comparison.
    """
    classes = [model_class(name) for name in models] if models else list(MODELS.values())
    if tune not in TUNE_TRIALS:
        raise InputError(f"tune {tune!r} is unknown; known: {', '.join(TUNE_TRIALS)}")
    main = candidate_frame(data.frame, candidate)
    also = [candidate_frame(part.frame, candidate) for part in also_train]
    devices = {name: gpu for part in (*also_train, data) for name, gpu in part.devices.items()}
    rows = rows_of(pd.concat([main, *also], ignore_index=True), devices)
    others = rows.frame.iloc[len(main) :]
    main = rows.frame.iloc[: len(main)]
    judged = judged_rows(main, data.candidates)
    if not judged.any():
        raise InputError(_why_nothing_is_judged(data, main))
    rounds = [folds(by, main, others, folds_count, seed) for seed in range(seeds)]
    runs = _run(rows, main, rounds, classes, tune, progress or (lambda done, total, text: None))
    return _judge(data, also_train, main, rows, judged, rounds, runs, by)


def candidate_frame(frame: pd.DataFrame, candidate: str) -> pd.DataFrame:
    """The rows to choose among: of each algorithm its fastest solver, or every solver."""
    if candidate == "algorithm":
        return fastest_solver(frame).drop(columns="solver", errors="ignore")
    if candidate != "solver":
        raise InputError(f"candidate {candidate!r} is unknown; known: algorithm, solver")
    if "solver" not in frame:
        raise InputError(
            "candidate solver needs a `solver` column, which this table lacks; use --candidate algorithm"
        )
    return frame


def _why_nothing_is_judged(data: Dataset, main: pd.DataFrame) -> str:
    names = sorted(main["algorithm"].unique())
    if len(names) < 2:
        return f"{data.name}: one algorithm only ({names[0]}); a choice needs at least two per problem"
    hint = (
        "" if data.candidates == "listed" else "; if it lists only some candidates, say --candidates listed"
    )
    return f"{data.name}: no problem has two measured algorithms and none unmeasured{hint}"


@dataclass(frozen=True)
class _Runs:
    """Predictions by model and seed over the main table's rows (NaN where never held out), and feasibility by seed."""

    predicted: dict[str, list[np.ndarray]]
    supported: list[np.ndarray]
    classes: list[type[Model]]
    settings: dict[str, list[dict[str, Any]]]


def _run(
    rows: Rows,
    main: pd.DataFrame,
    rounds: list[list[Fold]],
    classes: list[type[Model]],
    tune: str,
    progress: Progress,
) -> _Runs:
    newest = newest_version(main)
    predicted: dict[str, list[np.ndarray]] = {cls.name: [] for cls in classes}
    settings: dict[str, list[dict[str, Any]]] = {cls.name: [] for cls in classes}
    supported = []
    total, done = sum(map(len, rounds)) * len(classes), 0
    for seed, each in enumerate(rounds):
        feasible = np.zeros(len(main), dtype=bool)
        for name in predicted:
            predicted[name].append(np.full(len(main), np.nan))
        for fold in each:
            train, test = rows.take(fold.train), fold.test[newest[fold.test]]
            if not train.ok.any():
                raise InputError(
                    f"fold {fold.name}: nothing is left to train on; use fewer folds or more data"
                )
            held = rows.take(test)
            feasible[test] = Support.fit(train).supported(held)
            for cls in classes:
                progress(done, total, f"seed {seed} fold {fold.name} {cls.name}")
                model = tuned(cls, train, tune, seed)
                settings[cls.name].append(dict(model.params))
                predicted[cls.name][seed][test] = model.fit(train, seed=seed).predict_us(held)
                done += 1
        supported.append(feasible)
    progress(total, total, "judging")
    return _Runs(predicted, supported, classes, settings)


def _judge(
    data: Dataset,
    also_train: Sequence[Dataset],
    main: pd.DataFrame,
    rows: Rows,
    judged_mask: np.ndarray,
    rounds: list[list[Fold]],
    runs: _Runs,
    by: str,
) -> Comparison:
    tested = np.zeros(len(main), dtype=bool)
    for fold in rounds[0]:
        tested[fold.test] = True
    part = np.flatnonzero(judged_mask & tested)
    stratum = strata(main)
    judged = scorecard.Judged.of(
        main.iloc[part], rows.problem[part], rows.shape[part], rows.order[part], stratum[part]
    )
    picks: dict[str, list[Choice]] = {
        cls.name: [
            scorecard.pick_by_times(judged, run[part], feasible[part])
            for run, feasible in zip(runs.predicted[cls.name], runs.supported, strict=True)
        ]
        for cls in runs.classes
    }
    picks[scorecard.HEURISTIC] = [scorecard.pick_by_heuristic(judged)]
    picks[scorecard.ORACLE] = [scorecard.pick_oracle(judged)]
    reasons = {scorecard.HEURISTIC: f"{data.name} names no heuristic_algorithm"}
    timed = {cls.name: runs.predicted[cls.name] if cls.predicts_time else [] for cls in runs.classes}
    untimed = {
        cls.name: "it ranks algorithms and predicts no time" for cls in runs.classes if not cls.predicts_time
    }
    measured = np.flatnonzero(tested & newest_version(main) & rows.ok[: len(main)])
    best = pd.Series(rows.time_us[measured]).groupby(rows.problem[measured]).transform("min").to_numpy()
    where = {"split": by, **_common(main.iloc[part])}
    time = scorecard.time_rows(
        main.iloc[measured],
        stratum[measured],
        rows.time_us[measured] / best,
        {name: [run[measured] for run in each] for name, each in timed.items()},
        untimed,
    )
    results = {
        "schema": RESULTS_SCHEMA,
        "dataset": _describe(data, also_train, judged),
        "seeds": list(range(len(rounds))),
        "folds": len(rounds[0]),
        "settings": {name: each[0] for name, each in runs.settings.items()},
        "time_rows": [_plain(where | row) for row in time],
        "choice_rows": [_plain(where | row) for row in scorecard.choice_rows(judged, picks, reasons)],
    }
    return Comparison(
        results,
        _predictions(main, rows, rounds, runs),
        _choices(judged, picks),
        _fold_table(main, rounds, by),
    )


def _common(frame: pd.DataFrame) -> dict[str, str]:
    """direction, dtype and math of the rows, ``all`` where they differ."""
    return {
        column: str(frame[column].iloc[0]) if frame[column].nunique() == 1 else scorecard.ALL
        for column in ("direction", "dtype", "math")
    }


def _describe(data: Dataset, also_train: Sequence[Dataset], judged: scorecard.Judged) -> dict[str, Any]:
    return {
        "name": data.name,
        "rows": len(data),
        "problems": judged.candidates.count,
        "shapes": len(np.unique(judged.shape)),
        "gpus": sorted(judged.frame["gpu"].unique()),
        "candidates": data.candidates,
        "where": data.metadata.get("where", []),
        "also_train": [part.name for part in also_train],
    }


def _predictions(main: pd.DataFrame, rows: Rows, rounds: list[list[Fold]], runs: _Runs) -> pd.DataFrame:
    """Row-level predictions of every model and seed."""
    family = np.array(FAMILIES)[rows.column("family")[: len(main)].astype(int)]
    columns = [
        c for c in (*SETTING_COLUMNS, *SIZE_COLUMNS, "algorithm", "solver", "status", "time_us") if c in main
    ]
    parts = []
    for seed, each in enumerate(rounds):
        label = np.full(len(main), "", dtype=object)
        for fold in each:
            label[fold.test] = fold.name
        for cls in runs.classes:
            predicted = runs.predicted[cls.name][seed]
            shown = np.flatnonzero(np.isfinite(predicted))
            part = main[columns].iloc[shown].copy()
            part.insert(0, "model", cls.name)
            part.insert(1, "seed", seed)
            part.insert(2, "fold", label[shown])
            part["family"] = family[shown]
            part["predicted_us"] = predicted[shown] if cls.predicts_time else np.nan
            part["supported"] = runs.supported[seed][shown]
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _choices(judged: scorecard.Judged, picks: dict[str, list[Choice]]) -> pd.DataFrame:
    """Problem-level choices of every model and seed."""
    name = "solver" if "solver" in judged.frame else "algorithm"
    names = judged.frame[name].to_numpy()
    columns = [c for c in (*SETTING_COLUMNS, *SIZE_COLUMNS, "networks") if c in judged.frame]
    problems = judged.frame[columns].iloc[judged.problem_row].reset_index(drop=True)
    problems["stratum"] = judged.stratum[judged.problem_row]
    problems["best"] = names[picks[scorecard.ORACLE][0].row]
    parts = []
    for model, choices in picks.items():
        for seed, choice in enumerate(choices):
            part = problems[choice.made].copy()
            part.insert(0, "model", model)
            part.insert(1, "seed", seed)
            row = choice.row[choice.made]
            part["picked"] = np.where(row >= 0, names[row], None)
            part["slowdown"] = choice.slowdown[choice.made]
            part["infeasible"] = choice.infeasible[choice.made]
            part["top2_slowdown"] = choice.top2_slowdown[choice.made]
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _fold_table(main: pd.DataFrame, rounds: list[list[Fold]], by: str) -> pd.DataFrame:
    """Seed, fold and what it holds out: shapes, or rows for a split by row."""
    parts = []
    names = shape_names(main)
    for seed, each in enumerate(rounds):
        for fold in each:
            held = main.iloc[fold.test][list(SHAPE_COLUMNS)]
            if by == "random":
                held = held.assign(row=fold.test)
            held = (
                held[~pd.Series(names[fold.test], index=held.index).duplicated()] if by != "random" else held
            )
            parts.append(held.assign(seed=seed, fold=fold.name))
    return pd.concat(parts, ignore_index=True)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """JSON values: NumPy numbers as Python's, NaN and infinity as null."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, np.generic):
            value = value.item()
        return None if isinstance(value, float) and not np.isfinite(value) else value

    return {key: plain(value) for key, value in row.items()}
