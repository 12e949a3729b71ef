"""Error of the predicted time by how long the row takes."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from surrogate.report.cells import time
from surrogate.report.style import Look, blank, legend, looks, plain_tick, svg, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_ROWS = 5
"""A bucket with fewer rows draws no point."""


def bucket_figure(frame: pd.DataFrame, models: list[str]) -> str | None:
    """Median and p90 of the absolute relative error per decade of measured time.

    ``frame`` has the columns of `read_predictions`.
    """
    models = [model for model in models if (frame["model"] == model).any()]
    if not models:
        return None
    errors, look = bucket_errors(frame), looks(models)
    filled = errors.dropna(how="all").index.get_level_values(1)  # decades of too few rows would be blank
    filled = filled if len(filled) else errors.index.get_level_values(1)
    decades = range(int(filled.min()), int(filled.max()) + 1)
    with theme():
        figure, (upper, lower) = blank(4.3, (2, 1), sharex=True)
        handles = []
        for model in models:
            rows = errors.loc[model].reindex(decades)
            handles.append(_curve(upper, rows["median"], look[model]))
            _curve(lower, rows["p90"], look[model])
        upper.set_ylabel("median error, %")
        lower.set_ylabel("90th percentile, %")
        _scale(upper)
        _scale(lower)
        lower.set_xticks(list(decades), [f"{time(10.0**d)}–\n{time(10.0 ** (d + 1))}" for d in decades])
        lower.set_xlim(decades[0] - 0.4, decades[-1] + 0.4)
        lower.set_xlabel("measured time")
        legend(figure, handles, models)
        return svg(figure)


def bucket_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Per model and decade (floor of log10 of time_us): median and p90 in percent, NaN for few rows."""
    decade = np.floor(np.log10(frame["time_us"].to_numpy(dtype=float))).astype(int)
    error = 100 * (frame["predicted_us"] / frame["time_us"] - 1).abs()
    groups = error.groupby([frame["model"], decade])
    errors = pd.DataFrame({"median": groups.median(), "p90": groups.quantile(0.9)})
    return errors.where(groups.size() >= LEAST_ROWS)


def _curve(axis: "Axes", heights: pd.Series, look: Look) -> object:
    (drawn,) = axis.plot(
        heights.index,
        heights.to_numpy(),
        color=look.colour,
        linestyle=look.dashes,
        marker=look.marker,
        fillstyle="none",
    )
    return drawn


def _scale(axis: "Axes") -> None:
    """From zero, or logarithmic where one model's error would flatten the others'."""
    heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axis.lines])
    positive = heights[heights > 0]
    if len(positive) and positive.max() > 12 * positive.min():
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(plain_tick)
    else:
        axis.set_ylim(0, 1.08 * positive.max() if len(positive) else 1)
