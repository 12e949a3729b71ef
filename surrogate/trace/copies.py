"""Copies and memsets: how much, how fast, and the share of time and of the PCIe link."""

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.profiling import Profile
from surrogate.trace.result import Row, Rows

_OVER_PCIE = (kinds.TO_DEVICE, kinds.TO_HOST)


def copy_table(profile: Profile) -> Rows:
    """Copies by name (direction and kind of memory) and memsets, the longest first.

    ``gbs`` is bytes over time; ``pcie_pct`` its share of one direction of the link (the registry's ``pcie_gbs``),
    for copies between host and device; ``time_pct`` the share of all device activity.
    """
    activities = profile.trace.activities
    moving = np.flatnonzero((activities.kind == kinds.COPY) | (activities.kind == kinds.MEMSET))
    rows: list[Row] = []
    for name in np.unique(activities.name[moving]).tolist():
        members = moving[activities.name[moving] == name]
        time_us = float(activities.time_us[members].sum())
        moved = int(np.maximum(activities.bytes[members], 0).sum())
        direction = int(activities.copy_kind[members[0]])
        gbs = moved / time_us / 1e3 if time_us and moved else None
        link = profile.gpu.pcie_gbs if profile.gpu and direction in _OVER_PCIE else 0.0
        rows.append(
            {
                "copy": profile.trace.names[name],
                "direction": kinds.COPY_KINDS[direction] if direction >= 0 else "memset",
                "calls": len(members),
                "total_us": time_us,
                "time_pct": 100 * time_us / profile.total_us if profile.total_us else None,
                "total_mb": moved / 1e6,
                "avg_us": time_us / len(members),
                "max_us": float(activities.time_us[members].max()),
                "gbs": gbs,
                "pcie_pct": 100 * gbs / link if gbs and link else None,
            }
        )
    rows.sort(key=lambda row: -row["total_us"])
    total = float(activities.time_us[moving].sum())
    return Rows(f"Copies and memsets: {len(moving):,}, {total / 1e3:.3f} ms", tuple(rows))
