"""What launches a network's kernels, and the time that takes: where kernels are small, the host rules.

A pass takes ``max(kernels, launches) + floor``: the host runs ahead of the GPU, or the GPU waits for it. ``launches``
grow with the library calls (convolutions and products, whose libraries choose a kernel first), the other operators and
the views of the network; ``floor`` is from the pass's call to its first kernel and from the last one to whoever waits.
The constants are fitted to small programs (`experiments/small_networks.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp
from typing import NamedTuple

from surrogate import bundled
from surrogate.features.errors import require_known
from surrogate.features.families import Operator
from surrogate.models.plain import from_plain
from surrogate.network.call import TABLE
from surrogate.network.fusion import compiled
from surrogate.network.network import HostTime, Network, Work

FILE = "hosts.json"
RUNTIMES = {
    "eager": "a kernel per operator",
    "compiled": "fused by torch.compile",
    "graphs": "fused, and launched as one CUDA graph (its mode reduce-overhead)",
}
HOSTS = ("usual", "fast", "slow")
"""Kinds of hosts, by how long they take to launch a kernel: most of those measured, the fastest and the slowest."""
MEMORY_NOTE = "the memory is that of eager execution; a compiled program, which keeps less between kernels, needs less"
VIEWS = frozenset((*TABLE["ignored"]["aten"], *TABLE["ignored"]["in_inference"]))
"""Operators that the host runs, and that no kernel follows."""


class Launches(NamedTuple):
    """How many calls of a network the host makes: into libraries, of other operators, and of views."""

    libraries: int
    operators: int
    views: int


@dataclass(frozen=True, slots=True)
class LaunchLaw:
    """Times in µs of `Launches` on a fast host; ``half_width`` holds 90 % of the programs left out, in log time."""

    library_us: float
    operator_us: float
    view_us: float
    floor_us: float
    half_width: float

    def launch_us(self, launches: Launches) -> float:
        """All launches of a pass."""
        return (
            self.library_us * launches.libraries + self.operator_us * launches.operators + self.view_us * launches.views
        )


@dataclass(frozen=True, slots=True)
class HostLaws:
    """What ships: runtime → its law, and kind of host → how many times longer than a fast one it takes."""

    origin: str
    hosts: Mapping[str, float]
    laws: Mapping[str, LaunchLaw]


@cache
def shipped_hosts() -> HostLaws:
    """The constants that ship with the package."""
    return from_plain(HostLaws, json.loads((bundled.FOLDER / FILE).read_bytes()))


def launched(network: Network, runtime: str | None = None, host: str = HOSTS[0]) -> Network:
    """The network as a runtime (of `RUNTIMES`; None: its own) runs it, with the time that a host (of `HOSTS`) takes."""
    runtime = runtime or network.runtime
    require_known("runtime", runtime, RUNTIMES)
    require_known("host", host, HOSTS)
    if runtime != "eager":
        network = compiled(network)
        network = replace(network, notes=(*network.notes, MEMORY_NOTE))
    law, slower = shipped_hosts().laws[runtime], shipped_hosts().hosts[host]
    launch_us = slower * law.launch_us(launches_of(network))
    time = HostTime(runtime, host, launch_us, slower * law.floor_us, exp(law.half_width))
    return replace(network, host=time)


def launches_of(network: Network) -> Launches:
    """What the host calls in one pass; operators without a known time are launched, too."""
    libraries = sum(_calls_library(layer.work) for layer in network.layers)
    views = sum(count for name, count in network.ignored.items() if name in VIEWS)
    return Launches(libraries, len(network.layers) - libraries + sum(network.unsupported.values()), views)


def _calls_library(work: Work) -> bool:
    """Whether a library chooses among kernels: of convolutions and products."""
    return work.HAS_ALGORITHMS or (isinstance(work, Operator) and work.MULTIPLIES)
