"""How many measurements does a GPU need that training never saw, and does planning them help?

Calibration: how many measurements on a new GPU its predictions need, planned or at random.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.drawing import curves
from experiments.experiment import Effort, Outcome, program
from experiments.held_out import Predictions, candidate_rows
from experiments.sources import LABELS, Sources
from experiments.verdicts import choice_verdicts, percent, ratio, time_verdicts
from surrogate.bundle.plan import POOL, choose_problems
from surrogate.dataset.problems import device_names, newest_version, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.models import Support
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
NOTHING, PLANNED, RANDOM = "none", "planned", "random"


@dataclass(frozen=True)
class NewGpu:
    """One GPU that training left out; arrays (rows,): the model's times, and what is expected to run."""

    data: str
    gpu: str
    candidates: str
    rows: Rows
    predicted_us: np.ndarray
    allowed: np.ndarray


def run(sources: Sources, effort: Effort) -> Outcome:
    """Each cuDNN GPU from the eight others and the partial table; MI300X from samples of three others."""
    records = []
    for new in (*_cudnn(sources, effort), *_amd(sources, effort)):
        for count, chosen, predicted in _calibrated(new, effort):
            records.append({"data": new.data, "gpu": new.gpu, **_verdict(new, count, chosen, predicted)})
    table = _with_mean(pd.DataFrame(records))
    return Outcome(table, _figure(table), answer(table))


def _cudnn(sources: Sources, effort: Effort) -> Iterator[NewGpu]:
    data, also = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    rows = candidate_rows([data, also])
    of_cudnn = np.arange(len(rows)) < len(data)
    device = device_names(rows.frame)
    for gpu in sorted(set(device[of_cudnn])):
        yield _left_out(LABELS["cudnn"], gpu, "all", rows, device != gpu, of_cudnn & (device == gpu), effort)


def _amd(sources: Sources, effort: Effort) -> Iterator[NewGpu]:
    data = effort.sample(sources.dataset("mi300x"))
    others = [effort.sample(sources.dataset(name), AMD_SHAPES) for name in ("mi210", "mi100", "navi21")]
    rows = candidate_rows([data, *others])
    device = device_names(rows.frame)
    gpu = str(device[0])
    yield _left_out(LABELS["mi300x"], gpu, data.candidates, rows, device != gpu, device == gpu, effort)


def _left_out(
    data: str, gpu: str, candidates: str, rows: Rows, inside: np.ndarray, outside: np.ndarray, effort: Effort
) -> NewGpu:
    effort.tick(gpu)
    train, test = rows.take(inside), rows.take(outside)
    test = test.take(newest_version(test.frame, test.family))
    model = effort.named(MODEL)[MODEL]
    if effort.quick:
        model.set_params(rounds=model.get_params()["rounds"] // 3)
    predicted_us = model.fit(train).predict(test)
    return NewGpu(data, gpu, candidates, test, predicted_us, Support.fit(train).supported(test))


def _calibrated(new: NewGpu, effort: Effort) -> Iterator[tuple[int, str, np.ndarray]]:
    """(problems measured, how they were chosen, times (rows,)); only problems of other shapes were measured."""
    yield 0, NOTHING, new.predicted_us
    fold = fold_labels(shape_names(new.rows.frame, new.rows.family), min(FOLDS, effort.folds), effort.seed)
    predicted: dict[tuple[int, str], np.ndarray] = {}
    for held in np.unique(fold):
        orders = _orders(new, fold != held, effort.seed)
        for count in COUNTS:
            if ENOUGH * count > min(map(len, orders.values())):
                continue
            for chosen, order in orders.items():
                effort.tick(f"{new.gpu}, {count} {chosen}")
                times = predicted.setdefault((count, chosen), np.full(len(new.rows), np.nan))
                times[fold == held] = _corrected(new, order[:count], fold == held, effort.seed)
    for (count, chosen), times in predicted.items():
        if np.isfinite(times).all():  # a fold may have left too few to measure
            yield count, chosen, times


def _orders(new: NewGpu, inside: np.ndarray, seed: int) -> dict[str, Sequence[int]]:
    """Problems (codes) in the order planned and in a random one; both choose from those that something ran."""
    pool = np.unique(new.rows.problem[inside & new.rows.ok])
    mixed = np.random.default_rng(seed).permutation(pool)
    pool_rows = np.flatnonzero(np.isin(new.rows.problem, mixed[: max(POOL, 2 * max(COUNTS))]) & new.allowed & inside)
    planned = choose_problems(
        new.rows.take(pool_rows), new.rows.problem[pool_rows], new.predicted_us[pool_rows], min(max(COUNTS), len(pool))
    )
    return {PLANNED: planned, RANDOM: mixed.tolist()}


def _corrected(new: NewGpu, problems: Sequence[int], judged: np.ndarray, seed: int) -> np.ndarray:
    measured = np.flatnonzero(np.isin(new.rows.problem, problems) & new.rows.ok)
    correction, _ = fit_correction(new.rows.take(measured), new.predicted_us[measured], seed)
    part, base_us = new.rows.take(judged), new.predicted_us[judged]
    x = part.columns(correction_columns(part.family))
    return base_us * np.exp(correction.log_factor(x, part.candidate, base_us))


def _verdict(new: NewGpu, count: int, chosen: str, predicted_us: np.ndarray) -> dict[str, object]:
    everywhere = np.ones(len(new.rows), dtype=bool)
    predictions = Predictions(new.rows, new.candidates, {MODEL: predicted_us}, new.allowed, everywhere, {})
    times = time_verdicts(predictions).iloc[0]
    choices = choice_verdicts(predictions).set_index("model")
    slowdown = float(choices["slowdown_macro"].get(MODEL, np.nan))
    columns = ("n", "shapes", "median_error_pct", "error_low_pct", "error_high_pct")
    return {"problems": count, "chosen": chosen, **{c: times[c] for c in columns}, "slowdown_macro": slowdown}


def _with_mean(table: pd.DataFrame) -> pd.DataFrame:
    """Rows ``all``: per table, count and choice the mean over the ``gpus`` GPUs that have so many problems."""
    parts = [table]
    for data, part in table.groupby("data", sort=False):
        for (count, chosen), rows in part.groupby(["problems", "chosen"], sort=True):
            means = rows[["median_error_pct", "slowdown_macro"]].mean()
            record = {
                "data": data, "gpu": EVERY, "problems": count, "chosen": chosen, "n": rows["n"].sum(),
                "shapes": rows["shapes"].max(), "gpus": len(rows), **means,
            }  # fmt: skip
            parts.append(pd.DataFrame([record]))
    return pd.concat(parts, ignore_index=True)


def answer(table: pd.DataFrame) -> str:
    """Error and slowdown by the number of planned problems, and at random in brackets."""
    sentences = []
    for data, part in table[table["gpu"] == EVERY].groupby("data", sort=False):
        steps = []
        for count, rows in part.groupby("problems", sort=True):
            by = rows.set_index("chosen").to_dict("index")
            first = by.get(NOTHING) or by[PLANNED]
            error, slowdown = percent(first["median_error_pct"]), ratio(first["slowdown_macro"])
            beside = ""
            if RANDOM in by:
                by_chance = by[RANDOM]["median_error_pct"], by[RANDOM]["slowdown_macro"]
                beside = f" (at random {percent(by_chance[0])}, {ratio(by_chance[1])})"
            gpus = f", {int(first['gpus'])} GPUs" if first["gpus"] != part["gpus"].max() else ""
            steps.append(f"{count} problems{gpus}: {error} and {slowdown}{beside}")
        sentences.append(f"{data}, median time error and slowdown with {'; '.join(steps)}.")
    return " ".join(sentences)


def _figure(table: pd.DataFrame) -> str | None:
    drawn = table[(table["gpu"] == EVERY) & (table["problems"] > 0)]
    xlabel = "measured problems on the new GPU"
    return curves(drawn, "problems", "chosen", "median_error_pct", "data", xlabel, log_x=True)


EXPERIMENT = program(run, "cudnn", "partial", "mi300x", "mi210", "mi100", "navi21")
