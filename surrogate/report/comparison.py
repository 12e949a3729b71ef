"""`compare` for Python users: its answer and tables as text and in a notebook, and its report as files."""

from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from surrogate.dataset.files import staged, write_text
from surrogate.dataset.store import Data
from surrogate.evaluation import compare as evaluation
from surrogate.evaluation.compare import Compared
from surrogate.formats.foreign_file import readable
from surrogate.report import summary
from surrogate.report.figures import draw
from surrogate.report.page import Figure, Section, page
from surrogate.report.results import DAMAGED, TEXTS, Results, by_family, csv_text, read_results, reported_model
from surrogate.report.tables import FactTable, Table, template

CAPTIONS: dict[str, str] = TEXTS["captions"]
"""Figure → caption. The names are the names of the files in figures/."""
FIGURE_FILES = tuple(f"figures/{name}.svg" for name in CAPTIONS)
"""Files of the figures. A run removes the figures that it does not draw, because they belong to an earlier run."""


@readable("results.json", DAMAGED)
def report_page(results: Results, figures: Mapping[str, str], absent: Mapping[str, str]) -> str:
    """Return the page of a comparison.

    ``figures`` maps names to SVG texts; ``absent`` maps names to the reason why a figure is missing.
    """
    family, drawn_results = next(iter(by_family(results).items()))
    model = reported_model(drawn_results) or ""

    def drawn(*names: str) -> list[Figure]:
        captions = {name: CAPTIONS[name].format(model=model) for name in names}
        prefix = f"{family}: " if family else ""
        return [Figure(name, figures[name], prefix + captions[name]) for name in names if name in figures]

    reasons, chosen, answers = summary.reasons(results), summary.settings(results), summary.answers(results)
    unevaluated = [summary.not_evaluated(results), Table(reasons, title="Reasons")] if reasons else []
    missing = [f"No figure “{name}”: {why}." for name, why in absent.items()]
    sections = [
        Section("The answer in detail", [sentence for _, *rest in answers for sentence in rest]),
        Section("The choice of the algorithm", summary.choice_tables(results), drawn("slowdowns", "gpus")),
        Section("By kind of problem and GPU", summary.slice_tables(results)),
        Section("The predicted times", summary.time_tables(results), drawn("predicted")),
        Section("Times by algorithm, problem and GPU", summary.part_tables(results)),
        *(Section(title, summary.evidence_tables(results, kind)) for kind, title in TEXTS["sections"].items()),
        Section("What could not be evaluated", unevaluated + missing),
        Section("The data and the folds", [FactTable(summary.provenance(results))]),
        Section("The settings of the models", [FactTable(chosen)] if chosen else []),
        Section("What the figures mean", [Markup(template("definitions.html").render())]),
    ]
    name = str(results.get("dataset", {}).get("name") or "unnamed data")
    answer = "\n".join(first for first, *_ in answers)
    return page(name, sections, kicker="comparison of models", question=TEXTS["question"], answer=answer)


@readable("results.json", DAMAGED)
def write_report(directory: Path) -> Path:
    """Write figures/*.svg, time_rows.csv, choice_rows.csv and report.html into the folder of ``results.json``.

    Returns the path of the page. If a parquet file is missing, the page names the reason instead of its figures. Raises
    `InputError` if results.json is missing, damaged or of a newer schema, or if a parquet file is damaged.
    """
    directory = Path(directory)
    results = read_results(directory)
    family, drawn_results = next(iter(by_family(results).items()))
    figures, absent = draw(drawn_results, directory, family)
    texts = {f"figures/{name}.svg": drawn for name, drawn in figures.items()}
    texts |= {f"{kind}.csv": csv_text(results[kind]) for kind in ("time_rows", "choice_rows")}
    texts["report.html"] = report_page(results, figures, absent)
    with staged(directory, FIGURE_FILES) as folder:
        (folder / "figures").mkdir()
        for name, text in texts.items():
            write_text(folder / name, text)
    return directory / "report.html"


class Comparison(Compared):
    """The result of a comparison, displayed as its answer and tables.

    Attributes
    ----------
    results
        The content of ``results.json``: data, folds, seeds, and the evaluated rows of times and choices.
    """

    def __repr__(self) -> str:
        return summary.terminal_summary(self.results)

    def _repr_html_(self) -> str:
        return summary.html_summary(self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of results.json."""
        return self.results

    def to_frame(self) -> pd.DataFrame:
        """Return the choice rows as a table."""
        return pd.DataFrame(self.results["choice_rows"])


@wraps(evaluation.compare)
def compare(data: Data, also_train: Sequence[Data] = (), **options: Any) -> Comparison:
    return Comparison(**vars(evaluation.compare(data, also_train, **options)))
