"""HTML pages that need no other file: the shell that any report fills, and the report of a comparison."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markupsafe import Markup

from surrogate.dataset.files import staged, write_text
from surrogate.report import summary
from surrogate.report.style import BAND, BLUE, INK, PAPER, RULE
from surrogate.report.summary import TEXTS, Results, by_family, csv_text, read_results, readable, reported_model
from surrogate.report.tables import Facts, Table, template

CAPTIONS: dict[str, str] = TEXTS["captions"]
"""Figure → caption; the names are also the files' names under figures/."""
FIGURE_FILES = tuple(f"figures/{name}.svg" for name in CAPTIONS)
"""What a report may draw; one that this run does not draw is removed, so that an earlier run's cannot pass for it."""
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
    parts: Sequence[Table | Facts | Markup | str]
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


@readable()
def report_page(results: Results, figures: Mapping[str, str], absent: Mapping[str, str]) -> str:
    """The page of a comparison. ``figures``: name → SVG text; ``absent``: name → why a figure is not there."""
    family, drawn_part = next(iter(by_family(results).items()))
    model = reported_model(drawn_part) or ""

    def drawn(*names: str) -> list[Figure]:
        captions = {name: CAPTIONS[name].format(model=model) for name in names}
        whose = f"{family}: " if family else ""
        return [Figure(name, figures[name], whose + captions[name]) for name in names if name in figures]

    reasons, chosen, answers = summary.reasons(results), summary.settings(results), summary.answers(results)
    unjudged = [summary.not_judged(results), Table(reasons, title="Reasons")] if reasons else []
    details = [sentence for _, *rest in answers for sentence in rest]
    missing = [f"No figure “{name}”: {why}." for name, why in absent.items()]
    sections = [
        Section("The answer in detail", details),
        Section("The choice of the algorithm", summary.choice_tables(results), drawn("slowdowns", "gpus")),
        Section("By kind of problem and GPU", summary.slice_tables(results)),
        Section("The predicted times", summary.time_tables(results), drawn("predicted", "buckets")),
        Section("Times by algorithm, problem and GPU", summary.part_tables(results)),
        *(Section(title, summary.evidence_tables(results, kind)) for kind, title in TEXTS["sections"].items()),
        Section("What could not be judged", unjudged + missing),
        Section("The data and the folds", [Facts(summary.provenance(results))]),
        Section("The settings of the models", [Facts(chosen)] if chosen else []),
        Section("What the figures mean", [Markup(template("definitions.html").render())]),
    ]
    name = str(results.get("dataset", {}).get("name") or "unnamed data")
    answer = "\n".join(first for first, *_ in answers)
    return page(name, sections, kicker="comparison of models", question=TEXTS["question"], answer=answer)


@readable()
def write_report(directory: Path) -> Path:
    """Write figures/*.svg, time_rows.csv, choice_rows.csv and report.html beside ``directory/results.json``.

    Returns the page's path. A missing parquet file costs its figures, with the reason on the page. Raises
    `InputError` where results.json is missing, damaged or of a newer schema, or a parquet file is damaged.
    """
    from surrogate.report.figures import draw

    directory = Path(directory)
    results = read_results(directory)
    family, part = next(iter(by_family(results).items()))
    figures, absent = draw(part, directory, family)
    texts = {f"figures/{name}.svg": drawn for name, drawn in figures.items()}
    texts |= {f"{kind}.csv": csv_text(results[kind]) for kind in ("time_rows", "choice_rows")}
    texts["report.html"] = report_page(results, figures, absent)
    with staged(directory, FIGURE_FILES) as folder:
        (folder / "figures").mkdir()
        for name, text in texts.items():
            write_text(folder / name, text)
    return directory / "report.html"
