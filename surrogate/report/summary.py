"""Read `results.json`, select the rows that tables show, and answer the project's question in sentences."""

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from html import escape
from itertools import repeat
from pathlib import Path
from textwrap import shorten
from typing import Any, Concatenate, ParamSpec

from surrogate.evaluation.scorecard import ORACLE, is_heuristic
from surrogate.features.errors import InputError, require_regular
from surrogate.features.families import DEFAULT_FAMILY
from surrogate.report import tables
from surrogate.report.tables import Cell, FactTable, Table, change, format_count, format_value, percent, to_csv

SCHEMA = 2
"""Newest version of `results.json` that is read. 1: paired differences are log ratios; 2: they are relative."""
STRATA = ("ungrouped", "all", "1x1s1", "1x1s2", "3x3s1", "grouped", "other")
MAX_LEARNED = 4
SLICE = ("split", "family", "stratum", "population", "gpu", "direction", "dtype", "math", "algorithm")
"""Columns that identify a slice, in the order of the CSV files."""

Row = dict[str, Any]
Results = dict[str, Any]
P = ParamSpec("P")
TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("report.toml").read_text(encoding="utf-8"))
"""The fixed texts of a report, and the columns of its tables."""

_SPANS = {"paired_vs_heuristic": "paired", "paired_pooled_vs_heuristic": "paired_pooled"}
"""Interval → prefix of its columns in CSV files, if it differs from the interval's name."""
_REMEDY = "write it again with seer compare"


@contextmanager
def readable(name: str = "results.json") -> Iterator[None]:
    """Turn the errors that damaged results cause inside this context into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{name} is damaged ({type(error).__name__}: {error}); {_REMEDY}") from error


def read_results(directory: Path) -> Results:
    """Read ``directory/results.json``. Raises `InputError` if it is missing, damaged or of a newer schema."""
    path = Path(directory) / "results.json"
    require_regular(path)
    try:
        with readable(str(path)):
            results = json.loads(path.read_text(encoding="utf-8"))
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


def _relative(row: Row) -> Row:
    """Return a choice row of schema 1 with relative differences instead of log ratios."""
    logs = {key: value for key, value in row.items() if key.startswith("paired") and isinstance(value, list)}
    return row | {key: [math.expm1(min(end, 700.0)) for end in value] for key, value in logs.items()}


def flat(row: Row) -> Row:
    """Return ``row`` with every interval as columns, as in paired_low, paired_mid and paired_high."""
    values: Row = {}
    for key, value in row.items():
        ends = ("low", "high") if key.endswith("_ci") else ("low", "mid", "high")
        is_interval = key.endswith("_ci") or key.startswith(("paired_vs_", "paired_pooled_vs_", "median_vs_"))
        names = [f"{_SPANS.get(key, key)}_{end}" for end in ends] if is_interval else [key]
        values |= zip(names, (value or [None] * len(names)) if is_interval else [value], strict=True)
    return values


def csv_text(rows: Sequence[Row]) -> str:
    """Return judged rows as CSV with the columns of the slice first. The ends of an interval are columns."""
    records = [flat(row) for row in rows]
    keys = {key for record in records for key in record}
    return to_csv(records, [key for key in ("model", *SLICE, "n", "shapes") if key in keys or not rows])


def number(row: Row, key: str) -> float | None:
    """Return ``row[key]`` as a float; None if it is missing, null or not finite."""
    value = row.get(key)
    return None if value is None or not math.isfinite(value) else float(value)


def count(row: Row, key: str = "n") -> int:
    """Return ``row[key]`` as an integer; 0 if it is missing."""
    return int(number(row, key) or 0)


def span(row: Row, key: str) -> tuple[float, ...] | None:
    """Return the ends of ``row[key]``, and the middle if it has one; None if one of them is unknown."""
    ends = [number({key: end}, key) for end in row.get(key) or (None,)]
    numbers = tuple(end for end in ends if end is not None)
    return numbers if len(numbers) == len(ends) else None


def label(row: Row, key: str) -> str:
    """Return the slice of a row along ``key``; ``all`` for a row without the key."""
    return row.get(key) or "all"


def values(rows: Iterable[Row], key: str, order: Sequence[str] = ()) -> list[str]:
    """Return the values of ``key`` among judged rows, without ``all``: those in ``order`` first, then by name."""
    found = {label(row, key) for row in rows if count(row)} - {"all"}
    return [v for v in order if v in found] + sorted(found.difference(order), key=str.casefold)


def by_family(results: Results) -> dict[str, Results]:
    """Return family → the results of its rows. If one family was judged, its name is empty.

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


def _of_family(results: Results, key: str) -> Any:
    """Return the entry of ``results[key]`` for the judged family."""
    families = values(results["choice_rows"] + results["time_rows"], "family", (DEFAULT_FAMILY,))
    return next(((results.get(key) or {}).get(family) for family in families), None)


def choice_rows(results: Results, stratum: str = "", gpu: str = "all") -> list[Row]:
    """Return the judged choice rows of one slice, best first.

    The default slice is the ungrouped problems, or all problems if no ungrouped problem is judged.
    """
    strata = (stratum,) if stratum else ("ungrouped", "all")
    return _ranked(results["choice_rows"], "slowdown_macro", strata, gpu=gpu)


def time_rows(
    results: Results, stratum: str = "all", gpu: str = "all", population: str = "all", algorithm: str = "all"
) -> list[Row]:
    """Return the judged time rows of one slice, one per model, smallest median error first."""
    part = {"gpu": gpu, "population": population, "algorithm": algorithm}
    return _ranked(results["time_rows"], "median_ape", (stratum,), **part)


def _primary_times(results: Results) -> list[Row]:
    """Return the time rows of the stratum in which models are compared with references."""
    return time_rows(results, "ungrouped") or time_rows(results)


def is_reference(model: str) -> bool:
    """Return True for a model that predicts no times, such as a library's own picker. Tables list it last."""
    return model in (ORACLE, "always-best-single") or is_heuristic(model)


def _ranked(rows: Iterable[Row], key: str, strata: Sequence[str], **part: str) -> list[Row]:
    """Return the judged rows of ``part`` and the first judged of ``strata``: references last, then by ``key``."""
    rows = [row for row in rows if count(row) and all(label(row, name) == value for name, value in part.items())]
    judged_strata = {label(row, "stratum") for row in rows}
    stratum = next((name for name in strata if name in judged_strata), strata[-1])

    def rank(row: Row) -> tuple[bool, float, str]:
        value = number(row, key)
        return is_reference(row["model"]), math.inf if value is None else value, row["model"]

    return sorted((row for row in rows if label(row, "stratum") == stratum), key=rank)


def reported_model(results: Results) -> str | None:
    """Return the model of the report's answer: the model fixed in advance, or the best learned model, or None."""
    slices = (choice_rows(results), "slowdown_macro"), (time_rows(results), "median_ape")
    judged_models = [row["model"] for rows, key in slices for row in rows if number(row, key) is not None]
    learned = [model for model in judged_models if not is_reference(model)]
    fixed = _of_family(results, "reported")
    return fixed if fixed in learned else next(iter(learned), None)


def references(results: Results) -> dict[str, str]:
    """Return the judged references by kind; a kind that is not in the results is left out."""
    rows = choice_rows(results) + time_rows(results)
    pickers = (row["model"] for row in rows if is_heuristic(row["model"]))
    kinds = {"heuristic": next(pickers, ""), **(_of_family(results, "references") or {})}
    judged_models = {row["model"] for row in rows}
    return {kind: kinds[kind] for kind in TEXTS["heads"] if kinds.get(kind) in judged_models}


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


WIDTH = 80
NAME_WIDTH = 18
"""Maximum characters of a model's name, so that the widest table fits `WIDTH`."""
MAX_REASON = 90
"""Maximum characters of a reason in the line of models that were not judged."""
MAX_OPEN_ROWS = 15
"""Number of unfolded rows of coverage, importance and costs on a page."""

_Statement = tuple[tuple[float, ...] | None, str]
"""The interval of a difference, and a sentence about it without its first capital letter."""


@readable()
def terminal_summary(results: Results) -> str:
    """Return the answer, the data, the choice and time tables and the models not judged, in 80 columns.

    The time table is over all rows; the page of the report has the other populations, too. The text has no trailing
    newline. Raises `InputError` if ``results`` is damaged.
    """
    answer = "\n\n".join("\n".join(sentences) for sentences in answers(results)).replace(" %", "\u00a0%")
    blocks = [tables.wrapped(answer, WIDTH).replace("\u00a0%", " %")]
    blocks.append(FactTable(provenance(results)).text(WIDTH))
    for table in _main_tables(results):
        formats = {**table.formats, "model": lambda name: tables.shortened(name, NAME_WIDTH)}
        blocks.append(replace(table, formats=formats).text(WIDTH))
    blocks.append(tables.wrapped(not_judged(results), WIDTH))
    return tables.printable("\n\n".join(block for block in blocks if block))


@readable()
def html_summary(results: Results) -> str:
    """Return the answer, the choice tables and the time tables as HTML for a notebook."""
    texts = filter(None, [*map(" ".join, answers(results)), not_judged(results)])
    parts = [*(f"<p>{escape(text)}</p>" for text in texts), *(table.__html__() for table in _main_tables(results))]
    return "\n".join(parts)


def _main_tables(results: Results) -> list[Table]:
    """Return the tables of choices and times for a terminal and a notebook."""
    functions = (choice_tables, time_tables, part_tables)
    return [table for tables_of in functions for table in tables_of(results, full=False)]


def answers(results: Results) -> list[list[str]]:
    """Return the sentences about each family; the first of them answers the project's question."""
    parts = [(family, _answer(part)) for family, part in by_family(results).items()]
    return [[f"{family}: {first}" if family else first, *rest] for family, (first, *rest) in parts]


def _answer(results: Results) -> list[str]:
    model = reported_model(results)
    if model is None:
        return ["No model could be judged on this data; the reasons are listed."]
    others = references(results)
    choices = {row["model"]: row for row in choice_rows(results)}
    times = {row["model"]: row for row in time_rows(results) + _primary_times(results)}
    row, trees = choices.get(model, {}), others.get("trees", "")
    own = [_picks_statement(row, kind, others) for kind in ("seer", "linear", "paper")]
    tree_picks = [
        _picks_statement(choices.get(trees, {}), kind, others) for kind in ("seer", "linear") if trees != model
    ]
    errors = [_median_statement(times, name, others) for name in dict.fromkeys((model, trees))]
    heuristic = choices.get(others.get("heuristic", ""), {})
    picks = [_picks_statement(row, "heuristic", others), _slowdowns_statement(row, heuristic), _slowdown_statement(row)]
    # Without a comparison with SEER or a linear model, the question has no answer. Then the picks come first.
    is_compared = any(own)
    order = [own, tree_picks, errors, picks] if is_compared else [picks, tree_picks, errors]
    first, *rest = [statement for part in order for statement in part if statement]
    ends, text = first
    has_verdict = model == _of_family(results, "reported") and (is_compared or not row)
    held_out = TEXTS["splits"].get(label(row or times.get(model, {}), "split"), "held-out rows")
    return [_sentence(ends, f"on {held_out}, {text}", has_verdict), *(_sentence(*statement) for statement in rest)]


def _sentence(ends: tuple[float, ...] | None, text: str, has_verdict: bool = False) -> str:
    """Return a sentence that says whether a difference is shown; with a verdict it answers yes or no."""
    if ends and ends[0] <= 0 <= ends[2]:
        return f"Not shown: {text}"
    if ends and has_verdict:
        return f"{'Yes' if ends[2] < 0 else 'No'}: {text}"
    return text[0].upper() + text[1:]


def _interval(ends: tuple[float, ...]) -> str:
    """Return the interval of a difference, without signs if both ends have the same one."""
    low, _, high = ends
    if low <= 0 <= high:
        return f"95 % interval {change(low)} to {change(high)}"
    near, far = sorted((abs(low), abs(high)))
    return f"95 % interval {percent(near)} to {percent(far)}"


def _picks_statement(row: Row, kind: str, others: Mapping[str, str]) -> _Statement | None:
    """Return how much less time the picks of a model take than the picks of a reference."""
    ends, other = span(row, f"paired_vs_{kind}"), others.get(kind)
    if ends is None or other in (None, row["model"]):
        return None
    owner = TEXTS["owners"][kind].format(_picker(other))
    amount = f"{percent(abs(ends[1]))} % {'less' if ends[1] < 0 else 'more'} time"
    return ends, f"the picks of {row['model']} take {amount} than {owner} ({other}; {_interval(ends)} %)."


def _slowdowns_statement(row: Row, heuristic: Row) -> _Statement | None:
    """Return the slowdowns of a model and of the library's picker on the same problems."""
    ends, other, pairs = span(row, "paired_vs_heuristic"), number(heuristic, "slowdown_macro"), count(heuristic)
    if ends is None or other is None or count(row, "paired_problems") != pairs or row["model"] == heuristic["model"]:
        return None
    own, picker = percent((1 + ends[1]) * other - 1), _picker(heuristic["model"])
    text = f"on the {pairs:,} problems with a pick of {picker}, {row['model']} is {own} % slower than the fastest"
    return None, f"{text} algorithm, {picker} {percent(other - 1)} %."


def _slowdown_statement(row: Row) -> _Statement | None:
    """Return how much slower than the fastest algorithm the picks of a model are."""
    slowdown, low, high = (number(row, key) for key in ("slowdown_macro", "ci_low", "ci_high"))
    if slowdown is None:
        return None
    shapes = count(row, "shapes")
    over = (f"{shapes:,} shapes, " if shapes else "") + f"{label(row, 'stratum')} problems"
    if low is not None and high is not None:
        over += f"; 95 % interval {percent(low - 1)} to {percent(high - 1)} %"
    text = f"the picks of {row['model']} are {percent(slowdown - 1)} % slower than the fastest algorithm"
    return None, f"{text} ({over})."


def _median_statement(times: Mapping[str, Row], model: str, others: Mapping[str, str]) -> _Statement | None:
    """Return the median error of the predicted times, compared with the first of SEER and the best linear model."""
    row = times.get(model, {})
    error = number(row, "median_ape")
    if error is None:
        return None
    text = f"the median time error of {model} on {label(row, 'stratum')} problems is {percent(error)} %"
    for kind in ("seer", "linear"):
        ends, other = span(row, f"median_vs_{kind}"), number(times.get(others.get(kind, ""), {}), "median_ape")
        if ends and other is not None:
            amount = f"{percent(abs(ends[1]))} points {'less' if ends[1] < 0 else 'more'}"
            return ends, f"{text}, {amount} than {TEXTS['owners'][kind]} {percent(other)} % ({_interval(ends)})."
    return None, f"{text} ({count(row):,} rows)."


def _picker(name: str) -> str:
    """Return the name of the library's own picker in words; the name itself if it is another model."""
    return TEXTS["pickers"].get(name, name.replace("-heuristic", "'s heuristic"))


def provenance(results: Results) -> list[tuple[str, str]]:
    """Return (name, text) facts about the data and the folds."""
    titles = {"name": "dataset", "gpus": "GPUs", "where": "only rows where", "also_train": "also trained on"}
    facts = {str(titles.get(key, key)): value for key, value in results.get("dataset", {}).items()}
    facts |= {"folds": results.get("folds"), "seeds": len(results.get("seeds", [])) or None}
    facts["tuning"] = results.get("tune")
    return [(name, _formatted(value)) for name, value in facts.items() if value not in (None, [], {}, "")]


def settings(results: Results) -> list[tuple[str, str]]:
    """Return (model, hyperparameters as text) of the models with hyperparameters."""
    return [(model, _formatted(chosen)) for model, chosen in results.get("settings", {}).items() if chosen]


def _formatted(value: object) -> str:
    """Return a value of the results as text. The thousands of a count are separated."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else format_value(value)


_TablesOf = Callable[Concatenate[Results, P], list[Table]]


def _each_family(tables_of: _TablesOf[P]) -> _TablesOf[P]:
    """Return a function of the results of all families; if there are several, each table names its own."""

    @wraps(tables_of)
    def of_all(results: Results, *args: P.args, **kwargs: P.kwargs) -> list[Table]:
        return [
            replace(table, title=f"{family}: {table.title}") if family else table
            for family, part in by_family(results).items()
            for table in tables_of(part, *args, **kwargs)
        ]

    return of_all


@_each_family
def choice_tables(results: Results, full: bool = True) -> list[Table]:
    """Return slowdowns and paired differences of each family's primary slice; if ``full``, hits too."""
    primary, columns = choice_rows(results), _columns("slowdowns", *["hits"] * full)
    found = [_model_table(primary, columns, "Algorithm choice", _sample(primary))] if primary else []
    return found + _differences(results, primary, "paired", "Difference in the time of the picks, %")


def _differences(results: Results, rows: list[Row], prefix: str, title: str) -> list[Table]:
    """Return a table of the differences to each reference, or none; a reference has no difference to itself."""
    others = references(results)
    keys = {kind: f"{prefix}_vs_{kind}" for kind in others}
    rows = [row | {key: None for kind, key in keys.items() if others[kind] == row["model"]} for row in rows]
    columns: _Columns = {
        TEXTS["heads"][kind].format(_picker(others[kind])): ((key,), tables.interval_change)
        for kind, key in keys.items()
        if any(map(span, rows, repeat(key)))
    }
    return [_model_table(rows, columns, title)] if columns else []


@_each_family
def time_tables(results: Results, full: bool = True) -> list[Table]:
    """Return time errors over all rows of each family; if ``full``, differences and other populations too."""
    names = {"all": "all rows", **(TEXTS["populations"] if full else {})}
    slices = {name: time_rows(results, population=population) for population, name in names.items()}
    columns = _columns("errors")
    found = [
        _model_table(rows, columns, f"Time error, {name}", _sample(rows, "rows"))
        for name, rows in slices.items()
        if rows
    ]
    title = "Difference in the median time error, percentage points"
    return found + (_differences(results, _primary_times(results), "median", title) if full else [])


@_each_family
def slice_tables(results: Results) -> list[Table]:
    """Return slowdowns by kind of problem and by GPU."""
    rows, found = results["choice_rows"], []
    strata = values(rows, "stratum", STRATA)
    names = {"stratum": [*strata, "all"] * (len(strata) > 1), "gpu": values(rows, "gpu")}
    for key, parts in names.items():
        sliced = {part: choice_rows(results, **{key: part}) for part in parts}
        found += _slice_table(sliced, choice_rows(results), key, "Slowdown", "slowdown_macro", tables.ratio)
    return found


@_each_family
def part_tables(results: Results, full: bool = True) -> list[Table]:
    """Return the median time errors by algorithm, kind of problem and GPU.

    If not ``full``, only by algorithm, and only of the reported model and the learned references.
    """
    rows, found = results["time_rows"], []
    models = {row["model"] for row in rows} if full else drawn_models(results)[: MAX_LEARNED - 1]
    results = results | {"time_rows": [row for row in rows if row["model"] in models]}
    for key in TEXTS["parts"] if full else ["algorithm"]:
        sliced = {part: time_rows(results, **{key: part}) for part in values(rows, key, STRATA)}
        found += _slice_table(sliced, time_rows(results), key, "Median time error, %,", "median_ape", percent)
    return found


@_each_family
def evidence_tables(results: Results, kind: str) -> list[Table]:
    """Return the table of coverage, importance or costs, if the results have it."""
    columns, rows = _columns(kind), results.get(kind) or []
    models, title = {row["model"] for row in rows}, TEXTS[kind]["title"]
    title = f"{title}, {min(models)}" if len(models) == 1 else title
    records = [_figures(row, columns) for row in rows]
    return [Table(records, _formats(columns), title, open_rows=MAX_OPEN_ROWS)] if records else []


def _slice_table(
    sliced: Mapping[str, list[Row]], order: list[Row], key: str, title: str, figure: str, form: tables.Format
) -> list[Table]:
    """Return a table of ``figure``: a row per slice, a column per model in the ``order`` of other rows."""
    judged_models = {row["model"] for rows in sliced.values() for row in rows}
    models = [
        name for name in dict.fromkeys([row["model"] for row in order] + sorted(judged_models)) if name in judged_models
    ]
    counted, what = ("shapes", "shapes") if figure == "slowdown_macro" else ("n", "rows")
    records = []
    for part, rows in sliced.items():
        best = _best(rows, figure)
        cells = {row["model"]: _figure_cell(row, figure, row["model"] == best) for row in rows}
        size = {what: max((count(row, counted) for row in rows), default=0)}
        records.append({"GPU" if key == "gpu" else key: part, **size, **{model: cells.get(model) for model in models}})
    formats = {what: format_count, **dict.fromkeys(models, form)}
    return [Table(records, formats, f"{title} by {TEXTS['parts'][key]}", best_mark="*")] if records else []


def _figure_cell(row: Row, figure: str, best: bool) -> Cell:
    ends = span({"ci": [row.get("ci_low"), row.get("ci_high")]}, "ci")
    return Cell(number(row, figure), tables.interval_ratio(ends) if ends else "", best)


_Columns = Mapping[str, tuple[tuple[str, ...], tables.Format]]
"""Head of a column → the key of the rows, or the keys of an interval's ends, and the format."""


def _columns(*names: str) -> _Columns:
    """Return the columns of tables of `TEXTS`."""
    found = [item for name in names for item in TEXTS[name]["columns"].items()]
    return {head: (tuple(keys), getattr(tables, form)) for head, (*keys, form) in found}


def _model_table(rows: list[Row], columns: _Columns, title: str, note: str = "") -> Table:
    """Return a table with a row per model, references last.

    The first column marks the best model, and the title names the slice.
    """
    head, ((key, *_), _) = next(iter(columns.items()))
    best = _best(rows, key) if key in ("slowdown_macro", "median_ape") else None
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


def _figures(row: Row, columns: _Columns) -> dict[str, float | str | tuple[float, ...] | None]:
    """Return a row's texts, numbers and intervals by head; None if they are unknown."""
    figures = {}
    for head, (keys, _) in columns.items():
        value = row.get(keys[0]) if len(keys) == 1 else [row.get(key) for key in keys]
        is_text, read = isinstance(value, str), span if isinstance(value, list) else number
        figures[head] = value if is_text else read({head: value}, head)
    return figures


def _formats(columns: _Columns) -> dict[str, tables.Format]:
    return {head: form for head, (_, form) in columns.items()}


def _sample(rows: list[Row], what: str = "problems") -> str:
    """Return the sample size: the largest count, and the models with a smaller one."""
    n, shapes = (max((count(row, key) for row in rows), default=0) for key in ("n", "shapes"))
    words = [f"{n:,} {what} of {shapes:,} shapes" if shapes else f"{n:,} {what}"]
    words += [f"{row['model']} on {count(row):,}" for row in rows if 0 < count(row) < n]
    return "; ".join(words)


def _best(rows: list[Row], key: str) -> str | None:
    """Return the first learned model with a figure among ranked ``rows``, or None."""
    judged_models = (row["model"] for row in rows if number(row, key) is not None)
    return next((model for model in judged_models if not is_reference(model)), None)


def _unjudged(results: Results) -> dict[tuple[str, str], dict[tuple[bool, str], None]]:
    """Return (model, reason) of rows with n 0 → the places where it applies, in order.

    A place is a pair: whether the model has other judged rows there, and the text for people. The inner dictionary is
    an ordered set.
    """
    rows = [(kind, label(row, "family"), row) for kind in ("choice", "time") for row in results[f"{kind}_rows"]]
    judged_keys = {(kind, family, row["model"]) for kind, family, row in rows if count(row)}
    has_several = len({family for _, family, _ in rows}) > 1
    found: dict[tuple[str, str], dict[tuple[bool, str], None]] = {}
    for kind, family, row in rows:
        model, reason = row["model"], row.get("reason") or "no reason was recorded"
        is_part = (kind, family, model) in judged_keys
        words = ("some " if is_part else "") + (f"{family} {kind}s" if has_several else f"{kind}s")
        if not count(row):
            found.setdefault((model, reason.removeprefix(f"{model} ")), {})[is_part, words] = None
    return found


def reasons(results: Results) -> list[dict[str, str]]:
    """Return records of model, where and reason for rows with n 0, in the order of the results."""
    return [
        {"model": model, "where": "; ".join(words for _, words in places), "reason": reason}
        for (model, reason), places in _unjudged(results).items()
    ]


def not_judged(results: Results) -> str:
    """Return one line about the models without a judged choice or without a judged time, with shortened reasons."""
    models: dict[str, list[str]] = {}
    for (model, reason), places in _unjudged(results).items():
        words = [words for is_part, words in places if not is_part]
        short = shorten(reason.split(";")[0], MAX_REASON, placeholder="…")
        text = short if words == ["choices", "times"] else f"{', '.join(words)}: {short}"
        if words:
            models.setdefault(text, []).append(model)
    texts = [f"{', '.join(names)} ({text})" for text, names in models.items()]
    return f"Not judged: {', '.join(texts)}." if texts else ""
