"""SEER's own workbooks through the import and the experiments, with times from known coefficients."""

import json
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
    """Every second problem of a grid; twice as many blocks as the tile's rule says."""
    side, sheets = int(tile.split("x")[0]), {"train": [], "test": []}
    grid = product((16, 64, 256), (20, 40, 80), (64, 96, 160, 256), (1, 3))
    for number, (c, w, k, r) in enumerate(grid):
        if (number + number // 2) % 2 == place:
            out = w - r + 1
            blocks = 2 * -(-128 * out * out // side) * -(-k // side)
            instructions, reads = 32 * r * r * c + 100, r * r * c / 2
            waves, slots = -(-blocks // B_MAX[tile]), B_MAX[tile]
            time_ms = waves * (1e-6 * (1 + place) * slots * instructions + 2e-3)
            if w == 20:  # under-utilised: neither level reaches 8
                time_ms = blocks * (2e-7 * reads + 1e-4) + waves * 1e-6 * slots * instructions + 0.5
            part = "test" if number % 10 >= 7 else "train"
            time_ms /= SLOWER if part == "test" else 1
            counters = [instructions * blocks, reads * blocks, 8 * blocks, slots, blocks, 0, 3 if w == 20 else 9, 3]
            sheets[part].append([128, c, w, k, out, r, 1, 0, 0, time_ms, *counters])
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
    monkeypatch.setattr(SeerPaper.__init__, "__defaults__", (1, 0, False))  # one leaf size for each tree
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


def test_classes_of_a_network_are_the_trees(titan: Path, tmp_path: Path) -> None:
    """By the roofline all three layers are compute-bound; the counters of width 20 say under-utilised."""
    bundle, layers = tmp_path / "bundle", tmp_path / "layers.txt"
    params = tmp_path / "params.json"
    params.write_text('{"model": "seer-paper", "params": {"evaluations": 1}}')
    layers.write_text("".join(f"n128c64h{w}k160r3s3p0\n" for w in (20, 40, 80)))
    run = CliRunner()
    words = ["train", str(titan), "--params", str(params), "-o", str(bundle)]
    assert run.invoke(seer, words, catch_exceptions=False).exit_code == 0
    found = {}
    for own in ([], ["--bundle", str(bundle)]):
        asked = run.invoke(seer, ["network", str(layers), "--gpu", "titan-xp", "--json", *own], catch_exceptions=False)
        found[bool(own)] = json.loads(asked.stdout)
    assert [layer["bound"] for layer in found[False]["layers"]] == ["compute-bound"] * 3
    assert [layer["bound"] for layer in found[True]["layers"]] == ["under-utilised", "compute-bound", "compute-bound"]
    assert found[True]["classes"]["under-utilised"]["layers"] == pytest.approx(1 / 3)
