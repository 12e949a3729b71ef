"""What changed from cuDNN 7.5 to 7.6.4 on V100, and do older versions foretell newer ones?

The versions 7.5 to 7.6.4 of cuDNN on V100 are compared, and the next version is predicted from older ones.
"""

from itertools import pairwise

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import candidate_rows, predict_rounds
from experiments.sources import FORWARD, Sources
from experiments.verdicts import percent, ratio, reported_models, times_and_picks
from surrogate.features.algorithms import version_key
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.report.charts import dots

GPU = "Tesla V100-SXM2-16GB"
MODELS_SHOWN = ("seer-time-only", "linear-terms", "boosted-terms")
OLDER_TIME = "the older version's own measurement"
QUANTILES = {"p5": 0.05, "median": 0.5, "p95": 0.95}
CHANGED = 0.05
"""Minimum relative difference of a changed time: ten times the median spread of repeats."""


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return each version's change since the previous one, and predictions by models fitted on older versions only."""
    data = sources.dataset("cudnn", {**FORWARD, "gpu": GPU})
    rows = candidate_rows([data])
    version = rows.frame["library_version"].to_numpy()
    ordered = sorted(set(version), key=version_key)
    if len(ordered) < 2:
        raise InputError(
            f"{data.name}: the table has one library version on {GPU} ({ordered[0]}); give a table with two"
        )
    parts = []
    for older, newer in pairwise(ordered):
        position = ordered.index(newer)
        train = np.flatnonzero(np.isin(version, ordered[:position]))
        test = np.flatnonzero(version == newer)
        models = effort.timed(*MODELS_SHOWN)
        predictions = predict_rounds(rows, data.candidates, [(train, test)], models, effort.tick).take(test)
        both = times_and_picks(predictions, "n", stratum="all")
        change = changes(rows.frame[version == older], rows.frame[version == newer])
        overall = change[change["algorithm"] == "all"].iloc[0]
        row = {"model": OLDER_TIME, "n": overall["pairs"], "median_error_pct": overall["change_pct"]}
        both = pd.concat([both, pd.DataFrame([row])]).assign(kind="prediction", algorithm="all")
        parts += [part.assign(older=older, newer=newer) for part in (both, change.assign(kind="change"))]
    table = columns_first(pd.concat(parts, ignore_index=True), "kind", "older", "newer", "algorithm", "model")
    steps = table[(table["kind"] == "change") & (table["algorithm"] != "all") & (table["pairs"] > 0)]
    steps = steps.assign(step=steps["older"] + " → " + steps["newer"])
    largest = steps.groupby("step", sort=False)["changed_pct"].max().sort_values(ascending=False).index[:3]
    xlabel = "time under the newer version over the older's (median, 5–95 %)"
    drawn, arms = steps[steps["step"].isin(list(largest))], ("ratio_p5", "ratio_p95")
    figure = dots(drawn, "algorithm", "step", "ratio_median", xlabel, arms=arms, log=True)
    return ExperimentResult(table, figure, answer(table))


def changes(older: pd.DataFrame, newer: pd.DataFrame) -> pd.DataFrame:
    """Return per algorithm, and over all, the ratio of new to old times, and the numbers of gained and lost rows.

    Only rows measured under both versions have a ratio. ``best_changed_pct`` is the share of problems whose fastest
    algorithm changed, among the algorithms measured under both.
    """
    key = [*SIZE_COLUMNS, "math", "algorithm"]
    columns = [*key, "status", "time_us"]
    both = older[columns].merge(newer[columns], on=key, suffixes=("_old", "_new"))
    was, now = both["status_old"] == "ok", both["status_new"] == "ok"
    moved = _best_changed(both, [*SIZE_COLUMNS, "math"])
    records = []
    for name in ["all", *sorted(both["algorithm"].unique())]:
        of_algorithm = (both["algorithm"] == name) | (name == "all")
        pairs = both[of_algorithm & was & now]
        times = (pairs["time_us_new"] / pairs["time_us_old"]).astype(float)
        change = (times - 1).abs()
        record = {"algorithm": name, "pairs": len(pairs)}
        record |= {f"ratio_{end}": times.quantile(share) for end, share in QUANTILES.items()}
        record |= {"change_pct": 100 * change.median(), "changed_pct": 100 * (change > CHANGED).mean()}
        record["newly_supported"] = int((of_algorithm & ~was & now).sum())
        record["no_longer_supported"] = int((of_algorithm & was & ~now).sum())
        records.append({**record, "best_changed_pct": moved if name == "all" else np.nan})
    return pd.DataFrame(records)


def _best_changed(both: pd.DataFrame, problem: list[str]) -> float:
    """Return the percentage of problems whose fastest algorithm differs. Ties go to the first in the alphabet."""
    ordered = both.sort_values("algorithm", kind="stable")
    best = {}
    for side in ("old", "new"):
        ok = ordered[ordered[f"status_{side}"] == "ok"].sort_values(f"time_us_{side}", kind="stable")
        best[side] = ok.drop_duplicates(problem).set_index(problem)["algorithm"]
    pair = pd.concat(best, axis=1, join="inner")
    return float(100 * (pair["old"] != pair["new"]).mean()) if len(pair) else float("nan")


def answer(table: pd.DataFrame) -> str:
    """Return the step with the most changes, and the errors of the models and of the older measurement for the newest
    version."""
    steps, predictions = (table[table["kind"] == kind] for kind in ("change", "prediction"))
    change = steps[steps["algorithm"] == "all"].reset_index(drop=True)
    largest = change.iloc[change["changed_pct"].argmax()]
    each = steps[(steps["algorithm"] != "all") & (steps["newer"] == largest["newer"])]
    algorithm = each.iloc[each["changed_pct"].argmax()]
    last = predictions[predictions["newer"] == change["newer"].iloc[-1]].set_index("model")
    learned = last.drop(index=OLDER_TIME).sort_values("median_error_pct")
    foretold = [
        f"{name} {percent(learned.loc[name, 'median_error_pct'])} and {ratio(learned.loc[name, 'slowdown_macro'])}"
        for name in reported_models(learned.index[0], learned.index)
    ]
    return (
        f"The largest step is {largest['older']} → {largest['newer']}: {percent(largest['changed_pct'])} of times moved"
        f" by over {100 * CHANGED:.0f} % (most of all {algorithm['algorithm']}, {percent(algorithm['changed_pct'])},"
        f" median ratio {ratio(algorithm['ratio_median'])}) and {percent(largest['best_changed_pct'])} of problems have"
        f" another best algorithm. {change['newer'].iloc[-1]} foretold from older versions, median error and slowdown:"
        f" {', '.join(foretold)}; the last version's own times are"
        f" {percent(last.loc[OLDER_TIME, 'median_error_pct'])} off where they exist."
    )


EXPERIMENT = program(run, "cudnn")
