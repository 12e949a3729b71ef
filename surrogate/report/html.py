"""`report.html`: one file that needs nothing else, from the results and the figures."""

from collections.abc import Mapping
from html import escape
from importlib import resources
from string import Template

from surrogate.report.choice_tables import (
    Table,
    choice_table,
    gpu_table,
    paired_table,
    split_table,
    stratum_table,
)
from surrogate.report.figures.predicted import MAX_POINTS
from surrogate.report.headline import QUESTION, headline, provenance, settings
from surrogate.report.html_table import html_figure, html_pairs, html_reasons, html_table
from surrogate.report.notes import CAPTIONS, DEFINITIONS
from surrogate.report.reasons import reasons
from surrogate.report.results import Results
from surrogate.report.rows import best_model, choice_rows, count
from surrogate.report.time_tables import part_tables, time_tables

CSS = resources.files("surrogate.report").joinpath("page.css")
"""Its variables --ink, --paper, --rule, --band and --blue also colour the figures."""
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>$title</title>
<style>$css</style>
</head>
<body>
<main>
<header>
<p class="kicker">SEER Surrogate, comparison of models</p>
<h1>$name</h1>
<p class="question">$question</p>
<p class="answer">$answer</p>
<nav>$contents</nav>
</header>
$sections
</main>
</body>
</html>
""")


def page(results: Results, figures: Mapping[str, str], absent: Mapping[str, str]) -> str:
    """The whole page. ``figures``: name → SVG text; ``absent``: name → why a figure is not there."""
    name = str(results.get("dataset", {}).get("name") or "unnamed data")
    sections = [(anchor, title, body) for anchor, title, body in _sections(results, figures, absent) if body]
    return _PAGE.substitute(
        title=escape(f"{name}: comparison of models"),
        css=CSS.read_text(encoding="utf-8"),
        name=escape(name),
        question=escape(QUESTION),
        answer=escape(headline(results)).replace(" %", "&nbsp;%"),
        contents=" ".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title, _ in sections),
        sections="\n".join(
            f'<section id="{anchor}">\n<h2>{escape(title)}</h2>\n{body}\n</section>'
            for anchor, title, body in sections
        ),
    )


def _sections(
    results: Results, figures: Mapping[str, str], absent: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Anchor, title and body of each section; an empty body is left out."""

    def drawn(*names: str) -> str:
        return _figures(results, [name for name in names if name in figures], figures)

    return [
        (
            "choice",
            "The choice of the algorithm",
            _join(*_choice_tables(results)) + drawn("slowdowns", "gpus"),
        ),
        (
            "parts",
            "By kind of problem and GPU",
            _join(stratum_table(results), gpu_table(results), split_table(results)),
        ),
        ("times", "The predicted times", _join(*time_tables(results)) + drawn("predicted", "buckets")),
        (
            "time-parts",
            "Times by algorithm, problem and GPU",
            _join(*part_tables(results)),
        ),
        ("missing", "What could not be judged", _missing(results, absent)),
        ("data", "The data and the folds", html_pairs(provenance(results))),
        (
            "settings",
            "The settings of the models",
            html_pairs(settings(results)) if settings(results) else "",
        ),
        ("method", "What the figures mean", html_pairs(DEFINITIONS, "terms")),
    ]


def _choice_tables(results: Results) -> list[Table]:
    """The primary slice with its paired table, and all strata beside it where they are another slice."""
    primary = choice_rows(results)
    if not primary:
        return []
    tables = [choice_table(results), paired_table(results)]
    everything = choice_rows(results, stratum="all")
    if primary[0].get("stratum", "all") != "all" and any(count(row) for row in everything):
        tables.append(choice_table(results, stratum="all"))
    return tables


def _join(*tables: Table | None) -> str:
    return "\n".join(html_table(table) for table in tables if table is not None)


def _figures(results: Results, names: list[str], figures: Mapping[str, str]) -> str:
    details = {"model": best_model(results) or "", "points": MAX_POINTS}
    drawn = [html_figure(name, figures[name], CAPTIONS[name].format(**details)) for name in names]
    return "\n".join(['\n<div class="figures">', *drawn, "</div>"]) if drawn else ""


def _missing(results: Results, absent: Mapping[str, str]) -> str:
    found = reasons(results)
    parts = [html_reasons(found)] if found else []
    parts += [f"<p>No figure “{escape(name)}”: {escape(why)}.</p>" for name, why in absent.items()]
    return "\n".join(parts)
