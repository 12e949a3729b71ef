"""Where a row lies: scaled logarithms in which one unit means about the same change of time, and points that spread."""

from collections.abc import Callable

import numpy as np

from surrogate.dataset.rows import Rows

Column = Callable[[str], np.ndarray]

_AXES: dict[str, Callable[[Column], np.ndarray]] = {
    "batch": lambda c: c("log2_n"),
    "channels_in": lambda c: c("log2_channels_in"),
    "channels_out": lambda c: c("log2_channels_out"),
    "pixels": lambda c: c("log2_out_h") + c("log2_out_w"),
    "aspect": lambda c: 0.5 * (c("log2_out_h") - c("log2_out_w")),
    "filter_height": lambda c: 2.0 * c("log2_r"),
    "filter_width": lambda c: 2.0 * c("log2_s"),
    "stride": lambda c: c("stride_h") + c("stride_w"),
    "dilation": lambda c: c("dilation_h") + c("dilation_w"),
    "padding": lambda c: 0.25 * (c("pad_h") + c("pad_w")),
    "groups": lambda c: 0.5 * c("log2_groups"),
    "is_grouped": lambda c: np.minimum(c("log2_groups"), 2.0),
    "itemsize": lambda c: c("itemsize"),
    "layout": lambda c: 2.0 * c("is_nhwc"),
    "tensor_cores": lambda c: 4.0 * c("uses_tensor_cores"),
    "efficiency": lambda c: 3.0 * c("best_efficiency"),
    "last_wave": lambda c: 0.5 * c("last_wave_share_middle"),
    "tile_utilisation": lambda c: c("tile_utilisation_middle"),
    "waves": lambda c: 0.3 * c("log2_waves_middle"),
}
"""Axis → its coordinate. The scales were set by hand: an octave of a size is one unit, another filter or stride two."""


def places(rows: Rows) -> np.ndarray:
    """(rows, axes) float64."""

    def column(name: str) -> np.ndarray:
        return rows.column(name).astype(np.float64)

    return np.column_stack([axis(column) for axis in _AXES.values()])


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
