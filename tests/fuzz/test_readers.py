"""Damaged files are read or refused in one line: a few for every reader, the same each time.

`python -m tests.fuzz --count 2000` tries more, with inputs of extreme size, and prints what became of them.
"""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.cases import all_seeds, damaged_files, run, write
from tests.fuzz.readers import READERS, Reader

ROOT = Path(__file__).resolve().parents[2]
COUNT = 60
QUICK = [reader for reader in READERS.values() if reader.quick]
OWN = [reader for reader in QUICK if reader.name.startswith("import")]


@pytest.mark.parametrize("reader", QUICK, ids=lambda reader: reader.name)
def test_damaged_files_are_read_or_refused(reader: Reader, tmp_path: Path) -> None:
    if reader.missing:
        pytest.skip(f"no package {reader.missing}")
    valid = all_seeds(reader)
    verdicts = []
    for number in range(-len(valid), COUNT):
        files = valid[number] if number < 0 else damaged_files(reader, valid, number, seed=0)
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = run(reader, write(files, folder, reader))
        assert outcome.verdict in ("read", "refused"), f"case {number}: {outcome.text}"
        assert number >= 0 or outcome.verdict == "read", f"a valid file is refused: {outcome.text}"
        verdicts.append(outcome.verdict)
    assert "refused" in verdicts


@pytest.mark.slow
@pytest.mark.parametrize(
    "reader", [r for r in READERS.values() if not r.quick], ids=lambda reader: reader.name
)
def test_damaged_files_of_slow_readers(reader: Reader, tmp_path: Path) -> None:
    test_damaged_files_are_read_or_refused(reader, tmp_path)


def test_the_same_case_is_the_same_files() -> None:
    reader = READERS["import miopen"]
    valid = all_seeds(reader)
    assert damaged_files(reader, valid, 7, 1) == damaged_files(reader, valid, 7, 1)
    assert len({str(damaged_files(reader, valid, i, 1)) for i in range(40)}) > 30


def test_the_table_is_written_and_parts_of_it_go_together(tmp_path: Path) -> None:
    for name in ("settings (JSON)", "gpus.toml"):
        subprocess.run(
            [sys.executable, "-m", "tests.fuzz", "--count", "5", "--no-extremes", "--reader", name,
             "--csv", str(tmp_path / "t.csv")],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["reader"] for row in rows] == ["settings (JSON)", "gpus.toml"]
    assert all(int(row["tried"]) == int(row["refused"]) + int(row["read"]) == 5 for row in rows)


def test_a_crash_is_seen(tmp_path: Path) -> None:
    def read(path: Path) -> object:
        return {}["missing"]

    outcome = run(Reader("x", "x", list, read), tmp_path)
    assert outcome.verdict == "crashed"
    assert "KeyError" in outcome.text
