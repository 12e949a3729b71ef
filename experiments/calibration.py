"""How many measurements does a GPU need that training never saw, and does planning them help?

Calibration: how many measurements on a new GPU its predictions need, planned or at random.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.drawing import curves
from experiments.experiment import Effort, Outcome, program
from experiments.held_out import Predictions, candidate_rows, predict_rounds
from experiments.sources import LABELS, Sources
from experiments.verdicts import choice_verdicts, percent, ratio, time_verdicts
from surrogate.bundle.plan import POOL, choose_problems
from surrogate.dataset.problems import device_names, newest_version, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.models.boosted import BoostedTerms
from surrogate.models.calibrated import fit_correction
from surrogate.models.correction import correction_columns

MODEL = BoostedTerms.name
COUNTS = (10, 30, 100, 300)
FOLDS = 5
"""Parts of a GPU's shapes: each is judged in turn, problems to measure come from the others."""
ENOUGH = 0.75
"""A count is judged where every fold leaves at least this share of it to measure: a GPU has 378 problems at most."""
AMD_SHAPES = 1500
"""Shapes drawn of each further AMD GPU."""
EVERY = "all"
MEANS = {
    "n": ("n", "sum"), "shapes": ("shapes", "max"), "gpus": ("gpu", "size"),
    "median_error_pct": ("median_error_pct", "mean"), "slowdown_macro": ("slowdown_macro", "mean"),
}  # fmt: skip
"""What a table says of several GPUs together → of which column, and how."""
NOTHING, PLANNED, RANDOM = "none", "planned", "random"


def run(sources: Sources, effort: Effort) -> Outcome:
    """Each cuDNN GPU from the eight others and the partial table; MI300X from samples of three others."""
    records = []
    for label, gpu, held in (*_cudnn(sources, effort), *_amd(sources, effort)):
        for count, chosen, predicted in _calibrated(gpu, held, effort):
            records.append({"data": label, "gpu": gpu, **_verdict(held, count, chosen, predicted)})
    table = _with_mean(pd.DataFrame(records))
    drawn = table[(table["gpu"] == EVERY) & (table["problems"] > 0)]
    xlabel = "measured problems on the new GPU"
    figure = curves(drawn, "problems", "chosen", "median_error_pct", "data", xlabel, log_x=True)
    return Outcome(table, figure, answer(table))


def _cudnn(sources: Sources, effort: Effort) -> Iterator[tuple[str, str, Predictions]]:
    """What a table calls the data, a GPU, and its rows as a model predicts them that training gave none of its own."""
    data, also = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    rows = candidate_rows([data, also])
    of_cudnn = np.arange(len(rows)) < len(data)
    device = device_names(rows.frame)
    for gpu in sorted(set(device[of_cudnn])):
        yield LABELS["cudnn"], gpu, _left_out(gpu, "all", rows, device != gpu, of_cudnn & (device == gpu), effort)


def _amd(sources: Sources, effort: Effort) -> Iterator[tuple[str, str, Predictions]]:
    data = effort.sample(sources.dataset("mi300x"))
    others = [effort.sample(sources.dataset(name), AMD_SHAPES) for name in ("mi210", "mi100", "navi21")]
    rows = candidate_rows([data, *others])
    device = device_names(rows.frame)
    gpu = str(device[0])
    yield LABELS["mi300x"], gpu, _left_out(gpu, data.candidates, rows, device != gpu, device == gpu, effort)


def _left_out(
    gpu: str, candidates: str, rows: Rows, inside: np.ndarray, outside: np.ndarray, effort: Effort
) -> Predictions:
    effort.tick(gpu)
    test = np.flatnonzero(outside)
    test = test[newest_version(rows.frame.iloc[test], rows.family)]
    model = effort.named(MODEL)[MODEL]
    if effort.quick:
        model.set_params(rounds=model.get_params()["rounds"] // 3)
    rounds = [(np.flatnonzero(inside), test)]
    return predict_rounds(rows, candidates, rounds, {MODEL: model}, lambda text: None).take(test)


def _calibrated(gpu: str, new: Predictions, effort: Effort) -> Iterator[tuple[int, str, np.ndarray]]:
    """(problems measured, how they were chosen, times (rows,)); only problems of other shapes were measured."""
    yield 0, NOTHING, new.time_us[MODEL]
    fold = fold_labels(shape_names(new.rows.frame, new.rows.family), min(FOLDS, effort.folds), effort.seed)
    predicted: dict[tuple[int, str], np.ndarray] = {}
    for held in np.unique(fold):
        orders = _orders(new, fold != held, effort.seed)
        for count in COUNTS:
            if ENOUGH * count > min(map(len, orders.values())):
                continue
            for chosen, order in orders.items():
                effort.tick(f"{gpu}, {count} {chosen}")
                times = predicted.setdefault((count, chosen), np.full(len(new.rows), np.nan))
                times[fold == held] = _corrected(new, order[:count], fold == held, effort.seed)
    for (count, chosen), times in predicted.items():
        if np.isfinite(times).all():  # a fold may have left too few to measure
            yield count, chosen, times


def _orders(new: Predictions, inside: np.ndarray, seed: int) -> dict[str, Sequence[int]]:
    """Problems (codes) in the order planned and in a random one; both choose from those that something ran."""
    pool = np.unique(new.rows.problem[inside & new.rows.ok])
    mixed = np.random.default_rng(seed).permutation(pool)
    pool_rows = np.flatnonzero(np.isin(new.rows.problem, mixed[: max(POOL, 2 * max(COUNTS))]) & new.allowed & inside)
    pool_us = new.time_us[MODEL][pool_rows]
    most = min(max(COUNTS), len(pool))
    planned = choose_problems(new.rows.take(pool_rows), new.rows.problem[pool_rows], pool_us, most)
    return {PLANNED: planned, RANDOM: mixed.tolist()}


def _corrected(new: Predictions, problems: Sequence[int], judged: np.ndarray, seed: int) -> np.ndarray:
    measured = np.flatnonzero(np.isin(new.rows.problem, problems) & new.rows.ok)
    correction, _ = fit_correction(new.rows.take(measured), new.time_us[MODEL][measured], seed)
    part, base_us = new.rows.take(judged), new.time_us[MODEL][judged]
    x = part.columns(correction_columns(part.family))
    return base_us * np.exp(correction.log_factor(x, part.candidate, base_us))


def _verdict(new: Predictions, count: int, chosen: str, predicted_us: np.ndarray) -> dict[str, object]:
    predictions = replace(new, time_us={MODEL: predicted_us})
    times = time_verdicts(predictions).iloc[0]
    choices = choice_verdicts(predictions).set_index("model")
    slowdown = float(choices["slowdown_macro"].get(MODEL, np.nan))
    columns = ("n", "shapes", "median_error_pct", "error_low_pct", "error_high_pct")
    return {"problems": count, "chosen": chosen, **{c: times[c] for c in columns}, "slowdown_macro": slowdown}


def _with_mean(table: pd.DataFrame) -> pd.DataFrame:
    """Rows ``all``: per table, count and choice the mean over the ``gpus`` GPUs that have so many problems."""
    parts = [
        part.groupby(["problems", "chosen"]).agg(**MEANS).reset_index().assign(data=data, gpu=EVERY)
        for data, part in table.groupby("data", sort=False)
    ]
    return pd.concat([table, *parts], ignore_index=True)


def answer(table: pd.DataFrame) -> str:
    """Error and slowdown by the number of problems, planned and, in brackets, at random: rows stand in that order."""
    sentences = []
    for data, part in table[table["gpu"] == EVERY].groupby("data", sort=False):
        steps = []
        for count, rows in part.groupby("problems", sort=True):
            by = rows.sort_values("chosen")  # none, planned, random
            figures = zip(by["median_error_pct"], by["slowdown_macro"], strict=True)
            first, *chance = [(percent(error), ratio(slowdown)) for error, slowdown in figures]
            at_random = f" (at random {chance[0][0]}, {chance[0][1]})" if chance else ""
            gpus = f", {int(by['gpus'].iloc[0])} GPUs" if by["gpus"].iloc[0] != part["gpus"].max() else ""
            steps.append(f"{count} problems{gpus}: {first[0]} and {first[1]}{at_random}")
        sentences.append(f"{data}, median time error and slowdown with {'; '.join(steps)}.")
    return " ".join(sentences)


EXPERIMENT = program(run, "cudnn", "partial", "mi300x", "mi210", "mi100", "navi21")
