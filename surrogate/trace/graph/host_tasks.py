"""Host tasks: pieces of host time with waits taken out, and blocking copies as a start and a return."""

from dataclasses import dataclass

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.graph.host import Pieces
from surrogate.trace.graph.waits import blocking_copies

_LAUNCH_NS = 5000


@dataclass(frozen=True, slots=True, eq=False)
class HostTasks:
    """``piece`` and times of every host task; ``of_call`` and ``return_of_call``: the task in which a call begins and
    the one in which it returns; ``copies``: blocking copies, as `blocking_copies` gives them."""

    piece: Ints
    start_ns: Ints
    end_ns: Ints
    of_call: Ints
    return_of_call: Ints
    copies: dict[int, tuple[int, bool]]


def host_tasks(trace: Trace, pieces: Pieces, outer: Ints, pairs: list[tuple[int, int]]) -> HostTasks:
    """Pieces with waiting calls (``pairs`` of call and activity) shortened to what follows the wait, and blocking
    copies split."""
    start, end = pieces.start_ns.copy(), pieces.end_ns.copy()
    of_call = np.full(len(trace.calls), -1)
    rows = np.flatnonzero(pieces.call >= 0)
    of_call[pieces.call[rows]] = rows
    of_call = of_call[outer] if len(of_call) else of_call
    copies = {call: row for call, row in blocking_copies(trace).items() if call == outer[call]}
    for call, activity in pairs:
        at = of_call[call]
        start[at] = min(max(start[at], trace.activities.end_ns[activity]), end[at])
    is_return = np.zeros(len(start), np.bool_)
    if copies:
        start, end, of_call, is_return, piece = _split(trace, start, end, of_call, copies)
    else:
        piece = np.arange(len(start))
    back = of_call.copy()
    returns = np.flatnonzero(is_return)
    back[pieces.call[piece[returns]]] = returns
    return HostTasks(piece, start, end, of_call, back, copies)


def _split(
    trace: Trace, start: Ints, end: Ints, of_call: Ints, copies: dict[int, tuple[int, bool]]
) -> tuple[Ints, Ints, Ints, np.ndarray, Ints]:
    activities = trace.activities
    """Start and return of every blocking copy; the return's time starts when the copy lets it."""
    launches = trace.calls.time_us[trace.calls.kind == kinds.LAUNCH]
    typical_ns = int(1e3 * np.median(launches)) if len(launches) else _LAUNCH_NS
    places = np.array(sorted(int(of_call[call]) for call in copies))
    by_place = {int(of_call[call]): value for call, value in copies.items()}
    piece = np.sort(np.concatenate([np.arange(len(start)), places]))
    is_return = np.zeros(len(piece), np.bool_)
    is_return[1:] = piece[1:] == piece[:-1]
    first = np.flatnonzero(~is_return)
    new_start, new_end = start[piece].copy(), end[piece].copy()
    for at in np.flatnonzero(is_return).tolist():
        row, after_end = by_place[int(piece[at])]
        called = new_start[at]
        new_start[at] = (activities.end_ns if after_end else activities.start_ns)[row]
        new_end[at - 1] = min(called + typical_ns, max(int(activities.start_ns[row]), int(called)))
    return new_start, new_end, np.where(of_call >= 0, first[of_call], -1), is_return, piece
