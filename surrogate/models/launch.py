"""What of an isolated call's time is not the kernel: the launch that a timed loop pays and a busy stream hides.

On the public tables the time of a pointwise operator follows max(call, a·roofline + launch): small operators take the
host's call cost whatever they do, large ones a constant besides their bytes. PyTorch's rows show about half of the call
cost as that constant, cuDNN's nearly all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from surrogate.models.json_types import Microseconds

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.dataset.rows import Rows

MIN_KERNEL_US = 2.0
"""An empty kernel's duration on the device, which no kernel undercuts: what the shortest kernels of profiler traces
take (1 % of them less than 1.4 to 3.5 µs in five traces of an H100, 2.6 on a B200, 0.7 and 4.7 on an MI300X)."""
MIN_ROWS = 30
CALL_QUANTILE = 0.02
"""This low quantile of a (GPU, library)'s times stands for the shortest call; the least one alone may be a fluke."""
WINDOW = (0.5, 20.0)
"""Roofline times from … to … times the call cost enter the fit: below them the host is seen, above them nothing."""
HOST_BOUND, ROOFLINE_BOUND = 1.15, 4.0
"""Up to the first multiple of the call cost a time tells of the host, not of the kernel; up to the second one a
streaming operator's is better told by a·roofline, which larger ones gave, since noise of the host is left of it."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """``call_us`` the least time of a call, ``launch_us`` its constant part, ``slope`` a = kernel / roofline time."""

    call_us: Microseconds = 0.0
    launch_us: Microseconds = 0.0
    slope: Annotated[float, Meta(ge=0, le=1e6)] = 1.0

    def kernel_us(self, predicted_us: float, roofline_us: float, streaming: bool = False) -> float:
        """The kernel's own share of a call's predicted time in µs, never below the roofline and `MIN_KERNEL_US`.

        Where the host bounds the call its time says nothing of the kernel: a·roofline plus the least duration of a
        kernel stands in, if that is less or the operator is a ``streaming`` one.
        """
        time_us = predicted_us - self.launch_us
        model_us = self.slope * roofline_us + MIN_KERNEL_US
        if streaming and predicted_us <= ROOFLINE_BOUND * self.call_us:
            time_us = model_us
        elif predicted_us <= HOST_BOUND * self.call_us:
            time_us = min(time_us, model_us)
        return max(time_us, roofline_us, MIN_KERNEL_US)


class CallKey(NamedTuple):
    """Whose calls cost so much: a library's on a GPU; on any GPU, or of any library, where a name is empty."""

    gpu: str
    library: str


def call_cost_us(call_us: Mapping[CallKey, float], gpu: str, library: str) -> float:
    """The fixed cost of a call in µs on a GPU, else of the library, else of any; 0 where none is known."""
    keys = (CallKey(gpu, library), CallKey("", library), CallKey("", ""))
    return next((call_us[key] for key in keys if key in call_us), 0.0)


def call_costs(gpus: np.ndarray, libraries: np.ndarray, time_us: np.ndarray) -> dict[CallKey, float]:
    """On each GPU a low quantile of a library's times in µs."""
    table = _quantiles(gpus, libraries, time_us).reset_index()
    keys = map(CallKey, table["gpu"], table["library"])
    return dict(zip(keys, table["cost"].tolist(), strict=True))


def common_call_costs(gpus: np.ndarray, libraries: np.ndarray, time_us: np.ndarray) -> dict[CallKey, float]:
    """Return the cost of a library's call in µs, the same on every GPU: the median of the GPUs' low quantiles.

    A slow GPU's smallest kernels take longer than its calls, so that its own quantile is no cost of a call; and a GPU
    that was never measured has none. GPUs with fewer than `MIN_ROWS` rows count if there are no others.
    """
    table = _quantiles(gpus, libraries, time_us)
    costs = {}
    for library, part in table.groupby(level="library"):
        enough = part[part["rows"] >= MIN_ROWS]
        costs[CallKey("", str(library))] = float((enough if len(enough) else part)["cost"].median())
    return costs


def _quantiles(gpus: np.ndarray, libraries: np.ndarray, time_us: np.ndarray) -> "pd.DataFrame":
    """``cost`` (the low quantile in µs) and ``rows`` by (library, gpu)."""
    import pandas as pd

    table = pd.DataFrame({"gpu": gpus, "library": libraries, "time_us": time_us})
    times = table.groupby(["library", "gpu"])["time_us"]
    return pd.DataFrame({"cost": times.quantile(CALL_QUANTILE), "rows": times.size()})


def fit_launches(tables: "Iterable[Rows]") -> dict[CallKey, CallCost]:
    """The launch of each GPU and library with enough streaming operators, and the median one of each library."""
    import pandas as pd

    from surrogate.dataset.problems import device_names, row_groups
    from surrogate.models.least_squares import relative_fit

    parts = []
    for rows in tables:
        streaming = np.zeros(len(rows), dtype=bool)
        for setting, positions in row_groups(rows.frame, rows.family.setting_names):
            streaming[positions] = rows.family.is_streaming(setting)
        part = rows.take(streaming & rows.ok)
        whose = {"gpu": device_names(part.frame), "library": part.frame["library"].to_numpy()}
        parts.append(pd.DataFrame({**whose, "time_us": part.time_us, "roofline_us": part.roofline_us}))
    if not any(map(len, parts)):
        return {}
    table = pd.concat(parts, ignore_index=True)
    launches: dict[CallKey, CallCost] = {}
    by_library: dict[CallKey, list[list[float]]] = {}
    costs = call_costs(*(table[name].to_numpy() for name in ("gpu", "library", "time_us")))
    for (gpu, library), part in table.groupby(["gpu", "library"]):
        call_us = costs[CallKey(str(gpu), str(library))]
        near = part[part["roofline_us"].between(WINDOW[0] * call_us, WINDOW[1] * call_us)]
        if len(near) < MIN_ROWS:
            continue
        # time = slope · roofline + constant, by least squares on the relative error.
        columns = np.column_stack([near["roofline_us"], np.ones(len(near))])
        slope, constant = relative_fit(columns, near["time_us"].to_numpy())
        values = [call_us, float(np.clip(constant, 0.0, call_us)), max(float(slope), 1.0)]
        launches[CallKey(str(gpu), str(library))] = CallCost(*values)
        by_library.setdefault(CallKey("", str(library)), []).append(values)
    return launches | {key: CallCost(*np.median(values, axis=0).tolist()) for key, values in by_library.items()}


def launch_of(launches: Mapping[CallKey, CallCost], gpu: str, library: str) -> CallCost:
    """The launch of the GPU and library, else that of the library, else none."""
    return launches.get(CallKey(gpu, library), launches.get(CallKey("", library), CallCost()))
