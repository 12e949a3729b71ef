"""Predicted against measured time, one panel per algorithm family."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from surrogate.report.cells import percent, share, time
from surrogate.report.style import BAND, BLUE, INK, blank, svg, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 12
MAX_POINTS = 400
"""Points drawn per panel; the figures printed in a panel use all of its rows."""
OTHERS = "others"


def predicted_figure(frame: pd.DataFrame) -> str | None:
    """Log-log panels of one model's rows (columns family, time_us, predicted_us) with the ±10 % band."""
    if frame.empty:
        return None
    families = panels(frame["family"])
    low, high = frame["time_us"].min() / 1.5, frame["time_us"].max() * 1.5
    with theme():
        rows = -(-len(families) // 2)
        figure, axes = blank(0.7 + 1.75 * rows, (rows, 2), sharex=True, sharey=True)
        for axis, family in zip(axes, families, strict=False):
            named = ~frame["family"].isin(families) if family == OTHERS else frame["family"] == family
            _panel(axis, family, frame[named | (frame["family"] == family)], low, high)
        for axis in axes[len(families) :]:
            axis.set_visible(False)
            axes[len(families) - 2].xaxis.set_tick_params(labelbottom=True)
        figure.supxlabel("measured time", fontsize=8.5, color=INK)
        figure.supylabel("predicted time", fontsize=8.5, color=INK)
        return svg(figure)


def panels(family: pd.Series) -> list[str]:
    """Names of the panels: the largest families, then one for the others where there are too many."""
    counts = family.value_counts()
    names = sorted(counts.index, key=lambda name: (-counts[name], name))
    if len(names) <= MAX_PANELS:
        return names
    return [*[name for name in names if name != OTHERS][: MAX_PANELS - 1], OTHERS]


def _panel(axis: "Axes", family: str, rows: pd.DataFrame, low: float, high: float) -> None:
    from matplotlib.ticker import LogLocator

    line = np.array([low, high])
    error = (rows["predicted_us"] / rows["time_us"] - 1).abs().to_numpy()
    axis.fill_between(line, 0.9 * line, 1.1 * line, color=BAND, linewidth=0, zorder=1)
    axis.plot(line, line, color=INK, linewidth=0.4, zorder=2)
    drawn = thinned(rows)
    # A prediction far outside is drawn on the frame rather than left out.
    on_frame = drawn["predicted_us"].clip(low, high)
    axis.plot(
        drawn["time_us"],
        on_frame,
        ".",
        color=BLUE,
        alpha=0.55,
        markersize=2.6,
        markeredgewidth=0,
        zorder=3,
    )
    axis.set_title(family if len(family) <= 26 else f"{family[:25]}…")
    middle, inside = float(np.median(error)), float(np.mean(error <= 0.1))
    words = f"{len(rows):,} rows\nmedian {percent(middle)} %\n{share(inside)} % in band"
    axis.text(0.03, 0.97, words, transform=axis.transAxes, va="top", fontsize=7, color=INK)
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(time)
        side.set_minor_formatter(lambda _value, _position: "")
        if high < 40 * low:  # less than two powers of ten: label more than those
            side.set_major_locator(LogLocator(subs=(1, 2, 5)))
    if high > 1e3 * low:  # "10 ms" and "100 ms" side by side would touch
        axis.xaxis.set_major_locator(LogLocator(base=100))


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """At most `MAX_POINTS` of ``rows``, evenly over the measured times; always the same ones."""
    ordered = rows.sort_values(["time_us", "predicted_us"], kind="stable")
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), MAX_POINTS)).round().astype(int)
    return ordered.iloc[places]
