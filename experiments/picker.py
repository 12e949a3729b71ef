"""How often is a pick over 10 % slower than the best, and what does it cost?

Picks are judged by SEER's 10 % rule and by the slowdown, with infeasible picks counted as right and as wrong.
"""

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import cross_validate
from experiments.sources import PAPER_BATCH, PAPER_MIN_US, Sources
from experiments.verdicts import HEURISTIC, choice_verdicts, interval, percent, problem_picks, ratio, reported_models
from surrogate.evaluation.judge import WITHIN
from surrogate.report.charts import dots

ALL, PAPER = "all problems", "a set like the paper's"
"""The times of the paper's own grid of sizes are not published. Batch, shape and minimum time of the second set are
like it."""
DRAWN = {"infeasible right (SEER)": "wrong_seer_pct", "infeasible wrong": "wrong_pct"}


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge by shape on the cuDNN table, on all problems and on a set like the paper's. The partial table is for
    training."""
    data, also = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    holdout = cross_validate(
        data, effort.by_name(), count=effort.folds, seed=effort.seed, also=[also], tick=effort.tick
    )
    picks = problem_picks(holdout)
    square = (picks["h"] == picks["w"]) & (picks["groups"] == 1)
    paper = square & (picks["n"] == PAPER_BATCH) & (picks["best_us"] > PAPER_MIN_US)
    verdicts = choice_verdicts(holdout, stratum="all").set_index("model")
    all_problems = error_rates(picks).assign(problems_of=ALL)
    all_problems = all_problems.join(verdicts[["slowdown_macro", "ci_low", "ci_high"]], on="model")
    drawn = pd.concat(
        [all_problems.assign(series=label, share=all_problems[column]) for label, column in DRAWN.items()]
    )
    figure = dots(drawn, "model", "series", "share", "picks over 10 % slower than the best, %")
    table = pd.concat([all_problems, error_rates(picks[paper]).assign(problems_of=PAPER)], ignore_index=True)
    table = columns_first(table, "problems_of")
    return ExperimentResult(table, figure, answer(table))


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
    all_problems = table[table["problems_of"] == ALL].set_index("model")
    best = all_problems.drop(index=HEURISTIC, errors="ignore")["slowdown_macro"].idxmin()
    names = [*reported_models(best, all_problems.index), *([HEURISTIC] if HEURISTIC in all_problems.index else [])]
    each = []
    for name in names:
        row = all_problems.loc[name]
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
