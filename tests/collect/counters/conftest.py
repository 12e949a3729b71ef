"""Fixtures: the fake Nsight Compute of tests/collect/fake, and a program that launches the kernels of a test."""

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from surrogate.collect.counting import Pair
from surrogate.features.conv import Conv
from tests.known import known_answers

PROFILERS = Path(__file__).parents[1] / "fake" / "profilers"
CHILD = known_answers(__file__)["child"]


@pytest.fixture
def pairs() -> list[Pair]:
    convs = [Conv(n=1 + i, c=16, h=28, k=32, r=3, pad_h=1) for i in range(3)]
    return [Pair(conv, algorithm) for conv in convs for algorithm in ("GEMM", "WINOGRAD")]


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return ``profiler(…)``, which writes a fake ncu and the profiled program ``child`` and returns ncu's path.

    ``denied`` refuses permission, ``failing`` is a word of the commands that fail, and ``missing`` lists pairs that do
    not run.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), os.environ["PATH"]]))

    def program(name: str, text: str) -> str:
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def make(denied: bool = False, failing: str = "", **settings: object) -> str:
        (folder / "settings.json").write_text(json.dumps(settings))
        monkeypatch.setenv("FAKE_PROFILER", "denied" if denied else f"fails:{failing}" if failing else "")
        program("child", f"#!{sys.executable} -SE\n" + CHILD)
        return program("ncu", f'#!/bin/sh\nexec "{sys.executable}" -SE "{PROFILERS}/ncu.py" "$@"\n')

    return make
