"""Closed, full and redirected standard streams, signals, and error lines."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from surrogate.cli.process import Stopped, line_and_status
from surrogate.features.errors import InputError
from tests.known import cases, known_answers

LIGHT = [["gpus"], ["--help"]]
FULL = Path("/dev/full")
DISK_FULL = "seer: standard output or a file: No space left on device\n"


def _seer(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([sys.executable, "-m", "surrogate", *words], text=True, timeout=120, **options)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_a_closed_pipe_is_not_an_error_and_a_full_disk_is_one_line(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed, FULL.open("w") as full:
        results = [_seer(*words, stdout=stream) for stream in (closed, full)]
    assert [(done.returncode, done.stderr) for done in results] == [(0, ""), (2, DISK_FULL)]


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_not_an_error(closed: str) -> None:
    line = f'"{sys.executable}" -m surrogate gpus v100-sxm2-16gb {closed}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_gets_complete_lines_without_colours() -> None:
    output = _seer("gpus").stdout
    assert _seer("gpus", env={**os.environ, "COLUMNS": "20"}).stdout == output and "\x1b" not in output


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("name", "status", "message"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "stopped by SIGTERM")]
)
def test_a_signal_gives_one_line_its_status_and_no_file(name: str, status: int, message: str, tmp_path: Path) -> None:
    number, path = str(int(getattr(signal, name))), repr(str(tmp_path / "out.json"))
    code = known_answers(__file__)["signalled"].replace("NUMBER", number).replace("PATH", path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (status, f"seer: {message}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("place", ["finaliser", "reference", "callback", "bare"])
def test_a_signal_that_python_drops_is_raised_again(place: str) -> None:
    code = known_answers(__file__)["dropped"].replace("PLACE", repr(place))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "seer: stopped by SIGTERM\n")


ERRORS = {each.__name__: each for each in (click.ClickException, InputError, FileNotFoundError, MemoryError, Stopped)}


@cases(__file__)
def test_each_error_has_its_line_and_status(name: str, values: list[Any], notes: list[str], line: str, status) -> None:
    error = ERRORS.get(name, KeyboardInterrupt)(*values)
    for note in notes:
        error.add_note(note)
    assert line_and_status(error) == (line, status)
