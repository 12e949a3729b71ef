"""From predictions to the rows of `results.json`: who was right, by how much, on which part of the data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.problems import shape_codes
from surrogate.dataset.strata import GROUPINGS, in_grouping
from surrogate.evaluation.judge import (
    WITHIN,
    Candidates,
    Choice,
    choose,
    choose_rows,
    resample_weights,
    shape_interval,
    time_errors,
)

WITHIN_FACTOR = {"all": np.inf, "within-2x": 2.0, "best": 1.0}
"""Populations of time errors: rows whose time is at most this factor of their problem's best."""
HEURISTIC = "cudnn-heuristic"
ORACLE = "oracle"
ALL = "all"
DRAWS = 1000
"""Bootstrap draws per interval."""


@dataclass(frozen=True)
class Judged:
    """The candidate rows of judged problems: ``frame``, its ``stratum``, and ``candidates`` for the picks.

    ``problem_row`` (problems,) is the position of each problem's first row; ``shape`` (problems,) its shape's code.
    """

    frame: pd.DataFrame
    candidates: Candidates
    stratum: np.ndarray
    problem_row: np.ndarray
    shape: np.ndarray

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        problem: np.ndarray,
        shape: np.ndarray,
        order: np.ndarray,
        stratum: np.ndarray,
    ) -> "Judged":
        """From rows of judged problems only; ``problem`` and ``shape`` are any codes, one per row."""
        names, first, code = np.unique(problem, return_index=True, return_inverse=True)
        del names
        ok = (frame["status"] == "ok").to_numpy()
        time_us = np.where(ok, frame["time_us"].to_numpy(dtype=float), np.nan)
        return cls(
            frame.reset_index(drop=True),
            Candidates(code, time_us, ok, order),
            stratum,
            first,
            np.unique(shape[first], return_inverse=True)[1],
        )


def pick_by_times(judged: Judged, score: np.ndarray, allowed: np.ndarray) -> Choice:
    """The picks of a model: the least predicted time among what it holds feasible."""
    return choose(judged.candidates, score, allowed)


def pick_by_heuristic(judged: Judged) -> Choice:
    """The picks of the library's own heuristic, from column ``heuristic_algorithm``; no pick where it is empty."""
    c = judged.candidates
    row, made = np.full(c.count, -1), np.zeros(c.count, dtype=bool)
    if "heuristic_algorithm" in judged.frame:
        named = judged.frame["heuristic_algorithm"].notna().to_numpy()
        made[c.problem[named]] = True
        hit = np.flatnonzero(
            named & (judged.frame["heuristic_algorithm"] == judged.frame["algorithm"]).to_numpy()
        )
        row[c.problem[hit]] = hit
    return choose_rows(c, row, made)


def pick_oracle(judged: Judged) -> Choice:
    """The best candidate of each problem."""
    return choose(judged.candidates, judged.candidates.time_us, judged.candidates.ok)


def choice_rows(
    judged: Judged, picks: Mapping[str, list[Choice]], reasons: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row per model × GPU × grouping. A model's choices (one per seed) are averaged problem by problem, in logs."""
    rows = []
    gpu_of = judged.frame["gpu"].to_numpy()[judged.problem_row]
    stratum_of = judged.stratum[judged.problem_row]
    for gpu in _with_all(gpu_of):
        for grouping in GROUPINGS:
            part = in_grouping(stratum_of, grouping) & ((gpu_of == gpu) | (gpu == ALL))
            if not part.any():
                continue
            weights: dict[int, np.ndarray] = {}
            heuristic = picks[HEURISTIC]
            for model, choices in picks.items():
                where = {"model": model, "stratum": grouping, "gpu": gpu}
                rows.append(
                    where | _choice_row(judged, choices, heuristic, part, weights, reasons.get(model, ""))
                )
    return rows


def _choice_row(
    judged: Judged,
    choices: list[Choice],
    heuristic: list[Choice],
    part: np.ndarray,
    weights: dict[int, np.ndarray],
    reason: str,
) -> dict[str, Any]:
    made = part & np.logical_and.reduce([choice.made for choice in choices])
    if not made.any():
        return {"n": 0, "shapes": 0, "reason": reason or "no pick for these problems"}
    log_slowdown = np.mean([np.log(choice.slowdown[made]) for choice in choices], axis=0)
    slowdown = np.concatenate([choice.slowdown[made] for choice in choices])
    names, shape = np.unique(judged.shape[made], return_inverse=True)
    draw = weights.setdefault(len(names), resample_weights(len(names), DRAWS, seed=len(names)))
    macro = shape_interval(log_slowdown, shape, draw, macro=True)
    pooled = shape_interval(log_slowdown, shape, draw, macro=False)
    top2 = np.mean([np.log(choice.top2_slowdown[made]) for choice in choices], axis=0)
    return {
        "n": int(made.sum()),
        "shapes": len(names),
        "slowdown_macro": np.exp(macro.mid),
        "ci_low": np.exp(macro.low),
        "ci_high": np.exp(macro.high),
        "slowdown_geomean": np.exp(pooled.mid),
        "slowdown_geomean_ci": [np.exp(pooled.low), np.exp(pooled.high)],
        "slowdown_p95": np.quantile(slowdown, 0.95),
        "slowdown_max": slowdown.max(),
        "top1": np.mean(slowdown <= 1.0),
        "within_10pct": np.mean(slowdown <= WITHIN),
        "top2_slowdown": np.exp(top2.mean()),
        "infeasible_picks": round(float(np.mean([choice.infeasible[made].sum() for choice in choices]))),
        **_paired(judged, choices, heuristic, made),
    }


def _paired(
    judged: Judged, choices: list[Choice], heuristic: list[Choice], made: np.ndarray
) -> dict[str, Any]:
    """Log slowdown minus the heuristic's on the same problems, with intervals over shapes: macro, and pooled."""
    both = made & heuristic[0].made
    if not both.any():
        return {"paired_vs_heuristic": None, "paired_pooled_vs_heuristic": None}
    mine = np.mean([np.log(choice.slowdown[both]) for choice in choices], axis=0)
    difference = mine - np.log(heuristic[0].slowdown[both])
    names, shape = np.unique(judged.shape[both], return_inverse=True)
    draw = resample_weights(len(names), DRAWS, seed=len(names))
    macro = shape_interval(difference, shape, draw, macro=True)
    pooled = shape_interval(difference, shape, draw, macro=False)
    return {
        "paired_vs_heuristic": [macro.low, macro.mid, macro.high],
        "paired_pooled_vs_heuristic": [pooled.low, pooled.mid, pooled.high],
    }


def time_rows(
    frame: pd.DataFrame,
    stratum: np.ndarray,
    ratio_to_best: np.ndarray,
    predictions: Mapping[str, list[np.ndarray]],
    reasons: Mapping[str, str],
) -> list[dict[str, Any]]:
    """One row per model × population × (grouping | GPU | algorithm), over ok rows.

    ``ratio_to_best`` (rows,) time over the problem's best; ``predictions`` model → one array (rows,) in µs per seed,
    whose metrics are averaged. A model without predictions gets one row with n 0 and its reason.
    """
    measured = frame["time_us"].to_numpy(dtype=float)
    shape = shape_codes(frame)
    parts = [({"stratum": g, "gpu": ALL, "algorithm": ALL}, in_grouping(stratum, g)) for g in GROUPINGS]
    for column in ("gpu", "algorithm"):
        values = frame[column].to_numpy()
        blank = {"stratum": ALL, "gpu": ALL, "algorithm": ALL}
        parts += [(blank | {column: str(value)}, values == value) for value in sorted(set(values))]
    rows = []
    for model, runs in predictions.items():
        if not runs:
            rows.append(
                {
                    "model": model,
                    "population": ALL,
                    **parts[0][0],
                    "n": 0,
                    "shapes": 0,
                    "reason": reasons.get(model, ""),
                }
            )
            continue
        for population, factor in WITHIN_FACTOR.items():
            for where, part in parts:
                known = np.logical_and.reduce([np.isfinite(run) for run in runs])
                rows_here = np.flatnonzero(part & (ratio_to_best <= factor) & known)
                if len(rows_here):
                    shapes = len(np.unique(shape[rows_here]))
                    errors = _mean_errors([run[rows_here] for run in runs], measured[rows_here])
                    rows.append(
                        {"model": model, "population": population, **where, "shapes": shapes, **errors}
                    )
    return rows


def _mean_errors(runs: list[np.ndarray], measured: np.ndarray) -> dict[str, Any]:
    each = [asdict(time_errors(run, measured)) for run in runs]
    return {key: each[0]["n"] if key == "n" else float(np.mean([e[key] for e in each])) for key in each[0]}


def _with_all(values: np.ndarray) -> list[str]:
    """``all`` and, where there are several, each distinct value."""
    distinct = sorted(set(values))
    return [ALL, *distinct] if len(distinct) > 1 else [ALL]
