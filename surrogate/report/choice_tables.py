"""The choice tables: how much slower than the best the picks of each model are."""

from dataclasses import dataclass

from surrogate.report.cells import UNKNOWN, interval, log_change, ratio, share, whole
from surrogate.report.results import Results, Row
from surrogate.report.rows import HEURISTIC, REFERENCES, STRATA, choice_rows, count, label, number, values

HEADS = {"gpu": "GPU"}
"""Key of the results → a column's head, where it is not the key itself."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry: its text, a smaller second line (an interval), and whether it is the best of its kind."""

    text: str
    detail: str = ""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table. ``reference`` lines stand below the rule: they are yardsticks, not candidates."""

    cells: tuple[Cell, ...]
    reference: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table for any medium: the first column holds names, the others numbers."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    note: str = ""


def choice_table(results: Results, **fixed: str) -> Table:
    """Slowdowns of every model on the primary slice (ungrouped where judged); ``fixed`` sets a slice."""
    rows = choice_rows(results, **fixed)
    best = _best(rows)
    lines = tuple(
        line(
            row,
            Cell(ratio(number(row, "slowdown_macro")), best=row["model"] == best),
            Cell(interval(number(row, "ci_low"), number(row, "ci_high"))),
            Cell(ratio(number(row, "slowdown_geomean"))),
            Cell(ratio(number(row, "slowdown_p95"))),
            Cell(ratio(number(row, "slowdown_max"))),
            Cell(share(number(row, "within_10pct"))),
            Cell(ratio(number(row, "top2_slowdown"))),
        )
        for row in rows
    )
    columns = ("model", "slowdown", "95 % interval", "pooled", "p95", "max", "≤10 %", "top-2")
    return Table(f"Algorithm choice, {slice_name(rows)}", columns, lines, sample_note(rows))


def paired_table(results: Results, **fixed: str) -> Table:
    """Every model against cuDNN's heuristic on the same problems, with hits, infeasible picks and counts.

    Hits and counts alone where no problem has a pick of the heuristic.
    """
    rows = choice_rows(results, **fixed)
    paired = any(row.get("paired_vs_heuristic") for row in rows)
    lines = []
    for row in rows:
        # Against itself the heuristic has no difference to show.
        low, mid, high = (row["model"] != HEURISTIC and row.get("paired_vs_heuristic")) or (None, None, None)
        span = f"{log_change(low)} to {log_change(high)}" if low is not None and high is not None else UNKNOWN
        infeasible = whole(number(row, "infeasible_picks"))
        hits = share(number(row, "top1"))
        change = (log_change(mid), span) if paired else ()
        lines.append(line(row, *map(Cell, (*change, hits, infeasible, whole(count(row))))))
    columns = (
        "model",
        *(("change %", "95 % interval") if paired else ()),
        "best %",
        "infeasible",
        "problems",
    )
    title = "Paired against cuDNN's heuristic" if paired else "Picks of the best algorithm"
    return Table(f"{title}, {slice_name(rows)}", columns, tuple(lines))


def stratum_table(results: Results) -> Table | None:
    """Macro slowdown per stratum (lines) and model (columns); None where only one stratum was judged."""
    found = values(results["choice_rows"], "stratum", STRATA)
    if any(count(row) for row in choice_rows(results, stratum="all")):
        found.append("all")
    return _across(results, "stratum", found, "Slowdown by kind of problem") if len(found) > 1 else None


def gpu_table(results: Results) -> Table | None:
    """Macro slowdown per GPU (lines) and model (columns); None where no GPU was judged on its own."""
    found = values(results["choice_rows"], "gpu")
    return _across(results, "gpu", found, "Slowdown by GPU") if found else None


def split_table(results: Results) -> Table | None:
    """Macro slowdown per way of splitting; None where there is only one."""
    found = values(results["choice_rows"], "split")
    return _across(results, "split", found, "Slowdown by split") if len(found) > 1 else None


def line(row: Row, *cells: Cell) -> Line:
    """The line of a model: its name, then ``cells``."""
    return Line((Cell(row["model"]), *cells), row["model"] in REFERENCES)


def slice_name(rows: list[Row]) -> str:
    """What the rows cover, in words: ``ungrouped problems, split by shape``."""
    if not rows:
        return "nothing judged"
    stratum, parts = label(rows[0], "stratum"), [f"split by {label(rows[0], 'split')}"]
    keys = ("gpu", "direction", "dtype", "math")
    parts += [label(rows[0], key) for key in keys if label(rows[0], key) != "all"]
    return ", ".join([f"{stratum} problems", *parts])


def sample_note(rows: list[Row], what: str = "problems") -> str:
    """How much the figures rest on: the largest count, and who covers less of it."""
    n = max((count(row) for row in rows), default=0)
    shapes = max((count(row, "shapes") for row in rows), default=0)
    words = [f"{n:,} {what} of {shapes:,} shapes" if shapes else f"{n:,} {what}"]
    words += [f"{row['model']} on {count(row):,}" for row in rows if 0 < count(row) < n]
    return "; ".join(words)


def _best(rows: list[Row]) -> str | None:
    """The learned model on top of ranked ``rows``, where it has a figure."""
    learned = [r for r in rows if r["model"] not in REFERENCES and number(r, "slowdown_macro") is not None]
    return learned[0]["model"] if learned else None


def _across(results: Results, key: str, found: list[str], title: str) -> Table:
    """Lines are the values of ``key``, columns the models in the order of the primary choice table."""
    sliced = {value: {row["model"]: row for row in choice_rows(results, **{key: value})} for value in found}
    judged = {model for rows in sliced.values() for model, row in rows.items() if count(row)}
    order = dict.fromkeys([row["model"] for row in choice_rows(results)] + sorted(judged))
    models = [model for model in order if model in judged]
    lines = []
    for value, rows in sliced.items():
        best = _best(list(rows.values()))
        cells = [Cell(value), Cell(whole(max((count(r, "shapes") for r in rows.values()), default=0)))]
        lines.append(Line((*cells, *(_slowdown(rows.get(model), best) for model in models))))
    return Table(title, (HEADS.get(key, key), "shapes", *models), tuple(lines))


def _slowdown(row: Row | None, best: str | None) -> Cell:
    if row is None:
        return Cell(UNKNOWN)
    detail = interval(number(row, "ci_low"), number(row, "ci_high"))
    text = ratio(number(row, "slowdown_macro"))
    return Cell(text, "" if detail == UNKNOWN else detail, row["model"] == best)
