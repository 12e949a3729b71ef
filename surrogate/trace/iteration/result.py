"""`IterationTimes`: predicted iterations beside the measured ones, operators, and what the trace did not say."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from math import exp, log
from typing import Any

from surrogate.trace.iteration.overheads import Overheads
from surrogate.trace.iteration.times import Lack
from surrogate.trace.result import Row, Rows


@dataclass(frozen=True, slots=True)
class IterationTime:
    """One iteration, times in µs.

    ``predicted_us`` runs from the host's start of the iteration to its end, as ``measured_us`` does, behind the
    iterations before it and with the profiler's own cost; ``unprofiled_us`` without that cost; ``alone_us`` is
    max(host, device) with both clocks at 0 at its start and without that cost, the published formula. ``host_us`` is
    the host's part of ``alone_us``, ``device_us`` the sum of the activities' times. ``error_pct`` compares predicted
    with measured, None where the GPU or the batch is another.

    ``coverage`` is the share of device time that was not lacking (0 where the trace holds no device activity),
    ``host_coverage`` the share of host work with overheads of its own name. ``untraced_us`` is what the T1 rule leaves
    out: gaps between siblings above 200 µs. ``input_us`` is input loading, as measured.
    """

    index: int
    label: str
    measured_us: float
    predicted_us: float
    error_pct: float | None
    unprofiled_us: float
    alone_us: float
    host_us: float
    device_us: float
    measured_device_us: float
    input_us: float
    untraced_us: float
    coverage: float
    host_coverage: float


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An outermost operator, means per iteration: ``host_us`` as modelled, times of its activities, their sources."""

    operator: str
    calls: float
    launches: float
    host_us: float
    measured_us: float
    predicted_us: float
    source: str


@dataclass(frozen=True, slots=True, repr=False)
class IterationTimes:
    """Iterations of one trace; ``gpu`` and ``batch`` as predicted for (None where unknown), ``times`` their source."""

    trace: str
    gpu: str | None
    batch: int | None
    times: str
    iterations: tuple[IterationTime, ...]
    operators: tuple[OperatorRow, ...]
    unknown: tuple[Lack, ...]
    overheads: Overheads
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.iterations)

    def __iter__(self) -> Iterator[IterationTime]:
        return iter(self.iterations)

    @property
    def coverage(self) -> float:
        """The share of device time that was not lacking, over all iterations."""
        whole = sum(one.device_us for one in self.iterations)
        return (
            sum(one.device_us * one.coverage for one in self.iterations) / whole
            if whole
            else min(one.coverage for one in self.iterations)
        )

    @property
    def error_geomean_pct(self) -> float | None:
        """Geometric mean of the absolute errors in %, each at least 0.01 %; None where nothing is comparable."""
        errors = [abs(one.error_pct) for one in self.iterations if one.error_pct is not None]
        return exp(sum(log(max(one, 0.01)) for one in errors) / len(errors)) if errors else None

    @property
    def table(self) -> Rows:
        """The iterations as titled rows."""
        where = ", ".join([self.gpu or "unknown GPU", *([f"batch {self.batch}"] if self.batch else [])])
        return Rows(f"Iterations on {where}, {self.times} times", self._rows(), self._notes())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `overheads` by their sources alone."""
        return {
            "trace": self.trace,
            "gpu": self.gpu,
            "batch": self.batch,
            "times": self.times,
            "coverage": self.coverage,
            "error_geomean_pct": self.error_geomean_pct,
            "iterations": list(self._rows()),
            "operators": [asdict(one) for one in self.operators],
            "unknown": [asdict(one) for one in self.unknown],
            "overheads": {"sources": list(self.overheads.sources)},
            "notes": list(self.notes),
        }

    def to_frame(self) -> Any:
        """One row per iteration as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self._rows()), columns=[field.name for field in fields(IterationTime)])

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    def _rows(self) -> tuple[Row, ...]:
        return tuple(asdict(one) for one in self.iterations)

    def _notes(self) -> tuple[str, ...]:
        lacking = [
            f"kept as measured: {one.operator}, {one.count} activities, {one.time_us:.1f} µs in the trace: lacks"
            f" {one.lacks}"
            for one in self.unknown
        ]
        return (*self.notes, *lacking)
