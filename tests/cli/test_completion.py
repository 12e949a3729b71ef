"""Completion of a shell on tab, requested in the way of bash."""

import subprocess
import sys
from os import environ
from pathlib import Path

import pytest


def _offered(line: str, **extra: str) -> list[str]:
    words = line.split(" ")
    request = {"_SEER_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    env = {**environ, **request, **extra}
    found = subprocess.run([sys.executable, "-m", "surrogate"], env=env, capture_output=True, text=True, check=False)
    assert found.stderr == ""
    return [word.split(",", 1)[1] for word in found.stdout.split()]


@pytest.mark.parametrize(
    ("line", "expected"), [("seer tr", ["train", "trace"]), ("seer select --gpu titan", ["titan-v", "titan-xp"])]
)
def test_completion_offers_commands_and_gpus(line: str, expected: list[str]) -> None:
    offered = _offered(line)
    assert set(expected) <= set(offered)
    prefix = line.rsplit(" ", 1)[1].casefold()
    assert all(word.casefold().startswith(prefix) for word in offered)


def test_completion_offers_nothing_if_the_gpu_file_is_unreadable(tmp_path: Path) -> None:
    assert _offered("seer select --gpu v", SEER_GPUS=str(tmp_path / "missing.toml")) == []
