"""Every CPU algorithm agrees with a float64 oracle within its rounding error, or refuses the problem."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from surrogate.collect.cpu import ALGORITHMS, WINOGRAD, direct
from surrogate.features.conv import Conv, parse
from tests.known import cases

NAMES = tuple(ALGORITHMS)
UNIT_ROUNDOFF = 2.0**-24


def operands(conv: Conv, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random normal x (n, c, h, w) and w (k, c/groups, r, s), float32."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((conv.n, conv.c, conv.h, conv.w), dtype=np.float32)
    return x, random.standard_normal((conv.k, conv.c // conv.groups, conv.r, conv.s), dtype=np.float32)


def bound(name: str, x: np.ndarray, w: np.ndarray, conv: Conv) -> np.ndarray | float:
    """Return the largest absolute error that fp32 arithmetic may cause, to first order in the unit roundoff u.

    A sum of m products has the bound m·u·Σ|x||w| in any order (Higham, 2002, §3.1). Winograd's bound is the number of
    roundings on the longest path times the magnitude |Aᵀ|(|G||g||G|ᵀ ⊙ |Bᵀ||d||B|)|A| of the largest operands. An FFT
    adds C·log2(L)·u of the norms of image and filter, with C = 1 + 4·√2 < 7 (ibid., theorem 24.2); there are three.
    """
    channels = conv.c // conv.groups
    if "WINOGRAD" in name:
        at, g, bt = (np.abs(matrix).astype(np.float64) for matrix in WINOGRAD[2 if name == "WINOGRAD" else 4])
        tile = bt.shape[0]
        filters, inputs = g @ np.ones((3, 3)) @ g.T, bt @ np.ones((tile, tile)) @ bt.T
        largest = np.max(at @ (filters * inputs) @ at.T) * channels * np.abs(x).max() * np.abs(w).max()
        return (2 * 3 + 4 * tile + channels + 4) * UNIT_ROUNDOFF * float(largest)
    if "FFT" in name:
        length = (conv.h + 2 * conv.pad_h + 32) * (conv.w + 2 * conv.pad_w + 32)
        norms = (np.linalg.norm(array.reshape(len(array), -1), axis=1).max() for array in (x, w))
        return (3 * 7 * math.log2(length) + channels) * UNIT_ROUNDOFF * float(math.prod(norms))
    return (channels * conv.r * conv.s + 1) * UNIT_ROUNDOFF * direct(np.abs(x), np.abs(w), conv)


def agrees(name: str, conv: Conv) -> bool:
    """Return whether every output of a run is within the bound."""
    x, w = operands(conv)
    y = ALGORITHMS[name].run(x, w, conv)
    assert (y.shape, y.dtype) == ((conv.n, conv.k, conv.out_h, conv.out_w), np.float32)
    return bool((np.abs(y - direct(x, w, conv)) <= bound(name, x, w, conv)).all())


@st.composite
def convs(draw, filters=((1, 8), (1, 8)), max_pad=9, strides=3, dilations=3, max_groups=4) -> Conv:
    """Draw a small problem whose image is large enough for the filter."""
    r, s = (draw(st.integers(*bounds)) for bounds in filters)
    pad_h, pad_w = draw(st.integers(0, max_pad)), draw(st.integers(0, max_pad))
    dilation_h, dilation_w = draw(st.integers(1, dilations)), draw(st.integers(1, dilations))
    min_h, min_w = dilation_h * (r - 1) + 1 - 2 * pad_h, dilation_w * (s - 1) + 1 - 2 * pad_w
    groups = draw(st.integers(1, max_groups))
    n, c, k = draw(st.integers(1, 3)), groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 5))
    h, w = max(1, min_h) + draw(st.integers(0, 40)), max(1, min_w) + draw(st.integers(0, 40))
    steps = {name: draw(st.integers(1, strides)) for name in ("stride_h", "stride_w")}
    spread = {"dilation_h": dilation_h, "dilation_w": dilation_w, "pad_h": pad_h, "pad_w": pad_w}
    return Conv(n=n, c=c, k=k, h=h, w=w, r=r, s=s, groups=groups, **steps, **spread)


UNIT = {"strides": 1, "dilations": 1}
DRAWN = {
    "FFT": convs(max_groups=1, **UNIT),
    "FFT_TILING": convs(filters=((1, 32), (1, 32)), max_groups=1, **UNIT),
    **dict.fromkeys(("WINOGRAD", "WINOGRAD_NONFUSED"), convs(filters=((3, 3), (3, 3)), **UNIT)),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_agrees_with_the_oracle_on_supported_problems(name: str) -> None:
    @settings(max_examples=40, deadline=None)
    @given(DRAWN.get(name, convs()))
    def check(conv: Conv) -> None:
        assume(ALGORITHMS[name].unsupported_reason(conv) is None)
        assert agrees(name, conv)

    check()


def test_the_oracle_agrees_with_the_definition() -> None:
    conv = parse("n2c4h7w6k6r3s2p1q2u2v1l2j1g2")
    random = np.random.default_rng(0)
    x, w = random.standard_normal((2, 4, 7, 6)), random.standard_normal((6, 2, 3, 2))
    expected = np.zeros((2, 6, conv.out_h, conv.out_w))
    for n, k, p, q in np.ndindex(*expected.shape):
        for c, r, s in itertools.product(range(2), range(3), range(2)):
            row, column = 2 * p + 2 * r - 1, q + s - 2
            if 0 <= row < 7 and 0 <= column < 6:
                expected[n, k, p, q] += x[n, k // 3 * 2 + c, row, column] * w[k, c, r, s]
    np.testing.assert_allclose(direct(x, w, conv), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("m", "transforms"), WINOGRAD.items())
def test_winograd_transforms_compute_the_correlation(m, transforms) -> None:
    """y is bilinear, so unit vectors d and g suffice: y_i = Σ_j d_{i+j} g_j in one dimension."""
    at, g, bt = (matrix.astype(np.float64) for matrix in transforms)
    expected = np.fromfunction(lambda i, at_input, at_tap: at_input == i + at_tap, (m, m + 2, 3))
    outputs = np.einsum("ip,pd,pt->idt", at, bt, g)
    assert outputs.shape == expected.shape
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


@cases(__file__)
def test_unsupported_problems_are_refused_with_the_reason(text, change, refused, word) -> None:
    conv = replace(parse(text), **change)
    reasons = {name: algorithm.unsupported_reason(conv) for name, algorithm in ALGORITHMS.items()}
    assert {name for name, reason in reasons.items() if reason} == set(refused)
    assert all(word in str(reasons[name]) for name in refused)


def test_workspace_bytes_follow_the_formulas() -> None:
    conv = parse("n4c32h56k48r3p1")
    sizes = {name: algorithm.workspace_bytes(conv) for name, algorithm in ALGORITHMS.items()}
    assert sizes["GEMM"] == 4 * 32 * 3 * 3 * 56 * 56 * 4
    assert sizes["WINOGRAD"] == 4 * 16 * (48 * 32 + 28 * 28 * (32 + 48))
    assert sizes["WINOGRAD_NONFUSED"] == 4 * 36 * (48 * 32 + 4 * 14 * 14 * (32 + 48))
    assert sizes["FFT_TILING"] == 8 * 32 * 17 * (4 * 4 * 32 + 32 * 48 + 4 * 4 * 48)
    # These algorithms process one image at a time, so the batch adds no workspace.
    for name in ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "WINOGRAD"):
        assert ALGORITHMS[name].workspace_bytes(conv.with_batch(64)) == sizes[name]
