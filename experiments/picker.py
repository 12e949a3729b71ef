"""How often is a pick over 10 % slower than the best, and what does it cost?

The picker: SEER's 10 % rule and the slowdown, with infeasible picks counted as right and as wrong.
"""

import numpy as np
import pandas as pd

from experiments.drawing import shares
from experiments.experiment import Effort, Outcome, columns_first, program
from experiments.held_out import cross_validate
from experiments.sources import PAPER_BATCH, PAPER_LEAST_US, Sources
from experiments.verdicts import HEURISTIC, choice_verdicts, interval, named_models, percent, problem_picks, ratio
from surrogate.evaluation.judge import WITHIN

WHOLE, PAPER = "all problems", "paper's pick set"


def run(sources: Sources, effort: Effort) -> Outcome:
    """By shape on the cuDNN table; the partial table trains. Judged: all problems, and the paper's pick set."""
    data, also = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    held = cross_validate(data, effort.named(), count=effort.folds, seed=effort.seed, also=[also], tick=effort.tick)
    picks = problem_picks(held)
    square = (picks["h"] == picks["w"]) & (picks["groups"] == 1)
    paper = square & (picks["n"] == PAPER_BATCH) & (picks["best_us"] > PAPER_LEAST_US)
    verdicts = choice_verdicts(held, stratum="all").set_index("model")
    table = pd.concat(
        [error_rates(picks).assign(problems_of=WHOLE), error_rates(picks[paper]).assign(problems_of=PAPER)],
        ignore_index=True,
    )
    whole = table["problems_of"] == WHOLE
    for column in ("slowdown_macro", "ci_low", "ci_high"):
        table[column] = np.where(whole, table["model"].map(verdicts[column]), np.nan)
    table = columns_first(table, "problems_of")
    return Outcome(table, _figure(table), answer(table))


def error_rates(picks: pd.DataFrame) -> pd.DataFrame:
    """Per chooser: shares of picks over 10 % slower than the best, infeasible ones right (SEER's way) or wrong."""
    records = []
    for model, part in picks.groupby("model", sort=False):
        slow = (part["slowdown"] > WITHIN).to_numpy()
        infeasible = part["infeasible"].to_numpy(dtype=bool)
        records.append(
            {
                "model": model,
                "problems": len(part),
                "shapes": part["shape"].nunique(),
                "wrong_seer_pct": 100 * (slow & ~infeasible).mean(),
                "wrong_pct": 100 * (slow | infeasible).mean(),
                "infeasible_pct": 100 * infeasible.mean(),
                "slowdown_geomean": np.exp(np.log(part["slowdown"]).mean()),
                "slowdown_max": part["slowdown"].max(),
            }
        )
    return pd.DataFrame(records, columns=None if records else ["model", "problems"])


def answer(table: pd.DataFrame) -> str:
    """The best model, the default, SEER's and the heuristic by both rules, over all problems."""
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
    return "; ".join(each) + "." + _paper_sentence(paper, names)


def _paper_sentence(paper: pd.DataFrame, names: list[str]) -> str:
    """What the same models do in the paper's pick set; nothing where it is empty."""
    wrong = [f"{name} {percent(paper.loc[name, 'wrong_pct'])}" for name in names if name in paper.index]
    if not wrong:
        return ""
    return f" Wrong in the paper's pick set ({paper['problems'].max()} problems): {', '.join(wrong)}."


def _figure(table: pd.DataFrame) -> str | None:
    columns = {"infeasible right (SEER)": "wrong_seer_pct", "infeasible wrong": "wrong_pct"}
    whole = table[table["problems_of"] == WHOLE]
    return shares(whole, "model", columns, "picks over 10 % slower than the best, %")


EXPERIMENT = program(run, "cudnn", "partial")
