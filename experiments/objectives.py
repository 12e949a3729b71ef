"""(q) What training minimises: time alone, the slowdown of a soft choice beside it, censored candidates as bounds."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome, columns_first
from experiments.held_out import candidate_rows
from experiments.script import run_script
from experiments.sources import LABELS, Sources
from experiments.variants import Round, predict_variants, variant_verdicts
from experiments.words import interval, listing, ratio
from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import folds
from surrogate.dataset.store import Dataset
from surrogate.models.boosted import BoostedTerms
from surrogate.models.bounds import unlisted

PLAIN = "squared error"
VARIANTS = {
    PLAIN: {},
    "listwise 0.5": {"choice_weight": 0.5},
    "listwise 1": {"choice_weight": 1.0},
    "listwise 4": {"choice_weight": 4.0},
    "pairwise 1": {"choice_weight": 1.0, "choice_loss": "pairwise"},
    "listwise alone": {"choice_weight": 1.0, "time_weight": 0.0},
    "pairwise alone": {"choice_weight": 1.0, "time_weight": 0.0, "choice_loss": "pairwise"},
    "bounds 0.1": {"bounds_weight": 0.1},
    "bounds 1": {"bounds_weight": 1.0},
}
"""Label → settings of `boosted-terms`; the number is the weight beside squared error's 1."""
ALONE = tuple(label for label, settings in VARIANTS.items() if settings.get("time_weight") == 0.0)
"""Variants that rank and predict no time."""
LISTED, SUPPORTED = "the table's", "all supported"
MI210_SHAPES = 2000
MI210_FOLDS = 5


def run(sources: Sources, effort: Effort) -> Outcome:
    """By shape on cuDNN (the partial table also trains) and a sample of MI210's shapes.

    MI210's picks are judged twice: among the listed algorithms, and among all that support allows, where a pick that
    the list leaves out is charged as its slowest.
    """
    models = {label: BoostedTerms(**shorter(), **settings) for label, settings in VARIANTS.items()}
    parts = []
    for label, rows, rounds, candidates, listed in _tables(sources, effort):
        found = predict_variants(rows, candidates, rounds, models, effort.seed, effort.tick)
        judged = {LISTED: listed} if listed.all() else {LISTED: listed, SUPPORTED: np.ones(len(rows), bool)}
        parts += [
            variant_verdicts(found, part).assign(data=label, among=among) for among, part in judged.items()
        ]
    table = pd.concat(parts, ignore_index=True)
    timed = [c for c in table if "error" in c or c == "rmspe_pct"]
    table.loc[table["variant"].isin(ALONE), timed] = np.nan
    table = columns_first(table, "data", "among", "variant")
    return Outcome(table, _figure(table), answer(table))


def shorter() -> dict[str, float]:
    """A third of the stored rounds at three times the rate: near enough to compare variants, and thrice as fast."""
    stored = BoostedTerms.DEFAULTS
    return {"rounds": max(1, stored["rounds"] // 3), "learning_rate": 3 * stored["learning_rate"]}


def sampled(data: Dataset, effort: Effort, shapes: int) -> Dataset:
    """At most so many shapes in a full run, the effort's own number in a quick one."""
    return Effort(
        True, effort.seed, quick_shapes=min(shapes, effort.quick_shapes if effort.quick else shapes)
    ).sample(data)


def _tables(sources: Sources, effort: Effort) -> Iterator[tuple[str, Rows, list[Round], str, np.ndarray]]:
    """Label, rows, rounds, how candidates are listed, and which rows the table has (the others were made up)."""
    cudnn, partial = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    rows = candidate_rows([cudnn, partial])
    own = len(candidate_frame(cudnn, "algorithm"))
    rounds = folds("shape", rows.frame.iloc[:own], rows.frame.iloc[own:], effort.folds, effort.seed)
    yield LABELS["cudnn"], rows, [(f.train, f.test) for f in rounds], "all", np.ones(len(rows), bool)
    data = sampled(sources.dataset("mi210"), effort, MI210_SHAPES)
    rows, listed = with_unlisted(candidate_rows([data]), data)
    rounds = folds("shape", rows.frame, rows.frame.iloc[:0], min(effort.folds, MI210_FOLDS), effort.seed)
    within = [(f.train[listed[f.train]], f.test) for f in rounds]
    yield LABELS["mi210"], rows, within, "listed", listed


def with_unlisted(rows: Rows, data: Dataset) -> tuple[Rows, np.ndarray]:
    """The rows and, after them, one without a time per candidate that a full list leaves out; which are listed."""
    absent = unlisted(rows).assign(status="not_listed", time_us=np.nan)
    both = rows_of(pd.concat([rows.frame, absent], ignore_index=True), data.devices)
    return both, np.arange(len(both)) < len(rows)


def answer(table: pd.DataFrame) -> str:
    """Per table and set of candidates: plain slowdown, and the variants whose paired interval excludes zero."""
    sentences = []
    for (data, among), part in table.groupby(["data", "among"], sort=False):
        part = part.dropna(subset=["slowdown_macro"]).set_index("variant")
        if PLAIN not in part.index:
            continue
        plain = part.loc[PLAIN]
        better = part[part["slowdown_change_high"] < 0]
        worse = part[part["slowdown_change_low"] > 0]
        told = [f"{label} {ratio(row['slowdown_macro'])}" for label, row in better.iterrows()]
        sentences.append(
            f"{data}, {among} candidates: {PLAIN} {ratio(plain['slowdown_macro'])}"
            f" {interval(plain['ci_low'], plain['ci_high'])}; picks better beyond chance: {listing(told)};"
            f" worse: {listing([str(label) for label in worse.index])}"
        )
    return "Slowdown of held-out picks — " + ". ".join(sentences) + "."


def _figure(table: pd.DataFrame) -> str | None:
    shown = table.assign(table=table["data"] + ", " + table["among"] + " candidates")
    return dots(
        shown, category="variant", series="table", value="slowdown_change_pct", low="slowdown_change_low",
        high="slowdown_change_high", xlabel="slowdown less that of squared error, %",
    )  # fmt: skip


EXPERIMENT = Experiment(
    "objectives",
    "Does a loss of choice, or a bound for unmeasured candidates, beside the error of times make better picks?",
    ("cudnn", "partial", "mi210"),
    run,
)

if __name__ == "__main__":
    run_script(EXPERIMENT)
