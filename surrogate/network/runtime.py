"""What launches a network's kernels, and the time that takes: where kernels are small, the host rules.

A pass takes ``max(kernels, launches) + floor``: the host runs ahead of the GPU, or the GPU waits for it. ``launches``
grow with the operators and the views of the network, and ``floor`` is from the pass's call to its first kernel and from
the last one to whoever waits. The constants are fitted to small programs (`experiments/small_networks.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp

from surrogate import bundled
from surrogate.models.plain import from_plain
from surrogate.network.call import TABLE
from surrogate.network.fusion import compiled
from surrogate.network.network import HostTime, Network

FILE = "hosts.json"
RUNTIMES = {
    "eager": "a kernel per operator",
    "compiled": "fused by torch.compile",
    "graphs": "fused, and launched as one CUDA graph (its mode reduce-overhead)",
}
HOSTS = ("usual", "fast")
"""Kinds of hosts: most of those measured, and the fastest."""
VIEWS = frozenset((*TABLE["ignored"]["aten"], *TABLE["ignored"]["in_inference"]))
"""Operators that the host runs, and that no kernel follows."""


@dataclass(frozen=True, slots=True)
class LaunchLaw:
    """Times in µs on a fast host; ``half_width`` holds 90 % of the programs that were left out, in log time."""

    operator_us: float
    view_us: float
    floor_us: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Launches:
    """What ships: runtime → its law, and how many times longer a ``usual`` host takes."""

    origin: str
    usual: float
    laws: Mapping[str, LaunchLaw]


@cache
def shipped_launches() -> Launches:
    """The constants that ship with the package."""
    return from_plain(Launches, json.loads((bundled.FOLDER / FILE).read_bytes()))


def launched(network: Network, runtime: str, host: str = HOSTS[0]) -> Network:
    """The network as a runtime (of `RUNTIMES`) runs it, with the time that a host (of `HOSTS`) takes for it.

    Raises `InputError` where the runtime cannot run it.
    """
    network = network if runtime == "eager" else compiled(network)
    operators, views = operators_and_views(network)
    shipped = shipped_launches()
    law, slower = shipped.laws[runtime], 1.0 if host == "fast" else shipped.usual
    launch_us = slower * (law.operator_us * operators + law.view_us * views)
    time = HostTime(runtime, host, launch_us, slower * law.floor_us, exp(law.half_width))
    return replace(network, host=time)


def operators_and_views(network: Network) -> tuple[int, int]:
    """How many operators of a network launch a kernel, and how many only keep the host busy."""
    views = sum(count for name, count in network.ignored.items() if name in VIEWS)
    return len(network.layers) + sum(network.unsupported.values()), views
