"""Draw two kinds of chart as SVG text in the style of reports: dots with intervals by category, and curves."""

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from surrogate.report.style import blank, legend, looks, number_axes, number_tick, svg, theme

LABEL_WIDTH = 56
"""Maximum letters of an axis label plus the category names to its left."""
NAME_WIDTH = 24
"""Maximum letters of a category name on one line."""
MARKERS = 12
"""Number of markers on a curve with many points."""


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
    """Draw one line per ``category``, with a marker per ``series`` at ``value``.

    ``arms`` names the columns of an interval's ends. Categories and series keep the order in which they first occur.
    Returns None if no value is finite.
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
    """One axis of `curves`: the ``column`` of its values, its label, its scale, its ends, and the format of ticks."""

    column: str
    label: str
    log: bool = False
    limits: tuple[float, float] | None = None
    tick: Callable[[float, float], str] = number_tick


def curves(frame: pd.DataFrame, x: Axis, y: Axis, series: str, panel: str = "") -> str | None:
    """Draw ``y`` over ``x`` with a curve per ``series`` and a panel per distinct value of ``panel``.

    Values that are not finite have no point. A curve with many points has markers on some of them. Returns None if
    there are no rows.
    """
    if frame.empty:
        return None
    panels, names = list(dict.fromkeys(frame[panel])) if panel else [""], list(dict.fromkeys(frame[series]))
    look = looks(names)
    with theme():
        figure, axes = blank(0.7 + 1.9 * len(panels) + 0.1 * len(names), (len(panels), 1))
        handles: dict[str, Any] = {}
        for axis, title in zip(axes, panels, strict=True):
            panel_rows = frame[frame[panel] == title] if panel else frame
            for index, name in enumerate(names):
                is_drawn = (panel_rows[series] == name) & np.isfinite(panel_rows[y.column].astype(float))
                rows = panel_rows[is_drawn]
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


def _wrapped(label: str, log: bool, name_width: int = 8) -> str:
    """Wrap an axis label into the width that names of ``name_width`` letters leave. No line begins with %."""
    return "\n".join(wrap((label + (", log scale" if log else "")).replace(" %", "\u00a0%"), LABEL_WIDTH - name_width))
