"""A part of a trace: some iterations, a span of time, a share of it, one GPU."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.features.errors import InputError
from surrogate.trace.events.iteration import iteration_of, iterations
from surrogate.trace.events.tables import Ints, Ranges, Trace, take

Mask = NDArray[np.bool_]


def trim(
    trace: Trace,
    *,
    iterations_kept: Sequence[int] | None = None,
    from_us: float | None = None,
    to_us: float | None = None,
    share: tuple[float, float] | None = None,
    gpu: int | None = None,
) -> Trace:
    """The events of ``trace`` that every given limit keeps, linked among themselves; the origin stays.

    ``iterations_kept`` are indices as in `iterations`; ``from_us``/``to_us`` are µs from the first event;
    ``share`` is a part of the whole span, such as (0.2, 0.5); ``gpu`` keeps one device's activities. Host events
    stay if they *start* inside; a device activity stays with its launch call, without one by its own start.

    Raises `InputError` for an iteration or GPU that is not there, an empty span, or a share outside 0 to 1.
    """
    if iterations_kept is not None:
        trace = _by_iteration(trace, iterations_kept)
    if share is not None:
        low, high = share
        if not 0 <= low < high <= 1:
            raise InputError(
                f"share {low:g} to {high:g} is no part of a trace; give two numbers 0 ≤ a < b ≤ 1"
            )
        trace = _by_time(trace, low * trace.span_us, high * trace.span_us + 0.001 * (high == 1))
    if from_us is not None or to_us is not None:
        trace = _by_time(trace, from_us or 0.0, float("inf") if to_us is None else to_us)
    return trace if gpu is None else _by_gpu(trace, gpu)


def _by_iteration(trace: Trace, wanted: Sequence[int]) -> Trace:
    found = iterations(trace)
    how, last = found[0].by, len(found) - 1
    for index in wanted:
        if not 0 <= index <= last:
            listed = f"0 to {last}" if last else "only 0"
            raise InputError(f"iteration {index} is not in {trace.source}; it has {listed} (by {how})")
    kept = tuple(found[index] for index in dict.fromkeys(wanted))
    of_range, of_call, of_activity = iteration_of(kept, trace)
    inside = _inside([(one.start_ns, one.end_ns) for one in kept])
    return _subset(trace, of_range >= 0, of_call >= 0, of_activity >= 0, inside)


def _by_time(trace: Trace, from_us: float, to_us: float) -> Trace:
    if not from_us < to_us:
        raise InputError(f"no time lies between {from_us:g} and {to_us:g} µs; the end must follow the start")
    first, last = trace.span_ns
    low = first + round(min(from_us * 1e3, 2.0**62))
    high = first + round(min(to_us * 1e3, 2.0**62))
    inside = _inside([(low, high)])
    ranges, calls, activities = trace.ranges, trace.calls, trace.activities
    keep_calls = inside(calls.start_ns)
    own = inside(activities.start_ns)
    keep = np.where(activities.call >= 0, keep_calls[activities.call] if len(calls) else own, own)
    if not keep.any() and not keep_calls.any() and not inside(ranges.start_ns).any():
        raise InputError(
            f"{trace.source}: nothing starts between {from_us:g} and {to_us:g} µs; it lasts {(last - first) / 1e3:g} µs"
        )
    return _subset(trace, inside(ranges.start_ns), keep_calls, keep, inside)


def _by_gpu(trace: Trace, gpu: int) -> Trace:
    devices = np.array([one.device for one in trace.streams] or [-1])
    present = sorted({one.device for one in trace.streams})
    if gpu not in present:
        listed = ", ".join(map(str, present)) or "none"
        raise InputError(f"GPU {gpu} has no activity in {trace.source}; present: {listed}")
    every = np.ones(len(trace.ranges), np.bool_), np.ones(len(trace.calls), np.bool_)
    keep = devices[trace.activities.stream] == gpu
    trimmed = _subset(trace, *every, keep, lambda times: np.ones(len(times), np.bool_))
    syncs = take(trimmed.syncs, devices[trimmed.syncs.stream] == gpu)
    allocations = take(trimmed.allocations, np.isin(trimmed.allocations.device, (gpu, -1)))
    return replace(trimmed, syncs=syncs, allocations=allocations)


def _inside(spans: list[tuple[int, int]]) -> Any:
    def inside(times: Ints) -> Mask:
        kept = np.zeros(len(times), np.bool_)
        for low, high in spans:
            kept |= (times >= low) & (times < high)
        return kept

    return inside


def _subset(trace: Trace, ranges: Mask, calls: Mask, activities: Mask, inside: Any) -> Trace:
    """The chosen rows with their links renumbered; a link to a row that went becomes -1 (a parent: the next kept)."""
    new_range, new_call = _numbers(ranges), _numbers(calls)
    ancestors = _kept_ancestor(trace.ranges, ranges)
    kept_ranges = take(trace.ranges, ranges)
    kept_ranges = replace(kept_ranges, parent=_renumber(ancestors[ranges], new_range))
    kept_ranges = replace(kept_ranges, depth=_depths(kept_ranges))
    held = _held(trace.calls.range, ranges, ancestors)
    kept_calls = take(replace(trace.calls, range=_renumber(held, new_range)), calls)
    held = _held(trace.activities.range, ranges, ancestors)
    call = _renumber(trace.activities.call, new_call)
    moved = replace(trace.activities, range=_renumber(held, new_range), call=call)
    syncs = replace(trace.syncs, call=_renumber(trace.syncs.call, new_call))
    held = _held(trace.allocations.range, ranges, ancestors)
    allocations = replace(trace.allocations, range=_renumber(held, new_range))
    frames = trace.frames
    kept_frames = inside(frames.start_ns)
    parent = _renumber(_kept_ancestor(frames, kept_frames)[kept_frames], _numbers(kept_frames))
    frames = replace(take(frames, kept_frames), parent=parent)
    frames = replace(frames, depth=_depths(frames))
    return replace(
        trace,
        ranges=kept_ranges,
        frames=frames,
        calls=kept_calls,
        activities=take(moved, activities),
        syncs=take(syncs, inside(syncs.start_ns)),
        allocations=take(allocations, inside(allocations.time_ns)),
    )


def _numbers(mask: Mask) -> Ints:
    """Old row → new row, -1 for a row that goes."""
    return np.where(mask, np.cumsum(mask) - 1, -1).astype(np.int64)


def _renumber(links: Ints, numbers: Ints) -> Ints:
    return np.where(links >= 0, numbers[links] if len(numbers) else -1, -1)


def _kept_ancestor(table: Ranges, kept: Mask) -> Ints:
    """For every row the nearest ancestor that stays, -1 for none."""
    found, stays = table.parent.tolist(), kept.tolist()
    for row in np.argsort(table.depth, kind="stable").tolist():  # outer ranges first
        parent = found[row]
        if parent >= 0 and not stays[parent]:
            found[row] = found[parent]
    return np.array(found, dtype=np.int64)


def _held(links: Ints, kept: Mask, ancestors: Ints) -> Ints:
    """Links into the ranges, moved up to the nearest kept ancestor."""
    if not len(kept):
        return links
    return np.where((links >= 0) & ~kept[links], ancestors[links], links)


def _depths(table: Ranges) -> Ints:
    """The number of ancestors by the new parents; the old depths still tell outer from inner."""
    depth, parents = [0] * len(table), table.parent.tolist()
    for row in np.argsort(table.depth, kind="stable").tolist():
        if parents[row] >= 0:
            depth[row] = depth[parents[row]] + 1
    return np.array(depth, dtype=np.int64)
