"""`results.json`: read, checked as far as tables and figures rely on it, and narrowed to the slices that they show."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError
from surrogate.features.regular_file import require_regular
from surrogate.report.tables import to_csv

SCHEMA = 1
"""Newest version of `results.json` that is read. 1: time_rows and choice_rows, one object per judged slice."""
HEURISTIC = "cudnn-heuristic"
REFERENCES = ("oracle", HEURISTIC, "always-best-single")
"""Models that learn no times; tables keep them below the others."""
STRATA = ("ungrouped", "all", "1x1s1", "1x1s2", "3x3s1", "grouped", "other")
POPULATIONS = ("all", "within-2x", "best")
MAX_LEARNED = 4

Row = dict[str, Any]
Results = dict[str, Any]
Wanted = Mapping[str, Sequence[str]]

CHOICE: Wanted = {
    "split": ("shape", "network", "gpu", "random"),
    "family": ("all",),
    "stratum": ("ungrouped", "all"),
    "gpu": ("all",),
    "direction": ("all",),
    "dtype": ("all",),
    "math": ("all",),
}
"""Slice of the primary choice figure: the first value present of each key is taken."""
TIME: Wanted = {**CHOICE, "stratum": ("all", "ungrouped"), "population": ("all",), "algorithm": ("all",)}
"""Slice of the primary time figure."""
SLICE = (
    "model", "split", "family", "stratum", "population", "gpu", "direction", "dtype", "math", "algorithm",
    "n", "shapes",
)  # fmt: skip
"""The columns that name a slice, in the order of the CSV files."""

_TEXTS = ("model", "reason", *SLICE[1:10])
_NUMBERS = {
    "time_rows": ("n", "shapes", "median_ape", "mape", "p90_ape", "rmspe", "gmae", "spearman"),
    "choice_rows": (
        "n", "shapes", "slowdown_macro", "ci_low", "ci_high", "slowdown_geomean", "slowdown_p95",
        "slowdown_max", "top1", "within_10pct", "top2_slowdown", "infeasible_picks",
    ),
}  # fmt: skip
_AGAIN = "write it again with seer compare"
_ENDS = {2: ("low", "high"), 3: ("low", "mid", "high")}


def read_results(directory: Path) -> Results:
    """The checked content of ``directory/results.json``; `InputError` where it is missing or unreadable."""
    path = Path(directory) / "results.json"
    require_regular(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(
            content, ensure_ascii=False
        ).encode()  # half a character (a lone surrogate) cannot be written
    except FileNotFoundError:
        raise InputError(
            f"no results.json in {directory}; `seer compare -o {directory}` writes one"
        ) from None
    except OSError as error:
        raise InputError(f"{path} is not readable ({type(error).__name__}); {_AGAIN}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); {_AGAIN}") from None
    return check_results(content, str(path))


def check_results(results: Any, name: str = "results") -> Results:
    """``results`` itself if it follows the contract, else `InputError` naming the first fault."""
    if not isinstance(results, dict):
        raise InputError(f"{name} holds a {type(results).__name__}, not an object; {_AGAIN}")
    schema = results.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise InputError(f"{name}: schema is {schema!r:.60}; a whole number up to {SCHEMA} is needed")
    if schema > SCHEMA:
        raise InputError(
            f"{name} has schema {schema}, this version reads up to {SCHEMA}; update seer-surrogate"
        )
    if not isinstance(results.get("dataset", {}), dict):
        raise InputError(f"{name}: dataset is {results['dataset']!r:.60}; an object is needed")
    for kind, numbers in _NUMBERS.items():
        if not isinstance(results.get(kind), list):
            raise InputError(f"{name} has no list {kind}; {_AGAIN}")
        for index, row in enumerate(results[kind]):
            _check_row(row, numbers, f"{name}: {kind}[{index}]")
    return results


def _check_row(row: Any, numbers: Sequence[str], where: str) -> None:
    if not isinstance(row, dict) or not isinstance(row.get("model"), str):
        raise InputError(f"{where} is not an object with a model; {_AGAIN}")
    for key in _TEXTS:
        if not isinstance(row.get(key), str | None):
            raise InputError(f"{where}: {key} is {row[key]!r:.60}; text or null is needed")
    for key in numbers:
        if not _is_number(row.get(key)):
            raise InputError(f"{where}: {key} is {row[key]!r:.60}; a number or null is needed")
    paired = row.get("paired_vs_heuristic")
    if paired is not None and not (
        isinstance(paired, list) and len(paired) == 3 and all(map(_is_number, paired))
    ):
        raise InputError(
            f"{where}: paired_vs_heuristic is {paired!r:.60}; [low, mid, high] or null is needed"
        )


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return value is None or isinstance(value, float)


def csv_text(rows: Sequence[Row]) -> str:
    """Judged rows as CSV, the slice's columns first; an interval becomes columns, as in paired_low, paired_mid."""
    spans = {
        key: {end: f"{key.removesuffix('_vs_heuristic')}_{end}" for end in _ENDS[len(value)]}
        for row in rows
        for key, value in row.items()
        if isinstance(value, list) and len(value) in _ENDS
    }
    keys = dict.fromkeys(key for row in rows for key in row)
    names = [name for key in keys for name in (spans[key].values() if key in spans else [key])]
    flat = []
    for row in rows:
        record = {key: value for key, value in row.items() if key not in spans}
        for key, columns in spans.items():
            if row.get(key):
                record |= zip(columns.values(), row[key], strict=False)
        flat.append(record)
    return to_csv(flat, [*(name for name in SLICE if name in keys), *names] or SLICE)


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
    families = values(results["choice_rows"] + results["time_rows"], "family", ("conv",))
    if len(families) < 2:
        return {"": results}
    kinds = ("choice_rows", "time_rows")
    return {
        family: results
        | {kind: [row for row in results[kind] if label(row, "family") == family] for kind in kinds}
        for family in families
    }


def narrow(rows: Iterable[Row], wanted: Wanted) -> list[Row]:
    """The rows of one slice: along each key the first wanted value that was judged, else the fullest."""
    kept = list(rows)
    for key, preferred in wanted.items():
        filled: dict[str, int] = {}
        for row in kept:
            filled[label(row, key)] = filled.get(label(row, key), 0) + count(row)
        # A value whose rows are all empty (n 0) says nothing: another slice that was judged goes first.
        taken = next((value for value in preferred if filled.get(value)), None) or _fullest(filled, preferred)
        kept = [row for row in kept if label(row, key) == taken]
    return kept


def _fullest(filled: Mapping[str, int], preferred: Sequence[str]) -> str | None:
    """The value with most judged problems; among equals a preferred one, then the first by name."""
    return min(filled, key=lambda value: (-filled[value], value not in preferred, value), default=None)


def choice_rows(results: Results, **fixed: str) -> list[Row]:
    """Choice rows of the primary slice, one per model, best first; ``fixed`` sets keys, as ``gpu="K80"``."""
    return _ranked(_slice(results["choice_rows"], CHOICE, fixed), "slowdown_macro")


def time_rows(results: Results, **fixed: str) -> list[Row]:
    """Time rows of the primary slice, one per model, smallest median error first; ``fixed`` sets keys."""
    return _ranked(_slice(results["time_rows"], TIME, fixed), "median_ape")


def _slice(rows: Iterable[Row], wanted: Wanted, fixed: Mapping[str, str]) -> list[Row]:
    exact = [row for row in rows if all(label(row, key) == value for key, value in fixed.items())]
    return narrow(exact, {key: preferred for key, preferred in wanted.items() if key not in fixed})


def _ranked(rows: Iterable[Row], key: str) -> list[Row]:
    """One row per model: learned models before references, judged before not judged, then by ``key``."""
    by_model: dict[str, Row] = {}
    for row in rows:
        by_model.setdefault(row["model"], row)

    def rank(row: Row) -> tuple[bool, float, str]:
        value = number(row, key)
        return row["model"] in REFERENCES, math.inf if value is None else value, row["model"]

    return sorted(by_model.values(), key=rank)


def best_model(results: Results) -> str | None:
    """The learned model with the smallest macro slowdown, else the smallest median time error, else None."""
    for rows, key in ((choice_rows(results), "slowdown_macro"), (time_rows(results), "median_ape")):
        for row in rows:
            if row["model"] not in REFERENCES and number(row, key) is not None:
                return row["model"]
    return None


def shown_models(results: Results) -> list[str]:
    """The models figures draw: the best learned ones and the references other than the oracle, best first."""
    ranked = dict.fromkeys(row["model"] for row in choice_rows(results) + time_rows(results) if count(row))
    learned = [model for model in ranked if model not in REFERENCES]
    return learned[:MAX_LEARNED] + [model for model in REFERENCES[1:] if model in ranked]
