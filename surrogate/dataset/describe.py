"""What a dataset holds, in figures."""

from typing import Any

from surrogate.dataset.problems import fastest_solver, judged_rows, problem_codes, shape_codes
from surrogate.dataset.store import Dataset


def describe(data: Dataset) -> list[dict[str, Any]]:
    """One record per (gpu, library, direction, dtype, math, layout): rows, ok rows, problems, shapes, judged problems."""
    frame = fastest_solver(data.frame)
    judged = judged_rows(frame, data.candidates)
    problem, shape = problem_codes(frame), shape_codes(frame)
    records = []
    setting = ["gpu", "library", "direction", "dtype", "math", "layout"]
    for key, part in frame.groupby(setting, sort=True).groups.items():
        rows = part.to_numpy()
        counted = rows[judged[rows]]
        records.append(
            {
                **dict(zip(setting, key, strict=True)),
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
