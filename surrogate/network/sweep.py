"""Several predictions side by side: batch sizes of one network, or one network on several GPUs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surrogate.network.load import Predictors
from surrogate.network.network import Network
from surrogate.network.result import NetworkTime

FIGURES = ("total_us", "lower_us", "upper_us", "samples_per_s", "peak_workspace_bytes", "coverage")


def sweep_batches(
    read: Callable[[int], Network],
    batches: Sequence[int],
    predictors: Predictors,
    *,
    workspace_limit: int | None = None,
    deterministic: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[int, NetworkTime]:
    """Batch → the network's time there; ``read`` gives the network at a batch."""
    found = {}
    for done, batch in enumerate(batches, 1):
        network = read(batch)
        found[batch] = predictors.time(network, workspace_limit=workspace_limit, deterministic=deterministic)
        if progress:
            progress(done, len(batches), f"batch {batch}")
    return found


def best_batch(times: Mapping[int, NetworkTime]) -> int | None:
    """The batch of highest throughput, the smallest of equals; None where no throughput is known."""
    rates = {batch: time.samples_per_s or 0.0 for batch, time in times.items()}
    return max(sorted(rates), key=lambda batch: rates[batch]) if any(rates.values()) else None


def sweep_records(times: Mapping[int, NetworkTime]) -> list[dict[str, Any]]:
    """A record per batch; ``best`` marks that of highest throughput."""
    best = best_batch(times)
    return [{"batch": batch, **_figures(time), "best": batch == best} for batch, time in times.items()]


def gpu_records(times: Sequence[NetworkTime]) -> list[dict[str, Any]]:
    """A record per GPU; ``speedup`` is over the first."""
    first = times[0].total_us if times else 0.0
    return [
        {"gpu": time.gpu, **_figures(time), "speedup": first / time.total_us if time.total_us else None}
        for time in times
    ]


def _figures(time: NetworkTime) -> dict[str, Any]:
    return {name: getattr(time, name) for name in FIGURES}
