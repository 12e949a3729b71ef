"""Two kinds of chart: dots with intervals by category, and curves; both as SVG text in the style of reports."""

from collections.abc import Callable
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from surrogate.report.style import blank, legend, looks, number_axes, plain_tick, svg, theme

LABEL_WIDTH = 56
"""Letters of an axis label and of the category names beside it that fit the figure."""
NAME_WIDTH = 24
"""Letters of a category name on one line."""


def dots(
    frame: pd.DataFrame,
    category: str,
    series: str,
    value: str,
    xlabel: str,
    *,
    arms: tuple[str, str] | None = None,
    log: bool = False,
) -> str | None:
    """One line per ``category``, on it a marker per ``series`` at ``value``; arms between two other columns if given.

    Categories and series keep the order in which they first occur. None where nothing is finite.
    """
    frame = frame[np.isfinite(frame[value].astype(float))]
    if frame.empty:
        return None
    categories, names = list(dict.fromkeys(frame[category])), list(dict.fromkeys(frame[series]))
    look = looks(names)
    with theme():
        figure, (axis,) = blank(1.0 + len(categories) * (0.12 + 0.12 * len(names)) + 0.1 * len(names))
        handles = []
        for index, name in enumerate(names):
            rows = frame[frame[series] == name]
            heights = [categories.index(c) + (index - (len(names) - 1) / 2) * 0.7 / len(names) for c in rows[category]]
            x = rows[value].to_numpy(dtype=float)
            if arms:
                ends = np.abs(np.nan_to_num(rows[list(arms)].to_numpy(dtype=float).T - x))
                axis.errorbar(x, heights, xerr=ends, fmt="none", ecolor=look[name].colour, elinewidth=1, capsize=1.6)
            handles += axis.plot(x, heights, look[name].marker, color=look[name].colour, fillstyle="none")
        labels = ["\n".join(wrap(str(c), NAME_WIDTH)) for c in categories]
        axis.set_yticks(range(len(categories)), labels)
        axis.set_ylim(len(categories) - 0.5, -0.5)
        axis.set_xscale("log" if log else "linear")
        number_axes(axis.xaxis)
        axis.set_xlabel(_wrapped(xlabel, log, max(len(line) for label in labels for line in label.split("\n"))))
        if len(names) > 1:
            legend(figure, handles, [str(name) for name in names])
        return svg(figure)


def curves(
    frame: pd.DataFrame,
    x: str,
    series: str,
    value: str,
    panel: str,
    xlabel: str,
    ylabel: str = "median error, %",
    *,
    log_x: bool = False,
    log_y: bool = False,
    x_tick: Callable[[float, float], str] = plain_tick,
) -> str | None:
    """``value`` over ``x``, a curve per ``series``, a panel per distinct value of ``panel``, one below another."""
    frame = frame[np.isfinite(frame[value].astype(float))]
    if frame.empty:
        return None
    panels, names = list(dict.fromkeys(frame[panel])), list(dict.fromkeys(frame[series]))
    look = looks(names)
    with theme():
        figure, axes = blank(0.7 + 1.9 * len(panels) + 0.1 * len(names), (len(panels), 1))
        handles: dict[str, Any] = {}
        for axis, title in zip(axes, panels, strict=True):
            for name in names:
                rows = frame[(frame[series] == name) & (frame[panel] == title)]
                times, heights = (rows[column].to_numpy(dtype=float) for column in (x, value))
                handles[name] = axis.plot(times, heights, **look[name].line)[0]
            axis.set_title(str(title))
            axis.set_xscale("log" if log_x else "linear")
            number_axes(axis.xaxis, tick=x_tick)
            axis.set_yscale("log" if log_y else "linear")
            number_axes(axis.yaxis)
            axis.set_ylabel(ylabel + (",\nlog scale" if log_y else ""))
        axes[-1].set_xlabel(_wrapped(xlabel, log_x))
        legend(figure, list(handles.values()), [str(name) for name in handles])
        return svg(figure)


def _wrapped(label: str, log: bool, beside: int = 8) -> str:
    """An axis label on as many lines as names of ``beside`` letters leave the width for; none begins with %."""
    return "\n".join(wrap((label + (", log scale" if log else "")).replace(" %", "\u00a0%"), LABEL_WIDTH - beside))
