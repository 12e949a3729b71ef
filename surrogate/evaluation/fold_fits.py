"""Fit every model on the training rows of every fold, and predict the held-out rows.

Source of the permutation importance of columns: Breiman 2001, "Random forests", section 10.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from surrogate.dataset.files import Progress, write_text
from surrogate.dataset.problems import newest_version
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import Fold
from surrogate.dataset.threads import in_parallel
from surrogate.evaluation.hyperparameters import tuned
from surrogate.evaluation.scorecard import TREES_MODEL, json_value
from surrogate.features import InputError, one_line_errors
from surrogate.models import Support, TimeModel, model_class
from surrogate.models.base import term_columns
from surrogate.models.stacked import StackedTerms
from surrogate.uncertainty.domain import distances_to, training_shapes_of

STACK_PARTS = (StackedTerms.first, StackedTerms.second)
"""Names of the two models that the stack combines."""


@dataclass(frozen=True)
class HoldoutPrediction:
    """One fit's settings and predicted times of the held-out rows, (held-out rows,) in µs.

    ``tune_s`` and ``fit_s`` are the seconds of the search for settings and of the fit. ``predict_us`` is the time of a
    prediction in µs per row. ``importance``: column → `column_importance`; empty if it was not requested.
    """

    settings: dict[str, object]
    predicted_us: np.ndarray
    tune_s: float
    fit_s: float
    predict_us: float
    importance: dict[str, float] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Write the predictions for a later run."""
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({**vars(self), "predicted_us": self.predicted_us.tolist()}))

    @classmethod
    def read(cls, file: Path | None, count: int) -> "HoldoutPrediction | None":
        """Return the predictions of ``count`` rows from a file, or None if the file is missing or damaged."""
        if file is None or not file.is_file():
            return None
        try:
            content = json.loads(file.read_text())
            times = np.array(content.pop("predicted_us"), dtype=np.float64).reshape(count)
            return cls(predicted_us=times, **content)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass
class FamilyRuns:
    """One family's rows and folds, and the predictions of its fits, which `FoldFits.run` adds.

    Attributes
    ----------
    rows : Rows
        Rows of all tables. Only the first ``count`` rows are held out.
    folds_by_seed : list
        Folds of each seed.
    evaluated : array of bool, (count,)
        Rows of evaluated problems.
    predicted : dict
        Model → one array (count,) per seed, in µs; NaN for a row that was never held out.
    supported : list of array of bool, (count,)
        Supported rows, per seed.
    settings : dict
        Model → hyperparameters of its first fit.
    reasons : dict
        Model → why it could not be fitted.
    costs : dict
        Model → seconds of each search and fit, and µs per row of each prediction.
    importance : list
        Column → importance, per fold of the first seed.
    distance : array, (count,)
        Distance to the training data of the first seed's folds.
    """

    rows: Rows
    count: int
    folds_by_seed: list[list[Fold]]
    evaluated: np.ndarray
    predicted: dict[str, list[np.ndarray]] = field(default_factory=dict)
    supported: list[np.ndarray] = field(default_factory=list)
    settings: dict[str, dict[str, object]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    costs: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    importance: list[dict[str, float]] = field(default_factory=list)
    distance: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def main(self) -> Rows:
        """The rows that are held out, fold by fold."""
        return self.rows.take(np.arange(self.count))

    @property
    def fits(self) -> int:
        """Number of fits of one model."""
        return sum(map(len, self.folds_by_seed))


class FitProgress:
    """The progress of ``total`` fits: the number of started ones. Threads share it."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._total = total
        self._begun = 0
        self._progress = progress
        self._lock = threading.Lock()

    def report(self, text: str, begun: int = 0) -> None:
        """Report a step; ``begun`` is the number of fits that start with it."""
        with self._lock:
            if self._progress is not None:
                self._progress(self._begun, self._total, text)
            self._begun += begun


class _SeedFold(NamedTuple):
    """One fold of one seed; ``test`` are the positions of its held-out rows of the newest library version."""

    seed: int
    number: int
    fold: Fold
    test: np.ndarray


_FoldTimes = tuple[np.ndarray, np.ndarray, dict[str, HoldoutPrediction | str]]
"""Results on a fold's held-out rows: supported rows, distances, and each model's predictions or failure."""


@dataclass(frozen=True)
class FoldFits:
    """Fits all ``models`` on the folds of a family, ``workers`` folds at a time.

    ``tune`` and ``device`` are parameters of `surrogate.evaluation.hyperparameters.tuned`.
    """

    models: Sequence[type[TimeModel]]
    tune: str
    device: str
    workers: int
    progress: FitProgress

    def run(self, runs: FamilyRuns, folder: Path | None) -> None:
        """Fit and predict all folds; ``folder`` holds finished fits.

        A model that cannot be fitted is left out with its reason. Raises `InputError` if no model can be fitted.
        """
        newest = newest_version(runs.main.frame, runs.rows.family)
        seed_folds = [
            _SeedFold(seed, number, fold, fold.test[newest[fold.test]])
            for seed, folds in enumerate(runs.folds_by_seed)
            for number, fold in enumerate(folds)
        ]
        answers = in_parallel(partial(self._fit_fold, runs.rows, folder), seed_folds, self.workers)
        for cls in self.models:
            runs.predicted[cls.name] = [np.full(runs.count, np.nan) for _ in runs.folds_by_seed]
        runs.supported.extend(np.zeros(runs.count, dtype=bool) for _ in runs.folds_by_seed)
        for (seed, _, _, test), (supported, distance, outcomes) in zip(seed_folds, answers, strict=True):
            runs.supported[seed][test] = supported
            if not seed:
                runs.distance[test] = distance
            for name, outcome in outcomes.items():
                if isinstance(outcome, str):
                    runs.reasons.setdefault(name, outcome)
                    continue
                runs.settings.setdefault(name, outcome.settings)
                runs.predicted[name][seed][test] = outcome.predicted_us
                runs.costs.setdefault(name, []).append((outcome.tune_s, outcome.fit_s, outcome.predict_us))
                if outcome.importance:
                    runs.importance.append(outcome.importance)
        if len(runs.reasons) == len(self.models):
            raise InputError("; ".join(f"{name}: {reason}" for name, reason in runs.reasons.items()))

    def _fit_fold(self, rows: Rows, folder: Path | None, seed_fold: _SeedFold, stopped: threading.Event) -> _FoldTimes:
        """Fit every model on a fold's training rows and predict the held-out rows."""
        seed, number, fold, test = seed_fold
        train, holdout = rows.take(fold.train), rows.take(test)
        if not train.ok.any():
            raise InputError(f"fold {fold.name}: no training rows are left; use fewer folds or more data")
        outcomes: dict[str, HoldoutPrediction | str] = {}
        fitted: dict[str, TimeModel] = {}
        # The stack comes last, because it combines the fold's fits of its two models.
        for cls in sorted(self.models, key=lambda cls: cls is StackedTerms):
            if stopped.is_set():
                break
            label = f"{rows.family.name} seed {seed} fold {fold.name} {cls.name}"
            self.progress.report(label, begun=1)
            begun_s = monotonic()
            file = folder and folder / f"{cls.name}-{seed}-{number}.json"

            def on_trial(done: int, of: int, best: str, label: str = label) -> None:
                if stopped.is_set():  # another fit failed, or the command was interrupted: the search ends
                    raise CancelledError
                self.progress.report(f"{label}, trial {done} of {of} {best}".rstrip())

            try:
                with one_line_errors(cls.name):  # if one model raises, the others are still evaluated
                    outcome = HoldoutPrediction.read(file, len(holdout))
                    if outcome is None:
                        if cls is StackedTerms:
                            _refit_kept(fitted, outcomes, train)
                        model = tuned(cls, train, self.tune, seed=seed, device=self.device, progress=on_trial)
                        explained = term_columns(rows.family) if (cls.name, seed) == (TREES_MODEL, 0) else ()
                        outcome = _fitted(model, train, holdout, fitted, explained, tune_s=monotonic() - begun_s)
                        if file is not None:
                            outcome.write(file)
                    outcomes[cls.name] = outcome
            except InputError as error:
                outcomes[cls.name] = str(error)
        distance = np.full(len(holdout), np.nan) if seed else distances_to(training_shapes_of(train), holdout)
        return Support.fit(train).supported(holdout), distance, outcomes


def _fitted(
    model: TimeModel, train: Rows, holdout: Rows, fitted: dict[str, TimeModel], explained: Sequence[str], tune_s: float
) -> HoldoutPrediction:
    """Fit a model and predict the held-out rows.

    ``fitted`` holds the fold's fits of `STACK_PARTS` by name; a new fit of one of them is added. ``explained`` are the
    columns whose importance is computed.
    """
    begun_s = monotonic()
    settings = json_value(model.get_params(deep=False))
    model.fitted_parts = fitted
    model.fit(train)
    fit_s = monotonic() - begun_s
    predicted_us = model.predict(holdout)
    predict_us = 1e6 * (monotonic() - begun_s - fit_s) / max(len(holdout), 1)
    if model.name in STACK_PARTS:
        fitted[model.name] = model
    importance = column_importance(model, holdout, explained, seed=0) if explained else {}
    return HoldoutPrediction(settings, predicted_us, tune_s, fit_s, predict_us, importance)


def _refit_kept(fitted: dict[str, TimeModel], outcomes: Mapping[str, HoldoutPrediction | str], train: Rows) -> None:
    """Fit the stack's models again if their predictions came from files, with the settings of the files."""
    for name in STACK_PARTS:
        outcome = outcomes.get(name)
        if isinstance(outcome, HoldoutPrediction) and name not in fitted:
            fitted[name] = model_class(name)(**outcome.settings).fit(train)


MAX_ROWS = 1000
"""Maximum number of permuted held-out rows of a fold. More rows hardly change the mean."""
REPEATS = 2
"""Number of permutations of each column."""


def column_importance(model: TimeModel, holdout: Rows, names: Sequence[str], seed: int) -> dict[str, float]:
    """Return column → increase of the mean absolute log error when its values are permuted among held-out rows.

    Parameters
    ----------
    model
        A fitted model that takes the columns from ``Rows.features``.
    holdout
        Held-out rows. At most `MAX_ROWS` ok rows are drawn.
    names
        The columns to permute.
    seed
        Seed of the sample and the permutations.
    """
    from sklearn.inspection import permutation_importance

    sample = holdout.take(np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(holdout.ok))[:MAX_ROWS]))
    if len(sample) < 2:
        return {}
    log_us = np.log(sample.time_us)
    places = [sample.column_names.index(name) for name in names]

    def accuracy(estimator: TimeModel, permuted: np.ndarray, log_us: np.ndarray) -> float:
        features = sample.features.copy()
        features[:, places] = permuted
        predicted_us = estimator.predict(replace(sample, features=features))
        return -float(np.nanmean(np.abs(np.log(predicted_us) - log_us)))

    settings: dict[str, Any] = {"scoring": accuracy, "n_repeats": REPEATS, "random_state": seed}
    found = permutation_importance(model, sample.columns(names), log_us, **settings)
    return dict(zip(names, found["importances_mean"].tolist(), strict=True))


def mean_importance(folds: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return one record per column, the most important first: ``increase``, its mean over folds, and its ``sd``."""
    names = dict.fromkeys(name for fold in folds for name in fold)
    records = []
    for name in names:
        values = [fold[name] for fold in folds if name in fold]
        records.append({"column": name, "increase": float(np.mean(values)), "sd": float(np.std(values))})
    return sorted(records, key=lambda record: -record["increase"])
