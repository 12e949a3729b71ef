"""Kernel launches matched with the list of problems that the profiled program ran, as dataset rows."""

import re
from pathlib import Path

import pandas as pd

from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.formats.imported import (
    KERNEL_COUNTERS,
    KERNEL_NUMBERS,
    KEY_COLUMNS,
    Imported,
    cudnn_settings,
    plural,
)
from surrogate.formats.seer_numbering import algorithm_names
from surrogate.formats.test_set_ii import read_listed


def attach(
    launches: pd.DataFrame,
    problems: str | Path,
    kernel: str | None,
    library_version: str,
    numbering: str,
    max_bytes: int,
) -> Imported:
    """Launch i of the kernels whose name matches ``kernel`` (all, if None) belongs to line i of ``problems``.

    ``problems`` must name the algorithm on every line (a ``prof-ops`` file). Every run must match; a row's
    time is the median over runs, its kernel record that of the first. Kernels that do not match are left out:
    where an algorithm launches several, ``kernel`` picks the main one, and the row's time is that kernel's
    alone. Raises `InputError` where the counts differ, or a launch has no time.
    """
    keys = _keys(problems, numbering, max_bytes)
    main = launches[_matches(launches["kernel_name"], kernel)]
    _check_counts(launches, main, len(keys), problems)
    if main["time_us"].isna().any():
        raise InputError(
            f"{problems}: its launches have metrics but no times; give the log of a run without metrics too"
        )
    gpu = str(main["gpu"].iloc[0])
    if not gpu:
        raise InputError("the launches name no GPU; name it with --gpu")
    keys = keys.assign(**cudnn_settings(gpu, library_version))[list(KEY_COLUMNS)]
    times = pd.DataFrame(main["time_us"].to_numpy().reshape(-1, len(keys)))
    rows = keys.assign(
        status="ok",
        time_us=times.median().to_numpy(),
        time_us_min=times.min().to_numpy(),
        time_us_max=times.max().to_numpy(),
        repeats=len(times),
        origin="profiler",
    )
    first = main[main["run"] == main["run"].min()].reset_index(drop=True).assign(kernel_index=0)
    numbers = (*KERNEL_NUMBERS, *(name for name in KERNEL_COUNTERS if name in first))
    kernels = pd.concat([keys, first[["kernel_index", "kernel_name", *numbers]]], axis=1)
    left = len(launches) - len(main)
    notes = [f"{plural(left, 'launch')} of other kernels left out"] if left else []
    once = ~rows.duplicated(list(KEY_COLUMNS))
    if not once.all():
        notes.append(f"{plural(int((~once).sum()), 'repeated problem')} left out: the first counts")
    return Imported(
        rows[once].reset_index(drop=True), kernels[once].reset_index(drop=True), notes=tuple(notes)
    )


def _keys(problems: str | Path, numbering: str, max_bytes: int) -> pd.DataFrame:
    """Sizes and algorithm of each listed problem."""
    names = algorithm_names(numbering)
    records = []
    for listed in read_listed(problems, max_bytes=max_bytes):
        if listed.algorithm is None:
            raise InputError(
                f"{problems}: a line names no algorithm; a ninth number (0–7) on every line is needed here"
            )
        records.append(
            {**{n: getattr(listed.conv, n) for n in SIZE_COLUMNS}, "algorithm": names[listed.algorithm]}
        )
    return pd.DataFrame(records)


def _check_counts(launches: pd.DataFrame, main: pd.DataFrame, needed: int, problems: str | Path) -> None:
    counts = main.groupby("run").size().to_dict()
    for run in sorted(set(launches["run"])):
        if counts.get(run, 0) != needed:
            raise InputError(
                f"{problems}: {plural(needed, 'problem')}, but run {run + 1} has"
                f" {plural(counts.get(run, 0), 'matching launch')};"
                f" pick each problem's main kernel with --kernel PATTERN"
            )


def _matches(names: pd.Series, kernel: str | None) -> list[bool]:
    try:
        pattern = re.compile(kernel or "")
    except re.error as error:
        raise InputError(
            f"--kernel {kernel!r}: not a regular expression ({error}); escape what is meant literally"
        ) from None
    return [pattern.search(name) is not None for name in names]
