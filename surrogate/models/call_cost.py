"""Separate the kernel's time from an isolated call's time: a timed loop pays the launch, and a busy stream hides it.

On the public tables, the time of a pointwise operator is max(call cost, a · roofline + launch). Small operators take
the host's call cost, whatever their size. Large operators take a constant besides the time for their bytes. In
PyTorch's rows this constant is about half of the call cost, in cuDNN's nearly all of it.
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
"""Minimum duration of a kernel on the device: the duration of an empty kernel.

It was read from the shortest kernels of profiler traces. The shortest 1 % take less than 1.4 to 3.5 µs in five traces
of an H100, 2.6 µs on a B200, and 0.7 and 4.7 µs on an MI300X.
"""
MIN_ROWS = 30
CALL_QUANTILE = 0.02
"""Quantile of the times of a (GPU, library) that estimates the shortest call. The minimum may be an outlier."""
FIT_WINDOW = (0.5, 20.0)
"""Range of roofline times in the fit, in multiples of the call cost.

Below it the host dominates. Above it the constant cannot be seen.
"""
HOST_BOUND, ROOFLINE_BOUND = 1.15, 4.0
"""Limits in multiples of the call cost.

Up to `HOST_BOUND`, a time measures the host, not the kernel. Up to `ROOFLINE_BOUND`, a · roofline from larger operators
predicts a streaming operator better than its own time, which still has noise from the host.
"""


@dataclass(frozen=True, slots=True)
class CallCost:
    """The call cost of a library on a GPU.

    Attributes
    ----------
    call_us
        Minimum time of a call in µs.
    launch_us
        Constant part of a call's time in µs.
    slope
        Kernel time / roofline time.
    """

    call_us: Microseconds = 0.0
    launch_us: Microseconds = 0.0
    slope: Annotated[float, Meta(ge=0, le=1e6)] = 1.0

    def kernel_us(self, predicted_us: float, roofline_us: float, streaming: bool = False, calls: float = 1.0) -> float:
        """Return the kernel's part of a call's predicted time in µs, at least the roofline and `MIN_KERNEL_US`.

        The call costs ``calls`` launches. If the host limits it, its time does not depend on the kernel. Then slope ·
        roofline + `MIN_KERNEL_US` replaces it, if that is less or the operator is ``streaming``.
        """
        time_us = predicted_us - calls * self.launch_us
        model_us = self.slope * roofline_us + MIN_KERNEL_US
        if streaming and predicted_us <= ROOFLINE_BOUND * self.call_us:
            time_us = model_us
        elif predicted_us <= HOST_BOUND * self.call_us:
            time_us = min(time_us, model_us)
        return max(time_us, roofline_us, MIN_KERNEL_US)


class CallKey(NamedTuple):
    """Key of a call cost: a GPU and a library. An empty name means any GPU or any library."""

    gpu: str
    library: str


def call_cost_us(call_us: Mapping[CallKey, float], gpu: str, library: str) -> float:
    """Return the call cost in µs on a GPU, or else of the library, or else of any library; 0 if it is unknown."""
    keys = (CallKey(gpu, library), CallKey("", library), CallKey("", ""))
    return next((call_us[key] for key in keys if key in call_us), 0.0)


def call_costs(gpus: np.ndarray, libraries: np.ndarray, time_us: np.ndarray) -> dict[CallKey, float]:
    """Return each GPU's low quantile of a library's times in µs."""
    table = _quantiles(gpus, libraries, time_us).reset_index()
    return dict(zip(map(CallKey, table["gpu"], table["library"]), table["cost"].tolist(), strict=True))


def common_call_costs(gpus: np.ndarray, libraries: np.ndarray, time_us: np.ndarray) -> dict[CallKey, float]:
    """Return the call cost of a library in µs, the same on every GPU: the median of the GPUs' low quantiles.

    On a slow GPU the smallest kernels take longer than a call, so the GPU's own quantile is not the call cost. An
    unmeasured GPU has no quantile. GPUs with fewer than `MIN_ROWS` rows count if there are no others.
    """
    table = _quantiles(gpus, libraries, time_us)
    costs = {}
    for library, part in table.groupby(level="library"):
        enough = part[part["rows"] >= MIN_ROWS]
        costs[CallKey("", str(library))] = float((enough if len(enough) else part)["cost"].median())
    return costs


def _quantiles(gpus: np.ndarray, libraries: np.ndarray, time_us: np.ndarray) -> "pd.DataFrame":
    """Return ``cost`` (the low quantile in µs) and ``rows``, indexed by (library, gpu)."""
    import pandas as pd

    times = pd.DataFrame({"gpu": gpus, "library": libraries, "time_us": time_us}).groupby(["library", "gpu"])["time_us"]
    return pd.DataFrame({"cost": times.quantile(CALL_QUANTILE), "rows": times.size()})


def fit_call_costs(tables: "Iterable[Rows]") -> dict[CallKey, CallCost]:
    """Fit the call cost of each GPU and library with enough streaming rows, and the median cost of each library."""
    import pandas as pd

    from surrogate.dataset.problems import device_names, row_groups
    from surrogate.models.least_squares import relative_fit

    parts = []
    for rows in tables:
        streaming = np.zeros(len(rows), dtype=bool)
        for setting, positions in row_groups(rows.frame, rows.family.setting_names):
            streaming[positions] = rows.family.is_streaming(setting)
        part = rows.take(streaming & rows.ok)
        keys = {"gpu": device_names(part.frame), "library": part.frame["library"].to_numpy()}
        parts.append(pd.DataFrame({**keys, "time_us": part.time_us, "roofline_us": part.roofline_us}))
    if not any(map(len, parts)):
        return {}
    table = pd.concat(parts, ignore_index=True)
    fitted: dict[CallKey, CallCost] = {}
    by_library: dict[CallKey, list[list[float]]] = {}
    costs = call_costs(*(table[name].to_numpy() for name in ("gpu", "library", "time_us")))
    for (gpu, library), part in table.groupby(["gpu", "library"]):
        call_us = costs[CallKey(str(gpu), str(library))]
        in_window = part[part["roofline_us"].between(FIT_WINDOW[0] * call_us, FIT_WINDOW[1] * call_us)]
        if len(in_window) < MIN_ROWS:
            continue
        # Fit time = slope · roofline + constant by least squares on the relative error.
        columns = np.column_stack([in_window["roofline_us"], np.ones(len(in_window))])
        slope, constant = relative_fit(columns, in_window["time_us"].to_numpy())
        values = [call_us, float(np.clip(constant, 0.0, call_us)), max(float(slope), 1.0)]
        fitted[CallKey(str(gpu), str(library))] = CallCost(*values)
        by_library.setdefault(CallKey("", str(library)), []).append(values)
    return fitted | {key: CallCost(*np.median(values, axis=0).tolist()) for key, values in by_library.items()}


def call_cost_of(costs: Mapping[CallKey, CallCost], gpu: str, library: str) -> CallCost:
    """Return the call cost of the GPU and library, or else of the library, or else a cost of 0."""
    return costs.get(CallKey(gpu, library), costs.get(CallKey("", library), CallCost()))
