"""Train a bundle from datasets: a model per family, fitted on all rows; its errors come from held-out folds."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from msgspec import structs

from surrogate.bundle.bundle import Bundle, CandidateKey, FamilyModel, HarnessFloor
from surrogate.dataset.described import KernelOptions
from surrogate.dataset.files import Progress
from surrogate.dataset.problems import device_names, joined, row_groups, shape_columns
from surrogate.dataset.rows import Rows, rows_by_family
from surrogate.dataset.store import Data, Dataset, as_dataset
from surrogate.dataset.threads import limit_threads
from surrogate.evaluation.coverage import allowed_evaluation_rows, held_out_card, held_out_gpu_coverage
from surrogate.evaluation.hyperparameters import search
from surrogate.evaluation.judge import CandidateRows, pick_lowest_scores
from surrogate.features import InputError
from surrogate.features.families import DescribedFamily, Family
from surrogate.models import DEFAULT_MODEL, Support, TimeModel, model_class, model_frame
from surrogate.models.base import ProgressCallback, duplicate
from surrogate.models.baselines import AlwaysBestSingle
from surrogate.models.call_cost import CallKey, fit_call_costs
from surrogate.models.configurations import Configurations
from surrogate.models.interpolated import InterpolatedTerms
from surrogate.models.registry import TRAINED
from surrogate.models.requirements import Requirements
from surrogate.uncertainty import fit
from surrogate.uncertainty.domain import PER_DOUBLING, Domain, ReferenceKey, reference_columns
from surrogate.uncertainty.intervals import ALL, AVERAGE_RANK, RANK_BY_MODEL, UnmeasuredGpuErrors, Widths

HELD_OUT_FOLDS, HELD_OUT_FOLDS_FEW = 5, 10
"""Folds by shape for the interval widths and the model card's errors. With few shapes more folds are needed: a fold is
then farther from its training data than a new shape is from the bundle's."""
FEW_SHAPES = 500
HELD_OUT_ROWS = 2_000_000
"""Maximum rows of all folds' fits together. A larger table has fewer held-out folds, and rows are drawn for each
fit."""
MIN_HOLDOUT_SHAPES = 20
"""Minimum number of held-out shapes for any table size. Fewer shapes do not determine an interval."""
MIN_SHAPES = 2
LONG_SECONDS = 60.0
"""If a training takes longer, its progress mentions the option for a faster model."""
MIN_TIME_QUANTILE = 0.001
"""Quantile of the times of a GPU and library that is the lower bound of predictions. The minimum may be an outlier."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(KernelOptions):
    """The options of `train`; its docstring describes them."""

    model: str | None = None
    params: Mapping[str, object] | None = None
    trials: int = 0
    candidate: str = "algorithm"
    seed: int = 0
    progress: Progress | None = None
    keep: Path | None = None

    def model_for(self, family: Family) -> TimeModel:
        """Return a new model for the family, with its settings. Raises `InputError` as `new_model` does."""
        return new_model(self.model or default_model(family), self.params, self.seed)


def train(data: Data, **options: Any) -> Bundle:
    """Fit a model on all ok rows of a table, for each of its families.

    Interval widths and the card's errors come from folds by shape (`fold_count`). With GPUs of two
    architectures or more, the half widths for unmeasured GPUs come from fits without one GPU.

    Parameters
    ----------
    data
        A table, its path, or a list of them.
    model : str, optional
        Name of the model; None means each family's `default_model`.
    params : mapping, optional
        Hyperparameters that replace the model's stored ones.
    trials : int, default 0
        Number of hyperparameter settings to search first. If it is positive, ``params`` are not used.
    candidate : {"algorithm", "solver"}
        Whether to choose among algorithms (each with its fastest solver) or among solvers.
    seed : int, default 0
        Seed of folds, sampling and search.
    progress : callable, optional
        Called with the steps done, all steps, and a text.
    keep : Path, optional
        Folder of finished fits, from which the same call continues after an interruption.
    kernel, sizes, parameters, settings, name : optional
        For a table of a user's own kernel. ``kernel`` is its description or a description file. Otherwise ``sizes``,
        ``parameters`` and ``settings`` are the names of its columns, and ``name`` is the kernel's name (by default the
        name of the table's file).

    Returns
    -------
    Bundle
        Families with a single shape are left out if there is another family.

    Raises
    ------
    InputError
        If the data are not enough for the model.
    TypeError
        If an option is unknown.
    """
    chosen = TrainOptions(**options)
    data = as_dataset(data, chosen.description_or_columns)
    candidate = "solver" if data.description else chosen.candidate
    by_family = rows_by_family(model_frame(data, candidate), data.devices, data.described_family)
    tables = {family: rows for family, (_, rows) in by_family.items() if rows.ok.any()}
    if not tables:
        raise InputError(f"{data.name}: no row has status ok; there is nothing to learn from")
    few = [family.name for family, rows in tables.items() if len(np.unique(rows.shape[rows.ok])) < MIN_SHAPES]
    if len(few) == len(tables):
        raise InputError(f"{data.name}: all rows have one shape; errors and intervals need at least two")
    models = {family: chosen.model_for(family) for family in tables}
    kept = {family: rows for family, rows in tables.items() if family.name not in few}
    seed = chosen.seed
    families: list[_FamilyFits] = []
    for family, rows in kept.items():
        splits = {FOLD: _folds(rows, seed), GPU: fit.gpu_splits(rows, seed), LARGE: fit.large_split(rows)}
        families.append(_FamilyFits(rows, models[family], {**splits, KERNEL_GROUP: fit.group_splits(rows, seed)}))
    names = ", ".join(dict.fromkeys(each.name for each in models.values()))
    steps = _Steps(chosen.progress, names, sum(each.fitted_rows for each in families))
    family_models: dict[str, FamilyModel] = {}
    cards: dict[str, dict[str, object]] = {}
    with limit_threads():
        for each in families:
            name = each.rows.family.name
            steps.family = f"{name}: " if len(families) > 1 else ""
            family_models[name], cards[name] = each.fit(data, chosen, steps)
    steps.report("done")
    training = {"trials": chosen.trials, "seed": chosen.seed, "left_out": few}
    card = {"data": data_card(data, [each.rows for each in families]), "training": training, "held_out": cards}
    card["licence_notices"] = distinct_metadata(data, "licence_notices")
    return Bundle(family_models, candidate, call_costs=fit_call_costs(tables.values()), devices=data.devices, card=card)


def default_model(family: Family) -> str:
    """Return the default model of a family: by configurations, by interpolation along its lines, or by its terms."""
    if isinstance(family, DescribedFamily):
        return Configurations.name
    return InterpolatedTerms.name if family.lines else DEFAULT_MODEL


def new_model(name: str, params: Mapping[str, object] | None, seed: int) -> TimeModel:
    """Return an unfitted model. Raises `InputError` for an unknown model, a baseline, or an unknown setting."""
    cls = model_class(name)
    if not cls.storable:
        raise InputError(f"{name} is a baseline of `seer compare`; give one of: {', '.join(TRAINED)}")
    settings = cls().get_params()
    unknown = [key for key in params or {} if key not in settings]
    if unknown:
        raise InputError(f"{name} has no setting {unknown[0]!r}; give one of: {', '.join(settings)}")
    seeded = {"random_state": seed} if "random_state" in settings else {}
    return cls(**{**seeded, **(params or {})})


def fold_count(rows: Rows) -> int:
    """Return the number of held-out folds. A described kernel has few folds, because its fits have inner folds."""
    shapes = len(np.unique(rows.shape))
    enough = shapes >= FEW_SHAPES or rows.family.parameter_names
    return min(shapes, HELD_OUT_FOLDS if enough else HELD_OUT_FOLDS_FEW)


class _Steps:
    """The progress of a training in hundredths, measured in the rows of its fits. Several fits may run at a time."""

    def __init__(self, progress: Progress | None, model: str, rows: int) -> None:
        self.family = ""
        self._progress = progress
        self._model = model
        self._began_s = monotonic()
        self._rows = rows
        self._done = 0.0
        self._lock = threading.Lock()

    def report(self, text: str) -> None:
        """Report a step. After a minute, the text names the model and the option for another one."""
        if self._progress:
            done = 100 if text == "done" else min(int(100 * self._done / self._rows), 99)
            other = f" with {self._model}; --model names others" * (monotonic() - self._began_s > LONG_SECONDS)
            self._progress(done, 100, f"{self.family}{text}{other}")

    def begin(self, name: str, rows: int) -> ProgressCallback:
        """Report the start of a fit and return its callback."""
        with self._lock:
            self.report(name)
        before = 0.0

        def on_progress(share: float) -> None:
            nonlocal before
            with self._lock:
                self._done += rows * (share - before)
                before = share
                self.report(name)

        return on_progress


def _folds(rows: Rows, seed: int) -> list[fit.Split]:
    """Return the folds by shape that are fitted."""
    count = fold_count(rows)
    minimum = -(-count * MIN_HOLDOUT_SHAPES // len(np.unique(rows.shape)))
    fits = min(count, max(1, minimum, HELD_OUT_ROWS // len(rows)))
    return fit.shape_splits(rows, count, seed, fits=fits, max_rows=HELD_OUT_ROWS // fits)


FOLD, GPU, KERNEL_GROUP, LARGE = "fold", "GPU", "kernel group", "half with larger problems"
"""What a split holds out: a fold by shape, a GPU, a kernel group, or the larger problems of a described kernel."""


class _FamilyFits(NamedTuple):
    """A family's rows, its model, and the splits of each kind."""

    rows: Rows
    model: TimeModel
    splits: dict[str, list[fit.Split]]

    @property
    def fitted_rows(self) -> int:
        """Number of training rows of all fits."""
        return len(self.rows) + sum(len(train) for splits in self.splits.values() for train, _ in splits)

    def fit(self, data: Dataset, options: TrainOptions, steps: _Steps) -> tuple[FamilyModel, dict[str, object]]:
        """Return the fitted family model, and the card of its held-out rows."""
        rows, folds, gpus = self.rows, self.splits[FOLD], self.splits[GPU]
        model = _searched(self.model, rows, options, steps) if options.trials else self.model
        # 1. All fits: on all rows, and without each held-out part.
        final = duplicate(model)
        fits = [fit.Fit("all rows", final, np.arange(len(rows)), np.arange(0))]
        for kind, splits in self.splits.items():
            for number, split in enumerate(splits, 1):
                unfitted = model.for_unmeasured_gpu() if kind == GPU else duplicate(model)
                fits.append(fit.Fit(f"held-out {kind} {number} of {len(splits)}", unfitted, *split))
        answers = iter(fit.run_fits(rows, fits, steps.begin, options.keep)[1:])
        of_kind = {kind: list(islice(answers, len(splits))) for kind, splits in self.splits.items()}
        holdout_us, distance = fit.combined_answers(rows, folds, of_kind[FOLD])
        held_out_gpu_us, _ = fit.combined_answers(rows, gpus, of_kind[GPU])
        group_half_width = fit.fit_unmeasured_group(rows, self.splits[KERNEL_GROUP], of_kind[KERNEL_GROUP])
        if folds_hold_out_gpus := shape_columns(rows.frame, rows.family) == ("gpu",):
            held_out_gpu_us = holdout_us
        # 2. Support, widths, domain and card from the held-out errors.
        measured = np.where(rows.ok, rows.time_us, np.nan)
        evaluated = allowed_evaluation_rows(rows, data.candidates)
        setting_was_trained = fit.trained_settings(rows, folds if folds_hold_out_gpus else gpus)
        support = Support.fit(rows)
        ok = rows.take(rows.ok)
        widths = fit.fit_widths(rows, holdout_us, measured, distance, evaluated=evaluated)
        slopes = [
            fit.fit_per_doubling(rows, split, answer, widths.by_key[ALL])
            for split, answer in zip(self.splits[LARGE], of_kind[LARGE], strict=True)
        ]
        family_model = FamilyModel(
            family=rows.family,
            fitted=final,
            support=support,
            widths=replace(widths, unmeasured_group=group_half_width),
            domain=replace(Domain.of(ok, distance[rows.ok]), per_doubling=max(slopes, default=PER_DOUBLING)),
            unmeasured_gpu=self._unmeasured_gpu(held_out_gpu_us, setting_was_trained, evaluated, widths),
            candidates=candidate_keys(ok),
            row_counts=row_counts(ok),
            min_us=min_times(ok) if model.has_min_us else {},
            floors=harness_floors(data, rows.family),
            requirements=Requirements.fit(ok),
        )
        card = held_out_card(rows, holdout_us, measured, distance, rules=support, candidates=data.candidates)
        card["split"] = self._split_words()
        card["unseen_gpus"] = held_out_gpu_coverage(rows, held_out_gpu_us, setting_was_trained)
        card["params"] = model.get_params(deep=False)
        return family_model, card

    def _unmeasured_gpu(
        self, held_out_gpu_us: np.ndarray, setting_was_trained: np.ndarray, evaluated: np.ndarray, widths: Widths
    ) -> UnmeasuredGpuErrors:
        """Return the errors on unmeasured GPUs and the ranking source there; arrays (rows,).

        If too few GPUs show the errors of a described kernel, its configurations are as independent as in ``widths``.
        """
        rows = self.rows
        fit_inputs = rows, held_out_gpu_us, setting_was_trained, evaluated
        if rows.family.parameter_names:  # configurations have their own transfer between GPUs
            few = count_architectures(rows) < fit.MIN_GPUS
            unknown = UnmeasuredGpuErrors(independent_share=widths.independent_share)
            return unknown if few else fit.fit_unmeasured_gpu(*fit_inputs)
        unmeasured = fit.fit_unmeasured_gpu(*fit_inputs)
        source, _ = best_ranking_source(rows, self.splits[GPU], held_out_gpu_us, evaluated)
        costs = average_costs(rows) if source == AVERAGE_RANK else {}
        return structs.replace(unmeasured, ranking_source=source, mean_log_slowdowns=costs)

    def _split_words(self) -> str:
        """Return how rows were held out, as text for the card."""
        family, count = self.rows.family, fold_count(self.rows)
        unit = {"gpu": "GPU", "solver": "configuration"}.get(shape_columns(self.rows.frame, family)[0])
        some = f", {len(self.splits[FOLD])} of them run" if len(self.splits[FOLD]) < count else ""
        return f"{count} folds by {unit or ('shape, batch left out' if family.batch else 'shape')}{some}"


def _searched(model: TimeModel, rows: Rows, options: TrainOptions, steps: _Steps) -> TimeModel:
    """Return the model with the best settings of a search."""

    def on_trial(number: int, of: int, best: str) -> None:
        steps.report(f"trial {number} of {of} {best}")

    found = search(type(model), rows, options.trials, options.seed, progress=on_trial)
    return type(model)(**{**model.get_params(), **found})


def count_architectures(rows: Rows) -> int:
    """Return the number of architectures of the rows' GPUs. An unregistered GPU counts as its own architecture."""
    return len({rows.device(name).architecture or name for name in np.unique(device_names(rows.frame)).tolist()})


def candidate_keys(rows: Rows) -> frozenset[CandidateKey]:
    """Return the candidates of the rows."""
    solver = ("solver",) if "solver" in rows.frame else ()
    distinct = row_groups(rows.frame, ("library", "algorithm", *solver, *rows.family.candidate_key[:-1]))
    split = 2 + len(solver)
    return frozenset(CandidateKey(names[0], names[split:], *names[1:split]) for names, _ in distinct)


def row_counts(rows: Rows) -> dict[ReferenceKey, int]:
    """Return the number of rows per reference key, on each GPU and on all of them."""
    counts: dict[ReferenceKey, int] = {}
    frame = rows.frame.assign(gpu=device_names(rows.frame))
    for (gpu, library, *values), positions in row_groups(frame, ("gpu", *reference_columns(rows.family))):
        for on_gpu in (None, gpu):
            key = ReferenceKey(on_gpu, library, tuple(values))
            counts[key] = counts.get(key, 0) + len(positions)
    return counts


def min_times(rows: Rows) -> dict[CallKey, float]:
    """Return lower bounds of times in µs: the `MIN_TIME_QUANTILE` of the rows of each GPU and library.

    The bound of a library on any GPU, and of any library, is the minimum of these. The launch and the tail of a kernel
    take this long. A described kernel has no bound, because all its problems may be large.
    """
    minimum: dict[CallKey, float] = {}
    if rows.family.parameter_names:
        return minimum
    for (gpu, library), positions in row_groups(rows.frame.assign(gpu=device_names(rows.frame)), ("gpu", "library")):
        time_us = float(f"{np.quantile(rows.time_us[positions], MIN_TIME_QUANTILE):.4g}")
        for key in (CallKey("", library), CallKey("", "")):
            minimum[key] = min(minimum.get(key, time_us), time_us)
        minimum[CallKey(gpu, library)] = time_us
    return minimum


def harness_floors(data: Dataset, family: Family) -> tuple[HarnessFloor, ...]:
    """Return the harness floors that the importer left out (`surrogate.formats.aiconfigurator.without_floors`)."""
    return tuple(
        HarnessFloor(
            record["gpu"],
            record["library"],
            record["algorithm"],
            limit_us=float(record["limit_us"]),
            settings={name: record[name] for name in family.setting_names if name in record},
        )
        for metadata in _all_metadata(data)
        for record in metadata.get("floors", ())
    )


def data_card(data: Dataset, tables: Sequence[Rows]) -> dict[str, object]:
    """Return the summary of the training rows, over all families and per family."""
    families = {}
    for rows in tables:
        frame = rows.frame
        families[rows.family.name] = {
            "rows": len(rows),
            "ok_rows": int(rows.ok.sum()),
            "shapes": len(np.unique(rows.shape)),
            **{name: sorted(map(str, frame[name].unique())) for name in rows.family.setting_names},
            "algorithms": sorted(frame["algorithm"].unique()),
            "ranges": {name: [int(frame[name].min()), int(frame[name].max())] for name in rows.family.size_names},
        }
    frame = pd.concat([rows.frame[["gpu", "library", "library_version"]] for rows in tables])
    releases = (frame["library"] + " " + frame["library_version"]).str.strip()
    return {
        "name": data.name,
        "rows": len(frame),
        "ok_rows": sum(int(rows.ok.sum()) for rows in tables),
        "gpus": sorted(frame["gpu"].unique()),
        "libraries": sorted(releases.unique()),
        "origins": sorted(map(str, data.frame["origin"].dropna().unique() if "origin" in data.frame else [])),
        "where": distinct_metadata(data, "where"),
        "families": families,
    }


def distinct_metadata(data: Dataset, name: str) -> list[str]:
    """Return the distinct values under ``name`` in the metadata of the table and of merged tables."""
    return list(dict.fromkeys(value for metadata in _all_metadata(data) for value in metadata.get(name, [])))


def _all_metadata(data: Dataset) -> list[Mapping[str, Any]]:
    """Return the metadata of the table, and of merged tables."""
    return [data.metadata, *data.metadata.get("parts", [])]


def average_costs(rows: Rows) -> dict[str, float]:
    """Return setting and candidate (the text of `surrogate.models.grid.Label`) → mean log slowdown over GPUs.

    On each GPU it is the mean over its problems. A candidate that did not run there counts as the slowest one.
    """
    on_gpus: dict[str, list[dict[str, float]]] = {}
    for name, costs in AlwaysBestSingle().fit(rows).cost_.items():
        gpu, _, setting = name.partition("|")
        if gpu:  # without a GPU the costs are over all GPUs
            on_gpus.setdefault(setting, []).append(costs)
    return {
        f"{setting}|{name}": float(f"{np.mean([costs.get(name, max(costs.values())) for costs in gpu_costs]):.4g}")
        for setting, gpu_costs in on_gpus.items()
        for name in set().union(*gpu_costs)
    }


def best_ranking_source(
    rows: Rows, splits: Sequence[fit.Split], held_out_gpu_us: np.ndarray, evaluated: np.ndarray
) -> tuple[str, dict[str, float]]:
    """Return the ranking source with the smallest mean log slowdown over held-out GPUs, and all mean slowdowns.

    Each of the ``splits`` holds out a GPU with its architecture (`surrogate.uncertainty.fit.gpu_splits`).
    ``held_out_gpu_us`` (rows,) are the times of these fits. ``evaluated`` (rows,) marks problems whose choice counts.
    """
    slowdowns: dict[str, list[float]] = {RANK_BY_MODEL: [], AVERAGE_RANK: []}
    for train, holdout in splits:
        tested = holdout[evaluated[holdout] & rows.ok[holdout] & np.isfinite(held_out_gpu_us[holdout])]
        tested = tested[pd.Series(rows.problem[tested]).duplicated(keep=False).to_numpy()]
        if not len(tested):
            continue
        test = rows.take(tested)
        label = joined(test.frame, rows.family.setting_names) + "|" + test.candidate.astype(str)
        average = label.map(average_costs(rows.take(train))).to_numpy(dtype=float)
        every = np.ones(len(test), dtype=bool)
        candidates = CandidateRows(pd.factorize(test.problem)[0], test.time_us, every, test.order)
        for name, score in ((RANK_BY_MODEL, held_out_gpu_us[tested]), (AVERAGE_RANK, average)):
            # An unmeasured candidate comes last, as in answers.
            filled = np.nan_to_num(score, nan=np.finfo(float).max)
            slowdowns[name].append(float(np.log(pick_lowest_scores(candidates, filled, every).slowdown).mean()))
    means = {name: float(np.mean(values)) if values else 0.0 for name, values in slowdowns.items()}
    return min(means, key=lambda name: means[name]), means
