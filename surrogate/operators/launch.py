"""What of an isolated call's time is not the kernel: the launch that a timed loop pays and a busy stream hides.

On the public tables the time of a pointwise operator follows max(call, a·roofline + launch): small operators take the
host's call cost whatever they do, large ones a constant besides their bytes. PyTorch's rows show about half of the call
cost as that constant, cuDNN's nearly all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from surrogate.features.operators import OPERATORS, Operator, Pointwise
from surrogate.models.seer.fits import relative_fit
from surrogate.operators.baselines.roofline import roofline_us
from surrogate.operators.boosted import call_costs
from surrogate.operators.table import OperatorTable

KERNEL_LEAST_US = 2.0
"""An empty kernel's duration on the device: what the shortest kernels of profiler traces take."""
LEAST_ROWS = 30
CHEAP_FLOPS = 5
WINDOW = (0.5, 20.0)
"""Roofline times from … to … times the call cost enter the fit: below them the host is seen, above them nothing."""
HOST_BOUND = 1.15
"""Up to this multiple of the call cost a time tells of the host, not of the kernel."""


@dataclass(frozen=True, slots=True)
class Launch:
    """``call_us`` the least time of a call, ``launch_us`` its constant part, ``slope`` a = kernel / roofline time."""

    call_us: float
    launch_us: float
    slope: float

    def kernel_us(self, predicted_us: np.ndarray, roofline: np.ndarray) -> np.ndarray:
        """The kernel's own share of a call's predicted time, never below the roofline.

        Where the host bounds the call its time says nothing of the kernel: a·roofline plus the least duration of a
        kernel stands in, if that is less.
        """
        own = predicted_us - self.launch_us
        estimate = np.minimum(own, self.slope * roofline + KERNEL_LEAST_US)
        return np.maximum(np.where(predicted_us <= HOST_BOUND * self.call_us, estimate, own), roofline)


NO_LAUNCH = Launch(0.0, 0.0, 1.0)


def fit_launches(table: OperatorTable) -> dict[str, Launch]:
    """``gpu|library`` → its launch, where enough pointwise operators were measured; ``|library`` → the median ones."""
    frame = table.frame
    gpus, libraries = frame["gpu"].to_numpy(), frame["library"].to_numpy()
    cheap = {kind: _is_cheap(OPERATORS[kind]) for kind in frame["kind"].unique()}
    pointwise = frame["kind"].map(cheap).to_numpy(dtype=bool)
    found: dict[str, Launch] = {}
    if not pointwise.any():
        return found
    part = table.take(np.flatnonzero(pointwise))
    costs = call_costs(gpus[pointwise], libraries[pointwise], part.time_us)
    least, roofs = {}, roofline_us(part)
    for key, call_us in costs.items():
        gpu, _, library = key.partition("|")
        mine = (gpus[pointwise] == gpu) & (libraries[pointwise] == library)
        mine &= (roofs >= WINDOW[0] * call_us) & (roofs <= WINDOW[1] * call_us)
        if gpu and mine.sum() >= LEAST_ROWS:
            columns = np.column_stack([roofs[mine], np.ones(mine.sum())])
            slope, constant = relative_fit(columns, part.time_us[mine])
            found[key] = Launch(call_us, float(np.clip(constant, 0.0, call_us)), max(float(slope), 1.0))
            least.setdefault(library, []).append(found[key])
    for library, launches in least.items():
        values = np.median([[one.call_us, one.launch_us, one.slope] for one in launches], axis=0)
        found[f"|{library}"] = Launch(*(float(value) for value in values))
    return found


def _is_cheap(cls: type[Operator]) -> bool:
    """Pointwise and bound by memory on any GPU: gelu's and tanh's counted FLOPs would blur the slope."""
    return issubclass(cls, Pointwise) and cls.FLOPS <= CHEAP_FLOPS


def launch_of(launches: Mapping[str, Launch], gpu: str, library: str) -> Launch:
    """Of the GPU and library, else of the library, else none."""
    return launches.get(f"{gpu}|{library}", launches.get(f"|{library}", NO_LAUNCH))
