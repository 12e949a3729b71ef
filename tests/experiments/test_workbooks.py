"""SEER's own workbooks through the import and the experiments, with times from known coefficients."""

from itertools import product
from pathlib import Path

import pytest
import xlwt
from click.testing import CliRunner

from experiments import test_set_i
from experiments.experiment import Effort
from experiments.sources import Sources
from surrogate.cli import seer
from surrogate.models.seer import SeerPaper

HEADER = [
    "batch_size", "in_chan", "in_wid", "out_chan", "out_wid", "ker_wid", "stride", "padding", "algo", "time",
    "inst_fp_32", "dram_read_transactions", "dram_write_transactions", "#block-max", "#block-launch", "#iter",
    "single_precision_fu_utilization", "dram_utilization",
]  # fmt: skip
B_MAX = {"32x32": 240, "128x128": 120}
SLOWER = 1.25
"""By how much the forms overestimate the times in the sheets ``test``."""


def write(path: Path, sheets: dict[str, list[list[float]]]) -> Path:
    book = xlwt.Workbook()
    for name, rows in sheets.items():
        sheet = book.add_sheet(name)
        for i, row in enumerate([HEADER[: len(rows[0])], *rows]):
            for j, value in enumerate(row):
                sheet.write(i, j, value)
    book.save(str(path))
    return path


def variant(tile: str, place: int) -> dict[str, list[list[float]]]:
    """Every second problem of a grid, compute-bound; twice as many blocks as the tile's rule says."""
    side, sheets = int(tile.split("x")[0]), {"train": [], "test": []}
    grid = product((16, 64, 256), (20, 40, 80), (64, 96, 160, 256), (1, 3))
    for number, (c, w, k, r) in enumerate(grid):
        if (number + number // 2) % 2 == place:
            out = w - r + 1
            blocks = 2 * -(-128 * out * out // side) * -(-k // side)
            instructions = 32 * r * r * c + 100
            time_ms = -(-blocks // B_MAX[tile]) * (1e-6 * (1 + place) * B_MAX[tile] * instructions + 2e-3)
            part = "test" if number % 10 >= 7 else "train"
            time_ms /= SLOWER if part == "test" else 1
            problem = [128, c, w, k, out, r, 1, 0, 0, time_ms]
            sheets[part].append([*problem, instructions * blocks, 40 * blocks, 8 * blocks, B_MAX[tile], blocks, 0, 9, 3])
    return sheets


@pytest.fixture(scope="module")
def titan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiled")
    paths = [write(folder / f"algo0_{tile}.xls", variant(tile, i)) for i, tile in enumerate(B_MAX)]
    table = folder / "titan.parquet"
    words = ["import", "seer-xls", *map(str, paths), "--gpu", "titan-xp", "-o", str(table)]
    assert CliRunner().invoke(seer, words, catch_exceptions=False).exit_code == 0
    return table


def test_the_sheets_of_the_workbooks_are_test_set_i(
    titan: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SeerPaper.__init__, "__defaults__", (2, 0, False))  # two trials of each tree's leaf size
    own = Sources(sources.folder, {"cudnn": titan})
    outcome = test_set_i.EXPERIMENT.run(own, Effort(quick=True, models=("roofline", "seer-paper")))
    table = outcome.table.set_index("algorithm")
    table = table[(table["population"] == test_set_i.DOMAIN) & (table["split"] == test_set_i.SEER_SPLIT)]
    known = table[table["model"] == test_set_i.KNOWN]
    assert known.index.tolist() == ["all", "IMPLICIT_GEMM", "IMPLICIT_GEMM 128x128", "IMPLICIT_GEMM 32x32"]
    assert known["n"].tolist()[:2] == [21, 21] and known["n"].tolist()[2:] == [10, 11]
    assert known["rmspe_pct"].tolist() == pytest.approx([100 * (SLOWER - 1)] * 4)
    # Without the measured launch the tile is guessed and its rule gives half the blocks.
    assert table[table["model"] == "seer-paper"].loc["all", "rmspe_pct"] > 30
    assert "seer-paper, known launch 25.0 %" in outcome.answer and "14.71 % (7.27 ms)" in outcome.answer
