"""Make the rows of `results.json` from predictions: errors and slowdowns of each model on each part of the data."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.evaluation import judge
from surrogate.features import BENCHMARK_LIMIT

Record = dict[str, object]
Choices = list[judge.EvaluatedPicks]
"""The picks of one model, seed by seed."""
"""A row of `results.json`: name → figure, text or list."""
WITHIN_FACTOR = {"all": np.inf, "within-2x": 2.0, "best": 1.0}
"""Population of time errors → maximum ratio of a row's time to its problem's best time."""
HEURISTIC_SUFFIX = "-heuristic"
TUNANET = "tunanet"
FIRST_TEN = "best-of-first-ten"
"""The best measured of the first `BENCHMARK_LIMIT` candidates in the list of the library's heuristic."""
ORACLE = "oracle"
ALL = "all"
REPORTED_MODELS = ("stacked-terms", "configurations", "interpolated-terms", "boosted-terms")
"""The first fitted one of these models is the reported model. The first three are for convolutions, for described
kernels, and for families with lines."""
TREES_MODEL = "boosted-terms"
SEER, SEER_PAPER = "seer-time-only", "seer-paper"
KINDS = ("heuristic", "seer", "linear", "trees")
"""Kinds of references. Every row has a difference to each of them (see `reference_models`)."""
LINEAR_MODELS = ("linear-terms", "linear-dims", "li-et-al")


def heuristic_name(libraries: Iterable[str]) -> str:
    """Return the name of the library's own heuristic in results.

    It is ``cudnn-heuristic``, or ``tunanet`` (MIOpen's network), or ``library-heuristic`` for several libraries.
    """
    distinct = set(libraries)
    library = distinct.pop() if len(distinct) == 1 else "library"
    return TUNANET if library == "miopen" else library + HEURISTIC_SUFFIX


def is_heuristic(model: str) -> bool:
    """Return whether it is the name of a library's own heuristic."""
    return model == TUNANET or model.endswith(HEURISTIC_SUFFIX)


@dataclass(frozen=True)
class EvaluationSet:
    """The candidate rows of the evaluated problems of one family, and ``candidates`` for the picks.

    ``heuristic`` is the name of the library's own heuristic. ``problem_row`` (problems,) is the position of each
    problem's first row. ``shape`` (problems,) is the code of its shape, from 0.
    """

    rows: Rows
    candidates: judge.CandidateRows
    heuristic: str
    problem_row: np.ndarray
    shape: np.ndarray

    @classmethod
    def of(cls, rows: Rows, noise: float = 0.0) -> "EvaluationSet":
        """Return the evaluation set of these rows.

        Times that differ by less than ``noise`` (relative) count as equal.
        """
        first, code = np.unique(rows.problem, return_index=True, return_inverse=True)[1:]
        time_us = np.where(rows.ok, rows.time_us, np.nan)
        candidates = judge.CandidateRows(code, time_us, ok=rows.ok, order=rows.order, noise=noise)
        shape = np.unique(rows.shape[first], return_inverse=True)[1]
        return cls(rows, candidates, heuristic_name(rows.frame["library"]), problem_row=first, shape=shape)


def pick_by_times(evaluated: EvaluationSet, score: np.ndarray, allowed: np.ndarray) -> judge.EvaluatedPicks:
    """Return the picks of a model: the shortest predicted time among the rows that it considers feasible."""
    return judge.pick_lowest_scores(evaluated.candidates, score, allowed)


def pick_by_heuristic(evaluated: EvaluationSet) -> judge.EvaluatedPicks:
    """Return the picks of the library's own heuristic.

    They are in the column ``heuristic_algorithm``, or ``heuristic_solver`` among solvers. A problem has no pick if the
    column is empty or missing.
    """
    candidates = evaluated.candidates
    frame = evaluated.rows.frame
    row, has_pick = np.full(candidates.count, -1), np.zeros(candidates.count, dtype=bool)
    chosen = "solver" if "solver" in frame and "heuristic_solver" in frame else "algorithm"
    if f"heuristic_{chosen}" in frame:
        has_name = frame[f"heuristic_{chosen}"].notna().to_numpy()
        has_pick[candidates.problem[has_name]] = True
        hit = np.flatnonzero(has_name & (frame[f"heuristic_{chosen}"] == frame[chosen]).to_numpy())
        row[candidates.problem[hit]] = hit
    return judge.evaluate_picks(candidates, row, has_pick)


def pick_best_of_first_ten(evaluated: EvaluationSet) -> judge.EvaluatedPicks:
    """Return the best measured candidate among the heuristic's first `BENCHMARK_LIMIT`, by column ``heuristic_rank``.

    A problem has a pick only if each of these ranks has a row, of any status.
    """
    candidates, frame = evaluated.candidates, evaluated.rows.frame
    rank = frame["heuristic_rank"].to_numpy(dtype=float, na_value=np.nan)
    is_first = (rank >= 1) & (rank <= BENCHMARK_LIMIT)
    problem_of_rank = np.unique([candidates.problem[is_first], rank[is_first].astype(int)], axis=1)[0]
    is_complete = np.bincount(problem_of_rank, minlength=candidates.count) == BENCHMARK_LIMIT
    return replace(judge.pick_lowest_scores(candidates, candidates.time_us, is_first), chosen=is_complete)


def library_picks(evaluated: EvaluationSet) -> dict[str, Choices]:
    """Return the picks of the library's heuristic and, if the table has its ranks, the best of its first ten."""
    picks = {evaluated.heuristic: [pick_by_heuristic(evaluated)]}
    if "heuristic_rank" in evaluated.rows.frame:
        picks[FIRST_TEN] = [pick_best_of_first_ten(evaluated)]
    return picks


def pick_oracle(evaluated: EvaluationSet) -> judge.EvaluatedPicks:
    """Return the best candidate of each problem."""
    return judge.pick_lowest_scores(evaluated.candidates, evaluated.candidates.time_us, evaluated.candidates.ok)


def reference_models(evaluated: EvaluationSet, picks: Mapping[str, Choices]) -> dict[str, str]:
    """Return the reference models: kind → name.

    ``heuristic`` is the library's own heuristic. ``seer`` and ``paper`` are the paper's fits to times and to counters.
    ``linear`` is the linear model with the smallest macro slowdown in the primary grouping. ``trees`` are the boosted
    trees. ``first_ten`` is `FIRST_TEN`. A kind without picks is left out.
    """
    family, stratum = evaluated.rows.family, evaluated.rows.stratum[evaluated.problem_row]
    primary = family.in_grouping(stratum, family.primary)
    found = {}
    for name, choices in picks.items():
        chosen = primary & _chosen(choices)
        if chosen.any():
            found[name] = judge.shape_interval(_log_slowdown(choices, chosen), evaluated.shape[chosen], macro=True).mid
    linear = sorted((found[name], name) for name in LINEAR_MODELS if name in found)
    kinds = {
        "heuristic": evaluated.heuristic,
        "seer": SEER,
        "paper": SEER_PAPER,
        "linear": linear[0][1] if linear else "",
        "trees": TREES_MODEL,
        "first_ten": FIRST_TEN,
    }
    return {kind: name for kind, name in kinds.items() if name in found}


def choice_rows(
    evaluated: EvaluationSet,
    picks: Mapping[str, Choices],
    reasons: Mapping[str, str],
    references: Mapping[str, str] | None = None,
) -> list[Record]:
    """Return one row per model × GPU × grouping. The seeds' log slowdowns are averaged problem by problem.

    Each model is compared with the ``references`` (by default `reference_models`) in ``paired_vs_heuristic`` and so on.
    """
    references = reference_models(evaluated, picks) if references is None else references
    rows = []
    family = evaluated.rows.family
    gpu_of = evaluated.rows.frame["gpu"].to_numpy()[evaluated.problem_row]
    stratum_of = evaluated.rows.stratum[evaluated.problem_row]
    gpus = sorted(set(gpu_of))
    paired = {kind: picks[name] for kind, name in references.items() if name in picks}
    for gpu in [ALL, *(gpus if len(gpus) > 1 else [])]:
        for grouping in family.groupings:
            mask = family.in_grouping(stratum_of, grouping) & ((gpu_of == gpu) | (gpu == ALL))
            if not mask.any():
                continue
            for model, choices in picks.items():
                where = {"model": model, "family": family.name, "stratum": grouping, "gpu": gpu}
                rows.append(where | _choice_row(evaluated, choices, paired, mask, reasons.get(model, "")))
    return rows


def _chosen(choices: Choices) -> np.ndarray:
    """Return whether every seed has a pick, (problems,)."""
    return np.logical_and.reduce([choice.chosen for choice in choices])


def _log_slowdown(choices: Choices, mask: np.ndarray) -> np.ndarray:
    """Return the mean log slowdown over the seeds, (problems of the mask,)."""
    return np.mean([np.log(choice.slowdown[mask]) for choice in choices], axis=0)


def _choice_row(
    evaluated: EvaluationSet, choices: Choices, paired: Mapping[str, Choices], mask: np.ndarray, reason: str
) -> Record:
    chosen = mask & _chosen(choices)
    if not chosen.any():
        return {"n": 0, "shapes": 0, "reason": reason or "no pick for these problems"}
    log_slowdown = _log_slowdown(choices, chosen)
    slowdown = np.concatenate([choice.slowdown[chosen] for choice in choices])
    top2 = np.mean([np.log(choice.top2_slowdown[chosen]) for choice in choices], axis=0)
    # Seeds are averaged problem by problem for means; the 95th percentile and the maximum are over all choices.
    shape = evaluated.shape[chosen]
    macro, pooled = (judge.shape_interval(log_slowdown, shape, macro=macro) for macro in (True, False))
    return {
        "n": int(chosen.sum()),
        "shapes": len(np.unique(shape)),
        "slowdown_macro": np.exp(macro.mid),
        "ci_low": np.exp(macro.low),
        "ci_high": np.exp(macro.high),
        "slowdown_geomean": np.exp(pooled.mid),
        "slowdown_geomean_ci": [np.exp(pooled.low), np.exp(pooled.high)],
        "slowdown_p95": np.quantile(slowdown, 0.95),
        "slowdown_max": slowdown.max(),
        "top1": np.mean(slowdown <= 1.0),
        "within_10pct": np.mean(slowdown <= judge.WITHIN),
        "top2_slowdown": np.exp(top2.mean()),
        "infeasible_picks": round(float(np.mean([choice.infeasible[chosen].sum() for choice in choices]))),
        **_differences(evaluated, choices, paired, mask),
    }


def _differences(evaluated: EvaluationSet, choices: Choices, paired: Mapping[str, Choices], mask: np.ndarray) -> Record:
    """Return relative differences to each reference, on the mask's problems with picks of both.

    ``paired_vs_KIND`` is [low, mid, high] of the ratio of macro slowdowns minus 1. ``paired_problems_vs_KIND``
    (``paired_problems`` for the heuristic) is the number of problems. They are None and 0 for a kind of `KINDS` without
    a reference. ``paired_pooled_vs_heuristic`` weights problems instead of shapes.
    """
    out: Record = {}
    for kind in dict.fromkeys((*KINDS, *paired)):
        both = mask & _chosen(choices) & _chosen(paired[kind]) if kind in paired else np.zeros(len(mask), dtype=bool)
        count = "paired_problems" if kind == "heuristic" else f"paired_problems_vs_{kind}"
        out[count] = int(both.sum())
        difference = _log_slowdown(choices, both) - _log_slowdown(paired[kind], both) if both.any() else None
        ways = {"paired": True, "paired_pooled": False} if kind == "heuristic" else {"paired": True}
        for name, macro in ways.items():
            ends = None
            if difference is not None:
                ends = np.expm1(judge.shape_interval(difference, evaluated.shape[both], macro=macro)).tolist()
            out[f"{name}_vs_{kind}"] = ends
    return out


def time_rows(
    rows: Rows,
    ratio_to_best: np.ndarray,
    predictions: Mapping[str, list[np.ndarray]],
    reasons: Mapping[str, str],
    references: Mapping[str, str] = MappingProxyType({}),
) -> list[Record]:
    """Return one row per model × population × (grouping | GPU | algorithm), over ok rows of one family.

    ``ratio_to_best`` (rows,) is the time over the problem's best time. ``predictions``: model → one array (rows,) in µs
    per seed; the seeds' metrics are averaged. A model without predictions gets one row with n 0 and its reason. In the
    primary grouping ``median_vs_KIND`` is [low, mid, high] of the median error minus the reference's.
    """
    family = rows.family
    blank = {"family": family.name, "stratum": ALL, "gpu": ALL, "algorithm": ALL}
    slices = [(blank | {"stratum": g}, family.in_grouping(rows.stratum, g)) for g in family.groupings]
    for column in ("gpu", "algorithm"):
        values = rows.frame[column].to_numpy()
        slices += [(blank | {column: str(value)}, values == value) for value in sorted(set(values))]
    paired = {kind: predictions[name] for kind, name in references.items() if predictions.get(name)}
    records = []
    for model, runs in predictions.items():
        predicted = np.isfinite(runs).all(axis=0) if runs else np.zeros(len(rows), bool)
        if not predicted.any():
            missing = {"n": 0, "shapes": 0, "reason": reasons.get(model, "it predicts none of these rows")}
            records.append({"model": model, "population": ALL, **blank, **missing})
            continue
        for population, factor in WITHIN_FACTOR.items():
            for where, mask in slices:
                counted = np.flatnonzero(mask & (ratio_to_best <= factor) & predicted)
                if len(counted):
                    shapes = len(np.unique(rows.shape[counted]))
                    errors = _mean_errors([run[counted] for run in runs], rows.time_us[counted])
                    record = {"model": model, "population": population, **where, "shapes": shapes, **errors}
                    if population == ALL and where == blank | {"stratum": family.primary}:
                        others = {kind: other for kind, other in paired.items() if references[kind] != model}
                        record |= _median_differences(rows, runs, others, mask)
                    records.append(record)
    return records


def _median_differences(
    rows: Rows, runs: list[np.ndarray], others: Mapping[str, list[np.ndarray]], mask: np.ndarray
) -> Record:
    """Return ``median_vs_KIND`` of each reference, over the mask's rows with predictions of both; seeds are pooled."""
    out: Record = {}
    for kind, other in others.items():
        both = np.flatnonzero(mask & np.isfinite([*runs, *other]).all(axis=0))
        if len(both):
            time_us = rows.time_us[both]
            mine, theirs = (np.concatenate([np.abs(run[both] / time_us - 1) for run in side]) for side in (runs, other))
            shape, other_shape = (np.tile(rows.shape[both], len(side)) for side in (runs, other))
            out[f"median_vs_{kind}"] = [*judge.median_difference(mine, theirs, shape, other_shape)]
    return out


def _mean_errors(runs: list[np.ndarray], measured: np.ndarray) -> Record:
    each = [asdict(judge.time_errors(run, measured)) for run in runs]
    return {key: each[0]["n"] if key == "n" else float(np.mean([e[key] for e in each])) for key in each[0]}


def json_value(value: Any, digits: int | None = None) -> Any:
    """Return a JSON value: NumPy numbers as Python numbers, NaN and infinity as None.

    Floats are rounded to ``digits`` significant digits.
    """
    if isinstance(value, dict):
        return {key: json_value(each, digits) for key, each in value.items()}
    if isinstance(value, list):
        return [json_value(each, digits) for each in value]
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, float):
        return value
    value = value if digits is None else float(f"{value:.{digits}g}")
    return value if np.isfinite(value) else None
