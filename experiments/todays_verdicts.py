"""Errors and slowdowns for current kernels: on all rows, and by a rule for tables with this noise.

The rule drops rows that deviate from their line (``spike``). A choice counts if the second best is slower by a minimum
margin. A pick over 5 % slower than the best is a miss. An imported table does not contain the floors of its harness. A
framework's own predictor has one time per problem. It counts as the time of the framework's fastest kernel.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.verdicts import median_draws
from surrogate.dataset.rows import Rows
from surrogate.evaluation.judge import CandidateRows, pick_lowest_scores, shape_interval, time_errors
from surrogate.models.baselines import AlwaysBestSingle

AICONFIGURATOR, HEURISTICS, BEST_SINGLE = "aiconfigurator", "nvMatmulHeuristics", AlwaysBestSingle.name
NEAREST_BEST_SINGLE = "best single of the nearest GPU"
ONLY_RANKS, ONLY_TIMES, PER_FRAMEWORK = (BEST_SINGLE, NEAREST_BEST_SINGLE), (HEURISTICS,), (AICONFIGURATOR,)
"""Predictors that rank candidates without a time, that have a time but no choice, and with one time per framework."""
MARGINS, OTHER_MARGIN = {"gemm": 0.10}, 0.05
"""Minimum margin between the best and the second best, by family, for a cleaned choice."""
MISS = 1.05
DRAWS = 1000
FRAMEWORKS = {"all": (), "trtllm + vllm": ("trtllm", "vllm")}
"""Sets of frameworks. sglang's fp8_block on Blackwell includes the quantisation of activations, so the others are also
judged alone."""


def verdicts(rows: Rows, scores: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return one row per GPU, part (a phase or element type, or all), frameworks, population and predictor.

    ``scores`` (rows,) are µs or ranks, NaN without an answer. Errors and missed picks are in percent.
    """
    records = []
    for labels, members, margin in _parts(rows):
        part = rows.take(members)
        part_scores = {name: values[members] for name, values in scores.items()}
        records += [{**labels, **record} for record in _records(part, part_scores, margin)]
    return pd.DataFrame(records)


def _parts(rows: Rows) -> Iterator[tuple[dict[str, str], np.ndarray, float]]:
    """Yield labels, a mask of the rows, and the margin of a choice."""
    column = "phase" if "phase" in rows.family.settings else "dtype"
    gpu, value, library = (rows.frame[name].astype(str).to_numpy() for name in ("gpu", column, "library"))
    clean = ~rows.frame["spike"].to_numpy()
    margin = MARGINS.get(rows.family.name, OTHER_MARGIN)
    for name in sorted(set(gpu)):
        for part in ("all", *sorted(set(value[gpu == name]))):
            for frameworks, libraries in FRAMEWORKS.items():
                members = (gpu == name) & ((part == "all") | (value == part))
                members &= np.isin(library, libraries) if libraries else True
                for population, chosen, minimum in (("raw", members, 0.0), ("cleaned", members & clean, margin)):
                    labels = {"gpu": name, "part": part, "frameworks": frameworks, "population": population}
                    if chosen.any():
                        yield labels, chosen, minimum


def _records(rows: Rows, scores: Mapping[str, np.ndarray], margin: float) -> list[dict[str, Any]]:
    """Return per predictor the errors of its times, the slowdowns of its choices, and both relative to the two
    references."""
    problem, every = pd.factorize(rows.problem)[0], np.ones(len(rows), dtype=bool)
    candidates = CandidateRows(problem, rows.time_us, every, rows.order)
    # 1. A choice counts if the problem has at least two candidates, and the second best is slower by the margin.
    ranked = np.lexsort((rows.time_us, problem))
    first = np.searchsorted(problem[ranked], np.arange(candidates.count))
    second_us = rows.time_us[ranked[np.minimum(first + 1, len(rows) - 1)]]
    judged = (np.bincount(problem) > 1) & (second_us >= (1 + margin) * candidates.best_us())
    shape = rows.shape[ranked[first]]
    # 2. Errors and slowdowns per predictor. A time per framework is compared with the framework's fastest kernel only.
    library = rows.frame["library"].astype(str).to_numpy()
    fastest = rows.time_us == pd.Series(rows.time_us).groupby([problem, library]).transform("min").to_numpy()
    times, errors, slowdowns, records = {}, {}, {}, []
    for name, score in scores.items():
        record: dict[str, Any] = {"model": name, "n": 0, "problems": 0}
        values = np.where(fastest, score, np.nan) if name in PER_FRAMEWORK else score
        if name not in ONLY_RANKS:
            times[name] = values
            errors[name] = np.log(np.maximum(np.abs(np.log(values / rows.time_us)), 1e-6))
            record |= _time_record(values, rows)
        if name not in ONLY_TIMES:
            choice = pick_lowest_scores(candidates, values, every)
            slowdowns[name] = np.where(judged & choice.chosen, np.log(choice.slowdown), np.nan)
            record |= choice_record(slowdowns[name], shape)
        records.append(record)
    # 3. Differences to the references, by row and by problem.
    for record in records:
        for kind, logs, shapes in (("error", errors, rows.shape), ("slowdown", slowdowns, shape)):
            for reference in (AICONFIGURATOR, BEST_SINGLE):
                if {record["model"], reference} <= set(logs):
                    difference = logs[record["model"]] - logs[reference]
                    record |= _interval(f"log_{kind}_vs_{reference}", difference, shapes)
        if {record["model"], AICONFIGURATOR} <= set(times):
            both = np.isfinite(times[AICONFIGURATOR])
            error = time_errors(times[record["model"]][both], rows.time_us[both])
            record["same_rows_median_pct"], record["same_rows_p90_pct"] = (100 * error.median_ape, 100 * error.p90_ape)
    return records


def _time_record(predicted_us: np.ndarray, rows: Rows) -> dict[str, Any]:
    has_value = np.isfinite(predicted_us)
    if not has_value.any():
        return {}
    errors = time_errors(predicted_us[has_value], rows.time_us[has_value])
    error, shape = np.abs(predicted_us[has_value] / rows.time_us[has_value] - 1), rows.shape[has_value]
    record: dict[str, Any] = {"n": errors.n, "mean_error_pct": 100 * errors.mape}
    for name, share, middle in (("median", 0.5, errors.median_ape), ("p90", 0.9, errors.p90_ape)):
        low, high = np.quantile(median_draws(error, shape, share), [0.025, 0.975])
        record |= {f"{name}_error_pct": 100 * middle, f"{name}_low": 100 * low, f"{name}_high": 100 * high}
    return record


def choice_record(log_slowdown: np.ndarray, shape: np.ndarray) -> dict[str, Any]:
    """Return geometric means over shapes with their interval, and over problems, and the share of misses."""
    has_value = np.isfinite(log_slowdown)
    if not has_value.any():
        return {}
    return {
        "problems": int(has_value.sum()),
        **{name: float(np.exp(value)) for name, value in _interval("slowdown", log_slowdown, shape).items()},
        "slowdown_pooled": float(np.exp(log_slowdown[has_value].mean())),
        "missed_pct": 100 * float((log_slowdown[has_value] > np.log(MISS)).mean()),
    }


def _interval(name: str, values: np.ndarray, shape: np.ndarray) -> dict[str, float]:
    """Return the mean over shapes of the finite values with its 95 % interval."""
    has_value = np.isfinite(values)
    if not has_value.any():
        return {}
    interval = shape_interval(values[has_value], shape[has_value], macro=True, draws=DRAWS, seed=0)
    return {name: interval.mid, f"{name}_low": interval.low, f"{name}_high": interval.high}
