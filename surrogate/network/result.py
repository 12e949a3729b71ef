"""The predicted time of a whole network: its layers, sums, rates and costs; and comparisons of batches and GPUs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, floor, hypot, inf, isnan, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from surrogate.features import COMPUTE_BOUND, MEMORY_BOUND, UNDER_UTILISED, InputError
from surrogate.features.gpu import gpu as gpu_by_name
from surrogate.network.network import TEXTS, UNKNOWN_WORK, Cluster, HostTime, Work, refuse
from surrogate.report.tables import Table, TableResult, interval_us

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.prediction.results import Estimate

BOUNDS = (COMPUTE_BOUND, MEMORY_BOUND, UNDER_UTILISED)
"""SEER's classes of kernels by their limit."""
SOURCES_WITHOUT_GPU_DATA = ("similar-gpu", "datasheet", "roofline")
"""Sources of times that use no measurement on the GPU itself."""
MIN_MEASURED_PERCENT = 90
"""The headline states the measured share of the time if it is below this many percent."""
MAX_DISPLAYED_MISSING = 3
"""Number of unsupported operators that the headline names."""
MAX_DISPLAYED_LAYERS = 12
"""Number of rows of layers in the short table; it shows the longest ones."""
MAX_MISSING = 0.02
"""Maximum share of the FLOPs that a compared time may lack beside the most complete time."""
MAX_SHARE = 0.97
"""Maximum share of the usable memory that the largest batch fills; the rest is for the allocator's fragments."""
TOTALS = TEXTS["fields"]["totals"].split()
"""First keys of `NetworkTime.to_dict`."""


class Peak(NamedTuple):
    """The arithmetic of most of a network's work, in words, and the GPU's dense peak for it in TFLOP/s."""

    name: str
    tflops: float


class ProblemTime(NamedTuple):
    """A problem's time on the GPU in µs, its 90 % interval and the interval's half width in log time.

    ``estimate`` is the estimate of the chosen algorithm; it is None for a problem that has no choice of algorithms.
    ``common_share`` is the same as in `LayerTime`.
    """

    time_us: float
    lower_us: float
    upper_us: float
    half_width: float
    source: str
    estimate: "Estimate | None" = None
    common_share: float = 1.0


@dataclass(frozen=True, slots=True)
class GradientExchange:
    """The messages between the GPUs of a ``cluster`` that train together.

    ``messages_us`` is the time of all messages in µs. ``time_us`` is the time by which they lengthen the iteration;
    ``lower_us`` and ``upper_us`` are the ends of its interval.
    """

    cluster: Cluster
    messages_us: float
    time_us: float
    lower_us: float
    upper_us: float


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The predicted time of one layer with its 90 % interval.

    Parameters
    ----------
    name, operator
        Name of the layer in the network, and the network's own name of its operator.
    problem
        The problem as text.
    algorithm
        Chosen algorithm of a convolution; None for all other operators.
    time_us, lower_us, upper_us
        Time and 90 % interval, in µs.
    workspace_bytes
        Workspace of the algorithm; 0 without one.
    flops
        Floating-point operations.
    bytes
        Compulsory DRAM traffic.
    bound
        One of SEER's classes; "" if the paper's trees give none.
    source
        Source of the time, such as model or roofline.
    common_share
        Share of the half width in log time that all kernels of this source have in common. It remains in a sum of many
        kernels, where the rest averages out.
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
    common_share: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def in_sum(self, end: str, concentration: float) -> float:
        """Return the time, or an end of the interval in a sum, in µs; ``concentration`` is Σ wᵢ² (`NetworkTime`)."""
        if end == "time_us" or self.common_share == 1.0:
            return getattr(self, end)
        share = sqrt(self.common_share**2 + (1 - self.common_share**2) * concentration)
        factor = (self.upper_us / self.time_us) ** share
        return self.time_us * factor if end == "upper_us" else max(self.time_us / factor, self.lower_us)


@dataclass(frozen=True, slots=True, repr=False)
class NetworkTime(TableResult):
    """The predicted time of a network on a GPU.

    Sums contain the predicted layers only; unsupported operators are counted, but never as zero time. Errors of the
    kernels of one network have a common part and independent parts (`LayerTime.common_share`). In the sum's half width,
    the squares of the independent parts count with Σ wᵢ², where wᵢ is a problem's share of the time of such kernels.

    Parameters
    ----------
    network, gpu
        Names of the network and of the GPU.
    layers
        Times of the layers, in the order of the network.
    batch
        Samples per pass on each GPU; None if unknown.
    training
        Whether the time is a training iteration's.
    accumulate
        Number of microbatches of ``batch`` samples in the iteration.
    ignored, unsupported
        Number of operators by name. Ignored operators have no kernel, unsupported operators no prediction.
    missing
        Estimated work of the unsupported operators with a name; a name without an entry has unknown work.
    heuristic
        Times of the library's own picks, if the source names them. ``convs`` is the number of picks with a predicted
        time, ``unknown`` the number of other convolutions. ``time_us`` is the time of the picks, ``saved_us`` the time
        that the fastest algorithms save.
    outside_domain
        Number of convolutions outside the training data, by the setting or size that was never measured.
    parameters
        Stored weights on a GPU.
    multiply_adds
        Multiply-adds of convolutions, products and attention on a GPU.
    memory
        Bytes by use (`surrogate.network.memory.memory`); empty if unknown.
    gpu_memory_bytes
        Memory of the GPU that a program can use.
    notes, headline_notes
        Notes on the time; the headline states the second ones.
    step_factor
        Time of the kernels one after another / sum of their times alone.
    half_width
        Half width of the sum in log time; None: it follows from the layers' ends.
    min_us
        Time of arithmetic and bytes at peak rates, below which no interval of a server's step begins; else 0.
    host_time
        Time that the host takes to launch the kernels; None: launches are not in the time.
    exchange
        Messages between GPUs that train together; None on one GPU.
    tokens
        Tokens of a batch on each GPU; None if the source has no tokens.
    model_flops
        FLOPs of products, convolutions and attention of a pass on each GPU, without recomputed activations. Causal
        attention counts the pairs that it computes.
    peak
        The GPU's peak in the arithmetic of most of these FLOPs; None if none is registered.
    """

    network: str
    gpu: str
    layers: tuple[LayerTime, ...]
    batch: int | None = None
    training: bool = False
    accumulate: int = 1
    ignored: Mapping[str, int] = field(default_factory=dict)
    unsupported: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, Work] = field(default_factory=dict)
    heuristic: Mapping[str, float] = field(default_factory=dict)
    outside_domain: Mapping[str, int] = field(default_factory=dict)
    parameters: int | None = None
    multiply_adds: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    gpu_memory_bytes: int = 0
    notes: tuple[str, ...] = ()
    headline_notes: tuple[str, ...] = ()
    host_time: HostTime | None = None
    step_factor: float = 1.0
    half_width: float | None = None
    min_us: float = 0.0
    exchange: GradientExchange | None = None
    tokens: int | None = None
    model_flops: int = 0
    peak: Peak | None = None

    @property
    def memory_bytes(self) -> int | None:
        """Peak of the bytes on the device; None if the source does not say."""
        return sum(self.memory.values()) if self.memory else None

    @property
    def fits(self) -> bool | None:
        """Whether the memory of the GPU is large enough; None if unknown."""
        return None if self.memory_bytes is None else self.memory_bytes <= self.gpu_memory_bytes

    @property
    def measured_share(self) -> float:
        """Share of the time that is predicted from measurements on this GPU; the rest comes from datasheets."""
        return _share(sum(x.time_us for x in self.layers if x.source not in SOURCES_WITHOUT_GPU_DATA), self.kernels_us)

    @property
    def kernels_us(self) -> float:
        """Sum of all layers in µs, without gaps between kernels."""
        return sum(layer.time_us for layer in self.layers)

    @property
    def total_us(self) -> float:
        """Total time in µs: the longer of kernels and launches, plus the host's floor."""
        return self._sum("time_us", 1.0)

    @property
    def lower_us(self) -> float:
        """Sum of the lower ends in µs, as if all common errors had the same sign."""
        return self._sum("lower_us", 1 / self.host_time.interval_factor if self.host_time else 1.0)

    @property
    def upper_us(self) -> float:
        """Sum of the upper ends in µs, as if all common errors had the same sign."""
        return self._sum("upper_us", self.host_time.interval_factor if self.host_time else 1.0)

    def _sum(self, end: str, factor: float) -> float:
        """Return the total of a time or an interval end; the host takes ``factor`` times its expected time."""
        times_us: dict[str, float] = defaultdict(float)
        for layer in self.layers:
            times_us[layer.problem] += layer.time_us * (layer.common_share < 1.0)
        concentration = sum(us**2 for us in times_us.values()) / (sum(times_us.values()) or 1.0) ** 2
        device_us = self.step_factor * sum(layer.in_sum(end, concentration) for layer in self.layers)
        if self.half_width is not None and end != "time_us":
            ends = {"lower_us": max(device_us, self.kernels_us * exp(-self.half_width))}
            device_us = ends.get(end, self.kernels_us * exp(self.half_width))
        if end == "lower_us":
            device_us = max(device_us, min(self.min_us, self.kernels_us))
        device_us += getattr(self.exchange, end, 0.0)
        host = self.host_time
        return device_us if host is None else max(device_us, factor * host.launch_us) + factor * host.floor_us

    @property
    def gpus(self) -> int:
        """Number of GPUs that train together, each with ``batch`` samples."""
        return self.exchange.cluster.gpus if self.exchange else 1

    @property
    def missing_flops(self) -> float | None:
        """Estimated FLOPs of the unsupported operators; None if the sizes of one are unknown."""
        return self._missing("flops")

    @property
    def missing_bytes(self) -> float | None:
        """Estimated DRAM traffic of the unsupported operators in bytes; None if the sizes of one are unknown."""
        return self._missing("bytes")

    @property
    def coverage(self) -> float | None:
        """Share of the FLOPs that is in the sum; None if `missing_flops` is unknown."""
        return self._coverage("flops")

    @property
    def coverage_bytes(self) -> float | None:
        """Share of the DRAM traffic that is in the sum; None if `missing_bytes` is unknown."""
        return self._coverage("bytes")

    def _missing(self, part: str) -> float | None:
        works = [self.missing.get(name, UNKNOWN_WORK) for name in self.unsupported]
        total = sum(getattr(work, part) for work in works)
        return None if isnan(total) else total

    def _coverage(self, part: str) -> float | None:
        if not self.layers:
            return 0.0
        timed, missing = sum(getattr(layer, part) for layer in self.layers), self._missing(part)
        return None if missing is None else timed / (timed + missing) if missing else 1.0

    @property
    def step_samples(self) -> int | None:
        """Samples of a pass on all `gpus` together; None if the batch or all layers are unknown."""
        return None if self.batch is None or not self.layers else self.gpus * self.accumulate * self.batch

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of all `gpus` together; None if the batch or all layers are unknown."""
        return None if self.step_samples is None else self.step_samples / self.total_us * 1e6

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all `gpus` together; None if the source has no tokens."""
        rate = self.samples_per_s
        return rate * self.tokens / self.batch if rate and self.batch and self.tokens else None

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        """`tokens_per_s` per GPU."""
        return None if self.tokens_per_s is None else self.tokens_per_s / self.gpus

    @property
    def tflops_per_s(self) -> float | None:
        """TFLOP/s of a GPU, of `model_flops`; None without products, convolutions and attention."""
        return self.model_flops / self.total_us / 1e6 if self.layers and self.model_flops else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: `tflops_per_s` / the peak of the ``peak`` arithmetic; None without a peak."""
        return self.tflops_per_s / self.peak.tflops if self.tflops_per_s and self.peak else None

    def cost(self, price: float | None = None, samples: int | None = None) -> dict[str, float]:
        """Return what a pass costs; figures without their data (price, tokens, samples) are left out.

        Parameters
        ----------
        price
            US dollars per GPU and hour.
        samples
            Samples of an epoch. Its last step may have fewer samples; it takes as long as any other.

        Returns
        -------
        dict
            ``usd_per_step``, ``usd_per_million_tokens``, ``epoch_hours`` and ``usd_per_epoch``.
        """
        costs: dict[str, float] = {}
        usd_per_us = None if price is None else price * self.gpus / 3.6e9
        if usd_per_us is not None and self.layers:
            costs["usd_per_step"] = self.total_us * usd_per_us
            if self.tokens_per_s:
                costs["usd_per_million_tokens"] = 1e12 * usd_per_us / self.tokens_per_s
        if samples is not None and self.step_samples:
            epoch_us = ceil(samples / self.step_samples) * self.total_us
            costs["epoch_hours"] = epoch_us / 3.6e9
            if usd_per_us is not None:
                costs["usd_per_epoch"] = epoch_us * usd_per_us
        return costs

    def classes(self) -> dict[str, dict[str, float]]:
        """Return the share of each of SEER's classes, by number of layers and by time.

        As in the paper, only convolutions count. If the network has none, all layers with a class count.
        """
        classified = [layer for layer in self.layers if layer.bound]
        counted = [layer for layer in classified if layer.algorithm is not None] or classified
        total = sum(layer.time_us for layer in counted)
        return {
            name: {
                "layers": _share(sum(layer.bound == name for layer in counted), len(counted)),
                "time": _share(sum(layer.time_us for layer in counted if layer.bound == name), total),
            }
            for name in BOUNDS
        }

    def by_type(self) -> list[dict[str, Any]]:
        """Return count, time, share, FLOPs and bytes of each operator, longest first."""
        return aggregated(self.layers, "operator")

    def by_algorithm(self) -> list[dict[str, Any]]:
        """Return count, time, share, FLOPs and bytes of each algorithm of convolutions, longest first."""
        return aggregated([layer for layer in self.layers if layer.algorithm is not None], "algorithm")

    def to_dict(self) -> dict[str, Any]:
        """Return totals, layers, ignored and unsupported operators, and derived figures as JSON values."""
        return {
            **{name: getattr(self, name) for name in TOTALS},
            "peak": self.peak._asdict() if self.peak else None,
            **{name: getattr(self.host_time, name, None) for name in ("runtime", "host", "launch_us", "floor_us")},
            "all_reduce_us": getattr(self.exchange, "messages_us", None),
            "waits_us": getattr(self.exchange, "time_us", None),
            "memory": dict(self.memory),
            "flops": sum(layer.flops for layer in self.layers),
            "bytes": sum(layer.bytes for layer in self.layers),
            "classes": self.classes(),
            "heuristic": dict(self.heuristic),
            "layers": [layer.to_dict() for layer in self.layers],
            **{name: dict(getattr(self, name)) for name in ("ignored", "unsupported")},
            **{name: getattr(self, name) for name in ("missing_flops", "missing_bytes")},
            "outside_domain": dict(self.outside_domain),
            "notes": [*self.headline_notes, *self.notes],
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per layer."""
        import pandas as pd

        return pd.DataFrame([layer.to_dict() for layer in self.layers], columns=list(LayerTime.__slots__))

    def headline(self) -> str:
        """Return one line: network, GPU, time, the share of the arithmetic in it, and the unsupported operators."""
        device, per_gpu, all_gpus = self.gpu, "", ""
        if self.gpus > 1:
            device, per_gpu, all_gpus = f"{self.gpus} × {self.gpu}", " per GPU", f" of all {self.gpus} GPUs"
        microbatches = f"{self.accumulate} × " if self.accumulate > 1 else ""
        batch = f", batch {microbatches}{self.batch}{per_gpu}" if self.batch is not None else ""
        tokens = f", {_rate(self.tokens_per_s)} tokens/s" if self.tokens_per_s else ""
        rate = f", {_rate(self.samples_per_s)} samples/s{tokens}{all_gpus}" if self.samples_per_s else ""
        memory, needed, available = "", (self.memory_bytes or 0) / 2**30, self.gpu_memory_bytes / 2**30
        if needed > MAX_SHARE * available:
            verdict = "fits barely" if self.fits else "DOES NOT FIT"
            memory = f"; {verdict}: needs {needed:.2f} of {available:.2f} GiB"
        kind = "training iteration" if self.training else "forward"
        share = round(100 * self.measured_share)
        measured = f"; {share} % of the kernels' time measured on {self.gpu}" if share < MIN_MEASURED_PERCENT else ""
        if not self.layers:
            return f"{self.network} on {device}{batch}, {kind}: time unknown; {self._coverage_text()}"
        return (
            f"{self.network} on {device}{batch}, {kind}: {self.total_us / 1e3:.3f} ms"
            f" [{self.lower_us / 1e3:.3f}, {self.upper_us / 1e3:.3f}]{rate}; {self._coverage_text()}"
            f"{measured}{''.join(f'; {text}' for text in self.headline_notes)}{memory}"
        )

    def _coverage_text(self) -> str:
        """Return the coverage and the names of the unsupported operators, those with most work first."""

        def size(name: str) -> tuple[bool, Work]:
            work = self.missing.get(name, UNKNOWN_WORK)
            return not isnan(work.flops), Work(-work.flops, -work.bytes)

        share = "unknown" if self.coverage is None else f"{floor(1000 * self.coverage) / 10:.1f} %"
        names = sorted(self.unsupported, key=size)
        listed = [f"{self.unsupported[name]} × {name}" for name in names[:MAX_DISPLAYED_MISSING]]
        hidden = len(names) - len(listed)
        more = f" and {hidden} more" if hidden else ""
        return f"coverage {share}" + (f", not in the sum: {', '.join(listed)}{more}" if listed else "")

    def breakdown(self) -> str:
        """Return one line with the parts of the total; "" if the total is the sum of the kernels."""
        host, exchange = self.host_time, self.exchange
        device_us = self.step_factor * self.kernels_us
        bound, kernels = "kernels bound", f"kernels {self.kernels_us / 1e3:.3f} ms"
        if self.step_factor > 1:
            kernels += f" × {self.step_factor:g} in a training step"
        if exchange:
            is_sharded = exchange.cluster.is_sharded
            messages = "gathers and scatters" if is_sharded else "gradients' all-reduce"
            sent_ms, waits_ms = exchange.messages_us / 1e3, exchange.time_us / 1e3
            kernels += f", {messages} {sent_ms:.3f} ms, {waits_ms:.3f} ms of it not hidden by computation"
            if exchange.messages_us > device_us:
                bound = f"the {messages} {'bound' if is_sharded else 'bounds'}"
            device_us += exchange.time_us
        if host is None:
            return kernels if self.step_factor > 1 or exchange else ""
        if host.launch_us > device_us:
            bound = "launches bound"
            kernels += "; the messages add no time, since launches take longer" if exchange else ""
        texts = {"bound": bound, "kernels": kernels, "runtime": host.runtime, "host": host.host}
        times_ms = {"launch_ms": host.launch_us / 1e3, "floor_ms": host.floor_us / 1e3}
        return TEXTS["notes"]["launches"].format(**texts, **times_ms)

    def table(self) -> Table:
        """Return the table of the layers that take longest."""
        names = ("name", "operator", "problem", "algorithm", "time_us", "bound")
        records, hidden = longest_layers(self.layers, names, MAX_DISPLAYED_LAYERS)
        breakdown = self.breakdown()
        notes = [*([f"… {hidden} more layers"] if hidden > 0 else []), *([breakdown] if breakdown else []), *self.notes]
        return Table(records, title=self.headline(), notes=notes)


def longest_layers(layers: Iterable[LayerTime], names: Iterable[str], rows: int) -> tuple[list[dict[str, Any]], int]:
    """Return the fields ``names`` of at most ``rows`` layers that take longest, and the number of all other layers.

    Equal layers, such as a language model's, share a row with the name of the first, their ``count`` and each one's
    time. The row with the longest sum comes first.
    """
    groups: dict[LayerTime, list[LayerTime]] = {}
    for layer in layers:
        groups.setdefault(replace(layer, name=""), []).append(layer)
    longest = sorted(groups.values(), key=lambda group: -len(group) * group[0].time_us)
    records = [{name: getattr(group[0], name) for name in names} for group in longest[:rows]]
    if len(longest) < sum(map(len, longest)):
        records = [{"count": len(group), **record} for group, record in zip(longest, records, strict=False)]
    return records, sum(map(len, longest[rows:]))


def aggregated(layers: Iterable[LayerTime], key: str) -> list[dict[str, Any]]:
    """Return count, time, share, FLOPs and bytes of the layers with each value of ``key``, longest first."""
    groups: dict[str, list[LayerTime]] = {}
    for layer in layers:
        groups.setdefault(str(getattr(layer, key)), []).append(layer)
    total = sum(layer.time_us for part in groups.values() for layer in part)
    rows: list[dict[str, Any]] = []
    for name, part in groups.items():
        time_us = sum(layer.time_us for layer in part)
        work = {field: sum(getattr(layer, field) for layer in part) for field in ("flops", "bytes")}
        rows.append({key: name, "count": len(part), "time_us": time_us, "share": _share(time_us, total), **work})
    return sorted(rows, key=lambda row: -row["time_us"])


def _rate(per_s: float) -> str:
    """Return a rate as text: three digits if it is below 10, else an integer."""
    return f"{per_s:.3g}" if per_s < 10 else f"{per_s:,.0f}"


def _share(part: float, total: float) -> float:
    return part / total if total else 0.0


Key = TypeVar("Key", int, str)
"""A batch or a GPU."""
Answer = TypeVar("Answer")
FIGURES = TEXTS["fields"]["compared"].split()
"""Figures that comparisons of batches and GPUs list."""
COSTS: Mapping[str, str] = TEXTS["costs"]
"""Keys of `NetworkTime.cost` → titles of their columns."""
MIN_PRICE, MAX_PRICE = 1e-6, 1e6
"""Limits of a price in US dollars per GPU and hour."""


@dataclass(frozen=True, slots=True, repr=False)
class GpuComparison(TableResult):
    """The times of one network on several GPUs.

    Attributes
    ----------
    times
        The time on each GPU.
    refused
        The reason for each GPU without a time.
    prices
        US dollars per GPU and hour, by GPU.
    samples
        Samples of an epoch; None: no figures of an epoch.
    """

    times: Mapping[str, NetworkTime]
    refused: Mapping[str, str]
    prices: Mapping[str, float]
    samples: int | None = None

    @property
    def is_comparison(self) -> bool:
        """Whether several GPUs are compared."""
        return len(self.times) + len(self.refused) > 1

    def records(self) -> list[dict[str, Any]]:
        """Return a record for each GPU; ``best`` marks the highest throughput of the GPUs that it fits.

        With prices, ``cheapest`` marks the lowest price of a sample among them.
        """
        costs = {name: time.cost(self.prices.get(name), self.samples) for name, time in self.times.items()}
        usd = {
            name: costs[name]["usd_per_step"] / (time.step_samples or 1)
            for name, time in comparable(self.times).items()
            if time.fits is not False and "usd_per_step" in costs[name]
        }
        costs = (
            {name: {"cheapest": usd.get(name) == min(usd.values())} | costs[name] for name in costs} if usd else costs
        )
        records = [record | costs[record["gpu"]] for record in comparison_records("gpu", self.times)]
        return [*records, *({"gpu": name, "refused": reason} for name, reason in self.refused.items())]

    def to_frame(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per GPU."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def table(self) -> Table:
        """Return the table that `seer network --compare-gpus` prints."""
        count = next((time.gpus for time in self.times.values()), 1)
        all_gpus = f"; samples/s of all {count} GPUs" if count > 1 else ""
        title = f"GPUs{all_gpus}; a speedup is the ratio of expected times per sample, without an interval of its own"
        unpriced = ", ".join(name for name in self.times if self.prices and name not in self.prices)
        notes = [f"no price of {unpriced}: give it as --price {unpriced.split(',')[0]}=USD"] if unpriced else []
        if partial := ", ".join(self.times.keys() - comparable(self.times).keys()):
            notes.append(f"{partial}: not compared, because more of the work is missing from the sum (coverage)")
        rows = [comparison_row(record) for record in self.records()]
        return Table(rows, {"90 %, µs": interval_us}, title, notes=notes)


def compare_gpus(
    names: Sequence[str],
    predict: Callable[[str], NetworkTime],
    prices: Mapping[str, float] | None = None,
    samples: int | None = None,
) -> GpuComparison:
    """Return the times that ``predict`` returns for GPUs, in order, and the refusals.

    Raises `InputError` for an unknown GPU, and if no GPU has a time.
    """
    devices = dict.fromkeys(gpu_by_name(name).name for name in names)
    times, refused = try_each(list(devices), predict)
    if not times:
        raise InputError("; ".join(refused.values()))
    return GpuComparison(times, refused, prices or {}, samples)


def try_each(
    keys: Sequence[Key], answer: Callable[[Key], Answer], step: Callable[[int, int, str], None] | None = None
) -> tuple[dict[Key, Answer], dict[Key, str]]:
    """Return key → answer, and key → message for each key that raises `InputError`; call ``step`` after each key."""
    answers: dict[Key, Answer] = {}
    refused: dict[Key, str] = {}
    for done, key in enumerate(keys, 1):
        try:
            answers[key] = answer(key)
        except InputError as error:
            refused[key] = str(error)
        if step:
            step(done, len(keys), str(key))
    return answers, refused


def prices_of(price: object, gpus: Sequence[str], source: str) -> dict[str, float]:
    """Return GPU → US dollars per hour, given one number or GPU → number; empty for None.

    Raises `InputError` for an invalid price, and for the price of a GPU that is not in ``gpus``.
    """
    names = [gpu_by_name(name).name for name in gpus]
    if price is None:
        return {}
    by_name: Mapping[str, Any] = price if isinstance(price, Mapping) else dict.fromkeys(names, price)
    prices = {}
    for name, usd in by_name.items():
        is_price = isinstance(usd, int | float) and not isinstance(usd, bool) and MIN_PRICE <= usd <= MAX_PRICE
        limits = {"minimum": MIN_PRICE, "maximum": MAX_PRICE}
        refusals = {"price": not is_price, "priced_twice": gpu_by_name(name).name in prices}
        refuse(refusals, source=source, name=name, usd=repr(usd)[:40], **limits)
        prices[gpu_by_name(name).name] = float(usd)
    unrelated = ", ".join(sorted(prices.keys() - set(names)))
    refuse({"unrelated": unrelated}, names=unrelated)
    return prices


def comparison_records(name: str, times: Mapping[Key, NetworkTime]) -> list[dict[str, Any]]:
    """Return a record for each batch or GPU; ``name`` is the key of the first field.

    ``best`` marks the highest throughput among those that fit, the first if several are equal. Its ``rivals`` may be as
    fast: the interval of the ratio of both times holds 1. Errors of two GPUs count as independent; batches share the
    best batch's error. A GPU's ``speedup`` is relative to the first GPU. Only `comparable`
    times count.
    """
    sample_us = {key: time.total_us / (time.batch or 1) for key, time in times.items()}
    compared = comparable(times) if name == "gpu" else times
    fitting = {key: time for key, time in compared.items() if time.layers and time.fits is not False}
    best_us = min((sample_us[key] for key in fitting), default=0.0)
    best = next((key for key in fitting if sample_us[key] == best_us), None)
    upper_width = _log_ratio(times[best].upper_us, times[best].total_us) if best is not None and name == "gpu" else 0.0
    widths = {key: hypot(_log_ratio(time.total_us, time.lower_us), upper_width) for key, time in fitting.items()}
    rivals = [key for key, width in widths.items() if key != best and _log_ratio(sample_us[key], best_us) < width]
    records = []
    for key, time in times.items():
        record = {name: key, **{figure: getattr(time, figure) for figure in FIGURES}, "best": key == best}
        if name == "gpu":
            first_us, own_us = next(iter(sample_us.values())), sample_us[key]
            is_compared = own_us and {key, next(iter(times))} <= compared.keys()
            record |= {"batch": time.batch, "speedup": first_us / own_us if is_compared else None}
        records.append(record | {"rivals": rivals if key == best else []})
    return records


def comparable(times: Mapping[Key, NetworkTime]) -> dict[Key, NetworkTime]:
    """Return the times whose sums have as many of the FLOPs as the most complete one's, up to `MAX_MISSING`."""
    needed = max((time.coverage or 0.0 for time in times.values()), default=0.0) - MAX_MISSING
    return {key: time for key, time in times.items() if time.coverage is None or time.coverage >= needed}


def _log_ratio(above: float, below: float) -> float:
    return log(above / below) if below else inf


def comparison_row(record: dict[str, Any]) -> dict[str, Any]:
    """Return the displayed row of a record; the best one has a mark, and the row of a refused GPU its reason."""
    if "refused" in record:
        return record
    row: dict[str, Any] = {name: record[name] for name in ("gpu", "batch", "total_us") if name in record}
    row |= {"90 %, µs": (record["lower_us"], record["upper_us"]), "samples/s": record["samples_per_s"]}
    if record["tokens_per_s"]:
        row["tokens/s"] = record["tokens_per_s"]
    row |= {"MFU %": percent(record["mfu"]), "coverage %": percent(record["coverage"])}
    row |= {"GiB per GPU": gib(record["memory_bytes"]), "fits": record["fits"]}
    if "gpu" in record:
        row["measured %"] = percent(record["measured_share"])
    row |= {title: record[name] for name, title in COSTS.items() if name in record}
    row |= {"speedup": record["speedup"]} if "speedup" in record else {}
    rivals = ", ".join(map(str, record.get("rivals", ())))
    fastest = "fastest" if "cheapest" in record else "best"
    marks = [f"{fastest}, not decided against {rivals}" if rivals else fastest] if record["best"] else []
    marks += ["cheapest"] if record.get("cheapest") else []
    return row | {"": f"◀ {'; '.join(marks)}" if marks else ""}


def percent(share: float | None) -> float | None:
    """Return a share in percent, with one decimal."""
    return None if share is None else round(100 * share, 1)


def gib(size: int | None) -> float | None:
    """Return bytes in GiB, with two decimals."""
    return None if size is None else round(size / 2**30, 2)
