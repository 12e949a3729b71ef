"""Compare models by cross-validation on measurements, family by family, and write the results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset import problems
from surrogate.dataset.columns import SETTING_COLUMNS, SIZE_COLUMNS
from surrogate.dataset.described import KernelOptions
from surrogate.dataset.files import Progress, staged, write_text
from surrogate.dataset.problems import family_rows, newest_version, row_groups, shape_columns
from surrogate.dataset.rows import Rows, fingerprint, rows_of
from surrogate.dataset.splits import folds
from surrogate.dataset.store import Data, Dataset, as_dataset, common_kernel
from surrogate.dataset.tables import write_table
from surrogate.dataset.threads import workers_for
from surrogate.evaluation import scorecard
from surrogate.evaluation.coverage import allowed_evaluation_rows, coverage_rows
from surrogate.evaluation.fold_fits import FamilyRuns, FitProgress, FoldFits, mean_importance
from surrogate.evaluation.hyperparameters import TUNE_TRIALS
from surrogate.evaluation.judge import EvaluatedPicks
from surrogate.evaluation.scorecard import ORACLE, REPORTED_MODELS, TREES_MODEL, EvaluationSet, Record, json_value
from surrogate.features import InputError, check_choice
from surrogate.features.families import FAMILIES, Family
from surrogate.models import MODELS, TimeModel, model_class, model_frame
from surrogate.uncertainty.fit import held_out_half_widths
from surrogate.uncertainty.intervals import COVERAGE

RESULTS_SCHEMA = 2
"""Version of `results.json`. History: 1, the first; 2, more paired differences, which are relative and not logarithms;
``references``, ``reported``, ``costs``, ``coverage`` and ``importance``."""


@dataclass(frozen=True)
class Compared:
    """The results of a comparison.

    ``results`` is the content of results.json. ``predictions`` has a row per model, seed and dataset row. ``choices``
    has a row per model, seed and evaluated problem. ``folds`` has a row per seed and held-out shape.
    """

    results: dict[str, Any]
    predictions: pd.DataFrame
    choices: pd.DataFrame
    folds: pd.DataFrame

    def write(self, directory: str | Path) -> None:
        """Write ``results.json``, ``predictions.parquet``, ``choices.parquet`` and ``folds.csv``, all or none of them.

        The folder is created. Raises `InputError` if it cannot be written.
        """
        with staged(directory) as folder:
            write_table(self.predictions, folder / "predictions.parquet", {"schema": RESULTS_SCHEMA})
            write_table(self.choices, folder / "choices.parquet", {"schema": RESULTS_SCHEMA})
            write_text(folder / "folds.csv", self.folds.to_csv(index=False))
            write_text(folder / "results.json", json.dumps(self.results, indent=1, allow_nan=False))


def prediction_table(family_runs: FamilyRuns) -> pd.DataFrame:
    """Return the predictions of every model and seed, row by row."""
    main = family_runs.main
    mechanism = _mechanisms(main)
    columns = _present(main.frame, "algorithm", "solver", "status", "time_us")
    tables = []
    for seed, held_out in enumerate(family_runs.folds_by_seed):
        label = np.full(len(main), "", dtype=object)
        for fold in held_out:
            label[fold.test] = fold.name
        table = main.frame[columns].assign(mechanism=mechanism, supported=family_runs.supported[seed])
        table.insert(0, "fold", label)
        for name, runs in family_runs.predicted.items():
            is_predicted = np.isfinite(runs[seed])
            predicted_us = runs[seed] if model_class(name).predicts_time else np.nan
            tables.append(_with_model(table.assign(predicted_us=predicted_us)[is_predicted], name, seed))
    return pd.concat(tables, ignore_index=True)


def _with_model(table: pd.DataFrame, model: str, seed: int) -> pd.DataFrame:
    """Return the table with model and seed as first columns."""
    return table.assign(model=model, seed=seed)[["model", "seed", *table.columns]]


def _mechanisms(rows: Rows) -> np.ndarray:
    """Return the mechanism of each row's candidate, (rows,)."""
    family = rows.family
    out = np.full(len(rows), "", dtype=object)
    names = ("library", *family.setting_names, "algorithm")
    for (library, *setting, algorithm), positions in row_groups(rows.frame, names):
        out[positions] = family.mechanism(library, tuple(setting), algorithm)
    return out


def choice_table(evaluated: EvaluationSet, picks: Mapping[str, Sequence[EvaluatedPicks]]) -> pd.DataFrame:
    """Return the choices of every model and seed, problem by problem."""
    frame = evaluated.rows.frame
    names = frame["solver" if "solver" in frame else "algorithm"].to_numpy(dtype=object)
    problems = frame[_present(frame, "networks")].iloc[evaluated.problem_row].reset_index(drop=True)
    problems["stratum"] = evaluated.rows.stratum[evaluated.problem_row]
    problems["best"] = names[picks[ORACLE][0].row]
    tables = []
    for model, choices in picks.items():
        for seed, choice in enumerate(choices):
            picked = pd.Series(names[choice.row], dtype=object).where(choice.row >= 0, None)
            figures = {name: getattr(choice, name) for name in ("slowdown", "infeasible", "top2_slowdown")}
            tables.append(_with_model(problems.assign(picked=picked, **figures)[choice.chosen], model, seed))
    return pd.concat(tables, ignore_index=True)


def fold_table(family_runs: FamilyRuns, by: str) -> pd.DataFrame:
    """Return family, seed, fold and held-out shapes; for a random split, the held-out rows."""
    main = family_runs.main
    family = family_runs.rows.family
    shapes = pd.Series(main.shape)
    tables = []
    for seed, held_out in enumerate(family_runs.folds_by_seed):
        for fold in held_out:
            holdout = fold.test if by == "random" else fold.test[~shapes.iloc[fold.test].duplicated().to_numpy()]
            table = main.frame.iloc[holdout][list(shape_columns(main.frame, family))].assign(seed=seed, fold=fold.name)
            tables.append(table.assign(row=holdout) if by == "random" else table)
    return pd.concat(tables, ignore_index=True).assign(family=family.name)


def _present(frame: pd.DataFrame, *further: str) -> list[str]:
    """Return the key's columns and the ``further`` columns that the table has."""
    return [column for column in (*SETTING_COLUMNS, *SIZE_COLUMNS, *further) if column in frame]


FOLDS, SEEDS = 5, 3
"""Default number of folds per seed, and of seeds. The results of two seeds differ by more than those of two models."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions(KernelOptions):
    """The options of `compare`; its docstring describes them."""

    by: str = "shape"
    folds_count: int = FOLDS
    seeds: int = SEEDS
    models: str | Sequence[str] | None = None
    tune: str = "none"
    candidate: str = "algorithm"
    device: str = "cpu"
    progress: Progress | None = None
    keep: Path | None = None

    def __post_init__(self) -> None:
        check_choice("tune", self.tune, TUNE_TRIALS)

    @property
    def classes(self) -> list[type[TimeModel]]:
        """The models to compare. Raises `InputError` for an unknown model."""
        names = self.models.split(",") if isinstance(self.models, str) else self.models or ()
        return [model_class(name) for name in dict.fromkeys(map(str.strip, names))] or list(MODELS.values())


def compare(data: Data, also_train: Sequence[Data] = (), **options: Any) -> Compared:
    """Fit every model on every fold's training rows, predict the held-out rows, and evaluate times and choices.

    Parameters
    ----------
    data
        A table, its path, or a list of them.
    also_train
        Additional tables, whose rows are only training rows.
    by : str, default "shape"
        What is held out (see `surrogate.dataset.splits.folds`).
    folds_count, seeds : int
        Number of folds per seed, and number of seeds. Each seed has its own folds.
    models : str or sequence of str, optional
        Names of the models, also as a text with commas; None means all.
    tune : {"none", "light", "full"}
        Whether to use stored settings, or to search settings inside the training rows.
    candidate : {"algorithm", "solver"}
        Whether to choose among algorithms (each with its fastest solver) or among solvers.
    device : {"cpu", "cuda"}
        Device on which XGBoost grows trees.
    progress : callable, optional
        Called with the started fits, all fits, and a text.
    keep : Path, optional
        Folder of finished fits, from which the same call continues after an interruption.
    kernel, sizes, parameters, settings, name : optional
        For a table of a user's own kernel. ``kernel`` is its description or the file of one. Otherwise ``sizes``,
        ``parameters`` and ``settings`` are the names of its columns, and ``name`` is the kernel's name.

    Returns
    -------
    Compared
        A model that cannot be fitted appears with n 0 and the reason.

    Raises
    ------
    InputError
        If the data are not enough for a comparison.
    TypeError
        If an option is unknown.
    """
    chosen = CompareOptions(**options)
    classes = chosen.classes
    main, *others = (as_dataset(each, chosen.description_or_columns) for each in (data, *also_train))
    all_runs, refused = _family_runs(main, others, chosen)
    fits_of_model = max(family_runs.fits for family_runs in all_runs)
    workers = workers_for(fits_of_model) if chosen.device == "cpu" else 1  # a GPU runs one fit at a time
    names = [cls.name for cls in classes]
    progress = FitProgress(chosen.progress, len(names) * sum(family_runs.fits for family_runs in all_runs))
    fits = FoldFits(classes, chosen.tune, chosen.device, workers, progress)
    for family_runs in all_runs:
        fits.run(family_runs, chosen.keep and chosen.keep / _signature(family_runs, chosen))
    progress.report("evaluating")
    return _compared(main, others, all_runs, refused, chosen, names)


def _family_runs(
    main: Dataset, others: Sequence[Dataset], options: CompareOptions
) -> tuple[list[FamilyRuns], dict[Family, str]]:
    """Return each family's rows and folds, and family → reason for those that cannot be evaluated.

    Raises `InputError` if no family can be evaluated.
    """
    frames = [model_frame(each, options.candidate) for each in (main, *others)]
    devices = {name: gpu for each in (*others, main) for name, gpu in each.devices.items()}
    all_runs: list[FamilyRuns] = []
    refused: dict[Family, str] = {}
    own = common_kernel((main, *others))
    for family in problems.families_of(frames[0], own and FAMILIES.from_description(own)):
        main_frame, *also = (frame[family_rows(frame, family)] for frame in frames)
        rows = rows_of(pd.concat([main_frame, *also], ignore_index=True), family, devices)
        count = len(main_frame)
        tables = rows.frame.iloc[:count], rows.frame.iloc[count:]
        try:
            evaluated = _evaluation_rows(main, rows, count)
            fold_count, seeds = options.folds_count, range(options.seeds)
            folds_by_seed = [folds(options.by, family, *tables, count=fold_count, seed=seed) for seed in seeds]
            all_runs.append(FamilyRuns(rows, count, folds_by_seed, evaluated, distance=np.full(count, np.nan)))
        except InputError as error:
            refused[family] = str(error)
    if not all_runs:
        raise InputError("; ".join(dict.fromkeys(refused.values())))
    return all_runs, refused


def _evaluation_rows(data: Dataset, rows: Rows, count: int) -> np.ndarray:
    """Return True (count,) for rows of problems with a choice. Raises `InputError` if no problem has a choice."""
    evaluated = allowed_evaluation_rows(rows.take(np.arange(count)), data.candidates)
    if not evaluated.any() and len(np.unique(rows.problem[:count])) < count:
        hint = "; if it lists only some candidates, say --candidates listed" * (data.candidates != "listed")
        raise InputError(f"{data.name}: no problem has two measured candidates and none unmeasured{hint}")
    return evaluated


def _signature(family_runs: FamilyRuns, options: CompareOptions) -> str:
    """Return a name that encodes all inputs of a family's fits."""
    family = family_runs.rows.family
    settings = (options.by, options.tune, options.candidate, options.device, len(family_runs.folds_by_seed[0]))
    words = (RESULTS_SCHEMA, family.name, family.version, *settings, family_runs.count)
    return "-".join(map(str, (*words, fingerprint(family_runs.rows))))


@dataclass(frozen=True)
class _FamilyResults:
    """The results of one family; ``evaluated`` and ``choices`` are None if no choice is evaluated."""

    references: dict[str, str]
    time_rows: list[Record]
    choice_rows: list[Record]
    evidence: dict[str, list[Record]]
    evaluated: EvaluationSet | None
    choices: pd.DataFrame | None


def _family_results(family_runs: FamilyRuns, data: Dataset, by: str, models: Sequence[str]) -> _FamilyResults:
    """Evaluate the times of one family and, if problems have two candidates, the choices."""
    family = family_runs.rows.family
    tested = np.zeros(family_runs.count, dtype=bool)
    for fold in family_runs.folds_by_seed[0]:
        tested[fold.test] = True
    positions = np.flatnonzero(family_runs.evaluated & tested)
    where = {"split": by, **_common(family, family_runs.main.frame.iloc[np.flatnonzero(tested)])}
    references: dict[str, str] = {kind: name for kind, name in TIME_REFERENCES.items() if name in family_runs.predicted}
    if not len(positions):
        evaluated = choices = None
        rows = _unevaluated(family, models, f"{data.name}: one candidate a problem; a choice needs at least two")
    else:
        evaluated = EvaluationSet.of(family_runs.rows.take(positions), _noise(data))
        picks = _picks(evaluated, family_runs, positions)
        references |= scorecard.reference_models(evaluated, picks)
        no_picks = f"{data.name} names no heuristic_algorithm for these problems"
        reasons = {evaluated.heuristic: no_picks, **family_runs.reasons}
        rows = scorecard.choice_rows(evaluated, picks, reasons, references)
        choices = choice_table(evaluated, picks)
    time_rows = [where | row for row in _time_rows(family_runs, tested, references)]
    evidence = {name: [{"family": family.name, **row} for row in rows] for name, rows in _evidence(family_runs).items()}
    return _FamilyResults(references, time_rows, [where | row for row in rows], evidence, evaluated, choices)


def _compared(
    data: Dataset,
    also_train: Sequence[Dataset],
    all_runs: Sequence[FamilyRuns],
    refused: Mapping[Family, str],
    options: CompareOptions,
    models: Sequence[str],
) -> Compared:
    """Evaluate all families and return the combined results."""
    family_results = [_family_results(family_runs, data, options.by, models) for family_runs in all_runs]
    unevaluated = (row for family, why in refused.items() for row in _unevaluated(family, models, why))
    missing = [{"split": options.by} | row for row in unevaluated]
    first, names = all_runs[0], [family_runs.rows.family.name for family_runs in all_runs]
    choices = [result.choices for result in family_results if result.choices is not None]
    results = {
        "schema": RESULTS_SCHEMA,
        "dataset": _describe(data, also_train, names, [each.evaluated for each in family_results if each.evaluated]),
        "seeds": list(range(len(first.folds_by_seed))),
        "folds": len(first.folds_by_seed[0]),
        "tune": options.tune,
        "reported": {name: _reported(family_runs) for name, family_runs in zip(names, all_runs, strict=True)},
        "references": {name: result.references for name, result in zip(names, family_results, strict=True)},
        "settings": {name: first.settings.get(name, {}) for name in models},
        "time_rows": json_value([row for result in family_results for row in result.time_rows] + missing),
        "choice_rows": json_value([row for result in family_results for row in result.choice_rows] + missing),
    }
    for kind in ("coverage", "importance", "costs"):
        results[kind] = json_value([record for result in family_results for record in result.evidence[kind]])
    return Compared(
        results,
        pd.concat([prediction_table(family_runs) for family_runs in all_runs], ignore_index=True),
        pd.concat(choices, ignore_index=True) if choices else pd.DataFrame(NO_CHOICES),
        pd.concat([fold_table(family_runs, options.by) for family_runs in all_runs], ignore_index=True),
    )


TIME_REFERENCES = {"seer": scorecard.SEER, "linear": "linear-terms", "trees": TREES_MODEL}
"""References of time errors if no choice is evaluated."""


def _reported(family_runs: FamilyRuns) -> str | None:
    """Return the reported model: the first fitted one of `REPORTED_MODELS`, or None."""
    return next((name for name in REPORTED_MODELS if name in family_runs.settings), None)


def _evidence(family_runs: FamilyRuns) -> dict[str, list[Record]]:
    """Return the coverage of the reported model, the importance of terms to the trees, and the costs of models."""
    model = _reported(family_runs)
    names = ("tune_s", "fit_s", "predict_us")
    medians = {name: dict(zip(names, np.median(each, axis=0), strict=True)) for name, each in family_runs.costs.items()}
    costs = [{"model": name, "fits": len(family_runs.costs[name]), **values} for name, values in medians.items()]
    importance = [{"model": TREES_MODEL, **record} for record in mean_importance(family_runs.importance)]
    return {"coverage": _coverage(family_runs, model) if model else [], "importance": importance, "costs": costs}


def _coverage(family_runs: FamilyRuns, model: str) -> list[Record]:
    """Return the coverage of the first seed's held-out rows; empty for a single shape.

    Half widths come from other shapes only.
    """
    main, predicted_us = family_runs.main, family_runs.predicted[model][0]
    measured_us = np.where(main.ok, main.time_us, np.nan)
    if not (np.isfinite(predicted_us) & main.ok).any():
        return []
    half_width = held_out_half_widths(main, predicted_us, measured_us, family_runs.distance)
    records = coverage_rows(main, np.log(predicted_us / measured_us), half_width)
    return [{"model": model, "claimed": COVERAGE, **record} for record in records]


NO_CHOICES = {
    **{name: pd.Series(dtype=str) for name in ("model", "stratum")},
    **{name: pd.Series(dtype=float) for name in ("seed", "slowdown", "infeasible")},
}
"""The empty table of choices, if no problem has two candidates."""


def _noise(data: Dataset) -> float:
    return float(data.metadata.get("noise", 0.0))


def _unevaluated(family: Family, models: Sequence[str], reason: str) -> list[Record]:
    blank = dict.fromkeys(("stratum", "gpu", "direction", "dtype", "math"), scorecard.ALL)
    return [{"model": name, "family": family.name, **blank, "n": 0, "shapes": 0, "reason": reason} for name in models]


def _picks(evaluated: EvaluationSet, family_runs: FamilyRuns, positions: np.ndarray) -> dict[str, list[EvaluatedPicks]]:
    """Return model → its picks per seed, also of the library's heuristic and the best candidate."""
    picks = {}
    for name, runs in family_runs.predicted.items():
        seeds = zip(runs, family_runs.supported, strict=True)
        picks[name] = [scorecard.pick_by_times(evaluated, run[positions], able[positions]) for run, able in seeds]
    picks |= scorecard.library_picks(evaluated)
    picks[scorecard.ORACLE] = [scorecard.pick_oracle(evaluated)]
    return picks


def _time_rows(family_runs: FamilyRuns, tested: np.ndarray, references: Mapping[str, str]) -> list[Record]:
    """Return the rows of time errors, over held-out ok rows of the newest library version."""
    main = family_runs.main
    ok = np.flatnonzero(tested & newest_version(main.frame, main.family) & main.ok)
    rows = main.take(ok)
    best = pd.Series(rows.time_us).groupby(rows.problem).transform("min").to_numpy()
    rankers = [name for name in family_runs.predicted if not model_class(name).predicts_time]
    reasons = dict.fromkeys(rankers, "it ranks algorithms and predicts no time") | family_runs.reasons
    times = {name: [] if name in reasons else [run[ok] for run in runs] for name, runs in family_runs.predicted.items()}
    return scorecard.time_rows(rows, rows.time_us / best, times, reasons, references)


def _common(family: Family, frame: pd.DataFrame) -> dict[str, str]:
    """Return direction, dtype and math of the rows; ``all`` if they differ or the family lacks the setting."""
    common = dict.fromkeys(("direction", "dtype", "math"), scorecard.ALL)
    names = [name for name in common if name in family.setting_names and frame[name].nunique() == 1]
    return common | {name: str(frame[name].iloc[0]) for name in names}


def _describe(
    data: Dataset, also_train: Sequence[Dataset], families: Sequence[str], evaluated: Sequence[EvaluationSet]
) -> Record:
    return {
        "name": data.name,
        "rows": len(data),
        "families": families,
        "problems": sum(each.candidates.count for each in evaluated),
        "shapes": sum(len(np.unique(each.shape)) for each in evaluated),
        "gpus": sorted({gpu for each in evaluated for gpu in each.rows.frame["gpu"].unique()}),
        "candidates": data.candidates,
        "noise": _noise(data),
        "where": data.metadata.get("where", []),
        "also_train": [each.name for each in also_train],
    }
