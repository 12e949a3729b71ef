"""How often is a pick over 10 % slower than the best, and what does it cost?

Picks are judged by SEER's 10 % rule and by the slowdown, with infeasible picks counted as right and as wrong.
"""

import numpy as np
import pandas as pd

from experiments.experiment import Effort, Outcome, columns_first, program
from experiments.held_out import cross_validate
from experiments.sources import PAPER_BATCH, PAPER_MIN_US, Sources
from experiments.verdicts import HEURISTIC, choice_verdicts, interval, named_models, percent, problem_picks, ratio
from surrogate.evaluation.judge import WITHIN
from surrogate.report.charts import dots

WHOLE, PAPER = "all problems", "a set like the paper's"
"""The times of the paper's own grid of sizes are not published. Batch, shape and minimum time of the second set are
like it."""
DRAWN = {"infeasible right (SEER)": "wrong_seer_pct", "infeasible wrong": "wrong_pct"}


def run(sources: Sources, effort: Effort) -> Outcome:
    """Judge by shape on the cuDNN table, on all problems and on a set like the paper's. The partial table is for
    training."""
    data, also = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    held = cross_validate(data, effort.named(), count=effort.folds, seed=effort.seed, also=[also], tick=effort.tick)
    picks = problem_picks(held)
    square = (picks["h"] == picks["w"]) & (picks["groups"] == 1)
    paper = square & (picks["n"] == PAPER_BATCH) & (picks["best_us"] > PAPER_MIN_US)
    verdicts = choice_verdicts(held, stratum="all").set_index("model")
    whole = error_rates(picks).assign(problems_of=WHOLE)
    whole = whole.join(verdicts[["slowdown_macro", "ci_low", "ci_high"]], on="model")
    drawn = pd.concat([whole.assign(series=label, share=whole[column]) for label, column in DRAWN.items()])
    figure = dots(drawn, "model", "series", "share", "picks over 10 % slower than the best, %")
    table = pd.concat([whole, error_rates(picks[paper]).assign(problems_of=PAPER)], ignore_index=True)
    table = columns_first(table, "problems_of")
    return Outcome(table, figure, answer(table))


def error_rates(picks: pd.DataFrame) -> pd.DataFrame:
    """Return per model the shares of picks over 10 % slower than the best, with infeasible picks as right (SEER) or
    wrong."""
    slow, infeasible = picks["slowdown"] > WITHIN, picks["infeasible"].astype(bool)
    wrong = {"wrong_seer_pct": slow & ~infeasible, "wrong_pct": slow | infeasible, "infeasible_pct": infeasible}
    percents = pd.DataFrame(wrong).astype(float) * 100
    each = percents.assign(model=picks["model"], shape=picks["shape"], slowdown=picks["slowdown"].astype(float))
    of_model = each.groupby("model", sort=False)
    table = of_model.agg(problems=("shape", "size"), shapes=("shape", "nunique"), **{c: (c, "mean") for c in wrong})
    table["slowdown_geomean"] = of_model["slowdown"].agg(lambda slowdowns: np.exp(np.log(slowdowns).mean()))
    return table.assign(slowdown_max=of_model["slowdown"].max()).reset_index()


def answer(table: pd.DataFrame) -> str:
    """Return the figures of the best model, the default, SEER's and the heuristic by both rules, over all problems."""
    whole = table[table["problems_of"] == WHOLE].set_index("model")
    best = whole.drop(index=HEURISTIC, errors="ignore")["slowdown_macro"].idxmin()
    names = [*named_models(best, whole.index), *([HEURISTIC] if HEURISTIC in whole.index else [])]
    each = []
    for name in names:
        row = whole.loc[name]
        each.append(
            f"{name} wrong in {percent(row['wrong_seer_pct'])} by SEER's rule, {percent(row['wrong_pct'])} with"
            f" infeasible picks counted, slowdown {ratio(row['slowdown_macro'])}"
            f" {interval(row['ci_low'], row['ci_high'])}"
        )
    paper = table[table["problems_of"] == PAPER].set_index("model")
    wrong = [f"{name} {percent(paper.loc[name, 'wrong_pct'])}" for name in names if name in paper.index]
    like = f"batch {PAPER_BATCH}, best over {PAPER_MIN_US / 1e3:g} ms, square, ungrouped; other sizes"
    sentence = f" Wrong in a set like the paper's ({like}; {paper['problems'].max()} problems): {', '.join(wrong)}."
    return "; ".join(each) + "." + (sentence if wrong else "")


EXPERIMENT = program(run, "cudnn", "partial")
