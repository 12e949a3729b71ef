"""What ends a command, as one line and a status."""

import click
import pytest

from surrogate.cli.process import Stopped, line_and_status, one_line
from surrogate.features.errors import InputError


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


def test_errors_name_the_remedy(seer) -> None:
    assert seer("selekt").err == "seer: no command 'selekt'; did you mean select?; see `seer --help`\n"
    assert seer("trace", "sumary").err.endswith("did you mean summary?; see `seer trace --help`\n")
    missing = seer("import")
    assert missing.code == 2 and missing.err.count("\n") == 1 and "miopen" in missing.err


@pytest.mark.parametrize("words", [(), ("trace",), ("data",)])
def test_no_command_is_answered_by_the_help(seer, words) -> None:
    found = seer(*words)
    assert found.code == 2 and found.out == "" and found.err.startswith("Usage: seer")
