"""Known answers of what-ifs; a trace of PyTorch's profiler from their steps, and predictions of its convolutions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from surrogate.trace.whatif.setting import WhatIfRule, WhatIfSetting
from tests.known import known_answers
from tests.trace.events import event

HOST_US = 10
"""Host time of an operator; its launch returns at the end."""
LAUNCH_US = 4
_CATEGORIES = {"Memcpy": "gpu_memcpy", "Optimizer": "user_annotation", "ProfilerStep": "user_annotation"}


@dataclass(frozen=True, slots=True)
class Op:
    """An operator of a `StepAnswer` step, which takes 10 µs on the host.

    If ``kernel`` is given, the operator launches it, and it takes ``us``. The host calls one operator after the other,
    then waits. Kernels run in order, and each starts after its launch has returned. A kernel with ``Memcpy`` in its
    name is a copy, one with ``nccl`` a collective. A positive ``sequence`` is autograd's number. A backward operator
    (``ackward`` in its name) shares it with its forward operator. ``shapes`` are shapes of fp32 tensors.
    """

    name: str
    kernel: str = ""
    us: float = 0.0
    sequence: int = -1
    shapes: Sequence[Sequence[int]] = ()


STEP = tuple(Op(**row) for row in known_answers(__file__)["step"])
"""A training step of 2,110 µs on a V100.

The first launch ends after 10 µs. Then the device runs without a pause, and the host waits for it. The convolution's
input has 15.75 MB, the ReLU's input 6 MB, and the parameters 4 MB.
"""


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The known answer of a what-if: µs per iteration after the change, computed by hand.

    The trace is two steps of ``ops`` on a V100. ``value`` and ``target`` are the what-if's number and GPU.
    ``algorithms_us`` are the times that the model of convolutions predicts for every convolution.
    """

    us: float
    ops: Sequence[Op] = STEP
    value: float | None = None
    target: str | None = None
    algorithms_us: Mapping[str, float] = field(default_factory=dict)


def known_answer(rule: WhatIfRule) -> StepAnswer | None:
    """Return the answer that the rule declares, or the one in ``steps.toml``; None without one.

    It has the fields of `StepAnswer`, with fields of `Op` as its ``ops``, and further operators as ``more``.
    """
    row = rule.known_answer or known_answers(__file__)["answer"].get(rule.name)
    if row is None:
        return None
    ops, more = (tuple(Op(**op) for op in row.get(name, ())) for name in ("ops", "more"))
    return StepAnswer(**{name: row[name] for name in row if name not in ("ops", "more")}, ops=ops or (*STEP, *more))


def trace_of(operators: Sequence[Op], steps: int = 2) -> dict[str, Any]:
    """Return the JSON object of a trace of equal steps, one after the other, on a V100.

    The host calls the operators without a pause and waits for the device, which runs the kernels in their order, each
    as soon as its launch has returned.
    """
    events: list[dict[str, Any]] = []
    start_us = 0.0
    for number in range(steps):
        step = list(_step(operators, start_us, 1 + number * (len(operators) + 1)))
        end_us = max(event["ts"] + event["dur"] for event in step)
        events += [_event(f"ProfilerStep#{number}", start_us, end_us - start_us), *step]
        start_us = end_us
    return {"deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}], "traceEvents": events}


def _step(operators: Sequence[Op], start_us: float, first: int) -> Iterator[dict[str, Any]]:
    host_us = device_us = start_us
    for number, op in enumerate(operators, start=first):
        types = ["float" if shape else "" for shape in op.shapes]
        shapes = {"Input Dims": op.shapes, "Input type": types} if op.shapes else {}
        passes = {"Sequence number": op.sequence, "Fwd thread id": int("ackward" in op.name)}
        named = {"External id": number, **shapes, **(passes if op.sequence > 0 else {})}
        yield _event(op.name, host_us, HOST_US, **named)
        host_us += HOST_US
        if op.kernel:
            yield _event("cudaLaunchKernel", host_us - LAUNCH_US, LAUNCH_US, "cuda_runtime", correlation=number)
            device_us = max(device_us, host_us)
            place = {"device": 0, "stream": 7, "correlation": number}
            yield _event(op.kernel, device_us, op.us, _CATEGORIES.get(op.kernel.partition(" ")[0], "kernel"), **place)
            device_us += op.us
    if device_us > host_us:
        number = first + len(operators)
        yield _event("cudaDeviceSynchronize", host_us, device_us - host_us, "cuda_runtime", correlation=number)


def _event(name: str, start_us: float, time_us: float, category: str = "", **arguments: Any) -> dict[str, Any]:
    category = category or _CATEGORIES.get(name.partition(".")[0].partition("#")[0], "cpu_op")
    thread = 7 if category in ("kernel", "gpu_memcpy") else 100
    return event(category, name, start_us, time_us, thread, **arguments)


class FakeAlgorithms:
    """Predicts the same times of algorithms for every convolution, with an interval of 10 % each."""

    def __init__(self, times_us: Mapping[str, float], source: str = "model") -> None:
        rows = [(name, us, us / 1.1, us * 1.1) for name, us in times_us.items()]
        names = ("algorithm", "time_us", "lower_us", "upper_us")
        candidates = [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in rows]
        self.selection = SimpleNamespace(candidates=candidates, source=source, gpu="v100")

    def select(self, problem: object) -> SimpleNamespace:
        return self.selection

    def put_into(self, setting: WhatIfSetting) -> None:
        """Replace the predictors of every GPU."""
        setting.predictors = lambda device: SimpleNamespace(algorithm_predictor=self, gpu=device)
