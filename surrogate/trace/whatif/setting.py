"""What a what-if may ask about besides the graph: the profile, the target GPU, the network, the surrogate."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu, gpu
from surrogate.trace.graph.tasks import Graph

if TYPE_CHECKING:
    from surrogate.prediction.predictor import Predictor
    from surrogate.trace.profiling import Profile


@dataclass(frozen=True, slots=True)
class Network:
    """Workers joined in a ring, or to parameter servers: GB/s (1e9 bytes) per link, µs per step."""

    workers: int = 8
    bandwidth_gbs: float = 10.0
    latency_us: float = 10.0
    bucket_bytes: float = 25e6

    def __post_init__(self) -> None:
        if self.workers < 1 or not self.bandwidth_gbs > 0 or self.latency_us < 0 or not self.bucket_bytes > 0:
            raise InputError(
                f"{self.workers} workers, {self.bandwidth_gbs:g} GB/s, {self.latency_us:g} µs: no network;"
                " give at least 1 worker, a bandwidth and bucket above 0, a latency of 0 or more"
            )

    def ring_us(self, size_bytes: float) -> float:
        """All-reduce in a ring: 2(n−1)/n · size / bandwidth + 2(n−1) steps of latency; 0 for one worker.

        Source: Patarasuk, Yuan, JPDC 69(2), 2009.
        """
        steps = 2 * (self.workers - 1)
        return steps / self.workers * size_bytes / (self.bandwidth_gbs * 1e3) + steps * self.latency_us

    def transfer_us(self, size_bytes: float) -> float:
        """One push or pull: size / bandwidth + latency."""
        return size_bytes / (self.bandwidth_gbs * 1e3) + self.latency_us


@dataclass(slots=True)
class Setting:
    """``profile`` of the same trace as the graph; ``target`` is the GPU asked about, where one is.

    ``load_predictor`` is called when a what-if needs the surrogate, at most once.
    """

    profile: "Profile"
    target: Gpu | None = None
    network: Network = field(default_factory=Network)
    load_predictor: Callable[[], "Predictor"] | None = None
    _predictor: Any = None

    @property
    def own_gpu(self) -> Gpu:
        """The GPU that the trace was taken on. Raises `InputError` where it is not known."""
        if self.profile.gpu is None:
            raise InputError(
                f"{self.profile.trace.source}: its GPU is not in the registry; name the one to count with by --gpu"
            )
        return self.profile.gpu

    @property
    def predictor(self) -> "Predictor":
        """The surrogate for the trace's own GPU."""
        if self._predictor is None:
            from surrogate.prediction.shipped import load

            make = self.load_predictor or (lambda: load(self.own_gpu.name))
            self._predictor = make()
        return self._predictor


def setting_of(
    profile: "Profile",
    *,
    target: str | None = None,
    network: Network | None = None,
    bundle: str | Path | None = None,
) -> Setting:
    """A setting for a profile; ``target`` a GPU's name, ``bundle`` a fitted bundle's folder.

    Raises `InputError` for an unknown GPU.
    """

    def from_bundle() -> "Predictor":
        from surrogate.prediction.shipped import load

        return load(str(bundle), gpu=profile.gpu.name if profile.gpu else None)

    return Setting(
        profile,
        None if target is None else gpu(target),
        network or Network(),
        from_bundle if bundle else None,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A changed graph; ``low`` and ``high`` where a prediction's interval makes it uncertain; what it left aside."""

    graph: Graph
    low: Graph | None = None
    high: Graph | None = None
    notes: tuple[str, ...] = ()
