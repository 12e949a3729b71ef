"""The covariance of two rows' log corrections: a trend and a smooth part, each partly the device's own.

Source: Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", eq. 4.17 (Matérn-3/2).
"""

import math
from dataclasses import dataclass

import numpy as np

TREND_SHARED = 0.5
"""Share of the linear trend that devices have in common."""


@dataclass(frozen=True, slots=True)
class Covariance:
    """``length`` of the smooth part in units of `surrogate.models.places`; a quarter of it is the short length.

    ``long_variance``, ``short_variance`` and ``trend_variance`` are variances of log time; ``shared`` is the share of
    the smooth part that devices have in common.
    """

    length: float
    long_variance: float
    short_variance: float
    trend_variance: float
    shared: float

    @property
    def scale(self) -> float:
        """What a distance is multiplied by: √3 / length."""
        return math.sqrt(3.0) / self.length

    def smooth(self, square_distance: np.ndarray) -> np.ndarray:
        """The smooth part at squared distances: two Matérn-3/2 terms, whose exponentials are one and its 4th power."""
        return self.smooth_of_scaled(square_distance * self.scale**2)

    def smooth_of_scaled(self, squares: np.ndarray) -> np.ndarray:
        """`smooth` of squared distances that are multiplied by ``scale``² already; ``squares`` is overwritten.

        Rounding may leave a distance of nothing just below zero: its square's size stands for it.
        """
        long = np.sqrt(np.abs(squares, out=squares), out=squares)
        decay = np.exp(-long)
        short = decay * decay
        short *= decay
        near = long * (4.0 * self.short_variance)
        near += self.short_variance
        near *= short
        long += 1.0
        long *= self.long_variance
        long += near
        long *= decay
        return long

    def trend(self, product: np.ndarray) -> np.ndarray:
        """The linear part at inner products of places."""
        return 1.0 + self.trend_variance * product

    def matrix(self, a: np.ndarray, a_device: np.ndarray, b: np.ndarray, b_device: np.ndarray) -> np.ndarray:
        """Covariances (a, b) of two sets of places (·, axes) on devices given by codes (·,)."""
        product = a @ b.T
        same = a_device[:, None] == b_device[None]
        smooth = self.smooth(_squares(a)[:, None] + _squares(b)[None] - 2.0 * product)
        return smooth * np.where(same, 1.0, self.shared) + self.trend(product) * np.where(
            same, 1.0, TREND_SHARED
        )


def _squares(place: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", place, place)
