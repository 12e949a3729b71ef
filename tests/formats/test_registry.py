"""Every format is complete: what one lacks is named, with the file to touch; nothing here lists the formats."""

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from surrogate.cli.import_ import command
from surrogate.formats import FORMATS, Format

HERE = Path(__file__).parent
HELP = " ".join(CliRunner().invoke(command, ["--help"]).output.split())


def _has_known_answer(path: Path) -> bool:
    """True for a module one of whose tests compares what was read with a number."""
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    compared = (node for test in tests for node in ast.walk(test) if isinstance(node, ast.Compare))
    equalities = [node for node in compared if any(isinstance(operator, ast.Eq) for operator in node.ops)]
    numbers = (part for node in equalities for part in ast.walk(node) if isinstance(part, ast.Constant))
    return any(isinstance(number.value, int | float) for number in numbers)


def lacking(each: Format) -> list[str]:
    """What is missing of a format, each with the file that is to have it."""
    module = each.reader.__module__.rpartition(".")[2]
    reader, test = f"surrogate/formats/{module}.py", f"tests/formats/test_{module}.py"
    unexplained = [name for name, option in each.options.items() if not option.help]
    expected = {
        f"{reader}: FORMAT needs a line of help": bool(each.summary.strip()),
        f"{reader}: `seer import --help` does not show {each.name}": f"{each.name} {each.summary}" in HELP,
        f"{reader}: its docstring has to say how to get the files": "how to get" in each.how_to_get().lower(),
        f"{reader}: {', '.join(unexplained)} needs help, in `own` of its FORMAT": not unexplained,
        f"{test}: no test compares what was read with a known number": _has_known_answer(HERE.parents[1] / test),
    }
    return [complaint for complaint, is_there in expected.items() if not is_there]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_complete(name: str) -> None:
    assert not lacking(FORMATS[name]), "\n".join(lacking(FORMATS[name]))


def test_what_a_format_lacks_is_named() -> None:
    def read(paths: list[str], *, flavour: str) -> None:
        """A reader of nothing, in a module that is about something else."""

    complaints = lacking(Format("bare", "", read))  # pyright: ignore[reportArgumentType]
    assert len(complaints) == 5 and all(".py: " in text for text in complaints)
    assert any("flavour" in text for text in complaints)
