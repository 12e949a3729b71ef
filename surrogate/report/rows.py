"""Which rows of the results a table or figure shows, and in which order the models stand."""

import math
from collections.abc import Iterable, Mapping, Sequence

from surrogate.report.results import Results, Row

REFERENCES = ("oracle", "cudnn-heuristic", "always-best-single")
"""Models that learn no times; tables keep them below the others."""
HEURISTIC = "cudnn-heuristic"
STRATA = ("ungrouped", "all", "1x1s1", "1x1s2", "3x3s1", "grouped", "other")
POPULATIONS = ("all", "within-2x", "best")
SPLITS = ("shape", "network", "gpu", "random")

Wanted = Mapping[str, Sequence[str]]
CHOICE: Wanted = {
    "split": SPLITS,
    "stratum": ("ungrouped", "all"),
    "gpu": ("all",),
    "direction": ("all",),
    "dtype": ("all",),
    "math": ("all",),
}
"""Slice of the primary choice figure: the first value present of each key is taken."""
TIME: Wanted = {**CHOICE, "stratum": ("all", "ungrouped"), "population": ("all",), "algorithm": ("all",)}
"""Slice of the primary time figure."""


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


def choice_rows(results: Results, **fixed: str) -> list[Row]:
    """Choice rows of the primary slice, one per model, best first; ``fixed`` sets keys, as ``gpu="K80"``."""
    return _ranked(_slice(results["choice_rows"], CHOICE, fixed), "slowdown_macro")


def time_rows(results: Results, **fixed: str) -> list[Row]:
    """Time rows of the primary slice, one per model, smallest median error first; ``fixed`` sets keys."""
    return _ranked(_slice(results["time_rows"], TIME, fixed), "median_ape")


def values(rows: Iterable[Row], key: str, order: Sequence[str] = ()) -> list[str]:
    """The values of ``key`` among judged rows but ``all``: those of ``order`` first, the others by name."""
    found = {label(row, key) for row in rows if count(row)} - {"all"}
    return [v for v in order if v in found] + sorted(found.difference(order), key=str.casefold)


def best_model(results: Results) -> str | None:
    """The learned model with the smallest macro slowdown, else the smallest median time error, else None."""
    for rows, key in ((choice_rows(results), "slowdown_macro"), (time_rows(results), "median_ape")):
        for row in rows:
            if row["model"] not in REFERENCES and number(row, key) is not None:
                return row["model"]
    return None


def _fullest(filled: Mapping[str, int], preferred: Sequence[str]) -> str | None:
    """The value with most judged problems; among equals a preferred one, then the first by name."""
    return min(filled, key=lambda value: (-filled[value], value not in preferred, value), default=None)


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
