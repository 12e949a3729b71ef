"""Figures of a network's prediction: where the time goes, and how throughput depends on the batch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from surrogate.dataset.files import write_text
from surrogate.network.result import BOUNDS, NetworkTime, best_of
from surrogate.report.style import PAPER, blank, legend, looks, plain_tick, svg, theme

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
    bars = [_Bar(f"{row['operator']} ×{row['count']}", row["time_us"] / 1e3) for row in rows]
    return _bars(bars, ["time"], "predicted time, ms")


def layers_figure(time: NetworkTime) -> str | None:
    """The longest layers in order of the network, coloured by what bounds them, with their intervals."""
    longest = sorted(time.layers, key=lambda layer: -layer.time_us)[:SHOWN_LAYERS]
    shown = [layer for layer in time.layers if layer in longest]
    bars = [_Bar(e.name, e.time_us / 1e3, (e.lower_us / 1e3, e.upper_us / 1e3), e.bound) for e in shown]
    return _bars(bars, BOUNDS, "predicted time, ms (90 % interval)")


def batches_figure(times: Mapping[int, NetworkTime]) -> str | None:
    """Throughput over batch with its 90 % interval; the best batch is marked."""
    known = [(batch, times[batch]) for batch in sorted(times) if times[batch].layers]
    batches = [batch for batch, _ in known]
    rates = [time.samples_per_s or 0.0 for _, time in known]
    best = best_of(times)
    if best is None:
        return None
    (name, style) = next(iter(looks(["throughput"]).items()))
    with theme():
        figure, (axis,) = blank(2.4)
        lower = [1e6 * time.gpus * batch / time.upper_us for batch, time in known]
        upper = [1e6 * time.gpus * batch / time.lower_us for batch, time in known]
        axis.fill_between(batches, lower, upper, color=style.colour, alpha=0.15, linewidth=0)
        axis.plot(batches, rates, style.marker + "-", color=style.colour, fillstyle="none", label=name)
        axis.plot([best], [times[best].samples_per_s or 0.0], "o", color=style.colour, markersize=7)
        axis.set_xscale("log", base=2)
        axis.set_xticks(batches, [str(batch) for batch in batches])
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(plain_tick)
        axis.set(xlabel="batch, log scale", ylabel="samples per second, 90 % interval")
        return svg(figure)


class _Bar(NamedTuple):
    """A time in ms, its interval, and the kind that it is coloured by."""

    name: str
    time: float
    ends: tuple[float, float] | None = None
    kind: str = "time"


def _bars(bars: Sequence[_Bar], kinds: Sequence[str], label: str) -> str | None:
    """Horizontal bars, the first on top, with a legend where there are several kinds; None for none."""
    if not bars:
        return None
    look = looks(list(kinds))
    with theme():
        figure, (axis,) = blank(0.9 + 0.18 * len(bars))
        handles = {}
        for kind in kinds:
            places = [i for i, bar in enumerate(bars) if bar.kind == kind]
            own = {"color": look[kind].colour, "hatch": look[kind].hatch if len(kinds) > 1 else None}
            if places:
                handles[kind] = axis.barh(places, [bars[i].time for i in places], 0.8, edgecolor=PAPER, **own)
        for place, (_, time, ends, _) in enumerate(bars):
            if ends:
                reach = [[time - ends[0]], [ends[1] - time]]
                axis.errorbar([time], [place], xerr=reach, fmt="none", ecolor="#1c1d1f", elinewidth=0.8, capsize=1.4)
        axis.set_yticks(range(len(bars)), [_short(bar.name) for bar in bars])
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.xaxis.set_major_formatter(plain_tick)
        axis.set_xlabel(label)
        if len(kinds) > 1:
            legend(figure, list(handles.values()), list(handles))
        return svg(figure)


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"…{name[-29:]}"
