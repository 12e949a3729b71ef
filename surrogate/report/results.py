"""`results.json`: read, and narrowed to the slices that they show."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surrogate.evaluation.scorecard import ORACLE, is_heuristic
from surrogate.features.errors import InputError, require_regular
from surrogate.features.families import DEFAULT_FAMILY
from surrogate.report.tables import to_csv

SCHEMA = 1
"""Newest version of `results.json` that is read. 1: time_rows and choice_rows, one object per judged slice."""
STRATA = ("ungrouped", "all", "1x1s1", "1x1s2", "3x3s1", "grouped", "other")
POPULATIONS = ("all", "within-2x", "best")
MAX_LEARNED = 4
SLICE = ("split", "family", "stratum", "population", "gpu", "direction", "dtype", "math", "algorithm")
"""The columns that name a slice, in the order of the CSV files."""

Row = dict[str, Any]
Results = dict[str, Any]

_SPANS = {
    "slowdown_geomean_ci": ("slowdown_geomean_ci_low", "slowdown_geomean_ci_high"),
    "paired_vs_heuristic": ("paired_low", "paired_mid", "paired_high"),
    "paired_pooled_vs_heuristic": ("paired_pooled_low", "paired_pooled_mid", "paired_pooled_high"),
}
"""Interval → the names of its ends."""
_AGAIN = "write it again with seer compare"


@contextmanager
def readable(name: str = "results.json") -> Iterator[None]:
    """Inside this, whatever a damaged file makes of the tables and figures is one line: `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{name} is damaged ({type(error).__name__}: {error}); {_AGAIN}") from error


def read_results(directory: Path) -> Results:
    """The content of ``directory/results.json``; `InputError` where it is missing, no such object, or newer."""
    path = Path(directory) / "results.json"
    require_regular(path)
    try:
        with readable(str(path)):
            results = json.loads(path.read_text(encoding="utf-8"))
            schema = int(results["schema"])
    except FileNotFoundError:
        raise InputError(f"no results.json in {directory}; `seer compare -o` writes one") from None
    except OSError as error:
        raise InputError(f"{path} is not readable ({type(error).__name__}); {_AGAIN}") from None
    if schema > SCHEMA:
        raise InputError(f"{path} has schema {schema}, this version reads up to {SCHEMA}; update seer-surrogate")
    return results


def flat(row: Row) -> Row:
    """``row`` with every interval as keys of its own, as in paired_low, paired_mid and paired_high."""
    values: Row = {}
    for key, value in row.items():
        names = _SPANS.get(key)
        values |= zip(names, value or [None] * len(names), strict=True) if names else {key: value}
    return values


def csv_text(rows: Sequence[Row]) -> str:
    """Judged rows as CSV, the slice's columns first; an interval becomes columns."""
    records = [flat(row) for row in rows]
    seen = {key for record in records for key in record}
    return to_csv(records, [key for key in ("model", *SLICE, "n", "shapes") if key in seen or not rows])


def number(row: Row, key: str) -> float | None:
    """``row[key]`` as a float, None where it is missing, null or not finite."""
    value = row.get(key)
    return None if value is None or not math.isfinite(value) else float(value)


def count(row: Row, key: str = "n") -> int:
    """``row[key]`` as a whole number, 0 where it is missing."""
    return int(number(row, key) or 0)


def label(row: Row, key: str) -> str:
    """The slice a row belongs to along ``key``; a row that does not say covers all of it."""
    return row.get(key) or "all"


def values(rows: Iterable[Row], key: str, order: Sequence[str] = ()) -> list[str]:
    """The values of ``key`` among judged rows but ``all``: those of ``order`` first, the others by name."""
    known = {label(row, key) for row in rows if count(row)} - {"all"}
    return [v for v in order if v in known] + sorted(known.difference(order), key=str.casefold)


def by_family(results: Results) -> dict[str, Results]:
    """Family → the results of its rows, where several were judged; else everything under an empty name.

    Every figure is of one family: their shapes and strata have nothing in common.
    """
    families = values(results["choice_rows"] + results["time_rows"], "family", (DEFAULT_FAMILY,))
    if len(families) < 2:
        return {"": results}
    kinds = ("choice_rows", "time_rows")
    return {
        family: results | {kind: [row for row in results[kind] if label(row, "family") == family] for kind in kinds}
        for family in families
    }


def choice_rows(results: Results, stratum: str = "", gpu: str = "all") -> list[Row]:
    """Choice rows of one slice, one per model, best first: without ``stratum`` ungrouped, all where none is judged."""
    strata = (stratum,) if stratum else ("ungrouped", "all")
    return _ranked(results["choice_rows"], "slowdown_macro", strata, gpu=gpu)


def time_rows(
    results: Results, stratum: str = "all", gpu: str = "all", population: str = "all", algorithm: str = "all"
) -> list[Row]:
    """Time rows of one slice, one per model, smallest median error first."""
    part = {"gpu": gpu, "population": population, "algorithm": algorithm}
    return _ranked(results["time_rows"], "median_ape", (stratum,), **part)


def is_reference(model: str) -> bool:
    """Whether a model learns no times, as a library's own picker does; tables keep those below the others."""
    return model in (ORACLE, "always-best-single") or is_heuristic(model)


def _ranked(rows: Iterable[Row], key: str, strata: Sequence[str], **part: str) -> list[Row]:
    """One row per model: learned models before references, judged before not judged, then by ``key``.

    Of ``part`` and the first of ``strata`` that was judged.
    """
    rows = [row for row in rows if all(label(row, name) == value for name, value in part.items())]
    judged = {label(row, "stratum") for row in rows if count(row)}
    stratum = next((name for name in strata if name in judged), strata[-1])

    def rank(row: Row) -> tuple[bool, float, str]:
        value = number(row, key)
        return is_reference(row["model"]), math.inf if value is None else value, row["model"]

    return sorted((row for row in rows if label(row, "stratum") == stratum), key=rank)


def best_model(results: Results) -> str | None:
    """The learned model with the smallest macro slowdown, else the smallest median time error, else None."""
    for rows, key in ((choice_rows(results), "slowdown_macro"), (time_rows(results), "median_ape")):
        for row in rows:
            if not is_reference(row["model"]) and number(row, key) is not None:
                return row["model"]
    return None


def shown_models(results: Results) -> list[str]:
    """The models figures draw: the best learned ones and the references other than the oracle, best first."""
    ranked = dict.fromkeys(row["model"] for row in choice_rows(results) + time_rows(results) if count(row))
    learned = [model for model in ranked if not is_reference(model)]
    return learned[:MAX_LEARNED] + [model for model in ranked if is_reference(model) and model != ORACLE]
