"""Workbooks in the format of SEER, imported and used by experiments; times follow from known coefficients."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments import test_set_i
from experiments.experiment import Effort
from experiments.operators import errors, held_out
from experiments.other_operators import GradientRatio, SeerPolynomials
from experiments.sources import Sources
from surrogate.cli import seer
from surrogate.models.seer.paper import SeerPaper
from tests.formats.test_seer_xls import VARIANT, save

B_MAX = {"32x32": 240, "128x128": 120}
SLOWER = 1.25
"""Factor by which the formulas overestimate the times in the sheets ``test``."""


def write(path: Path, sheets: dict[str, list[list[float]]], header: Sequence[str] = VARIANT) -> Path:
    return save(path, **{name: [list(header[: len(rows[0])]), *rows] for name, rows in sheets.items()})


def run_seer(*words: object) -> str:
    """Run the command and return its standard output."""
    result = CliRunner().invoke(seer, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def variant(tile: str, place: int) -> dict[str, list[list[float]]]:
    """Return sheets with every second problem of a grid, and twice as many blocks as by the rule of the tile."""
    side, sheets = int(tile.split("x")[0]), {"train": [], "test": []}
    grid = product((16, 64, 256), (20, 40, 80), (64, 96, 160, 256), (1, 3))
    for number, (c, w, k, r) in enumerate(grid):
        if (number + number // 2) % 2 == place:
            out = w - r + 1
            blocks = 2 * -(-128 * out * out // side) * -(-k // side)
            instructions, reads = 32 * r * r * c + 100, r * r * c / 2
            waves, slots = -(-blocks // B_MAX[tile]), B_MAX[tile]
            time_ms = waves * (1e-6 * (1 + place) * slots * instructions + 2e-3)
            if w == 20:  # under-utilised: both levels are below 8
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
    run_seer("import", "seer-xls", *paths, "--gpu", "titan-xp", "-o", table)
    return table


@pytest.mark.slow
def test_the_test_sheets_of_the_workbooks_are_test_set_i(titan, sources, monkeypatch):
    monkeypatch.setattr(SeerPaper.__init__, "__defaults__", (1, 0, False, False))  # search one leaf size for each tree
    own = Sources(sources.folder, {"cudnn": titan})
    outcome = test_set_i.EXPERIMENT.run(own, Effort(quick=True, models=("roofline", "seer-paper")))
    table = outcome.table.set_index("algorithm")
    table = table[(table["population"] == test_set_i.DOMAIN) & (table["split"] == test_set_i.SEER_SPLIT)]
    known_launch = table[table["model"] == test_set_i.KNOWN_LAUNCH]
    algorithms = ["all", "IMPLICIT_GEMM", "IMPLICIT_GEMM 128x128", "IMPLICIT_GEMM 32x32"]
    bound = [f"{name}, {kind}" for name in algorithms for kind in ("compute-bound", "under-utilised")]
    assert known_launch.index.tolist() == [*algorithms, *bound]
    assert known_launch["n"].tolist()[:4] == [21, 21, 10, 11]
    assert known_launch["n"].tolist()[4] + known_launch["n"].tolist()[5] == 21
    assert known_launch["rmspe_pct"].tolist() == pytest.approx([100 * (SLOWER - 1)] * 12)
    # Without the measured launch, the tile is guessed, and its rule gives half the blocks.
    guessed = table.loc[table["model"] == "seer-paper", "rmspe_pct"]
    assert guessed.iloc[0] > 30


def test_classes_of_a_network_come_from_the_decision_trees(titan: Path, tmp_path: Path) -> None:
    """The roofline calls all three layers compute-bound; the counters of width 20 are those of an under-utilised one.

    The workspace limit excludes the non-fused Winograd algorithm, which is memory-bound.
    """
    bundle, layers = tmp_path / "bundle", tmp_path / "layers.txt"
    params = tmp_path / "params.json"
    params.write_text('{"model": "seer-paper", "params": {"evaluations": 1}}')
    layers.write_text("".join(f"n128c64h{w}k160r3s3p0\n" for w in (20, 40, 80)))
    run_seer("train", titan, "--params", params, "-o", bundle)
    found = {}
    for own in ((), ("--bundle", bundle)):
        words = ("network", layers, "--gpu", "titan-xp", "--workspace-limit", "64MiB", "--json", *own)
        found[bool(own)] = json.loads(run_seer(*words))
    assert [layer["bound"] for layer in found[False]["layers"]] == ["compute-bound"] * 3
    assert [layer["bound"] for layer in found[True]["layers"]] == ["under-utilised", "compute-bound", "compute-bound"]
    assert found[True]["classes"]["under-utilised"]["layers"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_other_operators_are_predicted_by_the_fits_of_the_paper(sources, tmp_path, effort) -> None:
    """The fits recover the times of 1×1 convolutions, and the ratios of gradients of 3×3 convolutions."""
    narrow, gradients = [], []
    for n, c, k, w in product((32, 64, 128), (16, 64, 128), (32, 96), (14, 28)):
        for rows, r in ((narrow, 1), (gradients, 3)):
            out = w - r + 1
            time_ms = 1e-6 * n * c * w * w + 2e-6 * n * k * out * out + 1e-9 * n * k * out * out * c * r * r + 0.5
            ratio = 1.5 if c < 64 else 2.0
            passes = [time_ms, ratio * time_ms, 3 * time_ms, (ratio + 3) * time_ms, ratio, 3]
            rows.append([0, n, c, w, k, out, r, 1, 0, *passes[: len(passes) if r > 1 else 1]])
    header = ["op", *VARIANT[:8], "forward", "input", "filter", "both", "input ratio", "filter ratio"]
    books = {"conv_1x1": narrow, "conv_grad": gradients}
    paths = [write(tmp_path / f"Other-ops-{name}.xls", {"new": rows}, header) for name, rows in books.items()]
    table = tmp_path / "ops.parquet"
    run_seer("import", "seer-xls", *paths, "--gpu", "titan-xp", "-o", table)
    models = {model.name: model for model in (SeerPolynomials(), GradientRatio())} | effort.by_name("boosted-terms")
    parts = list(held_out(Sources(sources.folder, {"other_ops": table}), ["other_ops"], "shape", models, effort))
    found = errors(parts, ["operator"]).set_index(["operator", "model"])["median_error_pct"]
    assert found["conv fwd", "seer-polynomials"] < 1e-6
    for operator in ("conv bwd_data", "conv bwd_filter"):
        assert found[operator, "gradient-ratio"] < 1e-6
    summary = run_seer("compare", table, "--models", "roofline", "--folds", 2, "-o", tmp_path / "out")
    assert "144 rows" in summary  # with one candidate per problem, only times are evaluated
