"""How good are picks and times on a GPU that training never saw?

Leave one GPU out: what the other GPUs teach about one that was never measured.
"""

import pandas as pd

from experiments.experiment import Effort, Outcome, columns_first, program
from experiments.held_out import cross_validate
from experiments.sources import Sources
from experiments.verdicts import ERROR_ARMS, HEURISTIC, listing, percent, picks_and_times, ratio, told
from surrogate.report.charts import dots

EVERY = "all"
SHOWN = ("seer-time-only", "linear-terms", "boosted-dims", "boosted-terms")
"""Models that the figure draws, and the only ones of a quick run beside those that cost nothing."""
PICKS = ("n", "slowdown_macro", "ci_low", "ci_high", "infeasible_picks")
CHEAP = ("always-best-single", "roofline", "li-et-al", "linear-dims")


def run(sources: Sources, effort: Effort) -> Outcome:
    """The cuDNN table, one round per GPU; the partial table's rows of the held GPU stay out, too."""
    data, also = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    models = effort.named(*SHOWN, *CHEAP) if effort.quick else effort.named()
    predictions = cross_validate(data, models, by="gpu", count=2, seed=effort.seed, also=[also], tick=effort.tick)
    gpu_of = predictions.rows.frame["gpu"].to_numpy()
    parts = [
        picks_and_times(predictions, PICKS, (gpu_of == gpu) | (gpu == EVERY)).assign(gpu=gpu)
        for gpu in [EVERY, *sorted(set(gpu_of))]
    ]
    table = columns_first(pd.concat(parts, ignore_index=True), "gpu")
    shown, xlabel = table[table["model"].isin(SHOWN)], "median error of the time on the unseen GPU, %"
    figure = dots(shown, "gpu", "model", "median_error_pct", xlabel, arms=ERROR_ARMS, log=True)
    return Outcome(table, figure, answer(table))


def answer(table: pd.DataFrame) -> str:
    """Picks and times on unseen GPUs, the heuristic's picks, and the GPUs whose times are worst foretold."""
    overall = table[table["gpu"] == EVERY].set_index("model")
    learned = overall.drop(index=HEURISTIC, errors="ignore")
    slowdown, error = learned["slowdown_macro"], learned["median_error_pct"]
    picks = told(slowdown, ratio)
    if HEURISTIC in overall.index:
        picks.append(f"cuDNN's heuristic {ratio(overall.loc[HEURISTIC, 'slowdown_macro'])}")
    timed = str(error.idxmin())
    times = ", ".join(told(error, percent))
    each = table[(table["model"] == timed) & (table["gpu"] != EVERY)].dropna(subset=["median_error_pct"])
    each = each.sort_values("median_error_pct")
    worst = [f"{row['gpu']} {percent(row['median_error_pct'])}" for _, row in each.iloc[::-1].head(2).iterrows()]
    return (
        f"On GPUs never measured, slowdown: {', '.join(picks)}; median error of the time: {times}."
        f" {timed} goes from {each.iloc[0]['gpu']} {percent(each.iloc[0]['median_error_pct'])} to {listing(worst)}."
    )


EXPERIMENT = program(run, "cudnn", "partial")
