"""Tables and texts of problems that are read as networks."""

from pathlib import Path

import pandas as pd
import pytest

from surrogate import InputError, load
from surrogate.features.conv import Conv
from surrogate.network.predict import load_predictors
from surrogate.network.read import read_network
from tests.known import cases, known_answers

ROWS = known_answers(__file__)["layers"]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_each_row_of_a_table_is_a_layer(tmp_path: Path, kind: str) -> None:
    """Equal rows remain separate layers, and other operators are counted by name."""
    frame = pd.DataFrame([*ROWS, ROWS[0], {"op": "RELU", "n": 4, "c": 16, "h": 32, "w": 32}])
    frame["heuristic_algorithm"] = ["GEMM", None, "GEMM", None]
    path = tmp_path / f"net.{kind}"
    frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)
    found = read_network(path)
    assert [layer.name for layer in found.layers] == ["first", "second", "first#2"]
    assert found.layers[1].problem == Conv(n=4, c=16, h=32, w=30, k=8, r=1)
    assert [layer.heuristic for layer in found.layers] == ["GEMM", None, "GEMM"]
    assert found.unsupported == {"RELU": 1}
    assert (found.batch, len(found.layers)) == (4, 3)
    assert read_network(path, batch=9).batch == 9


def test_each_line_of_a_text_is_a_layer(tmp_path: Path) -> None:
    """Each line is a problem as in ``seer select``; the settings apply to all lines."""
    path = tmp_path / "net.txt"
    path.write_text("# two layers\nn32c256h14w14k256r3s3p1u1\n-n 32 -c 8 -H 7 -k 8 -y 1\n")
    found = read_network(path, dtype="fp16", layout="NHWC")
    assert [layer.name for layer in found.layers] == ["line 2", "line 3"]
    assert {(conv.dtype, conv.math, conv.layout) for conv in found.convs} == {("fp16", "tensor_op", "NHWC")}


@pytest.mark.parametrize("case", ["h100-sxm int8", "h100-sxm fp32", "h100-sxm bf16", "t4 int8", "t4 fp64"])
def test_a_list_has_the_times_of_single_problems(tmp_path: Path, case: str) -> None:
    """Networks omit the cost of a call, so times differ by some per cent."""
    name, dtype = case.split()
    path, texts = tmp_path / "net.txt", ["gemm:m4096n4096k4096", "n32c256h14k256r3p1"]
    path.write_text("\n".join(texts))
    layers = load_predictors(name).time(read_network(path, dtype=dtype)).layers
    answers = [load(name).predict(text, dtype=dtype) for text in texts]
    assert [each.time_us for each in layers] == pytest.approx([each.time_us for each in answers], rel=0.1)


def test_training_a_table_adds_gradients_and_optimizer(tmp_path: Path) -> None:
    """Every layer but the first has both gradients; the optimizer updates all weights."""
    path = tmp_path / "net.csv"
    pd.DataFrame(ROWS).to_csv(path, index=False)
    found = read_network(path, training=True)
    backward = ["second.bwd_data", "second.bwd_filter", "first.bwd_filter"]
    assert [layer.name for layer in found.layers] == ["first", "second", *backward, "optimizer"]
    assert found.layers[-1].problem.reads == 4 * (3 * 16 * 9 + 16 * 8)  # type: ignore[union-attr]


@cases(__file__)
def test_tables_of_other_data_are_refused(refused, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with refused(message):
        read_network(path)


def test_a_missing_file_of_code_is_refused_with_a_suggestion(refused, tmp_path: Path) -> None:
    (tmp_path / "vit_s.py").touch()
    with refused("did you mean vit_s.py?"):
        read_network(tmp_path / "vits.py:build")
    (tmp_path / "NOTICE").touch()  # `seer network` does not read such a file
    with pytest.raises(InputError, match="no such file") as refusal:
        read_network(tmp_path / "notice.tx")
    assert "NOTICE" not in str(refusal.value)


def test_a_measured_layer_sequence_is_read(measurements: Path, tmp_path: Path) -> None:
    """Convolutions of the public table are layers, and other operators are counted as unsupported."""
    frame = pd.read_parquet(measurements / "network_layer_sequences.parquet")
    part = frame[(frame["gpu"] == "Tesla T4") & (frame["batch"] == 8) & (frame["network"] == "ResNet050-v1")]
    part.to_parquet(tmp_path / "resnet.parquet")
    found = read_network(tmp_path / "resnet.parquet")
    assert len(found.layers) == (part["op"] == "CUDNN_CONV_FWD").sum()
    assert sum(found.unsupported.values()) == (part["op"] != "CUDNN_CONV_FWD").sum()
    assert found.batch == 8
