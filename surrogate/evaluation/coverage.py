"""Compare predictions with measurements: held-out rows of a training for the model card, and figures of choices.

The figures show whether intervals and probabilities hold. Coverage per GPU has a confidence interval over shapes.
"""

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.problems import device_names, evaluation_rows, row_groups, rows_by_code
from surrogate.dataset.rows import Rows
from surrogate.evaluation.judge import shape_interval, time_errors
from surrogate.evaluation.scorecard import EvaluationSet, choice_rows, json_value, library_picks, pick_by_times
from surrogate.features.families import DescribedFamily
from surrogate.models import Support
from surrogate.models.configurations import columns_of
from surrogate.uncertainty.fit import dtypes_of, groups_of, held_out_gpu_errors, held_out_half_widths
from surrogate.uncertainty.intervals import STUDENT, ErrorDistribution, UnmeasuredGpuErrors, probability_best

DIGITS = 6
"""Significant digits of a model card."""
MAX_PICKS = 50_000


def held_out_card(
    rows: Rows, predicted_us: np.ndarray, measured_us: np.ndarray, distance: np.ndarray, rules: Support, candidates: str
) -> dict[str, Any]:
    """Return errors, slowdowns and coverage of one family's held-out predictions (rows,).

    Half widths come from models and widths without the row's shape. An unknown value is NaN.
    """
    half_width = held_out_half_widths(rows, predicted_us, measured_us, distance)
    coverage = coverage_rows(rows, np.log(predicted_us / measured_us), half_width)
    evaluated = allowed_evaluation_rows(rows, candidates)
    choices = choice_figures(rows, predicted_us, rules.supported(rows), evaluated)
    groupings = [grouping for grouping in choices if grouping in ("all", rows.family.primary)]
    time = asdict(time_errors(predicted_us[rows.ok], rows.time_us[rows.ok]))
    card = {"time": time, "choice": {grouping: choices[grouping] for grouping in groupings}, "intervals": coverage}
    return json_value(card, DIGITS)


def allowed_evaluation_rows(rows: Rows, candidates: str) -> np.ndarray:
    """Return `evaluation_rows` (rows,) among the configurations that a described kernel's conditions allow."""
    family, allowed = rows.family, np.ones(len(rows), dtype=bool)
    if isinstance(family, DescribedFamily) and family.description.conditions:
        problems = family.problem(dict(zip(family.size_names, rows.sizes.T, strict=True)), {})
        allowed = family.allowed(problems, columns_of(rows)[1])
    evaluated = np.zeros(len(rows), dtype=bool)
    evaluated[allowed] = evaluation_rows(rows.frame[allowed], family, candidates)
    return evaluated


def choice_figures(
    rows: Rows, predicted_us: np.ndarray, supported: np.ndarray, counted: np.ndarray
) -> dict[str, dict[str, Any]]:
    """Return grouping → figures of the choices over all GPUs; empty if no problem is counted.

    The arrays (rows,) are predicted times in µs, the rows that the model considers feasible, and the rows of evaluated
    problems.
    """
    positions = np.flatnonzero(counted)
    if not len(positions):
        return {}
    evaluated = EvaluationSet.of(rows.take(positions))
    own_picks = [pick_by_times(evaluated, predicted_us[positions], supported[positions])]
    return {
        str(row["stratum"]): {k: v for k, v in row.items() if k not in ("model", "gpu", "stratum", "family")}
        for row in choice_rows(evaluated, {"model": own_picks, **library_picks(evaluated)}, {})
        if row["model"] == "model" and row["gpu"] == "all"
    }


def coverage_rows(rows: Rows, log_error: np.ndarray, half_width: np.ndarray) -> list[dict[str, Any]]:
    """Return coverage records: one for all rows, then one per GPU (registry name).

    A GPU with several element types also has a record per type; the others have the type "all". Only rows with finite
    values in both arrays (rows,) count. ``coverage`` is the share of rows inside their interval. ``coverage_low`` and
    ``coverage_high`` are its 95 % interval by bootstrap over shapes. ``half_width`` is the mean in log time, and
    ``interval_factor`` is the median of upper / predicted.
    """
    of_rows = np.flatnonzero(np.isfinite(log_error) & np.isfinite(half_width))
    frame = pd.DataFrame({"gpu": device_names(rows.frame), "dtype": dtypes_of(rows)}).iloc[of_rows]
    slices = {("all", "all"): of_rows} if len(of_rows) else {}
    slices |= {(gpu, "all"): of_rows[positions] for (gpu,), positions in row_groups(frame, ("gpu",))}
    of_types = {(gpu, dtype): of_rows[positions] for (gpu, dtype), positions in row_groups(frame, ("gpu", "dtype"))}
    several = [gpu for gpu, types in Counter(gpu for gpu, _ in of_types).items() if types > 1]
    slices |= {(gpu, dtype): positions for (gpu, dtype), positions in of_types.items() if gpu in several}
    records = []
    for (gpu, dtype), positions in sorted(slices.items(), key=lambda item: [(name != "all", name) for name in item[0]]):
        covered = (np.abs(log_error[positions]) <= half_width[positions]).astype(float)
        shape = rows.shape[positions]
        interval = shape_interval(covered, shape, macro=False)
        counts = {"rows": len(positions), "shapes": len(np.unique(shape))}
        shares = {"coverage": interval.mid, "coverage_low": interval.low, "coverage_high": interval.high}
        factor = float(np.exp(np.median(half_width[positions])))
        widths = {"half_width": float(half_width[positions].mean()), "interval_factor": factor}
        records.append({"gpu": gpu, "dtype": dtype, **counts, **shares, **widths})
    return records


def held_out_gpu_coverage(rows: Rows, predicted_us: np.ndarray, was_trained: np.ndarray) -> list[dict[str, Any]]:
    """Return the coverage records of held-out GPUs.

    ``predicted_us`` (rows,) are times by fits without the row's GPU, or NaN. ``was_trained`` (rows,) marks rows
    whose setting was measured on another GPU. The half widths of a GPU come from the other held-out GPUs.
    """
    scored = np.flatnonzero(rows.ok & np.isfinite(predicted_us) & was_trained)
    rows, predicted_us = rows.take(scored), predicted_us[scored]
    device, groups = device_names(rows.frame), groups_of(rows)
    half_width = np.full(len(rows), np.nan)
    for name in set(device) if len(set(device)) > 1 else ():
        own = device == name
        errors = held_out_gpu_errors(rows.take(~own), predicted_us[~own], was_trained[scored][~own])
        half_width[own] = UnmeasuredGpuErrors(errors).half_widths(groups[own])
    return json_value(coverage_rows(rows, np.log(predicted_us / rows.time_us), half_width), DIGITS)


def picks(
    predicted_us: np.ndarray,
    time_us: np.ndarray,
    half_width: np.ndarray,
    problem: np.ndarray,
    independent_share: float,
    errors: ErrorDistribution = STUDENT,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the stated probability that the pick is best, and whether it was best, (problems,).

    The arrays are (rows,), and ``problem`` holds any codes. Only problems with two or more rows count, and only rows
    with all three numbers. A tie with the best time counts as best. If there are more than `MAX_PICKS` problems, every
    second, third, … is used.
    """
    usable = np.flatnonzero(np.isfinite(predicted_us) & np.isfinite(time_us) & np.isfinite(half_width))
    stated, best = [], []
    problem_rows = rows_by_code(problem[usable])
    for rows in (usable[positions] for positions in problem_rows[:: len(problem_rows) // MAX_PICKS + 1]):
        if len(rows) > 1:
            pick = int(predicted_us[rows].argmin())
            stated.append(
                probability_best(np.log(predicted_us[rows]), half_width[rows], independent_share, errors)[pick]
            )
            best.append(time_us[rows][pick] <= time_us[rows].min())
    return np.array(stated), np.array(best, dtype=bool)
