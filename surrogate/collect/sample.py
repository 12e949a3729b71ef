"""Problems drawn log-uniformly over the whole domain by a Sobol sequence.

Domain: batch 1–256, channels 3–1448, size 4–315, filters 1–11, strides 1–4, padding none, same or full; some
problems dilated, grouped, depthwise, non-square. The sequence is SciPy's unscrambled one, shifted modulo 1 by
the seed (Cranley–Patterson), so that a seed gives the same problems with every version.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeVar

import numpy as np

from surrogate.collect.plan import Caps
from surrogate.features.conv import Conv

T = TypeVar("T")

FILTERS = {1: 24, 2: 3, 3: 40, 4: 3, 5: 13, 7: 9, 9: 4, 11: 4}
"""Filter width → weight; likewise below."""
STRIDES = {1: 72, 2: 22, 3: 3, 4: 3}
PADS = {"same": 70, "none": 22, "full": 8}
DILATIONS = {1: 93, 2: 5, 3: 1, 4: 1}
GROUPINGS = {"none": 86, "depthwise": 8, "grouped": 6}
GROUPS = {2: 1, 4: 1, 8: 1, 16: 1, 32: 2}
RGB_SHARE = 0.04
"""Share of problems that read a 3-channel image, as first layers do."""
NON_SQUARE_SHARE = 0.06
DIMENSIONS = 14
MAX_POINTS = 1 << 22


def sampled(seed: int, caps: Caps) -> Iterator[Conv]:
    """Distinct problems within ``caps``, without end until the sequence is exhausted (about 4 million points)."""
    seen: set[Conv] = set()
    for point in _points(seed):
        conv = _problem(point)
        if conv is not None and not caps.reason(conv) and conv not in seen:
            seen.add(conv)
            yield conv


def _points(seed: int) -> Iterator[np.ndarray]:
    from scipy.stats import qmc

    shift = np.random.Generator(np.random.PCG64(seed)).random(DIMENSIONS)
    sequence = qmc.Sobol(DIMENSIONS, scramble=False)
    for power in count(10):
        # the first two blocks are of 1024 points, each later one as long as all before it: Sobol's points
        # stay balanced
        block = sequence.random_base2(max(power - 1, 10))
        yield from (block + shift) % 1.0
        if 1 << power >= MAX_POINTS:
            return


def _problem(u: Sequence[float] | np.ndarray) -> Conv | None:
    """The problem at point ``u`` of the unit cube (14 numbers); None where the filter exceeds the image."""
    r = _pick(FILTERS, u[4])
    dilation = _pick(DILATIONS, u[8]) if r > 1 else 1
    h = _log_uniform(4, 315, u[3])
    s, w = r, h
    if u[9] < NON_SQUARE_SHARE:
        s = 1 if u[10] < 0.5 and r > 1 else r
        w = _log_uniform(4, 315, u[11])
    stride = _pick(STRIDES, u[6])
    c = 3 if u[5] < RGB_SHARE else _log_uniform(3, 1448, u[1])
    c, k, groups = _grouped(c, _log_uniform(3, 1448, u[2]), u[12], u[13])
    pad = _pick(PADS, u[7])
    reach_h, reach_w = dilation * (r - 1), dilation * (s - 1)
    if h + 2 * _pad(pad, reach_h) <= reach_h or w + 2 * _pad(pad, reach_w) <= reach_w:
        return None
    return Conv(
        n=_log_uniform(1, 256, u[0]), c=c, h=h, w=w, k=k, r=r, s=s, pad_h=_pad(pad, reach_h),
        pad_w=_pad(pad, reach_w), stride_h=stride, dilation_h=dilation, groups=groups,
    )  # fmt: skip


def _grouped(c: int, k: int, u: float, v: float) -> tuple[int, int, int]:
    """Channels rounded to what the drawn grouping needs, and the group count."""
    kind = _pick(GROUPINGS, u)
    if kind == "depthwise":
        return c, c, c
    if kind == "grouped":
        groups = _pick(GROUPS, v)
        return groups * max(1, round(c / groups)), groups * max(1, round(k / groups)), groups
    return c, k, 1


def _pad(kind: str, reach: int) -> int:
    return {"none": 0, "same": reach // 2, "full": reach}[kind]


def _log_uniform(low: int, high: int, u: float) -> int:
    return min(high, max(low, round(math.exp(math.log(low) + u * math.log(high / low)))))


def _pick(weights: dict[T, int], u: float) -> T:
    target = u * sum(weights.values())
    for value, weight in weights.items():
        target -= weight
        if target < 0:
            return value
    return next(reversed(weights))
