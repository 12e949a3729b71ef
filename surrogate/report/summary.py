"""`results.json`: read, narrowed to the slices that tables show, told in words: the answer and what it rests on."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from surrogate.evaluation.scorecard import ORACLE, TUNANET, is_heuristic
from surrogate.features.errors import InputError, require_regular
from surrogate.features.families import DEFAULT_FAMILY
from surrogate.report import tables
from surrogate.report.tables import Cell, Facts, Table, log_change, percent, plain, ratio, share, to_csv, whole

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


WIDTH = 80
NAME_WIDTH = 18
"""Characters of a model's name with which the widest table keeps to `WIDTH`."""
PAPER = {"seer-paper": "the fit to counters", "seer-time-only": "the fit to times alone"}
"""SEER's own models, in words."""
MAX_REASONS = 12
MAX_SLICES = 4

_Columns = Mapping[str, tuple[str | tuple[str, str], tables.Format]]
"""Head of a column → key of the judged rows, or the keys of an interval's ends, and how it reads."""
_SLOWDOWNS: _Columns = {
    "slowdown": ("slowdown_macro", ratio), "95 % interval": (("ci_low", "ci_high"), tables.interval_ratio),
    "pooled": ("slowdown_geomean", ratio), "p95": ("slowdown_p95", ratio), "max": ("slowdown_max", ratio),
    "≤10 %": ("within_10pct", share), "top-2": ("top2_slowdown", ratio),
}  # fmt: skip
_PAIRED: _Columns = {
    "change %": ("paired_mid", log_change),
    "95 % interval": (("paired_low", "paired_high"), tables.interval_change),
    "pairs": ("paired_problems", whole),
}
_HITS: _Columns = {"best %": ("top1", share), "infeasible": ("infeasible_picks", whole)}
_ERRORS: _Columns = {
    "median %": ("median_ape", percent),
    "mean %": ("mape", percent),
    "p90 %": ("p90_ape", percent),
    "RMSPE %": ("rmspe", percent),
    "GMAE %": ("gmae", percent),
}
_ROWS: _Columns = {"rows": ("n", whole)}
_POPULATIONS = {"all": "all rows", "within-2x": "rows within 2× of their problem's best", "best": "the best rows"}
_PARTS = {"algorithm": "algorithm", "stratum": "kind of problem", "gpu": "GPU"}


@readable()
def terminal_summary(results: Results) -> str:
    """The answer, what it rests on, the choice and time tables, and what was not judged, in 80 columns.

    Times are shown over all rows; the report's page has the other populations. Has no trailing newline. Raises
    `InputError` for what are no results.
    """
    blocks = [tables.wrapped(headline(results), WIDTH, indent=""), Facts(provenance(results)).text(WIDTH)]
    for table in _main_tables(results):
        formats = {**table.formats, "model": lambda name: tables.shortened(name, NAME_WIDTH)}
        blocks.append(replace(table, formats=formats).text(WIDTH))
    lines = [tables.wrapped(f"{r['model']}: {r['reason']} ({r['where']})", WIDTH) for r in reasons(results)]
    if len(lines) > MAX_REASONS:
        lines[MAX_REASONS:] = [f"and {len(lines) - MAX_REASONS:,} more"]
    blocks += ["\n".join(["Not judged", *lines])] if lines else []
    return tables.printable("\n\n".join(block for block in blocks if block))


@readable()
def html_summary(results: Results) -> str:
    """The answer, the choice tables and the time tables, as a notebook shows them."""
    return "\n".join([f"<p>{escape(headline(results))}</p>", *(table.__html__() for table in _main_tables(results))])


def _main_tables(results: Results) -> list[Table]:
    """The choice tables without strata, and the time tables over all rows."""
    shown = [row for row in results["time_rows"] if row.get("population", "all") == "all"]
    return choice_tables(results, strata=False) + time_tables(results | {"time_rows": shown})


def headline(results: Results) -> str:
    """The answer for the best model of each family, in plain words; says so where nothing was judged."""
    parts = by_family(results).items()
    return "\n\n".join((f"{family}: " if family else "") + _headline(part) for family, part in parts)


def _headline(results: Results) -> str:
    model = best_model(results)
    if model is None:
        return "No model could be judged on this data; the reasons are listed."
    choices = {row["model"]: row for row in choice_rows(results)}
    heuristic = next((row for name, row in choices.items() if is_heuristic(name)), {})
    picks = _picks(choices.get(model, {}), heuristic)
    errors = next((row for row in time_rows(results) if row["model"] == model), {})
    sentences = [picks, _paired(choices.get(model, {}), _picker(heuristic))]
    if number(errors, "median_ape") is not None:
        whose = "Its predicted times" if picks else f"The times {model} predicts"
        error = percent(errors["median_ape"])
        sentences.append(f"{whose} are off by {error} % in the median over {count(errors):,} rows.")
    sentences.append(_paper(choices, model))
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
    picker = _picker(heuristic)
    pairs = count(heuristic)
    if pairs == count(row):
        return f"{text}; those of {picker} are {percent(other - 1)} % slower."
    text = f"{text}. Of these {count(row):,} problems, {pairs:,} have a pick of {picker}"
    mid = number(flat(row), "paired_mid")
    if mid is None or count(row, "paired_problems") != pairs:
        return f"{text}, which is {percent(other - 1)} % slower."
    own = percent(other * math.exp(mid) - 1)
    return f"{text}: there it is {percent(other - 1)} % slower, the model's {own} %."


def _paired(row: Row, picker: str) -> str:
    """The difference to the library's heuristic on the same problems, or that there is none to see."""
    low, mid, high = row.get("paired_vs_heuristic") or (None, None, None)
    if low is None or mid is None or high is None or any(map(math.isnan, (low, mid, high))):
        return ""
    if low <= 0 <= high:
        span = f"{log_change(mid)} % time, 95 % interval {tables.interval_change((low, high))} %"
        return f"On the same problems it and {picker} cannot be told apart ({span})."
    near, middle, far = (percent(abs(math.expm1(end))) for end in sorted((low, mid, high), key=abs))
    text = f"On the same problems its picks take {middle} % {'less' if mid < 0 else 'more'} time than"
    return f"{text} the heuristic's (95 % interval {near} to {far} %)."


def _paper(choices: Mapping[str, Row], best: str) -> str:
    """What SEER's own fits do on the same problems, where they were compared and neither is the best model."""
    parts = []
    for name, what in PAPER.items():
        row = choices.get(name, {})
        figures = [number(row, key) for key in ("slowdown_macro", "ci_low", "ci_high")]
        slower, low, high = (percent(figure - 1) if figure is not None else None for figure in figures)
        if slower and low and high:
            parts.append(f"{what} ({name}) picks {slower} % slower than the fastest ({low} to {high} %)")
        elif row:
            parts.append(f"{what} ({name}) could not be judged, for the reason given below")
    return f"Of the paper, {'; '.join(parts)}." if parts and best not in PAPER else ""


def _picker(heuristic: Row) -> str:
    """The library's own picker in words, from its row."""
    name = heuristic.get("model", "library-heuristic")
    library = name.rpartition("-")[0]
    library = {"library": "the library", "cudnn": "cuDNN"}.get(library, library)
    return "TunaNet" if name == TUNANET else f"{library}'s heuristic"


def provenance(results: Results) -> list[tuple[str, str]]:
    """Name and value of everything known about the data and the folds."""
    titles = {"name": "dataset", "gpus": "GPUs", "where": "only rows where", "also_train": "also trained on"}
    facts = {str(titles.get(key, key)): value for key, value in results.get("dataset", {}).items()}
    facts |= {"folds": results.get("folds"), "seeds": len(results.get("seeds", [])) or None}
    return [(name, _said(value)) for name, value in facts.items() if value not in (None, [], {}, "")]


def settings(results: Results) -> list[tuple[str, str]]:
    """Model and its hyperparameters, for models that have any."""
    return [(model, _said(chosen)) for model, chosen in results.get("settings", {}).items() if chosen]


def _said(value: object) -> str:
    """A value of the results as text: a count has its thousands separated."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(value)


def choice_tables(results: Results, strata: bool = True) -> list[Table]:
    """Slowdowns and hits on each family's primary slice; with ``strata`` also on all strata, where that differs."""
    return _each_family(results, lambda part: _choices(part, strata))


def time_tables(results: Results) -> list[Table]:
    """One time table per family and population that was judged."""
    return _each_family(results, _times)


def slice_tables(results: Results) -> list[Table]:
    """Slowdowns by kind of problem and by GPU, as far as they were told apart."""
    return _each_family(results, _slices)


def part_tables(results: Results) -> list[Table]:
    """Time errors of the best model per algorithm, kind of problem and GPU, as far as they were told apart."""
    return _each_family(results, _parts)


def _each_family(results: Results, tables_of: Callable[[Results], list[Table]]) -> list[Table]:
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
    shown = [_of_models(primary, _SLOWDOWNS, "Algorithm choice", _sample(primary))]
    # Against itself the heuristic has no difference to show.
    unpaired = {"paired_vs_heuristic": None, "paired_problems": None}
    rows = [row | unpaired if is_heuristic(row["model"]) else row for row in primary]
    heuristic = next((row for row in primary if is_heuristic(row["model"])), {})
    if any(row.get("paired_vs_heuristic") for row in rows):
        shown.append(_of_models(rows, {**_PAIRED, **_HITS}, f"Paired against {_picker(heuristic)}"))
    elif any(number(row, "top1") is not None for row in rows):
        shown.append(_of_models(rows, {**_HITS, "problems": ("n", whole)}, "Picks of the best algorithm"))
    everything = choice_rows(results, stratum="all")
    if strata and label(primary[0], "stratum") != "all" and any(map(count, everything)):
        shown.append(_of_models(everything, _SLOWDOWNS, "Algorithm choice", _sample(everything)))
    return shown


def _times(results: Results) -> list[Table]:
    populations = values(results["time_rows"], "population", POPULATIONS)
    if any(map(count, time_rows(results, population="all"))):
        populations.insert(0, "all")
    columns = {**_ERRORS, "Spearman": ("spearman", ratio), **_ROWS}
    shown = []
    for population in populations:
        rows = [row for row in time_rows(results, population=population) if count(row) or row.get("reason")]
        title = f"Time error, {_POPULATIONS.get(population, population)}"
        shown.append(_of_models(rows, columns, title, _sample(rows, "rows")))
    return shown


def _slices(results: Results) -> list[Table]:
    rows = results["choice_rows"]
    strata = values(rows, "stratum", STRATA)
    strata += ["all"] if any(map(count, choice_rows(results, stratum="all"))) else []
    gpus = values(rows, "gpu")
    shown = [_across(results, "stratum", strata, "kind of problem")] if len(strata) > 1 else []
    return shown + ([_across(results, "gpu", gpus, "GPU")] if gpus else [])


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
    ends = _figures(row, _SLOWDOWNS)["95 % interval"]
    return Cell(number(row, "slowdown_macro"), tables.interval_ratio(ends) if isinstance(ends, tuple) else "", best)


def _parts(results: Results) -> list[Table]:
    model = best_model(results)
    columns = {**_ERRORS, **_ROWS}
    shown = []
    model_results = results | {"time_rows": [row for row in results["time_rows"] if row["model"] == model]}
    for key, words in _PARTS.items():
        records = [
            {"GPU" if key == "gpu" else key: part, **_figures(row, columns)}
            for part in values(model_results["time_rows"], key, STRATA)
            for row in time_rows(model_results, **{key: part})
        ]
        if records:
            shown.append(Table(records, _formats(columns), f"Time error by {words}, {model}"))
    return shown


def _of_models(rows: list[Row], columns: _Columns, title: str, note: str = "") -> Table:
    """A row per model, references last; in the first column the best is marked, the title says what is covered."""
    head, (key, _) = next(iter(columns.items()))
    best = _best(rows, str(key)) if key in ("slowdown_macro", "median_ape") else None
    records = [{"model": row["model"], **_figures(row, columns)} for row in rows]
    for record in records:
        record[head] = Cell(record[head], best=record["model"] == best)
    covered = "nothing judged"
    if rows:
        parts = [label(rows[0], key) for key in ("gpu", "direction", "dtype", "math")]
        parts = [f"split by {label(rows[0], 'split')}", *(part for part in parts if part != "all")]
        covered = ", ".join([f"{label(rows[0], 'stratum')} problems", *parts])
    references = sum(is_reference(row["model"]) for row in rows)
    return Table(records, _formats(columns), f"{title}, {covered}", note, references=references)


def _figures(row: Row, columns: _Columns) -> dict[str, float | tuple[float, float] | None]:
    """A row's values by head; an interval with an unknown end is None."""
    values = {}
    row = flat(row)
    for head, (key, _) in columns.items():
        if isinstance(key, str):
            values[head] = number(row, key)
        else:
            low, high = (number(row, end) for end in key)
            values[head] = None if low is None or high is None else (low, high)
    return values


def _formats(columns: _Columns) -> dict[str, tables.Format]:
    return {head: form for head, (_, form) in columns.items()}


def _sample(rows: list[Row], what: str = "problems") -> str:
    """How much the figures rest on: the largest count, and who covers less of it."""
    n, shapes = (max((count(row, key) for row in rows), default=0) for key in ("n", "shapes"))
    words = [f"{n:,} {what} of {shapes:,} shapes" if shapes else f"{n:,} {what}"]
    words += [f"{row['model']} on {count(row):,}" for row in rows if 0 < count(row) < n]
    return "; ".join(words)


def _best(rows: list[Row], key: str) -> str | None:
    """The learned model on top of ranked ``rows``, where it has a figure."""
    known = (row["model"] for row in rows if number(row, key) is not None)
    return next((model for model in known if not is_reference(model)), None)


def reasons(results: Results) -> list[dict[str, str]]:
    """Rows with n 0 by model and reason, in the order of the results: records of model, reason and where."""
    slices: dict[tuple[str, str], dict[str, None]] = {}
    for kind in ("choice", "time"):
        rows = results[f"{kind}_rows"]
        # A key with one value in all rows tells nothing apart.
        keys = [key for key in SLICE if len({label(row, key) for row in rows}) > 1]
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
