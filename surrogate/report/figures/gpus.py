"""Macro slowdown per GPU and model, with intervals."""

import numpy as np

from surrogate.report.results import Results
from surrogate.report.rows import REFERENCES, choice_rows, number, values
from surrogate.report.style import INK, PAPER, blank, legend, looks, plain_tick, svg, theme

MAX_GPUS = 16
FLOOR = 1e-3


def gpu_figure(results: Results, models: list[str]) -> str | None:
    """A group of horizontal bars per GPU: slowdown − 1 in percent; log where the models differ twentyfold."""
    excess = {gpu: _excess(results, gpu) for gpu in values(results["choice_rows"], "gpu")[:MAX_GPUS]}
    excess = {gpu: rows for gpu, rows in excess.items() if any(model in rows for model in models)}
    models = [model for model in models if any(model in rows for rows in excess.values())]
    if not models:
        return None
    middles = [max(rows[model][1], FLOOR) for rows in excess.values() for model in models if model in rows]
    ends = [rows[model][2] for rows in excess.values() for model in models if model in rows]
    logarithmic = max(middles) > 20 * min(middles)
    bar, look = 0.8 / len(models), looks(models)
    with theme():
        figure, (axis,) = blank(0.9 + len(excess) * (0.12 + 0.13 * len(models)) + 0.11 * len(models))
        handles = []
        for index, model in enumerate(models):
            places = [place for place, rows in enumerate(excess.values()) if model in rows]
            spans = 100 * np.array([excess[gpu][model] for gpu in np.array(list(excess))[places]])
            low, middle, high = np.maximum(spans.T, 100 * FLOOR if logarithmic else -np.inf)
            heights = np.array(places) + (index - (len(models) - 1) / 2) * bar
            style = look[model]
            handles.append(
                axis.barh(heights, middle, 0.86 * bar, color=style.colour, hatch=style.hatch, edgecolor=PAPER)
            )
            arms = np.maximum([middle - low, high - middle], 0)
            axis.errorbar(middle, heights, xerr=arms, fmt="none", ecolor=INK, elinewidth=0.9, capsize=1.6)
        axis.set_yticks(range(len(excess)), [_short(gpu) for gpu in excess])
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        if logarithmic:
            axis.set(xscale="log", xlim=(100 * FLOOR, 130 * max(ends)))
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
