"""Exported programs read without torch: a graph written by hand, symbolic sizes, and no execution of content."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.conv import Conv
from surrogate.network.exported import evaluate_size, read_exported, symbol_names
from surrogate.network.network import ReadOptions
from surrogate.network.training import training_iteration
from tests.known import cases

N = "Symbol('s0', positive=True, integer=True)"


def _program(batch: str, *, weight: bool = True) -> dict[str, Any]:
    """Return a program of a convolution without bias and a ReLU, on images of 3 × 8 × 8; the filter is trained."""
    sizes = {"x": [batch, 3, 8, 8], "w": [4, 3, 3, 3], "c": [batch, 4, 8, 8], "y": [batch, 4, 8, 8]}
    values = {
        name: {
            "sizes": [{"as_int": s} if isinstance(s, int) else {"as_expr": {"expr_str": s}} for s in shape],
            "dtype": 7,
        }
        for name, shape in sizes.items()
    }

    def node(target: str, inputs: dict[str, Any], output: str) -> dict[str, Any]:
        arguments = [{"name": name, "arg": value} for name, value in inputs.items()]
        outputs = [{"as_tensor": {"name": output}}]
        stack = {"nn_module_stack": "L__self___body,body,torch.nn.Module"}
        return {"target": f"torch.ops.aten.{target}", "inputs": arguments, "outputs": outputs, "metadata": stack}

    conv = {"input": {"as_tensor": {"name": "x"}}, "weight": {"as_tensor": {"name": "w"}}, "bias": {"as_none": True}}
    nodes = [
        node("conv2d.default", conv | {"stride": {"as_ints": [1, 1]}, "padding": {"as_ints": [1, 1]}}, "c"),
        node("relu.default", {"self": {"as_tensor": {"name": "c"}}}, "y"),
    ]
    inputs = [
        {"parameter": {"arg": {"name": "w"}}} if weight else {},
        {"user_input": {"arg": {"as_tensor": {"name": "x"}}}},
    ]
    return {"graph_module": {"graph": {"tensor_values": values, "nodes": nodes}, "signature": {"input_specs": inputs}}}


def _write(path: Path, content: bytes, **others: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/models/model.json", content)
        for name, data in others.items():
            archive.writestr(f"net/data/{name}.pkl", data)
    return path


def test_a_program_written_by_hand_is_read(refused, tmp_path: Path) -> None:
    found = read_exported(_write(tmp_path / "net.pt2", json.dumps(_program(N)).encode()), ReadOptions(batch=5))
    assert [layer.name for layer in found.layers] == ["body.conv2d", "body.relu"]
    assert found.convs == (Conv(n=5, c=3, h=8, k=4, r=3, pad_h=1),)
    assert (found.batch, found.unsupported, found.layers[0].parameters) == (5, {}, 4 * 27)
    trained = [layer.operator for layer in training_iteration(found).layers]
    assert "conv2d.bwd_filter" in trained and "conv2d.bwd_data" not in trained
    fixed = _write(tmp_path / "fixed.pt2", json.dumps(_program("Integer(2)")).encode())
    with refused("fixed batch of 2"):
        read_exported(fixed, ReadOptions(batch=8))


class _Evil:
    """Create a file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self):
        return Path.touch, (Path(self.marker),)


@pytest.mark.parametrize("size", ["Integer(2)", "__import__('pathlib').Path({marker!r}).touch()"])
def test_nothing_in_the_archive_is_executed(refused, tmp_path: Path, size: str) -> None:
    """The loader of torch would unpickle weights and inputs, and evaluate a size that is a call."""
    marker = tmp_path / "executed"
    evil = pickle.dumps(_Evil(marker))
    content = json.dumps(_program(size.format(marker=str(marker)))).encode()
    path = _write(tmp_path / "evil.pt2", content, weights=evil, sample_inputs=evil)
    if "import" in size:
        with refused("arithmetic"):
            read_exported(path)
    else:
        assert read_exported(path).batch == 2
    assert not marker.exists()
    pickle.loads(evil)  # the trap is a real one
    assert marker.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"{" * 100_000])
def test_damaged_programs_are_refused(refused, tmp_path: Path, content: bytes) -> None:
    """A text file, an archive of other content and a missing file are refused in the same way."""
    (tmp_path / "text.pt2").write_text("no archive")
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("data.pkl", b"\x80\x04.")
    _write(tmp_path / "odd.pt2", content)
    for name in ("odd.pt2", "text.pt2", "other.pt2", "none.pt2"):
        with refused():
            read_exported(tmp_path / name)


@cases(__file__)
def test_size_expressions_are_evaluated(text: str, value: int) -> None:
    """The symbol s0 is 5."""
    assert evaluate_size(text, {"s0": 5}) == value
    assert symbol_names(f"Add({N}, Symbol('s7'), {N})") == {"s0", "s7"}


@pytest.mark.parametrize(
    "text", ["__import__('os')", "().__class__", "Symbol('other')", "FloorDiv(3, 0)", "Pow(2, 10**9)", "(" * 500]
)
def test_other_expressions_are_refused(refused, text: str) -> None:
    with refused():
        evaluate_size(text, {"s0": 5})
