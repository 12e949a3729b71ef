"""The figures of the pages come from committed tables, and the commands beside the papers' claims run."""

import re
import shlex
from pathlib import Path

import pytest

from experiments.experiment import HOME
from experiments.pages import FRONT, NAMES, TEMPLATES

GOALS = re.compile(r"(?<![\d.])(?:5|10|85 to 95|90|95) %|over 1 ms")
"""Goals and thresholds that templates may name."""
FIGURE = re.compile(r"\d\.\d|[×~]\s?\d|\d+ ?%|\d+ (?:ms|µs|GiB|GB/s)\b")
"""Pattern of a measured figure."""
PLACES = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|`[^`]*`", re.DOTALL)
"""Pattern of computed text and of code."""


@pytest.mark.parametrize("name", [*NAMES, FRONT])
def test_a_template_has_no_figure_of_its_own(name: str) -> None:
    text = PLACES.sub("", (TEMPLATES / f"{name}.md.j2").read_text(encoding="utf-8"))
    figures = FIGURE.findall(GOALS.sub("", text))
    assert not figures, f"{figures}: take them from a table"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_short_and_its_cells_are(name: str) -> None:
    """A page has at most 250 lines, and a cell 12 words; the list of GPUs has longer ones."""
    lines = (HOME / f"{name}.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= (60 if name == "README" else 250)
    cells = [cell for line in lines if line.startswith("|") for cell in re.sub(r"`[^`]*`", "`…`", line).split("|")]
    assert name == "gpus" or max(len(cell.split()) for cell in cells) <= 12


PAPER = (HOME / "paper.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"\| `(seer [^`]+)` \|", PAPER[PAPER.index("## Claims") :])))


@pytest.mark.slow
@pytest.mark.parametrize("command", [text for text in COMMANDS if not re.search(r"\b[A-Z_]{3,}\b", text)])
def test_a_command_beside_a_claim_runs_in_a_clone(command: str, seer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands with a file of the reader, written in capitals, are left out."""
    monkeypatch.chdir(Path(HOME).parent)
    assert seer(*shlex.split(command)[1:]).succeeded().out
