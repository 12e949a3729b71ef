"""Figures of what-ifs as SVG: predicted times as bars, and the critical path before and after by kind of task."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from features.errors import InputError
from surrogate.atomic import write_text
from surrogate.trace.whatif.evaluate import Answer, path_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    names = ["as measured", *(one.name for one in answers)]
    values = [answers[0].baseline_us if answers else 0.0, *(one.predicted_us for one in answers)]
    axes, finish = _axes(len(names))
    axes.barh(range(len(names)), [value / 1e3 for value in values], color=["0.6", *["C0"] * len(answers)])
    for place, one in enumerate(answers, start=1):
        if one.low_us is not None and one.high_us is not None:
            axes.plot([one.low_us / 1e3, one.high_us / 1e3], [place, place], color="black", linewidth=1.5)
    axes.set_xlabel("ms per iteration")
    return finish(names)


def critical_path_svg(answers: Sequence[Answer]) -> str:
    """Stacked bars: what the critical path consists of, before and after each what-if."""
    names = ["as measured", *(one.name for one in answers)]
    paths = [path_us(one.baseline) for one in answers[:1]] + [path_us(one.predicted) for one in answers]
    axes, finish = _axes(len(names))
    left = [0.0] * len(paths)
    for kind in dict.fromkeys(kind for path in paths for kind in path):
        parts = [max(path.get(kind, 0.0), 0.0) / 1e3 for path in paths]
        axes.barh(range(len(paths)), parts, left=left, label=kind)
        left = [a + b for a, b in zip(left, parts, strict=True)]
    axes.set_xlabel("critical path, ms per iteration")
    axes.legend(fontsize=7, frameon=False)
    return finish(names)


def _axes(lines: int) -> tuple["Axes", Callable[[Sequence[str]], str]]:
    """Empty axes, and what turns them into SVG once the lines have names."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 1.0 + 0.32 * lines))
    axes = figure.add_subplot()

    def finish(names: Sequence[str]) -> str:
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        text = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": "seer"}):
            figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()

    return axes, finish
