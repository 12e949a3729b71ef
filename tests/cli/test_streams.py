"""Standard streams in bad conditions, through the real entry point."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from surrogate.cli.process import Stopped, line_and_status, one_line
from surrogate.features.errors import InputError

LIGHT = [["gpus"], ["gpus", "v100-sxm2-16gb", "--json"], ["--help"], ["trace", "whatif", "--help"]]
FULL = Path("/dev/full")
TOLD = "seer: standard output or a file: No space left on device\n"


def _seer(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    return subprocess.run([sys.executable, "-m", "surrogate", *words], text=True, timeout=120, **how)


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_a_reader_that_left_is_no_error(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = _seer(*words, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_a_full_disk_is_one_line(words: list[str]) -> None:
    with FULL.open("w") as full:
        done = _seer(*words, stdout=full)
    assert (done.returncode, done.stderr) == (2, TOLD)


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str) -> None:
    line = f'"{sys.executable}" -m surrogate gpus v100-sxm2-16gb {closed}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["trace", "--help"], ["network", "--help"]], ids=" ".join)
def test_an_encoding_that_lacks_our_signs(words: list[str]) -> None:
    whole, latin, ascii_ = (
        _seer(*words, env={**os.environ, "PYTHONIOENCODING": name}, encoding=name, errors="replace")
        for name in ("utf-8", "latin-1", "ascii")  # of ascii click makes UTF-8
    )
    assert "…" in whole.stdout and "..." in latin.stdout
    assert {(done.returncode, done.stderr) for done in (whole, latin, ascii_)} == {(0, "")}


@pytest.mark.parametrize("terminal", [{"TERM": "dumb"}, {"COLUMNS": "abc"}, {"COLUMNS": "20"}, {"NO_COLOR": "1"}])
def test_a_pipe_gets_whole_lines_without_colours(terminal: dict[str, str]) -> None:
    plain = _seer("gpus").stdout
    assert _seer("gpus", env={**os.environ, **terminal}).stdout == plain and "\x1b" not in plain


@pytest.mark.skipif(os.name == "nt", reason="a working folder in use cannot be removed there")
def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    code = (
        "import os, sys; os.rmdir(os.getcwd()); from surrogate.cli import main;"
        " sys.argv = ['seer', 'gpus', 'v100-sxm2-16gb']; main()"
    )
    (tmp_path / "gone").mkdir()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "gone", capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})  # fmt: skip
    assert done.returncode == 0 and "volta" in done.stdout, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        ("SIGINT", 130, "interrupted"),
        ("SIGTERM", 143, "stopped by SIGTERM"),
        ("SIGHUP", 129, "stopped by SIGHUP"),
    ],
)
def test_a_signal_is_one_line_its_status_and_no_file(name: str, status: int, told: str, tmp_path: Path) -> None:
    code = f"""
import os, sys
from surrogate.dataset import files
from surrogate.cli import main
import surrogate.cli.gpus as gpus
def signalled(*_, **__):
    with files.atomic_path({str(tmp_path / "out.json")!r}) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), {int(getattr(signal, name))})
        raise AssertionError("the signal came to nothing")
gpus.show = signalled
sys.argv = ["seer", "gpus"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (status, f"seer: {told}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_module_is_the_command() -> None:
    assert _seer("--version").stdout.startswith("seer, version ")
    assert "Usage: seer [OPTIONS]" in _seer("--help").stdout


@pytest.mark.parametrize(
    ("error", "line", "status"),
    [
        (click.ClickException("a\n  b"), "a b", 2),
        (InputError("the name a\x1b[31m"), "the name a\\x1b[31m", 2),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt: No such file or directory", 2),
        (PermissionError(13, "Permission denied", "b"), "b: Permission denied", 2),
        (MemoryError(), "out of memory; give fewer rows, or use a larger machine", 2),
        (click.UsageError("Bad\n\tone."), "Bad one", 2),
        (KeyboardInterrupt(), "interrupted", 130),
        (Stopped(15), "stopped by SIGTERM", 143),
    ],
)
def test_one_line_and_the_status(error: BaseException, line: str, status: int) -> None:
    assert line_and_status(error) == (line, status)


def test_an_interruption_tells_what_the_command_noted() -> None:
    stop = KeyboardInterrupt()
    stop.add_note("the same command goes on")
    assert line_and_status(stop) == ("interrupted; the same command goes on", 130)


def test_text_that_is_not_utf_8() -> None:
    with pytest.raises(UnicodeDecodeError) as found:
        b"\xff".decode()
    assert line_and_status(found.value)[0].startswith("a text that is not UTF-8")


def test_one_line_keeps_letters_of_any_script() -> None:
    assert one_line("grüße 漢字 😀") == "grüße 漢字 😀"
    assert one_line("\udcff") == "\\udcff"
