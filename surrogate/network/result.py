"""What a prediction of a whole network is: a time for every layer, sums that say what they cover, and batches and GPUs
side by side."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from surrogate.features.roofline import COMPUTE_BOUND, MEMORY_BOUND, UNDER_UTILISED
from surrogate.network.network import HostTime
from surrogate.network.training import Exchange
from surrogate.report.tables import Table, TableResult

if TYPE_CHECKING:
    import pandas as pd

Key = TypeVar("Key", int, str)
"""A batch or a GPU."""
BOUNDS = (COMPUTE_BOUND, MEMORY_BOUND, UNDER_UTILISED)
"""What limits a kernel: SEER's classes."""
UNMEASURED = ("similar-gpu", "datasheet", "roofline")
"""Sources of times that no measurement on the GPU stands behind."""
MIN_MEASURED_PERCENT = 90
"""Percent of the time that measurements on the GPU stand behind, from which the total does not say so."""
MAX_DISPLAYED_LAYERS = 12
"""Layers that the short form shows: those that take longest."""
TOTALS = (
    "network",
    "gpu",
    "batch",
    "training",
    "gpus",
    "total_us",
    "lower_us",
    "upper_us",
    "kernels_us",
    "coverage",
    "samples_per_s",
    "measured_share",
    "parameters",
    "multiply_adds",
    "memory_bytes",
    "fits",
)
"""What `NetworkTime.to_dict` begins with."""
COMPARED_FIGURES = (
    "total_us",
    "lower_us",
    "upper_us",
    "samples_per_s",
    "memory_bytes",
    "fits",
    "measured_share",
    "coverage",
)
"""Figures of a network that batches and GPUs are compared by."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer's predicted time with its 90 % interval.

    ``algorithm`` and ``workspace_bytes`` belong to convolutions (None and 0 elsewhere); ``bytes`` is compulsory DRAM
    traffic; ``bound`` is one of SEER's classes, "" where the paper's trees tell none; ``source`` says where the time
    comes from (model, roofline, …).
    """

    name: str
    operator: str
    problem: str
    algorithm: str | None
    time_us: float
    lower_us: float
    upper_us: float
    workspace_bytes: int
    flops: int
    bytes: int
    bound: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def longer(self, factor: float, within: float) -> "LayerTime":
        """The same with its time and both ends times ``factor``, and the interval wider by ``within`` on both sides."""
        if factor == within == 1.0:
            return self
        lower_us, upper_us = factor / within * self.lower_us, factor * within * self.upper_us
        return replace(self, time_us=factor * self.time_us, lower_us=lower_us, upper_us=upper_us)


@dataclass(frozen=True, slots=True, repr=False)
class NetworkTime(TableResult):
    """A network on a GPU. Sums hold the layers alone; ``unsupported`` operators are counted, never as zero.

    ``heuristic`` is what the library's own picks take where the source names them: ``convs`` convolutions (``unknown``
    others have no known pick), ``time_us`` under its picks, ``saved_us`` by the best ones. ``outside`` counts
    convolutions unlike anything in the training data, by what was never seen; ``multiply_adds`` are those of
    convolutions, products and attention; ``memory`` is bytes by what holds them (`surrogate.network.memory.memory`),
    empty where not known; ``told`` what the headline adds: what is not in the time, and the arithmetic of fp32.
    """

    network: str
    gpu: str
    layers: tuple[LayerTime, ...]
    batch: int | None = None
    training: bool = False
    ignored: Mapping[str, int] = field(default_factory=dict)
    unsupported: Mapping[str, int] = field(default_factory=dict)
    heuristic: Mapping[str, float] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    parameters: int | None = None
    multiply_adds: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    gpu_memory_bytes: int = 0
    notes: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    host_time: HostTime | None = None
    exchange: Exchange | None = None

    @property
    def memory_bytes(self) -> int | None:
        """Everything that the pass holds on the device at its peak; None where the source does not say."""
        return sum(self.memory.values()) if self.memory else None

    @property
    def fits(self) -> bool | None:
        """Whether the GPU's memory holds it."""
        return None if self.memory_bytes is None else self.memory_bytes <= self.gpu_memory_bytes

    @property
    def measured_share(self) -> float:
        """Share of the time that kernels measured on this very GPU stand behind; the rest is from specification."""
        return _share(sum(x.time_us for x in self.layers if x.source not in UNMEASURED), self.kernels_us)

    @property
    def kernels_us(self) -> float:
        """Sum of all layers, as if one ran after another without gaps."""
        return sum(layer.time_us for layer in self.layers)

    @property
    def total_us(self) -> float:
        """The longer one of the kernels and their launches, and the host's floor."""
        return self._sum("time_us", 1.0)

    @property
    def lower_us(self) -> float:
        """The same of the lower ends, as if all errors had the same sign."""
        return self._sum("lower_us", 1 / self.host_time.within if self.host_time else 1.0)

    @property
    def upper_us(self) -> float:
        """The same of the upper ends."""
        return self._sum("upper_us", self.host_time.within if self.host_time else 1.0)

    def _sum(self, end: str, factor: float) -> float:
        """Of an expected time or an end; ``factor``: how many times longer the host takes than expected."""
        device_us = sum(getattr(part, end) for part in (*self.layers, self.exchange) if part)
        host = self.host_time
        return device_us if host is None else max(device_us, factor * host.launch_us) + factor * host.floor_us

    @property
    def gpus(self) -> int:
        """How many GPUs train together, each with ``batch`` samples."""
        return self.exchange.gpus if self.exchange else 1

    @property
    def coverage(self) -> float:
        """Operators in the sum / (those and the unsupported ones)."""
        known = len(self.layers)
        return known / (known + sum(self.unsupported.values())) if known else 0.0

    @property
    def samples_per_s(self) -> float | None:
        """Throughput of all `gpus`, where the batch is known."""
        return None if self.batch is None or not self.layers else self.gpus * self.batch / self.total_us * 1e6

    def classes(self) -> dict[str, dict[str, float]]:
        """Share of each class by number and by time: of convolutions, as SEER reports it, or of all layers that have
        one where the network has no convolutions."""
        known = [layer for layer in self.layers if layer.bound]
        counted = [layer for layer in known if layer.algorithm is not None] or known
        total = sum(layer.time_us for layer in counted)
        return {
            name: {
                "layers": _share(sum(layer.bound == name for layer in counted), len(counted)),
                "time": _share(sum(layer.time_us for layer in counted if layer.bound == name), total),
            }
            for name in BOUNDS
        }

    def by_type(self) -> list[dict[str, Any]]:
        """Count, time, share, FLOPs and bytes of every operator, longest first."""
        return aggregated(self.layers, "operator")

    def by_algorithm(self) -> list[dict[str, Any]]:
        """The same for every algorithm that convolutions were given."""
        return aggregated([layer for layer in self.layers if layer.algorithm is not None], "algorithm")

    def to_dict(self) -> dict[str, Any]:
        """``total_us, coverage, layers, ignored, unsupported``, and what follows from them."""
        return {
            **{name: getattr(self, name) for name in TOTALS},
            **{name: getattr(self.host_time, name, None) for name in ("runtime", "host", "launch_us", "floor_us")},
            "all_reduce_us": getattr(self.exchange, "all_reduce_us", None),
            "waits_us": getattr(self.exchange, "time_us", None),
            "memory": dict(self.memory),
            "flops": sum(layer.flops for layer in self.layers),
            "bytes": sum(layer.bytes for layer in self.layers),
            "classes": self.classes(),
            "heuristic": dict(self.heuristic),
            "layers": [layer.to_dict() for layer in self.layers],
            "ignored": dict(self.ignored),
            "unsupported": dict(self.unsupported),
            "outside_domain": dict(self.outside),
            "notes": [*self.told, *self.notes],
        }

    def to_frame(self) -> "pd.DataFrame":
        """A DataFrame, one row per layer."""
        import pandas as pd

        return pd.DataFrame([layer.to_dict() for layer in self.layers], columns=list(LayerTime.__slots__))

    def headline(self) -> str:
        """One line: what, where, how long, and how much of it is known."""
        where, each, together = self.gpu, "", ""
        if self.gpus > 1:
            where, each, together = f"{self.gpus} × {self.gpu}", " per GPU", f" of all {self.gpus} GPUs"
        batch = f", batch {self.batch}{each}" if self.batch is not None else ""
        rate = f", {self.samples_per_s:,.0f} samples/s{together}" if self.samples_per_s else ""
        room = ""
        if self.fits is False and self.memory_bytes:
            needed, held = self.memory_bytes / 2**30, self.gpu_memory_bytes / 2**30
            room = f"; DOES NOT FIT: needs {needed:.2f} of {held:.2f} GiB"
        kind = "training iteration" if self.training else "forward"
        share = round(100 * self.measured_share)
        measured = f"; {share} % of the kernels' time measured on {self.gpu}" if share < MIN_MEASURED_PERCENT else ""
        if not self.layers:
            return f"{self.network} on {where}{batch}, {kind}: time not known, no operator of it is; coverage 0 %"
        return (
            f"{self.network} on {where}{batch}, {kind}: {self.total_us / 1e3:.3f} ms"
            f" [{self.lower_us / 1e3:.3f}, {self.upper_us / 1e3:.3f}]{rate}; coverage {100 * self.coverage:.1f} %"
            f"{measured}{''.join(f'; {text}' for text in self.told)}{room}"
        )

    def parts(self) -> str:
        """One line: what the total is made of; "" where it is the kernels' sum."""
        waits = ""
        if self.exchange:
            sums = f"gradients' all-reduce {self.exchange.all_reduce_us / 1e3:.3f} ms"
            waits = f", {sums}, of which {self.exchange.time_us / 1e3:.3f} ms come after the backward pass"
        host = self.host_time
        if host is None:
            return f"kernels {self.kernels_us / 1e3:.3f} ms{waits}" if waits else ""
        device_us = self.kernels_us + (self.exchange.time_us if self.exchange else 0.0)
        exchanges = self.exchange is not None and self.exchange.all_reduce_us > self.kernels_us
        device = "the gradients' all-reduce bounds" if exchanges else "kernels bound"
        bound = "launches bound" if host.launch_us > device_us else device
        return (
            f"{bound} it: kernels {self.kernels_us / 1e3:.3f} ms{waits}; {host.runtime} on a {host.host} host"
            f" launches them in {host.launch_us / 1e3:.3f} ms, and {host.floor_us / 1e3:.3f} ms before and behind"
        )

    def table(self) -> Table:
        """What people see: the layers that take longest."""
        longest = sorted(self.layers, key=lambda layer: -layer.time_us)[:MAX_DISPLAYED_LAYERS]
        names = ("name", "operator", "problem", "algorithm", "time_us", "bound")
        left = len(self.layers) - MAX_DISPLAYED_LAYERS
        parts = self.parts()
        notes = [*([f"… {left} more layers"] if left > 0 else []), *([parts] if parts else []), *self.notes]
        records = [{name: getattr(layer, name) for name in names} for layer in longest]
        return Table(records, title=self.headline(), notes=notes)


def aggregated(layers: Iterable[LayerTime], key: str) -> list[dict[str, Any]]:
    """Count, time, share of the time, FLOPs and bytes of the layers of every value of ``key``, longest first."""
    groups: dict[str, list[LayerTime]] = {}
    for layer in layers:
        groups.setdefault(str(getattr(layer, key)), []).append(layer)
    total = sum(layer.time_us for part in groups.values() for layer in part)
    rows = [
        {
            key: name,
            "count": len(part),
            "time_us": sum(layer.time_us for layer in part),
            "share": _share(sum(layer.time_us for layer in part), total),
            "flops": sum(layer.flops for layer in part),
            "bytes": sum(layer.bytes for layer in part),
        }
        for name, part in groups.items()
    ]
    return sorted(rows, key=lambda row: -row["time_us"])


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def best_key(times: Mapping[Key, NetworkTime]) -> Key | None:
    """The key of highest throughput among those that fit, the first of equals; None where there is none."""
    fitting = _fitting(times)
    return min(fitting, key=lambda key: fitting[key].total_us / (fitting[key].batch or 1), default=None)


def comparison_records(name: str, times: Mapping[Key, NetworkTime]) -> list[dict[str, Any]]:
    """A record per batch or GPU, which stands under ``name``.

    ``best`` marks that of highest throughput among those that fit, which lies inside the intervals of ``rivals``; a
    GPU's ``speedup`` is over the first.
    """
    best = best_key(times)
    records = []
    for key, time in times.items():
        record = {name: key, **{figure: getattr(time, figure) for figure in COMPARED_FIGURES}, "best": key == best}
        if name == "gpu":
            first, own = (each.total_us / (each.batch or 1) for each in (next(iter(times.values())), time))
            record |= {"batch": time.batch, "speedup": first / own if own else None}
        records.append(record | {"rivals": _rivals(times, key) if key == best else []})
    return records


def _rivals(times: Mapping[Key, NetworkTime], best: Key) -> list[Key]:
    """The others whose throughput may be higher."""
    best_us = times[best].total_us / (times[best].batch or 1)
    return [k for k, time in _fitting(times).items() if k != best and time.lower_us / (time.batch or 1) < best_us]


def _fitting(times: Mapping[Key, NetworkTime]) -> dict[Key, NetworkTime]:
    """Those that the memory holds and of which anything is known."""
    return {key: time for key, time in times.items() if time.layers and time.fits is not False}
