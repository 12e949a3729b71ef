"""Configurations of further types: their parameters, notes about fields, layers of their own, and refusals."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from surrogate.bundled import CHECKPOINTS, NETWORKS, find_model, server_model
from surrogate.features.families.attention import Attention, Mla
from surrogate.network.language import Decoder, Deployment
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import Requests, Step
from surrogate.network.network import Network
from tests.known import cases, known_answers

ROWS = {name: row for name, row in known_answers(__file__).items() if "config" in row}
LLAMA = ROWS["an unknown type with Llama's fields"]["config"] | {"model_type": "llama"}
PARTS, BILLIONS = known_answers(__file__)["parts"], known_answers(__file__)["billions"]


def _step(decoder: Decoder, context: int = 4096) -> Network:
    return Step(decoder, [Requests(1, 1, context)], Deployment(), 1).network


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_parameters_and_notes_of_published_models(row: dict[str, Any]) -> None:
    network = _step(read_decoder(row["config"]))
    assert (network.parameters or 0) / 1e9 == pytest.approx(row["billions"], rel=2e-3)
    assert (network.weights_bytes or 0) / 2e9 == pytest.approx(row["billions"], rel=2e-3)
    assert len(network.notes) == len(row["notes"]), network.notes
    assert all(text in note for text, note in zip(row["notes"], network.notes, strict=True))


def test_shipped_configurations_have_published_sizes_and_are_found_by_names_on_the_hub() -> None:
    assert set(CHECKPOINTS) == set(BILLIONS) == {name for name, path in NETWORKS.items() if path.suffix == ".json"}
    for own, billions in BILLIONS.items():
        assert (_step(read_decoder(own)).parameters or 0) / 1e9 == pytest.approx(billions, rel=2e-3)
        assert server_model(own) in CHECKPOINTS[own]
        for name in CHECKPOINTS[own]:
            assert find_model(name.upper()) == find_model(name.partition("/")[2]) == NETWORKS[own]
            assert server_model(name.lower()) == name


def test_a_checkpoint_is_found_in_the_cache_of_the_hub_or_in_a_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", "cache")
    repository = Path("cache", "models--acme--Big-1.5")
    old, new, beside = repository / "snapshots" / "old", repository / "snapshots" / "new", Path("Big-1.5")
    for folder in (old, new):
        folder.mkdir(parents=True)
        folder.joinpath("config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    os.utime(old / "config.json", (0, 0))
    assert find_model("acme/big-1.5").parent == new and read_decoder("acme/big-1.5").name == "acme/big-1.5"
    repository.joinpath("refs").mkdir()
    repository.joinpath("refs", "main").write_text("old\n", encoding="utf-8")
    assert find_model("acme/big-1.5").parent == old and find_model("acme/big-1.5-fp8") == Path("acme/big-1.5-fp8")
    old.rename(beside)
    assert find_model("acme/Big-1.5") == find_model("Big-1.5") == beside / "config.json"


@cases(__file__)
def test_layers_that_share_an_indexer_neither_compute_nor_hold_it(pattern: dict[str, Any]) -> None:
    config = LLAMA | PARTS["MLA"] | PARTS["EXPERTS"] | PARTS["SPARSE"] | {"num_hidden_layers": 4}
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


@cases(__file__)
def test_fields_that_change_the_answer_are_named(refused, parts: list[str], changes: dict, message: str) -> None:
    """A case adds fields of some `PARTS` and its own."""
    for part in parts:
        changes = PARTS[part] | changes
    with refused(message):
        read_decoder(LLAMA | changes)


def test_long_and_deep_files_are_read(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.w1" for layer in range(99) for expert in range(512)]
    layers = {name: {"quant_algo": "FP8"} for name in names}
    quantised = {"quant_method": "modelopt", "quantized_layers": layers, "exclude_modules": ["deep"]}
    text = json.dumps(LLAMA | {"quantization_config": quantised}).replace('"deep"', "[" * 800 + "]" * 800)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert len(text) > 1 << 21 and read_decoder(tmp_path).vocabulary == 128256
