"""Figures of a network's prediction: where the time goes, and how throughput depends on the batch."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from surrogate.dataset.files import write_text
from surrogate.network.result import BOUNDS, NetworkTime, best_of
from surrogate.report.style import PAPER, blank, legend, looks, plain_tick, svg, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_TYPES = 12
SHOWN_LAYERS = 25


def write_figures(folder: str | Path, time: NetworkTime, sweep: Mapping[int, NetworkTime]) -> list[Path]:
    """``types.svg``, ``layers.svg`` and, for a sweep, ``batches.svg``; the files written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"types": types_figure(time), "layers": layers_figure(time)}
    if len(sweep) > 1:
        drawn["batches"] = batches_figure(sweep)
    files = {folder / f"{name}.svg": text for name, text in drawn.items() if text is not None}
    for path, text in files.items():
        write_text(path, text)
    return list(files)


def types_figure(time: NetworkTime) -> str | None:
    """A bar per operator: its time in ms, longest first; None where there are no layers."""
    rows = time.by_type()[:SHOWN_TYPES]
    bars = [(f"{row['operator']} ×{row['count']}", row["time_us"] / 1e3) for row in rows]
    if not bars:
        return None
    style = looks(["time"])["time"]
    with theme():
        figure, (axis,) = blank(0.8 + 0.2 * len(bars))
        axis.barh(range(len(bars)), [value for _, value in bars], 0.8, color=style.colour, edgecolor=PAPER)
        _label_bars(axis, [name for name, _ in bars], "predicted time, ms")
        return svg(figure)


def layers_figure(time: NetworkTime) -> str | None:
    """The longest layers in order of the network, coloured by what bounds them, with their intervals."""
    longest = sorted(time.layers, key=lambda layer: -layer.time_us)[:SHOWN_LAYERS]
    shown = [layer for layer in time.layers if layer in longest]
    if not shown:
        return None
    look = looks(list(BOUNDS))
    with theme():
        figure, (axis,) = blank(1.0 + 0.16 * len(shown))
        handles = {}
        for name in BOUNDS:
            places = [i for i, layer in enumerate(shown) if layer.bound == name]
            if not places:
                continue
            style = look[name]
            widths = [shown[i].time_us / 1e3 for i in places]
            handles[name] = axis.barh(places, widths, 0.8, color=style.colour, hatch=style.hatch, edgecolor=PAPER)
            ends = [
                [(shown[i].time_us - shown[i].lower_us) / 1e3 for i in places],
                [(shown[i].upper_us - shown[i].time_us) / 1e3 for i in places],
            ]
            axis.errorbar(widths, places, xerr=ends, fmt="none", ecolor="#1c1d1f", elinewidth=0.8, capsize=1.4)
        _label_bars(axis, [layer.name for layer in shown], "predicted time, ms (90 % interval)")
        legend(figure, list(handles.values()), list(handles))
        return svg(figure)


def batches_figure(times: Mapping[int, NetworkTime]) -> str | None:
    """Throughput over batch; the best batch is marked."""
    batches = sorted(times)
    rates = [times[batch].samples_per_s or 0.0 for batch in batches]
    best = best_of(times)
    if best is None:
        return None
    (name, style) = next(iter(looks(["throughput"]).items()))
    with theme():
        figure, (axis,) = blank(2.4)
        axis.plot(batches, rates, style.marker + "-", color=style.colour, fillstyle="none", label=name)
        axis.plot([best], [times[best].samples_per_s or 0.0], "o", color=style.colour, markersize=7)
        axis.set_xscale("log", base=2)
        axis.set_xticks(batches, [str(batch) for batch in batches])
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(plain_tick)
        axis.set(xlabel="batch, log scale", ylabel="samples per second")
        return svg(figure)


def _label_bars(axis: "Axes", names: list[str], xlabel: str) -> None:
    """A name for every bar, the first on top, and the axis of times."""
    axis.set_yticks(range(len(names)), [_short(name) for name in names])
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    axis.xaxis.set_major_formatter(plain_tick)
    axis.set_xlabel(xlabel)


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"…{name[-29:]}"
