"""The main job: folds × models × judge, on real measurements, family by family; and what it leaves, as files."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.columns import SETTING_COLUMNS, SIZE_COLUMNS
from surrogate.dataset.described import Kernel, kernel_of
from surrogate.dataset.files import Progress, TimeLeft, staged, write_text
from surrogate.dataset.problems import families_of, family_rows, groups, judged_rows, newest_version, shape_columns
from surrogate.dataset.rows import Rows, fingerprint, rows_of
from surrogate.dataset.splits import Fold, folds
from surrogate.dataset.store import Data, Dataset, as_dataset, one_kernel
from surrogate.dataset.tables import write_table
from surrogate.dataset.threads import in_parallel, workers_for
from surrogate.evaluation import scorecard
from surrogate.evaluation.coverage import coverage_rows
from surrogate.evaluation.importance import column_importance, mean_importance
from surrogate.evaluation.judge import Choice
from surrogate.evaluation.scorecard import ORACLE, REPORTED_MODELS, TREES, Judged, Record, plain
from surrogate.evaluation.tune import TUNE_TRIALS, tuned
from surrogate.features.errors import InputError, in_one_line, require_known
from surrogate.features.families import FAMILIES, Family
from surrogate.models import MODELS, Support, TimeModel, model_class, model_frame
from surrogate.models.base import terms
from surrogate.models.stacked import StackedTerms
from surrogate.uncertainty.domain import distances_to, references_of
from surrogate.uncertainty.fit import held_out_half_widths
from surrogate.uncertainty.intervals import COVERAGE

RESULTS_SCHEMA = 2
"""Version of `results.json`. History: 1, the first; 2, paired differences are relative, no logarithms, and there are
more of them; ``references``, ``reported``, ``costs``, ``coverage`` and ``importance``."""


@dataclass(frozen=True)
class FamilyRuns:
    """One family's rows, folds, and what its fits predicted.

    ``rows`` of all tables, of which the first ``count`` are held out in turn; ``rounds`` the folds of each seed;
    ``judged`` (count,) rows of judged problems. ``predicted`` model → one array (count,) in µs per seed, NaN where
    never held out; ``supported`` one mask (count,) per seed; ``settings`` model → the hyperparameters of its first fit;
    ``reasons`` model → why it could not be fitted; ``costs`` model → seconds of every search and fit, and µs a row of
    every prediction; ``importance`` one mapping a fold of the first seed; ``distance`` (count,) to the training data of
    the first seed's folds.
    """

    rows: Rows
    count: int
    rounds: list[list[Fold]]
    judged: np.ndarray
    predicted: dict[str, list[np.ndarray]] = field(default_factory=dict)
    supported: list[np.ndarray] = field(default_factory=list)
    settings: dict[str, dict[str, object]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    costs: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    importance: list[dict[str, float]] = field(default_factory=list)
    distance: np.ndarray = field(default_factory=lambda: np.empty(0))

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
    for seed, held_out in enumerate(part.rounds):
        label = np.full(len(main), "", dtype=object)
        for fold in held_out:
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
            picked = pd.Series(names[choice.row], dtype=object).where(choice.row >= 0, None)
            figures = {name: getattr(choice, name) for name in ("slowdown", "infeasible", "top2_slowdown")}
            table = problems.assign(picked=picked, **figures)
            parts.append(_named(table[choice.chosen], model, seed))
    return pd.concat(parts, ignore_index=True)


def fold_table(part: FamilyRuns, by: str) -> pd.DataFrame:
    """Family, seed, fold and the shapes that it holds out; for a split by row, the rows."""
    main = part.main
    family = part.rows.family
    shapes = pd.Series(main.shape)
    tables = []
    for seed, held_out in enumerate(part.rounds):
        for fold in held_out:
            held = fold.test if by == "random" else fold.test[~shapes.iloc[fold.test].duplicated().to_numpy()]
            table = main.frame.iloc[held][list(shape_columns(main.frame, family))].assign(seed=seed, fold=fold.name)
            tables.append(table.assign(row=held) if by == "random" else table)
    return pd.concat(tables, ignore_index=True).assign(family=family.name)


def _present(frame: pd.DataFrame, *further: str) -> list[str]:
    """Those of the key's columns and the ``further`` ones that the table has."""
    return [column for column in (*SETTING_COLUMNS, *SIZE_COLUMNS, *further) if column in frame]


Settings = dict[str, object]
"""A model's hyperparameters by name."""
Step = Callable[..., None]
"""Called with a text as work goes on, and with how many fits begin (1 unless it is said)."""


@dataclass(frozen=True)
class HeldOut:
    """One fit's answers: its settings, and times (rows held out,) in µs.

    ``tune_s`` seconds of the search for settings, ``fit_s`` of the fit; ``predict_us`` µs a row of the prediction.
    ``importance``: column → `column_importance`, empty where it was not asked for.
    """

    settings: Settings
    predicted_us: np.ndarray
    tune_s: float
    fit_s: float
    predict_us: float
    importance: dict[str, float] = field(default_factory=dict)


Outcome = HeldOut | str
"""What a fit predicts, or the reason for nothing."""


FOLDS, SEEDS = 5, 3
"""Folds of a seed, and seeds, by default: a single seed's figure differs from another's by more than models do."""


def compare(
    data: Data,
    also_train: Sequence[Data] = (),
    *,
    by: str = "shape",
    folds_count: int = FOLDS,
    seeds: int = SEEDS,
    models: str | Sequence[str] | None = None,
    tune: str = "none",
    candidate: str = "algorithm",
    device: str = "cpu",
    progress: Progress | None = None,
    keep: Path | None = None,
    kernel: Kernel | str | Path | None = None,
    sizes: Sequence[str] | None = None,
    parameters: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    name: str | None = None,
) -> Compared:
    """Fit every model on every fold's training rows, predict the held-out rows, judge times and choices.

    ``data`` is a table, the path of one, or a list of them; ``models`` are names (None: all), also as one text with
    commas; ``by``: what is held out (see `surrogate.dataset.splits.folds`); ``seeds`` runs, each with its own folds;
    ``candidate``: choose among ``algorithm``s (each with its fastest solver) or ``solver``s; ``tune``: none (stored
    settings), light or full (inside the training part). Rows of ``also_train`` only train. ``device``: where XGBoost
    grows trees, cpu or cuda. ``keep``: a folder of finished fits, so that the same call goes on after an interruption.
    Of a table of a user's own kernel ``kernel`` is its description, or that one's file; else ``sizes``,
    ``parameters`` and ``settings`` name its columns, and ``name`` the kernel. A model that the data cannot carry
    appears with n 0 and the reason. Raises `InputError` where the data cannot carry the comparison.
    """
    names = models.split(",") if isinstance(models, str) else models or ()
    classes = [model_class(name) for name in dict.fromkeys(map(str.strip, names))] or list(MODELS.values())
    require_known("tune", tune, TUNE_TRIALS)
    described = kernel_of(kernel, sizes, parameters, settings, name)
    main, *others = (as_dataset(part, described) for part in (data, *also_train))
    frames = [model_frame(part, candidate) for part in (main, *others)]
    devices = {name: gpu for part in (*others, main) for name, gpu in part.devices.items()}
    parts: list[FamilyRuns] = []
    refused: dict[Family, str] = {}
    own = one_kernel((main, *others))
    for family in families_of(frames[0], own and FAMILIES.describe(own)):
        main_frame, *also = (frame[family_rows(frame, family)] for frame in frames)
        rows = rows_of(pd.concat([main_frame, *also], ignore_index=True), family, devices)
        held, trained = rows.frame.iloc[: len(main_frame)], rows.frame.iloc[len(main_frame) :]
        try:
            judged = _judged_rows(main, rows, len(main_frame))
            rounds = [folds(by, family, held, trained, count=folds_count, seed=seed) for seed in range(seeds)]
            parts.append(FamilyRuns(rows, len(main_frame), rounds, judged, distance=np.full(len(main_frame), np.nan)))
        except InputError as error:
            refused[family] = str(error)
    if not parts:
        raise InputError("; ".join(dict.fromkeys(refused.values())))
    total = sum(part.fits for part in parts) * len(classes)
    rows_to_fit = sum(len(fold.train) for part in parts for each in part.rounds for fold in each)
    workers = 1 if device != "cpu" else workers_for(max(part.fits for part in parts))  # one GPU serves one fit
    left = TimeLeft({cls.name: rows_to_fit for cls in classes}, workers)
    begun = 0
    lock = threading.Lock()

    def step(text: str, fits: int = 1) -> None:
        """Say that so many fits begin, or (0) how far one is."""
        nonlocal begun
        with lock:
            if progress is not None:
                progress(begun, total, f"{text}{left}")
            begun += fits

    def took(name: str, rows: int, seconds: float | None) -> None:
        with lock:
            left.add(name, rows, seconds)

    for part in parts:
        folder = keep and keep / _signature(part, by, tune, candidate, device)
        _run(part, classes, tune=tune, device=device, workers=workers, step=step, took=took, folder=folder)
    step("judging")
    return _judged(main, others, parts, refused=refused, models=[cls.name for cls in classes], by=by, tune=tune)


def _judged_rows(data: Dataset, rows: Rows, count: int) -> np.ndarray:
    """(count,) which of the first rows choices are judged by. Raises `InputError` where none can be compared."""
    judged = judged_rows(rows.frame.iloc[:count], rows.family, data.candidates)
    if not judged.any() and len(np.unique(rows.problem[:count])) < count:
        hint = "; if it lists only some candidates, say --candidates listed" * (data.candidates != "listed")
        raise InputError(f"{data.name}: no problem has two measured candidates and none unmeasured{hint}")
    return judged


def _run(
    part: FamilyRuns,
    classes: Sequence[type[TimeModel]],
    tune: str,
    device: str,
    workers: int,
    step: Step,
    took: Callable[[str, int, float | None], None],
    folder: Path | None,
) -> None:
    """Fit and predict all folds, ``workers`` at a time; ``step`` is called when a fit begins, ``took`` when it ended.

    A model that the data cannot carry is left out with its reason. Raises `InputError` where none can be fitted.
    """
    rounds = [(seed, i, fold) for seed, folds in enumerate(part.rounds) for i, fold in enumerate(folds)]
    newest = newest_version(part.main.frame, part.rows.family)
    # The stack comes last: it takes the fold's fits of its two models.
    ordered = sorted(classes, key=lambda cls: cls is StackedTerms)

    def fit_all(
        round_: tuple[int, int, Fold], stopped: threading.Event
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Outcome]]:
        """(positions held out, which are supported, their distances, model → what it predicts or why nothing)."""
        seed, number, fold = round_
        train = part.rows.take(fold.train)
        test = fold.test[newest[fold.test]]
        if not train.ok.any():
            raise InputError(f"fold {fold.name}: nothing is left to train on; use fewer folds or more data")
        held = part.rows.take(test)
        outcomes: dict[str, Outcome] = {}
        fitted: dict[str, TimeModel] = {}
        for cls in ordered:
            if stopped.is_set():
                break
            said = f"{part.rows.family.name} seed {seed} fold {fold.name} {cls.name}"
            step(said)
            begun_s = monotonic()
            file = folder and folder / f"{cls.name}-{seed}-{number}.json"
            is_kept = file is not None and file.is_file()

            def trial(done: int, of: int, best: str, said: str = said) -> None:
                if stopped.is_set():  # another fit failed, or the command was interrupted: no search is finished
                    raise CancelledError
                step(f"{said}, trial {done} of {of} {best}".rstrip(), 0)

            try:
                model = partial(tuned, cls, train, tune, seed=seed, device=device, progress=trial)
                explained = terms(part.rows.family) if (cls.name, seed) == (TREES, 0) else ()
                with in_one_line(cls.name):  # whatever one model raises, the others are judged
                    if cls is StackedTerms and not is_kept:
                        _refit_kept(fitted, outcomes, train)
                    outcomes[cls.name] = _held_out(model, train, held, file, fitted=fitted, explained=explained)
            except InputError as error:
                outcomes[cls.name] = str(error)
            took(cls.name, len(fold.train), None if is_kept else monotonic() - begun_s)
        distance = np.full(len(test), np.nan) if seed else distances_to(references_of(train), held)
        return test, Support.fit(train).supported(held), distance, outcomes

    answers = in_parallel(fit_all, rounds, workers)
    for cls in classes:
        part.predicted[cls.name] = [np.full(part.count, np.nan) for _ in part.rounds]
    part.supported.extend(np.zeros(part.count, dtype=bool) for _ in part.rounds)
    for (seed, _, _), (test, feasible, distance, outcomes) in zip(rounds, answers, strict=True):
        part.supported[seed][test] = feasible
        if not seed:
            part.distance[test] = distance
        for name, outcome in outcomes.items():
            if isinstance(outcome, str):
                part.reasons.setdefault(name, outcome)
                continue
            part.settings.setdefault(name, outcome.settings)
            part.predicted[name][seed][test] = outcome.predicted_us
            part.costs.setdefault(name, []).append((outcome.tune_s, outcome.fit_s, outcome.predict_us))
            if outcome.importance:
                part.importance.append(outcome.importance)
    if len(part.reasons) == len(classes):
        raise InputError("; ".join(f"{name}: {reason}" for name, reason in part.reasons.items()))


STACK_PARTS = (StackedTerms.first, StackedTerms.second)
"""Names of the models whose fits the stack takes."""


def _refit_kept(fitted: dict[str, TimeModel], outcomes: Mapping[str, Outcome], train: Rows) -> None:
    """Add the parts of a stack whose answers came from files, with the settings of those files."""
    for name in STACK_PARTS:
        outcome = outcomes.get(name)
        if isinstance(outcome, HeldOut) and name not in fitted:
            fitted[name] = model_class(name)(**outcome.settings).fit(train)


def _held_out(
    make: Callable[[], TimeModel],
    train: Rows,
    held: Rows,
    file: Path | None,
    fitted: dict[str, TimeModel],
    explained: tuple[str, ...],
) -> HeldOut:
    """What a model fitted on ``train`` says of ``held``; read from ``file`` where it lies there.

    ``fitted``: the fold's fits of `STACK_PARTS` by name, to which this one is added if it is one of them;
    ``explained``: columns whose importance is asked for.
    """
    if file is not None and file.is_file():
        try:
            content = json.loads(file.read_text())
            times = np.array(content.pop("predicted_us"), dtype=np.float64).reshape(len(held))
            return HeldOut(predicted_us=times, **content)
        except (ValueError, KeyError, TypeError, AttributeError):  # damaged since: fit again
            pass
    begun_s = monotonic()
    model = make()
    tuned_s = monotonic()
    settings = plain(model.get_params(deep=False))
    model.fitted_parts = fitted
    model.fit(train)
    fitted_s = monotonic()
    predicted_us = model.predict(held)
    predict_us = 1e6 * (monotonic() - fitted_s) / max(len(held), 1)
    if model.name in STACK_PARTS:
        fitted[model.name] = model
    importance = column_importance(model, held, explained, seed=0) if explained else {}
    seconds = tuned_s - begun_s, fitted_s - tuned_s
    answer = HeldOut(settings, predicted_us, *seconds, predict_us, importance)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({**vars(answer), "predicted_us": predicted_us.tolist()}))
    return answer


def _signature(part: FamilyRuns, *settings: str) -> str:
    """A name for what all fits of a family depend on."""
    family = part.rows.family
    words = (RESULTS_SCHEMA, family.name, family.version, *settings, len(part.rounds[0]), part.count)
    return "-".join(map(str, (*words, fingerprint(part.rows))))


def _judged(
    data: Dataset,
    also_train: Sequence[Dataset],
    parts: Sequence[FamilyRuns],
    refused: Mapping[Family, str],
    models: Sequence[str],
    by: str,
    tune: str,
) -> Compared:
    time_rows, choice_rows, choices, described = [], [], [], []
    found: dict[str, list[Record]] = {"coverage": [], "importance": [], "costs": []}
    references: dict[str, dict[str, str]] = {}
    for part in parts:
        family = part.rows.family
        tested = np.zeros(part.count, dtype=bool)
        for fold in part.rounds[0]:
            tested[fold.test] = True
        positions = np.flatnonzero(part.judged & tested)
        where = {"split": by, **_common(family, part.main.frame.iloc[np.flatnonzero(tested)])}
        judged = picks = None
        paired: dict[str, str] = {kind: name for kind, name in TIME_REFERENCES.items() if name in part.predicted}
        if len(positions):
            judged = Judged.of(part.rows.take(positions), _noise(data))
            picks = _picks(judged, part, positions)
            paired |= scorecard.references_of(judged, picks)
        references[family.name] = paired
        time_rows += [where | row for row in _time_rows(part, tested, paired)]
        for name, records in _evidence(part).items():
            found[name] += [{"family": family.name, **record} for record in records]
        if judged is None or picks is None:
            reason = f"{data.name}: one candidate a problem; a choice needs at least two"
            choice_rows += [where | row for row in _unjudged(family, models, reason)]
            continue
        missing = f"{data.name} names no heuristic_algorithm for these problems"
        reasons = {judged.heuristic: missing, **part.reasons}
        choice_rows += [where | row for row in scorecard.choice_rows(judged, picks, reasons, paired)]
        choices.append(choice_table(judged, picks))
        described.append(judged)
    for family, reason in refused.items():
        for rows in (time_rows, choice_rows):
            rows += [{"split": by} | row for row in _unjudged(family, models, reason)]
    first = parts[0]
    results = {
        "schema": RESULTS_SCHEMA,
        "dataset": _describe(data, also_train, parts, described),
        "seeds": list(range(len(first.rounds))),
        "folds": len(first.rounds[0]),
        "tune": tune,
        "reported": {part.rows.family.name: _reported(part) for part in parts},
        "references": references,
        "settings": {name: first.settings.get(name, {}) for name in models},
        "time_rows": plain(time_rows),
        "choice_rows": plain(choice_rows),
        **{name: plain(records) for name, records in found.items()},
    }
    return Compared(
        results,
        pd.concat([prediction_table(part) for part in parts], ignore_index=True),
        pd.concat(choices, ignore_index=True) if choices else pd.DataFrame(NO_CHOICES),
        pd.concat([fold_table(part, by) for part in parts], ignore_index=True),
    )


TIME_REFERENCES = {"seer": scorecard.SEER, "linear": "linear-terms", "trees": TREES}
"""What time errors are compared with where no choice is judged."""


def _reported(part: FamilyRuns) -> str | None:
    """The model that a report answers for: the first of `REPORTED_MODELS` that was fitted, else None."""
    return next((name for name in REPORTED_MODELS if name in part.settings), None)


def _evidence(part: FamilyRuns) -> dict[str, list[Record]]:
    """How the intervals of the reported model hold, what the terms are worth to the trees, and what models cost."""
    model = _reported(part)
    names = ("tune_s", "fit_s", "predict_us")
    medians = {name: dict(zip(names, np.median(each, axis=0), strict=True)) for name, each in part.costs.items()}
    costs = [{"model": name, "fits": len(part.costs[name]), **values} for name, values in medians.items()]
    importance = [{"model": TREES, **record} for record in mean_importance(part.importance)]
    return {"coverage": _coverage(part, model) if model else [], "importance": importance, "costs": costs}


def _coverage(part: FamilyRuns, model: str) -> list[Record]:
    """Coverage of the first seed's held-out rows, by widths that saw other shapes alone; empty for a single shape."""
    main, predicted_us = part.main, part.predicted[model][0]
    measured_us = np.where(main.ok, main.time_us, np.nan)
    if not (np.isfinite(predicted_us) & main.ok).any():
        return []
    half_width = held_out_half_widths(main, predicted_us, measured_us, part.distance)
    records = coverage_rows(main, np.log(predicted_us / measured_us), half_width)
    return [{"model": model, "claimed": COVERAGE, **record} for record in records]


NO_CHOICES = {
    **{name: pd.Series(dtype=str) for name in ("model", "stratum")},
    **{name: pd.Series(dtype=float) for name in ("seed", "slowdown", "infeasible")},
}
"""The table of choices where no problem has two candidates."""


def _noise(data: Dataset) -> float:
    return float(data.metadata.get("noise", 0.0))


def _unjudged(family: Family, models: Sequence[str], reason: str) -> list[Record]:
    blank = dict.fromkeys(("stratum", "gpu", "direction", "dtype", "math"), scorecard.ALL)
    return [{"model": name, "family": family.name, **blank, "n": 0, "shapes": 0, "reason": reason} for name in models]


def _picks(judged: Judged, part: FamilyRuns, positions: np.ndarray) -> dict[str, list[Choice]]:
    """Every model's choices, one per seed, then the library's heuristic's and the best."""
    picks = {}
    for name, runs in part.predicted.items():
        seeds = zip(runs, part.supported, strict=True)
        picks[name] = [scorecard.pick_by_times(judged, run[positions], able[positions]) for run, able in seeds]
    picks[judged.heuristic] = [scorecard.pick_by_heuristic(judged)]
    picks[scorecard.ORACLE] = [scorecard.pick_oracle(judged)]
    return picks


def _time_rows(part: FamilyRuns, tested: np.ndarray, references: Mapping[str, str]) -> list[Record]:
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
    return scorecard.time_rows(rows, rows.time_us / best, times, reasons, references)


def _common(family: Family, frame: pd.DataFrame) -> dict[str, str]:
    """direction, dtype and math of the rows, ``all`` where they differ or the family has none."""
    common = dict.fromkeys(("direction", "dtype", "math"), scorecard.ALL)
    names = [name for name in common if name in family.setting_names and frame[name].nunique() == 1]
    return common | {name: str(frame[name].iloc[0]) for name in names}


def _describe(data: Dataset, also: Sequence[Dataset], parts: Sequence[FamilyRuns], judged: Sequence[Judged]) -> Record:
    gpus = sorted({gpu for each in judged for gpu in each.rows.frame["gpu"].unique()})
    return {
        "name": data.name,
        "rows": len(data),
        "families": [part.rows.family.name for part in parts],
        "problems": sum(each.candidates.count for each in judged),
        "shapes": sum(len(np.unique(each.shape)) for each in judged),
        "gpus": gpus,
        "candidates": data.candidates,
        "noise": _noise(data),
        "where": data.metadata.get("where", []),
        "also_train": [part.name for part in also],
    }
