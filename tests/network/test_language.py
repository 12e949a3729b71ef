"""Steps of language models from their configurations: computed work, parallelism, memory, and refusals."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.language_networks import grouped
from surrogate.features.families.attention import Attention, Mla
from surrogate.features.families.gemm import Gemm
from surrogate.features.families.moe import Moe
from surrogate.features.families.transfer import AllReduce
from surrogate.features.gpu import gpu
from surrogate.network.language import Deployment
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import GAP_US, Step as LanguageStep, read_language
from surrogate.network.network import Network, ReadOptions
from surrogate.network.predict import fastest_framework, load_predictors
from surrogate.prediction.sources.datasheet import SUSTAINED
from tests.known import cases, known_answers

CONFIGURATIONS = known_answers(__file__)
QWEN, LLAMA, GPT_OSS, DEEPSEEK = (CONFIGURATIONS[name] for name in ("QWEN", "LLAMA", "GPT_OSS", "DEEPSEEK"))
Step = Callable[..., Network]


@pytest.fixture
def step(tmp_path: Path) -> Step:
    """Return a function: configuration and sizes → the network of one step."""

    def read(config: dict[str, Any], **sizes: Any) -> Network:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        spread = {name: size for name, size in sizes.items() if name not in ("prefill", "decode", "batch")}
        return read_language(path, ReadOptions(**sizes), Deployment(**spread))

    return read


def _problems(network: Network, kind: type) -> list[Any]:
    return [layer.problem for layer in network.layers if isinstance(layer.problem, kind)]


@pytest.mark.parametrize(
    ("config", "billions"),
    [(QWEN, 14.77), (LLAMA, 1.236), (GPT_OSS, 116.8), (DEEPSEEK, 671.0)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameter_count_matches_the_published_count(step: Step, config: dict[str, Any], billions: float) -> None:
    assert sum(layer.parameters for layer in step(config, decode=100).layers) / 1e9 == pytest.approx(billions, rel=2e-3)


def test_prefill_computes_all_tokens_and_the_head_only_the_last(step: Step) -> None:
    network = step(QWEN, prefill=1000, batch=4)
    sizes = {(7168, 4000), (5120, 4000), (27648, 4000), (152064, 4)}
    assert {(work.n, work.m) for work in _problems(network, Gemm)} == sizes
    attention = Attention(batch=4, heads=40, kv_heads=8, head_dim=128, query_length=1000)
    assert set(_problems(network, Attention)) == {attention}
    flops = sum(layer.problem.flops for layer in network.layers)
    assert flops == pytest.approx(2 * 4000 * 13.2e9 + attention.flops * 48, rel=0.02)


def test_decoding_computes_one_token_after_its_context(step: Step) -> None:
    network = step(QWEN, decode=4096, batch=8)
    assert {(each.phase, each.context_length) for each in _problems(network, Attention)} == {("generation", 4096)}
    assert {work.m for work in _problems(network, Gemm)} == {8}
    assert network.weights_bytes == pytest.approx(2 * 14.77e9, rel=1e-3)
    assert network.state_bytes == 2 * 2 * 48 * 8 * 8 * 128 * 4096


def test_tensor_parallelism_divides_layers_and_adds_all_reduces(step: Step) -> None:
    one_gpu, two_gpus = step(QWEN, decode=4096), step(QWEN, decode=4096, tensor_parallel=2)
    assert two_gpus.weights_bytes == pytest.approx(one_gpu.weights_bytes / 2, rel=1e-3)
    assert two_gpus.state_bytes == one_gpu.state_bytes / 2
    assert not _problems(one_gpu, AllReduce)
    assert Counter(_problems(two_gpus, AllReduce)) == {AllReduce(elements=5120, ranks=2, dtype="bf16"): 96}
    assert {work.kv_heads for work in _problems(step(QWEN, decode=9, tensor_parallel=20), Attention)} == {1}
    assert "40 are assumed" in step({**QWEN, "num_key_value_heads": None}, decode=9).notes[0]


def test_gpt_oss_has_routed_experts_and_alternating_windows(step: Step) -> None:
    network = step(GPT_OSS, decode=4096)
    assert Counter(work.window for work in _problems(network, Attention)) == {128: 18, 0: 18}
    assert {(moe.topk, moe.dtype) for moe in _problems(network, Moe)} == {(4, "w4a16_mxfp4")}
    assert {work.dtype for work in _problems(network, Gemm)} == {"bf16"}
    assert network.state_bytes == 2 * 2 * 8 * 64 * 18 * (128 + 4096)


def test_deepseek_uses_latent_attention(step: Step) -> None:
    network = step(DEEPSEEK, decode=4096, batch=2, tensor_parallel=8)
    assert {(work.heads, work.context_length) for work in _problems(network, Mla)} == {(16, 4096)}
    assert Counter(work.dtype for work in _problems(network, Moe)) == {"fp8_block": 58}
    assert len({layer.problem for layer in network.layers}) == 21  # equal layers share one problem
    assert network.state_bytes == 2 * 61 * 2 * 576 * 4096  # every GPU stores the complete cache


def test_quantisation_excludes_attention_and_the_head(step: Step) -> None:
    network = step(QWEN, prefill=64, dtype="fp8")
    kinds = Counter((layer.operator, layer.problem.dtype) for layer in network.layers)
    # Other quantisations are fused with the kernel before them.
    assert kinds["down_proj", "fp8"] == kinds["o_proj.quantise", "bf16"] == 48
    assert "down_proj.quantise" not in {name for name, _ in kinds}
    assert (kinds["attention", "bf16"], kinds["lm_head", "bf16"]) == (48, 1)


def test_work_is_the_sum_over_requests_of_several_lengths(tmp_path: Path) -> None:
    (tmp_path / "qwen.json").write_text(json.dumps(QWEN), encoding="utf-8")
    groups = grouped([(100, 100), (2000, 2000)])
    network = LanguageStep(read_decoder(tmp_path / "qwen.json"), groups, Deployment(), 2100).network
    exact = 4 * 40 * 128 * (100 * 101 + 2000 * 2001) // 2
    assert _problems(network, Attention)[0].flops == pytest.approx(exact, rel=2e-3)
    assert {work.m for work in _problems(network, Gemm)} == {2100, 2}


@cases(__file__)
def test_an_invalid_step_is_refused_in_one_line(refused, step: Step, name, changes, sizes, message) -> None:
    """In files of DeepSeek, `intermediate_size` is the width of dense layers, in files of gpt-oss that of experts."""
    with refused(message):
        step(CONFIGURATIONS[name] | changes, **sizes)


def test_the_command_reads_a_configuration(seer: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    run = seer("network", path, "--gpu", "h100-sxm", "--decode", 2048, "--library", "vllm", "--json").succeeded()
    min_us = 2 * 1.236e9 / 3.35e6
    assert min_us < run.json["total_us"] < 3 * min_us


def test_a_gpu_without_the_needed_units_becomes_a_refused_row(seer: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    words = ("network", path, "--decode", 2048, "--dtype", "fp8", "--json")
    run = seer(*words, "--gpu", "t4", "--compare-gpus", "h100-sxm").succeeded()
    answered, refused = run.json["gpus"]
    assert run.json["gpu"] == answered["gpu"] == "h100-sxm" and answered["total_us"] == run.json["total_us"]
    assert refused["gpu"] == "t4" and "no fp8 units" in refused["refused"]
    framework = seer(*words, "--gpu", "mi300x", "--library", "trtllm")
    assert framework.code == 2 and "trtllm does not run on mi300x" in framework.err


@cases(__file__)
def test_a_request_longer_than_the_model_supports_is_refused(refused, step: Step, scaling: Any, positions: int) -> None:
    config = LLAMA | {"max_position_embeddings": 1024} | scaling
    assert step(config, decode=positions).layers
    with refused(f"has {positions + 1} tokens, but the model supports {positions}"):
        step(config, prefill=positions + 1)


@pytest.mark.parametrize("name", ["h20", "rtx-6000-ada"])
def test_products_do_not_exceed_the_peak_or_the_power_limit(step: Step, name: str) -> None:
    """Long products reach the sustained share of the peak of an H20; an RTX 6000 Ada is limited by its 300 W."""
    device, network = gpu(name), step(LLAMA, prefill=4096, batch=4)
    ceiling = SUSTAINED if name == "h20" else device.board_watts / (3.0 * device.bf16_tensor_tflops)
    layers = load_predictors(name, library="sglang").time(network).layers
    products = [layer for layer in layers if layer.name.endswith("gate_up_proj")]
    assert products
    for layer in products:
        min_us = layer.flops / (device.bf16_tensor_tflops * 1e6)
        assert layer.time_us == pytest.approx(min_us / ceiling + GAP_US, rel=1e-6)


def test_a_framework_with_measured_kernels_is_chosen(step: Step) -> None:
    """vLLM's latent attention was never measured. SGLang's kernels take 12.6 ms and TensorRT-LLM's 15.0 ms."""
    assert fastest_framework(step(DEEPSEEK, decode=4096, tensor_parallel=8), "h200-sxm") == "sglang"
