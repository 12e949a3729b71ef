"""Memory: by hand, against torch's own accounting, and what follows from it for batches."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from surrogate.network.network import Layer, Network
from surrogate.network.predict import Predictors, largest_batch, sweep_batches
from surrogate.network.read import read_network
from surrogate.network.result import best_batch
from surrogate.network.work import gemm

GIB = 2**30


def _of_batch(batch: int) -> Network:
    """1 GiB of weights, half a GiB a sample."""
    layers = (Layer("fc", "Gemm", gemm(batch, 1000, 1000)),)
    return Network("net", layers, batch, parameters=GIB // 4, weights_bytes=GIB, activation_bytes=batch * GIB // 2)


def test_a_batch_that_does_not_fit_is_not_best(refused, predictors: Callable[..., Predictors]) -> None:
    """14.77 of a T4's 16 GiB, without context and library, hold 27 samples, however fast 64 would be."""
    made = predictors()
    times = sweep_batches(_of_batch, [1, 27, 28, 64], made)
    assert [time.fits for time in times.values()] == [True, True, False, False]
    assert times[64].samples_per_s > times[27].samples_per_s  # type: ignore[operator]
    assert best_batch(times) == largest_batch(_of_batch, made) == 27
    context, library = 200 * 2**20 + 40 * 1024 * 1024, 2**23 + 2**17
    assert times[27].memory_bytes == GIB * 29 // 2 + context + library
    assert times[27].gpu_memory_bytes == pytest.approx(16 * GIB * 0.985 * 15 / 16)
    assert largest_batch(_of_batch, replace(made, utilization=0.5)) == 12
    with refused("not even one sample"):
        largest_batch(lambda batch: replace(_of_batch(batch), state_bytes=16 * GIB), made)


def test_buffers_live_until_their_last_reader(onnx_file) -> None:
    """x is the user's, a waits for the sum, a view is no copy; in training its results, gradients and a's wait, too."""
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node
    nodes = [
        node("Sigmoid", ["x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Flatten", ["b"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("Add", ["d", "a"], ["y"]),
    ]
    read = read_network(onnx_file(nodes, {"x": ["n", 256]}), batch=4)
    assert (read.parameters, read.weights_bytes) == (0, 0)
    assert read.activation_bytes == 4 * (4 * 256 * 4)


def test_a_table_counts_as_a_chain(tmp_path: Path) -> None:
    """A product's operands and result; its weights apart, with gradients and Adam's two states in training."""
    path = tmp_path / "net.txt"
    path.write_text("gemm:m64n32k16\ngemm:m64n16k32\n")
    forward, trained = read_network(path), read_network(path, training=True)
    weights = 4 * 2 * 16 * 32
    assert (forward.weights_bytes, forward.activation_bytes) == (weights, 4 * 64 * (32 + 16))
    assert (trained.activation_bytes, trained.state_bytes) == (4 * 64 * (32 + 16) + weights, 2 * weights)


SOURCE = """
import torch
from tests.network import torch_modules

torch.backends.mha.set_fastpath_enabled(False)  # one operator would hide what it holds

def transformer(batch=1):
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (torch.zeros(batch, 128, 256),)

def vit(batch=1):
    import timm
    return timm.create_model("vit_base_patch16_224"), (torch.zeros(batch, 3, 224, 224),)

resnet = torch_modules.resnet50
"""


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["resnet", "vit", "transformer"])
def test_torch_counts_the_same(name: str, training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's memory tracker on fake tensors, Adam fused: a module within 10 % forward, 15 % trained; an export,
    in which no Python name holds a tensor longer than its last reader, within 20 %."""
    torch = pytest.importorskip("torch")
    if name == "vit":
        pytest.importorskip("timm")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    (tmp_path / "memory_nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    network = read_network(f"memory_nets:{name}", batch=8, training=training)
    module, inputs = getattr(__import__("memory_nets"), name)(batch=8)
    program = torch.export.export(module.eval(), tuple(inputs))
    torch.export.save(program, tmp_path / "net.pt2")
    exported = read_network(tmp_path / "net.pt2", training=training)
    with (fake := FakeTensorMode(allow_non_fake_inputs=True)):
        module._apply(fake.from_tensor).train(training)
        inputs = [fake.from_tensor(given) for given in inputs]
        optimizer = [torch.optim.Adam(module.parameters(), fused=True)] if training else []
        tracker = MemTracker()
        tracker.track_external(module, *optimizer, *inputs)
        for _ in range(2 if training else 1):
            with tracker, torch.set_grad_enabled(training):
                result = module(*inputs)
                if training:
                    result.sum().backward()
                    del result
                    optimizer[0].step()
                    optimizer[0].zero_grad()
                    tracker.reset_mod_stats()
    counted = next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]
    for read, tolerance in ((network, 0.15 if training else 0.1), (exported, 0.2)):
        held = (read.weights_bytes or 0) + (read.activation_bytes or 0) + read.state_bytes
        assert held == pytest.approx(counted, rel=tolerance)
