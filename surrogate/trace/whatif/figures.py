"""Figures of what-ifs as SVG: predicted times as bars, and the critical path before and after by kind of task."""

from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError
from surrogate.report.style import BAND, BLUE, INK, PAPER, blank, legend, plain_tick, svg, theme
from surrogate.trace.whatif.evaluate import Answer, path_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME_WIDTH = 24
"""Letters of a what-if's name on one line."""
_FILLS = (
    (BLUE, ""),
    ("#d55e00", "////"),
    ("#009e73", "...."),
    ("#cc79a7", "xxxx"),
    ("#8a8d93", "----"),
    (BAND, ""),
)
"""Colour and hatch of each part of a critical path, told apart in grey, too."""


def write_figures(answers: Sequence[Answer], folder: str | Path) -> list[Path]:
    """``times.svg`` and ``critical_path.svg`` in ``folder``, which is made. Raises `InputError` where it cannot be."""
    home = Path(folder)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{home}: no folder can be made there ({error.strerror}); name another one"
        ) from None
    drawn = {"times.svg": times_svg(answers), "critical_path.svg": critical_path_svg(answers)}
    for name, text in drawn.items():
        write_text(home / name, text)
    return [home / name for name in drawn]


def times_svg(answers: Sequence[Answer]) -> str:
    """A bar per answer, ms per iteration, the baseline first; whiskers where there is an interval."""
    values = [answers[0].baseline_us if answers else 0.0, *(one.predicted_us for one in answers)]
    with theme():
        figure, axis = _lines(answers)
        axis.barh(range(len(values)), _ms(values), 0.7, color=[BAND, *[BLUE] * len(answers)])
        for place, one in enumerate(answers, start=1):
            if one.low_us is not None and one.high_us is not None:
                axis.plot(_ms([one.low_us, one.high_us]), [place, place], color=INK, linewidth=1)
        axis.set_xlabel("predicted time of an iteration, ms")
        return svg(figure)


def critical_path_svg(answers: Sequence[Answer]) -> str:
    """Stacked bars: what the critical path consists of, before and after each what-if."""
    paths = [path_us(one.baseline) for one in answers[:1]] + [path_us(one.predicted) for one in answers]
    kinds = list(dict.fromkeys(kind for path in paths for kind in path))
    with theme():
        figure, axis = _lines(answers, 0.16 * (len(kinds) + 1) // 2)
        left, handles = [0.0] * len(paths), []
        for kind, (colour, hatch) in zip(kinds, cycle(_FILLS)):
            parts = _ms(max(path.get(kind, 0.0), 0.0) for path in paths)
            handles.append(
                axis.barh(
                    range(len(paths)),
                    parts,
                    0.7,
                    left=left,
                    color=colour,
                    hatch=hatch,
                    edgecolor=PAPER,
                    linewidth=0,
                )
            )
            left = [a + b for a, b in zip(left, parts, strict=True)]
        axis.set_xlabel("critical path of an iteration, ms")
        legend(figure, handles, kinds)
        return svg(figure)


def _ms(times_us: Iterable[float]) -> list[float]:
    return [time_us / 1e3 for time_us in times_us]


def _lines(answers: Sequence[Answer], more_inches: float = 0.0) -> "tuple[Figure, Axes]":
    """A figure with a line for the baseline and one per answer."""
    names = ["\n".join(wrap(name, NAME_WIDTH)) for name in ("as measured", *(one.name for one in answers))]
    rows = len(names) + sum(name.count("\n") for name in names) / 2
    figure, (axis,) = blank(0.7 + 0.28 * rows + more_inches)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(False, axis="y")
    axis.xaxis.set_major_formatter(plain_tick)
    return figure, axis
