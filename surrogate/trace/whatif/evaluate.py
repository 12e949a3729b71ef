"""The what-ifs by name, and their answers: predicted times beside the baseline's."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from surrogate.features.errors import InputError, require_known
from surrogate.trace.calls import batch_size
from surrogate.trace.graph import Graph, Timeline, bound, path_us, simulate
from surrogate.trace.graph.tasks import STREAM
from surrogate.trace.layers import OUTSIDE
from surrogate.trace.whatif import distributed, hardware, memory
from surrogate.trace.whatif.primitives import remove
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


_DAYDREAM = "errors of this rule in Daydream (ATC 2020): "
EVIDENCE: dict[str, tuple[float | None, str]] = {
    "amp": (0.153, _DAYDREAM + "BERT-base 5.5, BERT-large 3.9, Seq2Seq 15.3, ResNet-50 12.6 %"),
    "fused-adam": (0.125, _DAYDREAM + "BERT-base 1.9, BERT-large 12.5, Seq2Seq 4.5 %"),
    "batch-norm": (0.061, _DAYDREAM + "DenseNet-121 6.1 %"),
    "gpu": (None, "interval of predictions, and of eager PyTorch on other pairs of GPUs (KernelBench)"),
    "best-convolution": (None, "interval of the surrogate's predictions on shapes held out"),
}
"""Name → the largest published error of the what-if's rule on whole iterations, and what is known of its error."""
NO_EVIDENCE = (None, "no times before and after were found in public, so no interval")


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
    """One what-if's answer, times in µs per iteration (`Timeline.per_iteration_us`).

    ``low_us`` and ``high_us`` bound the prediction where there is evidence of its error, else they are None;
    ``evidence`` says which. A published error counts for the time that the step loses without the changed tasks, at
    most the predicted step. ``device_low_us`` and ``device_high_us`` do so for the device's time where kernels were
    predicted. ``samples`` and ``gpus`` are those of `Change`, ``batch`` the trace's, None where unknown.
    """

    name: str
    baseline: Timeline
    predicted: Timeline
    low_us: float | None
    high_us: float | None
    notes: tuple[str, ...]
    evidence: str = ""
    batch: int | None = None
    samples: float = 1.0
    gpus: int = 1
    device_low_us: float | None = None
    device_high_us: float | None = None

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
        """A GPU's samples per second, after over before; infinite where nothing takes any time."""
        return self.samples * self.baseline_us / self.predicted_us if self.predicted_us else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Name, times, speedup, interval, samples per second of all GPUs, what bounds an iteration, critical path and
        layers before and after, evidence and notes, as plain JSON values."""
        paths = [path_us(timeline) for timeline in (self.baseline, self.predicted)]
        per_s = 1e6 * self.batch / self.baseline_us if self.batch and self.baseline_us else None
        return {
            "name": self.name, "baseline_us": self.baseline_us, "predicted_us": self.predicted_us,
            "speedup": self.speedup, "low_us": self.low_us, "high_us": self.high_us,
            "device_us_before": device_us(self.baseline), "device_us_after": device_us(self.predicted),
            "device_low_us": self.device_low_us, "device_high_us": self.device_high_us,
            "samples_per_s_before": per_s, "samples_per_s_after": per_s and per_s * self.speedup * self.gpus,
            "bound_before": bound(paths[0]), "bound_after": bound(paths[1]),
            "critical_path_before": paths[0], "critical_path_after": paths[1],
            "layers": layer_changes(self.baseline, self.predicted), "evidence": self.evidence,
            "notes": list(self.notes),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.name}: {self.baseline_us:,.0f} → {self.predicted_us:,.0f} µs ({self.speedup:.3f}×)"


def evaluate(graph: Graph, what_ifs: Sequence[WhatIf], setting: Setting, *, together: bool = False) -> list[Answer]:
    """One answer per what-if, and with ``together`` a last one for all of them in the given order.

    Raises `InputError` where one does not apply to this trace.
    """
    baseline, batch = simulate(graph), batch_size(setting.profile.trace)
    questions = [(what_if.label, [what_if], EVIDENCE.get(what_if.name, NO_EVIDENCE)) for what_if in what_ifs]
    if together and len(what_ifs) > 1:
        questions.append((" + ".join(what_if.label for what_if in what_ifs), [*what_ifs], NO_EVIDENCE))
    answers = []
    for label, parts, (error, evidence) in questions:
        changes = [Change(graph)]
        for part in parts:
            changes.append(part(changes[-1].graph, setting))
        last, notes = changes[-1], tuple(note for change in changes for note in change.notes)
        predicted = simulate(last.graph)
        timelines = [simulate(end) for end in (last.low, last.high) if end and len(parts) == 1]
        ends, device_ends = [end.per_iteration_us for end in timelines], [device_us(end) for end in timelines]
        if error is not None:
            # The published error is of whole steps that change, so it counts for the part that the change touches.
            changed = (last.graph.duration_us != graph.duration_us) | last.graph.removed
            rest_us, step_us = simulate(remove(graph, changed)).per_iteration_us, predicted.per_iteration_us
            touched_us = min(max(baseline.per_iteration_us - rest_us, step_us - rest_us, 0.0), step_us)
            ends = [step_us - touched_us + touched_us / (1 + side * error) for side in (1, -1)]
            evidence += f"; the largest counts for the {touched_us / (step_us or 1):.0%} of the step that it touches"
        samples, gpus = prod(change.samples for change in changes), prod(change.gpus for change in changes)
        (low, high), on_device = ends or (None, None), device_ends or (None, None)
        answers.append(Answer(label, baseline, predicted, low, high, notes, evidence, batch, samples, gpus, *on_device))
    return answers


def device_us(timeline: Timeline) -> float:
    """Time of all tasks on streams per iteration, in µs; overlapping ones count each, an added network not."""
    graph = timeline.graph
    return float(graph.duration_us[_on_streams(graph)].sum()) / max(len(graph.iterations), 1)


def _on_streams(graph: Graph) -> np.ndarray:
    is_stream = np.array([resource.kind == STREAM for resource in graph.resources] or [False])
    return np.flatnonzero(is_stream[graph.resource])


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
