"""HTML pages in a single file, for any report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from surrogate.report.style import BAND, BLUE, INK, PAPER, RULE
from surrogate.report.tables import FactTable, Table, html_text, template

Bar = tuple[float, float, int, str, str]
"""Start and length in µs, fill, text inside the bar, text on hover."""
_VARIABLES = {INK: "ink", PAPER: "paper", RULE: "rule", BAND: "band", BLUE: "blue"}
"""Colour of a figure → variable of the page, which differs in dark mode."""


@dataclass(frozen=True, slots=True)
class Figure:
    """An SVG with its caption. ``name`` is the prefix of its ids, which makes them unique on the page."""

    name: str
    svg: str
    caption: str

    def __html__(self) -> str:
        """Return the SVG inline, as wide as its container and in the colours of the page."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", body)
        for colour, variable in _VARIABLES.items():
            body = body.replace(colour, f"var(--{variable})")
        caption = html_text(self.caption)
        box = re.search(r'viewBox="[^"]*"', body)
        body = f'<svg {box[0] if box else ""} role="img" aria-label="{caption}">' + body[body.index(">") + 1 :]
        return f'<figure id="figure-{self.name}">\n{body}<figcaption>{caption}</figcaption>\n</figure>'


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: tables, facts, HTML and paragraphs, then figures. An empty section is left out."""

    title: str
    parts: Sequence[Table | FactTable | Markup | str]
    figures: Sequence[Figure] = ()

    @property
    def anchor(self) -> str:
        """The id of the section, for links."""
        return re.sub(r"\W+", "-", self.title.lower())


ZOOM = (1, 4, 16)
"""Widths of a chart of lanes, in multiples of its container. `page.html.j2` has a style for each."""


def lanes_chart(
    name: str,
    caption: str,
    lanes: Mapping[str, Sequence[Bar]],
    legend: Mapping[int, str],
    duration_us: float,
    zoom: Sequence[int] = (),
) -> Markup:
    """Return bars in lanes (by label) over ``duration_us`` µs as inline SVG, as wide as its container.

    ``legend`` explains the fills. Fills 0 to 7 differ in colour and hatch; 8 is the fill of the others. ``zoom`` lists
    the widths of `ZOOM` that a reader may choose. A wide chart scrolls.
    """
    values = {"name": name, "caption": caption, "lanes": lanes, "legend": legend, "duration": duration_us, "zoom": zoom}
    return Markup(template("lanes.html.j2").render(**values))


def page(title: str, sections: Sequence[Section], *, kicker: str, question: str = "", answer: str = "") -> str:
    """Return an HTML page. All texts are escaped. ``kicker`` names the kind of page, in a line above the title."""
    filled = [section for section in sections if section.parts or section.figures]
    texts = {"kicker": kicker, "question": question, "answer": answer}
    return template("page.html.j2").render(title=title, sections=filled, zoom=ZOOM, **texts)
