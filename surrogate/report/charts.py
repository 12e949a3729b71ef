"""Two kinds of chart: dots with intervals by category, and curves; both as SVG text in the style of reports."""

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from surrogate.report.style import blank, legend, looks, number_axes, plain_tick, svg, theme

LABEL_WIDTH = 56
"""Letters of an axis label and of the category names beside it that fit the figure."""
NAME_WIDTH = 24
"""Letters of a category name on one line."""
MARKERS = 12
"""Markers of a curve with many points."""


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


@dataclass(frozen=True)
class Axis:
    """One axis of `curves`: the ``column`` of its values, its label, its scale, its ends, and how its ticks read."""

    column: str
    label: str
    log: bool = False
    limits: tuple[float, float] | None = None
    tick: Callable[[float, float], str] = plain_tick


def curves(frame: pd.DataFrame, x: Axis, y: Axis, series: str, panel: str = "") -> str | None:
    """``y`` over ``x``, a curve per ``series``, a panel per distinct value of ``panel``, one below another.

    None without rows. Values that are not finite have no point. Of a curve with many points, some have a marker.
    """
    if frame.empty:
        return None
    panels, names = list(dict.fromkeys(frame[panel])) if panel else [""], list(dict.fromkeys(frame[series]))
    look = looks(names)
    with theme():
        figure, axes = blank(0.7 + 1.9 * len(panels) + 0.1 * len(names), (len(panels), 1))
        handles: dict[str, Any] = {}
        for axis, title in zip(axes, panels, strict=True):
            shown = frame[frame[panel] == title] if panel else frame
            for index, name in enumerate(names):
                rows = shown[(shown[series] == name) & np.isfinite(shown[y.column].astype(float))]
                points = (rows[each.column].to_numpy(dtype=float) for each in (x, y))
                step = max(1, len(rows) // MARKERS)
                handles[name] = axis.plot(*points, markevery=(3 * index % step, step), **look[name].line)[0]
            axis.set_title(str(title))
            axis.set_xscale("log" if x.log else "linear")
            axis.set_yscale("log" if y.log else "linear")
            if x.limits and y.limits:
                axis.set(xlim=x.limits, ylim=y.limits)
            number_axes(axis.xaxis, tick=x.tick)
            number_axes(axis.yaxis, tick=y.tick)
            axis.set_ylabel(y.label + (",\nlog scale" if y.log else ""))
        axes[-1].set_xlabel(_wrapped(x.label, x.log))
        legend(figure, list(handles.values()), [str(name) for name in handles])
        return svg(figure)


def _wrapped(label: str, log: bool, beside: int = 8) -> str:
    """An axis label on as many lines as names of ``beside`` letters leave the width for; none begins with %."""
    return "\n".join(wrap((label + (", log scale" if log else "")).replace(" %", "\u00a0%"), LABEL_WIDTH - beside))
