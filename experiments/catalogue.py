"""The experiments, and the table of their results between two markers of README.md."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from experiments.experiment import Experiment
from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError, read_toml

_CONTENT = read_toml(__file__)
NAMES: tuple[str, ...] = tuple(_CONTENT["names"])
"""All experiments, in the order of the table."""
ALONE: tuple[str, ...] = tuple(_CONTENT["alone"])
"""Experiments that measure time. They run alone, and their results differ from run to run."""
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEADER = "| question | command | time | table | figure | answer |"
RULE = "|---|---|---|---|---|---|"


def experiment(name: str) -> Experiment:
    """Return the experiment of a module name (one of `NAMES`)."""
    return import_module(f"experiments.{name}").EXPERIMENT


def table_row(name: str, command: str, seconds: float, figure: bool, answer: str) -> str:
    """Return an experiment's row: ``command`` as typed, ``figure`` False without a figure, ``seconds`` of the run."""
    drawn = f"[{name}.svg](figures/{name}.svg)" if figure else "none"
    took = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    cells = (experiment(name).question, f"`{command}`", took, f"[{name}.csv](tables/{name}.csv)", drawn, answer)
    # a pipe or a line break would end a cell
    return "| " + " | ".join(" ".join(text.split()).replace("|", "\\|") for text in cells) + " |"


def updated(text: str, rows: Mapping[str, str]) -> str:
    """Return ``text`` with the ``rows`` (name → line) between the markers. Other experiments' lines stay, in `NAMES`'
    order.

    Raises `InputError` if the markers are missing or reversed.
    """
    before, mark, rest = text.partition(BEGIN)
    old, other, after = rest.partition(END)
    lines = {name: line for line in old.splitlines() for name in NAMES if f"(tables/{name}.csv)" in line}
    lines.update(rows)
    if not (mark and other):
        raise InputError(f"README.md lacks the markers {BEGIN} … {END}; add them at the place of the table")
    table = [HEADER, RULE, *(lines[name] for name in NAMES if name in lines)]
    return "\n".join([before + BEGIN, "", *table, "", END + after])


def update_readme(path: Path, rows: Mapping[str, str]) -> None:
    """Rewrite the table in the file atomically. If there is no file, create one that contains the table only."""
    if rows:
        text = path.read_text(encoding="utf-8") if path.is_file() else f"# Results\n\n{BEGIN}\n{END}\n"
        write_text(path, updated(text, rows))
