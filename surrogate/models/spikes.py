"""Spikes: single measurements that something beside the kernel slowed down, which a fit leaves out of its `Grid`.

In some tables one time in fifty is 1.3 to 2 times those at the next sizes, for one candidate alone, where another
library times the same kernel without it. A kernel that is slow at some size shows it at other problems of that size, at
the next size, or in another library; a time is a spike only where all of them differ.
"""

import numpy as np
import pandas as pd

from surrogate.models.grid import POSITION_BITS, GridPart, Lines, positions

MEDIANS = 3.0
"""Of a candidate's distances from the lines through both neighbours: two standard deviations, on two lines at once."""
LEAST = 0.18
"""The least rise of a spike in log time, however little a candidate's times scatter."""
PASSES = 2
"""One spike hides another beside it, which the second pass meets."""


def without_spikes(part: GridPart, lines: Lines, setting: np.ndarray) -> GridPart:
    """The rows of ``part`` that are no spikes; ``setting`` (codes,) numbers the setting of every candidate.

    A spike rises above both its neighbours on two lines by more than its candidate's noise and `LEAST`, and by half as
    much above its neighbours on all lines; and of several candidates of the problem no other rises so on two.
    """
    for _ in range(PASSES if len(lines.leading) > 2 else 0):
        # 1. Of each row along each line the neighbours' values, and what they say of it, (rows, lines) each.
        keys = part.keys(lines)[:, 1:]
        low, high, between = np.stack([_beside(line, part.values) for line in keys.T], axis=2)
        values = part.values[:, None]
        # 2. How far each row rises: the second least of all lines with both neighbours (NaN, where one is missing,
        #    sorts last), and the least of all lines with any.
        second = np.sort(values - np.maximum(low, high), axis=1)[:, 1]
        least = np.fmin.reduce(values - np.fmax(low, high), axis=1)
        # 3. Noise is the median distance from the lines, along the one where a candidate has the largest.
        noise = pd.DataFrame(np.abs(values - between)).groupby(part.codes).median().max(axis=1)
        limit = np.maximum(MEDIANS * noise, LEAST)[part.codes].to_numpy()
        # 4. Of each problem, how many of its candidates can be judged, and how many rise.
        _, problem = np.unique(lines.keys(setting[part.codes], part.sizes)[:, 0], return_inverse=True)
        judged = np.bincount(problem, np.isfinite(second))
        rising = np.bincount(problem, second > limit)
        alone = (judged > 1) & (rising == 1)
        kept = ~((second > limit) & (least > second / 2) & alone[problem])
        part = GridPart(part.codes[kept], part.sizes[kept], part.values[kept])
    return part


def _beside(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(3, rows) the next value below and above on the line of ``keys`` (rows,), and what lies between both; or NaN."""
    order = np.argsort(keys, kind="stable")
    line = keys[order] >> np.uint64(POSITION_BITS)
    gap = np.where(line[1:] == line[:-1], np.diff(positions(keys[order])), np.nan)
    out = np.full((3, len(keys)), np.nan)
    out[0, order[1:]] = np.where(np.isfinite(gap), values[order[:-1]], np.nan)
    out[1, order[:-1]] = np.where(np.isfinite(gap), values[order[1:]], np.nan)
    inner = order[1:-1]
    with np.errstate(invalid="ignore"):
        share = gap[:-1] / (gap[:-1] + gap[1:])
    out[2, inner] = out[0, inner] * (1 - share) + out[1, inner] * share
    return out
