"""What a dataset holds, in figures."""

from typing import Any

import numpy as np

from surrogate.dataset.problems import codes, fastest_solver, judged_rows, problem_codes, shape_codes
from surrogate.dataset.store import Dataset


def describe(data: Dataset) -> list[dict[str, Any]]:
    """One record per device and setting: rows, ok rows, problems, shapes, and how many of them can be judged."""
    frame = fastest_solver(data.frame)
    judged = judged_rows(frame, data.candidates)
    problem, shape = problem_codes(frame), shape_codes(frame)
    records = []
    setting = ["gpu", "library", "direction", "dtype", "math", "layout"]
    group = codes(frame, setting)
    for key in frame[setting].drop_duplicates().sort_values(setting).index:
        rows = np.flatnonzero(group == group[key])
        counted = rows[judged[rows]]
        records.append(
            {
                **{name: str(frame[name].iloc[key]) for name in setting},
                "versions": sorted(frame["library_version"].iloc[rows].unique()),
                "candidates": data.candidates,
                "rows": len(rows),
                "ok": int((frame["status"].iloc[rows] == "ok").sum()),
                "problems": len(set(problem[rows])),
                "shapes": len(set(shape[rows])),
                "judged_problems": len(set(problem[counted])),
                "judged_shapes": len(set(shape[counted])),
            }
        )
    return records
