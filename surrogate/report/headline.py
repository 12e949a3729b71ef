"""The question a comparison answers, and the answer in a sentence or two."""

import math
from collections.abc import Iterable
from typing import Any

from surrogate.report.cells import log_change, percent
from surrogate.report.results import Results, Row
from surrogate.report.rows import HEURISTIC, best_model, choice_rows, count, label, number, time_rows

QUESTION = "How much slower than the fastest algorithm is the one a model picks?"


def headline(results: Results) -> str:
    """The answer for the best model, in plain words; says so where nothing was judged."""
    model = best_model(results)
    if model is None:
        return "No model could be judged on this data; the reasons are listed."
    by_model = {row["model"]: row for row in choice_rows(results)}
    parts = [_choice(by_model.get(model, {}), by_model.get(HEURISTIC, {})), _paired(by_model.get(model, {}))]
    errors = next((row for row in time_rows(results) if row["model"] == model), {})
    parts.append(_time(model, errors, said=bool(parts[0])))
    return " ".join(part for part in parts if part)


def provenance(results: Results) -> list[tuple[str, str]]:
    """Name and value of everything known about the data and the folds, unknown ones included."""
    dataset = results.get("dataset", {})
    known = {key: key for key in ("rows", "problems", "shapes", "gpus", "candidates")}
    known |= {"gpus": "GPUs", "where": "only rows where", "also_train": "also trained on"}
    pairs = [("dataset", dataset.get("name"))]
    pairs += [(title, dataset.get(key)) for key, title in known.items()]
    pairs += [(key, value) for key, value in dataset.items() if key not in known and key != "name"]
    pairs += [("folds", _folds(results.get("folds"))), ("seeds", _seeds(results.get("seeds")))]
    fixed = {"schema", "dataset", "seeds", "folds", "time_rows", "choice_rows"}
    pairs += [
        (key, value) for key, value in results.items() if key not in fixed and not isinstance(value, dict)
    ]
    return [(str(name), plain(value)) for name, value in pairs if value not in (None, [], {}, "")]


def settings(results: Results) -> list[tuple[str, str]]:
    """Model and its hyperparameters, for models that have any."""
    found = results.get("settings")
    return (
        [(model, plain(value)) for model, value in found.items() if value] if isinstance(found, dict) else []
    )


def plain(value: Any) -> str:
    """A value of the results as text: thousands separated, lists joined."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    return (
        ", ".join(map(plain, value))
        if isinstance(value, Iterable) and not isinstance(value, str)
        else str(value)
    )


def _folds(folds: Any) -> Any:
    """Folds as a count where they are listed one by one."""
    return len(folds) if isinstance(folds, list) and len(folds) > 12 else folds


def _seeds(seeds: Any) -> Any:
    """A count: a list of one seed, 0, would read as none."""
    return len(seeds) if isinstance(seeds, list) else seeds


def _choice(row: Row, heuristic: Row) -> str:
    slowdown, other = number(row, "slowdown_macro"), number(heuristic, "slowdown_macro")
    if slowdown is None:
        return ""
    low, high = number(row, "ci_low"), number(row, "ci_high")
    span = (
        "" if low is None or high is None else f", 95 % interval {percent(low - 1)} to {percent(high - 1)} %"
    )
    shapes, stratum = count(row, "shapes"), label(row, "stratum")
    over = f"{shapes:,} shapes, " if shapes else ""
    text = f"The picks of {row['model']} are {percent(slowdown - 1)} % slower than the fastest algorithm"
    text += f" ({over}{stratum} problems{span})"
    if other is None:
        return f"{text}."
    fewer = count(heuristic) < count(row)
    where = f", on the {count(heuristic):,} of {count(row):,} problems that have one," if fewer else ""
    return f"{text}; those of cuDNN's heuristic{where} are {percent(other - 1)} % slower."


def _paired(row: Row) -> str:
    low, mid, high = row.get("paired_vs_heuristic") or (None, None, None)
    if low is None or mid is None or high is None or any(map(math.isnan, (low, mid, high))):
        return ""
    if low <= 0 <= high:
        span = f"{log_change(mid)} % time, 95 % interval {log_change(low)} to {log_change(high)} %"
        return f"On the same problems it and cuDNN's heuristic cannot be told apart ({span})."
    near, middle, far = (percent(abs(math.expm1(end))) for end in sorted((low, mid, high), key=abs))
    word = "less" if mid < 0 else "more"
    text = f"On the same problems its picks take {middle} % {word} time than the heuristic's"
    return f"{text} (95 % interval {near} to {far} %)."


def _time(model: str, row: Row, said: bool) -> str:
    error = number(row, "median_ape")
    if error is None:
        return ""
    whose = "Its predicted times" if said else f"The times {model} predicts"
    return f"{whose} are off by {percent(error)} % in the median over {count(row):,} rows."
