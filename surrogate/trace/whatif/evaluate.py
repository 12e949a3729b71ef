"""What-ifs applied and simulated: predicted times beside the baseline's, what decides them, and which layers change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.trace.graph import Graph, Timeline, critical_path, simulate
from surrogate.trace.graph.tasks import STREAM
from surrogate.trace.layers import OUTSIDE
from surrogate.trace.whatif.catalogue import WhatIf
from surrogate.trace.whatif.setting import Change, Setting


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer:
    """One what-if's answer, times in µs per iteration: the whole span from first start to last end, shared out.

    ``low_us`` and ``high_us`` bound the prediction where the surrogate's interval enters, else they are None.
    """

    name: str
    baseline: Timeline
    predicted: Timeline
    low_us: float | None
    high_us: float | None
    notes: tuple[str, ...]

    @property
    def baseline_us(self) -> float:
        """The unchanged trace, simulated."""
        return self.baseline.per_iteration_us

    @property
    def predicted_us(self) -> float:
        """The changed trace, simulated."""
        return self.predicted.per_iteration_us

    @property
    def speedup(self) -> float:
        """Baseline / prediction; infinite where nothing takes any time."""
        return self.baseline_us / self.predicted_us if self.predicted_us else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Name, times, speedup, interval, critical path and layers before and after, notes, as plain JSON values."""
        return {
            "name": self.name, "baseline_us": self.baseline_us, "predicted_us": self.predicted_us,
            "speedup": self.speedup, "low_us": self.low_us, "high_us": self.high_us,
            "device_us_before": device_us(self.baseline), "device_us_after": device_us(self.predicted),
            "critical_path_before": path_us(self.baseline), "critical_path_after": path_us(self.predicted),
            "layers": layer_changes(self.baseline, self.predicted), "notes": list(self.notes),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.name}: {self.baseline_us:,.0f} → {self.predicted_us:,.0f} µs ({self.speedup:.3f}×)"


def evaluate(
    graph: Graph, what_ifs: Sequence[WhatIf], setting: Setting, *, together: bool = False
) -> list[Answer]:
    """One answer per what-if, and with ``together`` a last one for all of them in the given order.

    Raises `InputError` where one does not apply to this trace.
    """
    baseline = simulate(graph)
    answers = [_answer(one.label, baseline, one(graph, setting)) for one in what_ifs]
    if together and len(what_ifs) > 1:
        changed, notes = graph, []
        for one in what_ifs:
            change = one(changed, setting)
            changed = change.graph
            notes += change.notes
        answers.append(
            _answer(" + ".join(one.label for one in what_ifs), baseline, Change(changed, notes=tuple(notes)))
        )
    return answers


def _answer(name: str, baseline: Timeline, change: Change) -> Answer:
    low, high = (None if one is None else simulate(one).per_iteration_us for one in (change.low, change.high))
    return Answer(name, baseline, simulate(change.graph), low, high, change.notes)


def device_us(timeline: Timeline) -> float:
    """Time of all tasks on streams per iteration, in µs; overlapping ones count each, an added network not."""
    graph = timeline.graph
    return float(graph.duration_us[_on_streams(timeline)].sum()) / max(len(graph.iterations), 1)


def _on_streams(timeline: Timeline) -> np.ndarray:
    is_stream = np.array([one.kind == STREAM for one in timeline.graph.resources] or [False])
    return np.flatnonzero(is_stream[timeline.graph.resource])


def path_us(timeline: Timeline) -> dict[str, float]:
    """The critical path by kind of task, and what it waits, per iteration."""
    path, count = critical_path(timeline), max(len(timeline.graph.iterations), 1)
    return {kind: time / count for kind, time in {**path.by_kind_us, "waiting": path.waiting_us}.items()}


def layer_changes(before: Timeline, after: Timeline) -> list[dict[str, Any]]:
    """Device time per layer type and iteration before and after, where it changes, largest change first."""
    sums = [_by_type(one) for one in (before, after)]
    rows = [
        {"type": name, "before_us": sums[0].get(name, 0.0), "after_us": sums[1].get(name, 0.0)}
        for name in dict.fromkeys([*sums[0], *sums[1]])
    ]
    changed = [row for row in rows if abs(row["after_us"] - row["before_us"]) > 1e-9]
    return sorted(changed, key=lambda row: -abs(row["after_us"] - row["before_us"]))


def _by_type(timeline: Timeline) -> dict[str, float]:
    graph = timeline.graph
    rows = _on_streams(timeline)
    time = np.bincount(
        graph.layer[rows] + 1, weights=graph.duration_us[rows], minlength=len(graph.layers) + 1
    )
    found: dict[str, float] = {}
    for name, one in zip((OUTSIDE, *graph.layers), time.tolist(), strict=True):
        kind = name.rpartition(".")[0] or name  # a layer is its type and a number
        found[kind] = found.get(kind, 0.0) + one / max(len(graph.iterations), 1)
    return found
