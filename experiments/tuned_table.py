"""Compare stored and tuned settings: ``python -m experiments.tuned_table STORED TUNED`` prints Markdown.

STORED and TUNED are folders that ``seer compare`` wrote with the same folds, the second one with ``--tune``. The
difference is paired: both models' choices on the same problems, with a bootstrap over shapes.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.problems import key_columns, shape_names
from surrogate.evaluation.judge import ConfidenceInterval, shape_interval
from surrogate.features.families import CONV
from surrogate.report.results import Results, choice_rows, read_results, time_rows
from surrogate.report.tables import interval_change, percent, ratio

HEADS = ["model", "slowdown, stored", "slowdown, tuned", "change of the slowdown, % [95 %]"]
HEADS += ["median / p90 error, stored", "median / p90 error, tuned", "s per search"]


def markdown(stored: Path, tuned: Path) -> str:
    """Return a row for every model of both folders that was judged."""
    results = [read_results(folder) for folder in (stored, tuned)]
    picks = [pd.read_parquet(folder / "choices.parquet") for folder in (stored, tuned)]
    rows = [{row["model"]: row for row in choice_rows(each, "ungrouped") if row["n"]} for each in results]
    errors = [{row["model"]: row for row in time_rows(each, "ungrouped") if row["n"]} for each in results]
    searches = {row["model"]: row["tune_s"] for row in results[1]["costs"]}
    lines = [HEADS, ["---"] * len(HEADS)]
    for model in [name for name in rows[0] if name in rows[1] and name in searches]:
        slowdowns = [ratio(each[model]["slowdown_macro"]) for each in rows]
        low, middle, high = np.expm1(paired(*(frame[frame["model"] == model] for frame in picks)))
        medians = [_error(each.get(model)) for each in errors]
        lines.append([model, *slowdowns, interval_change((low, middle, high)), *medians, f"{searches[model]:.0f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def paired(stored: pd.DataFrame, tuned: pd.DataFrame) -> ConfidenceInterval:
    """Return the log difference of the slowdowns of one model on ungrouped problems, macro over shapes."""
    key = ["seed", *key_columns(stored)]
    both = stored[stored["stratum"] != "grouped"].merge(tuned, on=key)
    difference = np.log(both["slowdown_y"].to_numpy() / both["slowdown_x"].to_numpy())
    return shape_interval(difference, shape_names(both, CONV), macro=True)


def settings(results: Results) -> str:
    """Return a line for every model with the settings of its first fit."""
    return "\n".join(f"- `{model}`: {_listed(each)}" for model, each in results["settings"].items() if each)


def _listed(each: dict[str, Any]) -> str:
    texts = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in each.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def _error(row: dict[str, Any] | None) -> str:
    return f"{percent(row['median_ape'])} / {percent(row['p90_ape'])} %" if row else "–"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print stored and tuned settings side by side.")
    parser.add_argument("stored", type=Path, help="folder of `seer compare`")
    parser.add_argument("tuned", type=Path, help="folder of `seer compare --tune light`")
    arguments = parser.parse_args()
    print(markdown(arguments.stored, arguments.tuned), settings(read_results(arguments.tuned)), sep="\n\n")
