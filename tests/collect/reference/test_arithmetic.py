"""The counted arithmetic against what the kernels call: every GEMM and transform of a run is recorded."""

import math

import numpy as np
import pytest
import scipy.fft

from surrogate.collect.reference import ALGORITHMS
from surrogate.collect.reference.arithmetic import Arithmetic, arithmetic, flop_count
from surrogate.features.text import parse

PROBLEMS = ("n3c8h37w41k6r3p1", "n2c6h30k4r5p2", "n2c12h31k8r3p1g2", "n2c600h9k8r3p1u2", "n1c4h64k4r9p4")
CASES = [
    pytest.param(name, text, id=f"{name}-{text}")
    for name, algorithm in ALGORITHMS.items()
    for text in PROBLEMS
    if algorithm.unsupported_reason(parse(text)) is None
]


class Recorder:
    """Stands in for np.matmul, np.add and SciPy's transforms, and counts their flops."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flops = 0.0
        self._matmul, self._add = np.matmul, np.add
        monkeypatch.setattr(np, "matmul", self.matmul)
        monkeypatch.setattr(np, "add", self)
        for name, factor, axis_default in (
            ("fft", 5.0, 0),
            ("ifft", 5.0, 0),
            ("rfft", 2.5, 1),
            ("irfft", 2.5, 1),
        ):
            monkeypatch.setattr(
                scipy.fft, name, self._transform(getattr(scipy.fft, name), factor, axis_default)
            )

    def matmul(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
        """2 per multiply-add, 8 per complex one."""
        self.flops += (8 if np.iscomplexobj(out) else 2) * out.size * a.shape[-1]
        return self._matmul(a, b, out=out)

    def __call__(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
        """np.add: one per float element; sums of offsets are not counted."""
        self.flops += out.size if out.dtype == np.float32 else 0
        return self._add(a, b, out=out)

    def outer(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
        """np.add.outer, of offsets only."""
        return self._add.outer(a, b, out=out)

    def _transform(self, real, factor: float, expected_axis: int):
        def recorded(array, n=None, axis=-1, **keywords):
            assert axis == expected_axis
            result = real(array, n=n, axis=axis, **keywords)
            length = result.shape[axis] if np.isrealobj(result) or factor == 5.0 else array.shape[axis]
            lines = result.size // result.shape[axis]
            self.flops += factor * length * math.log2(length) * lines
            return result

        return recorded


@pytest.mark.parametrize(("name", "text"), CASES)
def test_count_is_what_a_run_does(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = parse(text)
    x = np.ones((conv.n, conv.c, conv.h, conv.w), np.float32)
    w = np.ones((conv.k, conv.c // conv.groups, conv.r, conv.s), np.float32)
    recorder = Recorder(monkeypatch)
    ALGORITHMS[name].run(x, w, conv)
    assert flop_count(conv, name) == pytest.approx(recorder.flops, rel=1e-9, abs=3)


def test_known_answers() -> None:
    conv = parse("n1c2h8k4r3p1")  # 8×8 outputs
    assert arithmetic(conv, "GEMM") == Arithmetic(gemm_flops=2 * 4 * 64 * 2 * 9)
    assert arithmetic(conv, "IMPLICIT_GEMM").output_flops == 9 * 4 * 64
    # F(2×2, 3×3): 16 tiles of 16 points; F(4×4, 3×3): 4 tiles of 36
    assert arithmetic(conv, "WINOGRAD").gemm_flops == 2 * 16 * 16 * 2 * 4
    assert arithmetic(conv, "WINOGRAD_NONFUSED").gemm_flops == 2 * 36 * 4 * 2 * 4
    assert arithmetic(conv, "FFT_TILING").gemm_flops == 8 * 32 * 17 * 2 * 4


def test_winograd_saves_what_the_theory_says() -> None:
    """Multiplications fall by (m·r / (m + r − 1))²: 2.25 for F(2, 3), 4 for F(4, 3), where tiles fit."""
    conv = parse("n2c16h32k16r3p1")
    assert conv.flops / arithmetic(conv, "WINOGRAD").gemm_flops == 2.25
    assert conv.flops / arithmetic(conv, "WINOGRAD_NONFUSED").gemm_flops == 4.0


def test_takes_the_algorithm_itself() -> None:
    conv = parse("n1c2h8k4r3p1")
    assert flop_count(conv, ALGORITHMS["WINOGRAD"]) == flop_count(conv, "WINOGRAD")
    with pytest.raises(KeyError):
        flop_count(conv, "DIRECT")
