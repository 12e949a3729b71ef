"""The main job: folds × models × judge, on real measurements."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.problems import judged_rows, newest_version
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import Fold, folds
from surrogate.dataset.store import Dataset
from surrogate.dataset.strata import strata
from surrogate.evaluation import scorecard
from surrogate.evaluation.comparison import (
    RESULTS_SCHEMA,
    Comparison,
    choice_table,
    fold_table,
    plain,
    prediction_table,
)
from surrogate.evaluation.judge import Choice
from surrogate.evaluation.rounds import Progress, Runs, run_rounds
from surrogate.evaluation.tune import TUNE_TRIALS
from surrogate.features.errors import InputError
from surrogate.models import MODELS, model_class


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
    settings), light or full (inside the training part). Rows of ``also_train`` only train. A model that the data cannot
    carry appears with n 0 and the reason. Raises `InputError` where the data cannot carry the comparison.
    """
    classes = [model_class(name) for name in dict.fromkeys(models)] if models else list(MODELS.values())
    if tune not in TUNE_TRIALS:
        raise InputError(f"tune {tune!r} is unknown; known: {', '.join(TUNE_TRIALS)}")
    parts = [candidate_frame(part, candidate) for part in (data, *also_train)]
    devices = {name: gpu for part in (*also_train, data) for name, gpu in part.devices.items()}
    rows = rows_of(pd.concat(parts, ignore_index=True), devices)
    main, others = rows.frame.iloc[: len(parts[0])], rows.frame.iloc[len(parts[0]) :]
    judged = judged_rows(main, data.candidates)
    if not judged.any():
        raise InputError(_why_nothing_is_judged(data, main))
    rounds = [folds(by, main, others, folds_count, seed) for seed in range(seeds)]
    runs = run_rounds(rows, main, rounds, classes, tune, progress or (lambda done, total, text: None))
    return _judge(data, also_train, main, rows, judged, rounds, runs, by)


def _why_nothing_is_judged(data: Dataset, main: pd.DataFrame) -> str:
    names = sorted(main["algorithm"].unique())
    if len(names) < 2:
        return f"{data.name}: one algorithm only ({names[0]}); a choice needs at least two per problem"
    hint = (
        "" if data.candidates == "listed" else "; if it lists only some candidates, say --candidates listed"
    )
    return f"{data.name}: no problem has two measured algorithms and none unmeasured{hint}"


def _judge(
    data: Dataset,
    also_train: Sequence[Dataset],
    main: pd.DataFrame,
    rows: Rows,
    judged_mask: np.ndarray,
    rounds: list[list[Fold]],
    runs: Runs,
    by: str,
) -> Comparison:
    tested = np.zeros(len(main), dtype=bool)
    for fold in rounds[0]:
        tested[fold.test] = True
    stratum = strata(main)
    part = np.flatnonzero(judged_mask & tested)
    judged = scorecard.Judged.of(
        main.iloc[part], rows.problem[part], rows.shape[part], rows.order[part], stratum[part]
    )
    picks = _picks(judged, runs, part)
    reasons = {
        scorecard.HEURISTIC: f"{data.name} names no heuristic_algorithm for these problems",
        **runs.reasons,
    }
    where = {"split": by, **_common(main.iloc[part])}
    results = {
        "schema": RESULTS_SCHEMA,
        "dataset": _describe(data, also_train, judged),
        "seeds": list(range(len(rounds))),
        "folds": len(rounds[0]),
        "settings": {name: each[0] if each else {} for name, each in runs.settings.items()},
        "time_rows": [plain(where | row) for row in _time_rows(main, rows, tested, stratum, runs)],
        "choice_rows": [plain(where | row) for row in scorecard.choice_rows(judged, picks, reasons)],
    }
    return Comparison(
        results,
        prediction_table(main, rows, rounds, runs),
        choice_table(judged, picks),
        fold_table(main, rounds, by),
    )


def _picks(judged: scorecard.Judged, runs: Runs, part: np.ndarray) -> dict[str, list[Choice]]:
    """Every model's choices, one per seed, then the library's heuristic's and the best."""
    picks = {
        name: [
            scorecard.pick_by_times(judged, run[part], feasible[part])
            for run, feasible in zip(each, runs.supported, strict=True)
        ]
        for name, each in runs.predicted.items()
    }
    picks[scorecard.HEURISTIC] = [scorecard.pick_by_heuristic(judged)]
    picks[scorecard.ORACLE] = [scorecard.pick_oracle(judged)]
    return picks


def _time_rows(
    main: pd.DataFrame, rows: Rows, tested: np.ndarray, stratum: np.ndarray, runs: Runs
) -> list[dict[str, Any]]:
    """Errors over the held-out ok rows of the newest library version."""
    measured = np.flatnonzero(tested & newest_version(main) & rows.ok[: len(main)])
    best = pd.Series(rows.time_us[measured]).groupby(rows.problem[measured]).transform("min").to_numpy()
    reasons = {
        name: runs.reasons.get(name, "it ranks algorithms and predicts no time")
        for name in runs.predicted
        if name in runs.reasons or not MODELS[name].predicts_time
    }
    times = {
        name: [] if name in reasons else [run[measured] for run in each]
        for name, each in runs.predicted.items()
    }
    return scorecard.time_rows(
        main.iloc[measured], stratum[measured], rows.time_us[measured] / best, times, reasons
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
