"""Descriptions of a user's own kernels: reading, writing, validation, and spaces of configurations."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from surrogate.features.description import Description, description_of, read_description
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILIES, DescribedFamily, DescribedProblem, parse_problem
from surrogate.features.gpu import gpu, unlisted_gpu
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)
MATMUL = ANSWERS["matmul"]


def test_description_survives_writing_and_reading(tmp_path: Path, refused: Any) -> None:
    path = tmp_path / "matmul.toml"
    for settings in (MATMUL["settings"], {"mode": ["😀", "a\x7fb", 'a"\\']}):
        description = description_of({**MATMUL, "settings": settings}, "here")
        path.write_text(description.to_toml(), encoding="utf-8-sig")  # as a Windows editor writes it
        assert read_description(path) == description
        assert description_of(description.to_dict(), "here") == description
    path.write_text(description.to_toml(), encoding="utf-16")
    with refused("save it as UTF-8"):
        read_description(path)


def test_space_holds_the_configurations_that_conditions_allow() -> None:
    description = description_of(MATMUL, "here")
    space = description.space({"m": 64, "n": 8, "k": 8})
    assert space is not None
    allowed = set(zip(*(values.tolist() for values in space.values()), strict=True))
    combinations = itertools.product(*MATMUL["parameters"].values())
    assert allowed == {(m, n, layout) for m, n, layout in combinations if m * n <= 4096 and m <= 64}
    # Without sizes, the conditions on sizes do not apply.
    blocks = itertools.product((16, 64, 128), (16, 64))
    assert len(description.space_texts) == 2 * sum(m * n <= 4096 for m, n in blocks)
    assert description_of({**MATMUL, "conditions": []}, "here").space() is not None
    assert description_of({k: v for k, v in MATMUL.items() if k != "conditions"}, "here").space() is None


@given(st.sampled_from([16, 64, 128]), st.sampled_from([16, 64]), st.sampled_from(["row", "col"]))
def test_configuration_survives_conversion_to_text(block_m: int, block_n: int, layout: str) -> None:
    description = description_of(MATMUL, "here")
    configuration = {"block_m": block_m, "block_n": block_n, "layout": layout}
    assert description.configuration(description.text(configuration)) == configuration


@pytest.mark.parametrize(("change", "words"), ANSWERS["faults"])
def test_faulty_description_is_refused_in_one_line(refused, change: dict[str, Any], words: str) -> None:
    with refused(words):
        description_of({**MATMUL, **change}, "matmul.toml")


@pytest.mark.parametrize("content", [b"name = ", b"\xff", b"name = 'x'\n[[parameters]]\n", b"a." * 60 + b"a = 1"])
def test_damaged_file_is_refused_in_one_line(refused, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kernel.toml"
    path.write_bytes(content)
    with refused("kernel.toml"):
        read_description(path)


def family() -> DescribedFamily:
    return DescribedFamily(description_of(MATMUL, "here"))


def test_launch_columns_equal_the_hand_calculation() -> None:
    """128 × 128 in 64 × 16 blocks makes 16 blocks of 128 threads; each of a V100's 80 SMs holds 2,048 threads."""
    kernel = family()
    formula = kernel.formula(("fp32",), gpu("v100"))
    terms = formula.problem(kernel.problem({"m": 128, "n": 128, "k": 128}, {"dtype": "fp32"}))
    problem_columns = dict(zip(kernel.problem_names, terms.values, strict=True))
    assert problem_columns["log2_m"] == 7
    assert problem_columns["log2_flops"] == 22
    assert 2 ** problem_columns["log2_dram_bytes"] == pytest.approx(4 * 3 * 128 * 128)
    parameters = kernel.configurations(["block_m=64,block_n=16,layout=col"])
    columns = dict(zip(kernel.candidate_names, formula.candidate(terms, parameters)[0], strict=True))
    assert columns["parameter_block_m"] == 64
    assert columns["parameter_layout"] == 1
    assert 2 ** columns["log2_blocks"][0] == 16
    assert columns["blocks_per_sm"] == 16
    assert 2 ** columns["log2_waves"][0] == pytest.approx(16 / 16 / 80)


def test_unlisted_gpu_gets_a_roofline_time() -> None:
    kernel = family()
    formula = kernel.formula(("fp16",), unlisted_gpu("my gpu"))
    terms = formula.problem(kernel.problem({"m": 64, "n": 64, "k": 64}, {}))
    assert terms.roofline_us > 0
    assert len(formula.constant) == len(kernel.constant_names)


def test_described_problem_survives_conversion_to_text(refused) -> None:
    kernel = FAMILIES.from_description(description_of(MATMUL, "here"))
    problem = parse_problem("matmul:m64n32k8", kernel, dtype="fp32")
    assert isinstance(problem, DescribedProblem)
    assert problem.sizes == {"m": 64, "n": 32, "k": 8}
    assert parse_problem("matmul:m64n32k8").kind == "gemm"  # an alias of gemm if no kernel is given
    for text in ("matmul:m=64,n=32,k=8", "matmul:k8,n32,m64", str(problem)):
        assert parse_problem(text, kernel, dtype="fp32") == problem
    for text in ("matmul:m64n32k8,dtype=fp32", "matmul:m=64,dtype=fp32,n=32,k=8"):
        assert parse_problem(text, kernel) == problem
    with refused("dtype is 'fp8'"):
        parse_problem("matmul:m64n32k8,dtype=fp8", kernel)


@cases(__file__)
def test_unreadable_problem_is_refused(text: str, words: str) -> None:
    kernel = FAMILIES.from_description(description_of(MATMUL, "here"))
    with pytest.raises(InputError, match=words):
        parse_problem(text, kernel)


@pytest.mark.parametrize("name", ["gemm", "conv", "softmax"])
def test_name_of_a_built_in_family_is_refused(refused, name: str) -> None:
    with refused("built in"):
        FAMILIES.from_description(Description(name, (), {"block": (1, 2)}))
