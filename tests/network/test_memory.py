"""Memory: by hand, against torch's own accounting, and what follows from it for batches."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.gpu import gpu
from surrogate.network.allocator import Allocator
from surrogate.network.aten_call import Call, Tensor
from surrogate.network.memory import context_bytes, memory, saved_tensors, simulate_pass, tensor_bytes, usable_bytes
from surrogate.network.network import HostTime, Layer, Network
from surrogate.network.operators import gemm
from surrogate.network.predict import Predictors, largest_batch
from surrogate.network.read import read_network
from surrogate.network.result import best_key

GIB = 2**30


def _of_batch(batch: int) -> Network:
    """1 GiB of weights, half a GiB a sample."""
    layers = (Layer("fc", "Gemm", gemm(batch, 1000, 1000)),)
    return Network("net", layers, batch, parameters=GIB // 4, weights_bytes=GIB, activation_bytes=batch * GIB // 2)


def test_a_batch_that_does_not_fit_is_not_best(refused, predictors: Callable[..., Predictors]) -> None:
    """14.77 of a T4's 16 GiB, without context and library, hold 27 samples, however fast 64 would be."""
    made = predictors()
    times = {batch: made.time(_of_batch(batch)) for batch in (1, 27, 28, 64)}
    assert [time.fits for time in times.values()] == [True, True, False, False]
    assert times[64].samples_per_s > times[27].samples_per_s  # type: ignore[operator]
    assert best_key(times) == largest_batch(_of_batch, made) == 27
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


def test_a_gelu_that_a_file_spells_out_keeps_its_input_alone() -> None:
    """Erf, Add and Mul: each further one adds as much to the peak of an iteration as one node would."""

    def peak(layers: int, spelled: bool) -> int:
        image = Tensor((1, 256), trained=True, buffer="x")
        calls = []
        for number in range(layers):
            erf, one, out = (replace(image, buffer=f"{name}{number}") for name in ("erf", "one", "x"))
            if spelled:
                calls += [
                    Call("Erf", {"self": image}, (erf,)),
                    Call("Add", {"self": erf}, (one,)),
                    Call("Mul", {"self": image, "other": one}, (out,)),
                ]
            else:
                calls.append(Call("Gelu", {"self": image}, (out,)))
            image = out
        allocator = Allocator()
        simulate_pass(allocator, calls, backward=True)
        return allocator.peak

    assert peak(8, True) - peak(4, True) == peak(8, False) - peak(4, False) == 4 * 1024


def test_a_table_counts_as_a_chain(tmp_path: Path) -> None:
    """A product's operands and result; its weights apart, with gradients and Adam's two states in training."""
    path = tmp_path / "net.txt"
    path.write_text("gemm:m64n32k16\ngemm:m64n16k32\n")
    forward, trained = read_network(path), read_network(path, training=True)
    weights = 4 * 2 * 16 * 32
    assert (forward.weights_bytes, forward.activation_bytes) == (weights, 4 * 64 * (32 + 16))
    assert (trained.activation_bytes, trained.state_bytes) == (4 * 64 * (32 + 16) + weights, 2 * weights)
    estimate = memory(trained, 0, gpu("t4"))
    assert (estimate["activations"], estimate["gradients"]) == (4 * 64 * (32 + 16), weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "vit_small_patch16_224", "gpt2", "mlp 1024"])
def test_torch_counts_the_same(name: str) -> None:
    """torch's memory tracker on fake tensors: a trained module exactly, what was exported of it within 10 %."""
    for module in ("torch", "timm", "transformers"):
        pytest.importorskip(module)
    from experiments.memory import rows

    errors = rows((name,)).groupby("source")["error_pct"].agg(lambda values: values.abs().max())
    assert errors["module"] < 0.1 and errors["exported"] < 10


@pytest.mark.parametrize(
    ("name", "seen_gib"),
    [
        ("h100-sxm", 79.22),
        ("a100-sxm4-80gb", 79.25),
        ("a100-sxm4-40gb", 39.39),
        ("v100-sxm2-16gb", 15.78),
        ("rtx-3090", 23.69),
        ("rtx-4090", 23.64),
        ("rtx-5090", 31.37),
        ("rtx-a6000", 47.53),
        ("a30", 23.50),
        ("t4", 14.76),
        ("l40s", 44.42),
        ("l40", 44.40),
        ("mi300x", 191.98),
    ],
)
def test_programs_see_less_than_the_board_has(name: str, seen_gib: float) -> None:
    """What `torch.cuda.mem_get_info` and PyTorch's errors name as the total, in published logs."""
    assert usable_bytes(gpu(name)) / GIB == pytest.approx(seen_gib, rel=0.01)


def test_a_context_keeps_a_stack_for_every_thread() -> None:
    """About 320 to 360 MiB on a Titan V and 400 on an A100."""
    assert context_bytes(gpu("titan-v")) == (200 + 160) * 2**20
    assert context_bytes(gpu("a100-sxm4-80gb")) == (200 + 216) * 2**20
    assert context_bytes(gpu("mi300x")) == 200 * 2**20


def test_reserves_are_named_and_only_where_they_are() -> None:
    alone = memory(_of_batch(1), 7, gpu("h100-sxm"))
    tensors = ["weights", "activations", "gradients", "state", "workspace"]
    assert list(alone) == [*tensors, "rounding", "context", "libraries", "communication", "graphs"]
    assert {name: alone[name] for name in ("workspace", "libraries", "communication", "graphs")} == {
        "workspace": 7,
        "libraries": 32 * 2**20,
        "communication": 0,
        "graphs": 0,
    }
    trained = replace(_of_batch(1), training=True, gpus=2)
    assert memory(trained, 0, gpu("t4"))["libraries"] == 2 * (2**23 + 2**17)
    assert memory(trained, 0, gpu("h100-sxm"))["communication"] == 544 * 2**20 + GIB
    assert memory(replace(trained, gpus=4), 0, gpu("h100-sxm"))["communication"] == 688 * 2**20 + GIB
    assert memory(trained, 0, gpu("t4"))["communication"] == 256 * 2**20 + GIB
    graphs = replace(_of_batch(1), host=HostTime("graphs", "usual", 1.0, 1.0, 1.5))
    assert memory(graphs, 0, gpu("t4"))["graphs"] == 2**15
    assert memory(replace(_of_batch(1), weights_bytes=None), 0, gpu("t4")) == {}


def test_a_server_s_utilisation_bounds_what_fits(seer: Any) -> None:
    """0.9 of what an L4 shows, or what the caller says."""
    words = ("network", "llama-3.1-8b", "--gpu", "l4", "--decode", 4096, "--library", "vllm", "--json")
    usual = seer(*words).succeeded().json
    assert usual["fits"] and usual["memory"]["graphs"] > 0 and usual["memory"]["context"] > 0
    assert usual["memory"]["activations"] == pytest.approx(10 * 256 * 4 * 128256, rel=1e-4)
    assert not seer(*words, "--utilization", 0.5).succeeded().json["fits"]
    assert seer(*words, "--utilization", 1.5).code == 2


def test_dropout_keeps_a_mask_pooling_indices_and_a_factor_nothing() -> None:
    """A byte an element, eight an index; a number needs no tensor for its gradient."""
    image = Tensor((1, 4, 8, 8), trained=True, buffer="x")
    small = Tensor((1, 4, 4, 4), trained=True, buffer="y")

    def kept(op: str, output: Tensor = image, **arguments: object) -> int:
        made = Call(op, {"self": image, **arguments}, (replace(output, buffer="y"),))
        return sum(map(tensor_bytes, saved_tensors(made)))

    assert kept("dropout", p=0.5, train=True) == 256
    assert kept("dropout", p=0.0, train=True) == 0
    assert kept("max_pool2d", small) == 4 * 256 + 8 * 64
    assert kept("mul", other=2.0) == 0
    assert kept("mul", other=Tensor((1,), trained=True, buffer="z")) == 4 * 256 + 4
    assert kept("gelu") == kept("layer_norm") == 4 * 256
    assert kept("where", condition=Tensor((1, 4, 8, 8), "int8", floating=False, buffer="c")) == 256
