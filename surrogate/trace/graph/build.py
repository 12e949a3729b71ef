"""A trace → its dependency graph (Daydream, ATC 2020, section 4.2), with all six kinds of dependencies."""

from dataclasses import replace

import numpy as np

from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.graph import tasks as t
from surrogate.trace.graph.assemble import Assembly
from surrogate.trace.graph.coverage import Coverage
from surrogate.trace.graph.device import Delays, Lanes, delays_of, lanes_of
from surrogate.trace.graph.handover import Burst, bursts, main_thread
from surrogate.trace.graph.host import Pieces, host_pieces, outermost_calls
from surrogate.trace.graph.host_tasks import HostTasks, host_tasks
from surrogate.trace.graph.order import in_order
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.graph.waits import (
    Launched,
    awaited_by_calls,
    awaited_by_streams,
)
from surrogate.trace.layers import Layers, find_layers


def graph_of(trace: Trace, layers: Layers | None = None) -> Graph:
    """The dependency graph of ``trace``; unchanged, its simulation replays the measured times.

    Time 0 is the first event's start. Raises nothing: what cannot be attached is counted in ``graph.coverage``.
    """
    layers = find_layers(trace) if layers is None else layers
    main = main_thread(trace)
    found = bursts(trace, main)
    cuts = np.array([x for one in layers.iterations for x in (one.start_ns, one.end_ns)], dtype=np.int64)
    pieces = host_pieces(trace, layers, main, found, cuts)
    return _Maker(trace, layers, main, found, pieces).graph()


class _Maker:
    """Numbers host tasks, then device tasks, then marks, collects edges, and sorts."""

    def __init__(self, trace: Trace, layers: Layers, main: int, found: list[Burst], pieces: Pieces) -> None:
        self.trace, self.layers, self.main, self.bursts, self.pieces = trace, layers, main, found, pieces
        self.assembly = Assembly(trace, layers, main, found, pieces, trace.span_ns[0])
        self.edges: list[tuple[Ints, Ints, int, np.ndarray, bool]] = []
        self.launched = Launched.of(trace)
        self.outer = outermost_calls(trace)

    def graph(self) -> Graph:
        pairs, syncs, lost_syncs = awaited_by_calls(self.trace, self.launched)
        host = host_tasks(self.trace, self.pieces, self.outer, pairs)
        lanes = lanes_of(self.trace)
        stream_pairs, waits, lost_waits = awaited_by_streams(self.trace, self.launched)
        branches = np.flatnonzero(lanes.branch >= 0)
        delays = delays_of(self.trace, lanes, self._awaited(stream_pairs, lanes))
        base = len(host.piece)
        self._launch_edges(host, delays, base)
        for kind, before, after in (
            (t.EVENT_WAIT, [a for a, _ in stream_pairs], [b for _, b in stream_pairs]),
            (t.LANE, lanes.branch[branches].tolist(), branches.tolist()),
        ):
            after = np.array(after, np.int64)
            self._edge(np.array(before, np.int64) + base, after + base, kind, delays.event_us[after])
        self._sync_edges(host, pairs, base)
        graph = self.assembly.graph(host, lanes, delays)
        self._handovers(host)
        self._last_marks(host, base)
        counts: dict[str, int] = dict.fromkeys(t.EDGE_KINDS, 0)
        for src, _, kind, _, _ in self.edges:
            counts[t.EDGE_KINDS[kind]] += len(src)
        activities = self.trace.activities
        coverage = Coverage(
            base, len(activities), int((activities.call < 0).sum()), int((activities.graph_node > 0).sum()), counts,
            syncs, lost_syncs, waits, lost_waits, int((delays.unexplained_us > 0).sum()),
            float(delays.unexplained_us.sum()), delays.latency_us, delays.typical_gap_us,
        )  # fmt: skip
        src, dst, kind, lag, from_start = self._edge_columns()
        whole = replace(
            graph, src=src, dst=dst, edge_kind=kind, lag_us=lag, from_start=from_start, coverage=coverage
        )
        return in_order(self.assembly.with_marks_in_place(whole, host))

    def _edge(self, src: Ints, dst: Ints, kind: int, lag_us: np.ndarray, from_start: bool = False) -> None:
        self.edges.append((src, dst, kind, lag_us, from_start))

    def _edge_columns(self) -> tuple[np.ndarray, ...]:
        counts = [len(one[0]) for one in self.edges]
        return (
            np.concatenate([one[0] for one in self.edges]).astype(np.int64),
            np.concatenate([one[1] for one in self.edges]).astype(np.int64),
            np.repeat(np.array([one[2] for one in self.edges], np.int64), counts),
            np.concatenate([one[3] for one in self.edges]).astype(float),
            np.repeat(np.array([one[4] for one in self.edges], np.bool_), counts),
        )

    def _awaited(self, pairs: list[tuple[int, int]], lanes: Lanes) -> np.ndarray:
        found = np.full(len(self.trace.activities), np.nan)
        for before, after in [*pairs, *((int(b), int(a)) for a, b in enumerate(lanes.branch) if b >= 0)]:
            found[after] = np.fmax(found[after], self.trace.activities.end_ns[before])
        return found

    def _launch_edges(self, host: HostTasks, delays: Delays, base: int) -> None:
        activities = self.trace.activities
        rows = np.flatnonzero(activities.call >= 0)
        call = activities.call[rows]
        src = host.of_call[call]
        # A driver call inside a runtime call launches later than the runtime call starts.
        inner = (self.trace.calls.start_ns[call] - host.start_ns[src]) / 1e3
        self._edge(src, rows + base, t.LAUNCH, delays.launch_us[rows] + inner, from_start=True)

    def _sync_edges(self, host: HostTasks, pairs: list[tuple[int, int]], base: int) -> None:
        src = np.array([activity for _, activity in pairs], np.int64)
        dst = np.array([host.of_call[call] for call, _ in pairs], np.int64)
        late = (
            np.minimum((host.start_ns[dst] - self.trace.activities.end_ns[src]) / 1e3, 0.0)
            if len(src)
            else src
        )
        self._edge(src + base, dst, t.SYNC, late)
        for after_end in (True, False):
            chosen = [(call, row) for call, (row, ends) in host.copies.items() if ends == after_end]
            src = np.array([row for _, row in chosen], np.int64) + base
            dst = np.array([host.return_of_call[call] for call, _ in chosen], np.int64)
            self._edge(src, dst, t.SYNC, np.zeros(len(src)), from_start=not after_end)

    def _last_marks(self, host: HostTasks, base: int) -> None:
        """An iteration that ends with the trace ends with all of it: device tasks and other threads included."""
        on_main = self.pieces.thread[host.piece] == self.main
        last_ns = int(host.end_ns[on_main].max()) if on_main.any() else -1
        activities = self.trace.activities
        last = [
            int(np.flatnonzero(activities.stream == s)[-1]) + base
            for s in np.unique(activities.stream).tolist()
        ]
        threads = self.pieces.thread[host.piece]
        last += [int(np.flatnonzero(threads == x)[-1]) for x in np.unique(threads).tolist() if x != self.main]
        for place, one in enumerate(self.layers.iterations if self.main >= 0 else ()):
            if one.end_ns > last_ns:
                mark = np.full(len(last), base + len(activities) + 2 * place + 1)
                self._edge(np.array(last, np.int64), mark, t.END, np.zeros(len(last)))

    def _handovers(self, host: HostTasks) -> None:
        threads = self.pieces.thread[host.piece]
        on_main = np.flatnonzero(threads == self.main)
        for burst in self.bursts:
            own = np.flatnonzero(threads == burst.thread)
            inside = own[(host.start_ns[own] >= burst.start_ns) & (host.end_ns[own] <= burst.end_ns)]
            if not len(inside):
                continue
            before = on_main[host.start_ns[on_main] < burst.start_ns]
            if len(before):
                self._after(int(before[-1]), int(inside[0]), burst.start_ns, host)
            for _, stop in burst.idle:
                after = on_main[host.start_ns[on_main] >= stop]
                done = inside[host.start_ns[inside] < stop]
                if len(after) and len(done):
                    self._after(int(done[-1]), int(after[0]), int(host.start_ns[after[0]]), host)

    def _after(self, src: int, dst: int, time_ns: int, host: HostTasks) -> None:
        running = host.end_ns[src] > time_ns
        reference = host.start_ns[src] if running else host.end_ns[src]
        lag = np.array([(time_ns - reference) / 1e3])
        self._edge(np.array([src]), np.array([dst]), t.HANDOVER, lag, bool(running))
