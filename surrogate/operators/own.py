"""Tables that the project measures itself (`surrogate.collect.operators.collect.operator_table`)."""

import pandas as pd

from surrogate.features.operators import OPERATORS


def read_own(frame: pd.DataFrame) -> tuple[list[pd.DataFrame], dict[str, int]]:
    """Rows with status ok as ours, and counts of what was dropped (other statuses, unknown operators)."""
    dropped: dict[str, int] = {}
    parts = []
    for kind, part in frame.groupby(frame["operator"].astype(str)):
        ok = part[(part["status"] == "ok") & (part["time_us"] > 0)]
        if kind not in OPERATORS:
            dropped[f"operator {kind} unknown"] = len(part)
            continue
        if len(ok) < len(part):
            dropped[f"{kind}: status not ok"] = len(part) - len(ok)
        if len(ok):
            parts.append(_sizes(ok, str(kind)))
    return parts, dropped


def _sizes(part: pd.DataFrame, kind: str) -> pd.DataFrame:
    names = [name for name in OPERATORS[kind].size_names() if name in part]
    made = part[["gpu", "library", "library_version", "time_us", *names]].assign(kind=kind)
    if "window" in names and "window_w" not in names:
        made = made.assign(window_w=made["window"], stride_w=made["stride"], pad=0, pad_w=0)
    return made
