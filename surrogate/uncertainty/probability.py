"""How likely each candidate is to be the fastest: predictions with normal errors, of which a part is each one's own.

What the candidates of a problem have in common in their errors cannot change their order and cancels; the share of an
interval's half width that is a candidate's own comes from held-out predictions (`conformal.Widths`).
"""

from collections.abc import Sequence

import numpy as np

NORMAL_90 = 1.6448536269514722
"""A normal variable lies within ± this many standard deviations in 90 of 100 cases."""
_STEPS = np.linspace(-5.0, 5.0, 33)  # in standard deviations; 3e-7 of a normal variable lies below
_LEAST = 1e-9  # half width 0 stands for a very small one
_TINY = 1e-300


def normal_cdf(x: np.ndarray) -> np.ndarray:
    """P(Z ≤ x) of a standard normal variable, absolute error below 7.5e-8.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.17.
    """
    t = 1.0 / (1.0 + 0.2316419 * np.abs(x))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * x * x) * series * (1 / np.sqrt(2 * np.pi))
    return np.where(x >= 0, 1.0 - tail, tail)


def probability_best(
    log_time: np.ndarray | Sequence[float],
    half_width: np.ndarray | Sequence[float],
    own_share: float = 1.0,
) -> np.ndarray:
    """(k,) probability of each of the ``k`` candidates of one problem to be the fastest; they sum to 1.

    ``log_time`` (k,) natural logs of predicted times; ``half_width`` (k,) half widths of their 90 % intervals in log
    time; ``own_share`` the part of a half width that candidates do not share (`Widths.own_share`). P(i is best) is the
    integral of ∏ P(time of j > t), over all others j, with respect to the distribution of i's time t: a Stieltjes sum
    over points laid densely around every candidate, exact to about 1e-3. Empty for no candidates.
    """
    mean = np.asarray(log_time, dtype=np.float64)
    if mean.size < 2:
        return np.ones(mean.shape)
    deviation = np.maximum(np.asarray(half_width, dtype=np.float64) * (own_share / NORMAL_90), _LEAST)
    points = (mean + _STEPS[:, None] * deviation).ravel()
    points = np.sort(points[points <= (mean + _STEPS[-1] * deviation).min()])
    later = np.maximum(normal_cdf((mean - points[:, None]) / deviation), _TINY)
    others_later = later.prod(axis=1, keepdims=True) / later
    mass = (later[:-1] - later[1:]) * (others_later[:-1] + others_later[1:])
    total = mass.sum(axis=0)
    return total / total.sum()
