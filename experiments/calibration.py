"""How good are answers on a GPU that training never saw, and what do a few measurements there change?

A GPU is held out of training, and the judged shapes on every GPU. Two rankings of the candidates are possible for it:
by the model and by their average rank. Training chooses one by holding out further GPUs, unless a GPU of the same
architecture was measured. `seer calibrate` then corrects the answers with randomly drawn measured problems of other
shapes. The data are convolutions of MIOpen's tables, and current kernels if `experiments.todays_kernels` has imported
them to out/.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from msgspec import structs

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import Sources
from experiments.todays_kernels import TABLES
from experiments.todays_verdicts import choice_record
from experiments.verdicts import error_record
from surrogate.bundle.bundle import Bundle
from surrogate.bundle.train import average_costs, train
from surrogate.dataset.problems import device_names, evaluation_rows, shape_names
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import fold_labels
from surrogate.dataset.store import Dataset, read_dataset
from surrogate.evaluation.judge import CandidateRows, pick_lowest_scores
from surrogate.features.families import FAMILIES
from surrogate.features.gpu import gpu as gpu_by_name
from surrogate.models import model_frame
from surrogate.prediction.evaluate import calibrate, trained_answers
from surrogate.prediction.resolve import Resolver
from surrogate.report.charts import Axis, curves
from surrogate.uncertainty.intervals import AVERAGE_RANK, RANK_BY_MODEL

COUNTS = (10, 50, 200)
"""Numbers of problems measured on the new GPU."""
DRAWS = 5
FOLDS = 6
"""Number of folds by shape. One fold is judged."""
PROBLEMS, QUICK_PROBLEMS = 3000, 600
"""Problems per GPU. All GPUs have the same problems if they measured them."""
SETTINGS = {"rounds": 100, "max_leaves": 64}
QUICK_SETTINGS = {"rounds": 40, "max_leaves": 32}
CONVOLUTIONS = {"mi100": "MI100", "mi210": "MI210", "mi300x": "", "navi21": ""}
"""Source → name of the held-out GPU. Sources without a name are used for training only."""
TODAYS = ("gemm", "attention", "moe")
LEFT_OUT = ("l40s", "rtx-pro-6000-server", "a100-sxm4-80gb", "b300")
"""Held-out GPUs. Only the last has GPUs of its architecture in the tables; it has three."""
WORSE = 1.03
"""A figure is worse if it exceeds this multiple of its value before the calibration."""
FIGURES = ("median_error_pct", "p90_error_pct", "slowdown")
ANSWERS, SHAPES_KNOWN, RANDOM = "as answered", "shapes known elsewhere", "random"
SOURCE_NAMES = {RANK_BY_MODEL: "model", AVERAGE_RANK: "average rank"}
"""Ranking source → its name in the table."""


@dataclass(frozen=True)
class NewGpu:
    """A bundle fitted without the GPU and without the ``evaluated`` shapes. ``pool`` has the GPU's rows of other
    shapes.

    ``mean_log_slowdowns`` are the candidates' costs in the training rows (`average_costs`). ``informed`` is a bundle
    fitted also on the judged shapes of the other GPUs. It is None if none of them has the same architecture.
    """

    data: str
    gpu: str
    bundle: Bundle
    informed: Bundle | None
    candidates: str
    mean_log_slowdowns: Mapping[str, float]
    evaluated: Rows
    pool: Rows


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge every held-out GPU with each ranking source, and with calibrations."""
    records = [record for new in _new_gpus(sources, effort) for record in _records(new, effort)]
    table = pd.DataFrame(records)
    drawn = table[table["measured"] > 0]
    x, y = Axis("measured", "measured problems", log=True), Axis("median_error_pct", "median error, %")
    figure = curves(drawn, x, y, "chosen", "cell")
    return ExperimentResult(table, figure)


def _new_gpus(sources: Sources, effort: Effort) -> Iterator[NewGpu]:
    parts = [sources.dataset(name) for name in CONVOLUTIONS]
    frame = pd.concat([model_frame(part, "algorithm") for part in parts], ignore_index=True)
    tables = {"conv": (Dataset(frame, parts[0].candidates), tuple(name for name in CONVOLUTIONS if CONVOLUTIONS[name]))}
    for name in TODAYS:
        if (path := TABLES / f"aiconfigurator_{name}.parquet").exists():
            tables[name] = (read_dataset(path), LEFT_OUT)
    for name, (data, gpus) in tables.items():
        if effort.only and name not in effort.only:
            continue
        family = FAMILIES[name]
        frame = data.frame
        # All GPUs use the same problems: those with the smallest hashes.
        columns = [*family.setting_names, *family.size_names]
        hashes = pd.util.hash_pandas_object(frame[columns], index=False, hash_key=f"{effort.seed:016d}").to_numpy()
        device = device_names(frame)
        drawn = np.zeros(len(frame), dtype=bool)
        for gpu in np.unique(device):
            of_gpu = np.unique(hashes[device == gpu])
            maximum = of_gpu[min(QUICK_PROBLEMS if effort.quick else PROBLEMS, len(of_gpu)) - 1]
            drawn |= (device == gpu) & (hashes <= maximum)
        frame, device = frame[drawn].reset_index(drop=True), device[drawn]
        holdout = fold_labels(shape_names(frame, family), FOLDS, effort.seed) == 0
        for gpu in gpus:
            effort.tick(f"{name} without {gpu}")
            left = device == gpu
            model = "interpolated-terms" if family.lines else "boosted-terms"
            fit = partial(train, model=model, params=QUICK_SETTINGS if effort.quick else SETTINGS, seed=effort.seed)
            without_both = data.with_frame(frame[~left & ~holdout].reset_index(drop=True))
            other_gpus = data.with_frame(frame[~left].reset_index(drop=True))
            architectures = {gpu_by_name(name).architecture for name in np.unique(device[~left])}
            yield NewGpu(
                name,
                gpu,
                bundle=fit(without_both),
                informed=fit(other_gpus) if gpu_by_name(gpu).architecture in architectures else None,
                candidates=data.candidates,
                mean_log_slowdowns=average_costs(rows_of(without_both.frame, family)),
                evaluated=rows_of(frame[left & holdout].reset_index(drop=True), family),
                pool=rows_of(frame[left & ~holdout].reset_index(drop=True), family),
            )


def _records(new: NewGpu, effort: Effort) -> Iterator[dict[str, object]]:
    """Yield the figures of the answers, of each ranking source, and of calibrations."""
    family = new.pool.family
    cell = {"cell": f"{new.gpu} {new.data}", "data": new.data, "gpu": new.gpu}
    part = new.bundle.family_models[family.name]
    among = np.isfinite(_answers(new.bundle, new.evaluated)[0])
    before = _verdict(new, new.bundle, among)
    yield {
        **cell,
        "measured": 0,
        "chosen": ANSWERS,
        "chooser": SOURCE_NAMES[part.unmeasured_gpu.ranking_source],
        **before,
    }
    if new.informed:
        informed = _verdict(new, new.informed, among)
        yield {**cell, "measured": 0, "chosen": SHAPES_KNOWN, "chooser": "same architecture", **informed}
    for source, name in SOURCE_NAMES.items():
        unseen = structs.replace(part.unmeasured_gpu, ranking_source=source, mean_log_slowdowns=new.mean_log_slowdowns)
        other = replace(new.bundle, family_models={family.name: replace(part, unmeasured_gpu=unseen)})
        yield {**cell, "measured": 0, "chosen": name, "chooser": name, **_verdict(new, other, among)}
    pool = np.unique(new.pool.problem[new.pool.ok])
    mixed = [np.random.default_rng(effort.seed + draw).permutation(pool) for draw in range(DRAWS)]
    for count in COUNTS:
        if count > len(pool):
            continue
        verdicts = []
        for order in mixed:
            effort.tick(f"{new.gpu} {new.data}, {count} problems")
            measured = new.pool.frame[np.isin(new.pool.problem, order[:count])]
            calibrated = calibrate(new.bundle, Dataset(measured, new.candidates), seed=effort.seed)
            verdicts.append(_verdict(new, calibrated, among))
        mean = {str(name): value for name, value in pd.DataFrame(verdicts).mean().items()}
        worse = [name for name in FIGURES if mean.get(name, 0.0) > WORSE * before.get(name, np.inf)]
        yield {**cell, "measured": count, "chosen": RANDOM, **mean, "worse": ", ".join(worse)}


def _answers(bundle: Bundle, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return times in µs (rows,) of the bundle, and True for candidates that are expected to run."""
    names = [key.name for key in bundle.family_model(rows.family).candidates]
    predicted = trained_answers(Resolver(bundle), rows, np.isin(rows.candidate.astype(str), names))
    return predicted["predicted_us"].to_numpy(), predicted["supported"].to_numpy()


def _verdict(new: NewGpu, bundle: Bundle, among: np.ndarray) -> dict[str, float]:
    """Return the errors of the times, the slowdown of the choice, and the share of rows with an answer.

    Errors cover the rows of the mask ``among`` (rows,), which had an answer before any calibration. The slowdown covers
    all measured candidates.
    """
    rows = new.evaluated
    times_us, supported = _answers(bundle, rows)
    timed = np.flatnonzero(rows.ok & np.isfinite(times_us) & among)
    record = error_record(times_us[timed], rows.time_us[timed], rows.shape[timed])
    chosen = np.flatnonzero(evaluation_rows(rows.frame, rows.family, new.candidates))
    if len(chosen):
        problem, first = pd.factorize(rows.problem[chosen])[0], ~pd.Series(rows.problem[chosen]).duplicated().to_numpy()
        candidates = CandidateRows(problem, rows.time_us[chosen], rows.ok[chosen], rows.order[chosen])
        choice = pick_lowest_scores(candidates, times_us[chosen], supported[chosen])
        log_slowdown = np.where(choice.chosen, np.log(choice.slowdown), np.nan)
        record |= choice_record(log_slowdown, rows.shape[chosen[first]])
    return {**record, "answered": float(np.isfinite(times_us[rows.ok]).mean())}


EXPERIMENT = program(run, *CONVOLUTIONS, choices=("conv", *TODAYS))
