"""From a trace to iteration times: overheads, device times, and the walk through both clocks."""

from pathlib import Path

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.trace.bounds import gpu_of
from surrogate.trace.events.tables import Trace
from surrogate.trace.iteration.operator_table import operator_rows
from surrogate.trace.iteration.overheads import Overheads, measure_overheads
from surrogate.trace.iteration.result import IterationTimes
from surrogate.trace.iteration.times import (
    Surrogates,
    lacking,
    measured_times,
    predicted_times,
)
from surrogate.trace.iteration.units import HostWork, host_work
from surrogate.trace.iteration.walk import OverheadsOf, Walk

SOURCES = ("measured", "surrogate")
_BATCHED = ("aten::conv2d", "aten::convolution", "aten::linear", "aten::addmm", "aten::cudnn_convolution")


def iteration_times(
    trace: Trace,
    *,
    times: str | None = None,
    gpu: str | None = None,
    batch: int | None = None,
    overheads: Overheads | None = None,
    leave_one_out: bool = False,
    iteration: int | None = None,
    surrogates: Surrogates | None = None,
    bundle: str | Path | None = None,
) -> IterationTimes:
    """Times of the iterations of ``trace`` from host overheads and the times of its kernels (Lin et al.).

    ``times``: ``measured`` (the trace's) or ``surrogate``; by default the surrogate's where ``gpu`` or ``batch`` is
    another than the trace's. ``overheads`` come from the trace itself unless given; with ``leave_one_out`` those of an
    iteration come from the other ones. ``iteration`` reports that one alone. ``surrogates`` (else those shipped for the
    GPU, convolutions by ``bundle``) predict. The host stays the traced one, whatever the GPU.

    Raises `InputError` for an unknown GPU, source or iteration, a batch without shapes to rescale, measured times of
    another GPU or batch, and a trace without host work.
    """
    work = host_work(trace)
    if not any(unit.iteration >= 0 for unit in work.units):
        raise InputError(f"{trace.source}: holds no operators or launches, so there is no iteration to walk")
    chosen = _chosen(work, iteration)
    overheads_of, shown = _overheads(work, trace.source, overheads, leave_one_out)
    device = trace.streams[int(trace.activities.stream[0])].device if len(trace.activities) else 0
    here = gpu_of(trace, device)
    there = gpu_named(gpu) if gpu else here
    old = batch_of(trace)
    elsewhere = there is not None and (here is None or there.name != here.name) and gpu is not None
    rescaled = batch is not None and batch != old
    source = _source(times, elsewhere or rescaled)
    if rescaled and old is None:
        raise InputError(
            f"{trace.source}: no convolution or linear operator has a shape, so the batch size is not known;"
            " record shapes, or leave --batch out"
        )
    found = measured_times(trace)
    if source == "surrogate":
        by = surrogates or load_surrogates(there, bundle, needs_convs=_has_convolutions(trace))
        found = predicted_times(trace, by, old or 1, (batch if rescaled else old) or 1)
    walk = Walk(trace, work, found, overheads_of, comparable=not (elsewhere or rescaled))
    units = [unit for unit in work.units if unit.iteration in chosen]
    return IterationTimes(
        trace=trace.source,
        gpu=there.name if there else trace.device_name(device) or None,
        batch=batch if batch is not None else old,
        times=source,
        iterations=walk.rows(chosen),
        operators=operator_rows(trace, units, found, overheads_of, len(chosen)),
        unknown=lacking(trace, found, walk.activities(chosen)),
        overheads=shown,
        notes=_notes(trace, work, elsewhere or rescaled),
    )


def load_surrogates(
    device: Gpu | None, bundle: str | Path | None = None, *, needs_convs: bool = True
) -> Surrogates:
    """The predictors of a GPU. Raises `InputError` without a GPU, or where no bundle serves it and ``needs_convs``."""
    if device is None:
        raise InputError("the trace does not name a known GPU; say which one with --gpu")
    from surrogate.operators import OperatorPredictor
    from surrogate.prediction.shipped import load

    convs = None
    if needs_convs:
        convs = load(device.name) if bundle is None else load(Path(bundle), gpu=device.name)
    return Surrogates(device, convs, OperatorPredictor.load(device))


def batch_of(trace: Trace) -> int | None:
    """The leading size of the first convolution's or linear layer's input; None where no shape tells."""
    ranges = trace.ranges
    wanted = np.array([name in _BATCHED for name in trace.names] or [False])[ranges.name] & (
        ranges.shapes >= 0
    )
    for row in np.flatnonzero(wanted).tolist():
        shapes = trace.shapes_of(row) or ()
        first = shapes[1 if trace.name_of(ranges, row) == "aten::addmm" else 0] if len(shapes) > 1 else ()
        if isinstance(first, tuple) and len(first) >= 2 and isinstance(first[0], int) and first[0] > 0:
            return first[0]
    return None


def _chosen(work: HostWork, iteration: int | None) -> list[int]:
    every = list(range(len(work.iterations)))
    if iteration is None:
        return every
    found = [at for at in every if work.iterations[at].index == iteration]
    if not found:
        raise InputError(f"iteration {iteration} is not in the trace; it has {len(every)}, from 0 on")
    return found


def _overheads(
    work: HostWork, source: str, given: Overheads | None, leave_one_out: bool
) -> tuple[OverheadsOf, Overheads]:
    """Iteration → its overheads, and those to keep."""
    if given is not None:
        if leave_one_out:
            raise InputError(
                "overheads were given, so none can come from the other iterations; leave out one of the two"
            )
        return (lambda at: given), given
    every = measure_overheads(work, source)
    if not leave_one_out:
        return (lambda at: every), every
    count = len(work.iterations)
    if count < 2:
        raise InputError("the trace has one iteration, so none is left to take the overheads from")
    others = [
        measure_overheads(work, source, [other for other in range(count) if other != at])
        for at in range(count)
    ]
    return (lambda at: others[at] if at >= 0 else every), every


def _source(times: str | None, elsewhere: bool) -> str:
    if times is not None and times not in SOURCES:
        raise InputError(f"times {times!r} is unknown; known: {', '.join(SOURCES)}")
    if times == "measured" and elsewhere:
        raise InputError(
            "measured times are those of the trace's GPU and batch; use the surrogate's for another"
        )
    return times or ("surrogate" if elsewhere else "measured")


def _has_convolutions(trace: Trace) -> bool:
    return any("convolution" in name and "::" in name for name in trace.names) and bool(
        (trace.ranges.shapes >= 0).any()
    )


def _notes(trace: Trace, work: HostWork, elsewhere: bool) -> tuple[str, ...]:
    notes = []
    if not len(trace.activities):
        notes.append("the trace holds no device activity: the host's clock alone")
    if work.unattached:
        notes.append(f"{len(work.unattached):,} device activities have no launch call and are left out")
    if elsewhere:
        notes.append("host overheads and input loading are those of the traced run")
    return tuple(notes)
