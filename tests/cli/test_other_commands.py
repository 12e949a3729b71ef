"""``seer``, ``seer gpus`` and ``seer data`` through the entry point."""

import subprocess
import sys

import pandas as pd
import pytest

from surrogate.cli import COMMANDS
from surrogate.cli.datasets import filtered
from surrogate.features.errors import InputError


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_explains_it(seer, name):
    result = seer(name, "--help")
    assert result.code == 0 and result.out.startswith("Usage: seer") and len(result.out) > 200


def test_help_lists_every_command_without_importing_one(seer):
    result = seer("--help")
    assert result.code == 0 and all(name in result.out for name in COMMANDS)
    code = """
import sys, surrogate.cli
sys.argv = ["seer", "--help"]
try:
    surrogate.cli.main()
finally:
    print("numpy" in sys.modules or "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_module_entry_point(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "surrogate", "gpus", "t4", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0 and '"turing"' in done.stdout


def test_unknown_command_and_option_exit_2(seer):
    assert seer("comparre").code == 2
    assert seer("gpus", "--jsn").code == 2


def test_gpus_lists_all_and_names_the_nearest(seer):
    everything = seer("gpus", "--json").json
    assert {"v100-sxm2-16gb", "h200-sxm", "mi210"} <= {row["name"] for row in everything}
    unknown = seer("gpus", "v1000")
    assert unknown.code == 2 and "unknown" in unknown.err


def test_data_check_names_each_violation_with_its_row(seer, table, dataset, tmp_path):
    assert seer("data", "check", dataset).code == 0
    bad = table.copy()
    bad.loc[3, "c"] = -1
    bad.loc[5, "status"] = "fine"
    bad.to_parquet(tmp_path / "bad.parquet")
    result = seer("data", "check", tmp_path / "bad.parquet", "--json")
    assert result.code == 1
    assert {(v["row"], v["column"]) for v in result.json} >= {(3, "c"), (5, "status")}


def test_data_info_counts(seer, dataset):
    records = seer("data", "info", dataset, "--json").json
    assert [r["gpu"] for r in records] == ["Tesla T4", "Tesla V100-SXM2-16GB"]
    assert all(r["problems"] == 32 and r["shapes"] == 16 and r["judged_problems"] == 32 for r in records)


def test_data_merge_keeps_every_row_once(seer, table, tmp_path):
    table.iloc[:100].to_parquet(tmp_path / "a.parquet")
    table.iloc[60:].to_parquet(tmp_path / "b.parquet")
    assert (
        seer(
            "data", "merge", tmp_path / "a.parquet", tmp_path / "b.parquet", "-o", tmp_path / "m.parquet"
        ).code
        == 0
    )
    assert len(pd.read_parquet(tmp_path / "m.parquet")) == len(table)
    mixed = seer("data", "merge", tmp_path / "a.parquet", "run.jsonl", "-o", tmp_path / "n.parquet")
    assert mixed.code == 2 and not (tmp_path / "n.parquet").exists()


def test_where_takes_any_name_of_a_gpu() -> None:
    """As `--gpu` does; what is held is listed, and where the list is cut."""
    frame = pd.DataFrame({"gpu": ["Tesla T4", "TITAN Xp"] * 8, "c": range(16)})
    for name in ("t4", "Tesla T4", "T4"):
        assert set(filtered(frame, [f"gpu={name}"], "t")["gpu"]) == {"Tesla T4"}
    with pytest.raises(InputError, match=r"gpu holds TITAN Xp, Tesla T4$"):
        filtered(frame, ["gpu=v100"], "t")
    with pytest.raises(InputError, match=r", …$"):
        filtered(frame, ["c=-1"], "t")
