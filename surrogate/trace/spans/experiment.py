"""Leveled experiments: each level's times from the run that measured no deeper, and what every level costs.

Source: XSP (IPDPS 2020), section III: measuring a deeper level slows the levels above it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.result import Rows
from surrogate.trace.spans.live import Tracer
from surrogate.trace.spans.table import LEVELS, Spans, level_number


@dataclass(frozen=True, slots=True)
class LevelRun:
    """The runs that measured down to ``level``: time of the model span in µs per repeat, spans of the median run."""

    level: str
    model_us: tuple[float, ...]
    spans: Spans

    @property
    def median_us(self) -> float:
        """Median of the model's time."""
        return float(np.median(self.model_us))


@dataclass(frozen=True, slots=True, repr=False)
class Leveled:
    """A leveled experiment: one `LevelRun` per depth, from the model alone down to the deepest level."""

    runs: tuple[LevelRun, ...]

    def __repr__(self) -> str:
        return repr(self.rows())

    def of(self, level: str) -> Spans:
        """The spans of ``level`` as measured by the run that went no deeper. Raises `InputError` if it was not run."""
        level_number(level)
        found = next((run for run in self.runs if run.level == level), None)
        if found is None:
            raise InputError(
                f"level {level!r} was not measured; measured: {', '.join(r.level for r in self.runs)}"
            )
        return found.spans

    def rows(self) -> Rows:
        """Per level: the model's time when measured down to it, the overhead it adds, its spans and their time."""
        rows = []
        for before, run in zip((None, *self.runs), self.runs, strict=False):
            added = run.median_us - before.median_us if before else 0.0
            own = run.spans.level == LEVELS.index(run.level)
            rows.append(
                {
                    "level": run.level,
                    "model_us": run.median_us,
                    "overhead_us": added,
                    "overhead_pct": 100 * added / self.runs[0].median_us if self.runs[0].median_us else None,
                    "spans": int(own.sum()),
                    "spans_us": float(run.spans.time_us[own].sum()),
                }
            )
        return Rows(f"Leveled experiment, {len(self.runs[0].model_us)} runs each", tuple(rows))


def leveled(
    run: Callable[[Tracer], object],
    levels: tuple[str, ...] = ("model", "layer"),
    *,
    repeats: int = 5,
    warmup: int = 1,
) -> Leveled:
    """Call ``run(tracer)`` with ``levels[:1]`` on, then ``levels[:2]``, …, ``repeats`` times each.

    ``run`` opens the spans; it must open one of level ``levels[0]`` around everything. Depths take turns (1, 2, …,
    1, 2, …), so that a drift of the machine's clock hits all alike.

    Raises `InputError` for unknown or unordered levels, fewer than 1 repeat, or a run without the outermost span.
    """
    numbers = [level_number(level) for level in levels]
    if not levels or numbers != sorted(set(numbers)):
        raise InputError(
            f"levels {', '.join(levels) or '(none)'} must go from the outside in: {', '.join(LEVELS)}"
        )
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; at least 1 run per level is needed")
    for _ in range(warmup):
        run(Tracer(*levels))
    times: list[list[float]] = [[] for _ in levels]
    found: list[list[Spans]] = [[] for _ in levels]
    for _ in range(repeats):
        for depth in range(len(levels)):
            tracer = Tracer(*levels[: depth + 1])
            run(tracer)
            spans = tracer.spans()
            outer = spans.time_us[spans.level == numbers[0]]
            if not len(outer):
                raise InputError(f"the run opened no span of level {levels[0]!r}; open one around everything")
            times[depth].append(float(outer.sum()))
            found[depth].append(spans)
    return Leveled(
        tuple(
            LevelRun(
                level,
                tuple(times[depth]),
                found[depth][int(np.argsort(times[depth])[len(times[depth]) // 2])],
            )
            for depth, level in enumerate(levels)
        )
    )
