"""The main job: folds × models × judge, on real measurements, family by family."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from surrogate.collect.cpu.spec import usable_cores
from surrogate.dataset.checks import families_of, family_rows
from surrogate.dataset.files import write_text
from surrogate.dataset.problems import judged_rows, newest_version
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import Fold, folds
from surrogate.dataset.store import Data, Dataset, as_dataset
from surrogate.evaluation import scorecard
from surrogate.evaluation.comparison import RESULTS_SCHEMA, Comparison, choice_table, fold_table, prediction_table
from surrogate.evaluation.judge import Choice
from surrogate.evaluation.scorecard import Judged, plain
from surrogate.evaluation.tune import TUNE_TRIALS, fingerprint, tuned
from surrogate.features.errors import InputError, require_known
from surrogate.features.families import Family
from surrogate.models import MODELS, Support, TimeModel, model_class, model_frame

Progress = Callable[[int, int, str], None]
"""Called with (fits done, fits in all, what is being done), never by two threads at once."""
MAX_WORKERS = 8
"""Folds at a time: each holds its own training rows."""


@dataclass(frozen=True)
class FamilyRuns:
    """One family's rows, folds, and what its fits predicted.

    ``rows`` of all tables, of which the first ``count`` are held out in turn; ``rounds`` the folds of each seed;
    ``judged`` (count,) rows of judged problems. ``predicted`` model → one array (count,) in µs per seed, NaN where
    never held out; ``supported`` one mask (count,) per seed; ``settings`` model → its hyperparameters, one per fit;
    ``reasons`` model → why it could not be fitted.
    """

    rows: Rows
    count: int
    rounds: list[list[Fold]]
    judged: np.ndarray
    predicted: dict[str, list[np.ndarray]] = field(default_factory=dict)
    supported: list[np.ndarray] = field(default_factory=list)
    settings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Rows:
        """The rows that are held out in turn."""
        return self.rows.take(np.arange(self.count))

    @property
    def fits(self) -> int:
        """Fits of one model."""
        return sum(map(len, self.rounds))


def compare(
    data: Data,
    also_train: Sequence[Data] = (),
    *,
    by: str = "shape",
    folds_count: int = 10,
    seeds: int = 1,
    models: str | Sequence[str] | None = None,
    tune: str = "none",
    candidate: str = "algorithm",
    device: str = "cpu",
    progress: Progress | None = None,
    keep: Path | None = None,
) -> Comparison:
    """Fit every model on every fold's training rows, predict the held-out rows, judge times and choices.

    ``data`` is a table, the path of one, or a list of them; ``models`` are names (None: all), also as one text with
    commas; ``by``: what is held out (see `surrogate.dataset.splits.folds`); ``seeds`` runs, each with its own folds;
    ``candidate``: choose among ``algorithm``s (each with its fastest solver) or ``solver``s; ``tune``: none (stored
    settings), light or full (inside the training part). Rows of ``also_train`` only train. ``device``: where XGBoost
    grows trees, cpu or cuda. ``keep``: a folder of finished fits, so that the same call goes on after an interruption.
    A model that the data cannot carry appears with n 0 and the reason. Raises `InputError` where the data cannot carry
    the comparison.
    """
    names = models.split(",") if isinstance(models, str) else models or ()
    classes = [model_class(name) for name in dict.fromkeys(map(str.strip, names))] or list(MODELS.values())
    require_known("tune", tune, TUNE_TRIALS)
    main, *others = (as_dataset(part) for part in (data, *also_train))
    frames = [model_frame(part, candidate) for part in (main, *others)]
    devices = {name: gpu for part in (*others, main) for name, gpu in part.devices.items()}
    parts: list[FamilyRuns] = []
    refused: dict[Family, str] = {}
    for kind in families_of(frames[0]):
        main_frame, *also = (frame[family_rows(frame, kind)] for frame in frames)
        rows = rows_of(pd.concat([main_frame, *also], ignore_index=True), kind, devices)
        held, trained = rows.frame.iloc[: len(main_frame)], rows.frame.iloc[len(main_frame) :]
        try:
            judged = _judged_rows(main, rows, len(main_frame))
            rounds = [folds(by, kind, held, trained, folds_count, seed) for seed in range(seeds)]
            parts.append(FamilyRuns(rows, len(main_frame), rounds, judged))
        except InputError as error:
            refused[kind] = str(error)
    if not parts:
        raise InputError("; ".join(dict.fromkeys(refused.values())))
    total, begun, lock = sum(part.fits for part in parts) * len(classes), count(), threading.Lock()

    def step(text: str) -> None:
        with lock:
            (progress or _silent)(next(begun), total, text)

    for part in parts:
        folder = keep and keep / _signature(part, by, tune, candidate, device)
        _run(part, classes, tune, device, step, folder)
    (progress or _silent)(total, total, "judging")
    return _judged(main, others, parts, refused, [cls.name for cls in classes], by)


def _silent(done: int, total: int, text: str) -> None:
    """Progress that is not shown."""


def _judged_rows(data: Dataset, rows: Rows, count: int) -> np.ndarray:
    """(count,) which of the first rows choices are judged by. Raises `InputError` where none can be compared."""
    judged = judged_rows(rows.frame.iloc[:count], rows.family, data.candidates)
    if not judged.any() and len(np.unique(rows.problem[:count])) < count:
        hint = "; if it lists only some candidates, say --candidates listed"
        raise InputError(
            f"{data.name}: no problem has two measured candidates and none unmeasured"
            f"{'' if data.candidates == 'listed' else hint}"
        )
    return judged


def _run(
    part: FamilyRuns,
    classes: Sequence[type[TimeModel]],
    tune: str,
    device: str,
    step: Callable[[str], None],
    folder: Path | None,
) -> None:
    """Fit and predict all folds, as many at a time as there are cores; ``step`` is called when a fit begins.

    A fit has its share of the cores, because two that want all of them slow each other down. A model that the data
    cannot carry is left out with its reason. Raises `InputError` where none can be fitted.
    """
    rounds = [(seed, i, fold) for seed, folds in enumerate(part.rounds) for i, fold in enumerate(folds)]
    cores = usable_cores()
    alone = device != "cpu" or tune != "none"  # one GPU; Optuna changes the process's warnings
    workers = 1 if alone else min(cores, len(rounds), MAX_WORKERS)
    newest, stopped = newest_version(part.main.frame, part.rows.family), threading.Event()

    def fit_all(seed: int, number: int, fold: Fold) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """(positions held out, which are supported, model → its settings and times, or the reason for none)."""
        train, test = part.rows.take(fold.train), fold.test[newest[fold.test]]
        if not train.ok.any():
            raise InputError(f"fold {fold.name}: nothing is left to train on; use fewer folds or more data")
        held, outcomes = part.rows.take(test), {}
        with threadpool_limits(max(cores // workers, 1), user_api="openmp"):  # holds for this thread alone
            for cls in classes:
                if stopped.is_set():
                    break
                step(f"{part.rows.family.name} seed {seed} fold {fold.name} {cls.name}")
                file = folder and folder / f"{cls.name}-{seed}-{number}.json"
                try:
                    outcomes[cls.name] = _fitted(cls, train, held, tune, seed, device, file)
                except InputError as error:
                    outcomes[cls.name] = str(error)
        return test, Support.fit(train).supported(held), outcomes

    with ThreadPoolExecutor(workers) as pool, threadpool_limits(max(cores // workers, 1), user_api="blas"):
        futures = [pool.submit(fit_all, *each) for each in rounds]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            fitted = [future.result() for future in futures]
        except BaseException:
            # An interruption, too: the fits that run are finished and kept, no other begins.
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    for cls in classes:
        part.predicted[cls.name] = [np.full(part.count, np.nan) for _ in part.rounds]
        part.settings[cls.name] = []
    part.supported.extend(np.zeros(part.count, dtype=bool) for _ in part.rounds)
    for (seed, _, _), (test, feasible, outcomes) in zip(rounds, fitted, strict=True):
        part.supported[seed][test] = feasible
        for name, outcome in outcomes.items():
            if isinstance(outcome, str):
                part.reasons.setdefault(name, outcome)
                continue
            settings, predicted = outcome
            part.settings[name].append(settings)
            part.predicted[name][seed][test] = predicted
    if len(part.reasons) == len(classes):
        raise InputError("; ".join(f"{name}: {reason}" for name, reason in part.reasons.items()))


def _fitted(
    cls: type[TimeModel], train: Rows, held: Rows, tune: str, seed: int, device: str, file: Path | None
) -> tuple[dict[str, Any], np.ndarray]:
    """Settings of a model fitted on ``train``, and its times of ``held``; read from ``file`` where they lie there."""
    if file is not None and file.is_file():
        try:
            content = json.loads(file.read_text())
            return content["settings"], np.array(content["predicted_us"], dtype=np.float64).reshape(len(held))
        except (ValueError, KeyError, TypeError):  # damaged since: fit again
            pass
    model = tuned(cls, train, tune, seed, device)
    settings, predicted = plain(model.get_params()), model.fit(train).predict(held)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({"settings": settings, "predicted_us": predicted.tolist()}))
    return settings, predicted


def _signature(part: FamilyRuns, *settings: str) -> str:
    """A name for what all fits of a family depend on."""
    kind = part.rows.family
    words = (kind.name, kind.version, *settings, len(part.rounds[0]), part.count)
    return "-".join(map(str, (*words, fingerprint(part.rows))))


def _judged(
    data: Dataset,
    also_train: Sequence[Dataset],
    parts: Sequence[FamilyRuns],
    refused: Mapping[Family, str],
    models: Sequence[str],
    by: str,
) -> Comparison:
    time_rows, choice_rows, choices, described = [], [], [], []
    for part in parts:
        tested = np.zeros(part.count, dtype=bool)
        for fold in part.rounds[0]:
            tested[fold.test] = True
        positions = np.flatnonzero(part.judged & tested)
        where = {"split": by, **_common(part.rows.family, part.main.frame.iloc[np.flatnonzero(tested)])}
        time_rows += [where | row for row in _time_rows(part, tested)]
        if not len(positions):
            reason = f"{data.name}: one candidate a problem; a choice needs at least two"
            choice_rows += [where | row for row in _unjudged(part.rows.family, models, reason)]
            continue
        judged = Judged.of(part.rows.take(positions), _noise(data))
        picks = _picks(judged, part, positions)
        missing = f"{data.name} names no heuristic_algorithm for these problems"
        reasons = {judged.heuristic: missing, **part.reasons}
        choice_rows += [where | row for row in scorecard.choice_rows(judged, picks, reasons)]
        choices.append(choice_table(judged, picks))
        described.append(judged)
    for kind, reason in refused.items():
        for rows in (time_rows, choice_rows):
            rows += [{"split": by} | row for row in _unjudged(kind, models, reason)]
    first = parts[0]
    results = {
        "schema": RESULTS_SCHEMA,
        "dataset": _describe(data, also_train, parts, described),
        "seeds": list(range(len(first.rounds))),
        "folds": len(first.rounds[0]),
        "settings": {name: each[0] if each else {} for name, each in first.settings.items()},
        "time_rows": plain(time_rows),
        "choice_rows": plain(choice_rows),
    }
    return Comparison(
        results,
        pd.concat([prediction_table(part) for part in parts], ignore_index=True),
        pd.concat(choices, ignore_index=True) if choices else pd.DataFrame(NO_CHOICES),
        pd.concat([fold_table(part, by) for part in parts], ignore_index=True),
    )


NO_CHOICES = {
    **{name: pd.Series(dtype=str) for name in ("model", "stratum")},
    **{name: pd.Series(dtype=float) for name in ("seed", "slowdown", "infeasible")},
}
"""The table of choices where no problem has two candidates."""


def _noise(data: Dataset) -> float:
    return float(data.metadata.get("noise", 0.0))


def _unjudged(kind: Family, models: Sequence[str], reason: str) -> list[dict[str, Any]]:
    blank = dict.fromkeys(("stratum", "gpu", "direction", "dtype", "math"), scorecard.ALL)
    return [{"model": name, "family": kind.name, **blank, "n": 0, "shapes": 0, "reason": reason} for name in models]


def _picks(judged: Judged, part: FamilyRuns, positions: np.ndarray) -> dict[str, list[Choice]]:
    """Every model's choices, one per seed, then the library's heuristic's and the best."""
    picks = {
        name: [
            scorecard.pick_by_times(judged, run[positions], feasible[positions])
            for run, feasible in zip(runs, part.supported, strict=True)
        ]
        for name, runs in part.predicted.items()
    }
    picks[judged.heuristic] = [scorecard.pick_by_heuristic(judged)]
    picks[scorecard.ORACLE] = [scorecard.pick_oracle(judged)]
    return picks


def _time_rows(part: FamilyRuns, tested: np.ndarray) -> list[dict[str, Any]]:
    """Errors over the held-out ok rows of the newest library version."""
    main = part.main
    measured = np.flatnonzero(tested & newest_version(main.frame, main.family) & main.ok)
    rows = main.take(measured)
    best = pd.Series(rows.time_us).groupby(rows.problem).transform("min").to_numpy()
    reasons = {
        name: part.reasons.get(name, "it ranks algorithms and predicts no time")
        for name in part.predicted
        if name in part.reasons or not model_class(name).predicts_time
    }
    times = {name: [] if name in reasons else [run[measured] for run in runs] for name, runs in part.predicted.items()}
    return scorecard.time_rows(rows, rows.time_us / best, times, reasons)


def _common(kind: Family, frame: pd.DataFrame) -> dict[str, str]:
    """direction, dtype and math of the rows, ``all`` where they differ or the family has none."""
    return {
        column: str(frame[column].iloc[0])
        if column in kind.setting_names and frame[column].nunique() == 1
        else scorecard.ALL
        for column in ("direction", "dtype", "math")
    }


def _describe(
    data: Dataset, also_train: Sequence[Dataset], parts: Sequence[FamilyRuns], judged: Sequence[Judged]
) -> dict[str, Any]:
    return {
        "name": data.name,
        "rows": len(data),
        "families": [part.rows.family.name for part in parts],
        "problems": sum(each.candidates.count for each in judged),
        "shapes": sum(len(np.unique(each.shape)) for each in judged),
        "gpus": sorted({gpu for each in judged for gpu in each.rows.frame["gpu"].unique()}),
        "candidates": data.candidates,
        "noise": _noise(data),
        "where": data.metadata.get("where", []),
        "also_train": [part.name for part in also_train],
    }
