"""(l) Do 90 % intervals hold on shapes that neither the model nor the widths have seen? Folds within folds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome, columns_first
from experiments.held_out import Round, candidate_rows, rounds_by
from experiments.script import run_script
from experiments.sources import FORWARD, LABELS, Sources
from experiments.verdicts import listing, percent
from sklearn.base import clone

from surrogate.bundle.train import fold_count
from surrogate.dataset.problems import joined, judged_rows
from surrogate.dataset.rows import Rows
from surrogate.evaluation.coverage import coverage_rows, picks, reliability
from surrogate.models import DEFAULT_MODEL, TimeModel, model_frame
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.fit import fit_widths, held_out_by_shape

FORMER, PRESENT = "by algorithm and GPU, rows alike", "by distance too, shapes alike"
FORMER_LEAST_ROWS = 50
LEAST_ROWS = 300
"""GPUs with fewer ok rows are listed, but not judged."""
TARGET = (0.88, 0.92)
SHAPES, QUICK_SHAPES = 1500, 300
"""Of each table: every model is fitted a hundred times and more."""


@dataclass(frozen=True)
class Nested:
    """Rows that were held out twice over; arrays (rows,), half widths per rule in log time."""

    rows: Rows
    predicted_us: np.ndarray
    distance: np.ndarray
    half_width: dict[str, np.ndarray]
    own_share: np.ndarray
    judged: np.ndarray


def run(sources: Sources, effort: Effort) -> Outcome:
    """Outer folds judge; inner folds of what is left give the widths. Coverage by GPU, distance and kind of problem."""
    parts = []
    for source, also, where in (("cudnn", ["partial"], {}), ("mi210", [], FORWARD)):
        data = effort.sample(sources.dataset(source, where), QUICK_SHAPES if effort.quick else SHAPES)
        rows = candidate_rows([data, *(sources.dataset(name, where) for name in also)])
        own = len(model_frame(data))
        rounds = rounds_by("shape", rows, effort.folds, effort.seed, own)
        judged = judged_rows(rows.frame, rows.family, data.candidates)
        held = nested(rows, rounds, judged, effort.named(DEFAULT_MODEL)[DEFAULT_MODEL], effort)
        parts.append(table_of(held, np.arange(len(rows)) < own).assign(data=LABELS[source]))
    table = pd.concat(parts, ignore_index=True)
    table = columns_first(table, "data")
    return Outcome(table, _figure(table), answer(table))


def nested(
    rows: Rows, rounds: Sequence[Round], judged: np.ndarray, model: TimeModel, effort: Effort
) -> Nested:
    """Every test row's prediction, distance and half widths, from its round's training rows alone."""
    predicted, distance, share = (np.full(len(rows), np.nan) for _ in range(3))
    half_width = {FORMER: predicted.copy(), PRESENT: predicted.copy()}
    for inside, outside in rounds:
        train, test = rows.take(inside), rows.take(outside)
        if not train.ok.any():
            continue
        effort.tick("outer fold")
        predicted[outside] = clone(model).fit(train).predict(test)
        distance[outside] = Domain.of(train).distances(test)
        count = effort.folds if effort.quick else fold_count(train)
        inner, inner_distance = held_out_by_shape(
            model, train, count, effort.seed + 1, lambda number: effort.tick(f"inner fold {number}")
        )
        measured = np.where(train.ok, train.time_us, np.nan)
        widths = fit_widths(train, inner, measured, inner_distance, judged[inside])
        half_width[PRESENT][outside] = widths.of(test, distance[outside], predicted[outside])
        error = np.abs(np.log(inner / measured))
        half_width[FORMER][outside] = former_half_widths(train.frame, error, test.frame)
        share[outside] = widths.own_share
    return Nested(rows, predicted, distance, half_width, share, judged)


def former_half_widths(train: pd.DataFrame, error: np.ndarray, test: pd.DataFrame) -> np.ndarray:
    """The rule before distances: the 90 % rank of a key's rows, where it has `FORMER_LEAST_ROWS`."""
    known = np.isfinite(error)
    columns = (("gpu", "direction", "algorithm"), ("direction", "algorithm"))
    found = np.full(len(test), np.nan)
    for key in columns:
        grouped = pd.Series(error[known]).groupby(joined(train[known], key).to_numpy())
        width = {name: _rank(part.to_numpy()) for name, part in grouped if len(part) >= FORMER_LEAST_ROWS}
        found = np.where(np.isnan(found), joined(test, key).map(width).to_numpy(dtype=float), found)
    return np.where(np.isnan(found), _rank(error[known]), found)


def _rank(error: np.ndarray) -> float:
    return float(np.sort(error)[min(int(np.ceil((len(error) + 1) * 0.9)), len(error)) - 1])


def table_of(found: Nested, main: np.ndarray) -> pd.DataFrame:
    """Coverage per GPU, quarter of distances, and kind of problem under both rules; reliability of the picks."""
    rows = found.rows
    error = np.where(main & rows.ok, np.log(found.predicted_us / rows.time_us), np.nan)
    near = pd.Series(np.where(np.isfinite(error), found.distance, np.nan)).rank(pct=True).to_numpy()
    grouped = (rows.frame["groups"] > 1).to_numpy()
    parts = {
        "grouped": grouped,
        "ungrouped": ~grouped,
        **{f"quarter {q + 1} of distances": (near > q / 4) & (near <= (q + 1) / 4) for q in range(4)},
    }
    records: list[dict[str, Any]] = []
    for rule, half_width in found.half_width.items():
        whole = coverage_rows(rows, error, half_width)
        records += [{"kind": "gpu", "of": row.pop("gpu"), "rule": rule, **row} for row in whole]
        for name, part in parts.items():
            for row in coverage_rows(rows, np.where(part, error, np.nan), half_width)[:1]:
                row.pop("gpu")
                records.append({"kind": "problems", "of": name, "rule": rule, **row})
    return pd.DataFrame(records + _pick_records(found, main))


def _pick_records(found: Nested, main: np.ndarray) -> list[dict[str, Any]]:
    """Stated and actual share of best picks; each round's own share counts for its problems."""
    both: list[tuple[np.ndarray, np.ndarray]] = []
    for share in np.unique(found.own_share[np.isfinite(found.own_share)]):
        part = main & found.judged & (found.own_share == share)
        both.append(
            picks(
                found.predicted_us[part],
                np.where(found.rows.ok, found.rows.time_us, np.nan)[part],
                found.half_width[PRESENT][part],
                found.rows.problem[part],
                float(share),
            )
        )
    stated, best = (np.concatenate([pair[place] for pair in both]) for place in (0, 1))
    return [
        {
            "kind": "pick probability",
            "of": f"{row['from']:g}–{row['to']:g}",
            "rule": PRESENT,
            "rows": row["picks"],
            "stated": row["probability"],
            "coverage": row["best"],
        }
        for row in reliability(stated, best)
    ]


def answer(table: pd.DataFrame) -> str:
    """Coverage per GPU and mean widths under both rules; how honest the picks' probabilities are."""
    gpus = table[(table["kind"] == "gpu") & (table["of"] != "all") & (table["rows"] >= LEAST_ROWS)]
    by_rule = []
    for rule in (PRESENT, FORMER):
        part = gpus[gpus["rule"] == rule]
        if part.empty:
            return f"No GPU has {LEAST_ROWS} held-out rows; nothing is judged."
        inside = int(part["coverage"].between(*TARGET).sum())
        whole = table[(table["kind"] == "gpu") & (table["of"] == "all") & (table["rule"] == rule)]
        widths = listing([f"{row['half_width']:.3f} on {row['data']}" for _, row in whole.iterrows()])
        by_rule.append(
            f"widths {rule} cover {percent(100 * part['coverage'].min())} to {percent(100 * part['coverage'].max())}"
            f" of a GPU's rows ({inside} of {len(part)} GPUs within 88–92 %), mean half width {widths}"
        )
    bands = table[table["kind"] == "pick probability"]
    sure = listing(
        [
            f"{percent(100 * row['stated'])} → {percent(100 * row['coverage'])} of {row['rows']:.0f} on {row['data']}"
            for _, row in bands[bands["of"] == "0.6–0.8"].iterrows()
        ]
    )
    return (
        f"Intervals of {DEFAULT_MODEL} on shapes held out twice: {by_rule[0]}; {by_rule[1]}."
        f" Picks stated to be best with probability 0.6 to 0.8, and how many were: {sure}."
    )


def _figure(table: pd.DataFrame) -> str | None:
    gpus = table[(table["kind"] == "gpu") & (table["of"] != "all")]
    percents = gpus.assign(**{c: 100 * gpus[c] for c in ("coverage", "coverage_low", "coverage_high")})
    return dots(
        percents,
        category="of",
        series="rule",
        value="coverage",
        low="coverage_low",
        high="coverage_high",
        xlabel="rows inside their 90 % interval, % (arms: 95 % over shapes)",
    )


EXPERIMENT = Experiment(
    "coverage",
    "Do 90 % intervals cover 90 % on unseen shapes of every GPU?",
    ("cudnn", "partial", "mi210"),
    run,
)

if __name__ == "__main__":
    run_script(EXPERIMENT)
