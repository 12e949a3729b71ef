"""Which analytical terms carry the result?

Which terms carry the result: `boosted-terms` less one group of columns at a time, on the same held-out rows.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from experiments import verdicts
from experiments.drawing import dots
from experiments.experiment import Effort, Outcome, columns_first, program, seeded
from experiments.held_out import Predictions, Round, candidate_rows, predict_rounds, rounds_by
from experiments.sources import LABELS, Sources
from surrogate.dataset.rows import Rows
from surrogate.evaluation.judge import resample_weights, shape_interval
from surrogate.evaluation.scorecard import DRAWS, is_heuristic
from surrogate.features.families import Family
from surrogate.features.families.conv import TILE_NAMES
from surrogate.features.machine import MACHINE_NAMES
from surrogate.models import TimeModel, model_frame
from surrogate.models.base import terms
from surrogate.models.boosted import BoostedDims, BoostedTerms

MI210_SHAPES = 2000
MI210_FOLDS = 5

WHOLE = "boosted-terms"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "waves and tiles": (
        "log2_blocks", "best_efficiency", "log2_occupied_time_us",
        *(f"{name}_{tile}" for tile in TILE_NAMES for name in ("log2_waves", "last_wave_share", "tile_utilisation")),
    ),
    "arithmetic per algorithm": ("log2_arithmetic_ratio", "log2_algorithm_roofline_ratio", "log2_kernels"),
    "memory and workspace": (
        "log2_tensor_bytes", "log2_intensity", "log2_dram_ratio", "log2_operand_bytes", "log2_workspace_bytes",
    ),
    "cache fit": ("log2_footprint_per_l2", "log2_workspace_per_l2"),
    "machine": MACHINE_NAMES,
    "quantisation": ("gemm_n_remainder_32", "gemm_n_remainder_128", "gemm_k_remainder_8"),
    "sizes as a product of matrices": (
        "log2_channels_in", "log2_channels_out", "log2_out_h", "log2_out_w", "log2_gemm_m", "log2_gemm_n",
        "log2_gemm_k", "log2_flops", "log2_flops_per_sm", "log2_roofline_us", "is_depthwise",
    ),
}  # fmt: skip
"""Group → the columns that it takes away."""


class _OnProblemRoofline(BoostedTerms):
    """All terms; the base is the problem's roofline alone, the same for every algorithm."""

    def base_us(self, rows: Rows) -> np.ndarray:
        return rows.roofline_us


class _OnMicrosecond(BoostedTerms):
    """All terms; no base: trees on the log of the time itself."""

    def base_us(self, rows: Rows) -> np.ndarray:
        return np.ones(len(rows))


def variants(seed: int) -> dict[str, TimeModel]:
    """Label → model, the whole one first."""
    classes: dict[str, type[TimeModel]] = {
        WHOLE: BoostedTerms,
        **{f"no {group}": without(names) for group, names in GROUPS.items()},
        "no roofline of the algorithm in the base": _OnProblemRoofline,
        "no roofline in the base": _OnMicrosecond,
        "no terms (boosted-dims)": BoostedDims,
    }
    return {label: seeded(cls, seed) for label, cls in classes.items()}


def without(names: tuple[str, ...]) -> type[BoostedTerms]:
    """`boosted-terms` that does not see these columns; its base stays."""

    class BoostedWithout(BoostedTerms):
        def columns(self, family: Family) -> tuple[str, ...]:
            return tuple(name for name in terms(family) if name not in names)

    return BoostedWithout


def run(sources: Sources, effort: Effort) -> Outcome:
    """By shape on cuDNN (the partial table also trains), a sample of MI210's shapes, and cuDNN by GPU."""
    parts = []
    for label, rows, rounds, candidates in _tables(sources, effort):
        predictions = predict_rounds(rows, candidates, rounds, variants(effort.seed), effort.tick)
        parts.append(variant_verdicts(predictions).assign(data=label))
    table = columns_first(pd.concat(parts, ignore_index=True), "data", "variant")
    return Outcome(table, _figure(table), answer(table))


def _tables(sources: Sources, effort: Effort) -> Iterator[tuple[str, Rows, list[Round], str]]:
    cudnn = effort.sample(sources.dataset("cudnn"))
    rows = candidate_rows([cudnn, sources.dataset("partial")])
    for by, label in (("shape", LABELS["cudnn"]), ("gpu", f"{LABELS['cudnn']}, GPU unseen")):
        rounds = rounds_by(by, rows, effort.folds, effort.seed, main_rows=len(model_frame(cudnn)))
        yield label, rows, rounds[: effort.folds], "all"
    data = effort.sample(sources.dataset("mi210"), MI210_SHAPES)
    rows = candidate_rows([data])
    rounds = rounds_by("shape", rows, min(effort.folds, MI210_FOLDS), effort.seed)
    yield LABELS["mi210"], rows, rounds, data.candidates


def variant_verdicts(predictions: Predictions) -> pd.DataFrame:
    """Per variant, over ungrouped problems: slowdown and time errors with intervals, and both less the first's.

    ``slowdown_change_pct`` is 100 times the mean log slowdown less the first variant's (macro over shapes),
    ``error_change_pct`` the median error less the first's in percentage points; their intervals are paired: both
    variants are seen on the same draws of shapes.
    """
    rows = predictions.rows
    part = rows.family.in_grouping(rows.stratum, rows.family.primary)
    return _times(predictions, part).merge(_choices(predictions, part), on="variant", how="left")


def _choices(predictions: Predictions, part: np.ndarray) -> pd.DataFrame:
    judged_choices = verdicts.judged_picks(predictions, part)
    if judged_choices is None:
        return pd.DataFrame({"variant": pd.Series(dtype=str)})
    judged, picks, _ = judged_choices
    names, shape = np.unique(judged.shape, return_inverse=True)
    draw = resample_weights(len(names), DRAWS, seed=len(names))
    picked = {label: choice for label, (choice,) in picks.items() if not is_heuristic(label)}
    logs = {label: np.log(choice.slowdown) for label, choice in picked.items()}
    first = next(iter(logs.values()))
    records = []
    for label, log in logs.items():
        macro = shape_interval(log, shape, draw, macro=True)
        change = shape_interval(log - first, shape, draw, macro=True)
        records.append(
            {
                "variant": label,
                "problems": len(log),
                "problem_shapes": len(names),
                "slowdown_macro": np.exp(macro.mid),
                "ci_low": np.exp(macro.low),
                "ci_high": np.exp(macro.high),
                "slowdown_pooled": np.exp(log.mean()),
                "slowdown_p95": float(np.quantile(np.exp(log), 0.95)),
                "outside_pct": 100 * float(picked[label].infeasible.mean()),
                "slowdown_change_pct": 100 * change.mid,
                "slowdown_change_low": 100 * change.low,
                "slowdown_change_high": 100 * change.high,
            }
        )
    return pd.DataFrame(records)


def _times(predictions: Predictions, part: np.ndarray) -> pd.DataFrame:
    rows, counted = predictions.rows, verdicts.counted_rows(predictions, part)
    measured, shape = rows.time_us[counted], rows.shape[counted]
    first = next(iter(predictions.time_us.values()))[counted]
    records = []
    for label, time in predictions.time_us.items():
        known = np.flatnonzero(np.isfinite(time[counted]))
        columns = [values[known] for values in (time[counted], first, measured, shape)]
        change, low, high = median_change(*columns)
        records.append(
            {
                "variant": label,
                **verdicts.error_record(columns[0], columns[2], columns[3]),
                "error_change_pct": 100 * change,
                "error_change_low": 100 * low,
                "error_change_high": 100 * high,
            }
        )
    return pd.DataFrame(records)


def median_change(
    predicted: np.ndarray, other: np.ndarray, measured: np.ndarray, shape: np.ndarray
) -> tuple[float, float, float]:
    """Median error of ``predicted`` less that of ``other``, with its 95 % interval over shapes; arrays (rows,)."""
    errors = [np.abs(time / measured - 1) for time in (predicted, other)]
    draws = [verdicts.median_draws(error, shape) for error in errors]
    low, high = np.quantile(draws[0] - draws[1], [0.025, 0.975])
    return float(np.median(errors[0]) - np.median(errors[1])), float(low), float(high)


def answer(table: pd.DataFrame) -> str:
    """Per table: the whole model, and the variants that change error or slowdown beyond chance, largest first."""
    sentences = []
    for label, part in table.groupby("data", sort=False):
        part = part.set_index("variant")
        whole = part.loc[WHOLE]
        sentence = f"{label}: {WHOLE} {verdicts.percent(whole['median_error_pct'])}"
        if np.isfinite(whole["slowdown_macro"]):
            within = verdicts.interval(whole["ci_low"], whole["ci_high"])
            sentence += f", picks at {verdicts.ratio(whole['slowdown_macro'])} {within}"
        for kind in ("error", "slowdown"):
            sentence += f"; {kind} changes beyond chance with {verdicts.listing(_significant(part, kind))}"
        sentences.append(sentence)
    return ". ".join(sentences) + "."


def _significant(part: pd.DataFrame, kind: str) -> list[str]:
    """The variants whose paired interval excludes zero, the largest change first."""
    low, high = part[f"{kind}_change_low"], part[f"{kind}_change_high"]
    beyond = part[(low > 0) | (high < 0)]
    order = beyond[f"{kind}_change_pct"].abs().sort_values(ascending=False).index
    return [f"{label} ({beyond.loc[label, f'{kind}_change_pct']:+.1f})" for label in order]


def _figure(table: pd.DataFrame) -> str | None:
    shown = table[table["variant"] != WHOLE]
    xlabel = f"median error less that of {WHOLE}, percentage points"
    arms = ("error_change_low", "error_change_high")
    return dots(shown, "variant", "data", "error_change_pct", xlabel, arms=arms)


EXPERIMENT = program(run, "cudnn", "partial", "mi210")
