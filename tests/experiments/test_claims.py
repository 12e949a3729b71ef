"""The rows and figures of the experiments page agree with the committed tables."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from experiments.catalogue import BEGIN, END, NAMES, table_row
from experiments.experiment import HOME

PAGE = (HOME / "README.md").read_text(encoding="utf-8")
LINES = PAGE[PAGE.index(BEGIN) : PAGE.index(END)].splitlines()
ROWS = {name: line for line in LINES for name in NAMES if f"(tables/{name}.csv)" in line}
MORE_THAN_A_TABLE = {"tuning", "cpu_choice", "speed"}
"""Experiments whose answers need more than their tables."""
FIGURE = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?:(?: %|×| ms| µs| s|GB/s)(?!\w))")
"""Pattern of a number with its unit."""
SECTIONS = ("## The five papers, table by table", "## Reproducing the paper")


def rows_of(section: str) -> list[list[str]]:
    """Return the cells of the tables of a section, without their headings."""
    text = PAGE[PAGE.index(section) + len(section) :].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


CLAIMS = {cells[0]: cells for section in SECTIONS for cells in rows_of(section)}
every_claim = pytest.mark.parametrize("cells", CLAIMS.values(), ids=CLAIMS)


@pytest.mark.parametrize("name", [name for name in ROWS if name not in MORE_THAN_A_TABLE])
def test_a_row_matches_its_committed_table(name: str) -> None:
    """The expected answer is computed from the table that the run wrote."""
    answer = import_module(f"experiments.{name}").answer(pd.read_csv(HOME / "tables" / f"{name}.csv"))
    expected = table_row(name, "", 0.0, figure=False, answer=answer).rpartition(" | ")[2]
    remedy = f"run python -m experiments.all --only {name}, and commit its table"
    assert ROWS[name].rpartition(" | ")[2] == expected, remedy


@every_claim
def test_a_figure_compared_with_a_paper_is_printed_by_its_command(cells: list[str]) -> None:
    """If the command is an experiment, each figure is in the experiment's row or is the paper's own."""
    paper, command, *rest = cells
    names = re.findall(r"experiments\.(\w+)|`(\w+)`", command)
    printed = paper + "".join(ROWS.get(module or alone, "") for module, alone in names)
    figures = [figure for text in rest for figure in FIGURE.findall(text)]
    unknown = [figure for figure in figures if not re.search(rf"(?<![\d.,]){re.escape(figure)}", printed)]
    assert not (unknown and any(module for module, _ in names)), f"{', '.join(unknown)}: no run of {command} prints it"


COMMANDS = {text for cells in CLAIMS.values() for text in re.findall(r"`(seer [^`]+)`", cells[1])}
COMMANDS = sorted(text for text in COMMANDS if not re.search(r"\b[A-Z_]{3,}\b|…", text))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_compared_with_a_paper_runs_in_a_clone(command: str, seer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands with a file of the reader, written in capitals, are left out."""
    monkeypatch.chdir(Path(HOME).parent)
    assert seer(*shlex.split(command)[1:]).succeeded().out


@pytest.mark.parametrize("section", ["## Speed", "## Today's kernels", "## Your own kernels"])
def test_a_decimal_figure_of_a_section_is_in_a_table_that_it_names(section: str) -> None:
    """A value may be divided by 1,000 (µs to ms) or 1,024 (MiB to GiB), and is rounded as printed."""
    text = PAGE[PAGE.index(section) :].partition("\n## ")[0]
    names = dict.fromkeys(re.findall(r"(?:experiments\.|tables/)(\w+)", text))
    tables = [pd.read_csv(path) for path in (HOME / "tables" / f"{name}.csv" for name in names) if path.is_file()]
    values = {value for table in tables for value in table.select_dtypes("number").to_numpy().ravel().tolist()}
    allowed = {f"{value / unit:,.{digits}f}" for value in values for unit in (1, 1000, 1024) for digits in (1, 2, 3)}
    figures = re.findall(r"(?<![\w.,-])\d[\d,]*\.\d+(?![\d.])", text)
    printed = "".join(ROWS.get(name, "") for name in names)
    unknown = [figure for figure in figures if figure not in allowed and figure not in printed]
    assert not unknown, f"{', '.join(unknown)}: no table that {section!r} names has it"


def test_figures_of_the_readme_comparison_are_on_the_experiments_page() -> None:
    """Each row has figures, and all are on the experiments page or in the table of products."""
    front = (HOME.parent / "README.md").read_text(encoding="utf-8")
    compared = front[front.index("| predicted |") :].partition("\n\n")[0].splitlines()[2:]
    assert len(compared) > 4
    products = pd.read_csv(HOME / "tables" / "todays_gemm.csv")
    allowed = PAGE + " ".join(f"{value:.1f} %" for value in products["median_error_pct"]) + f" {products['n'].tolist()}"
    for line in compared:
        figures = re.findall(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?! %)|\d+(?:\.\d+)? %", line)
        unknown = [text for text in figures if text not in allowed and text.replace(",", "") not in allowed]
        assert figures and not unknown, f"{', '.join(unknown)}: {line}"
