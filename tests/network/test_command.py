"""``seer network`` through the entry point: JSON, table, CSV, training, sweeps and refusals."""

import csv
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surrogate.bundled import NETWORKS

onnx = pytest.importorskip("onnx")
Seer = Callable[..., Any]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a copy of the ResNet-18 graph."""
    return shutil.copy(NETWORKS["resnet18"], tmp_path_factory.mktemp("graph"))


def test_json_has_layers_sweep_and_gpus(seer: Seer, graph: Path, bundle: Path) -> None:
    words = ("--batch", 8, "--sweep-batch", "1,8", "--compare-gpus", "titan-xp", "--json")
    done = seer("network", graph, "--gpu", "t4", "--bundle", bundle, *words)
    assert (done.code, done.err) == (0, "")
    data = done.json
    assert (data["batch"], data["coverage"], data["unsupported"]) == (8, 1.0, {})
    assert data["total_us"] == pytest.approx(sum(layer["time_us"] for layer in data["layers"]))
    assert sum(layer["algorithm"] is not None for layer in data["layers"]) == 20
    assert [row["batch"] for row in data["sweep"]] == [1, 8]
    assert [row["gpu"] for row in data["gpus"]] == ["t4", "titan-xp"]
    assert data["sweep"][1]["total_us"] == pytest.approx(data["total_us"])
    assert sum(row["best"] for row in data["sweep"]) == 1


def test_table_and_csv_list_layers_and_types(seer: Seer, graph: Path, bundle: Path) -> None:
    words = ("network", graph, "--gpu", "t4", "--bundle", bundle)
    text = seer(*words).out
    for part in ("coverage 100.0 %", "by type", "algorithms", "compute-bound", "without launches"):
        assert part in text
    assert text.count("forward: ") == 2
    assert (
        "    4  Conv_2 " in text and "Conv_3 " not in text and "further layers" not in text
    )  # equal layers share a row
    assert len(list(csv.DictReader(io.StringIO(seer(*words, "--csv").out)))) == 68
    types = list(csv.DictReader(io.StringIO(seer(*words, "--by-type", "--csv").out)))
    assert {row["operator"]: row["count"] for row in types}["Conv"] == "20"
    refused = seer(*words, "--csv", "--price", 2)
    assert refused.code == 2 and "--csv has --price and --samples for --compare-gpus only" in refused.err
    rows = csv.DictReader(io.StringIO(seer(*words, "--csv", "--price", 3.6, "--compare-gpus", "titan-xp").out))
    # 3.6 USD per hour are 1e-9 USD per µs.
    assert len(prices := [float(row["usd_per_step"]) / float(row["total_us"]) for row in rows]) == 2
    assert prices == pytest.approx([1e-9, 1e-9])


@pytest.mark.slow
def test_the_largest_batch_is_added_to_the_sweep(seer: Seer, graph: Path, bundle: Path) -> None:
    """Every compared GPU has its own largest batch."""
    words = ("--max-batch", "--sweep-batch", "1,8", "--compare-gpus", "v100,v100-pcie-32gb", "--json")
    data = seer("network", graph, "--gpu", "t4", "--bundle", bundle, *words).json
    assert [row["batch"] for row in data["sweep"]] == [1, 8, data["batch"]]
    assert data["sweep"][-1]["total_us"] == data["total_us"]
    t4, small, large = (row["batch"] for row in data["gpus"])
    assert t4 == data["batch"] and 1.9 < large / small < 2.2


def test_a_network_of_unknown_operators_exits_with_status_1(seer: Seer, onnx_file: Any, bundle: Path) -> None:
    path = onnx_file([onnx.helper.make_node("Magic", ["x"], ["y"], domain="my.ops")], {"x": [1, 3]})
    done = seer("network", path, "--gpu", "t4", "--bundle", bundle)
    assert done.code == 1
    assert "unsupported, in no sum: my.ops.Magic ×1" in done.out
    assert "time unknown" in done.out and "0.000 ms" not in done.out


def test_a_compiled_network_fuses_layers_between_convolutions(seer: Seer, graph: Path) -> None:
    words = ("network", graph, "--gpu", "rtx-4090", "--batch", 64, "--dtype", "fp16", "--json")
    eager, fused = (seer(*words, "--runtime", name).json for name in ("eager", "compiled"))
    assert fused["total_us"] < eager["total_us"]
    assert sum(layer["algorithm"] is not None for layer in fused["layers"]) == 20
    assert len(fused["layers"]) < len(eager["layers"])
    iterations = [seer(*words, "--runtime", name, "--training").json for name in ("eager", "compiled")]
    assert fused["total_us"] < iterations[1]["total_us"] < iterations[0]["total_us"]
