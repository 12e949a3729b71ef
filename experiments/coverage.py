"""Do 90 % intervals cover 90 % on unseen shapes of every GPU?

Do 90 % intervals hold on shapes that neither the model nor the widths have seen? Folds within folds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.experiment import Effort, Outcome, columns_first, program
from experiments.held_out import Round, candidate_rows, rounds_by
from experiments.sources import FORWARD, LABELS, Sources
from experiments.verdicts import listing, percent
from surrogate.bundle.train import fold_count
from surrogate.dataset.problems import device_names, judged_rows
from surrogate.dataset.rows import Rows
from surrogate.evaluation.coverage import coverage_rows, picks, reliability
from surrogate.models import DEFAULT_MODEL, TimeModel, model_frame
from surrogate.models.base import Told, duplicate
from surrogate.report.charts import dots
from surrogate.uncertainty.domain import Domain, distances_to
from surrogate.uncertainty.fit import begin_untold, dtypes_of, fit_widths, held_out, shape_splits

LEAST_ROWS = 300
"""GPUs with fewer ok rows are listed, but not judged."""
Held = dict[str, np.ndarray]
"""Of rows that were held out twice over, (rows,): times, distances, half widths in log time, and their own share."""
TARGET = (0.88, 0.92)
ARMS = ("coverage_low", "coverage_high")
SHAPES, QUICK_SHAPES = 1500, 300
"""Of each table: every model is fitted a hundred times and more."""


def run(sources: Sources, effort: Effort) -> Outcome:
    """Outer folds judge; inner folds of what is left give the widths. Coverage by GPU, distance and kind of problem."""
    parts = []
    for source, also, where in (("cudnn", ["partial"], {}), ("mi210", [], FORWARD)):
        data = effort.sample(sources.dataset(source, where), QUICK_SHAPES if effort.quick else SHAPES)
        rows = candidate_rows([data, *(sources.dataset(name, where) for name in also)])
        main_rows = len(model_frame(data))
        rounds = rounds_by("shape", rows, effort.folds, effort.seed, main_rows)
        judged = judged_rows(rows.frame, rows.family, data.candidates)
        held = nested(rows, rounds, judged, effort.named(DEFAULT_MODEL)[DEFAULT_MODEL], effort)
        main = np.arange(len(rows)) < main_rows
        parts.append(pd.DataFrame(_coverage(rows, held, main) + _reliability(rows, held, main & judged)))
        parts[-1]["data"] = LABELS[source]
    table = columns_first(pd.concat(parts, ignore_index=True), "data", "kind", "of").drop(columns="gpu")
    gpus = table[(table["kind"] == "gpu") & (table["of"] != "all")]
    percents = gpus.assign(**{c: 100 * gpus[c] for c in ("coverage", *ARMS)})
    xlabel = "rows inside their 90 % interval, % (arms: 95 % over shapes)"
    return Outcome(table, dots(percents, "of", "data", "coverage", xlabel, arms=ARMS), answer(table))


def nested(rows: Rows, rounds: Sequence[Round], judged: np.ndarray, model: TimeModel, effort: Effort) -> Held:
    """Every test row's prediction, distance and half width, from its round's training rows alone."""
    held = {name: np.full(len(rows), np.nan) for name in ("predicted_us", "distance", "half_width", "own_share")}
    for inside, outside in rounds:
        train, test = rows.take(inside), rows.take(outside)
        if not train.ok.any():
            continue
        effort.tick("outer fold")
        predicted_us = duplicate(model).fit(train).predict(test)
        distance = distances_to(Domain.of(train).references, test)
        count = effort.folds if effort.quick else fold_count(train)

        def begin(number: str, rows: int) -> Told:
            effort.tick(f"inner fold {number}")
            return begin_untold(number, rows)

        inner, inner_distance = held_out(model, train, shape_splits(train, count, effort.seed + 1), begin=begin)
        measured = np.where(train.ok, train.time_us, np.nan)
        widths = fit_widths(train, inner, measured, inner_distance, judged[inside])
        half_width = widths.at(device_names(test.frame), test.candidate, dtypes_of(test), distance, predicted_us)
        for name, values in zip(held, (predicted_us, distance, half_width, widths.own_share), strict=True):
            held[name][outside] = values
    return held


def _coverage(rows: Rows, held: Held, main: np.ndarray) -> list[dict[str, Any]]:
    """Coverage per GPU, quarter of distances, and kind of problem."""
    error = np.where(main & rows.ok, np.log(held["predicted_us"] / rows.time_us), np.nan)
    near = pd.Series(np.where(np.isfinite(error), held["distance"], np.nan)).rank(pct=True).to_numpy()
    grouped = (rows.frame["groups"] > 1).to_numpy()
    parts = {
        "grouped": grouped,
        "ungrouped": ~grouped,
        **{f"quarter {q + 1} of distances": (near > q / 4) & (near <= (q + 1) / 4) for q in range(4)},
    }
    by_gpu = coverage_rows(rows, error, held["half_width"])
    records: list[dict[str, Any]] = [
        {**row, "kind": "gpu", "of": row["gpu"]} for row in by_gpu if row["dtype"] == "all"
    ]
    for name, part in parts.items():
        whole = coverage_rows(rows, np.where(part, error, np.nan), held["half_width"])[:1]
        records += [{**row, "kind": "problems", "of": name} for row in whole]
    return records


def _reliability(rows: Rows, held: Held, judged: np.ndarray) -> list[dict[str, Any]]:
    """Stated and actual share of best picks; each round's own share counts for its problems."""
    measured_us = np.where(rows.ok, rows.time_us, np.nan)
    stated, best = np.empty(0), np.empty(0, dtype=bool)
    for share in np.unique(held["own_share"][np.isfinite(held["own_share"])]):
        part = judged & (held["own_share"] == share)
        predicted_us, half_width = held["predicted_us"][part], held["half_width"][part]
        each = picks(predicted_us, measured_us[part], half_width, rows.problem[part], float(share))
        stated, best = np.append(stated, each[0]), np.append(best, each[1])
    return [
        {
            "kind": "pick probability", "of": f"{row['from']:g}–{row['to']:g}", "rows": row["picks"],
            "stated": row["probability"], "coverage": row["best"],
        }
        for row in reliability(stated, best)
    ]  # fmt: skip


def answer(table: pd.DataFrame) -> str:
    """Coverage per GPU and mean widths; how honest the picks' probabilities are."""
    every = table[table["kind"] == "gpu"]
    gpus = every[(every["of"] != "all") & (every["rows"] >= LEAST_ROWS)]
    if gpus.empty:
        return f"No GPU has {LEAST_ROWS} held-out rows; nothing is judged."
    inside = int(gpus["coverage"].between(*TARGET).sum())
    whole = every[every["of"] == "all"]
    widths = listing([f"{row['half_width']:.3f} on {row['data']}" for _, row in whole.iterrows()])
    bands = table[(table["kind"] == "pick probability") & (table["of"] == "0.6–0.8")]
    sure = [
        f"{percent(100 * row['stated'])} → {percent(100 * row['coverage'])} of {row['rows']:.0f} on {row['data']}"
        for _, row in bands.iterrows()
    ]
    return (
        f"Intervals of {DEFAULT_MODEL} on shapes held out twice cover {percent(100 * gpus['coverage'].min())} to"
        f" {percent(100 * gpus['coverage'].max())} of a GPU's rows ({inside} of {len(gpus)} GPUs within 88–92 %), mean"
        f" half width {widths}. Picks stated to be best with probability 0.6 to 0.8, and how many were:"
        f" {listing(sure)}."
    )


EXPERIMENT = program(run, "cudnn", "partial", "mi210")
