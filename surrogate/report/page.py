"""HTML pages that need no other file: the shell that any report fills."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from surrogate.report.style import BAND, BLUE, INK, PAPER, RULE
from surrogate.report.tables import FactTable, Table, template

Bar = tuple[float, float, int, str, str]
"""Start and length in µs, fill, text inside the bar, text on hover."""
_VARIABLES = {INK: "ink", PAPER: "paper", RULE: "rule", BAND: "band", BLUE: "blue"}
"""Colour of a figure → the page's variable, which differs in dark mode."""


@dataclass(frozen=True, slots=True)
class Figure:
    """An SVG with its caption. ``name`` makes its ids unique on the page."""

    name: str
    svg: str
    caption: str

    def __html__(self) -> str:
        """The SVG inline: as wide as its place, in the page's colours."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", body)
        for colour, variable in _VARIABLES.items():
            body = body.replace(colour, f"var(--{variable})")
        caption = escape(self.caption)
        box = re.search(r'viewBox="[^"]*"', body)
        opening = f'<svg {box[0] if box else ""} role="img" aria-label="{caption}">'
        body = opening + body[body.index(">") + 1 :]
        return f'<figure id="figure-{self.name}">\n{body}<figcaption>{caption}</figcaption>\n</figure>'


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: tables, facts, HTML and paragraphs, then figures side by side. An empty one is left out."""

    title: str
    parts: Sequence[Table | FactTable | Markup | str]
    figures: Sequence[Figure] = ()

    @property
    def anchor(self) -> str:
        """What a link to the section names."""
        return re.sub(r"\W+", "-", self.title.lower())


ZOOM = (1, 4, 16)
"""How many times as wide as its place a chart of lanes may become; `page.html.j2` has a style for each."""


def lanes_chart(
    name: str,
    caption: str,
    lanes: Mapping[str, Sequence[Bar]],
    legend: Mapping[int, str],
    whole_us: float,
    zoom: Sequence[int] = (),
) -> Markup:
    """Bars in lanes (by label) of ``whole_us`` µs as inline SVG, as wide as its place with letters of one size.

    Of the fills, 0 to 7 differ in colour and hatch, 8 is the others'; ``legend`` says what each stands for. ``zoom``:
    how many times as wide a reader may make it, of `ZOOM`; it then scrolls, by style sheet alone.
    """
    given = {"name": name, "caption": caption, "lanes": lanes, "legend": legend, "whole": whole_us, "zoom": zoom}
    return Markup(template("lanes.html.j2").render(**given))


def page(title: str, sections: Sequence[Section], *, kicker: str, question: str = "", answer: str = "") -> str:
    """A whole HTML page. All texts are escaped; ``kicker`` says what kind of page it is, in a line above the title."""
    shown = [section for section in sections if section.parts or section.figures]
    texts = {"kicker": kicker, "question": question, "answer": answer}
    return template("page.html.j2").render(title=title, sections=shown, zoom=ZOOM, **texts)
