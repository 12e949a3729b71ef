"""What autotuning found: the winner, everything that was tried, and what measuring cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Attempt:
    """One algorithm that was tried: its predicted time, then the measured one or, where it did not run, the reason."""

    algorithm: str
    predicted_us: float | None
    """None for one that was measured earlier and that the ranking does not hold."""
    measured_us: float | None = None
    reason: str = ""
    cached: bool = False
    workspace_bytes: int | None = None
    """As the device said, None where it did not."""
    deterministic: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Field name → value."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Tuned:
    """The fastest algorithm measured; ``algorithm`` and ``time_us`` are None where none ran.

    ``source``: ``measured`` now, or ``cache`` where an earlier measurement won. ``cost_ms`` is the wall-clock time that
    measuring took, warm-up included.
    """

    problem: str
    gpu: str
    library: str
    library_version: str
    algorithm: str | None
    time_us: float | None
    source: str
    tried: tuple[Attempt, ...]
    cost_ms: float

    @property
    def times_us(self) -> Mapping[str, float]:
        """Algorithm → measured time in µs, of those that ran."""
        return {a.algorithm: a.measured_us for a in self.tried if a.measured_us is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"tried": [attempt.to_dict() for attempt in self.tried]}

    def to_frame(self) -> Any:
        """What was tried as a pandas table, in the order tried."""
        import pandas as pd

        return pd.DataFrame([attempt.to_dict() for attempt in self.tried], columns=list(Attempt.__slots__))

    def __repr__(self) -> str:
        best = "nothing ran" if self.time_us is None else f"{self.algorithm} {self.time_us:.1f} µs"
        lines = [
            f"{self.problem} on {self.gpu}: {best} ({self.source}), measuring took {self.cost_ms:.0f} ms"
        ]
        for attempt in self.tried:
            predicted = "–" if attempt.predicted_us is None else f"{attempt.predicted_us:.1f}"
            found = attempt.reason if attempt.measured_us is None else f"{attempt.measured_us:.1f} µs"
            lines.append(f"  {attempt.algorithm:<24} predicted {predicted:>10} µs  {found}")
        return "\n".join(lines)
