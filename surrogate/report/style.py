"""The style of figures: one theme, one look per series, and SVG with the same bytes for the same input."""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surrogate.evaluation.scorecard import FIRST_TEN, is_heuristic
from surrogate.features import printable
from surrogate.report.tables import KEPT

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, PAPER, RULE, BAND, BLUE = "#1c1d1f", "#fefefe", "#d4d6da", "#c6cad1", "#0072b2"
"""Colours that the page replaces by its own, which differ in dark mode."""
WIDTH_INCHES = 4.4
"""A narrow width: the letters stay legible on a phone."""
MIN_DECADE_RATIO = 300.0
"""If the ratio of an axis' ends is at least this, only powers of ten are labelled."""
COLUMN_WIDTH = 26
"""Maximum letters of a name in one of two columns of a legend."""

# Okabe and Ito's palette for all kinds of colour vision, without its yellow and black, and two more colours. The
# lengths have no common factor: a pair of colour and dashes repeats after 40 series, a marker after 13.
_COLOURS = (BLUE, "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7570b3", "#a6761d")
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (6, 1.5, 1, 1.5, 1, 1.5)))
_MARKERS = ("o", "s", "^", "D", "*", "<", "p", ">", "P", "h", "d", "X", "1")


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, marker and dashes of one series in every figure."""

    colour: str
    marker: str
    dashes: Any

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of ``Axes.plot`` for a line of the series."""
        return {"color": self.colour, "linestyle": self.dashes, "marker": self.marker, "fillstyle": "none"}


_REFERENCE_LOOKS = {
    "heuristic": Look(INK, "x", (0, (1, 1))),
    FIRST_TEN: Look(INK, "2", (0, (3, 1))),
    "always-best-single": Look("#8a8d93", "v", (0, (4, 1, 1, 1, 1, 1))),
    "oracle": Look("#8a8d93", "+", "-"),
}
STYLE = Path(__file__).with_name("figures.mplstyle")


def looks(names: list[str]) -> dict[str, Look]:
    """Return one look per series. References have fixed looks; the looks of the first 13 others differ."""
    kinds = {name: "heuristic" if is_heuristic(name) else name for name in names}
    learned = [name for name in names if kinds[name] not in _REFERENCE_LOOKS]
    parts = zip(learned, *map(cycle, (_COLOURS, _MARKERS, _DASHES)), strict=False)
    ranked = {name: Look(*values) for name, *values in parts}
    return {name: _REFERENCE_LOOKS.get(kinds[name]) or ranked[name] for name in names}


@contextmanager
def theme() -> Iterator[None]:
    """Use matplotlib's defaults and `figures.mplstyle` inside this context, instead of the user's own style."""
    import matplotlib.style

    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        # A name may hold letters that matplotlib's font lacks. The SVG keeps them as text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def blank(
    height_inches: float, panels: tuple[int, int] = (1, 1), sharex: bool = False, sharey: bool = False
) -> "tuple[Figure, list[Axes]]":
    """Return a figure of rows × columns ``panels``, without pyplot's global state, and its axes row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    return figure, list(figure.subplots(*panels, squeeze=False, sharex=sharex, sharey=sharey).ravel())


def legend(figure: "Figure", handles: "Sequence[Artist]", names: list[str]) -> None:
    """Add a legend below the figure: two columns, or one if a name is long. Too long names are cut."""
    columns = 2 if max(map(len, names), default=0) <= COLUMN_WIDTH else 1
    width = 2 * COLUMN_WIDTH if columns == 1 else COLUMN_WIDTH
    short = [name if len(name) <= width else f"{name[: width - 1]}…" for name in names]
    drawn = figure.legend(handles, [" "] * len(short), loc="outside lower center", ncols=columns)
    # matplotlib hides labels with an underscore at the beginning, so the names are set afterwards.
    for text, name in zip(drawn.get_texts(), short, strict=True):
        text.set_text(name)


def number_tick(value: float, _position: float = 0) -> str:
    """Return a tick's label without powers of ten: ``0.1``, ``1``, ``1,000``."""
    return f"{value:,.10g}"


def time_tick(time_us: float, _position: float = 0) -> str:
    """Return a time in its largest suitable unit: ``250`` → ``250 µs``."""
    for unit, size in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if time_us >= size:
            return f"{time_us / size:g} {unit}"
    return f"{time_us * 1e3:g} ns"


def number_axes(*axes: "Axis", tick: Callable[[float, float], str] = number_tick) -> None:
    """Label axes with ``tick``. A logarithmic axis has labels at 1, 2 and 5, or at 1 if it spans many decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in axes:
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            few = axis is axis.axes.yaxis or high < MIN_DECADE_RATIO * low
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(tick)


def svg(figure: "Figure") -> str:
    """Return ``figure`` as SVG text without dates and program names, so that the same input gives the same bytes."""
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=no_metadata)
    return "\n".join(line.rstrip() for line in printable(buffer.getvalue(), KEPT).rstrip().split("\n")) + "\n"
