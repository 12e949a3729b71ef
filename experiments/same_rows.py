"""Which model predicts and picks best on the same rows, with and without the analytical terms?

Every registered model is judged on the same rows, in the paper's own domain and outside it.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from experiments import verdicts
from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import cross_validate
from experiments.sources import LABELS, Sources, paper_domain
from surrogate.dataset.store import Dataset
from surrogate.models import MODELS
from surrogate.report.charts import dots

DOMAIN = "cuDNN 7, paper's domain"
MI210_FOLDS = 5
DIMS, TERMS = "boosted-dims", "boosted-terms"
"""The same trees without and with the analytical terms."""


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge by shape on four tables: choices on tables with the times of all candidates, times on all tables."""
    parts = []
    for label, data, also in _tables(sources, effort):
        count = effort.folds if label.startswith(LABELS["cudnn"]) else min(effort.folds, MI210_FOLDS)
        predictions = cross_validate(data, effort.by_name(), count=count, seed=effort.seed, also=also, tick=effort.tick)
        rows = [
            verdicts.picks_and_times(predictions, verdicts.COLUMNS[3:]),
            pd.DataFrame(verdicts.refused(predictions.reasons)),
        ]
        rows = pd.concat(rows, ignore_index=True).sort_values("model", key=_place, kind="stable")
        parts.append(rows.assign(data=label))
    table = columns_first(pd.concat(parts, ignore_index=True), "data")
    table["n"] = table["n"].fillna(0).astype(int)
    judged = table[(table["n"] > 0) & np.isfinite(table["median_error_pct"])]
    xlabel = "median error of the time, %"
    figure = dots(judged, "model", "data", "median_error_pct", xlabel, arms=verdicts.ERROR_ARMS, log=True)
    return ExperimentResult(table, figure, answer(table))


def _place(models: pd.Series) -> pd.Series:
    """Return each model's position in the registry; names that are not models come last."""
    return models.map({name: place for place, name in enumerate(MODELS)}).fillna(len(MODELS))


def _tables(sources: Sources, effort: Effort) -> Iterator[tuple[str, Dataset, list[Dataset]]]:
    cudnn, partial = sources.dataset("cudnn"), sources.dataset("partial")
    domain = paper_domain(cudnn.frame)
    if len(domain):
        yield DOMAIN, cudnn.with_frame(domain), []
    yield LABELS["cudnn"], effort.sample(cudnn), [partial]
    yield LABELS["mi210"], effort.sample(sources.dataset("mi210")), []
    yield LABELS["winners"], effort.sample(sources.winners()), []


def answer(table: pd.DataFrame) -> str:
    """Return per table the best models by time and by choice, the default and SEER's, and the gain from the terms."""
    sentences = []
    for label, part in table[table["n"] > 0].groupby("data", sort=False):
        times = part.set_index("model")["median_error_pct"]
        sentence = f"{label}: {', '.join(verdicts.model_figures(times, verdicts.percent))}"
        chosen = part[part["model"] != verdicts.HEURISTIC].dropna(subset=["slowdown_macro"]).set_index("model")
        if len(chosen):
            picks = [
                f"{name} {verdicts.ratio(row['slowdown_macro'])} {verdicts.interval(row['ci_low'], row['ci_high'])}"
                for name in verdicts.reported_models(chosen["slowdown_macro"].idxmin(), chosen.index)
                for row in [chosen.loc[name]]
            ]
            sentence += f"; picks {', '.join(picks)}"
        sentences.append(sentence)
    tail = _gains(table)
    if "seer-paper" in set(table.loc[table["n"] == 0, "model"]):
        tail += " seer-paper needs DRAM counters of convolutions, which no public table has: nothing here speaks for"
        tail += " or against it as a whole."
    return "Median time error by shape — " + ". ".join(sentences) + "." + tail


def _gains(table: pd.DataFrame) -> str:
    """Return the change by the terms for boosted trees, per table."""
    gains = []
    for label, part in table[table["n"] > 0].groupby("data", sort=False):
        errors = part.set_index("model")["median_error_pct"]
        if {DIMS, TERMS} <= set(errors.index):
            gains.append(f"{label} {verdicts.percent(errors[DIMS])} → {verdicts.percent(errors[TERMS])}")
    return f" Terms in the place of raw dimensions ({DIMS} → {TERMS}): {', '.join(gains)}." if gains else ""


EXPERIMENT = program(run, "cudnn", "partial", "mi210", "winners")
