"""Join the launches and metrics of several profiler runs into a kernel table, or into dataset rows of problems."""

import re
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd

from surrogate.dataset.columns import KERNEL_NUMBERS, names
from surrogate.dataset.problem_list import numbered_problems
from surrogate.features import InputError
from surrogate.formats import imported
from surrogate.formats.foreign_file import read_lines

LaunchRow = dict[str, Any]
Runs = list[list[LaunchRow]]
PERMISSION_MARKS = ("err_nvgpuctrperm", "not permitted to count", "permission to access")
"""Words of the profilers' messages that counting is not permitted."""
PERMISSION_REMEDY = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_SYS_ADMIN"
_IDENTITY = ("kernel_name", "device", "run", "kernel_index")


class LogOptions(TypedDict, total=False):
    """Options of every profiler's reader.

    ``gpu`` overrides the device's name. ``problems`` lists the problems that the program ran; ``numbering`` is its
    numbering of algorithms. ``kernel`` is a regular expression that matches the main kernels.
    """

    gpu: str | None
    library_version: str
    problems: str | Path | None
    kernel: str | None
    numbering: str


def imported_launches(
    runs: Runs, metrics: Runs, averages: list[LaunchRow], notes: list[str], options: LogOptions
) -> imported.Imported:
    """Return the kernel table of profiler runs, or with ``problems`` their dataset rows (see `rows_of_problems`).

    ``runs`` and ``metrics`` hold a list of records for each run, in launch order. A record has ``kernel_name``,
    ``device`` if the profiler names it, and numbers. ``averages`` are metrics by kernel name.
    """
    records, not_joined = join(runs, metrics, averages)
    launches = launch_table(records, options.get("gpu"))
    notes = [*notes, *not_joined]
    if options.get("problems") is None:
        return imported.Imported(imported.no_rows(), launches, notes=tuple(notes))
    rows, kernels, left_out = rows_of_problems(launches, options)
    return imported.Imported(rows, kernels, notes=(*notes, *left_out))


def permission_denied(text: str) -> bool:
    """Return True if a profiler's output states that counting is not permitted."""
    return any(mark in text.lower() for mark in PERMISSION_MARKS)


def check_permission(message: str, where: str) -> None:
    """Raise `InputError` for a profiler's message that it was not permitted to count."""
    if permission_denied(message):
        raise InputError(f"{where}: the profiler lacked the permission to count; {PERMISSION_REMEDY}")


def join(runs: Runs, metrics: Runs, averages: list[LaunchRow]) -> tuple[list[LaunchRow], list[str]]:
    """Return (launch records with their metrics, notes). ``run`` numbers the repeats.

    Metrics per launch are joined by position if all kernel names agree (text logs cut names to 20 characters).
    Averages over invocations are joined by name. If there is no run, the metrics are kept as launches without a time.
    Otherwise a note names the metrics that were not joined.
    """
    notes: list[str] = []
    runs = runs or metrics[:1] or [averages]
    records: list[LaunchRow] = []
    for number, run in enumerate(runs):
        joined = [{**record, "run": number, "kernel_index": index} for index, record in enumerate(run)]
        for counted in metrics:
            if _agree(run, counted):
                for record, values in zip(joined, counted, strict=True):
                    _add_values(record, values)
            else:
                profiled, launched = (imported.plural(len(part), "launch") for part in (counted, run))
                notes.append(f"metrics of {profiled} not joined to run {number + 1} of {launched}: the kernels differ")
        records += joined
    by_name = {record["kernel_name"]: record for record in averages}
    for record in records:
        _add_values(record, by_name.get(record["kernel_name"], {}))
    unused = len(set(by_name) - {record["kernel_name"] for record in records})
    if unused:
        notes.append(f"average metrics of {imported.plural(unused, 'kernel')} not joined: no launch of that name")
    return records, notes


def _agree(run: list[LaunchRow], counted: list[LaunchRow]) -> bool:
    pairs = ((a["kernel_name"], b["kernel_name"]) for a, b in zip(run, counted, strict=False))
    return len(run) == len(counted) and all(a.startswith(b) or b.startswith(a) for a, b in pairs)


def _add_values(record: LaunchRow, values: LaunchRow) -> None:
    """Add ``values`` to a record, without identity columns and NaN."""
    record |= {name: value for name, value in values.items() if name not in _IDENTITY and value == value}


def launch_table(records: list[LaunchRow], gpu: str | None) -> pd.DataFrame:
    """Return the kernel table: gpu, ``run``, ``kernel_index``, ``kernel_name``, numbers, other columns.

    Unknown numbers are NaN. ``gpu`` overrides the device of the records. If no record counts ``blocks``, the size of
    the grid is used.
    """
    frame = pd.DataFrame(records)
    frame["gpu"] = [_gpu_name(record.get("device", "")) for record in records] if gpu is None else gpu
    if "blocks" not in frame and {"grid_x", "grid_y", "grid_z"} <= set(frame):
        frame["blocks"] = frame["grid_x"].astype(float) * frame["grid_y"] * frame["grid_z"]
    columns = ["gpu", "run", "kernel_index", "kernel_name", *KERNEL_NUMBERS]
    frame = frame.reindex(columns=[*columns, *(c for c in frame if c not in (*columns, "device"))])
    return frame.astype(dict.fromkeys(KERNEL_NUMBERS, "float64"))


def _gpu_name(device: str) -> str:
    """Return ``TITAN Xp`` for ``TITAN Xp (0)``, and "" for a bare device number."""
    name = re.sub(r"\s*\(\d+\)$", "", device.strip())
    return "" if name.isdigit() else name


def rows_of_problems(launches: pd.DataFrame, options: LogOptions) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return (rows, kernels, notes): the i-th launch that matches ``kernel`` belongs to line i of ``problems``.

    ``problems`` must name the algorithm on every line (a ``prof-ops`` file). Every run must have one matching launch
    per line. The time of a row is the median over runs; its kernel record comes from the first run. Other kernels are
    skipped. If an algorithm launches several kernels, ``kernel`` selects the main one, and the row holds the time of
    that kernel only. Raises `InputError` if the counts differ, or if a launch has no time.
    """
    problems = options.get("problems") or ""
    keys = _keys(problems, options.get("numbering", "enum"))
    main = launches[_matches(launches["kernel_name"], options.get("kernel"))]
    counts = main.groupby("run").size().reindex(sorted(launches["run"].unique()), fill_value=0)
    for run, count in counts[counts != len(keys)].items():
        counts = f"{imported.plural(len(keys), 'problem')}, but run {int(str(run)) + 1} has"
        counts += f" {imported.plural(int(count), 'matching launch')}"
        raise InputError(f"{problems}: {counts}; pick each problem's main kernel with --kernel PATTERN")
    if main["time_us"].isna().any():
        raise InputError(f"{problems}: launches have metrics but no times; add the log of a run without metrics")
    gpu = str(main["gpu"].iloc[0])
    if not gpu:
        raise InputError("the launches name no GPU; give it with --gpu")
    version = options.get("library_version", imported.UNKNOWN_VERSION)
    keys = keys.assign(**imported.cudnn_settings(gpu, version))[list(imported.KEY_COLUMNS)]
    times = imported.medians(main[["time_us"]].assign(problem=main.groupby("run").cumcount()), ["problem"])
    rows = keys.assign(status="ok").join(times.drop(columns="problem")).assign(origin="profiler")
    first = main[main["run"] == main["run"].min()].reset_index(drop=True).assign(kernel_index=0)
    numbers = [name for name in names("kernels", required=False) if name in first]
    kernels = pd.concat([keys, first[["kernel_index", "kernel_name", *numbers]]], axis=1)
    repeated = rows.duplicated(list(imported.KEY_COLUMNS))
    others, repeats = len(launches) - len(main), int(repeated.sum())
    notes = [f"{imported.plural(others, 'launch')} of other kernels left out"] * bool(others)
    notes += [f"{imported.plural(repeats, 'repeated problem')} left out: the first one counts"] * bool(repeats)
    return rows[~repeated].reset_index(drop=True), kernels[~repeated].reset_index(drop=True), notes


def _keys(problems: str | Path, numbering: str) -> pd.DataFrame:
    """Return the sizes and the algorithm of each listed problem."""
    algorithms = imported.algorithm_names(numbering)
    records = []
    for conv, algorithm in numbered_problems(read_lines(problems), problems):
        if algorithm is None:
            raise InputError(f"{problems}: a line has no algorithm; give a ninth number (0–7) on every line")
        records.append({**imported.conv_sizes(conv), "algorithm": algorithms[algorithm]})
    return pd.DataFrame(records)


def _matches(kernel_names: pd.Series, kernel: str | None) -> pd.Series:
    try:
        pattern = re.compile(kernel or "")
    except re.error as error:
        raise InputError(f"--kernel {kernel!r}: not a regular expression ({error})") from None
    return kernel_names.map(lambda name: pattern.search(str(name)) is not None).astype(bool)
