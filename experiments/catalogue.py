"""The experiments, and their results table in README.md: a row each, between two markers, replaced by its own runs."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from experiments.experiment import Experiment
from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError

NAMES = (
    "test_set_i",
    "test_set_ii",
    "picker",
    "same_rows",
    "learning_curve",
    "leave_one_gpu_out",
    "calibration",
    "miopen",
    "small_to_large",
    "versions",
    "worst_errors",
    "winners_3x3",
    "ablation",
    "counters",
    "networks",
    "end_to_end",
    "coverage",
    "operators",
    "dense_unseen_gpu",
    "iteration_time",
    "replay_error",
    "what_if",
    "speed",
)
"""All experiments, in the order in which the table lists them."""
ALONE = ("speed",)
"""Those that read clocks: nothing runs beside them, and they do not repeat bit for bit."""
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEADER = "| question | command | time | table | figure | answer |"
RULE = "|---|---|---|---|---|---|"


def experiment(name: str) -> Experiment:
    """The experiment of that module name (one of `NAMES`)."""
    return import_module(f"experiments.{name}").EXPERIMENT


@dataclass(frozen=True, slots=True)
class Row:
    """One experiment's line: ``command`` as typed, ``figure`` False where nothing was drawn, ``seconds`` it took."""

    name: str
    question: str
    command: str
    figure: bool
    answer: str
    seconds: float

    def __str__(self) -> str:
        drawn = f"[{self.name}.svg](figures/{self.name}.svg)" if self.figure else "none"
        cells = [
            self.question,
            f"`{self.command}`",
            f"{self.seconds:.0f} s" if self.seconds < 100 else f"{self.seconds / 60:.0f} min",
            f"[{self.name}.csv](tables/{self.name}.csv)",
            drawn,
            self.answer,
        ]
        return f"| {' | '.join(_cell(text) for text in cells)} |"


def updated(text: str, rows: list[Row]) -> str:
    """``text`` with the lines of ``rows`` between the markers; lines of other experiments stay, all in `NAMES`' order.

    Raises `InputError` where the markers are missing or reversed.
    """
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise InputError(
            f"README.md lacks the markers {BEGIN} … {END}; put them where the results table belongs"
        )
    lines = {
        name: line
        for line in text[begin:end].splitlines()
        for name in NAMES
        if f"(tables/{name}.csv)" in line
    }
    lines |= {row.name: str(row) for row in rows}
    table = "\n".join([BEGIN, "", HEADER, RULE, *(lines[name] for name in NAMES if name in lines), "", ""])
    return text[:begin] + table + text[end:]


def update_readme(path: Path, rows: list[Row]) -> None:
    """Rewrite the table in the file, whole or not at all; where there is no file yet, one with the table alone."""
    if rows:
        text = path.read_text(encoding="utf-8") if path.is_file() else f"# Results\n\n{BEGIN}\n{END}\n"
        write_text(path, updated(text, rows))


def _cell(text: str) -> str:
    """Text that cannot end its cell: pipes escaped, line breaks as blanks."""
    return " ".join(text.split()).replace("|", "\\|")
