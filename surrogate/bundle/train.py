"""Datasets to a bundle: for each family a model fitted on everything, its errors known from held-out folds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle, Part
from surrogate.dataset.problems import device_names, groups, judged_rows
from surrogate.dataset.rows import Rows, rows_by_family
from surrogate.dataset.store import Data, Dataset, as_dataset
from surrogate.evaluation.coverage import held_out_card
from surrogate.evaluation.tune import search
from surrogate.features.errors import InputError
from surrogate.models import DEFAULT_MODEL, MODELS, Support, TimeModel, model_class, model_frame
from surrogate.models.base import duplicate
from surrogate.models.launch import fit_launches
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.fit import fit_unseen_gpu, fit_widths, held_out_by_shape

HELD_OUT_FOLDS, HELD_OUT_FOLDS_FEW = 5, 10
"""Folds by shape whose held-out predictions give the interval widths and the model card's errors: with few shapes more
of them, since a fold then lies farther from its training data than a new shape from the bundle's."""
FEW_SHAPES = 500
HELD_OUT_ROWS = 2_000_000
"""Rows of all folds' fits together: of a larger table fewer folds are held out, and rows are drawn for each fit."""
LEAST_HELD_SHAPES = 20
"""So many shapes are held out whatever the table's size; fewer carry no interval."""
LEAST_SHAPES = 2
LEAST_TIME = 0.001
"""This low quantile of the times of a GPU and library is the least that is predicted; the very least may be a fluke."""
Progress = Callable[[int, int, str], None]


def train(
    data: Data,
    *,
    model: str = DEFAULT_MODEL,
    trials: int = 0,
    params: Mapping[str, Any] | None = None,
    candidate: str = "algorithm",
    seed: int = 0,
    progress: Progress | None = None,
    keep: Path | None = None,
) -> Bundle:
    """Fit ``model`` on all ok rows of ``data``, for each of its families, with ``params`` over its stored settings.

    ``trials`` settings are searched first (0: none), which leaves ``params`` aside. Interval widths and the card's
    errors come from folds by shape (`fold_count`); with three GPUs or more, the factor on the widths for GPUs never
    seen comes from fits without one. ``keep`` is a folder of finished fits, with which the same call goes on after an
    interruption. A family with one shape alone is left out, if there is another. Raises `InputError` where the data
    cannot carry the model.
    """
    data = as_dataset(data)
    step = progress or (lambda done, total, text: None)
    unfitted = unfitted_model(model, params, seed)
    tables = {
        kind: rows
        for kind, (_, rows) in rows_by_family(model_frame(data, candidate), data.devices).items()
        if rows.ok.any()
    }
    if not tables:
        raise InputError(f"{data.name}: no row has status ok; there is nothing to learn from")
    few = [kind.name for kind, rows in tables.items() if len(np.unique(rows.shape[rows.ok])) < LEAST_SHAPES]
    if len(few) == len(tables):
        raise InputError(f"{data.name}: all rows have one shape; errors and intervals need at least two")
    parts, cards = {}, {}
    trained_tables = {kind: rows for kind, rows in tables.items() if kind.name not in few}
    total = len(trained_tables) * 100
    for done, (kind, rows) in enumerate(trained_tables.items()):

        def inner(share: float, text: str, done: int = done, name: str = kind.name) -> None:
            step(done * 100 + int(100 * share), total, f"{name}: {text}" if len(trained_tables) > 1 else text)

        parts[kind.name], cards[kind.name] = _train_family(rows, unfitted, data, trials, seed, inner, keep)
    step(total, total, "done")
    card = {
        "data": data_card(data, list(trained_tables.values())),
        "licence_notices": each(data, "licence_notices"),
        "training": {"trials": trials, "seed": seed, "left_out": few},
        "held_out": cards,
    }
    return Bundle(parts, candidate, fit_launches(tables.values()), data.devices, card)


def unfitted_model(name: str, params: Mapping[str, Any] | None, seed: int) -> TimeModel:
    """A model with its settings. Raises `InputError` for an unknown one, one that no bundle holds, bad settings."""
    cls = model_class(name)
    if not cls.storable:
        known = ", ".join(name for name, other in MODELS.items() if other.storable)
        raise InputError(f"{name} is a baseline of `seer compare`, a bundle holds one of: {known}")
    known_params = cls().get_params()
    unknown = [key for key in params or {} if key not in known_params]
    if unknown:
        raise InputError(f"{name} has no setting {unknown[0]!r}; known: {', '.join(known_params)}")
    seeded = {"random_state": seed} if "random_state" in known_params else {}
    return cls(**{**seeded, **(params or {})})


def fold_count(rows: Rows) -> int:
    """Folds of the held-out predictions."""
    return HELD_OUT_FOLDS_FEW if len(np.unique(rows.shape)) < FEW_SHAPES else HELD_OUT_FOLDS


def _train_family(
    rows: Rows,
    model: TimeModel,
    data: Dataset,
    trials: int,
    seed: int,
    step: Callable[[float, str], None],
    keep: Path | None,
) -> tuple[Part, dict[str, Any]]:
    """The fitted part of one family, and what the card says of its held-out rows."""
    if trials:
        best_params = search(
            type(model), rows, trials, seed, progress=lambda n, of, best: step(0.0, f"trial {n} of {of} {best}")
        )
        model = type(model)(**{**model.get_params(), **best_params})
    count = fold_count(rows)
    least = -(-count * LEAST_HELD_SHAPES // len(np.unique(rows.shape)))
    fits = min(count, max(1, least, HELD_OUT_ROWS // len(rows)))
    held, distance = held_out_by_shape(
        model,
        rows,
        count,
        seed,
        lambda fold: step(0.7 * fold / fits, f"held-out fold {fold + 1} of {fits}"),
        fits,
        HELD_OUT_ROWS // fits,
        keep,
    )
    step(0.7, "all rows")
    fitted = duplicate(model).fit(rows)
    measured = np.where(rows.ok, rows.time_us, np.nan)
    judged = judged_rows(rows.frame, rows.family, data.candidates)
    widths = fit_widths(rows, held, measured, distance, judged)
    step(0.8, "GPUs left out")
    unseen = fit_unseen_gpu(rows, widths, model, judged, seed=seed, keep=keep)
    support = Support.fit(rows)
    part = Part(
        rows.family,
        fitted,
        support,
        widths,
        Domain.of(rows.take(rows.ok), distance[rows.ok]),
        unseen,
        frozenset(map(str, rows.candidate[rows.ok])),
        row_counts(rows.take(rows.ok)),
        least_times(rows.take(rows.ok)),
    )
    card = held_out_card(rows, held, measured, distance, widths.own_share, support, data.candidates)
    card["split"] = f"{count} folds by shape, batch left out" + (f", {fits} of them run" if fits < count else "")
    card["params"] = model.get_params(deep=False)
    return part, card


def row_counts(rows: Rows) -> dict[str, int]:
    """`Domain.reference_key` → rows, and ``gpu|`` before it → rows on that GPU (registry name)."""
    counts: dict[str, int] = {}
    names = ("gpu", "library", *(name for name in rows.family.candidate_key if name in rows.family.settings))
    for (gpu, *key), positions in groups(rows.frame.assign(gpu=device_names(rows.frame)), names):
        for name in ("|".join(key), "|".join((gpu, *key))):
            counts[name] = counts.get(name, 0) + len(positions)
    return counts


def least_times(rows: Rows) -> dict[str, float]:
    """``gpu|library`` → the time in µs that `LEAST_TIME` of its rows stay below; ``|library``, "" → the least of those.

    Launch and tail of a kernel alone take that long, so that nothing is predicted to be faster.
    """
    least: dict[str, float] = {}
    for (gpu, library), positions in groups(rows.frame.assign(gpu=device_names(rows.frame)), ("gpu", "library")):
        time_us = float(f"{np.quantile(rows.time_us[positions], LEAST_TIME):.4g}")
        for name in (f"|{library}", ""):
            least[name] = min(least.get(name, time_us), time_us)
        least[f"{gpu}|{library}"] = time_us
    return least


def data_card(data: Dataset, tables: Sequence[Rows]) -> dict[str, Any]:
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
        "ok_rows": sum(family["ok_rows"] for family in families.values()),
        "gpus": sorted(frame["gpu"].unique()),
        "libraries": sorted(releases.unique()),
        "origins": sorted(map(str, origins)),
        "where": each(data, "where"),
        "families": families,
    }


def each(data: Dataset, name: str) -> list[Any]:
    """What the metadata lists under ``name``, in the table itself or in those that were merged; each once."""
    parts = [data.metadata, *data.metadata.get("parts", [])]
    return list(dict.fromkeys(value for part in parts for value in part.get(name, [])))
