"""Every usual form of ``quantization_config``: which products it quantises and how, the KV cache, what weights take."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.features.problem import ELEMENTS, QUANTISED
from surrogate.network.checkpoint import READERS, Checkpoint, Names, read_checkpoint
from surrogate.network.language_step import read_language

Json = dict[str, Any]

WEIGHTS_8, WEIGHTS_4 = {"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "int", "group_size": 128}
FP8_GROUP = {"targets": ["Linear"], "weights": WEIGHTS_8, "input_activations": {**WEIGHTS_8, "dynamic": True}}
INT8_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"}}
NVFP4_GROUP = {
    "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16},
    "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
}  # fmt: skip
BLOCK_GROUP = {
    "targets": ["Linear"], "weights": {**WEIGHTS_8, "strategy": "block", "block_structure": [128, 128]},
    "input_activations": {**WEIGHTS_8, "group_size": 128},
}  # fmt: skip


def _compressed(*groups: Json, **more: Any) -> Json:
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": ["lm_head"], **more}


def _torchao(name: str, **data: Any) -> Json:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_data": data}}}


def _checkpoint(said: object, kind: str = "llama", plain: str = "bf16") -> Checkpoint:
    return read_checkpoint(Path("config.json"), {"model_type": kind, "quantization_config": said}, plain)


FORMS: list[tuple[Json, str]] = [
    (_compressed(FP8_GROUP, format="float-quantized"), "fp8"),
    (_compressed(BLOCK_GROUP, format="float-quantized"), "fp8_block"),
    (_compressed({**INT8_GROUP, "input_activations": {"num_bits": 8, "type": "int"}}), "int8_sq"),
    (_compressed(INT8_GROUP, format="pack-quantized"), "int8_wo"),
    (_compressed({"targets": ["Linear"], "weights": WEIGHTS_4}, format="pack-quantized"), "int4_wo"),
    (_compressed({"targets": ["Linear"], "weights": WEIGHTS_4, "input_activations": WEIGHTS_8}), "w4afp8"),
    (_compressed(NVFP4_GROUP, format="nvfp4-pack-quantized"), "nvfp4"),
    ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, "fp8_block"),
    ({"quant_method": "fp8", "dequantize": True}, "bf16"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "fp8"),
    ({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}, "nvfp4"),
    ({"config_groups": {"group_0": FP8_GROUP}, "ignore": ["lm_head"], "quant_algo": "FP8"}, "fp8"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, "int4_wo"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "int4_wo"),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8_wo"),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, "int4_wo"),
    ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8"),
    (_torchao("Int4WeightOnlyConfig", group_size=128), "int4_wo"),
    (_torchao("Int8WeightOnlyConfig"), "int8_wo"),
    (_torchao("Float8DynamicActivationFloat8WeightConfig"), "fp8"),
    ({"quant_method": "torchao", "quant_type": "int8_dynamic_activation_int8_weight"}, "int8_sq"),
    ({"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": {
        "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, "input_tensors": {"dtype": "fp8_e4m3"}}}, "fp8"),
    ({"quant_method": "w8a8_int8"}, "int8_sq"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "products"), FORMS)
def test_a_form_quantises_the_products_of_layers_and_not_the_head(said: Json, products: str) -> None:
    checkpoint = _checkpoint(said)
    words = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "experts", "shared.down_proj")
    assert {checkpoint.of(word, 3) for word in words} == {products}
    assert (checkpoint.of("lm_head"), checkpoint.of("router", 3), checkpoint.kv_dtype) == ("bf16", "bf16", "")


def test_every_reader_and_every_arithmetic_is_among_the_forms() -> None:
    """Those that quantise experts otherwise, and bitsandbytes, have tests of their own."""
    read = {str(said.get("quant_method", "modelopt")).replace("_", "-") for said, _ in FORMS}
    aliases = {"modelopt-fp4", "auto-awq", "intel/auto-round", "w8a8-fp8"}
    assert {*READERS} - read == aliases | {"mxfp4", "w4afp8", "bitsandbytes"}
    assert {dtype for _, dtype in FORMS} == {*QUANTISED, "bf16"} - {"w4a16_mxfp4", "w4a8_mxfp4_mxfp8"}


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "gpt_oss",
         {"experts": "w4a16_mxfp4", "qkv_proj": "bf16", "o_proj": "bf16"}),
        ({"quant_method": "w4afp8"}, "deepseek_v3", {"experts": "w4afp8", "o_proj": "fp8_block"}),
        (_compressed({"targets": ["Linear"], "weights": WEIGHTS_4}, ignore=["lm_head", "re:.*self_attn.*",
         "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]), "kimi_k25",
         {"experts": "int4_wo", "qkv_a_proj": "bf16", "gate_up_proj": "bf16", "shared.down_proj": "bf16"}),
        (_compressed({**FP8_GROUP, "targets": ["re:.*self_attn.*"]}, NVFP4_GROUP), "llama",
         {"qkv_proj": "fp8", "o_proj": "fp8", "down_proj": "nvfp4"}),
        (_compressed(NVFP4_GROUP, {**FP8_GROUP, "targets": [r"re:.*down_proj$"]}), "llama",
         {"qkv_proj": "nvfp4", "gate_up_proj": "nvfp4", "down_proj": "fp8"}),
        ({"quant_algo": "NVFP4", "ignore": ["model.language_model.layers.7.self_attn*", "*.mlp.shared_expert.*"]},
         "qwen2_moe", {"o_proj": "bf16", "shared.gate_up_proj": "bf16", "experts": "nvfp4", "lm_head": "bf16"}),
        ({"quant_algo": "NVFP4", "ignore": ["model.language_model.layers.7.mlp*"]}, "gemma4",
         {"down_proj": "bf16", "experts": "nvfp4"}),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.7.mlp.down_proj": {"quant_algo": "FP8"},
         "model.layers.7.self_attn.o_proj": {"quant_algo": "NVFP4"}}}, "llama",
         {"down_proj": "fp8", "o_proj": "nvfp4", "gate_up_proj": "bf16"}),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "quant_algo": "MIXED_PRECISION",
          "quantized_layers": {"layers.7.ffn.experts": {"quant_algo": "NVFP4"}}}, "deepseek_v4",
         {"experts": "nvfp4", "o_proj": "fp8_block", "shared.down_proj": "fp8_block"}),
        ({"quant_method": "fp8", "modules_to_not_convert": ["gate", "model.layers.7.self_attn.o_proj"]}, "llama",
         {"o_proj": "bf16", "gate_up_proj": "fp8"}),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn"]}, "mixtral",
         {"qkv_proj": "bf16", "experts": "int4_wo"}),
        ({"quant_method": "gptq", "bits": 4, "lm_head": True, "dynamic": {r"-:.*\.o_proj": {},
          r"+:.*\.down_proj": {"bits": 8}}}, "llama",
         {"o_proj": "bf16", "down_proj": "int8_wo", "gate_up_proj": "int4_wo", "lm_head": "int4_wo"}),
        ({"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [["mlp.down_proj"], ["mlp.up_proj",
         "mlp.gate_proj"]]}, "llama", {"qkv_proj": "bf16", "down_proj": "int4_wo", "gate_up_proj": "int4_wo"}),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"model.layers.7.mlp.down_proj": {"bits": 16}}},
         "llama", {"down_proj": "bf16", "o_proj": "int4_wo"}),
    ],
)  # fmt: skip
def test_modules_are_quantised_each_as_the_file_says(said: Json, kind: str, expected: dict[str, str]) -> None:
    checkpoint = _checkpoint(said, kind)
    found = {word: checkpoint.of(word, None if word == "lm_head" else 7) for word in expected if word != "lm_head"}
    assert found == {word: dtype for word, dtype in expected.items() if word != "lm_head"}
    assert checkpoint.of("router", 7) == "bf16"


def test_the_head_is_quantised_where_the_file_says_so() -> None:
    assert _checkpoint({"quant_method": "gptq", "bits": 4, "lm_head": True}).of("lm_head") == "int4_wo"
    assert _checkpoint({"quant_method": "gptq", "bits": 4}).of("lm_head") == "bf16"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes in 4 bits"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes in 8 bits"),
        ({"quant_method": "hqq"}, "quant_method 'hqq' is none of"),
        ({"group_size": 64, "bits": 4}, "quant_method '' is none of"),
        ("fp8", "quant_method None is none of"),
        ({"quant_method": "fp8", "weight_block_size": [1, 128]}, "float8 in blocks of 1 × 128"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "experts in fp4"),
        ({"quant_method": "gptq", "bits": 3}, "weights in int3"),
        (_compressed({"targets": ["Linear"], "weights": WEIGHTS_8}), "float8 with activations in float16"),
        (_compressed({**NVFP4_GROUP, "input_activations": None}), "float4 in groups of 16 with activations in float16"),
        (_compressed(FP8_GROUP, sparsity_config={"format": "sparse-24-bitmask"}), "two of four"),
        (_compressed(FP8_GROUP, ignore=["re:(a+)+$"]), "repeats"),
        (_compressed(FP8_GROUP, ignore=["re:("]), "no regular expression"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "quant_algo W4A16_NVFP4"),
        (_torchao("ModuleFqnToConfig"), "ModuleFqnToConfig"),
    ],
)
def test_what_cannot_be_timed_is_refused_and_another_arithmetic_is_not(said: object, words: str) -> None:
    checkpoint = _checkpoint(said)
    with pytest.raises(InputError) as error:
        checkpoint.of("qkv_proj", 0)
    assert words in str(error.value) and "give --dtype" in str(error.value) and "\n" not in str(error.value)
    assert checkpoint.all_in("fp8", "bf16").of("down_proj", 0) == "fp8"
    assert checkpoint.all_in("fp8", "bf16").of("lm_head") == "bf16"


def test_products_of_one_kernel_that_differ_are_refused() -> None:
    checkpoint = _checkpoint({"quant_method": "fp8", "ignored_layers": ["model.layers.0.self_attn.k_proj"]})
    with pytest.raises(InputError, match="are one product"):
        checkpoint.of("qkv_proj", 0)
    assert checkpoint.of("qkv_proj", 1) == "fp8"


@pytest.mark.parametrize(
    ("said", "kv_dtype"),
    [
        (_compressed(FP8_GROUP, kv_cache_scheme={"num_bits": 8, "type": "float"}), "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_algo": None, "kv_cache_quant_algo": "FP8", "quant_method": "modelopt"}, "fp8"),
        ({"quant_method": "quark", "layer_quant_config": {"*k_proj": {
            "weight": {"dtype": "fp8_e4m3"}, "input_tensors": {"dtype": "fp8_e4m3"},
            "output_tensors": {"dtype": "fp8_e4m3"}}}, "global_quant_config": {
            "weight": {"dtype": "fp8_e4m3"}, "input_tensors": {"dtype": "fp8_e4m3"}}}, "fp8"),
        ({"quant_method": "fp8"}, ""),
    ],
)  # fmt: skip
def test_the_cache_has_the_type_that_the_file_says(said: Json, kv_dtype: str) -> None:
    assert _checkpoint(said).kv_dtype == kv_dtype


def test_a_cache_of_another_type_is_refused() -> None:
    with pytest.raises(InputError, match="KV cache in nvfp4"):
        _checkpoint({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"})


LLAMA: Json = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(said: object = None, beside: object = None) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | ({"quantization_config": said} if said else {})))
        if beside:
            (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
        return tmp_path / "config.json"

    return write


def test_weights_and_cache_take_their_own_bytes(folder: Callable[..., Path]) -> None:
    """Products of 4 layers at the quantised size, head, table and norms in bf16; half the cache."""
    plain = read_language(folder(), decode=1000)
    for said, dtype in FORMS:
        network = read_language(folder(said), decode=1000)
        inside = 4 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
        expected = (plain.weights_bytes or 0) + inside * (ELEMENTS[dtype].weight_bytes - 2)
        assert network.weights_bytes == pytest.approx(expected, rel=3e-3), said
        assert network.state_bytes == plain.state_bytes
    cached = read_language(folder(_compressed(FP8_GROUP, kv_cache_scheme=WEIGHTS_8)), decode=1000)
    assert cached.state_bytes == plain.state_bytes / 2


def test_smaller_groups_have_more_scales(folder: Callable[..., Path]) -> None:
    def stored(**group: Any) -> int:
        weights = {"num_bits": 4, "type": "int", **group}
        return read_language(folder(_compressed({"weights": weights})), decode=1).weights_bytes or 0

    inside = 4 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    assert stored(group_size=32) - stored(group_size=128) == pytest.approx(inside * (2 / 32 - 2 / 128))
    assert stored(group_size=32, symmetric=False) - stored(group_size=32) == pytest.approx(inside * 0.5 / 32)


def test_model_optimizer_writes_a_file_beside(folder: Callable[..., Path]) -> None:
    said = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    kinds = {layer.operator: layer.work.dtype for layer in read_language(folder(beside=said), decode=9).layers}
    assert (kinds["down_proj"], kinds["lm_head"], kinds["attention"]) == ("fp8", "bf16", "bf16")


def test_the_command_refuses_in_one_line_and_takes_another_type(seer: Any, folder: Callable[..., Path]) -> None:
    path = folder({"quant_method": "bitsandbytes", "load_in_4bit": True})
    words = ("network", path, "--gpu", "h100-sxm", "--decode", 512, "--library", "vllm", "--json")
    refused = seer(*words)
    assert refused.code == 2 and "bitsandbytes in 4 bits" in refused.err and refused.err.count("\n") == 1
    assert seer(*words, "--dtype", "int4_wo").succeeded().json["total_us"] > 0


def test_a_gpu_without_units_for_the_file_s_arithmetic_is_refused(seer: Any, folder: Callable[..., Path]) -> None:
    run = seer("network", folder(_compressed(NVFP4_GROUP)), "--gpu", "h100-sxm", "--decode", 512, "--library", "vllm")
    assert run.code == 2 and "h100-sxm has no fp4 units" in run.err


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([*READERS, "Linear", "re:a*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "config_groups", "weights", "input_activations", "num_bits", "type", "targets", "ignore", "dynamic", "bits",
        "group_size", "quant_algo", "quantization", "quantized_layers", "weight_block_size", "global_quant_config",
        "weight", "dtype", "quant_type", "default", "_type", "kv_cache_scheme", "modules_to_not_convert"]),
        inner, max_size=4), max_leaves=12,
)  # fmt: skip


@given(st.sampled_from([*READERS, "aqlm"]), JSON)
def test_damaged_files_are_read_or_refused(method: str, said: object) -> None:
    """Never another error, and never silently plain: what is no list of rules is a refusal."""
    try:
        checkpoint = _checkpoint({"quant_method": method, **(said if isinstance(said, dict) else {"format": said})})
        assert checkpoint.of("down_proj", 0) in {*QUANTISED, "bf16"}
    except InputError as error:
        assert "\n" not in str(error)


@given(st.lists(st.sampled_from(["a", "b", "layers"]), min_size=1, max_size=5), st.data())
def test_a_name_holds_what_is_inside_it(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - 1))
    part = ".".join(words[start : data.draw(st.integers(start + 1, len(words)))])
    name = ".".join(words)
    assert Names([part]).has(name) and Names([f"{name}*"]).has(f"{name}.x") and not Names([f"{name}.x"]).has(name)
