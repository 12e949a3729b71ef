"""Tests that files of few bytes that describe much are refused in one line, with bounded memory and time."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.budgets import CASES

pytest.importorskip("onnx")
pytest.importorskip("msgpack")


def run(*names: str) -> dict[str, dict[str, Any]]:
    """Return what a new process prints for the cases: it has no threads, so it can fork."""
    command = [sys.executable, "-m", "tests.budgets", *names]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {each["name"]: each for each in map(json.loads, printed)}


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_hostile_file_is_refused_within_its_budget(slow: bool) -> None:
    names = [name for name, case in CASES.items() if case.get("slow", False) is slow]
    found = run(*names)
    assert [*found] == names
    for name, each in found.items():
        case = CASES[name]
        assert each["status"] == case.get("status", 2), each
        assert len(each["lines"]) == ("says" in case) and case.get("says", "") in "".join(each["lines"]), each
        assert each["mib"] <= case.get("mib", 300) and each["seconds"] <= 10, each
