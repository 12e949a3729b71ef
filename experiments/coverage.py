"""(l) Do 90 % intervals hold on shapes that neither the model nor the widths have seen? Folds within folds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome, columns_first
from experiments.held_out import candidate_rows
from experiments.script import run_script
from experiments.sources import FORWARD, LABELS, Sources
from experiments.words import listing, percent
from surrogate.bundle.training import fold_count, held_out
from surrogate.dataset.problems import joined, judged_rows
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import Fold, folds
from surrogate.models import DEFAULT_MODEL, model_class
from surrogate.uncertainty.coverage import coverage_rows, picks, reliability
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.width_fit import fit_widths

FORMER, PRESENT = "by algorithm and GPU, rows alike", "by distance too, shapes alike"
FORMER_LEAST_ROWS = 50
FAST = {"rounds": 300, "learning_rate": 0.08}
"""Settings of the boosted model, which is fitted a hundred times and more here."""
LEAST_ROWS = 300
"""GPUs with fewer ok rows are listed, but not judged."""
TARGET = (0.88, 0.92)
MI210_SHAPES = 1500


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
    (model, *_) = effort.timed(DEFAULT_MODEL) or effort.timed()
    sample = replace(
        effort, quick=True, quick_shapes=min(effort.quick_shapes, 300) if effort.quick else MI210_SHAPES
    )
    parts = []
    for source, also in (("cudnn", ["partial"]), ("mi210", [])):
        data = sample.sample(sources.dataset(source, {} if source == "cudnn" else FORWARD))
        rows = candidate_rows([data, *(sources.dataset(name, {}) for name in also)])
        length = len(candidate_rows([data])) if also else len(rows)
        main = np.arange(len(rows)) < length
        rounds = folds("shape", rows.frame[main], rows.frame[~main], effort.folds, effort.seed)
        judged = judged_rows(rows.frame, data.candidates)
        found = nested(rows, rounds, judged, model, effort)
        parts.append(table_of(found, main).assign(data=LABELS[source]))
    table = pd.concat(parts, ignore_index=True)
    table = columns_first(table, "data")
    return Outcome(table, _figure(table), answer(table, model))


def nested(rows: Rows, rounds: Sequence[Fold], judged: np.ndarray, model: str, effort: Effort) -> Nested:
    """Every test row's prediction, distance and half widths, from its round's training rows alone."""
    cls = model_class(model)
    unfitted = cls(**{key: value for key, value in FAST.items() if key in cls().params})
    predicted, distance, share = (np.full(len(rows), np.nan) for _ in range(3))
    half_width = {FORMER: predicted.copy(), PRESENT: predicted.copy()}
    for fold in rounds:
        train, test = rows.take(fold.train), rows.take(fold.test)
        if not train.ok.any():
            continue
        effort.tick(model)
        predicted[fold.test] = unfitted.fit(train, seed=effort.seed).predict_us(test)
        distance[fold.test] = Domain.of(train.frame).distances(test.frame)
        count = effort.folds if effort.quick else fold_count(train)
        inner, inner_distance = held_out(
            unfitted, train, count, effort.seed + 1, lambda number: effort.tick(f"{model} {number}")
        )
        measured = np.where(train.ok, train.time_us, np.nan)
        widths = fit_widths(train.frame, inner, measured, inner_distance, judged[fold.train])
        half_width[PRESENT][fold.test] = widths.of(test.frame, distance[fold.test], predicted[fold.test])
        half_width[FORMER][fold.test] = former_half_widths(
            train.frame, np.abs(np.log(inner / measured)), test.frame
        )
        share[fold.test] = widths.own_share
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
        whole = coverage_rows(rows.frame, error, half_width)
        records += [{"kind": "gpu", "of": row.pop("gpu"), "rule": rule, **row} for row in whole]
        for name, part in parts.items():
            for row in coverage_rows(rows.frame, np.where(part, error, np.nan), half_width)[:1]:
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


def answer(table: pd.DataFrame, model: str) -> str:
    """Coverage per GPU and mean widths under both rules; how honest the picks' probabilities are."""
    gpus = table[(table["kind"] == "gpu") & (table["of"] != "all") & (table["rows"] >= LEAST_ROWS)]
    told = []
    for rule in (PRESENT, FORMER):
        part = gpus[gpus["rule"] == rule]
        if part.empty:
            return f"No GPU has {LEAST_ROWS} held-out rows; nothing is judged."
        inside = int(part["coverage"].between(*TARGET).sum())
        whole = table[(table["kind"] == "gpu") & (table["of"] == "all") & (table["rule"] == rule)]
        widths = listing([f"{row['half_width']:.3f} on {row['data']}" for _, row in whole.iterrows()])
        told.append(
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
        f"Intervals of {model} on shapes held out twice: {told[0]}; {told[1]}."
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
