"""Operators: FLOPs and bytes by hand, validation, and one formula for numbers and arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogate.collect.operators.operator import KINDS
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.operators import (
    OPERATORS,
    AllReduce,
    AllToAll,
    CollectiveLaw,
    Concat,
    Gemm,
    Linear,
    MaxPool,
    MaxPoolBackward,
    Memcpy,
    Operator,
    Softmax,
    operator,
)

V100 = gpu("v100")
LAW = CollectiveLaw(overhead_us=20, max_gbs=100, a=10, c=24, l=2, k=0.5, x0=17, b=-1)


def sizes_of(kind: str, base: int) -> dict[str, int]:
    """Valid sizes of any kind."""
    sizes = {name: base + place for place, name in enumerate(OPERATORS[kind].size_names())}
    small = {"window": 2, "window_w": 2, "stride": 1, "stride_w": 1, "pad": 0, "pad_w": 0}
    small |= {"kv_heads": 1, "expert_parallel": 1}
    return {name: small.get(name, size) for name, size in sizes.items()}


def test_gemm_by_hand() -> None:
    one = Gemm(batch=2, m=128, n=64, k=32)
    assert one.flops == 2 * 2 * 128 * 64 * 32
    assert one.dram_bytes == 4 * 2 * (128 * 32 + 32 * 64 + 128 * 64)
    assert one.blocks == 2
    assert Gemm(m=129, n=33, k=1).blocks == 2
    assert Linear(m=3, n=5, k=7).dram_bytes == 4 * (3 * 7 + 7 * 5 + 3 * 5 + 5)


def test_tensor_cores_raise_the_peak() -> None:
    plain, tensor = (Gemm(m=4096, n=4096, k=4096, dtype="fp16", math=math) for math in ("fma", "default"))
    assert tensor.roofline_us(V100) < plain.roofline_us(V100) / 3
    assert not Gemm(m=1, n=1, k=1, math="tensor_op").uses_tensor_cores
    assert plain.bound(V100) == "compute-bound"


def test_pooling_by_hand() -> None:
    """112 × 112, window 3, stride 2, padding 1: 56 × 56."""
    forward, backward = (
        cls(n=2, c=64, h=112, w=112, window=3, stride=2, pad=1) for cls in (MaxPool, MaxPoolBackward)
    )
    assert (forward.out_h, forward.out_w) == (56, 56)
    assert forward.flops == 2 * 64 * 56 * 56 * 9
    assert forward.dram_bytes == 4 * 2 * 64 * (112 * 112 + 56 * 56)
    assert backward.dram_bytes == 2 * forward.dram_bytes
    with pytest.raises(InputError, match=r"max_pool: the window 9 exceeds the padded image 8"):
        MaxPool(n=1, c=1, h=8, w=8, window=9)


@pytest.mark.parametrize(
    ("kind", "flops", "accesses"),
    [
        ("relu", 1, 2),
        ("add", 1, 3),
        ("mul", 1, 3),
        ("sigmoid", 4, 2),
        ("softmax", 174, 2),
        ("gelu", 175, 2),
        ("tanh", 180, 2),
    ],
)
def test_published_counts(kind: str, flops: int, accesses: int) -> None:
    """Lin et al.'s counts per element."""
    one = operator(kind, n=3, c=5, h=7, w=11)
    elements = 3 * 5 * 7 * 11
    assert one.flops == flops * elements
    assert one.dram_bytes == accesses * 4 * elements
    half = operator(kind, n=3, c=5, h=7, w=11, dtype="fp16")
    assert half.dram_bytes == one.dram_bytes / 2


def test_concat_and_memcpy() -> None:
    assert Concat(elements=1000).roofline_us(V100) == pytest.approx(2 * 4000 / (0.79 * V100.dram_gbs) / 1000)
    assert Memcpy(elements=1000).roofline_us(V100) == pytest.approx(4000 / V100.pcie_gbs / 1000)


def test_collective_law_has_three_parts() -> None:
    """Overhead alone, the sigmoid by hand at its middle, full bandwidth plus overhead."""
    assert LAW.time_us(2**10, 1.5) == 20
    assert LAW.time_us(2**17, 1.5) == pytest.approx(2**17 / 10 ** (2 / 2 - 1) / 1000 * 1.5)
    assert LAW.time_us(2**26, 1.5) == pytest.approx(2**26 / 100 * 1.5 / 1000 + 20)
    together = LAW.time_us(2.0 ** np.array([10, 17, 26]), 1.5)
    assert together == pytest.approx([LAW.time_us(2**x, 1.5) for x in (10, 17, 26)])
    with pytest.raises(InputError, match="a ≤ c"):
        CollectiveLaw(overhead_us=1, max_gbs=1, a=3, c=2, l=1, k=1, x0=1, b=1)


def test_collective_factors() -> None:
    assert AllReduce(elements=8, ranks=4).factor == pytest.approx(2 * 3 / 4)
    assert AllToAll(elements=8, ranks=4).factor == pytest.approx(3 / 4)


@pytest.mark.parametrize("kind", OPERATORS)
@settings(max_examples=8)
@given(base=st.integers(2, 3000))
def test_arrays_give_the_scalars(kind: str, base: int) -> None:
    first, second = sizes_of(kind, base), sizes_of(kind, 2 * base)
    both = operator(kind, **{name: np.array([first[name], second[name]]) for name in first})
    singles = [operator(kind, **first), operator(kind, **second)]
    for name in ("flops", "dram_bytes", "blocks"):
        assert getattr(both, name) == pytest.approx([getattr(one, name) for one in singles])
    assert both.roofline_us(V100) == pytest.approx([one.roofline_us(V100) for one in singles])


@pytest.mark.parametrize("kind", OPERATORS)
@settings(max_examples=8)
@given(base=st.integers(2, 300))
def test_larger_takes_no_less(kind: str, base: int) -> None:
    """Sizes that only add work only add time. (A larger batch of embedding bags may not: fewer tables share L2.)"""
    sizes = sizes_of(kind, base)
    one = operator(kind, **sizes)
    adding = {"n", "c", "m", "k", "batch", "elements", "tables", "ranks", "heads", "head_dim", "context_length"}
    adding |= {"tokens", "hidden", "inter", "experts"}
    adding -= {"batch" * (kind == "embedding_bag")}
    for name in set(sizes) & adding:
        grown = operator(kind, **{**sizes, name: 2 * sizes[name]})
        assert grown.roofline_us(V100) >= one.roofline_us(V100) * (1 - 1e-9)


@pytest.mark.parametrize("kind", OPERATORS)
def test_hashable_text_and_dict(kind: str) -> None:
    one, again = operator(kind, **sizes_of(kind, 4)), operator(kind, **sizes_of(kind, 4))
    assert one == again
    assert len({one, again}) == 1
    assert str(one).startswith(f"{kind}:")
    assert one.to_dict()["kind"] == kind


def test_kinds_measured_by_the_project_have_the_same_names() -> None:
    for kind, names in KINDS.items():
        assert set(names) <= set(OPERATORS[kind].size_names())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n": 0, "c": 1}, "n is 0; a whole number from 1"),
        ({"n": 1.5, "c": 1}, "n is 1.5"),
        ({"n": True, "c": 1}, "n is True"),
        ({"n": "x", "c": 1}, "n is 'x'"),
        ({"n": np.array([1, 0]), "c": 1}, "n is 0 in row 1"),
        ({"n": np.array(["a"]), "c": 1}, "whole numbers are needed"),
        ({"n": 1, "c": 1, "dtype": "fp23"}, "dtype 'fp23' is unknown; .*did you mean fp32"),
        ({"n": 1, "q": 1}, "softmax needs n, c, h, w"),
    ],
)
def test_bad_input_is_one_line(sizes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        operator("softmax", **sizes)
    assert "\n" not in str(caught.value)


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean softmax"):
        operator("sofmax", n=1)


def test_narrow_columns_do_not_overflow() -> None:
    sizes = np.array([60000], dtype=np.int32)
    assert Softmax(n=sizes, c=sizes).flops[0] == 174 * 60000**2


def test_base_class_has_no_formula() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Operator()  # type: ignore[abstract]
