"""Which analytical terms carry the result?

`boosted-terms` is fitted without one group of columns at a time, and judged on the same held-out rows.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from experiments import verdicts
from experiments.experiment import Effort, ExperimentResult, columns_first, program, seeded
from experiments.held_out import Predictions, Round, candidate_rows, predict_rounds, rounds_by
from experiments.sources import LABELS, Sources, own_settings
from surrogate.dataset.rows import Rows
from surrogate.evaluation.judge import ConfidenceInterval, shape_interval
from surrogate.evaluation.scorecard import is_heuristic
from surrogate.features.families import Family
from surrogate.models import TimeModel, model_frame
from surrogate.models.base import term_columns
from surrogate.models.boosted import BoostedDims, BoostedTerms
from surrogate.report.charts import dots

MI210_SHAPES = 2000
MI210_FOLDS = 5

FULL = "boosted-terms"
_CONTENT = own_settings(__file__)
CHOICES: Mapping[str, str] = _CONTENT["columns"]
"""Column of `verdicts.choice_verdicts` → column of this table."""
GROUPS: Mapping[str, Sequence[str]] = _CONTENT["groups"]
"""Group → the columns that the variant leaves out."""


class _OnProblemRoofline(BoostedTerms):
    """`boosted-terms` whose base is the problem's roofline, the same for every algorithm."""

    def base_us(self, rows: Rows) -> np.ndarray:
        return rows.roofline_us


class _OnMicrosecond(BoostedTerms):
    """`boosted-terms` without a base: the trees predict the logarithm of the time."""

    def base_us(self, rows: Rows) -> np.ndarray:
        return np.ones(len(rows))


def variants(seed: int) -> dict[str, TimeModel]:
    """Return label → model. The full model is the first."""
    classes: dict[str, type[TimeModel]] = {
        FULL: BoostedTerms,
        **{f"no {group}": without(names) for group, names in GROUPS.items()},
        "no roofline of the algorithm in the base": _OnProblemRoofline,
        "no roofline in the base": _OnMicrosecond,
        "no terms (boosted-dims)": BoostedDims,
    }
    return {label: seeded(cls, seed) for label, cls in classes.items()}


def without(names: Sequence[str]) -> type[BoostedTerms]:
    """Return `boosted-terms` without these columns. The base does not change."""

    class BoostedWithout(BoostedTerms):
        def columns(self, family: Family) -> tuple[str, ...]:
            return tuple(name for name in term_columns(family) if name not in names)

    return BoostedWithout


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge the variants by shape on cuDNN, by shape on a sample of MI210, and by GPU on cuDNN.

    The partial table of cuDNN is used for training, too.
    """
    parts = []
    for label, rows, rounds, candidates in _tables(sources, effort):
        predictions = predict_rounds(rows, candidates, rounds, variants(effort.seed), effort.tick)
        parts.append(variant_verdicts(predictions).assign(data=label))
    table = columns_first(pd.concat(parts, ignore_index=True), "data", "variant")
    xlabel, arms = f"median error less that of {FULL}, percentage points", ("error_change_low", "error_change_high")
    figure = dots(table[table["variant"] != FULL], "variant", "data", "error_change_pct", xlabel, arms=arms)
    return ExperimentResult(table, figure)


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
    """Return slowdown and time errors per variant on ungrouped problems, with intervals and with changes.

    A change is the difference to the first variant. ``slowdown_change_pct`` is 100 times the change of the mean log
    slowdown (macro over shapes). ``error_change_pct`` is the change of the median error in percentage points. The
    intervals of changes are paired: both variants use the same bootstrap draws of shapes.
    """
    rows = predictions.rows
    part = rows.family.in_grouping(rows.stratum, rows.family.primary)
    return _times(predictions, part).merge(_choices(predictions, part), on="variant", how="left")


def _choices(predictions: Predictions, part: np.ndarray) -> pd.DataFrame:
    judged_choices = verdicts.judged_picks(predictions, part)
    if judged_choices is None:
        return pd.DataFrame({"variant": pd.Series(dtype=str)})
    judged, picks, _ = judged_choices
    logs = {label: np.log(choice.slowdown) for label, (choice,) in picks.items() if not is_heuristic(label)}
    first = next(iter(logs.values()))
    changes = [
        {"variant": label, **_change("slowdown", shape_interval(log - first, judged.shape, macro=True))}
        for label, log in logs.items()
    ]
    chosen = verdicts.choice_verdicts(predictions, part).rename(columns=CHOICES)
    chosen["outside_pct"] = 100 * chosen.pop("infeasible_picks") / chosen["problems"]
    return chosen[[*CHOICES.values(), "outside_pct"]].merge(pd.DataFrame(changes), on="variant")


def _change(of: str, change: ConfidenceInterval) -> dict[str, float]:
    """Return the columns of a difference to the full model, in percent or percentage points."""
    ends = {"pct": change.mid, "low": change.low, "high": change.high}
    return {f"{of}_change_{name}": 100 * value for name, value in ends.items()}


def _times(predictions: Predictions, part: np.ndarray) -> pd.DataFrame:
    rows, counted = predictions.rows, verdicts.counted_rows(predictions, part)
    full = next(iter(predictions.time_us.values()))
    changes = []
    for label, time in predictions.time_us.items():
        answered = counted[np.isfinite(time[counted])]
        change = median_change(*(values[answered] for values in (time, full, rows.time_us, rows.shape)))
        changes.append({"variant": label, **_change("error", change)})
    errors = verdicts.time_verdicts(predictions, part).rename(columns={"model": "variant"})
    return errors.merge(pd.DataFrame(changes), on="variant")


def median_change(
    predicted: np.ndarray, reference: np.ndarray, measured: np.ndarray, shape: np.ndarray
) -> ConfidenceInterval:
    """Return the difference of two median errors with its 95 % interval by bootstrap over shapes; arrays are
    (rows,)."""
    errors = [np.abs(time / measured - 1) for time in (predicted, reference)]
    draws = [verdicts.median_draws(error, shape) for error in errors]
    low, high = np.quantile(draws[0] - draws[1], [0.025, 0.975])
    return ConfidenceInterval(float(low), float(np.median(errors[0]) - np.median(errors[1])), float(high))


EXPERIMENT = program(run, "cudnn", "partial", "mi210")
