"""Do trees choose and predict better than SEER's fits, linear models and the libraries' own pickers?

`surrogate.compare` evaluates every model on held-out shapes or GPUs, as ``seer compare`` does. ``--only`` runs some of
the comparisons; the rows of the others stay as they are in the committed tables.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.experiment import HOME, Effort, ExperimentResult, program
from experiments.sources import FORWARD, Sources, own_settings
from surrogate import compare
from surrogate.dataset.problems import shape_names
from surrogate.evaluation.compare import Compared
from surrogate.evaluation.scorecard import FIRST_TEN, ORACLE, is_heuristic
from surrogate.features.families import CONV
from surrogate.report.charts import dots
from surrogate.report.figures import MIN_EXCESS
from surrogate.report.results import ResultRow, Results, choice_rows, references, time_rows

PARTS = own_settings(__file__)
"""Comparison → its label, its sources (the first one is judged), its rows, and its options."""
QUICK = {"seeds": 1, "folds_count": 3}
CHOICES = ("slowdown_macro", "ci_low", "ci_high", "slowdown_geomean", "slowdown_p95", "within_10pct")
PAIRED = {"vs_seer": "seer", "vs_linear": "linear", "vs_picker": "heuristic"}
"""Column of a relative difference of the slowdown in percent → kind of the reference."""
SHARED = ("picker_problems", "slowdown_on_picker_problems", "picker_slowdown")
"""Columns of the problems with a pick of the library's picker: their number, the model's slowdown, the picker's."""
TABLE = "compare"
FURTHER = {"compare_algorithms": "algorithm", "compare_gpus": "gpu"}
"""Further table → what its rows are divided by."""
DETAILED = ("stacked-terms", "boosted-terms", "seer-time-only", "linear-terms")
"""The models in the further tables."""
FEW = 6
"""Number of shapes whose share of the loss is reported."""


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return the slowdowns and errors of every comparison and model, and the errors by algorithm and by GPU."""
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in (TABLE, *FURTHER)}
    for name in effort.only or tuple(PARTS):
        comparison = compared(name, sources, effort)
        label = PARTS[name]["judged"]
        found[TABLE].append(verdicts(comparison.results, comparison.choices).assign(judged=label))
        for title, column in FURTHER.items():
            found[title].append(errors_by(column, comparison.results).assign(judged=label))
    tables = {name: with_stored(pd.concat(parts), name, effort.only) for name, parts in found.items()}
    table = tables.pop(TABLE)
    excess = {name: (100 * (table[name] - 1)).clip(lower=100 * MIN_EXCESS) for name in CHOICES[:3]}
    label = "slowdown over the fastest algorithm, %"
    figure = dots(table.assign(**excess), "model", "judged", CHOICES[0], label, arms=CHOICES[1:3], log=True)
    return ExperimentResult(table, figure, further=tables)


def compared(name: str, sources: Sources, effort: Effort) -> Compared:
    """Return the result of `surrogate.compare` for one of `PARTS`."""
    part = PARTS[name]
    data, *more = (sources.dataset(source, part.get("where", FORWARD)) for source in part["sources"])
    options = part.get("options", {}) | (QUICK if effort.quick else {})
    options["models"] = list(effort.by_name(*options.get("models", ())))
    return compare(effort.sample(data), more, progress=lambda done, total, text: effort.tick(text), **options)


def verdicts(results: Results, choices: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model with a pick: its figures on ungrouped problems, best model first.

    The coverage is that of the 90 % intervals of the reported model. ``choices`` are the picks of `compare`.
    """
    own_names = references(results)
    errors, grouped = ({row["model"]: row for row in time_rows(results, key)} for key in ("ungrouped", "grouped"))
    covered = {row["model"]: row for row in results["coverage"] if row["gpu"] == row["dtype"] == "all"}
    rows = [row for row in choice_rows(results, "ungrouped") if row["model"] not in (ORACLE, FIRST_TEN)]
    picker = next((row for row in rows if is_heuristic(row["model"])), {"n": 0})
    records = []
    for row in rows:
        model = str(row["model"])
        record = {"judged": "", "model": model, "problems": row["n"], "shapes": row["shapes"]}
        record |= {name: row[name] for name in CHOICES}
        for column, kind in PAIRED.items():
            ends = (row.get(f"paired_vs_{kind}") or [np.nan] * 3) if own_names.get(kind) != model else [np.nan] * 3
            record |= zip((f"{column}_low", column, f"{column}_high"), 100 * np.array(ends), strict=True)
        record |= zip(SHARED, shared(row, picker), strict=True)
        for column, of_model, key in (
            ("median_error_pct", errors, "median_ape"),
            ("p90_error_pct", errors, "p90_ape"),
            ("grouped_median_error_pct", grouped, "median_ape"),
            ("coverage_pct", covered, "coverage"),
            ("coverage_low_pct", covered, "coverage_low"),
            ("coverage_high_pct", covered, "coverage_high"),
        ):
            record[column] = 100 * of_model[model][key] if model in of_model else np.nan
        records.append(record | spread(choices[(choices["model"] == model) & (choices["stratum"] != "grouped")]))
    return pd.DataFrame(records)


def shared(row: ResultRow, picker: ResultRow) -> tuple[float, float, float]:
    """Return the values of `SHARED`; NaN if the model does not have a pick for each problem of the picker."""
    if not picker["n"] or row["paired_problems"] != picker["n"]:
        return np.nan, np.nan, np.nan
    slowdown = picker["slowdown_macro"]
    return picker["n"], slowdown * (1 + row["paired_vs_heuristic"][1]), slowdown


def spread(picks: pd.DataFrame) -> dict[str, float]:
    """Return the range of single seeds' slowdowns, and the worst `FEW` shapes' share of the loss in percent."""
    picks = picks.assign(loss=np.log(picks["slowdown"]), shape=shape_names(picks, CONV))
    seeds = np.exp(picks.groupby(["seed", "shape"])["loss"].mean().groupby("seed").mean())
    shapes = picks.groupby("shape")["loss"].mean()
    share = shapes.nlargest(FEW).sum() / shapes.sum() if shapes.sum() else 0.0
    return {"seed_min": seeds.min(), "seed_max": seeds.max(), "worst_six_shapes_pct": 100 * share}


def errors_by(column: str, results: Results) -> pd.DataFrame:
    """Return the errors of the `DETAILED` models' times for each algorithm or GPU."""
    names = sorted({row[column] for row in results["time_rows"]} - {"all"})
    records = [
        {"judged": "", column: name, "model": row["model"], "rows": row["n"], "shapes": row["shapes"]}
        | {"median_error_pct": 100 * row["median_ape"], "p90_error_pct": 100 * row["p90_ape"]}
        for name in names
        for row in time_rows(results, **{column: name})
        if row["model"] in DETAILED
    ]
    return pd.DataFrame(records)


def with_stored(table: pd.DataFrame, name: str, only: Sequence[str]) -> pd.DataFrame:
    """Return the table with the committed rows of comparisons that were not run, in the order of `PARTS`."""
    stored = HOME / "tables" / f"{name}.csv"
    if only and stored.exists():
        others = pd.read_csv(stored)
        table = pd.concat([table, others[~others["judged"].isin(table["judged"])]])
    order = {part["judged"]: index for index, part in enumerate(PARTS.values())}
    return table.sort_values("judged", key=lambda labels: labels.map(order), kind="stable", ignore_index=True)


EXPERIMENT = program(run, *{name: name for part in PARTS.values() for name in part["sources"]}, choices=tuple(PARTS))
