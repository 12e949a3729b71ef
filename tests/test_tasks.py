"""Tests of the tasks in pyproject.toml: commands exist, arguments are passed on, and the first failure stops."""

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests import __main__ as tasks

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = [(name, command) for name, commands in tasks.TASKS.items() for command in commands]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_every_command_of_a_task_resolves(name: str, command: str) -> None:
    """A program is installed, a module can be imported, and a path exists."""
    program, *rest = shlex.split(command)
    if program == "python":
        assert rest[0] == "-m" and importlib.util.find_spec(rest[1]), f"{name}: no module {rest[1]}"
    else:
        folder = str(Path(sys.executable).parent)
        assert shutil.which(program, path=folder) or shutil.which(program), f"{name}: no program {program}"
    missing = [word for word in rest if word.endswith(".py") and not (ROOT / word).is_file()]
    assert not missing, f"{name}: {missing}"


@pytest.mark.parametrize("file", [".ci/run", ".pre-commit-config.yaml", "CONTRIBUTING.md"])
def test_every_mentioned_task_exists(file: str) -> None:
    mentioned = re.findall(r"python3? -m tests +([\w$\"]+)", (ROOT / file).read_text(encoding="utf-8"))
    assert mentioned and set(mentioned) <= {*tasks.TASKS, "TASK"}, mentioned


def test_a_task_runs_its_commands_and_stops_at_a_failure(monkeypatch, capfd) -> None:
    command = "python -c 'import sys; print(sys.argv[1:]); sys.exit(len(sys.argv) - 1)'"
    monkeypatch.setattr(tasks, "TASKS", {"twice": [command, command], "failing": [f"{command} a", command]})
    assert tasks.main(["twice"]) == 0
    assert capfd.readouterr().out.split("\n") == ["[]", "[]", ""]
    assert tasks.main(["twice", "one", "two"]) == 2
    assert capfd.readouterr().out.split("\n") == ["[]", "['one', 'two']", ""]
    assert tasks.main(["failing"]) == 1
    assert capfd.readouterr().out == "['a']\n"
    assert tasks.main([]) == 0 and tasks.main(["unknown"]) == 2
    assert capfd.readouterr().out.count("failing") == 2
