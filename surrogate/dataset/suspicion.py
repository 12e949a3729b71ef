"""Times in another unit than µs, told by the roofline: rows that keep every rule, and yet cannot be."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd

from surrogate.dataset.rows import rows_of
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu

LAUNCH_US = 5.0
"""What a call takes however small its problem: 3 to 10 µs on every GPU measured."""
LEAST_RATIO = 0.1
"""Half of a GPU's times below this share of launch and roofline are none: Winograd and FFT save a factor of 4 or so."""
GREATEST_RATIO = 250.0
"""Half of them above this multiple neither. The medians of the measured tables lie between 1.8 and 18; in ns they
would be a thousand times that."""
SAMPLE = 2000
"""Rows of a GPU that are looked at, spread evenly."""


def suspicions(frame: pd.DataFrame, devices: Mapping[str, Gpu] = MappingProxyType({})) -> list[str]:
    """A sentence for each GPU of a normalised frame whose times look like another unit's; unknown GPUs are skipped."""
    found = []
    ok = frame[(frame["status"] == "ok").to_numpy() & np.isfinite(frame["time_us"].to_numpy())]
    for name, part in ok.groupby("gpu", sort=False):
        sample = part.iloc[:: max(1, len(part) // SAMPLE)].drop(columns="solver", errors="ignore")
        try:
            rows = rows_of(sample, devices)
        except InputError:
            continue
        ratio = float(np.median(rows.time_us / (LAUNCH_US + rows.roofline_us)))
        if ratio < LEAST_RATIO:
            found.append(
                f"{name}: half of the times are below {ratio:.2g} of launch and roofline; {_unit(ratio)}"
            )
        elif ratio > GREATEST_RATIO:
            found.append(
                f"{name}: half of the times exceed {ratio:,.0f} times launch and roofline; {_unit(ratio)}"
            )
    return found


def _unit(ratio: float) -> str:
    """The unit that fits better, as a question; seconds and nanoseconds lie beyond milliseconds."""
    likely = "ns" if ratio > 1 else "s" if ratio < 1e-4 else "ms"
    return f"time_us is in µs, are these {likely}?"
