"""How the slowdowns of the picks spread: the share of problems slower than x, per model."""

import numpy as np
import pandas as pd

from surrogate.report.style import blank, legend, looks, plain_tick, svg, theme

FLOOR = 1e-3
"""Smallest slowdown − 1 on the axis: repeats of one measurement do not agree better."""
_STEPS = 160


def slowdown_figure(frame: pd.DataFrame, models: list[str]) -> str | None:
    """Exceedance curves on log axes from ``frame`` (columns model, slowdown); lower is better."""
    models = [model for model in models if (frame["model"] == model).any()]
    if not models:
        return None
    finite = frame["slowdown"][np.isfinite(frame["slowdown"])]
    top = max(10 * FLOOR, float(finite.max() - 1 if len(finite) else 0) * 1.05)
    over = np.geomspace(FLOOR, top, _STEPS)
    look = looks(models)
    with theme():
        figure, (axis,) = blank(3.5)
        handles, sizes = [], []
        for index, model in enumerate(models):
            slowdown = frame.loc[frame["model"] == model, "slowdown"].to_numpy(dtype=float)
            sizes.append(len(slowdown))
            style = look[model]
            handles += axis.plot(
                100 * over, 100 * exceedance(slowdown, over), color=style.colour, linestyle=style.dashes,
                marker=style.marker, markevery=(3 * index, 26), fillstyle="none",
            )  # fmt: skip
        axis.set(
            xscale="log", yscale="log", xlim=(100 * FLOOR, 100 * top), ylim=(min(50 / max(sizes), 10), 100)
        )
        axis.set_xlabel("x: slowdown of the pick over the best, %")
        axis.set_ylabel("problems slower than x, %")
        axis.xaxis.set_major_formatter(plain_tick)
        axis.yaxis.set_major_formatter(plain_tick)
        legend(figure, handles, models)
        return svg(figure)


def exceedance(slowdown: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Share of ``slowdown`` above 1 + each of ``over``; NaN for none, which ends a curve on a log axis."""
    ordered = np.sort(slowdown)
    share = 1 - np.searchsorted(ordered, 1 + over, side="right") / len(ordered)
    return np.where(share > 0, share, np.nan)
