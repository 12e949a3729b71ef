"""Macro slowdown per GPU and model, with intervals."""

import numpy as np

from surrogate.report.results import Results
from surrogate.report.rows import REFERENCES, choice_rows, number, values
from surrogate.report.style import PAPER, RULE, blank, legend, looks, plain_tick, svg, theme

MAX_GPUS = 16
FLOOR = 1e-3


def gpu_figure(results: Results, models: list[str]) -> str | None:
    """Dots with intervals, a group per GPU: slowdown − 1 in percent; log where the models differ twentyfold."""
    excess = {gpu: _excess(results, gpu) for gpu in values(results["choice_rows"], "gpu")[:MAX_GPUS]}
    excess = {gpu: rows for gpu, rows in excess.items() if any(model in rows for model in models)}
    models = [model for model in models if any(model in rows for rows in excess.values())]
    if not models:
        return None
    middles = [max(rows[model][1], FLOOR) for rows in excess.values() for model in models if model in rows]
    ends = [rows[model][2] for rows in excess.values() for model in models if model in rows]
    logarithmic = max(middles) > 20 * min(middles)
    step, look = 0.7 / len(models), looks(models)
    with theme():
        figure, (axis,) = blank(0.9 + len(excess) * max(0.34, 0.16 + 0.09 * len(models)) + 0.11 * len(models))
        handles = []
        for index, model in enumerate(models):
            places = [place for place, rows in enumerate(excess.values()) if model in rows]
            spans = 100 * np.array([excess[gpu][model] for gpu in np.array(list(excess))[places]])
            low, middle, high = np.maximum(spans.T, 100 * FLOOR if logarithmic else -np.inf)
            heights = np.array(places) + (index - (len(models) - 1) / 2) * step
            style = look[model]
            arms = np.maximum([middle - low, high - middle], 0)
            axis.errorbar(
                middle, heights, xerr=arms, fmt="none", ecolor=style.colour, elinewidth=1, capsize=1.6
            )
            handles += axis.plot(
                middle, heights, style.marker, color=style.colour, markerfacecolor=PAPER, clip_on=False
            )
        for edge in range(1, len(excess)):
            axis.axhline(edge - 0.5, color=RULE, linewidth=0.6)
        axis.set_yticks(range(len(excess)), [_short(gpu) for gpu in excess])
        axis.set_ylim(len(excess) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(False, axis="y")
        if logarithmic:
            axis.set(xscale="log", xlim=(100 * FLOOR, 130 * max(ends)))
        else:
            axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter(plain_tick)
        axis.set_xlabel("slowdown over the best algorithm, %" + (", log scale" if logarithmic else ""))
        legend(figure, handles, models)
        return svg(figure)


def _short(gpu: str) -> str:
    """A GPU's name on two lines, so that the bars keep the width: maker's family, then model."""
    return "\n".join(part if len(part) <= 22 else f"{part[:21]}…" for part in gpu.split(" ", 1))


def _excess(results: Results, gpu: str) -> dict[str, tuple[float, float, float]]:
    """Model → low, middle and high of slowdown − 1 on one GPU; without an interval the three are one."""
    found = {}
    for row in choice_rows(results, gpu=gpu):
        middle = number(row, "slowdown_macro")
        if middle is not None and row["model"] != REFERENCES[0]:
            low, high = number(row, "ci_low"), number(row, "ci_high")
            ends = (middle, middle) if low is None or high is None else (low, high)
            found[row["model"]] = (ends[0] - 1, middle - 1, ends[1] - 1)
    return found
