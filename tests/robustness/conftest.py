"""Run ``seer`` in this process, through its entry point."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from surrogate.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit status and both streams."""

    code: int
    out: str
    err: str


@pytest.fixture
def seer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """``seer("gpus", "--json")`` → `Outcome`."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr("sys.argv", ["seer", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return Outcome(int(stop.value.code or 0), *capsys.readouterr())

    return run
