"""Run a task of pyproject.toml, or list the tasks: ``python -m tests TASK [WORDS]``. WORDS follow its last command."""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TASKS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["tasks"]


def main(words: list[str]) -> int:
    """Return the exit status of the first command that fails; 2 for an unknown task."""
    if not words or words[0] not in TASKS:
        print("\n".join(f"{name:10} {'; '.join(commands)}" for name, commands in TASKS.items()))
        return 2 if words else 0
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    commands = [shlex.split(command) for command in TASKS[words[0]]]
    commands[-1] += words[1:]
    for program, *rest in commands:
        whole = [shutil.which(program, path=path) or program, *rest]
        if status := subprocess.run(whole, cwd=ROOT, env=os.environ | {"PATH": path}, check=False).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
