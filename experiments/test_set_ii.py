"""Test-set-II: how good are picks and times on the layers of real networks that training never saw?

The problems are the layers of real networks. Every shape of a held-out network is excluded from training.
"""

import numpy as np
import pandas as pd

from experiments import verdicts
from experiments.experiment import Effort, ExperimentResult, program
from experiments.held_out import Predictions, cross_validate
from experiments.sources import Sources
from experiments.verdicts import HEURISTIC, problem_picks, reported_models, time_verdicts
from surrogate.dataset.splits import network_names
from surrogate.models import MODELS
from surrogate.report.charts import dots

QUICK_FOLDS = 4
EVERY = "all networks"
ERRORS = ("median_error_pct", "rmspe_pct", "rmse_ms")
"""Errors of the times of all algorithms. The last two are also computed for a problem's minimum time, as in the
paper."""


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge folds of whole networks of the cuDNN table. The partial table is used for training, without held-out
    shapes."""
    data, also = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    predictions = cross_validate(
        data,
        effort.by_name(),
        by="network",
        count=QUICK_FOLDS if effort.quick else 10,
        seed=effort.seed,
        also=[also],
        tick=effort.tick,
    )
    table = by_network(predictions)
    reported = table[table["model"].isin([*reported_models(_best(table), table["model"]), HEURISTIC])]
    reported = reported.assign(loss_pct=np.maximum(100 * (reported["slowdown_geomean"] - 1), 0.01))
    figure = dots(reported, "network", "model", "loss_pct", "slowdown over the best algorithm, %", log=True)
    return ExperimentResult(table, figure)


def by_network(predictions: Predictions) -> pd.DataFrame:
    """Return per network (and over all) and model: slowdown of the picks, errors of times and of the network's sum."""
    picks = _with_minimum(predictions, problem_picks(predictions))
    totals = _totals(picks)
    members, row_members = network_names(picks), network_names(predictions.rows.frame)
    records = []
    for network in [EVERY, *sorted(set().union(*members))]:
        inside = np.array([network == EVERY or network in names for names in members])
        rows_inside = np.array([network == EVERY or network in names for names in row_members])
        times = time_verdicts(predictions, rows_inside).set_index("model")
        for model, part in picks[inside].groupby("model", sort=False):
            errors = totals[(totals["model"] == model) & ((totals["network"] == network) | (network == EVERY))]
            minimum = part.dropna(subset="predicted_us")
            minimum = verdicts.error_record(
                *(minimum[name].to_numpy() for name in ("predicted_us", "best_us", "shape"))
            )
            records.append(
                {
                    "network": network,
                    "model": model,
                    "problems": len(part),
                    "shapes": part["shape"].nunique(),
                    "slowdown_geomean": np.exp(np.log(part["slowdown"]).mean()),
                    "within_10pct": (part["slowdown"] <= 1.1).mean(),
                    **{name: times[name].get(model, np.nan) for name in ERRORS},
                    **{f"minimum_{name}": minimum[name] for name in ERRORS[1:]},
                    "total_error_pct": errors["error_pct"].median(),
                }
            )
    return pd.DataFrame(records)


def _with_minimum(predictions: Predictions, picks: pd.DataFrame) -> pd.DataFrame:
    """Return ``picks`` with ``predicted_us``, the problem's minimum predicted time, or NaN without one."""
    problem, parts = predictions.rows.problem, []
    for model, part in picks.groupby("model", sort=False):
        times = model in predictions.time_us and (model not in MODELS or MODELS[str(model)].predicts_time)
        predicted = predictions.time_us[str(model)] if times else np.full(len(problem), np.nan)
        minimum = pd.Series(np.where(predictions.allowed, predicted, np.nan)).groupby(problem).min()
        codes = problem[part["row"].to_numpy(dtype=int)]
        parts.append(part.assign(predicted_us=minimum.reindex(codes).to_numpy()))
    return pd.concat(parts, ignore_index=True)


def _totals(picks: pd.DataFrame) -> pd.DataFrame:
    """Return per model, network, GPU and batch the error in percent of the summed minimum predicted times.

    Each shape counts once, so a total covers the distinct layers with complete measurements.
    """
    key = ["model", "network", "gpu", "n"]
    members = pd.Series([sorted(names) for names in network_names(picks)], index=picks.index)
    layers = picks.assign(network=members).explode("network").dropna(subset=["network", "predicted_us"])
    sums = layers.groupby(key, sort=True)[["predicted_us", "best_us"]].sum().reset_index()
    return sums.assign(error_pct=100 * (sums["predicted_us"] / sums["best_us"] - 1).abs())


def _best(table: pd.DataFrame) -> str:
    """Return the model with the smallest slowdown over all networks, without the heuristic."""
    overall = table[(table["network"] == EVERY) & (table["model"] != HEURISTIC)]
    return str(overall.set_index("model")["slowdown_geomean"].idxmin())


EXPERIMENT = program(run, "cudnn", "partial")
