"""``.ncu-rep`` reports, through the module ``ncu_report`` that Nsight Compute installs."""

from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError
from surrogate.formats.ncu_metrics import METRICS, kernel_numbers


def read_report(path: Path) -> list[dict[str, Any]]:
    """One record per profiled launch, with full precision. Raises `InputError` where the module is missing."""
    try:
        import ncu_report  # type: ignore[import-not-found]  # Nsight Compute's
    except ImportError:
        raise InputError(
            f"{path}: reading a report needs Nsight Compute's module ncu_report (add its extras/python"
            " folder to"
            f" PYTHONPATH); or export it: ncu --import {path.name} --csv --page raw"
        ) from None
    if not path.is_file():
        raise InputError(f"{path}: cannot be read (no such file); give the path of a report")
    try:
        context = ncu_report.load_report(str(path))
        actions = [
            context.range_by_idx(r).action_by_idx(a)
            for r in range(context.num_ranges())
            for a in range(context.range_by_idx(r).num_actions())
        ]
        records = [_record(action) for action in actions]
    except Exception as error:  # the module's errors are those of its C++ binding
        raise InputError(
            f"{path}: not a readable report ({str(error).splitlines()[:1]}); write it again with ncu -o"
        ) from None
    if not records:
        raise InputError(f"{path}: holds no profiled kernel; profile again with ncu -o REPORT PROGRAM")
    return records


def _record(action: Any) -> dict[str, Any]:
    found = {name: action.metric_by_name(name) for name in action.metric_names() if name in METRICS}
    metrics = {name: (metric.unit() or "", float(metric.as_double())) for name, metric in found.items()}
    return {"kernel_name": action.name(), **kernel_numbers(metrics, None, None)}
