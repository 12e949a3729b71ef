"""A comparison in words and tables: the answer, what it rests on, and what could not be judged."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surrogate.report.results import (
    HEURISTIC,
    POPULATIONS,
    REFERENCES,
    SLICE,
    STRATA,
    Results,
    Row,
    best_model,
    by_family,
    check_results,
    choice_rows,
    count,
    label,
    number,
    time_rows,
    values,
)
from surrogate.report.tables import (
    UNKNOWN,
    Cell,
    Facts,
    Format,
    Table,
    interval_change,
    interval_ratio,
    log_change,
    percent,
    printable,
    ratio,
    share,
    shortened,
    whole,
    wrapped,
)

WIDTH = 80
NAME_WIDTH = 18
"""Characters of a model's name with which the widest table keeps to `WIDTH`."""
MAX_REASONS = 12
MAX_SLICES = 4

_Columns = Mapping[str, tuple[str, Format]]
"""Head of a column → key of the judged rows, and how it reads."""
_SLOWDOWNS: _Columns = {
    "pooled": ("slowdown_geomean", ratio),
    "p95": ("slowdown_p95", ratio),
    "max": ("slowdown_max", ratio),
    "≤10 %": ("within_10pct", share),
    "top-2": ("top2_slowdown", ratio),
}
_HITS: _Columns = {
    "best %": ("top1", share),
    "infeasible": ("infeasible_picks", whole),
    "problems": ("n", whole),
}
_ERRORS: _Columns = {
    "median %": ("median_ape", percent),
    "mean %": ("mape", percent),
    "p90 %": ("p90_ape", percent),
    "RMSPE %": ("rmspe", percent),
    "GMAE %": ("gmae", percent),
}
_ROWS: _Columns = {"rows": ("n", whole)}
_POPULATIONS = {
    "all": "all rows",
    "within-2x": "rows within 2× of their problem's best",
    "best": "the best rows",
}
_PARTS = {"algorithm": "algorithm", "stratum": "kind of problem", "gpu": "GPU"}


def terminal_summary(results: Results) -> str:
    """Provenance, the answer, the choice and time tables, and what was not judged, in 80 columns.

    Has no trailing newline. Raises `InputError` for what are no results.
    """
    check_results(results)
    blocks = [Facts(provenance(results)).text(WIDTH), wrapped(headline(results), WIDTH, indent="")]
    for table in choice_tables(results, strata=False) + time_tables(results):
        formats = {**table.formats, "model": lambda name: shortened(name, NAME_WIDTH)}
        blocks.append(replace(table, formats=formats).text(WIDTH))
    lines = [wrapped(f"{r['model']}: {r['reason']} ({r['where']})", WIDTH) for r in reasons(results)]
    if len(lines) > MAX_REASONS:
        lines[MAX_REASONS:] = [f"and {len(lines) - MAX_REASONS:,} more"]
    blocks += ["\n".join(["Not judged", *lines])] if lines else []
    return printable("\n\n".join(block for block in blocks if block))


def headline(results: Results) -> str:
    """The answer for the best model of each family, in plain words; says so where nothing was judged."""
    return "\n\n".join(
        (f"{family}: " if family else "") + _headline(part) for family, part in by_family(results).items()
    )


def _headline(results: Results) -> str:
    model = best_model(results)
    if model is None:
        return "No model could be judged on this data; the reasons are listed."
    choices = {row["model"]: row for row in choice_rows(results)}
    picks = _picks(choices.get(model, {}), choices.get(HEURISTIC, {}))
    errors = next((row for row in time_rows(results) if row["model"] == model), {})
    sentences = [picks, _paired(choices.get(model, {}))]
    if number(errors, "median_ape") is not None:
        whose = "Its predicted times" if picks else f"The times {model} predicts"
        error = percent(errors["median_ape"])
        sentences.append(f"{whose} are off by {error} % in the median over {count(errors):,} rows.")
    return " ".join(sentence for sentence in sentences if sentence)


def _picks(row: Row, heuristic: Row) -> str:
    """How much slower than the best the model's picks are, and those of the library's heuristic."""
    slowdown, other = number(row, "slowdown_macro"), number(heuristic, "slowdown_macro")
    if slowdown is None:
        return ""
    low, high, shapes = number(row, "ci_low"), number(row, "ci_high"), count(row, "shapes")
    span = ""
    if low is not None and high is not None:
        span = f", 95 % interval {percent(low - 1)} to {percent(high - 1)} %"
    over = f"{shapes:,} shapes, " if shapes else ""
    text = f"The picks of {row['model']} are {percent(slowdown - 1)} % slower than the fastest algorithm"
    text += f" ({over}{label(row, 'stratum')} problems{span})"
    if other is None:
        return f"{text}."
    fewer = count(heuristic) < count(row)
    where = f", on the {count(heuristic):,} of {count(row):,} problems that have one," if fewer else ""
    return f"{text}; those of cuDNN's heuristic{where} are {percent(other - 1)} % slower."


def _paired(row: Row) -> str:
    """The difference to the library's heuristic on the same problems, or that there is none to see."""
    low, mid, high = row.get("paired_vs_heuristic") or (None, None, None)
    if low is None or mid is None or high is None or any(map(math.isnan, (low, mid, high))):
        return ""
    if low <= 0 <= high:
        span = f"{log_change(mid)} % time, 95 % interval {interval_change((low, high))} %"
        return f"On the same problems it and cuDNN's heuristic cannot be told apart ({span})."
    near, middle, far = (percent(abs(math.expm1(end))) for end in sorted((low, mid, high), key=abs))
    text = f"On the same problems its picks take {middle} % {'less' if mid < 0 else 'more'} time than"
    return f"{text} the heuristic's (95 % interval {near} to {far} %)."


def provenance(results: Results) -> list[tuple[str, str]]:
    """Name and value of everything known about the data and the folds."""
    dataset, folds, seeds = (results.get(key) for key in ("dataset", "folds", "seeds"))
    names = {
        "name": "dataset", "rows": "rows", "problems": "problems", "shapes": "shapes", "gpus": "GPUs",
        "candidates": "candidates", "where": "only rows where", "also_train": "also trained on",
    }  # fmt: skip
    dataset = dataset or {}
    pairs = [(title, dataset.get(key)) for key, title in names.items()]
    pairs += [(key, value) for key, value in dataset.items() if key not in names]
    # Folds as a count where they are listed one by one; one seed, 0, would read as none.
    pairs.append(("folds", len(folds) if isinstance(folds, list) and len(folds) > 12 else folds))
    pairs.append(("seeds", len(seeds) if isinstance(seeds, list) else seeds))
    shown = {"schema", "dataset", "seeds", "folds", "time_rows", "choice_rows"}
    pairs += [(k, value) for k, value in results.items() if k not in shown and not isinstance(value, dict)]
    return [(str(name), _said(value)) for name, value in pairs if value not in (None, [], {}, "")]


def settings(results: Results) -> list[tuple[str, str]]:
    """Model and its hyperparameters, for models that have any."""
    chosen = results.get("settings")
    return [(model, _said(v)) for model, v in chosen.items() if v] if isinstance(chosen, dict) else []


def _said(value: Any) -> str:
    """A value of the results as text: thousands separated, lists joined."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(item)}" for key, item in value.items())
    return ", ".join(map(_said, value)) if isinstance(value, list | tuple) else str(value)


def choice_tables(results: Results, strata: bool = True) -> list[Table]:
    """Slowdowns and hits on each family's primary slice; with ``strata`` also on all strata, where that differs."""
    return _each_family(results, lambda part: _choices(part, strata))


def time_tables(results: Results) -> list[Table]:
    """One time table per family and population that was judged."""
    return _each_family(results, _times)


def slice_tables(results: Results) -> list[Table]:
    """Slowdowns by kind of problem, by GPU and by split, as far as they were told apart."""
    return _each_family(results, _slices)


def part_tables(results: Results) -> list[Table]:
    """Time errors of the best model per algorithm, kind of problem and GPU, as far as they were told apart."""
    return _each_family(results, _parts)


def _each_family(results: Results, tables_of: Any) -> list[Table]:
    """The tables of every family; of several, each table names its own."""
    return [
        replace(table, title=f"{family}: {table.title}") if family else table
        for family, part in by_family(results).items()
        for table in tables_of(part)
    ]


def _choices(results: Results, strata: bool) -> list[Table]:
    primary = choice_rows(results)
    if not primary:
        return []
    tables = [_slowdown_table(primary)]
    if any(row["model"] == HEURISTIC or number(row, "top1") is not None for row in primary):
        tables.append(_paired_table(primary))
    everything = choice_rows(results, stratum="all")
    if strata and label(primary[0], "stratum") != "all" and any(map(count, everything)):
        tables.append(_slowdown_table(everything))
    return tables


def _slowdown_table(rows: list[Row]) -> Table:
    """Slowdowns of every model on one slice."""
    best = _best(rows, "slowdown_macro")
    records = [
        {
            "model": row["model"],
            "slowdown": Cell(number(row, "slowdown_macro"), best=row["model"] == best),
            "95 % interval": (number(row, "ci_low"), number(row, "ci_high")),
            **_figures(row, _SLOWDOWNS),
        }
        for row in rows
    ]
    formats = {"slowdown": ratio, "95 % interval": interval_ratio, **_formats(_SLOWDOWNS)}
    return _of_models(rows, records, formats, "Algorithm choice", _sample(rows))


def _paired_table(rows: list[Row]) -> Table:
    """Every model against cuDNN's heuristic on the same problems, with hits, infeasible picks and counts.

    Hits and counts alone where no problem has a pick of the heuristic.
    """
    paired = any(row.get("paired_vs_heuristic") for row in rows)
    records = []
    for row in rows:
        record: dict[str, Any] = {"model": row["model"]}
        if paired:
            # Against itself the heuristic has no difference to show.
            ends = None if row["model"] == HEURISTIC else row.get("paired_vs_heuristic")
            low, mid, high = ends or (None, None, None)
            record |= {"change %": mid, "95 % interval": None if None in (low, high) else (low, high)}
        records.append(record | _figures(row, _HITS))
    formats = {"change %": log_change, "95 % interval": interval_change, **_formats(_HITS)}
    title = "Paired against cuDNN's heuristic" if paired else "Picks of the best algorithm"
    return _of_models(rows, records, formats, title)


def _times(results: Results) -> list[Table]:
    populations = values(results["time_rows"], "population", POPULATIONS)
    if any(map(count, time_rows(results, population="all"))):
        populations.insert(0, "all")
    return [_time_table(results, population) for population in populations]


def _time_table(results: Results, population: str) -> Table:
    """Errors of every model on one population of rows."""
    rows = [row for row in time_rows(results, population=population) if count(row) or row.get("reason")]
    best = _best(rows, "median_ape")
    columns = {**_ERRORS, "Spearman": ("spearman", ratio), **_ROWS}
    records = [{"model": row["model"], **_figures(row, columns)} for row in rows]
    for record in records:
        record["median %"] = Cell(record["median %"], best=record["model"] == best)
    title = f"Time error, {_POPULATIONS.get(population, population)}"
    return _of_models(rows, records, _formats(columns), title, _sample(rows, "rows"))


def _slices(results: Results) -> list[Table]:
    rows = results["choice_rows"]
    strata = values(rows, "stratum", STRATA)
    strata += ["all"] if any(map(count, choice_rows(results, stratum="all"))) else []
    gpus, splits = values(rows, "gpu"), values(rows, "split")
    tables = [_across(results, "stratum", strata, "kind of problem")] if len(strata) > 1 else []
    tables += [_across(results, "gpu", gpus, "GPU")] if gpus else []
    return tables + ([_across(results, "split", splits, "split")] if len(splits) > 1 else [])


def _across(results: Results, key: str, parts: list[str], title: str) -> Table:
    """Macro slowdown: rows are ``parts``, columns the models in the order of the primary choice table."""
    sliced = {part: {row["model"]: row for row in choice_rows(results, **{key: part})} for part in parts}
    judged = {model for rows in sliced.values() for model, row in rows.items() if count(row)}
    order = dict.fromkeys([row["model"] for row in choice_rows(results)] + sorted(judged))
    models = [model for model in order if model in judged]
    head = "GPU" if key == "gpu" else key
    records = []
    for part, rows in sliced.items():
        best = _best(list(rows.values()), "slowdown_macro")
        shapes = max((count(row, "shapes") for row in rows.values()), default=0)
        cells = {model: _slowdown(rows.get(model, {}), model == best) for model in models}
        records.append({head: part, "shapes": shapes, **cells})
    return Table(records, {"shapes": whole, **dict.fromkeys(models, ratio)}, f"Slowdown by {title}")


def _slowdown(row: Row, best: bool) -> Cell:
    ends = interval_ratio((number(row, "ci_low"), number(row, "ci_high")))
    return Cell(number(row, "slowdown_macro"), "" if ends == UNKNOWN else ends, best)


def _parts(results: Results) -> list[Table]:
    model, columns, tables = best_model(results), {**_ERRORS, **_ROWS}, []
    own = results | {"time_rows": [row for row in results["time_rows"] if row["model"] == model]}
    for key, words in _PARTS.items():
        records = [
            {"GPU" if key == "gpu" else key: part, **_figures(row, columns)}
            for part in values(own["time_rows"], key, STRATA)
            for row in time_rows(own, **{key: part})
        ]
        if records:
            tables.append(Table(records, _formats(columns), f"Time error by {words}, {model}"))
    return tables


def _figures(row: Row, columns: _Columns) -> dict[str, Any]:
    return {head: number(row, key) for head, (key, _) in columns.items()}


def _formats(columns: _Columns) -> dict[str, Format]:
    return {head: form for head, (_, form) in columns.items()}


def _of_models(
    rows: list[Row],
    records: list[dict[str, Any]],
    formats: Mapping[str, Format],
    title: str,
    note: str = "",
) -> Table:
    """A table with a record per model; the title says what slice ``rows`` are, and references stand last."""
    covered = "nothing judged"
    if rows:
        parts = [label(rows[0], key) for key in ("gpu", "direction", "dtype", "math")]
        parts = [f"split by {label(rows[0], 'split')}", *(part for part in parts if part != "all")]
        covered = ", ".join([f"{label(rows[0], 'stratum')} problems", *parts])
    references = sum(row["model"] in REFERENCES for row in rows)
    return Table(records, formats, f"{title}, {covered}", note, references=references)


def _sample(rows: list[Row], what: str = "problems") -> str:
    """How much the figures rest on: the largest count, and who covers less of it."""
    n, shapes = (max((count(row, key) for row in rows), default=0) for key in ("n", "shapes"))
    words = [f"{n:,} {what} of {shapes:,} shapes" if shapes else f"{n:,} {what}"]
    words += [f"{row['model']} on {count(row):,}" for row in rows if 0 < count(row) < n]
    return "; ".join(words)


def _best(rows: list[Row], key: str) -> str | None:
    """The learned model on top of ranked ``rows``, where it has a figure."""
    learned = (
        row["model"] for row in rows if row["model"] not in REFERENCES and number(row, key) is not None
    )
    return next(learned, None)


def reasons(results: Results) -> list[dict[str, str]]:
    """Rows with n 0 by model and reason, in the order of the results: records of model, reason and where."""
    slices: dict[tuple[str, str], dict[str, None]] = {}
    for kind in ("choice", "time"):
        rows = results[f"{kind}_rows"]
        # A key with one value in all rows tells nothing apart.
        keys = [key for key in SLICE[1:10] if len({label(row, key) for row in rows}) > 1]
        judged = {row["model"] for row in rows if count(row)}
        for row in rows:
            if count(row):
                continue
            model, reason = row["model"], row.get("reason") or "no reason was recorded"
            parts = [label(row, key) for key in keys if label(row, key) != "all"]
            where = f"{kind}: {', '.join(parts) or 'all'}" if model in judged else kind
            slices.setdefault((model, reason.removeprefix(f"{model} ")), {})[where] = None
    records = []
    for (model, reason), names in slices.items():
        more = [f"and {len(names) - MAX_SLICES:,} more"] if len(names) > MAX_SLICES else []
        where = "; ".join([*list(names)[:MAX_SLICES], *more])
        records.append({"model": model, "reason": reason, "where": where})
    return records
