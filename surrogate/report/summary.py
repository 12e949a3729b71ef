"""The summary of a comparison: its answer in sentences, and its tables."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from itertools import repeat
from textwrap import shorten
from typing import Concatenate, ParamSpec

from surrogate.features import printable
from surrogate.formats.foreign_file import readable
from surrogate.report import results as stored, tables
from surrogate.report.results import ResultRow, Results, count, interval, label, number, references, values
from surrogate.report.tables import Cell, FactTable, Table, change, format_count, format_value, html_text, percent

P = ParamSpec("P")
WIDTH = 80
NAME_WIDTH = 18
"""Maximum characters of a model's name, so that the widest table fits `WIDTH`."""
MAX_REASON = 90
"""Maximum characters of a reason in the line of models that were not evaluated."""
MAX_OPEN_ROWS = 15
"""Number of unfolded rows of coverage, importance and costs on a page."""

_Statement = tuple[tuple[float, ...] | None, str]
"""The interval of a difference, and a sentence about it without its first capital letter."""


@readable("results.json", stored.DAMAGED)
def terminal_summary(results: Results) -> str:
    """Return the answer, the data, the choice and time tables and the models not evaluated, in 80 columns.

    The time table is over all rows; the page of the report has the other populations, too. The text has no trailing
    newline. Raises `InputError` if ``results`` is damaged.
    """
    answer = "\n\n".join("\n".join(map(printable, lines)) for lines in answers(results)).replace(" %", "\u00a0%")
    blocks = [tables.wrapped(answer, WIDTH).replace("\u00a0%", " %")]
    blocks.append(FactTable(provenance(results)).text(WIDTH))
    for table in _main_tables(results):
        formats = {**table.formats, "model": lambda name: tables.shortened(name, NAME_WIDTH)}
        blocks.append(replace(table, formats=formats).text(WIDTH))
    blocks.append(tables.wrapped(printable(not_evaluated(results)), WIDTH))
    return "\n\n".join(block for block in blocks if block)


@readable("results.json", stored.DAMAGED)
def html_summary(results: Results) -> str:
    """Return the answer, the choice tables and the time tables as HTML for a notebook."""
    texts = filter(None, [*map(" ".join, answers(results)), not_evaluated(results)])
    parts = [*(f"<p>{html_text(text)}</p>" for text in texts), *(table.__html__() for table in _main_tables(results))]
    return "\n".join(parts)


def _main_tables(results: Results) -> list[Table]:
    """Return the tables of choices and times for a terminal and a notebook."""
    functions = (choice_tables, time_tables, part_tables)
    return [table for tables_of in functions for table in tables_of(results, full=False)]


def answers(results: Results) -> list[list[str]]:
    """Return the sentences about each family; the first of them answers the project's question."""
    found = [(family, _answer(family_results)) for family, family_results in stored.by_family(results).items()]
    return [[f"{family}: {first}" if family else first, *rest] for family, (first, *rest) in found]


def _answer(results: Results) -> list[str]:
    model = stored.reported_model(results)
    if model is None:
        return ["No model could be evaluated on this data; the reasons are listed."]
    others = references(results)
    choices = {row["model"]: row for row in stored.choice_rows(results)}
    times = {row["model"]: row for row in stored.time_rows(results) + stored.primary_time_rows(results)}
    row, trees = choices.get(model, {}), others.get("trees", "")
    own = [_picks_statement(row, kind, others) for kind in ("seer", "linear", "paper")]
    by_trees = [_picks_statement(choices.get(trees, {}), kind, others) for kind in ("seer", "linear") if trees != model]
    errors = [_median_statement(times, name, others) for name in dict.fromkeys((model, trees))]
    heuristic = choices.get(others.get("heuristic", ""), {})
    picks = [_picks_statement(row, kind, others) for kind in ("heuristic", "first_ten")]
    picks += [_slowdowns_statement(row, heuristic), _slowdown_statement(row)]
    # Without a comparison with SEER or a linear model, the question has no answer. Then the picks come first.
    is_compared = any(own)
    order = [own, by_trees, errors, picks] if is_compared else [picks, by_trees, errors]
    first, *rest = [statement for statements in order for statement in statements if statement]
    ends, text = first
    has_verdict = model == stored.family_entry(results, "reported") and (is_compared or not row)
    held_out = stored.TEXTS["splits"].get(label(row or times.get(model, {}), "split"), "held-out rows")
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


def _picks_statement(row: ResultRow, kind: str, others: Mapping[str, str]) -> _Statement | None:
    """Return how much less time the picks of a model take than the picks of a reference."""
    ends, other = interval(row, f"paired_vs_{kind}"), others.get(kind)
    if ends is None or other in (None, row["model"]):
        return None
    owner = stored.TEXTS["owners"][kind].format(_picker(other))
    amount = f"{percent(abs(ends[1]))} % {'less' if ends[1] < 0 else 'more'} time"
    return ends, f"the picks of {row['model']} take {amount} than {owner} ({other}; {_interval(ends)} %)."


def _slowdowns_statement(row: ResultRow, heuristic: ResultRow) -> _Statement | None:
    """Return the slowdowns of a model and of the library's picker on the same problems."""
    ends, other, pairs = interval(row, "paired_vs_heuristic"), number(heuristic, "slowdown_macro"), count(heuristic)
    if ends is None or other is None or count(row, "paired_problems") != pairs or row["model"] == heuristic["model"]:
        return None
    own, picker = percent((1 + ends[1]) * other - 1), _picker(heuristic["model"])
    text = f"on the {pairs:,} problems with a pick of {picker}, {row['model']} is {own} % slower than the fastest"
    return None, f"{text} algorithm, {picker} {percent(other - 1)} %."


def _slowdown_statement(row: ResultRow) -> _Statement | None:
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


def _median_statement(times: Mapping[str, ResultRow], model: str, others: Mapping[str, str]) -> _Statement | None:
    """Return the median error of the predicted times, compared with the first of SEER and the best linear model."""
    row = times.get(model, {})
    error = number(row, "median_ape")
    if error is None:
        return None
    text = f"the median time error of {model} on {label(row, 'stratum')} problems is {percent(error)} %"
    for kind in ("seer", "linear"):
        ends, other = interval(row, f"median_vs_{kind}"), number(times.get(others.get(kind, ""), {}), "median_ape")
        if ends and other is not None:
            amount = f"{percent(abs(ends[1]))} points {'less' if ends[1] < 0 else 'more'}"
            return ends, f"{text}, {amount} than {stored.TEXTS['owners'][kind]} {percent(other)} % ({_interval(ends)})."
    return None, f"{text} ({count(row):,} rows)."


def _picker(name: str) -> str:
    """Return the name of the library's own picker in words; the name itself if it is another model."""
    return stored.TEXTS["pickers"].get(name, name.replace("-heuristic", "'s heuristic"))


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
        families = {name: tables_of(part, *args, **kwargs) for name, part in stored.by_family(results).items()}
        found = ((f"{name}: " * bool(name), table) for name, tables in families.items() for table in tables)
        return [replace(table, title=f"{prefix}{table.title}") for prefix, table in found]

    return of_all


@_each_family
def choice_tables(results: Results, full: bool = True) -> list[Table]:
    """Return slowdowns and paired differences of each family's primary slice; if ``full``, hits too."""
    primary, columns = stored.choice_rows(results), _columns("slowdowns", *["hits"] * full)
    found = [_model_table(primary, columns, "Algorithm choice", _sample(primary))] if primary else []
    return found + _differences(results, primary, "paired", "Difference in the time of the picks, %")


def _differences(results: Results, rows: list[ResultRow], prefix: str, title: str) -> list[Table]:
    """Return a table of the differences to each reference, or none; a reference has no difference to itself."""
    others = references(results)
    keys = {kind: f"{prefix}_vs_{kind}" for kind in others}
    rows = [row | {key: None for kind, key in keys.items() if others[kind] == row["model"]} for row in rows]
    columns: _Columns = {
        stored.TEXTS["heads"][kind].format(_picker(others[kind])): ((key,), tables.interval_change)
        for kind, key in keys.items()
        if any(map(interval, rows, repeat(key)))
    }
    return [_model_table(rows, columns, title)] if columns else []


@_each_family
def time_tables(results: Results, full: bool = True) -> list[Table]:
    """Return time errors over all rows of each family; if ``full``, differences and other populations too."""
    names = {"all": "all rows", **(stored.TEXTS["populations"] if full else {})}
    slices = {name: stored.time_rows(results, population=population) for population, name in names.items()}
    columns = _columns("errors")
    found = [
        _model_table(rows, columns, f"Time error, {name}", _sample(rows, "rows"))
        for name, rows in slices.items()
        if rows
    ]
    title = "Difference in the median time error, percentage points"
    return found + (_differences(results, stored.primary_time_rows(results), "median", title) if full else [])


@_each_family
def slice_tables(results: Results) -> list[Table]:
    """Return slowdowns by kind of problem and by GPU."""
    rows, found = results["choice_rows"], []
    strata = values(rows, "stratum", stored.STRATA)
    for key, slice_values in {"stratum": [*strata, "all"] * (len(strata) > 1), "gpu": values(rows, "gpu")}.items():
        sliced = {value: stored.choice_rows(results, **{key: value}) for value in slice_values}
        found += _slice_table(sliced, stored.choice_rows(results), key, "Slowdown", "slowdown_macro", tables.ratio)
    return found


@_each_family
def part_tables(results: Results, full: bool = True) -> list[Table]:
    """Return the median time errors by algorithm, kind of problem and GPU.

    If not ``full``, only by algorithm, and only of the reported model and the learned references.
    """
    rows, found = results["time_rows"], []
    models = {row["model"] for row in rows} if full else stored.drawn_models(results)[: stored.MAX_LEARNED - 1]
    results = results | {"time_rows": [row for row in rows if row["model"] in models]}
    for key in stored.TEXTS["parts"] if full else ["algorithm"]:
        sliced = {value: stored.time_rows(results, **{key: value}) for value in values(rows, key, stored.STRATA)}
        found += _slice_table(sliced, stored.time_rows(results), key, "Median time error, %,", "median_ape", percent)
    return found


@_each_family
def evidence_tables(results: Results, kind: str) -> list[Table]:
    """Return the table of coverage, importance or costs, if the results have it."""
    columns, rows = _columns(kind), results.get(kind) or []
    models, title = {row["model"] for row in rows}, stored.TEXTS[kind]["title"]
    title = f"{title}, {min(models)}" if len(models) == 1 else title
    records = [_figures(row, columns) for row in rows]
    return [Table(records, _formats(columns), title, open_rows=MAX_OPEN_ROWS)] if records else []


def _slice_table(
    parts: Mapping[str, list[ResultRow]], order: list[ResultRow], key: str, title: str, figure: str, form: tables.Format
) -> list[Table]:
    """Return a table of ``figure``: a row per slice, a column per model in the ``order`` of other rows."""
    found = {row["model"] for rows in parts.values() for row in rows}
    models = [name for name in dict.fromkeys([row["model"] for row in order] + sorted(found)) if name in found]
    counted, what = ("shapes", "shapes") if figure == "slowdown_macro" else ("n", "rows")
    records = []
    for value, rows in parts.items():
        best = _best(rows, figure)
        cells = {row["model"]: _figure_cell(row, figure, row["model"] == best) for row in rows}
        size = {what: max((count(row, counted) for row in rows), default=0)}
        records.append({"GPU" if key == "gpu" else key: value, **size, **{model: cells.get(model) for model in models}})
    formats = {what: format_count, **dict.fromkeys(models, form)}
    return [Table(records, formats, f"{title} by {stored.TEXTS['parts'][key]}", best_mark="*")] if records else []


def _figure_cell(row: ResultRow, figure: str, best: bool) -> Cell:
    ends = interval({"ci": [row.get("ci_low"), row.get("ci_high")]}, "ci")
    return Cell(number(row, figure), tables.interval_ratio(ends) if ends else "", best)


_Columns = Mapping[str, tuple[tuple[str, ...], tables.Format]]
"""Head of a column → the key of the rows, or the keys of an interval's ends, and the format."""


def _columns(*names: str) -> _Columns:
    """Return the columns of tables of `TEXTS`."""
    found = [item for name in names for item in stored.TEXTS[name]["columns"].items()]
    return {head: (tuple(keys), getattr(tables, form)) for head, (*keys, form) in found}


def _model_table(rows: list[ResultRow], columns: _Columns, title: str, note: str = "") -> Table:
    """Return a table with a row per model, references last.

    The first column marks the best model, and the title names the slice.
    """
    head, ((key, *_), _) = next(iter(columns.items()))
    best = _best(rows, key) if key in ("slowdown_macro", "median_ape") else None
    records = [{"model": row["model"], **_figures(row, columns)} for row in rows]
    for record in records:
        record[head] = Cell(record[head], best=record["model"] == best)
    covered = "nothing evaluated"
    if rows:
        labels = [label(rows[0], key) for key in ("gpu", "direction", "dtype", "math")]
        labels = [f"split by {label(rows[0], 'split')}", *(value for value in labels if value != "all")]
        covered = ", ".join([f"{label(rows[0], 'stratum')} problems", *labels])
    references = sum(stored.is_reference(row["model"]) for row in rows)
    return Table(records, _formats(columns), f"{title}, {covered}", note, references=references)


def _figures(row: ResultRow, columns: _Columns) -> dict[str, float | str | tuple[float, ...] | None]:
    """Return a row's texts, numbers and intervals by head; None if they are unknown."""
    figures = {}
    for head, (keys, _) in columns.items():
        value = row.get(keys[0]) if len(keys) == 1 else [row.get(key) for key in keys]
        is_text, read = isinstance(value, str), interval if isinstance(value, list) else number
        figures[head] = value if is_text else read({head: value}, head)
    return figures


def _formats(columns: _Columns) -> dict[str, tables.Format]:
    return {head: form for head, (_, form) in columns.items()}


def _sample(rows: list[ResultRow], what: str = "problems") -> str:
    """Return the sample size: the largest count, and the models with a smaller one."""
    n, shapes = (max((count(row, key) for row in rows), default=0) for key in ("n", "shapes"))
    words = [f"{n:,} {what} of {shapes:,} shapes" if shapes else f"{n:,} {what}"]
    words += [f"{row['model']} on {count(row):,}" for row in rows if 0 < count(row) < n]
    return "; ".join(words)


def _best(rows: list[ResultRow], key: str) -> str | None:
    """Return the first learned model with a figure among ranked ``rows``, or None."""
    evaluated_models = (row["model"] for row in rows if number(row, key) is not None)
    return next((model for model in evaluated_models if not stored.is_reference(model)), None)


def _unevaluated(results: Results) -> dict[tuple[str, str], dict[tuple[bool, str], None]]:
    """Return (model, reason) of rows with n 0 → the places where it applies, in order.

    A place is a pair: whether the model has other evaluated rows there, and the text for people. The inner dictionary
    is an ordered set.
    """
    rows = [(kind, label(row, "family"), row) for kind in ("choice", "time") for row in results[f"{kind}_rows"]]
    evaluated_keys = {(kind, family, row["model"]) for kind, family, row in rows if count(row)}
    has_several = len({family for _, family, _ in rows}) > 1
    found: dict[tuple[str, str], dict[tuple[bool, str], None]] = {}
    for kind, family, row in rows:
        model, reason = row["model"], row.get("reason") or "no reason was recorded"
        is_part = (kind, family, model) in evaluated_keys
        words = ("some " if is_part else "") + (f"{family} {kind}s" if has_several else f"{kind}s")
        if not count(row):
            found.setdefault((model, reason.removeprefix(f"{model} ")), {})[is_part, words] = None
    return found


def reasons(results: Results) -> list[dict[str, str]]:
    """Return records of model, where and reason for rows with n 0, in the order of the results."""
    return [
        {"model": model, "where": "; ".join(words for _, words in places), "reason": reason}
        for (model, reason), places in _unevaluated(results).items()
    ]


def not_evaluated(results: Results) -> str:
    """Return one line about the models without evaluated choices or without evaluated times, with short reasons."""
    models: dict[str, list[str]] = {}
    for (model, reason), places in _unevaluated(results).items():
        words = [words for is_part, words in places if not is_part]
        short = shorten(reason.split(";")[0], MAX_REASON, placeholder="…")
        text = short if words == ["choices", "times"] else f"{', '.join(words)}: {short}"
        if words:
            models.setdefault(text, []).append(model)
    texts = [f"{', '.join(names)} ({text})" for text, names in models.items()]
    return f"Not evaluated: {', '.join(texts)}." if texts else ""
