"""The what-ifs by name, and their answers: predicted times beside the baseline's."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.errors import InputError, require_known
from surrogate.trace.graph import Graph, Timeline, critical_path, simulate
from surrogate.trace.graph.tasks import STREAM
from surrogate.trace.layers import OUTSIDE
from surrogate.trace.whatif import distributed, hardware, memory
from surrogate.trace.whatif.setting import Change, Setting

Model = Callable[[Graph, Setting, float | None], Change]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """An optimisation by name; ``value`` is its number where one was given (``faster-kernels=4``)."""

    name: str
    model: Model
    value: float | None = None

    @property
    def label(self) -> str:
        """As on the command line."""
        return self.name if self.value is None else f"{self.name}={self.value:g}"

    def __call__(self, graph: Graph, setting: Setting) -> Change:
        return self.model(graph, setting, self.value)


MODELS: dict[str, tuple[Model, float | None]] = {
    "amp": (hardware.amp, None),
    "amp-tensor": (hardware.amp_tensor, None),
    "amp-roofline": (hardware.amp_roofline, None),
    "fused-adam": (hardware.fused_adam, None),
    "batch-norm": (hardware.restructured_batch_norm, None),
    "cuda-graphs": (hardware.cuda_graphs, None),
    "best-convolution": (hardware.best_convolutions, None),
    "batch": (hardware.batch, 0),
    "gpu": (hardware.other_gpu, None),
    "faster-kernels": (hardware.faster("kernel"), 0),
    "faster-host": (hardware.faster("host work", "call"), 0),
    "faster-network": (hardware.faster_network, 0),
    "vdnn": (memory.offloaded, None),
    "gist": (memory.encoded, 1),
    "data-parallel": (distributed.data_parallel, 1),
    "blueconnect": (distributed.blueconnect, 1),
    "dgc": (distributed.compressed_gradients, 1),
    "parameter-server": (distributed.parameter_server, 0),
    "p3": (distributed.priority_propagation, 0),
}
"""Name → (model, the least number that it takes, None where it takes none; the number itself is above 0)."""


def what_if(text: str) -> WhatIf:
    """``amp`` or ``faster-kernels=4``. Raises `InputError` for an unknown name or a value that is no number."""
    name, equals, number = text.partition("=")
    require_known("what-if", name, MODELS)
    model, least = MODELS[name]
    if not equals:
        return WhatIf(name, model)
    if least is None:
        raise InputError(f"what-if {name!r} takes no number; write it without {text[len(name) :]!r}")
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"{number!r} in {text!r} is no number; write such as {name}=2") from None
    if not (0 < value < np.inf and value >= least):
        raise InputError(f"{text}: give a number {f'of {least:g} or more' if least else 'above 0'}")
    return WhatIf(name, model, value)


def user_function(text: str) -> WhatIf:
    """``module:callable`` of the user's own, which takes a graph and returns one.

    The module is imported, which runs it: give only one of your own. Raises `InputError` where it cannot be had
    or fails.
    """
    from surrogate.network.torch_module import imported_callable, in_one_line

    function = imported_callable(text, "it must take a graph and return one")

    def model(graph: Graph, setting: Setting, value: float | None) -> Change:
        with in_one_line(text):
            changed = function(graph)
        if not isinstance(changed, Graph):
            raise InputError(f"{text} returned {type(changed).__name__}; it must return a graph")
        return Change(changed)

    return WhatIf(text, model)


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


def evaluate(graph: Graph, what_ifs: Sequence[WhatIf], setting: Setting, *, together: bool = False) -> list[Answer]:
    """One answer per what-if, and with ``together`` a last one for all of them in the given order.

    Raises `InputError` where one does not apply to this trace.
    """
    baseline = simulate(graph)
    answers = [_answer(what_if.label, baseline, what_if(graph, setting)) for what_if in what_ifs]
    if together and len(what_ifs) > 1:
        changed, notes = graph, []
        for what_if in what_ifs:
            change = what_if(changed, setting)
            changed = change.graph
            notes += change.notes
        label = " + ".join(what_if.label for what_if in what_ifs)
        answers.append(_answer(label, baseline, Change(changed, notes=tuple(notes))))
    return answers


def _answer(name: str, baseline: Timeline, change: Change) -> Answer:
    ends = (change.low, change.high)
    low, high = (None if graph is None else simulate(graph).per_iteration_us for graph in ends)
    return Answer(name, baseline, simulate(change.graph), low, high, change.notes)


def device_us(timeline: Timeline) -> float:
    """Time of all tasks on streams per iteration, in µs; overlapping ones count each, an added network not."""
    graph = timeline.graph
    return float(graph.duration_us[_on_streams(graph)].sum()) / max(len(graph.iterations), 1)


def _on_streams(graph: Graph) -> np.ndarray:
    is_stream = np.array([resource.kind == STREAM for resource in graph.resources] or [False])
    return np.flatnonzero(is_stream[graph.resource])


def path_us(timeline: Timeline) -> dict[str, float]:
    """The critical path by kind of task, and what it waits, per iteration."""
    path, count = critical_path(timeline), max(len(timeline.graph.iterations), 1)
    return {kind: time / count for kind, time in {**path.by_kind_us, "waiting": path.waiting_us}.items()}


def layer_changes(before: Timeline, after: Timeline) -> list[dict[str, Any]]:
    """Device time per layer type and iteration before and after, where it changes, largest change first."""
    old, new = _by_type(before), _by_type(after)
    rows = [{"type": name, "before_us": old[name], "after_us": new[name]} for name in {**old, **new}]
    changed = [row for row in rows if abs(row["after_us"] - row["before_us"]) > 1e-9]
    return sorted(changed, key=lambda row: -abs(row["after_us"] - row["before_us"]))


def _by_type(timeline: Timeline) -> defaultdict[str, float]:
    graph, sums = timeline.graph, defaultdict[str, float](float)
    rows = _on_streams(graph)
    layers = graph.layer[rows] + 1
    time = np.bincount(layers, weights=graph.duration_us[rows], minlength=len(graph.layers) + 1)
    for name, time_us in zip((OUTSIDE, *graph.layers), time.tolist(), strict=True):
        # A layer is its type and a number.
        sums[name.rpartition(".")[0] or name] += time_us / max(len(graph.iterations), 1)
    return sums
