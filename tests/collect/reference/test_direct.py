"""The oracle itself: against the definition written out, and against SciPy's correlation."""

import itertools

import numpy as np
import scipy.signal

from surrogate.collect.reference.direct import direct, relative_error
from surrogate.features.text import parse


def test_is_the_definition() -> None:
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


def test_agrees_with_scipys_correlation() -> None:
    conv = parse("n1c3h9w11k2r4s5")
    random = np.random.default_rng(1)
    x, w = random.standard_normal((1, 3, 9, 11)), random.standard_normal((2, 3, 4, 5))
    expected = [scipy.signal.correlate(x[0], w[k], mode="valid")[0] for k in range(2)]
    np.testing.assert_allclose(direct(x, w, conv)[0], expected, rtol=1e-12)


def test_relative_error() -> None:
    reference = np.array([3.0, 4.0])
    assert relative_error(np.array([3.0, 4.0], np.float32), reference) == 0.0
    assert relative_error(np.array([3.0, 4.5], np.float32), reference) == 0.1
    assert relative_error(np.array([0.5, 0.0], np.float32), np.zeros(2)) == 0.5
