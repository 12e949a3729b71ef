"""How often is a pick over 10 % slower than the best, and what does it cost?

Picks are judged by SEER's 10 % rule and by the slowdown, with infeasible picks counted as right and as wrong.
"""

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import cross_validate
from experiments.sources import PAPER_BATCH, PAPER_MIN_US, Sources
from experiments.verdicts import choice_verdicts, problem_picks
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
    return ExperimentResult(table, figure)


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


EXPERIMENT = program(run, "cudnn", "partial")
