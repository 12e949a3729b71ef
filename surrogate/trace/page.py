"""A profile as one HTML file that needs nothing else; everything that comes from the trace is escaped."""

from html import escape
from pathlib import Path
from string import Template

from surrogate.dataset.atomic import write_text
from surrogate.report.choice_tables import Cell, Line, Table
from surrogate.report.html import CSS
from surrogate.report.html_table import html_pairs, html_table
from surrogate.trace.copies import copy_table
from surrogate.trace.kernels import kernel_table
from surrogate.trace.layer_times import layer_table, type_table
from surrogate.trace.overview import summary
from surrogate.trace.profiling import Profile
from surrogate.trace.result import Rows, show
from surrogate.trace.roofline_figure import roofline_svg

MAX_LINES = 200
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
<p class="kicker">SEER Surrogate, profile of a trace</p>
<h1>$title</h1>
<p class="answer">$answer</p>
</header>
$sections
</main>
</body>
</html>
""")


def write_page(profile: Profile, path: str | Path) -> None:
    """Write `trace_page` to ``path``, whole or not at all. Raises `InputError` where that is not possible."""
    write_text(path, trace_page(profile))


def trace_page(profile: Profile) -> str:
    """Headline, summary, layer types, layers, kernels by name with a roofline figure, copies; 200 lines a table."""
    facts = summary(profile)
    kernels = kernel_table(profile)
    figure = roofline_svg(kernels, profile)
    sections = [
        ("Layer types", _table(type_table(profile))),
        ("Layers", _table(layer_table(profile))),
        ("Kernels", (f"<figure>{figure}</figure>" if figure else "") + _table(kernels)),
        ("Copies and memsets", _table(copy_table(profile))),
        ("Summary", html_pairs((key, show(value)) for key, value in facts.items())),
    ]
    return _PAGE.substitute(
        title=escape(str(facts["trace"])),
        css=CSS.read_text(encoding="utf-8"),
        answer=escape(_answer(facts)),
        sections="\n".join(f"<section>\n<h2>{name}</h2>\n{body}\n</section>" for name, body in sections),
    )


def _answer(facts: dict[str, object]) -> str:
    busy, gpu = facts["busy_pct"], facts["gpu"] or "unknown device"
    device = (
        f"the device ({gpu}) was busy {show(busy)} % of its span"
        if busy is not None
        else "no device activity"
    )
    return f"{show(facts['iteration_ms'])} ms per iteration ({facts['iterations']}); {device}."


def _table(rows: Rows) -> str:
    if not len(rows):
        return "<p>None in this trace.</p>"
    columns = tuple(rows.rows[0])
    lines = tuple(Line(tuple(Cell(show(row[c])) for c in columns)) for row in rows.rows[:MAX_LINES])
    more = f"first {MAX_LINES} of {len(rows):,}" if len(rows) > MAX_LINES else ""
    note = "; ".join(text for text in (more, *rows.notes) if text)
    return html_table(Table(rows.title, columns, lines, note))
