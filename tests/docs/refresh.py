"""Write what the pages show anew: ``python -m tests.docs.refresh`` in the project's root.

README.md's outputs come from runs (one whose numbers differ between machines is left alone, one cut with ``…`` keeps
its number of lines), the columns of `surrogate/dataset/README.md` from their declaration.
"""

import os
import tempfile
from pathlib import Path

from surrogate.dataset.columns import TABLES, Column, columns
from tests.docs.markdown import REST, Step, steps
from tests.docs.runner import provide, run_block

ROOT = Path(__file__).resolve().parents[2]
COLUMNS_PAGE = ROOT / "surrogate" / "dataset" / "README.md"
BEGIN, END = "<!-- columns: begin (python -m tests.docs.refresh) -->", "<!-- columns: end -->"


def refreshed(page: Path, chosen: list[tuple[Step, str]]) -> str:
    """The page with the outputs of these steps in the place of those shown."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for step, had in sorted(chosen, key=lambda pair: -pair[0].block.line):
        shown = step.shown
        assert shown is not None
        first = shown.line - 1
        lines[first : first + len(shown.text.splitlines())] = cut(shown.text, had)
    return "\n".join(lines) + "\n"


def cut(shown: str, had: str) -> list[str]:
    """The output's lines, as many at the start and end as the page shows around a ``…``."""
    old, new = shown.splitlines(), [line.rstrip() for line in had.rstrip().splitlines()]
    if REST not in old:
        return new
    before, after = old.index(REST), len(old) - old.index(REST) - 1
    return [*new[:before], REST, *(new[-after:] if after else [])]


def with_columns(text: str) -> str:
    """The page with the declared columns between its markers."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + "".join(map(_table, TABLES)) + "\n" + END + rest.split(END)[1]


def _table(name: str) -> str:
    rows = "".join(map(_row, columns(name)))
    return f"\n## {name}\n\n{TABLES[name]}\n\n| column | unit | type | | what it is |\n|---|---|---|---|---|\n{rows}"


def _row(column: Column) -> str:
    need = "required" if column.required else ""
    cells = (f"`{column.name}`", column.unit, column.kind, need, column.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def main() -> None:
    """Run every step of README.md with an output, in order, then write both pages."""
    page = ROOT / "README.md"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        provide(Path(folder), ROOT)
        chosen = [
            (step, run_block(step.block, page))
            for step in steps(page)
            if step.shown is not None and not step.shown.differs
        ]
    page.write_text(refreshed(page, chosen), encoding="utf-8")
    COLUMNS_PAGE.write_text(with_columns(COLUMNS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
