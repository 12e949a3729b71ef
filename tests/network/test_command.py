"""``seer network`` through its entry point."""

import csv
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surrogate.bundled import NETWORKS

pytest.importorskip("onnx")
Seer = Callable[..., Any]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet-18 as a file."""
    return shutil.copy(NETWORKS["resnet18"], tmp_path_factory.mktemp("graph"))


def test_json(seer: Seer, graph: Path, bundle: Path) -> None:
    """The contract, and sweeps and GPUs beside it."""
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


def test_table_and_csv(seer: Seer, graph: Path, bundle: Path) -> None:
    """For people, and for pipes."""
    words = ("network", graph, "--gpu", "t4", "--bundle", bundle)
    text = seer(*words).out
    assert all(
        part in text for part in ("coverage 100.0 %", "by type", "algorithms", "compute-bound", "without launches")
    )
    assert text.count("forward: ") == 2 and "18 further layers: --csv" in text
    rows = list(csv.DictReader(io.StringIO(seer(*words, "--csv").out)))
    assert len(rows) == 68
    types = list(csv.DictReader(io.StringIO(seer(*words, "--by-type", "--csv").out)))
    assert {row["operator"]: row["count"] for row in types}["Conv"] == "20"


@pytest.mark.slow
def test_training(seer: Seer, graph: Path, bundle: Path) -> None:
    """More than twice the forward pass."""
    words = ("network", graph, "--gpu", "t4", "--bundle", bundle, "--json")
    forward = seer(*words).json
    trained = seer(*words, "--training", "--sweep-batch", "1,4").json
    assert trained["training"]
    assert trained["total_us"] > 2 * forward["total_us"]
    assert trained["layers"][-1]["name"] == "optimizer"


@pytest.mark.slow
def test_the_largest_batch_stands_in_the_sweep(seer: Seer, graph: Path, bundle: Path) -> None:
    """Every GPU that is compared has its own."""
    words = ("--max-batch", "--sweep-batch", "1,8", "--compare-gpus", "v100,v100-pcie-32gb", "--json")
    data = seer("network", graph, "--gpu", "t4", "--bundle", bundle, *words).json
    assert [row["batch"] for row in data["sweep"]] == [1, 8, data["batch"]]
    assert data["sweep"][-1]["total_us"] == data["total_us"]
    t4, small, large = (row["batch"] for row in data["gpus"])
    assert t4 == data["batch"] and 1.9 < large / small < 2.2


def test_nothing_known_is_a_negative_answer(seer: Seer, tmp_path: Path, bundle: Path) -> None:
    """Exit status 1, and the operator is named."""
    import onnx

    nodes = [onnx.helper.make_node("Magic", ["x"], ["y"], domain="my.ops")]
    info = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(nodes, "g", [info("x", 1, [1, 3])], [info("y", 1, None)])
    path = tmp_path / "magic.onnx"
    path.write_bytes(onnx.helper.make_model(made).SerializeToString())
    done = seer("network", path, "--gpu", "t4", "--bundle", bundle)
    assert done.code == 1
    assert "unsupported, in no sum: my.ops.Magic ×1" in done.out
    assert "time unknown" in done.out and "0.000 ms" not in done.out


def test_a_bundle_without_backward_says_so(seer: Seer, graph: Path, forward_bundle: Path) -> None:
    """Half an iteration would be no answer."""
    done = seer("network", graph, "--gpu", "t4", "--bundle", forward_bundle, "--training")
    assert done.out == "" and done.is_refusal("the bundle holds no cudnn bwd_"), done.err


def test_a_compiled_network_fuses_what_lies_between_its_convolutions(seer: Seer, graph: Path) -> None:
    words = ("network", graph, "--gpu", "rtx-4090", "--batch", 64, "--dtype", "fp16", "--json")
    eager, fused = (seer(*words, "--runtime", name).json for name in ("eager", "compiled"))
    assert fused["total_us"] < eager["total_us"]
    assert sum(layer["algorithm"] is not None for layer in fused["layers"]) == 20
    assert len(fused["layers"]) < len(eager["layers"])
    whole = [seer(*words, "--runtime", name, "--training").json for name in ("eager", "compiled")]
    assert fused["total_us"] < whole[1]["total_us"] < whole[0]["total_us"]
