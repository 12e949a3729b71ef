"""Recurrent layers and cells: as cuDNN runs them on a GPU, from modules, exported programs and ONNX nodes."""

from pathlib import Path
from typing import Any

import pytest

from surrogate.features.families import operator
from surrogate.features.families.recurrent import STEP_US
from surrogate.network.aten_call import Call, Tensor, UnsupportedError, recorded_call
from surrogate.network.dispatch import layers, problems
from surrogate.network.exported import read_exported
from surrogate.network.network import ReadOptions
from surrogate.network.predict import load_predictors
from surrogate.network.torch_module import module_network
from surrogate.network.training import training_iteration

torch = pytest.importorskip("torch")
ROWS = {"LSTM": 4 * 16, "GRU": 3 * 16, "RNN": 16}


def layer(kind: str, **more: Any) -> Any:
    """A module of one recurrent layer of 16 cells over 8 values."""
    return getattr(torch.nn, kind)(input_size=8, hidden_size=16, **more)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("amp", [None, "fp16"])
def test_a_module_calls_one_kernel_for_all_steps(kind: str, amp: str | None) -> None:
    """7 steps of 4 sequences; in training the same backwards, and the gradients of both matrices."""
    found = module_network(layer(kind), torch.zeros(7, 4, 8), ReadOptions(amp=amp))
    problem = operator("recurrent", steps=7, batch=4, inputs=8, hidden=16, rows=ROWS[kind], dtype=amp or "fp32")
    assert [each.problem for each in found.layers if each.operator.startswith("_cudnn_rnn")] == [problem]
    assert not found.unsupported
    trained = module_network(layer(kind), torch.zeros(7, 4, 8), ReadOptions(training=True))
    backward = [each.operator for each in trained.layers if each.operator.startswith("_cudnn_rnn_backward")]
    assert [name.rpartition(".")[2] for name in backward] == ["backward", "grad_inputs", "grad_state"]
    assert not trained.unsupported


def test_layers_directions_projections_and_a_batch_that_comes_first() -> None:
    """The second layer's input is what both directions of the first give: 2 × 5 values."""
    module = layer("LSTM", num_layers=2, bidirectional=True, proj_size=5, batch_first=True)
    sizes = [
        each.problem.sizes for each in module_network(module, torch.zeros(4, 7, 8)).layers if "rnn" in each.operator
    ]
    first = {"steps": 7, "batch": 4, "inputs": 8, "hidden": 5, "rows": 64}
    assert sizes == [first, first, first | {"inputs": 10}, first | {"inputs": 10}]


@pytest.mark.parametrize(("kind", "fused"), [("LSTMCell", "lstm"), ("GRUCell", "gru")])
def test_a_cell_is_two_products_and_one_kernel(kind: str, fused: str) -> None:
    found = module_network(layer(kind), torch.zeros(4, 8), ReadOptions(training=True))
    names = [each.operator for each in found.layers]
    assert names.count("mm") == 4  # two of them backwards: nothing wants the gradient of the zeros
    assert names.count(f"_thnn_fused_{fused}_cell") == 1
    assert any(name.startswith(f"_thnn_fused_{fused}_cell_backward") for name in names)
    assert not found.unsupported


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
def test_an_exported_program_and_its_iteration(tmp_path: Path) -> None:
    program = torch.export.export(layer("GRU"), (torch.zeros(7, 4, 8),))
    torch.export.save(program, tmp_path / "gru.pt2")
    found = read_exported(tmp_path / "gru.pt2")
    (problem,) = [each.problem for each in found.layers if each.problem.kind == "recurrent"]
    assert problem.sizes == {"steps": 7, "batch": 4, "inputs": 8, "hidden": 16, "rows": 48}
    assert [each.problem.kind for each in training_iteration(found).layers].count("recurrent") == 2


def test_onnx_nodes_and_records_that_lack_something() -> None:
    """ONNX has the directions of one layer in one tensor; a trace without the weights' shapes says so."""
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


def test_time_grows_by_steps_and_by_large_weights() -> None:
    """Steps wait for one another; weights of 268 MB are read in each, which A100's 2,039 GB/s do in 132 µs."""
    predictors = load_predictors("a100-sxm4-80gb")
    small = operator("recurrent", steps=500, batch=8, inputs=64, hidden=64, rows=256)
    large = operator("recurrent", steps=100, batch=8, inputs=64, hidden=4096, rows=4 * 4096)
    answers = predictors.answers([small, large], {})
    assert 500 * STEP_US < answers[small].time_us < 1.5 * 500 * STEP_US
    assert answers[small].lower_us < 0.7 * answers[small].time_us
    assert answers[large].time_us > 100 * 4 * 4 * 4096**2 / 2.039e6
