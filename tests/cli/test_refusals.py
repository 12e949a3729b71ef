"""Refused commands of `refusals.txt`: one line on standard error, exit status 2, and no file written."""

import json
import shlex
from pathlib import Path

import pytest

from tests.trace.conftest import trace_json

TEXT = Path(__file__).with_name("refusals.txt").read_text(encoding="utf-8")
ROWS = [line.split("  =>  ") for line in TEXT.splitlines() if line and not line.startswith("#")]


@pytest.fixture
def places(dataset, trained, tmp_path, monkeypatch):
    """Write the inputs to the current folder and return word of a row → path."""
    monkeypatch.chdir(tmp_path)
    Path("trace.json").write_text(json.dumps(trace_json()))
    Path("net.txt").write_text("n1c64h14k64r3p1\n")
    return {"DATA": dataset, "BUNDLE": trained, "TRACE": "trace.json", "NET": "net.txt", "OUT": tmp_path / "out"}


@pytest.mark.parametrize(("line", "message"), ROWS)
def test_an_invalid_command_is_refused_in_one_line(seer, places, line, message):
    before = set(places["OUT"].parent.iterdir())
    result = seer(*(places.get(word, word) for word in shlex.split(line)))
    assert result.is_refusal(message) and result.out == "", result.err
    assert set(places["OUT"].parent.iterdir()) == before
