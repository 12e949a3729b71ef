"""The experiments, and the table of their results between two markers of README.md, which their runs write."""

from collections.abc import Mapping
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
    "stacking",
    "calibration",
    "miopen",
    "small_to_large",
    "versions",
    "ablation",
    "counters",
    "whole_networks",
    "widths",
    "operators",
    "iteration_time",
    "replay_error",
    "what_if",
    "tuning",
    "cpu_choice",
    "speed",
    "large_inputs",
)
"""All experiments, in the order in which the table lists them."""
ALONE = ("speed", "large_inputs")
"""Those that read clocks: nothing runs beside them, and they do not repeat bit for bit."""
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEADER = "| question | command | time | table | figure | answer |"
RULE = "|---|---|---|---|---|---|"


def experiment(name: str) -> Experiment:
    """The experiment of that module name (one of `NAMES`)."""
    return import_module(f"experiments.{name}").EXPERIMENT


def table_row(name: str, command: str, seconds: float, figure: bool, answer: str) -> str:
    """An experiment's line: ``command`` as typed, ``figure`` False where nothing was drawn, ``seconds`` it took."""
    drawn = f"[{name}.svg](figures/{name}.svg)" if figure else "none"
    took = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    cells = (experiment(name).question, f"`{command}`", took, f"[{name}.csv](tables/{name}.csv)", drawn, answer)
    # pipes and line breaks would end a cell
    return "| " + " | ".join(" ".join(text.split()).replace("|", "\\|") for text in cells) + " |"


def updated(text: str, rows: Mapping[str, str]) -> str:
    """``text`` with the ``rows`` (name → line) between the markers; other experiments' lines stay, in `NAMES`' order.

    Raises `InputError` where the markers are missing or reversed.
    """
    before, mark, rest = text.partition(BEGIN)
    old, other, after = rest.partition(END)
    lines = {name: line for line in old.splitlines() for name in NAMES if f"(tables/{name}.csv)" in line}
    lines.update(rows)
    if not (mark and other):
        raise InputError(f"README.md lacks the markers {BEGIN} … {END}; put them where the table belongs")
    table = [HEADER, RULE, *(lines[name] for name in NAMES if name in lines)]
    return "\n".join([before + BEGIN, "", *table, "", END + after])


def update_readme(path: Path, rows: Mapping[str, str]) -> None:
    """Rewrite the table in the file, whole or not at all; where there is no file yet, one with the table alone."""
    if rows:
        text = path.read_text(encoding="utf-8") if path.is_file() else f"# Results\n\n{BEGIN}\n{END}\n"
        write_text(path, updated(text, rows))
