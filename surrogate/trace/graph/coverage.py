"""What of a trace is in the graph, and what could not be attached: named and counted, never silently left out."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of a graph's making.

    ``activities_without_call`` keep their place on their stream but follow no launch; ``graph_kernels`` follow the
    launch of their CUDA graph together. ``unexplained_us`` is the time that device tasks waited for something that
    the trace does not show (over 20 µs each, ``unexplained_tasks`` of them): a replay keeps it as it is.
    """

    host_tasks: int = 0
    device_tasks: int = 0
    activities_without_call: int = 0
    graph_kernels: int = 0
    edges: dict[str, int] = field(default_factory=dict)
    syncs: int = 0
    syncs_without_target: int = 0
    waits: int = 0
    waits_without_target: int = 0
    unexplained_tasks: int = 0
    unexplained_us: float = 0.0
    launch_latency_us: float = 0.0
    dispatch_gap_us: float = 0.0

    @property
    def attached_pct(self) -> float:
        """Share of the device tasks that follow a launch call, in percent; 100 where there are none."""
        if not self.device_tasks:
            return 100.0
        return 100.0 * (1 - self.activities_without_call / self.device_tasks)

    def to_dict(self) -> dict[str, Any]:
        """All counts and ``attached_pct`` as plain JSON values."""
        return {"attached_pct": self.attached_pct, **asdict(self)}
