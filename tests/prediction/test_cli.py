"""Tests of ``seer select`` and ``seer predict`` through the entry point."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from surrogate.bundle.bundle import save
from surrogate.prediction.shipped import load
from tests.prediction.test_selection import refusing

PROBLEM = "n8c16h14w14k16r3s3p1u1"


def test_select_prints_the_ranking(seer: Callable[..., Any], folder: Path) -> None:
    result = seer("select", "--bundle", folder, "--gpu", "v100", PROBLEM)
    expected = load(folder, gpu="v100").select(PROBLEM)
    assert (result.code, result.out) == (0, f"{expected!r}\n")
    assert "v100-sxm2-16gb" in result.err and "v100-pcie-32gb" in result.err and result.err.count("\n") == 1
    assert seer("select", "--bundle", folder, "--gpu", "v100-sxm2-16gb", PROBLEM).err == ""


def test_select_writes_json_and_csv(seer: Callable[..., Any], folder: Path) -> None:
    cmd = ["select", "--bundle", folder, "--gpu", "v100-sxm2-16gb", PROBLEM, "--top", "2", "--workspace-limit", "64MiB"]
    found = seer(*cmd, "--json").json
    assert found == load(folder, gpu="v100").select(PROBLEM, top=2, workspace_limit=64 * 2**20).to_dict()
    header, *rows = seer(*cmd, "--csv").out.splitlines()
    assert header.startswith("algorithm,library,time_us,lower_us,upper_us,workspace_bytes") and len(rows) == 2


def test_select_exits_with_status_1_if_nothing_is_feasible(seer, bundle, tmp_path) -> None:
    save(refusing(bundle), tmp_path / "none")
    result = seer("select", "--bundle", tmp_path / "none", "--gpu", "v100", PROBLEM, "--json")
    assert result.code == 1 and result.json["candidates"] == [] and len(result.json["excluded"]) == 8


def test_predict_answers_one_problem(seer: Callable[..., Any], folder: Path) -> None:
    cmd = ["predict", "--bundle", folder, "--gpu", "v100-sxm2-16gb", PROBLEM]
    best, fft = (seer(*cmd, "--json", *words).json for words in ((), ("--algorithm", "FFT")))
    assert fft["algorithm"] == "FFT" and best["time_us"] <= fft["time_us"]
    assert best["algorithm"] in seer(*cmd).out
    assert seer(*cmd, "--csv").out.splitlines()[0].startswith("problem,gpu,library,library_version,algorithm,time_us")
