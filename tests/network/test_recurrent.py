"""Recurrent layers and cells as cuDNN runs them, from modules, exported programs and ONNX nodes."""

from pathlib import Path
from typing import Any

import pytest

from surrogate.features.families import operator
from surrogate.features.families.recurrent import STEP_US
from surrogate.network.aten_call import Call, Tensor, UnsupportedError
from surrogate.network.dispatch import layers, problems
from surrogate.network.exported import read_exported
from surrogate.network.network import ReadOptions
from surrogate.network.predict import load_predictors
from surrogate.network.torch_module import module_network
from surrogate.network.training import training_iteration
from surrogate.trace.calls import recorded_call

torch = pytest.importorskip("torch")
ROWS = {"LSTM": 4 * 16, "GRU": 3 * 16, "RNN": 16}


def recurrent_module(kind: str, **more: Any) -> Any:
    """Return a module of one recurrent layer with 8 inputs and 16 cells."""
    return getattr(torch.nn, kind)(input_size=8, hidden_size=16, **more)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("amp", [None, "fp16"])
def test_a_module_calls_one_kernel_for_all_steps(kind: str, amp: str | None) -> None:
    """Training adds a backward kernel and the gradients of both matrices."""
    found = module_network(recurrent_module(kind), torch.zeros(7, 4, 8), ReadOptions(amp=amp))
    problem = operator("recurrent", steps=7, batch=4, inputs=8, hidden=16, rows=ROWS[kind], dtype=amp or "fp32")
    assert [layer.problem for layer in found.layers if layer.operator.startswith("_cudnn_rnn")] == [problem]
    assert not found.unsupported
    trained = module_network(recurrent_module(kind), torch.zeros(7, 4, 8), ReadOptions(training=True))
    backward = [layer.operator for layer in trained.layers if layer.operator.startswith("_cudnn_rnn_backward")]
    assert [name.rpartition(".")[2] for name in backward] == ["backward", "grad_inputs", "grad_state"]
    assert not trained.unsupported


def test_each_layer_and_direction_is_one_kernel() -> None:
    """The second layer reads both directions of the first layer, 2 × 5 values."""
    module = recurrent_module("LSTM", num_layers=2, bidirectional=True, proj_size=5, batch_first=True)
    layers = module_network(module, torch.zeros(4, 7, 8)).layers
    sizes = [layer.problem.sizes for layer in layers if "rnn" in layer.operator]
    first = {"steps": 7, "batch": 4, "inputs": 8, "hidden": 5, "rows": 64}
    assert sizes == [first, first, first | {"inputs": 10}, first | {"inputs": 10}]


@pytest.mark.parametrize(("kind", "fused"), [("LSTMCell", "lstm"), ("GRUCell", "gru")])
def test_a_cell_is_two_products_and_one_kernel(kind: str, fused: str) -> None:
    found = module_network(recurrent_module(kind), torch.zeros(4, 8), ReadOptions(training=True))
    names = [layer.operator for layer in found.layers]
    assert names.count("mm") == 4  # two of them in the backward pass: the input needs no gradient
    assert names.count(f"_thnn_fused_{fused}_cell") == 1
    assert any(name.startswith(f"_thnn_fused_{fused}_cell_backward") for name in names)
    assert not found.unsupported


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
def test_an_exported_program_has_recurrent_kernels_in_both_passes(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(recurrent_module("GRU"), (torch.zeros(7, 4, 8),)), tmp_path / "gru.pt2")
    found = read_exported(tmp_path / "gru.pt2")
    (problem,) = [layer.problem for layer in found.layers if layer.problem.kind == "recurrent"]
    assert problem.sizes == {"steps": 7, "batch": 4, "inputs": 8, "hidden": 16, "rows": 48}
    assert [layer.problem.kind for layer in training_iteration(found).layers].count("recurrent") == 2


def test_onnx_nodes_are_read_and_incomplete_records_are_refused() -> None:
    """ONNX stores both directions of a layer in one tensor; a trace may lack the shapes of the weights."""
    tensors = {"X": Tensor((7, 4, 8)), "W": Tensor((2, 64, 8)), "R": Tensor((2, 64, 16)), "hidden_size": 16}
    problem = operator("recurrent", steps=7, batch=4, inputs=8, hidden=16, rows=64)
    assert problems(Call("LSTM", tensors)) == (problem, problem)
    packed = {"input": Tensor((20, 8)), "batch_sizes": [4, 4, 4, 3, 3, 1, 1], "num_layers": 1, "mode": 3}
    weights = [Tensor((48, 8)), Tensor((48, 16)), Tensor((48,)), Tensor((48,))]
    (packed_layer,) = layers(Call("_cudnn_rnn", packed | {"weight": weights}))
    assert packed_layer.problem == operator("recurrent", steps=7, batch=3, inputs=8, hidden=16, rows=48)
    with pytest.raises(UnsupportedError, match="weights"):
        problems(Call("_cudnn_rnn", {"input": Tensor((7, 4, 8)), "num_layers": 1}))
    with pytest.raises(UnsupportedError, match="batch_first"):
        problems(recorded_call("aten::_cudnn_rnn", [(7, 4, 8), (), (), (), (1, 4, 16)]))


def test_time_grows_with_steps_and_large_weights() -> None:
    """Steps run one after another; each reads weights of 268 MB, which takes 132 µs at 2,039 GB/s of the A100."""
    predictors = load_predictors("a100-sxm4-80gb")
    small = operator("recurrent", steps=500, batch=8, inputs=64, hidden=64, rows=256)
    large = operator("recurrent", steps=100, batch=8, inputs=64, hidden=4096, rows=4 * 4096)
    answers = predictors.answers([small, large], {})
    assert 500 * STEP_US < answers[small].time_us < 1.5 * 500 * STEP_US
    assert answers[small].lower_us < 0.7 * answers[small].time_us
    assert answers[large].time_us > 100 * 4 * 4 * 4096**2 / 2.039e6
