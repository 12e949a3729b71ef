"""Read ``results.json``, and select and rank the rows of a comparison."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from surrogate.evaluation.scorecard import FIRST_TEN, ORACLE, is_heuristic
from surrogate.features import InputError, read_bounded, read_toml
from surrogate.features.errors import parsed_json
from surrogate.features.families import DEFAULT_FAMILY
from surrogate.formats.foreign_file import readable
from surrogate.report.tables import to_csv

SCHEMA = 2
"""Newest version of `results.json` that is read. 1: paired differences are log ratios; 2: they are relative."""
MAX_BYTES = 256 << 20
STRATA = ("ungrouped", "all", "1x1s1", "1x1s2", "3x3s1", "grouped", "other")
MAX_LEARNED = 4
SLICE = ("split", "family", "stratum", "population", "gpu", "direction", "dtype", "math", "algorithm")
"""Columns that identify a slice, in the order of the CSV files."""

ResultRow = dict[str, Any]
Results = dict[str, Any]
TEXTS: dict[str, Any] = read_toml(__file__, "report.toml")
"""The fixed texts of a report, and the columns of its tables."""

_SPANS = {"paired_vs_heuristic": "paired", "paired_pooled_vs_heuristic": "paired_pooled"}
"""Interval → prefix of its columns in CSV files, if it differs from the interval's name."""
_REMEDY = "write it again with seer compare"
DAMAGED = f"it is damaged, {_REMEDY}"


def read_results(directory: Path) -> Results:
    """Read ``directory/results.json``. Raises `InputError` if it is missing, damaged or of a newer schema."""
    path = Path(directory) / "results.json"
    try:
        with readable(path, DAMAGED):
            results = parsed_json(read_bounded(path, MAX_BYTES))
            schema = int(results["schema"])
            if schema < SCHEMA:
                results["choice_rows"] = [_relative(row) for row in results["choice_rows"]]
    except FileNotFoundError:
        raise InputError(f"no results.json in {directory}; `seer compare -o` writes one") from None
    except OSError as error:
        raise InputError(f"{path} is not readable ({type(error).__name__}); {_REMEDY}") from None
    if schema > SCHEMA:
        raise InputError(f"{path} has schema {schema}, this version reads up to {SCHEMA}; update seer-surrogate")
    return results


def _relative(row: ResultRow) -> ResultRow:
    """Return a choice row of schema 1 with relative differences instead of log ratios."""
    logs = {key: value for key, value in row.items() if key.startswith("paired") and isinstance(value, list)}
    return row | {key: [math.expm1(min(end, 700.0)) for end in value] for key, value in logs.items()}


def flat(row: ResultRow) -> ResultRow:
    """Return ``row`` with every interval as columns, as in paired_low, paired_mid and paired_high."""
    values: ResultRow = {}
    for key, value in row.items():
        ends = ("low", "high") if key.endswith("_ci") else ("low", "mid", "high")
        is_interval = key.endswith("_ci") or key.startswith(("paired_vs_", "paired_pooled_vs_", "median_vs_"))
        names = [f"{_SPANS.get(key, key)}_{end}" for end in ends] if is_interval else [key]
        values |= zip(names, (value or [None] * len(names)) if is_interval else [value], strict=True)
    return values


def csv_text(rows: Sequence[ResultRow]) -> str:
    """Return evaluated rows as CSV with the columns of the slice first. The ends of an interval are columns."""
    records = [flat(row) for row in rows]
    keys = {key for record in records for key in record}
    return to_csv(records, [key for key in ("model", *SLICE, "n", "shapes") if key in keys or not rows])


def number(row: ResultRow, key: str) -> float | None:
    """Return ``row[key]`` as a float; None if it is missing, null or not finite."""
    value = row.get(key)
    return None if value is None or not math.isfinite(value) else float(value)


def count(row: ResultRow, key: str = "n") -> int:
    """Return ``row[key]`` as an integer; 0 if it is missing."""
    return int(number(row, key) or 0)


def interval(row: ResultRow, key: str) -> tuple[float, ...] | None:
    """Return the ends of ``row[key]``, and the middle if it has one; None if one of them is unknown."""
    ends = [number({key: end}, key) for end in row.get(key) or (None,)]
    numbers = tuple(end for end in ends if end is not None)
    return numbers if len(numbers) == len(ends) else None


def label(row: ResultRow, key: str) -> str:
    """Return the slice of a row along ``key``; ``all`` for a row without the key."""
    return row.get(key) or "all"


def values(rows: Iterable[ResultRow], key: str, order: Sequence[str] = ()) -> list[str]:
    """Return the values of ``key`` among evaluated rows, without ``all``: those in ``order`` first, then by name."""
    found = {label(row, key) for row in rows if count(row)} - {"all"}
    return [v for v in order if v in found] + sorted(found.difference(order), key=str.casefold)


def by_family(results: Results) -> dict[str, Results]:
    """Return family → the results of its rows. If one family was evaluated, its name is empty.

    Every figure is of one family, because families share neither shapes nor strata.
    """
    families = values(results["choice_rows"] + results["time_rows"], "family", (DEFAULT_FAMILY,))
    if len(families) < 2:
        return {"": results}
    kinds = [kind for kind in ("choice_rows", "time_rows", *TEXTS["sections"]) if kind in results]
    return {
        family: results | {kind: [row for row in results[kind] if label(row, "family") == family] for kind in kinds}
        for family in families
    }


def family_entry(results: Results, key: str) -> Any:
    """Return the entry of ``results[key]`` for the evaluated family."""
    families = values(results["choice_rows"] + results["time_rows"], "family", (DEFAULT_FAMILY,))
    return next(((results.get(key) or {}).get(family) for family in families), None)


def choice_rows(results: Results, stratum: str = "", gpu: str = "all") -> list[ResultRow]:
    """Return the evaluated choice rows of one slice, best first.

    The default slice is the ungrouped problems, or all problems if no ungrouped problem is evaluated.
    """
    strata = (stratum,) if stratum else ("ungrouped", "all")
    return _ranked(results["choice_rows"], "slowdown_macro", strata, gpu=gpu)


def time_rows(
    results: Results, stratum: str = "all", gpu: str = "all", population: str = "all", algorithm: str = "all"
) -> list[ResultRow]:
    """Return the evaluated time rows of one slice, one per model, smallest median error first."""
    labels = {"gpu": gpu, "population": population, "algorithm": algorithm}
    return _ranked(results["time_rows"], "median_ape", (stratum,), **labels)


def primary_time_rows(results: Results) -> list[ResultRow]:
    """Return the time rows of the stratum in which models are compared with references."""
    return time_rows(results, "ungrouped") or time_rows(results)


def is_reference(model: str) -> bool:
    """Return True for a model that predicts no times, such as a library's own picker. Tables list it last."""
    return model in (ORACLE, FIRST_TEN, "always-best-single") or is_heuristic(model)


def _ranked(rows: Iterable[ResultRow], key: str, strata: Sequence[str], **labels: str) -> list[ResultRow]:
    """Return the evaluated rows of a slice in the first of ``strata`` with rows: references last, then by ``key``."""
    rows = [row for row in rows if count(row) and all(label(row, name) == value for name, value in labels.items())]
    found_strata = {label(row, "stratum") for row in rows}
    stratum = next((name for name in strata if name in found_strata), strata[-1])

    def rank(row: ResultRow) -> tuple[bool, float, str]:
        value = number(row, key)
        return is_reference(row["model"]), math.inf if value is None else value, row["model"]

    return sorted((row for row in rows if label(row, "stratum") == stratum), key=rank)


def reported_model(results: Results) -> str | None:
    """Return the model of the report's answer: the model fixed in advance, or the best learned model, or None."""
    slices = (choice_rows(results), "slowdown_macro"), (time_rows(results), "median_ape")
    evaluated_models = [row["model"] for rows, key in slices for row in rows if number(row, key) is not None]
    learned = [model for model in evaluated_models if not is_reference(model)]
    fixed = family_entry(results, "reported")
    return fixed if fixed in learned else next(iter(learned), None)


def references(results: Results) -> dict[str, str]:
    """Return the evaluated references by kind; a kind that is not in the results is left out."""
    rows = choice_rows(results) + time_rows(results)
    pickers = (row["model"] for row in rows if is_heuristic(row["model"]))
    kinds = {"heuristic": next(pickers, ""), **(family_entry(results, "references") or {})}
    evaluated_models = {row["model"] for row in rows}
    return {kind: kinds[kind] for kind in TEXTS["heads"] if kinds.get(kind) in evaluated_models}


def drawn_models(results: Results) -> list[str]:
    """Return the models in the figures.

    The reported model, SEER's fits and the best linear model come first, then the best learned models, then the
    references except the oracle.
    """
    ranked = [row["model"] for row in choice_rows(results) + time_rows(results)]
    others = references(results)
    first = [reported_model(results), others.get("seer"), others.get("linear")]
    names = dict.fromkeys([*filter(None, first), *ranked])
    learned = [model for model in names if not is_reference(model)]
    return learned[:MAX_LEARNED] + [model for model in names if is_reference(model) and model != ORACLE]
