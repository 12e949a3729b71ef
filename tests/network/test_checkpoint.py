"""Every usual form of ``quantization_config``: the dtypes of products, KV cache and weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from surrogate.features.errors import InputError
from surrogate.features.problem import ELEMENTS, QUANTISED
from surrogate.network.checkpoint import READERS, Checkpoint, ModuleNames, read_checkpoint
from surrogate.network.language import Deployment
from surrogate.network.language_step import read_language
from surrogate.network.network import Network, ReadOptions
from tests.known import cases, known_answers

Json = dict[str, Any]

WEIGHTS_8 = {"num_bits": 8, "type": "float"}
WEIGHTS_FP4 = {"num_bits": 4, "type": "float", "group_size": 16}
FP8_GROUP = {"targets": ["Linear"], "weights": WEIGHTS_8, "input_activations": {**WEIGHTS_8, "dynamic": True}}


def _compressed(*groups: Json, **more: Any) -> Json:
    numbered = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": numbered, "ignore": ["lm_head"], **more}


def _checkpoint(quant: object, kind: str = "llama", dtype: str = "bf16") -> Checkpoint:
    return read_checkpoint(Path("config.json"), {"model_type": kind, "quantization_config": quant}, dtype)


NO_FILE_NAMES = {"w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "mxfp4", "mxfp8"}
"""Types that no quantization_config gives to the products of these tests."""
_TABLE = known_answers(__file__)["test_a_quantization_config_applies_to_layers_and_not_to_the_head"]
FORMS: list[tuple[Json, str]] = _TABLE["rows"]


def _step(path: Path, context: int) -> Network:
    """Return the step that decodes one token."""
    return read_language(path, ReadOptions(decode=context), Deployment())


@cases(__file__)
def test_a_quantization_config_applies_to_layers_and_not_to_the_head(quant: Json, products: str) -> None:
    checkpoint = _checkpoint(quant)
    words = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "experts", "shared.down_proj")
    assert {checkpoint.product_dtype(word, 3) for word in words} == {products}
    assert checkpoint.product_dtype("lm_head") == checkpoint.product_dtype("router", 3) == "bf16"
    assert not checkpoint.kv_dtype


def test_the_cases_cover_every_reader_and_every_dtype() -> None:
    """Methods with another dtype for experts have their own tests."""
    read = {str(quant.get("quant_method", "modelopt")).replace("_", "-") for quant, _ in FORMS}
    aliases = {"modelopt-fp4", "auto-awq", "intel/auto-round", "w8a8-fp8"}
    assert {*READERS} - read == aliases | {"mxfp4", "w4afp8"}
    assert {dtype for _, dtype in FORMS} == {*QUANTISED, "bf16"} - NO_FILE_NAMES


@cases(__file__)
def test_each_module_has_the_dtype_given_by_the_file(quant: Json, kind: str, expected: dict[str, str]) -> None:
    checkpoint = _checkpoint(quant, kind)
    assert {word: checkpoint.product_dtype(word, None if word == "lm_head" else 7) for word in expected} == expected
    assert checkpoint.product_dtype("router", 7) == "bf16"


@cases(__file__)
def test_an_unsupported_config_is_refused_and_another_dtype_is_accepted(quant: object, words: str) -> None:
    checkpoint = _checkpoint(quant)
    with pytest.raises(InputError) as error:
        checkpoint.product_dtype("qkv_proj", 0)
    message = str(error.value)
    assert words in message and "give dtype" in message and "\n" not in message
    assert checkpoint.all_in("fp8", "bf16").product_dtype("down_proj", 0) == "fp8"
    assert checkpoint.all_in("fp8", "bf16").product_dtype("lm_head") == "bf16"


def test_different_dtypes_within_one_fused_product_are_refused() -> None:
    checkpoint = _checkpoint({"quant_method": "fp8", "ignored_layers": ["model.layers.0.self_attn.k_proj"]})
    with pytest.raises(InputError, match="are one product"):
        checkpoint.product_dtype("qkv_proj", 0)
    assert checkpoint.product_dtype("qkv_proj", 1) == "fp8"


@cases(__file__)
def test_the_kv_cache_has_the_dtype_given_by_the_file(quant: Json, kv_dtype: str) -> None:
    assert _checkpoint(quant).kv_dtype == kv_dtype


def test_an_unsupported_kv_cache_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="KV cache in nvfp4"):
        _checkpoint({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"})


LLAMA: Json = known_answers(__file__)["LLAMA"]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes ``config.json``, and the separate file of Model Optimizer if given."""

    def write(quant: object = None, separate: object = None) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | ({"quantization_config": quant} if quant else {})))
        if separate:
            (tmp_path / "hf_quant_config.json").write_text(json.dumps(separate))
        return tmp_path / "config.json"

    return write


def test_memory_follows_the_dtypes_of_weights_and_cache(folder: Callable[..., Path]) -> None:
    """The products of 4 layers have the quantised size; head, embedding and norms remain in bf16."""
    plain = _step(folder(), 1000)
    for quant, dtype in FORMS:
        network = _step(folder(quant), 1000)
        inside = 4 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
        expected = (plain.weights_bytes or 0) + inside * (ELEMENTS[dtype].weight_bytes - 2)
        assert network.weights_bytes == pytest.approx(expected, rel=3e-3), quant
        assert network.state_bytes == plain.state_bytes
    assert _step(folder(_compressed(FP8_GROUP, kv_cache_scheme=WEIGHTS_8)), 1000).state_bytes == plain.state_bytes / 2


def test_smaller_groups_have_more_scales(folder: Callable[..., Path]) -> None:
    def stored(**group: Any) -> int:
        return _step(folder(_compressed({"weights": {"num_bits": 4, "type": "int", **group}})), 1).weights_bytes or 0

    inside = 4 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    assert stored(group_size=32) - stored(group_size=128) == pytest.approx(inside * (2 / 32 - 2 / 128))
    assert stored(group_size=32, symmetric=False) - stored(group_size=32) == pytest.approx(inside * 0.5 / 32)


def test_the_separate_config_of_model_optimizer_is_read(folder: Callable[..., Path]) -> None:
    quant = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    kinds = {layer.operator: layer.problem.dtype for layer in _step(folder(separate=quant), 9).layers}
    assert (kinds["down_proj"], kinds["lm_head"], kinds["attention"]) == ("fp8", "bf16", "bf16")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([*READERS, "Linear", "re:a*"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(known_answers(__file__)["words"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from([*READERS, "aqlm"]), JSON)
def test_damaged_configs_are_read_or_refused(method: str, quant: object) -> None:
    """A damaged config raises no other error."""
    try:
        checkpoint = _checkpoint({"quant_method": method, **(quant if isinstance(quant, dict) else {"format": quant})})
        assert checkpoint.product_dtype("down_proj", 0) in {*QUANTISED, "bf16"}
    except InputError as error:
        assert "\n" not in str(error)


@given(st.lists(st.sampled_from(["a", "b", "layers"]), min_size=1, max_size=5), st.data())
def test_a_module_name_matches_its_parts(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - 1))
    part = ".".join(words[start : data.draw(st.integers(start + 1, len(words)))])
    name = ".".join(words)
    assert ModuleNames([part]).has(name)
    assert ModuleNames([f"{name}*"]).has(f"{name}.x")
    assert not ModuleNames([f"{name}.x"]).has(name)
