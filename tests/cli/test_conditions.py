"""Every command that needs no external data, with unusual paths and files, through the real entry point."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from surrogate.dataset.store import write_dataset
from tests.known import known_answers

pytestmark = pytest.mark.slow

COMMANDS = known_answers(__file__)["commands"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame) -> Path:
    """Return a folder of inputs whose name has blanks, letters of other scripts and a line break."""
    folder = tmp_path_factory.mktemp("odd") / "ü 漢 😀\n'q' $x"
    folder.mkdir()
    write_dataset(table, folder / "data.parquet")
    write_dataset(table[table["gpu"] == "Tesla V100-SXM2-16GB"], folder / "v100.parquet")
    lines = "n1c64h14k64r1\r\nn1c64h14k64r3p1\r\n"
    (folder / "problems.txt").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    done = _run(COMMANDS["train"], folder, folder)
    assert done.returncode == 0, done.stderr
    return folder


def _run(line: str, inputs: Path, out: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [word.replace("IN/", f"{inputs}/").replace("OUT/", f"{out}/") for word in line.split()]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([sys.executable, "-m", "surrogate", *words], text=True, timeout=300, **options)


def _clean(done: subprocess.CompletedProcess[str], out: Path) -> bool:
    """Return whether there is no traceback and no incomplete file; `.fits` contains finished fits of `compare`."""
    hidden = [path.name for path in out.rglob(".*") if path.name != ".fits"] if out.is_dir() else []
    return "Traceback" not in done.stderr and not hidden


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_accept_unusual_paths_and_line_endings(name: str, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "ö 字\nx"
    out.mkdir()
    done = _run(COMMANDS[name], inputs, out, env={**os.environ, "LC_ALL": "C", "TERM": "dumb"})
    assert done.returncode == 0 and _clean(done, out) and "\x1b" not in done.stdout + done.stderr, done.stderr
