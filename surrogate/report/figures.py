"""Draw the figures of a comparison as SVG text, from evaluated rows or parquet columns."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from surrogate.evaluation.scorecard import ORACLE
from surrogate.features import InputError
from surrogate.report import style
from surrogate.report.charts import Axis, curves, dots
from surrogate.report.results import Results, choice_rows, drawn_models, interval, label, number, reported_model, values
from surrogate.report.tables import percent, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_GPUS = 16
MAX_PANELS = 12
MAX_POINTS = 400
"""Maximum points per panel. The printed figures of a panel use all of its rows."""
OTHERS = "others"
MIN_EXCESS = 1e-3
"""Minimum slowdown − 1 on a logarithmic axis: repeats of one measurement differ by as much."""
CURVE_POINTS = 160
"""Number of points of an exceedance curve."""
_PREDICTED = ("model", "seed", "algorithm", "status", "time_us", "predicted_us")
_CHOSEN = ("model", "slowdown", "infeasible", "stratum")


def draw(results: Results, directory: Path, family: str = "") -> tuple[dict[str, str], dict[str, str]]:
    """Return name → SVG text of each figure, and name → reason of each figure that cannot be drawn.

    ``family`` selects rows of the parquet files in ``directory`` if they hold several families. Raises `InputError` if
    one of the files is damaged.
    """
    models = drawn_models(results)
    attempts: dict[str, Callable[[], str | None]] = {
        "slowdowns": lambda: slowdown_figure(read_choices(directory, results, models, family), models),
        "gpus": lambda: gpu_figure(results, models),
        "predicted": lambda: predicted_figure(read_predictions(directory, [reported_model(results) or ""], family)),
    }
    figures: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name, attempt in attempts.items():
        try:
            if drawn := attempt():
                figures[name] = drawn
            else:
                absent[name] = "too few evaluated rows to draw"
        except FileNotFoundError as missing:
            absent[name] = f"{missing} is missing; seer compare writes it"
    return figures, absent


def read_predictions(directory: Path, models: list[str], family: str = "") -> pd.DataFrame:
    """Read the positive measured and predicted times of ``models``: columns model, algorithm, time_us, predicted_us.

    Only the smallest seed is read, so that a row counts once per model. Raises `FileNotFoundError` if
    ``predictions.parquet`` is missing.
    """
    frame = _read(directory / "predictions.parquet", _PREDICTED, models, family)
    seed = frame["seed"]
    frame = frame.assign(algorithm=frame["algorithm"].fillna("unnamed").astype(str))
    measured, predicted = (frame[name].to_numpy(dtype=float, na_value=np.nan) for name in ("time_us", "predicted_us"))
    usable = (frame["status"] == "ok") & (seed.isna() | (seed == seed.min()))
    with np.errstate(invalid="ignore"):
        usable &= np.isfinite(measured) & (measured > 0) & np.isfinite(predicted) & (predicted > 0)
    predictions = frame.loc[usable, ["model", "algorithm", "time_us", "predicted_us"]]
    return predictions.astype({"time_us": float, "predicted_us": float})


def read_choices(directory: Path, results: Results, models: list[str], family: str = "") -> pd.DataFrame:
    """Read the slowdowns of ``models`` on the primary stratum: columns model, slowdown (≥ 1, or inf).

    Raises `FileNotFoundError` if ``choices.parquet`` is missing.
    """
    rows = choice_rows(results)
    stratum = label(rows[0], "stratum") if rows else "all"
    frame = _read(directory / "choices.parquet", _CHOSEN, models, family)
    if stratum == "ungrouped":
        frame = frame[frame["stratum"] != "grouped"]
    slowdown = frame["slowdown"].to_numpy(dtype=float, na_value=np.nan)
    # An infeasible pick without a time has an infinite slowdown.
    slowdown = np.where(np.isnan(slowdown) & (frame["infeasible"] == True).to_numpy(), np.inf, slowdown)  # noqa: E712
    return frame.assign(slowdown=slowdown).loc[~np.isnan(slowdown), ["model", "slowdown"]]


def _read(path: Path, columns: tuple[str, ...], models: list[str], family: str) -> pd.DataFrame:
    """Read the rows of ``models`` and ``family``. Raises `InputError` for a damaged file or a missing column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise FileNotFoundError(path.name)
    try:
        names = pq.read_schema(path).names
        missing = [name for name in columns if name not in names]
        if missing:
            raise InputError(f"{path} lacks {', '.join(missing)}; write it again with seer compare")
        filters = [("model", "in", models)] if models else []
        filters += [("family", "==", family)] if family and "family" in names else []
        return pd.read_parquet(path, columns=list(columns), filters=filters or None)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is not readable as parquet ({reason:.80}); run seer compare again") from None


def slowdown_figure(frame: pd.DataFrame, models: list[str]) -> str | None:
    """Draw the share of problems with a slowdown above x over x, on log axes. ``frame`` has model and slowdown."""
    models = [model for model in models if (frame["model"] == model).any()]
    if not models:
        return None
    finite = frame["slowdown"][np.isfinite(frame["slowdown"])]
    top = max(10 * MIN_EXCESS, float(finite.max() - 1 if len(finite) else 0) * 1.05)
    over = np.geomspace(MIN_EXCESS, top, CURVE_POINTS)
    shares = {name: exceedance(frame.loc[frame["model"] == name, "slowdown"].to_numpy(float), over) for name in models}
    table = pd.concat(pd.DataFrame({"model": name, "over": 100 * over, "share": 100 * shares[name]}) for name in models)
    lowest = min(50 / max(frame["model"].value_counts()[models]), 10)
    x = Axis("over", "x: slowdown of the pick over the best, %", log=True, limits=(100 * MIN_EXCESS, 100 * top))
    return curves(table, x, Axis("share", "problems slower than x, %", log=True, limits=(lowest, 100)), "model")


def exceedance(slowdown: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Return the share of ``slowdown`` above 1 + each of ``over``. A share of 0 is NaN, for a log axis."""
    ordered = np.sort(slowdown)
    above = 1 - np.searchsorted(ordered, 1 + over, side="right") / len(ordered)
    return np.where(above > 0, above, np.nan)


def gpu_figure(results: Results, models: list[str]) -> str | None:
    """Draw slowdown − 1 in percent with intervals, a line per GPU. The axis is log if models differ twentyfold."""
    excess = {gpu: _excess(results, gpu) for gpu in values(results["choice_rows"], "gpu")[:MAX_GPUS]}
    rows = [(gpu, model, *spans[model]) for model in models for gpu, spans in excess.items() if model in spans]
    frame = pd.DataFrame(rows, columns=["gpu", "model", "low", "middle", "high"])
    middles = frame["middle"].clip(lower=MIN_EXCESS)
    is_log = bool(middles.max() > 20 * middles.min())
    minimum = MIN_EXCESS if is_log else None
    ends = {name: 100 * frame[name].clip(lower=minimum) for name in ("low", "middle", "high")}
    label = "slowdown over the best algorithm, %"
    return dots(frame.assign(**ends), "gpu", "model", "middle", label, arms=("low", "high"), log=is_log)


def _excess(results: Results, gpu: str) -> dict[str, tuple[float, float, float]]:
    """Return model → (low, middle, high) of slowdown − 1 on a GPU. The three are equal if there is no interval."""
    spans = {}
    for row in choice_rows(results, gpu=gpu):
        middle = number(row, "slowdown_macro")
        if middle is not None and row["model"] != ORACLE:
            low, high = interval({"ci": [row.get("ci_low"), row.get("ci_high")]}, "ci") or (middle, middle)
            spans[row["model"]] = (low - 1, middle - 1, high - 1)
    return spans


def predicted_figure(frame: pd.DataFrame) -> str | None:
    """Draw log-log panels of one model's rows (columns algorithm, time_us, predicted_us) with the ±10 % band."""
    if frame.empty:
        return None
    names = panels(frame["algorithm"])
    low, high = frame["time_us"].min() / 1.5, frame["time_us"].max() * 1.5
    with style.theme():
        rows = -(-len(names) // 2)
        figure, axes = style.blank(0.7 + 1.75 * rows, (rows, 2), sharex=True, sharey=True)
        for axis, name in zip(axes, names, strict=False):
            inside = frame["algorithm"] == name
            rows_of_panel = inside | ~frame["algorithm"].isin(names) if name == OTHERS else inside
            _panel(axis, name, frame[rows_of_panel], low=low, high=high)
        for axis in axes[len(names) :]:
            axis.set_visible(False)
            axes[len(names) - 2].xaxis.set_tick_params(labelbottom=True)
        figure.supxlabel("measured time", fontsize=8.5, color=style.INK)
        figure.supylabel("predicted time", fontsize=8.5, color=style.INK)
        return style.svg(figure)


def panels(algorithm: pd.Series) -> list[str]:
    """Return the names of the panels: the commonest algorithms, then one for the others if there are too many."""
    counts = algorithm.value_counts()
    names = sorted(counts.index, key=lambda name: (-counts[name], name))
    if len(names) <= MAX_PANELS:
        return names
    return [*[name for name in names if name != OTHERS][: MAX_PANELS - 1], OTHERS]


def _panel(axis: "Axes", name: str, rows: pd.DataFrame, low: float, high: float) -> None:
    from matplotlib.ticker import LogLocator

    line = np.array([low, high])
    error = (rows["predicted_us"] / rows["time_us"] - 1).abs().to_numpy()
    axis.fill_between(line, 0.9 * line, 1.1 * line, color=style.BAND, linewidth=0, zorder=1)
    axis.plot(line, line, color=style.INK, linewidth=0.4, zorder=2)
    drawn = thinned(rows)
    # A prediction outside the axes is drawn on the frame.
    heights = drawn["predicted_us"].clip(low, high)
    points = {"color": style.BLUE, "alpha": 0.55, "markersize": 2.6, "markeredgewidth": 0, "zorder": 3}
    axis.plot(drawn["time_us"], heights, ".", **points)
    axis.set_title(name if len(name) <= 26 else f"{name[:25]}…")
    middle, inside = float(np.median(error)), float(np.mean(error <= 0.1))
    words = f"{len(rows):,} rows\nmedian {percent(middle)} %\n{share(inside)} % in band"
    axis.text(0.03, 0.97, words, transform=axis.transAxes, va="top", fontsize=7, color=style.INK)
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(style.time_tick)
        side.set_minor_formatter(lambda _value, _position: "")
        if high < 40 * low:  # less than two powers of ten need more labels
            side.set_major_locator(LogLocator(subs=(1, 2, 5)))
    if high > 1e3 * low:  # the labels "10 ms" and "100 ms" would touch
        axis.xaxis.set_major_locator(LogLocator(base=100))


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Return at most `MAX_POINTS` of ``rows``, evenly spread over the measured times; deterministic."""
    ordered = rows.sort_values(["time_us", "predicted_us"], kind="stable")
    indices = np.linspace(0, len(ordered) - 1, min(len(ordered), MAX_POINTS)).round().astype(int)
    return ordered.iloc[indices]
