"""Configurations of further types: their parameters, notes about fields, layers of their own, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.families.attention import Attention, Mla
from surrogate.network.language import Decoder, Deployment
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import Requests, language_network
from surrogate.network.network import Network
from tests.known import known_answers

ROWS = known_answers(__file__)
LLAMA = ROWS["an unknown type with Llama's fields"]["config"] | {"model_type": "llama"}
MLA = {"kv_lora_rank": 512, "q_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
SPARSE = {"index_n_heads": 16, "index_head_dim": 128, "index_topk": 2048, "model_type": "glm_moe_dsa"}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}


def _step(decoder: Decoder, context: int = 4096) -> Network:
    return language_network(decoder, [Requests(1, 1, context)], Deployment())


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_parameters_and_notes_of_published_models(row: dict[str, Any]) -> None:
    network = _step(read_decoder(row["config"]))
    assert (network.parameters or 0) / 1e9 == pytest.approx(row["billions"], rel=2e-3)
    assert (network.weights_bytes or 0) / 2e9 == pytest.approx(row["billions"], rel=2e-3)
    assert len(network.notes) == len(row["notes"]), network.notes
    assert all(text in note for text, note in zip(row["notes"], network.notes, strict=True))


@pytest.mark.parametrize(
    "pattern",
    [
        {"indexer_types": ["full", "shared", "shared", "full"]},
        {"index_topk_pattern": "FSSF"},
        {"index_topk_freq": 3, "index_skip_topk_offset": 1},
    ],
)
def test_layers_that_share_an_indexer_neither_compute_nor_hold_it(pattern: dict[str, Any]) -> None:
    config = LLAMA | MLA | EXPERTS | SPARSE | {"num_hidden_layers": 4}
    every, shared = _step(read_decoder(config)), _step(read_decoder(config | pattern))
    assert [sum("indexer.scores" in each.name for each in network.layers) for network in (every, shared)] == [4, 2]
    assert every.state_bytes - shared.state_bytes == 2 * 128 * 4096
    assert (every.parameters or 0) > (shared.parameters or 0)
    assert {each.problem.context_length for each in shared.layers if isinstance(each.problem, Mla)} == {2048}


def test_compression_decides_what_a_token_reads_and_stores() -> None:
    """Of 43 layers, 21 store a position of 512 values and 128 of an index for 4 tokens, and 20 one for 128 tokens."""
    config = ROWS["DeepSeek-V4-Flash"]["config"]
    step = _step(read_decoder(config))
    read = {each.problem.context_length for each in step.layers if isinstance(each.problem, Mla)}
    assert read == {128, 128 + 512, 128 + 4096 // 128}
    pooled = 4 * (21 * 4 * 2 * 4 * (512 + 128) + 20 * 128 * 2 * 512)
    assert step.state_bytes == 43 * 128 * 1024 + 21 * 1024 * (1024 + 128) + 20 * 32 * 1024 + pooled
    words = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    saved = {"compress_ratios": None, "layer_types": [words[ratio] for ratio in config["compress_ratios"]]}
    assert read_decoder(config | saved).layers == read_decoder(config).layers


@pytest.mark.parametrize(
    ("changes", "indexers"), [({}, 2), ({"use_sparse_attention": False}, 0), ({"layer_types": []}, 0)]
)
def test_only_sparse_layers_have_an_indexer(changes: dict[str, Any], indexers: int) -> None:
    network = _step(read_decoder(ROWS["four layers of MiniMax-M3"]["config"] | changes))
    assert sum("indexer.scores" in layer.name for layer in network.layers) == indexers
    contexts = [layer.problem.context_length for layer in network.layers if isinstance(layer.problem, Attention)]
    assert contexts == [4096] * (4 - indexers) + [2048] * indexers


def test_layers_have_heads_of_their_own() -> None:
    network = _step(read_decoder(ROWS["gemma-4-26B-A4B"]["config"]))
    problems = [layer.problem for layer in network.layers if isinstance(layer.problem, Attention)]
    assert [(each.kv_heads, each.head_dim, each.window) for each in problems[4:6]] == [(8, 256, 1024), (2, 512, 0)]
    assert network.state_bytes == 2 * 2 * (25 * 1024 * 8 * 256 + 5 * 4096 * 2 * 512)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mystery", "ssm_rank": 8}, "llama, the nearest known type, has no field ssm_rank"),
        (
            {"model_type": "mystery", "vocab_size": None},
            "llama, the nearest known type, differs in the field vocab_size",
        ),
        ({"model_type": "mystery", "kv_lora_rank": 512}, "nearest known type, differs in the field kv_lora_rank"),
        ({"model_type": "mystery", "activation_function": "relu2"}, "differs in the field hidden_act"),
        ({"is_encoder_decoder": True}, "only decoders without an encoder are predicted"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types has 3 entries for 16 layers"),
        ({"model_type": "deepseek_v4", "sliding_window": 8} | EXPERTS, "compress_ratios is missing; add it, a list"),
        ({"model_type": "gemma3n"}, "its layers exchange several streams"),
        ({"model_type": "qwen"}, "counts both halves of the MLP"),
        ({"model_type": "mystery", "total_ut_steps": 4}, "has no field total_ut_steps"),
        ({"model_type": "mystery", "layer_types": ["conv"] * 16}, "chunked_attention; model_type 'mystery' is unknown"),
        ({"layer_types": ["linear_attention"] * 16}, "layer_types has the unknown entry 'linear_attention'"),
        ({"layer_types": ["sliding_attention"] * 16}, "layer_types has 'sliding_attention', but sliding_window is"),
        ({"num_kv_shared_layers": 16}, "num_kv_shared_layers is 16; give a whole number from 1 to 15"),
        (MLA | EXPERTS | SPARSE | {"index_topk_pattern": "FS"}, "index_topk_pattern has 2 entries for 16 layers"),
        (MLA | EXPERTS | SPARSE | {"index_topk": 0}, "index_topk is 0; give a whole number"),
        (MLA | EXPERTS | SPARSE | {"mlp_layer_types": ["foo"] * 16}, "mlp_layer_types has the unknown entry 'foo'"),
    ],
)
def test_fields_that_change_the_answer_are_named(refused, changes: dict[str, Any], message: str) -> None:
    with refused(message):
        read_decoder(LLAMA | changes)


def test_long_and_deep_files_are_read(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.w1" for layer in range(99) for expert in range(512)]
    layers = {name: {"quant_algo": "FP8"} for name in names}
    quantised = {"quant_method": "modelopt", "quantized_layers": layers, "exclude_modules": ["deep"]}
    text = json.dumps(LLAMA | {"quantization_config": quantised}).replace('"deep"', "[" * 800 + "]" * 800)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert len(text) > 1 << 21 and read_decoder(tmp_path).vocabulary == 128256
