"""What a command prints for people fits 80 columns where it usually can, and a pipe gets names whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Seer = Callable[..., Any]
PROBLEM = "n32c256h14w14k256r3s3p1u1"


@pytest.mark.parametrize("gpu", ["v100", "k80", "mi210"])
def test_a_pick_fits_80_columns_in_a_pipe_too(seer: Seer, gpu: str) -> None:
    lines = seer("select", "--gpu", gpu, PROBLEM).out.splitlines()
    assert lines[0].startswith(f"{PROBLEM} fwd fp32 fma NCHW on ")
    assert lines[1].split("  ")[0] == "algorithm" and "90 %" in lines[1] and "determ." in lines[1]
    assert max(map(len, lines)) <= 80


def test_a_prediction_is_headed_by_its_question_and_fits(seer: Seer) -> None:
    lines = seer("predict", "--gpu", "v100", PROBLEM, "--algorithm", "FFT").out.splitlines()
    assert lines[0].startswith(f"{PROBLEM} fwd fp32 fma NCHW on v100-sxm2-16gb, ")
    assert lines[1].split()[:2] == ["algorithm", "time_us"] and lines[2].startswith("FFT")
    assert max(map(len, lines)) <= 80


def test_an_unsupported_prediction_says_so_below(seer: Seer) -> None:
    lines = seer("predict", "--gpu", "v100", PROBLEM, "--algorithm", "DIRECT").out.splitlines()
    assert lines[2].endswith("no") and lines[3].startswith("note: ")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two problems as a network."""
    path = tmp_path / "two.txt"
    path.write_text("n8c64h28k64r3p1\nn8c64h28k128r1\n")
    return path


def test_a_network_fits_80_columns(seer: Seer, table: Path) -> None:
    words = ("network", table, "--gpu", "v100")
    lines = seer(*words, "--compare-gpus", "t4,k80").out.splitlines()
    layers = lines[: lines.index("by type")]
    assert next(line for line in layers if line.startswith("name")).split() == [
        "name", "problem", "algorithm", "time_us", "bound",
    ]  # fmt: skip
    assert "source of the times: model ×2" in lines
    sized = [line for line in lines[1:] if not line.startswith(("saved", "convolutions"))]
    assert max(map(len, sized)) <= 80
    whole = json.loads(seer(*words, "--json").out)
    assert {"lower_us", "upper_us", "workspace_bytes", "flops", "bytes", "source"} <= set(whole["layers"][0])


def test_a_pipe_gets_kernel_names_whole(seer: Seer, tmp_path: Path) -> None:
    name = "void cutlass::device_kernel<" + "float, " * 20 + "int>"
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0,
         "args": {"device": 0, "stream": 7, "correlation": 1}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0,
         "args": {"correlation": 1}},
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert name in seer("trace", "kernels", path).out
