"""The time tables: how far predicted times lie from measured ones."""

from surrogate.report.cells import percent, ratio, whole
from surrogate.report.choice_tables import HEADS, Cell, Line, Table, line, sample_note, slice_name
from surrogate.report.results import Results, Row
from surrogate.report.rows import POPULATIONS, STRATA, best_model, count, number, time_rows, values

_ERRORS = ("median_ape", "mape", "p90_ape", "rmspe", "gmae")
_HEADS = ("median %", "mean %", "p90 %", "RMSPE %", "GMAE %")
_PARTS = {"algorithm": "algorithm", "stratum": "kind of problem", "gpu": "GPU"}
_NAMES = {"all": "all rows", "within-2x": "rows within 2× of their problem's best", "best": "the best rows"}


def time_table(results: Results, population: str = "all", **fixed: str) -> Table:
    """Errors of every model on one population of rows; ``fixed`` sets a slice."""
    rows = [
        row for row in time_rows(results, population=population, **fixed) if count(row) or row.get("reason")
    ]
    best = rows[0]["model"] if rows and number(rows[0], "median_ape") is not None else None
    lines = tuple(
        line(
            row,
            *_errors(row, row["model"] == best),
            Cell(ratio(number(row, "spearman"))),
            Cell(whole(count(row))),
        )
        for row in rows
    )
    title = f"Time error, {_NAMES.get(population, population)}, {slice_name(rows)}"
    return Table(title, ("model", *_HEADS, "Spearman", "rows"), lines, sample_note(rows, "rows"))


def time_tables(results: Results) -> list[Table]:
    """One time table per population that was judged."""
    found = values(results["time_rows"], "population", POPULATIONS)
    if any(count(row) for row in time_rows(results, population="all")):
        found.insert(0, "all")
    return [time_table(results, population) for population in found]


def part_tables(results: Results) -> list[Table]:
    """Errors of the best model per algorithm, kind of problem and GPU, as far as they were told apart."""
    tables = [_of_best(results, key, f"Time error by {words}") for key, words in _PARTS.items()]
    return [table for table in tables if table is not None]


def _of_best(results: Results, key: str, title: str) -> Table | None:
    model = best_model(results)
    found = values((row for row in results["time_rows"] if row["model"] == model), key, STRATA)
    lines = []
    for value in found:
        rows = [row for row in time_rows(results, **{key: value}) if row["model"] == model]
        lines += [Line((Cell(value), *_errors(row), Cell(whole(count(row))))) for row in rows]
    return Table(f"{title}, {model}", (HEADS.get(key, key), *_HEADS, "rows"), tuple(lines)) if lines else None


def _errors(row: Row, best: bool = False) -> list[Cell]:
    return [Cell(percent(number(row, key)), best=best and key == "median_ape") for key in _ERRORS]
