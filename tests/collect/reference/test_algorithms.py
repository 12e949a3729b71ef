"""Every algorithm against the float64 oracle, over drawn problems, and its rule against what it does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from surrogate.collect.reference import ALGORITHMS
from surrogate.collect.reference.direct import direct, relative_error
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.text import parse

NAMES = tuple(ALGORITHMS)
ANY_SHAPE = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM")
BOUND = 1e-4


def operands(conv: Conv, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random normal x (n, c, h, w) and w (k, c/groups, r, s), float32."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((conv.n, conv.c, conv.h, conv.w), dtype=np.float32)
    w = random.standard_normal((conv.k, conv.c // conv.groups, conv.r, conv.s), dtype=np.float32)
    return x, w


def error(name: str, conv: Conv) -> float:
    """Relative error of one run against the oracle."""
    x, w = operands(conv)
    return relative_error(ALGORITHMS[name].run(x, w, conv), direct(x, w, conv))


@st.composite
def convs(draw, filters=((1, 8), (1, 8)), most_pad=9, strides=3, dilations=3, most_groups=4) -> Conv:
    """A small problem; the image is drawn large enough for the filter."""
    r, s = (draw(st.integers(*bounds)) for bounds in filters)
    pad_h, pad_w = draw(st.integers(0, most_pad)), draw(st.integers(0, most_pad))
    dilation_h, dilation_w = draw(st.integers(1, dilations)), draw(st.integers(1, dilations))
    least_h, least_w = dilation_h * (r - 1) + 1 - 2 * pad_h, dilation_w * (s - 1) + 1 - 2 * pad_w
    groups = draw(st.integers(1, most_groups))
    return Conv(
        n=draw(st.integers(1, 3)),
        c=groups * draw(st.integers(1, 5)),
        h=max(1, least_h) + draw(st.integers(0, 40)),
        w=max(1, least_w) + draw(st.integers(0, 40)),
        k=groups * draw(st.integers(1, 5)),
        r=r,
        s=s,
        pad_h=pad_h,
        pad_w=pad_w,
        stride_h=draw(st.integers(1, strides)),
        stride_w=draw(st.integers(1, strides)),
        dilation_h=dilation_h,
        dilation_w=dilation_w,
        groups=groups,
    )


UNIT = {"strides": 1, "dilations": 1}
DRAWN = {
    "IMPLICIT_GEMM": convs(),
    "IMPLICIT_PRECOMP_GEMM": convs(),
    "GEMM": convs(),
    "FFT": convs(most_groups=1, **UNIT),
    "FFT_TILING": convs(filters=((1, 32), (1, 32)), most_groups=1, **UNIT),
    "WINOGRAD": convs(filters=((3, 3), (3, 3)), **UNIT),
    "WINOGRAD_NONFUSED": st.one_of(
        convs(filters=((3, 3), (3, 3)), **UNIT), convs(filters=((5, 5), (5, 5)), **UNIT)
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_oracle_wherever_the_rule_allows(name: str) -> None:
    @settings(max_examples=60, deadline=None)
    @given(DRAWN[name])
    def check(conv: Conv) -> None:
        assume(ALGORITHMS[name].unsupported_reason(conv) is None)
        assert error(name, conv) < BOUND

    check()


@settings(max_examples=60, deadline=None)
@given(convs(filters=((1, 34), (1, 5))))
def test_run_refuses_exactly_what_the_rule_names(conv: Conv) -> None:
    x, w = operands(conv)
    for algorithm in ALGORITHMS.values():
        reason = algorithm.unsupported_reason(conv)
        if reason is None:
            y = algorithm.run(x, w, conv)
            assert (y.shape, y.dtype) == ((conv.n, conv.k, conv.out_h, conv.out_w), np.float32)
            assert np.isfinite(y).all()
        else:
            for refused in (
                lambda a=algorithm: a.run(x, w, conv),
                lambda a=algorithm: a.workspace_bytes(conv),
            ):
                with pytest.raises(InputError) as raised:
                    refused()
                assert reason in str(raised.value)
                assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "n2c64h56k64r3p1",  # several blocks of every kind, of one image each
        "n40c20h7k24r3p1",  # several images per block
        "n1c300h9k520r3p1",  # more channels than a tile holds
        "n1c2h3w700k3r1s3p0q1",  # rows longer than a block
        "n2c6h300w5k4r3s3p1",  # beyond the whole-image FFT's bound
        "n3c512h6k512r3p1g512",  # depthwise
        "n1c800h5k400r3p1g2",  # wide groups
        "n2c256h14k512r1",
        "n2c3h64k16r5p2",
        "n1c4h40k5r17p8",
    ],
)
def test_shapes_of_real_networks(text: str) -> None:
    conv = parse(text)
    ran = [name for name in NAMES if ALGORITHMS[name].unsupported_reason(conv) is None]
    assert set(ANY_SHAPE) <= set(ran)
    for name in ran:
        assert error(name, conv) < (1e-5 if "WINOGRAD" in name else 1e-6), name


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("n1c2h256k2r1", {"WINOGRAD", "WINOGRAD_NONFUSED"}),
        ("n1c2h257k2r1", {"FFT", "WINOGRAD", "WINOGRAD_NONFUSED"}),
        ("n1c2h254w8k2r3p1", set()),
        ("n1c2h8w255k2r3p1", {"FFT"}),
        ("n1c2h9k2r3p2", set()),
        ("n1c2h9k2r3p3", {"FFT", "FFT_TILING"}),
        ("n1c2h9k2r3p1q3", {"FFT", "FFT_TILING"}),
        ("n1c2h40k2r32", {"WINOGRAD", "WINOGRAD_NONFUSED"}),
        ("n1c2h40k2r33", {"FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"}),
        ("n1c2h9k2r5", {"WINOGRAD"}),
        ("n1c2h9k2r3s5", {"WINOGRAD", "WINOGRAD_NONFUSED"}),
        ("n1c2h9k2r3g2", {"FFT", "FFT_TILING"}),
        ("n1c2h9k2r3u1v2", {"FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"}),
        ("n1c2h9k2r3l1j2", {"FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"}),
    ],
)
def test_rules_at_their_edges(text: str, refused: set[str]) -> None:
    conv = parse(text)
    assert {name for name in NAMES if ALGORITHMS[name].unsupported_reason(conv)} == refused


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"direction": "bwd_data"}, "bwd_data"),
        ({"direction": "bwd_filter"}, "bwd_filter"),
        ({"dtype": "fp16"}, "fp16"),
        ({"layout": "NHWC"}, "NHWC"),
        ({"math": "tensor_op"}, "tensor_op"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_only_fp32_nchw_forward(name: str, change: dict[str, str], word: str) -> None:
    conv = replace(parse("n1c2h9k2r3"), **change)
    reason = ALGORITHMS[name].unsupported_reason(conv)
    assert reason is not None
    assert word in reason
    with pytest.raises(InputError, match=word):
        ALGORITHMS[name].run(*operands(conv), conv)


def test_default_math_runs() -> None:
    conv = parse("n1c2h9k2r3", math="default")
    assert not any(algorithm.unsupported_reason(conv) for algorithm in ALGORITHMS.values())


@pytest.mark.parametrize("name", NAMES)
def test_operands_are_checked_and_left_alone(name: str) -> None:
    conv = parse("n2c3h12k4r3p1")
    algorithm = ALGORITHMS[name]
    x, w = operands(conv)
    before = x.copy(), w.copy()
    expected = algorithm.run(x, w, conv)
    assert np.array_equal(x, before[0])
    assert np.array_equal(w, before[1])
    # a strided operand gives the same result
    assert np.array_equal(algorithm.run(np.repeat(x, 2, axis=3)[..., ::2], w, conv), expected)
    with pytest.raises(InputError, match=r"x is float32 of shape \(1, 3, 12, 12\)"):
        algorithm.run(x[:1], w, conv)
    with pytest.raises(InputError, match="w is float64"):
        algorithm.run(x, w.astype(np.float64), conv)


@pytest.mark.parametrize("name", ANY_SHAPE)
def test_padding_does_not_spread_what_lies_at_the_edge(name: str) -> None:
    """An infinite corner reaches only the outputs that see it (a clipped gather times 0 is NaN)."""
    conv = parse("n1c1h6k1r3p1")
    x, w = np.ones((1, 1, 6, 6), np.float32), np.ones((1, 1, 3, 3), np.float32)
    x[0, 0, 0, 0] = np.inf
    y = ALGORITHMS[name].run(x, w, conv)
    assert np.argwhere(~np.isfinite(y[0, 0])).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_names_and_order_are_cudnns() -> None:
    assert [(a.number, a.name) for a in ALGORITHMS.values()] == [
        (0, "IMPLICIT_GEMM"),
        (1, "IMPLICIT_PRECOMP_GEMM"),
        (2, "GEMM"),
        (4, "FFT"),
        (5, "FFT_TILING"),
        (6, "WINOGRAD"),
        (7, "WINOGRAD_NONFUSED"),
    ]
    assert all(name == algorithm.name for name, algorithm in ALGORITHMS.items())
