"""Every registered format is complete; a failure names the missing part and its file."""

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from surrogate.cli.import_ import command
from surrogate.formats import FORMATS, Format

HERE = Path(__file__).parent
HELP = " ".join(CliRunner().invoke(command, ["--help"]).output.split())


def _has_known_answer(path: Path) -> bool:
    """Return whether a test of the module compares a result with a number."""
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    compared = (node for test in tests for node in ast.walk(test) if isinstance(node, ast.Compare))
    equalities = [node for node in compared if any(isinstance(operator, ast.Eq) for operator in node.ops)]
    numbers = (part for node in equalities for part in ast.walk(node) if isinstance(part, ast.Constant))
    return any(isinstance(number.value, int | float) for number in numbers)


def missing_parts(file_format: Format) -> list[str]:
    """Return the missing parts of a format with their files."""
    module = file_format.reader.__module__.rpartition(".")[2]
    reader, test = f"surrogate/formats/{module}.py", f"tests/formats/test_{module}.py"
    unexplained = [name for name, option in file_format.options.items() if not option.help]
    heading = f"{file_format.name} {file_format.summary}"
    checks = {
        f"{reader}: FORMAT needs a line of help": bool(file_format.summary.strip()),
        f"{reader}: `seer import --help` does not show {file_format.name}": heading in HELP,
        f"{reader}: its docstring has to say how to get the files": "how to get" in file_format.how_to_get().lower(),
        f"{reader}: {', '.join(unexplained)} needs help, in `own` of its FORMAT": not unexplained,
        f"{test}: no test compares what was read with a known number": _has_known_answer(HERE.parents[1] / test),
    }
    return [complaint for complaint, is_present in checks.items() if not is_present]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_complete(name: str) -> None:
    assert not missing_parts(FORMATS[name]), "\n".join(missing_parts(FORMATS[name]))


def test_missing_parts_of_a_format_are_reported() -> None:
    def read(paths: list[str], *, flavour: str) -> None:
        """Read nothing, in a module of another subject."""

    complaints = missing_parts(Format("bare", "", read))  # pyright: ignore[reportArgumentType]
    assert len(complaints) == 5 and all(".py: " in text for text in complaints)
    assert any("flavour" in text for text in complaints)
