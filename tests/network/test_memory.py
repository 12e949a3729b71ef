"""Memory of networks: known answers, the accounting of torch, and the largest batch that fits."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surrogate.bundled import NETWORKS
from surrogate.features.gpu import gpu
from surrogate.network import serve
from surrogate.network.aten_call import Call, Tensor
from surrogate.network.memory import Allocator, context_bytes, memory, saved_tensors, simulate_pass, usable_bytes
from surrogate.network.network import Cluster, HostTime, Layer, Network
from surrogate.network.operators import gemm
from surrogate.network.predict import Predictors, largest_batch, load_predictors
from surrogate.network.read import read_network
from surrogate.network.result import comparison_records
from tests.known import cases, known_answers

GIB = 2**30


def _of_batch(batch: int) -> Network:
    """Return a network with 1 GiB of weights and 0.5 GiB of activations per sample."""
    layers = (Layer("fc", "Gemm", gemm(batch, 1000, 1000)),)
    return Network("net", layers, batch, parameters=GIB // 4, weights_bytes=GIB, activation_bytes=batch * GIB // 2)


def test_a_batch_that_does_not_fit_is_not_best(refused, predictors: Callable[..., Predictors]) -> None:
    """Without context and libraries, 14.67 of a T4's 16 GiB are usable, which holds 26 samples.

    97 % of it holds 25, and 97 % of half 11.
    """
    predictors_t4 = predictors()
    times = {batch: predictors_t4.time(_of_batch(batch)) for batch in (1, 26, 27, 64)}
    assert [time.fits for time in times.values()] == [True, True, False, False]
    assert times[64].samples_per_s > times[26].samples_per_s  # type: ignore[operator]
    best = next(record["batch"] for record in comparison_records("batch", times) if record["best"])
    assert (best, largest_batch(_of_batch, predictors_t4)) == (26, 25)
    context, library = 200 * 2**20 + 40 * 1024 * 1024, 2**23 + 2**17
    assert times[26].memory_bytes == GIB * 14 + context + library
    assert times[26].gpu_memory_bytes == pytest.approx(15 * GIB * 0.9926 - 220 * 2**20)
    assert largest_batch(_of_batch, replace(predictors_t4, utilization=0.5)) == 11
    with refused("not even one sample"):
        largest_batch(lambda batch: replace(_of_batch(batch), state_bytes=16 * GIB), predictors_t4)


def test_workspaces_fit_the_memory_that_is_left() -> None:
    predictors, network = load_predictors("l40s"), read_network("vgg16", batch=64, training=True)
    fastest = predictors.time(network)
    assert fastest.memory_bytes and fastest.memory["workspace"]
    needs = [fastest.memory_bytes - share * fastest.memory["workspace"] for share in (0.5, 1.5)]
    few, none = (replace(predictors, utilization=need / fastest.gpu_memory_bytes).time(network) for need in needs)
    assert few.fits and few.kernels_us > fastest.kernels_us and "as PyTorch takes them" in few.notes[-1]
    assert few.memory["workspace"] <= fastest.memory["workspace"] / 2 and none.fits is False


def test_buffers_live_until_their_last_reader(onnx_file) -> None:
    """The input is not counted, a is kept until the sum reads it, and a view is not a copy."""
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node
    chain = (("Sigmoid", "x", "a"), ("Relu", "a", "b"), ("Flatten", "b", "c"), ("Relu", "c", "d"), ("Add", "da", "y"))
    nodes = [node(op, [*sources], [target]) for op, sources, target in chain]
    network = read_network(onnx_file(nodes, {"x": ["n", 256]}), batch=4)
    assert (network.parameters, network.weights_bytes) == (0, 0)
    assert network.activation_bytes == 4 * (4 * 256 * 4)


def test_gelu_written_as_several_nodes_saves_only_its_input() -> None:
    """A layer of Erf, Add and Mul adds as much to the peak of an iteration as one Gelu node."""

    def peak(layers: int, several_nodes: bool) -> int:
        image = Tensor((1, 256), needs_gradient=True, buffer="x")
        calls = []
        for number in range(layers):
            erf, added, out = (replace(image, buffer=f"{name}{number}") for name in ("erf", "added", "x"))
            if several_nodes:
                calls += [
                    Call("Erf", {"self": image}, (erf,)),
                    Call("Add", {"self": erf}, (added,)),
                    Call("Mul", {"self": image, "other": added}, (out,)),
                ]
            else:
                calls.append(Call("Gelu", {"self": image}, (out,)))
            image = out
        allocator = Allocator()
        simulate_pass(allocator, calls, backward=True)
        return allocator.peak

    assert peak(8, True) - peak(4, True) == peak(8, False) - peak(4, False) == 4 * 1024


def test_a_table_needs_the_memory_of_a_chain_of_layers(tmp_path: Path) -> None:
    """Training adds gradients of the weights and the two states of Adam."""
    path = tmp_path / "net.txt"
    path.write_text("gemm:m64n32k16\ngemm:m64n16k32\n")
    forward, trained = read_network(path), read_network(path, training=True)
    weights = 4 * 2 * 16 * 32
    assert (forward.weights_bytes, forward.activation_bytes) == (weights, 4 * 64 * (32 + 16))
    assert (trained.activation_bytes, trained.state_bytes) == (4 * 64 * (32 + 16) + weights, 2 * weights)
    parts = memory(trained, 0, gpu("t4"))
    assert (parts["activations"], parts["gradients"]) == (4 * 64 * (32 + 16), weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "vit_small_patch16_224", "gpt2", "mlp 1024"])
def test_memory_agrees_with_the_memory_tracker_of_torch(name: str) -> None:
    """The tracker runs on fake tensors; a module agrees within 0.1 %, an exported program within 10 %."""
    for module in ("torch", "timm", "transformers"):
        pytest.importorskip(module)
    from experiments.memory import rows

    errors = rows((name,)).groupby("source")["error_pct"].agg(lambda values: values.abs().max())
    assert errors["module"] < 0.1 and errors["exported"] < 10


@cases(__file__)
def test_usable_memory_is_less_than_board_memory(name: str, seen_gib: float) -> None:
    """The sizes are totals of `torch.cuda.mem_get_info` and of error messages in published logs."""
    assert usable_bytes(gpu(name)) / GIB == pytest.approx(seen_gib, abs=0.2)


def test_context_memory_includes_a_stack_per_thread() -> None:
    """Measured contexts take 320 to 360 MiB on a Titan V and 400 MiB on an A100."""
    assert context_bytes(gpu("titan-v")) == (200 + 160) * 2**20
    assert context_bytes(gpu("a100-sxm4-80gb")) == (200 + 216) * 2**20
    assert context_bytes(gpu("mi300x")) == 200 * 2**20


def test_memory_lists_each_reserve_that_applies() -> None:
    inference = memory(_of_batch(1), 7, gpu("h100-sxm"))
    tensors = ["weights", "activations", "gradients", "state", "workspace"]
    assert list(inference) == [*tensors, "rounding", "context", "libraries", "communication", "graphs"]
    reserves = [inference[name] for name in ("workspace", "libraries", "communication", "graphs")]
    assert reserves == [7, 32 * 2**20, 0, 0]
    trained = replace(_of_batch(1), training=True, cluster=Cluster(2, 2))
    assert memory(trained, 0, gpu("t4"))["libraries"] == 2 * (2**23 + 2**17)
    assert memory(trained, 0, gpu("h100-sxm"))["communication"] == 544 * 2**20
    assert memory(replace(trained, cluster=Cluster(4, 4)), 0, gpu("h100-sxm"))["communication"] == 688 * 2**20
    assert memory(trained, 0, gpu("t4"))["communication"] == 256 * 2**20
    graphs = replace(_of_batch(1), host=HostTime("graphs", "usual", 1.0, 1.0, 1.5))
    assert memory(graphs, 0, gpu("t4"))["graphs"] == 2**15
    assert memory(replace(_of_batch(1), weights_bytes=None), 0, gpu("t4")) == {}


def test_server_utilization_limits_memory(seer: Any) -> None:
    """The default is 0.9 of the usable memory."""
    words = ("network", "llama-3.1-8b", "--gpu", "l4", "--decode", 4096, "--library", "vllm", "--json")
    default = seer(*words).succeeded().json
    assert default["fits"] and default["memory"]["graphs"] > 0 and default["memory"]["context"] > 0
    assert default["memory"]["activations"] == pytest.approx(10 * 256 * 4 * 128256, rel=1e-4)
    assert not seer(*words, "--utilization", 0.5).succeeded().json["fits"]


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("model, cache", [("llama-3.1-8b", ""), ("llama-3.1-8b", "fp8"), ("deepseek-v3", ""), ("", "")])
def test_a_server_and_its_step_need_the_same_memory(tmp_path: Path, model: str, cache: str, gpus: int) -> None:
    """One request has its full length of 7,900 + 200 + 128 tokens, and no further request fits.

    The model without a name has experts and windows.
    """
    path = NETWORKS.get(model, tmp_path / "config.json")
    if not model:
        path.write_text(json.dumps(known_answers(str(Path(__file__).with_name("test_language.py")))["GPT_OSS"]))
    choices: dict[str, Any] = {"libraries": "vllm", "gpus": gpus, "tensor_parallel": gpus, "expert_parallel": 1}
    load: dict[str, Any] = {"input": 7900, "output": 200, "concurrency": 9000, "kv_dtypes": cache or ()}
    row = serve(path, gpu="h200-sxm", **load, **choices).rows[0]
    options: dict[str, Any] = {"tensor_parallel": gpus, "kv_dtype": cache or None}

    def size(batch: int, decode: int) -> int:
        return sum(memory(read_network(path, batch=batch, decode=decode, **options), 0, gpu(row.gpu)).values())

    sizes = [size(row.running + further, 8000) + size(1, 8228) - size(1, 8000) for further in (0, 1)]
    assert row.memory_gib * GIB == pytest.approx(sizes[0], abs=1)
    assert [size <= 0.9 * usable_bytes(gpu(row.gpu)) for size in sizes] == [row.fits, False]


def test_saved_tensors_include_dropout_masks_and_pooling_indices() -> None:
    """A mask takes a byte per element and an index 8; a product with a number saves nothing."""
    image = Tensor((1, 4, 8, 8), needs_gradient=True, buffer="x")
    small = Tensor((1, 4, 4, 4), needs_gradient=True, buffer="y")

    def saved_bytes(op: str, output: Tensor = image, **arguments: object) -> int:
        call = Call(op, {"self": image, **arguments}, (replace(output, buffer="y"),))
        return sum(tensor.bytes for tensor in saved_tensors(call))

    assert saved_bytes("dropout", p=0.5, train=True) == 256
    assert saved_bytes("dropout", p=0.0, train=True) == 0
    assert saved_bytes("max_pool2d", small) == 4 * 256 + 8 * 64
    assert saved_bytes("mul", other=2.0) == 0
    assert saved_bytes("mul", other=Tensor((1,), needs_gradient=True, buffer="z")) == 4 * 256 + 4
    assert saved_bytes("gelu") == saved_bytes("layer_norm") == 4 * 256
    assert saved_bytes("where", condition=Tensor((1, 4, 8, 8), "int8", floating=False, buffer="c")) == 256
