"""Small files that stand for huge ones: refused in one line, in bounded memory and time (see `bomb_process`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.bombs import BOMBS, Bomb
from tests.fuzz.readers import READERS

ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "gz of 3 GB without a line end", "xls of 2^31 sectors", "parquet of 100 GB of texts",
    "parquet that declares 10^12 rows", "xlsx of entities", "JSON 2,000,000 lists deep",
)  # fmt: skip
SECONDS = 60.0
"""What is promised is 10 s on an idle machine."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")


def read(bombs: list[Bomb], folder: Path) -> list[dict[str, object]]:
    """What became of each."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.bomb_process", str(folder), *(bomb.name for bomb in bombs)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-500:]
    return [json.loads(line) for line in found.stdout.splitlines()]


def check(bombs: list[Bomb], folder: Path) -> None:
    usable = [bomb for bomb in bombs if not READERS[bomb.reader].missing]
    outcomes = read(usable, folder)
    assert [o["name"] for o in outcomes] == [bomb.name for bomb in usable]
    for outcome in outcomes:
        assert outcome["verdict"] in ("refused", "read", "hung"), outcome  # hung: slow, which SECONDS judges
        assert float(str(outcome["seconds"])) < SECONDS, outcome
        assert "memory" not in str(outcome["text"]).lower(), outcome


def test_quick_bombs(tmp_path: Path) -> None:
    check([bomb for bomb in BOMBS if bomb.name in QUICK], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("bomb", [b for b in BOMBS if b.name not in QUICK], ids=lambda bomb: bomb.name)
def test_bomb(bomb: Bomb, tmp_path: Path) -> None:
    check([bomb], tmp_path)
