"""Where a row lies: scaled logarithms in which one unit means about the same change of time, and points that spread."""

from collections.abc import Mapping

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.models.columns import select

AXES: Mapping[str, Mapping[str, float]] = {
    "batch": {"log2_n": 1.0},
    "channels_in": {"log2_channels_in": 1.0},
    "channels_out": {"log2_channels_out": 1.0},
    "pixels": {"log2_out_h": 1.0, "log2_out_w": 1.0},
    "aspect": {"log2_out_h": 0.5, "log2_out_w": -0.5},
    "filter_height": {"log2_r": 2.0},
    "filter_width": {"log2_s": 2.0},
    "stride": {"stride_h": 1.0, "stride_w": 1.0},
    "dilation": {"dilation_h": 1.0, "dilation_w": 1.0},
    "padding": {"pad_h": 0.25, "pad_w": 0.25},
    "groups": {"log2_groups": 0.5},
    "is_depthwise": {"is_depthwise": 2.0},
    "itemsize": {"itemsize": 1.0},
    "layout": {"is_nhwc": 2.0},
    "tensor_cores": {"uses_tensor_cores": 4.0},
    "efficiency": {"best_efficiency": 3.0},
    "last_wave": {"last_wave_share_middle": 0.5},
    "tile_utilisation": {"tile_utilisation_middle": 1.0},
    "waves": {"log2_waves_middle": 0.3},
}
"""Axis → feature column → scale. Set by hand: an octave of a size is one unit, another filter or stride about two."""
COLUMNS: tuple[str, ...] = tuple(dict.fromkeys(name for axis in AXES.values() for name in axis))
"""The feature columns that the axes are made of."""
SCALES = np.array([[axis.get(name, 0.0) for axis in AXES.values()] for name in COLUMNS])
"""(columns, axes): places are feature columns times this."""


def places(rows: Rows) -> np.ndarray:
    """(rows, axes) float64."""
    return select(rows, COLUMNS).astype(np.float64) @ SCALES


def spread(place: np.ndarray, owner: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Positions of at most ``count`` rows that cover ``place`` (rows, axes) and every ``owner`` (rows,).

    Farthest-point traversal from a seeded start; owners lie `OWNERS_APART` from one another. Source: Gonzalez 1985.
    """
    if len(place) <= count:
        return np.arange(len(place))
    chosen = np.empty(count, dtype=np.int64)
    chosen[0] = np.random.default_rng(seed).integers(len(place))
    gap = np.full(len(place), np.inf)
    for i in range(count):
        at = chosen[i]
        square = ((place - place[at]) ** 2).sum(axis=1) + np.where(owner == owner[at], 0.0, OWNERS_APART**2)
        np.minimum(gap, square, out=gap)
        if i + 1 < count:
            chosen[i + 1] = int(gap.argmax())
    return np.unique(chosen)


OWNERS_APART = 1.0
"""Distance that another device adds between two rows when points are chosen."""
