"""Tables and figures as HTML. Everything that comes from data is escaped here."""

import re
from collections.abc import Iterable
from html import escape

from surrogate.report.choice_tables import Cell, Line, Table
from surrogate.report.reasons import Reason
from surrogate.report.style import BAND, BLUE, INK, PAPER, RULE

_VARIABLES = {
    INK: "var(--ink)",
    PAPER: "var(--paper)",
    RULE: "var(--rule)",
    BAND: "var(--band)",
    BLUE: "var(--blue)",
}
NAME_WIDTH = 80
"""Letters of a row's name: three lines of the page."""
_WORD = ' class="word"'


def html_table(table: Table) -> str:
    """``table`` in a container that scrolls sideways on its own; references are a body of their own."""
    note = f" <span>{escape(table.note)}</span>" if table.note else ""
    words = [any(_is_word(line.cells[i].text) for line in table.lines) for i in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col"{_WORD if word else ""}>{escape(name)}</th>'
        for name, word in zip(table.columns, words, strict=True)
    )
    bodies = [
        f"<tbody{kind}>{''.join(_line(line, words) for line in lines)}</tbody>"
        for kind, lines in (
            ("", [line for line in table.lines if not line.reference]),
            (' class="references"', [line for line in table.lines if line.reference]),
        )
        if lines
    ]
    return f"<h3>{escape(table.title)}{note}</h3>\n" + _scroll(table.title, heads, "\n".join(bodies))


def html_reasons(reasons: list[Reason]) -> str:
    """What was not judged, as a table of model, reason and where."""
    lines = [
        f'<tr><th scope="row">{escape(r.model)}</th><td class="text">{escape(r.reason)}</td>'
        f'<td class="text">{escape(r.where)}</td></tr>'
        for r in reasons
    ]
    heads = "".join(f'<th scope="col" class="text">{name}</th>' for name in ("model", "reason", "where"))
    return _scroll("Not judged", heads, f"<tbody>{''.join(lines)}</tbody>")


def html_pairs(pairs: Iterable[tuple[str, str]], kind: str = "facts") -> str:
    """Names and values (``facts``), or terms and definitions (``terms``: below each other on a phone)."""
    items = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f'<dl class="{kind}">\n{items}\n</dl>'


def html_figure(name: str, svg: str, caption: str) -> str:
    """``svg`` inline: ids made unique on the page, fixed colours replaced by the page's."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    body = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
        rf'<svg \1 role="img" aria-label="{escape(caption)}">',
        body,
        count=1,
    )
    return f'<figure id="figure-{name}">\n{body}<figcaption>{escape(caption)}</figcaption>\n</figure>'


def _scroll(title: str, heads: str, bodies: str) -> str:
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">\n<table>\n'
        f"<thead><tr>{heads}</tr></thead>\n{bodies}\n</table>\n</div>"
    )


def _line(line: Line, words: list[bool]) -> str:
    name, *cells = line.cells
    entries = "".join(map(_cell, cells, words[1:]))
    whole = f' title="{escape(name.text)}"' if len(name.text) > NAME_WIDTH else ""
    return f'<tr><th scope="row"{whole}>{escape(_shortened(name.text))}</th>{entries}</tr>\n'


def _shortened(name: str) -> str:
    """A very long name, as kernels have, loses its middle; the whole of it shows where the pointer rests."""
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 24]}…{name[-23:]}"


def _is_word(text: str) -> bool:
    """Whether ``text`` is no number: its column stands to the left."""
    return text[:1].isalpha() or text[:1] == "_"


def _cell(cell: Cell, word: bool) -> str:
    detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
    kind = ' class="best"' if cell.best else _WORD if word else ""
    return f"<td{kind}>{escape(cell.text)}{detail}</td>"
