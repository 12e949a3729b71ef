"""Figures of a network's prediction: where the time goes, and how throughput depends on the batch."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from surrogate.dataset.files import write_text
from surrogate.network.result import NetworkTime, best_of
from surrogate.report.charts import dots

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
    """A dot per operator: its time in ms, longest first; None where there are no layers."""
    rows = [(f"{row['operator']} ×{row['count']}", "time", row["time_us"] / 1e3) for row in time.by_type()]
    return dots(pd.DataFrame(rows[:SHOWN_TYPES], columns=["type", "", "ms"]), "type", "", "ms", "predicted time, ms")


def layers_figure(time: NetworkTime) -> str | None:
    """The longest layers in order of the network, coloured by what bounds them, with their intervals."""
    frame = time.to_frame()
    longest = frame.loc[frame["time_us"].nlargest(SHOWN_LAYERS).index.sort_values()]
    arms = ("lower_us", "upper_us")
    return dots(longest, "name", "bound", "time_us", "predicted time, µs (90 % interval)", arms=arms)


def batches_figure(times: Mapping[int, NetworkTime]) -> str | None:
    """Throughput of each batch with its 90 % interval, the best one apart; None where nothing fits."""
    best = best_of(times)
    rows = [
        (
            batch,
            "best" if batch == best else "others",
            *(1e6 * time.gpus * batch / us for us in (time.total_us, time.upper_us, time.lower_us)),
        )
        for batch, time in sorted(times.items())
        if time.layers
    ]
    frame = pd.DataFrame(rows, columns=["batch", "kind", "rate", "low", "high"])
    label = "samples per second, by batch (90 % interval)"
    return None if best is None else dots(frame, "batch", "kind", "rate", label, arms=("low", "high"))
