"""Datasets to a bundle: for each family a model fitted on everything, its errors known from held-out folds."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from msgspec import structs

from surrogate.bundle.bundle import Bundle, CandidateKey, FamilyModel, HarnessFloor
from surrogate.dataset.described import KernelOptions
from surrogate.dataset.files import Progress, TimeLeft
from surrogate.dataset.problems import device_names, evaluation_rows, joined, row_groups, shape_columns
from surrogate.dataset.rows import Rows, rows_by_family
from surrogate.dataset.store import Data, Dataset, as_dataset
from surrogate.dataset.threads import limit_threads
from surrogate.evaluation.coverage import held_out_card, left_out_coverage
from surrogate.evaluation.judge import Candidates, choose
from surrogate.evaluation.tune import search
from surrogate.features.errors import InputError
from surrogate.features.families import DescribedFamily, Family
from surrogate.models import DEFAULT_MODEL, Support, TimeModel, model_class, model_frame
from surrogate.models.base import ProgressCallback, duplicate
from surrogate.models.baselines import AlwaysBestSingle
from surrogate.models.configurations import Configurations
from surrogate.models.interpolated import InterpolatedTerms
from surrogate.models.launch import CallKey, fit_launches
from surrogate.models.registry import TRAINED
from surrogate.uncertainty.domain import Domain, ReferenceKey, reference_columns
from surrogate.uncertainty.fit import (
    MIN_GPUS,
    Fit,
    Split,
    combined_answers,
    fit_unseen_gpu,
    fit_widths,
    gpu_splits,
    run_fits,
    seen_settings,
    shape_splits,
)
from surrogate.uncertainty.intervals import AVERAGE_RANK, MODEL, UnseenGpu

HELD_OUT_FOLDS, HELD_OUT_FOLDS_FEW = 5, 10
"""Folds by shape whose held-out predictions give the interval widths and the model card's errors: with few shapes more
of them, since a fold then lies farther from its training data than a new shape from the bundle's."""
FEW_SHAPES = 500
HELD_OUT_ROWS = 2_000_000
"""Rows of all folds' fits together: of a larger table fewer folds are held out, and rows are drawn for each fit."""
MIN_HELD_SHAPES = 20
"""So many shapes are held out whatever the table's size; fewer carry no interval."""
MIN_SHAPES = 2
LONG_SECONDS = 60.0
"""Training that takes longer says by which option it may be shortened."""
MIN_TIME = 0.001
"""This low quantile of the times of a GPU and library is the least that is predicted; the very least may be a fluke."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(KernelOptions):
    """The options of `train`, which explains them."""

    model: str | None = None
    params: Mapping[str, object] | None = None
    trials: int = 0
    candidate: str = "algorithm"
    seed: int = 0
    progress: Progress | None = None
    keep: Path | None = None

    def unfitted(self, family: Family) -> TimeModel:
        """The family's model with its settings. Raises `InputError` as `new_model` does."""
        return new_model(self.model or default_model(family), self.params, self.seed)


def train(data: Data, **options: Any) -> Bundle:
    """Fit a model on all ok rows of a table, for each of its families.

    Interval widths and the card's errors come from folds by shape (`fold_count`); with three GPUs or more, the factor
    on the widths for GPUs never seen comes from fits without one.

    Parameters
    ----------
    data
        A table, the path of one, or a list of them.
    **options
        ``model``: its name (None: each family's `default_model`). ``params``: settings over its stored ones.
        ``trials``: settings to search first (0: none), which leaves ``params`` aside. ``candidate``: choose among
        ``algorithm``s (each with its fastest solver) or ``solver``s. ``seed``: of folds, sampling and search.
        ``progress``: called with the steps done, all steps, and a text. ``keep``: a folder of finished fits, with which
        the same call goes on after an interruption. For a table of a user's own kernel, ``kernel`` is its description
        or the file of one; else ``sizes``, ``parameters`` and ``settings`` name its columns, and ``name`` the kernel,
        which is called like the table's file without it.

    Returns
    -------
    Bundle
        Without families of one shape alone, if there is another family.

    Raises
    ------
    InputError
        If the data cannot carry the model.
    TypeError
        If an option has another name.
    """
    chosen = TrainOptions(**options)
    data = as_dataset(data, chosen.described)
    candidate = "solver" if data.described else chosen.candidate
    known = rows_by_family(model_frame(data, candidate), data.devices, data.own)
    tables = {family: rows for family, (_, rows) in known.items() if rows.ok.any()}
    if not tables:
        raise InputError(f"{data.name}: no row has status ok; there is nothing to learn from")
    few = [family.name for family, rows in tables.items() if len(np.unique(rows.shape[rows.ok])) < MIN_SHAPES]
    if len(few) == len(tables):
        raise InputError(f"{data.name}: all rows have one shape; errors and intervals need at least two")
    unfitted = {family: chosen.unfitted(family) for family in tables}
    kept = {family: rows for family, rows in tables.items() if family.name not in few}
    families = [_FamilyFits.of(rows, unfitted[family], chosen) for family, rows in kept.items()]
    names = ", ".join(dict.fromkeys(each.name for each in unfitted.values()))
    steps = _Steps(chosen.progress, names, sum(each.fitted_rows for each in families))
    parts: dict[str, FamilyModel] = {}
    cards: dict[str, dict[str, object]] = {}
    with limit_threads():
        for each in families:
            name = each.rows.family.name
            steps.family = f"{name}: " if len(families) > 1 else ""
            parts[name], cards[name] = each.trained(data, chosen, steps)
    steps.say("done")
    training = {"trials": chosen.trials, "seed": chosen.seed, "left_out": few}
    card = {"data": data_card(data, [each.rows for each in families]), "training": training, "held_out": cards}
    card["licence_notices"] = listed(data, "licence_notices")
    return Bundle(parts, candidate, launches=fit_launches(tables.values()), devices=data.devices, card=card)


def default_model(family: Family) -> str:
    """The model of a family where none is named: by its configurations, along its lines, or by its terms alone."""
    if isinstance(family, DescribedFamily):
        return Configurations.name
    return InterpolatedTerms.name if family.lines else DEFAULT_MODEL


def new_model(name: str, params: Mapping[str, object] | None, seed: int) -> TimeModel:
    """A model with its settings. Raises `InputError` for an unknown one, one that no bundle holds, bad settings."""
    cls = model_class(name)
    if not cls.storable:
        raise InputError(f"{name} is a baseline of `seer compare`, a bundle holds one of: {', '.join(TRAINED)}")
    known_params = cls().get_params()
    unknown = [key for key in params or {} if key not in known_params]
    if unknown:
        raise InputError(f"{name} has no setting {unknown[0]!r}; known: {', '.join(known_params)}")
    seeded = {"random_state": seed} if "random_state" in known_params else {}
    return cls(**{**seeded, **(params or {})})


def fold_count(rows: Rows) -> int:
    """Folds of the held-out predictions: few where each fit of a described kernel holds folds of its own."""
    shapes = len(np.unique(rows.shape))
    enough = shapes >= FEW_SHAPES or rows.family.parameter_names
    return min(shapes, HELD_OUT_FOLDS if enough else HELD_OUT_FOLDS_FEW)


class _Steps:
    """How far the fits of a training came, by the rows that they learn from, told in hundredths."""

    def __init__(self, progress: Progress | None, model: str, rows: int) -> None:
        self.family = ""
        self._progress = progress
        self._model = model
        self._rows = rows
        self._done = 0.0
        self._left = TimeLeft({model: rows})
        self._last_s = self._between_s = 0.0
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """What begins, or goes on; where the fits will take minutes, what decides about it."""
        if self._progress:
            done = 100 if text == "done" else min(int(100 * self._done / self._rows), 99)
            is_long = (self._left.seconds() or 0.0) > LONG_SECONDS
            other = f" with {self._model}; --model names others" * is_long
            self._progress(done, 100, f"{self.family}{text}{self._left}{other}")

    def begin(self, name: str, rows: int) -> ProgressCallback:
        """Say that a fit begins. Several may run at a time: the time since any of them was told counts once."""
        with self._lock:
            self._last_s = self._last_s or monotonic()
            self.say(name)
        before = 0.0

        def on_progress(share: float | None) -> None:
            nonlocal before
            with self._lock:
                now_s = monotonic()
                done = (1.0 if share is None else share) - before
                before += done
                self._done += rows * done
                # What is done before the first round and after the last counts when a fit ends, not before.
                self._between_s += now_s - self._last_s if share == 0 else 0.0
                took_s = (now_s - self._last_s) * (share != 0) + self._between_s * (share == 1)
                self._between_s *= share != 1
                self._left.add(self._model, rows * done, None if share is None else took_s)
                self._last_s = now_s
                self.say(name)

        return on_progress


def _folds(rows: Rows, seed: int) -> list[Split]:
    """The folds by shape that are run."""
    count = fold_count(rows)
    minimum = -(-count * MIN_HELD_SHAPES // len(np.unique(rows.shape)))
    fits = min(count, max(1, minimum, HELD_OUT_ROWS // len(rows)))
    return shape_splits(rows, count, seed, fits=fits, max_rows=HELD_OUT_ROWS // fits)


class _FamilyFits(NamedTuple):
    """A family's rows, its unfitted model, and the splits that are fitted: folds by shape, and GPUs left out."""

    rows: Rows
    model: TimeModel
    folds: list[Split]
    gpus: list[Split]

    @classmethod
    def of(cls, rows: Rows, model: TimeModel, options: TrainOptions) -> Self:
        """The splits of the rows."""
        return cls(rows, model, _folds(rows, options.seed), gpu_splits(rows, options.seed))

    @property
    def fitted_rows(self) -> int:
        """The rows that all fits learn from."""
        return len(self.rows) + sum(len(inside) for inside, _ in (*self.folds, *self.gpus))

    def trained(self, data: Dataset, options: TrainOptions, steps: _Steps) -> tuple[FamilyModel, dict[str, object]]:
        """The fitted part, and what the card says of its held-out rows."""
        rows, folds, gpus = self.rows, self.folds, self.gpus
        model = _searched(self.model, rows, options, steps) if options.trials else self.model
        # 1. All fits: without each fold, on all rows, and without each GPU.
        whole = duplicate(model)
        fits = [Fit(f"held-out fold {n} of {len(folds)}", duplicate(model), *split) for n, split in enumerate(folds, 1)]
        fits.append(Fit("all rows", whole, np.arange(len(rows)), np.arange(0)))
        fits += [
            Fit(f"GPU {n} of {len(gpus)} left out", model.for_unmeasured_gpu(), *split)
            for n, split in enumerate(gpus, 1)
        ]
        answers = run_fits(rows, fits, steps.begin, options.keep)
        held, distance = combined_answers(rows, folds, answers[: len(folds)])
        left_out_gpu_us, _ = combined_answers(rows, gpus, answers[len(folds) + 1 :])
        if leaves_gpus := shape_columns(rows.frame, rows.family) == ("gpu",):  # the folds themselves leave GPUs out
            left_out_gpu_us = held
        # 2. What their errors say.
        measured = np.where(rows.ok, rows.time_us, np.nan)
        evaluated = evaluation_rows(rows.frame, rows.family, data.candidates)
        known = seen_settings(rows, folds if leaves_gpus else gpus)
        support = Support.fit(rows)
        ok = rows.take(rows.ok)
        part = FamilyModel(
            family=rows.family,
            fitted=whole,
            support=support,
            widths=fit_widths(rows, held, measured, distance, evaluated=evaluated),
            domain=Domain.of(ok, distance[rows.ok]),
            unseen_gpu=self._unseen(left_out_gpu_us, known, evaluated),
            candidates=candidate_keys(ok),
            row_counts=row_counts(ok),
            min_us=min_times(ok),
            floors=harness_floors(data, rows.family),
        )
        independent_share = part.widths.independent_share
        card = held_out_card(
            rows,
            held,
            measured,
            distance,
            independent_share=independent_share,
            support=support,
            candidates=data.candidates,
        )
        card["split"] = self._split_words()
        card["unseen_gpus"] = left_out_coverage(rows, left_out_gpu_us, known)
        card["params"] = model.get_params(deep=False)
        return part, card

    def _unseen(self, left_out_gpu_us: np.ndarray, known: np.ndarray, evaluated: np.ndarray) -> UnseenGpu:
        """How far off times are on a GPU never measured, and whose order answers there; arrays (rows,)."""
        rows = self.rows
        if rows.family.parameter_names:  # configurations have a transfer of their own
            few = count_architectures(rows) < MIN_GPUS
            return UnseenGpu() if few else fit_unseen_gpu(rows, left_out_gpu_us, known, evaluated)
        unseen = fit_unseen_gpu(rows, left_out_gpu_us, known, evaluated)
        source = best_ranking_source(rows, self.gpus, left_out_gpu_us, evaluated)[0] if self.gpus else MODEL
        costs = average_costs(rows) if source == AVERAGE_RANK else {}
        return structs.replace(unseen, ranking_source=source, average_rank=costs)

    def _split_words(self) -> str:
        """How rows were held out, for the card."""
        family, count = self.rows.family, fold_count(self.rows)
        left = {"gpu": "GPU", "solver": "configuration"}.get(shape_columns(self.rows.frame, family)[0])
        some = f", {len(self.folds)} of them run" if len(self.folds) < count else ""
        return f"{count} folds by {left or ('shape, batch left out' if family.batch else 'shape')}{some}"


def _searched(model: TimeModel, rows: Rows, options: TrainOptions, steps: _Steps) -> TimeModel:
    """The model with the best settings of a search."""

    def told(number: int, of: int, best: str) -> None:
        steps.say(f"trial {number} of {of} {best}")

    found = search(type(model), rows, options.trials, options.seed, progress=told)
    return type(model)(**{**model.get_params(), **found})


def count_architectures(rows: Rows) -> int:
    """Of the GPUs of the rows; one that the registry lacks has its own. Boards of one foretell nothing of others."""
    return len({rows.device(name).architecture or name for name in np.unique(device_names(rows.frame)).tolist()})


def candidate_keys(rows: Rows) -> frozenset[CandidateKey]:
    """The candidates of the rows."""
    values = rows.family.candidate_key[:-1]
    solver = ("solver",) if "solver" in rows.frame else ()
    named = row_groups(rows.frame, ("library", "algorithm", *solver, *values))
    split = 2 + len(solver)
    return frozenset(CandidateKey(names[0], names[split:], *names[1:split]) for names, _ in named)


def row_counts(rows: Rows) -> dict[ReferenceKey, int]:
    """Rows of every family of problem, on each GPU and on all of them."""
    counts: dict[ReferenceKey, int] = {}
    frame = rows.frame.assign(gpu=device_names(rows.frame))
    for (gpu, library, *values), positions in row_groups(frame, ("gpu", *reference_columns(rows.family))):
        for on_gpu in (None, gpu):
            key = ReferenceKey(on_gpu, library, tuple(values))
            counts[key] = counts.get(key, 0) + len(positions)
    return counts


def min_times(rows: Rows) -> dict[CallKey, float]:
    """The time in µs that `MIN_TIME` of the rows of a GPU and library stay below; of a library on any GPU, and of
    any library, the least of those.

    Launch and tail of a kernel alone take that long, so that nothing is predicted to be faster; of a described kernel,
    whose problems may all be large, nothing is known.
    """
    minimum: dict[CallKey, float] = {}
    if rows.family.parameter_names:
        return minimum
    for (gpu, library), positions in row_groups(rows.frame.assign(gpu=device_names(rows.frame)), ("gpu", "library")):
        time_us = float(f"{np.quantile(rows.time_us[positions], MIN_TIME):.4g}")
        for key in (CallKey("", library), CallKey("", "")):
            minimum[key] = min(minimum.get(key, time_us), time_us)
        minimum[CallKey(gpu, library)] = time_us
    return minimum


def harness_floors(data: Dataset, family: Family) -> tuple[HarnessFloor, ...]:
    """Return the times that the importer of the data left out (`surrogate.formats.aiconfigurator.without_floors`)."""
    return tuple(
        HarnessFloor(
            record["gpu"],
            record["library"],
            record["algorithm"],
            limit_us=float(record["limit_us"]),
            settings={name: record[name] for name in family.setting_names if name in record},
        )
        for part in _parts(data)
        for record in part.get("floors", ())
    )


def data_card(data: Dataset, tables: Sequence[Rows]) -> dict[str, object]:
    """What the training rows span, over all families and family by family."""
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
    origins = data.frame["origin"].dropna().unique() if "origin" in data.frame else []
    return {
        "name": data.name,
        "rows": len(frame),
        "ok_rows": sum(int(rows.ok.sum()) for rows in tables),
        "gpus": sorted(frame["gpu"].unique()),
        "libraries": sorted(releases.unique()),
        "origins": sorted(map(str, origins)),
        "where": listed(data, "where"),
        "families": families,
    }


def listed(data: Dataset, name: str) -> list[str]:
    """What the metadata lists under ``name``, in the table itself or in those that were merged; each once."""
    return list(dict.fromkeys(value for part in _parts(data) for value in part.get(name, [])))


def _parts(data: Dataset) -> list[Mapping[str, Any]]:
    """The metadata of the table, and of those that were merged."""
    return [data.metadata, *data.metadata.get("parts", [])]


def average_costs(rows: Rows) -> dict[str, float]:
    """Return setting and candidate, as `surrogate.models.grid.Label` is joined → its mean log slowdown over GPUs.

    On each GPU it is the mean over its problems; a candidate that did not run there counts as the slowest that did.
    """
    on_gpus: dict[str, list[dict[str, float]]] = {}
    for name, costs in AlwaysBestSingle().fit(rows).cost_.items():
        gpu, _, setting = name.partition("|")
        if gpu:  # without one it is over all
            on_gpus.setdefault(setting, []).append(costs)
    return {
        f"{setting}|{name}": float(f"{np.mean([costs.get(name, max(costs.values())) for costs in known]):.4g}")
        for setting, known in on_gpus.items()
        for name in set().union(*known)
    }


def best_ranking_source(
    rows: Rows, splits: Sequence[Split], left_out_gpu_us: np.ndarray, evaluated: np.ndarray
) -> tuple[str, dict[str, float]]:
    """Return the ranking source with the smallest mean log slowdown over the GPUs left out, and all mean slowdowns.

    ``splits`` leave out a GPU each with its architecture (`surrogate.uncertainty.fit.gpu_splits`); ``left_out_gpu_us``
    (rows,) are the times of those fits; ``evaluated`` (rows,) marks problems whose choice counts.
    """
    slowdowns: dict[str, list[float]] = {MODEL: [], AVERAGE_RANK: []}
    for inside, held in splits:
        outside = held[evaluated[held] & rows.ok[held] & np.isfinite(left_out_gpu_us[held])]
        outside = outside[pd.Series(rows.problem[outside]).duplicated(keep=False).to_numpy()]
        if not len(outside):
            continue
        test = rows.take(outside)
        label = joined(test.frame, rows.family.setting_names) + "|" + test.candidate.astype(str)
        average = label.map(average_costs(rows.take(inside))).to_numpy(dtype=float)
        every = np.ones(len(test), dtype=bool)
        candidates = Candidates(pd.factorize(test.problem)[0], test.time_us, every, test.order)
        for name, score in ((MODEL, left_out_gpu_us[outside]), (AVERAGE_RANK, average)):
            # An unknown candidate comes last, as in answers.
            known = np.nan_to_num(score, nan=np.finfo(float).max)
            slowdowns[name].append(float(np.log(choose(candidates, known, every).slowdown).mean()))
    means = {name: float(np.mean(values)) if values else 0.0 for name, values in slowdowns.items()}
    return min(means, key=lambda name: means[name]), means
