"""Training iterations of language models: arithmetic, memory, adapters, microbatches, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest

from surrogate.features.errors import InputError
from surrogate.features.families.attention import Attention, AttentionBackward
from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import gpu
from surrogate.network.network import Network
from surrogate.network.optimizers import trained_weights
from surrogate.network.predict import load_predictors
from surrogate.network.read import read_network
from tests.known import cases, known_answers

LLAMA = known_answers(Path(__file__).with_name("test_language.py"))["LLAMA"]
MPT = known_answers(__file__)["MPT"]
TOKENS, HIDDEN = 2 * 1024, 768
Train = Callable[..., Network]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function: configuration and options → the network of one iteration."""

    def read(config: dict[str, Any] = MPT, **options: Any) -> Network:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return read_network(path, **{"training": True, "sequence": 1024, "batch": 2} | options)

    return read


def _flops(network: Network, *kinds: type) -> int:
    return sum(layer.problem.flops for layer in network.layers if isinstance(layer.problem, kinds))


@pytest.mark.parametrize(
    ("config", "options", "factor"), [(MPT, {}, 6), (MPT, {"amp": "bf16"}, 6), (LLAMA, {}, 6), (MPT, {"lora": 8}, 4)]
)
def test_products_have_six_operations_per_weight_and_token(train: Train, config, options, factor: int) -> None:
    """Frozen weights have no weight gradient, which leaves four; the products of rank 8 are small."""
    network = train(config, **options)
    full = train(config)
    forward = full.layers[: full.forward_layers]
    matrices = sum(layer.parameters for layer in forward if isinstance(layer.problem, Gemm))
    products = [layer for layer in network.layers if isinstance(layer.problem, Gemm) and ".lora_" not in layer.name]
    assert sum(layer.problem.flops for layer in products) == factor * matrices * TOKENS
    gradient = _flops(network, AttentionBackward)
    assert 2 * gradient == 5 * (_flops(network, Attention) - gradient)


def test_parameters_of_mpt_follow_its_sizes(train: Train) -> None:
    """12·L·d² + V·d + S·d, and the norms' (2·L + 1)·d."""
    expected = 12 * 12 * HIDDEN**2 + (50368 + 2048 + 25) * HIDDEN
    network = train()
    assert network.parameters == expected and network.layers[-1].parameters == expected
    backward = network.layers[network.forward_layers : -1]
    assert sum(layer.parameters for layer in backward) == expected  # every gradient is complete once
    assert backward[-1].name.startswith("embedding") and backward[-1].parameters == 50368 * HIDDEN
    assert train({**MPT, "attn_config": {}}).parameters == expected - 2048 * HIDDEN  # alibi, transformers' default


@cases(__file__)
def test_biases_and_norms_of_queries_are_weights(train: Train, config: dict[str, Any], added: int) -> None:
    """Each of 16 layers adds a bias per output, or a norm's weight per value of a head (MiniMax: of all heads)."""
    plain = {**LLAMA, **config, "model_type": "mixtral"} if "num_local_experts" in config else LLAMA
    network = train({**LLAMA, **config})
    assert network.parameters == (train(plain).parameters or 0) + 16 * added
    assert network.layers[-1].parameters == network.parameters
    assert sum(layer.parameters for layer in network.layers[network.forward_layers : -1]) == network.parameters
    forward = network.layers[: network.forward_layers]
    shapes = [weight.shape for layer in forward if "qkv_proj" in layer.name for weight in trained_weights([layer])]
    assert shapes == 16 * [(3072, 2048), (3072,)][: 1 + ("qwen2" in config.values() or "attention_bias" in config)]


@pytest.mark.parametrize(("options", "weight", "state"), [({"dtype": "bf16"}, 2, 4), ({"amp": "bf16"}, 4, 8)])
def test_memory_is_weights_gradients_states_and_kept_activations(
    train: Train, options, weight: int, state: int
) -> None:
    network = train(**options)
    parameters = network.parameters or 0
    assert (network.weights_bytes, network.state_bytes) == (weight * parameters, state * parameters)
    # A layer keeps 16 values of 16 bits per value of its input (Korthikanti et al. without dropout), and each head a
    # sum per position; norms' inputs, the queries, keys and values, and the inputs of products are among them. Under
    # autocast the inputs of two norms and of the last one are fp32.
    residual = weight - 2
    layer_bytes = TOKENS * (32 * HIDDEN + 2 * residual * HIDDEN + 4 * 12)
    logits = 2 * 2 * TOKENS * 50368
    last = TOKENS * ((2 * 2 + residual) * HIDDEN + 16)
    begin = 12 * layer_bytes + last + logits + (weight == 4) * 2 * parameters
    assert network.activation_bytes == begin and network.gradient_bytes == 0
    checkpointed = train(**options, checkpointing=True)
    begin += 12 * TOKENS * weight * HIDDEN - 11 * layer_bytes
    end = layer_bytes + TOKENS * (2 * 2 * 4 * HIDDEN + 16) + (weight == 4) * 2 * parameters + weight * parameters
    assert checkpointed.activation_bytes == max(begin, end)


def test_checkpointing_computes_again_what_precedes_the_last_kept_tensor(train: Train) -> None:
    """The last product of a layer, 4 of 12 · d² weights, is not repeated; attention is."""
    again = [layer for layer in train(checkpointing=True).layers if layer.name.endswith(".recomputed")]
    products = sum(layer.problem.flops for layer in again if isinstance(layer.problem, Gemm))
    assert products == 2 * TOKENS * 12 * 8 * HIDDEN**2
    assert sum(layer.operator == "attention" for layer in again) == 12


def test_adapters_have_two_products_and_the_only_states(train: Train) -> None:
    """Queries, keys, values, o, gate, up and down: rank · (inputs + outputs) weights each."""
    network = train(LLAMA, lora=16)
    hidden, keys, inter = 2048, 512, 8192
    pairs = 2 * (hidden + hidden) + 2 * (hidden + keys) + 2 * (hidden + inter) + (inter + hidden)
    trained = 16 * 16 * pairs
    assert network.layers[-1].parameters == trained and network.state_bytes == 2 * 2 * trained
    assert network.parameters == pytest.approx(1.236e9 + trained, rel=1e-3)
    assert not any(layer.name.startswith("embedding.grad") for layer in network.layers)
    packed = train(LLAMA, lora=16, dtype="int4_wo")
    inside = 16 * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inter)
    assert network.weights_bytes and packed.weights_bytes
    saved = network.weights_bytes - packed.weights_bytes
    assert 1.3 * inside < saved < 1.5 * inside  # 2 bytes become half a byte and scales
    unpacked = [layer.problem for layer in packed.layers if layer.operator.startswith("unpack_weights")]
    assert sum(problem.writes for problem in unpacked) == 2 * inside  # type: ignore[union-attr]
    assert "adapters of rank 16 on the products qkv_proj, o_proj, gate_up_proj, down_proj" in packed.notes[-1]
    # MPT has one matrix Wqkv: its adapter is 16 · (768 + 3 · 768) weights.
    adapters = 12 * 16 * ((768 + 3 * 768) + (768 + 768) + 2 * (768 + 3072))
    words = f"on the products qkv_proj, o_proj, up_proj, down_proj of every layer ({adapters:,}"
    assert words in "".join(train(MPT, lora=16).notes)


def test_sharded_frozen_weights_are_gathered(predictors: Callable[..., Any], train: Train) -> None:
    """Adapters reduce nearly nothing, and gather all weights in both passes: two of three messages of equal size."""
    gpu = predictors("h100-sxm")
    full, adapted = (gpu.time(train(LLAMA, fsdp=8, **options)) for options in ({}, {"lora": 8}))
    assert 0.6 < adapted.exchange.messages_us / full.exchange.messages_us < 0.75


def test_experts_are_products_of_the_chosen_tokens(train: Train) -> None:
    """Six operations for each weight of the chosen experts and each token; the states cover all experts."""
    config = {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8}
    config["model_type"] = "mixtral"
    network = train(config)
    weights = 3 * 2048 * 8192
    experts = [layer for layer in network.layers if layer.operator.startswith("experts.")]
    products = [layer for layer in experts if layer.problem.multiply_adds]
    assert len(products) == 16 * 6
    assert sum(layer.problem.flops for layer in products) == 6 * 16 * 2 * weights * TOKENS
    dense = train(LLAMA)
    router = 16 * 2048 * 8
    assert network.parameters == (dense.parameters or 0) + 16 * 7 * weights + router
    assert network.layers[-1].parameters == network.parameters and network.state_bytes == 4 * network.parameters
    assert any("same number of tokens" in note for note in network.notes)
    with pytest.raises(InputError, match="adapters of routed experts are not predicted"):
        train(config, lora=8)


def test_microbatches_share_one_step_of_the_optimizer(predictors: Callable[..., Any], train: Train) -> None:
    gpu = predictors("h100-sxm")
    one, four = (gpu.time(train(accumulate=steps)) for steps in (1, 4))
    step_us = one.layers[-1].time_us
    (added,) = [layer for layer in four.layers if layer.operator == "accumulation"]
    assert added.bytes == 3 * 3 * 2 * (one.parameters or 0)
    assert four.kernels_us == pytest.approx(4 * (one.kernels_us - step_us) + step_us + added.time_us)
    assert four.multiply_adds == 4 * one.multiply_adds and four.layers[-1].time_us == step_us
    assert four.samples_per_s == pytest.approx(8e6 / four.total_us)
    assert "batch 4 × 2" in four.headline()
    assert four.memory["gradients"] == 2 * (one.parameters or 0) and one.memory["gradients"] == 0


@pytest.mark.parametrize(("model", "gpu"), [("760m", "h100-sxm"), ("125m", "a100-sxm4-80gb")])
def test_measured_steps_of_models_outside_the_fit(train: Train, model: str, gpu: str) -> None:
    """The factor of a step and the rate of attention in Triton were fitted to other sizes; exchanges are hidden."""
    rows = pd.read_parquet("experiments/data/training_mpt.parquet")
    rows = rows[(rows.model == model) & (rows.gpu == gpu) & (rows.gpus == 8) & rows.sequence.between(2048, 16384)]
    rows = rows[(rows.precision == "amp_bf16") & ~rows.checkpointing]
    gpus = load_predictors(gpu)
    ratios = []
    for row in rows.itertuples():
        sizes = {"d_model": row.d_model, "n_heads": row.heads, "n_layers": row.layers, "max_seq_len": row.sequence}
        options = {"sequence": row.sequence, "batch": row.microbatch, "accumulate": row.accumulation}
        config = {**MPT, **{name: int(size) for name, size in sizes.items()}}
        time = gpus.time(train(config, amp="bf16", fsdp=8, **{name: int(size) for name, size in options.items()}))
        assert time.fits and time.lower_us < 1e3 * row.step_ms < time.upper_us
        ratios.append(time.total_us / (1e3 * row.step_ms))
    assert len(ratios) >= 4 and 0.9 < median(ratios) < 1.1


@pytest.mark.parametrize(("name", "rate", "factor"), [("a100-sxm4-80gb", 720, 1.12), ("h100-sxm", 880, 1.27)])
def test_attention_in_triton_has_its_own_rate(train: Train, name: str, rate: int, factor: float) -> None:
    """Arithmetic at the SMs' rate per clock, then traffic; all other layers have their kernels' times alone."""
    device, predictors = gpu(name), load_predictors(name)
    network = train(MPT, batch=32)
    time = predictors.time(network)
    attention = [layer for layer in time.layers if layer.operator in ("attention", "attention.backward")]
    assert len(attention) == 24
    for layer in attention:
        traffic_us = layer.bytes / (1e3 * device.dram_share * device.dram_gbs)
        assert layer.time_us == pytest.approx(layer.flops / (rate * device.sms * device.boost_mhz) + traffic_us)
    (residual,) = {layer.problem for layer in network.layers if layer.operator == "residual"}
    alone = predictors.answers([residual], {})[residual].time_us
    assert {layer.time_us for layer in time.layers if layer.operator == "residual"} == {alone}
    assert time.total_us == pytest.approx(factor * time.kernels_us + time.host_time.floor_us)  # type: ignore[union-attr]
    assert f"× {factor} in a training step" in time.breakdown()
    flash = train(MPT | {"attn_config": {"alibi": True, "attn_impl": "flash"}})
    assert {layer.problem.variant for layer in flash.layers if layer.operator == "attention"} == {""}  # type: ignore[union-attr]


@cases(__file__)
def test_a_configuration_that_training_lacks_is_refused(refused, train: Train, changes, options, message: str) -> None:
    with refused(message):
        train(MPT | changes, **options)
