"""Exact transform matrices of Winograd's minimal filtering F(m, r), by Cook and Toom's interpolation.

Sources: Winograd, "Arithmetic Complexity of Computations", 1980; Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", 2015 (the matrices' names); the derivation here is the transposition of
Toom-Cook multiplication.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

POINTS = tuple(Fraction(*pair) for pair in ((0, 1), (1, 1), (-1, 1), (1, 2), (-1, 2), (2, 1), (-2, 1)))
"""Finite interpolation points in order of use: small, exact in binary, in ± pairs: rounding stays small."""

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True, slots=True)
class Transforms:
    """Matrices of y = Aᵀ[(G g) ⊙ (Bᵀ d)]: m outputs y of the correlation of r taps g with m + r − 1 inputs d.

    ``output`` is Aᵀ (m × t), ``filter`` is G (t × r), ``input`` is Bᵀ (t × t), with t = m + r − 1.
    """

    output: Matrix
    filter: Matrix
    input: Matrix

    def float32(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(Aᵀ, G, Bᵀ) rounded to float32."""
        return _float32(self.output), _float32(self.filter), _float32(self.input)


@cache
def transforms(m: int, r: int) -> Transforms:
    """The transforms of F(m, r), by m + r − 2 finite points and the point at infinity.

    Product of polynomials of degree m − 1 and r − 1: evaluate both at the points, multiply, interpolate.
    The transposed computation is the correlation, so that Aᵀ and G hold the powers of the points and Bᵀ the
    Lagrange polynomials. Each Lagrange polynomial's denominator is moved from Bᵀ to G, which the filter
    pays once. Raises ValueError where the points do not suffice.
    """
    finite = m + r - 2
    if min(m, r) < 1 or finite > len(POINTS):
        raise ValueError(f"F({m}, {r}) needs {finite} interpolation points; {len(POINTS)} are known")
    points = POINTS[:finite]
    filter_rows, input_rows = [], []
    for i, point in enumerate(points):
        others = points[:i] + points[i + 1 :]
        scale = math.prod((point - other for other in others), start=Fraction(1))
        filter_rows.append(tuple(value / scale for value in _powers(point, r)))
        input_rows.append((*_monic(others), Fraction(0)))
    filter_rows.append(_unit(r))
    input_rows.append(_monic(points))
    columns = [*(_powers(point, m) for point in points), _unit(m)]
    output = tuple(tuple(column[row] for column in columns) for row in range(m))
    return Transforms(output=output, filter=tuple(filter_rows), input=tuple(input_rows))


def _powers(point: Fraction, count: int) -> tuple[Fraction, ...]:
    return tuple(point**power for power in range(count))


def _unit(size: int) -> tuple[Fraction, ...]:
    """The evaluation at infinity: the leading coefficient."""
    return (*(Fraction(0),) * (size - 1), Fraction(1))


def _monic(roots: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Coefficients of ∏(x − root), lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = (
            [Fraction(0), *coefficients],
            [*(root * value for value in coefficients), Fraction(0)],
        )
        coefficients = [high - low for high, low in zip(shifted, scaled, strict=True)]
    return tuple(coefficients)


def _float32(matrix: Matrix) -> np.ndarray:
    return np.array([[float(value) for value in row] for row in matrix], np.float32)
