"""nvprof logs: launches with grids and times, and metrics, as CSV or as the aligned text.

How to get them (GPUs before compute capability 8.0). Times; run it several times, each file is one repeat:

    nvprof --print-gpu-trace --csv --log-file trace.csv PROGRAM

Counters:

    nvprof --print-gpu-trace --csv --log-file metrics.csv \\
        --metrics inst_fp_32,dram_read_transactions,dram_write_transactions \\
        --metrics single_precision_fu_utilization,dram_utilization,achieved_occupancy PROGRAM

Without --csv the text is read as well. Both kinds in one call are joined launch by launch. With a list of the
problems that PROGRAM ran (--problems) the launches become dataset rows.
"""

from collections.abc import Sequence
from pathlib import Path

from surrogate.features.errors import InputError
from surrogate.formats.attach import attach
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, chunks, read_lines
from surrogate.formats.imported import Imported, Progress, no_rows, plural
from surrogate.formats.launches import join, launch_table
from surrogate.formats.nvprof_tables import NvprofTables, parse_tables

_REMEDY = "print the log with nvprof --print-gpu-trace --csv --log-file FILE PROGRAM"


def read(
    paths: Sequence[str | Path],
    *,
    gpu: str | None = None,
    library_version: str = "unknown",
    problems: str | Path | None = None,
    kernel: str | None = None,
    numbering: str = "enum",
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
) -> Imported:
    """Logs as a kernel table; ``problems`` (SEER's text list) and ``kernel`` (a pattern) as in `attach`.

    Raises `InputError` naming file and line.
    """
    runs, metrics, averages, notes = [], [], [], list[str]()
    for path in map(Path, paths):
        found = _parse(path, max_bytes, progress)
        notes += _notes(path, found)
        if found.launches:
            runs.append(found.launches)
        metrics += [found.metrics] if found.metrics else []
        averages += found.averages
    records, said = join(runs, metrics, averages)
    launches = launch_table(records, gpu)
    notes += said
    if problems is not None:
        imported = attach(launches, problems, kernel, library_version, numbering, max_bytes)
        return Imported(imported.rows, imported.kernels, notes=(*notes, *imported.notes))
    return Imported(no_rows(), launches, notes=tuple(notes), table="launches")


def _parse(path: Path, max_bytes: int, progress: Progress | None) -> NvprofTables:
    if next(chunks(path, max_bytes=max_bytes), b"").startswith(b"SQLite format 3"):
        raise InputError(
            f"{path}: nvprof's own database; export it: nvprof -i {path.name} --print-gpu-trace --csv"
            " --log-file FILE"
        )
    found = parse_tables(read_lines(path, max_bytes=max_bytes, progress=progress), str(path))
    if not (found.launches or found.metrics or found.averages):
        came = (
            "a summary by kernel name, without launches"
            if found.has_summary
            else "no launch and no metric of a kernel"
        )
        raise InputError(f"{path}: {came}; {_REMEDY}")
    return found


def _notes(path: Path, found: NvprofTables) -> list[str]:
    notes = []
    if found.copies:
        notes.append(f"{path.name}: {plural(found.copies, 'memory operation')} left out")
    if found.skipped:
        notes.append(f"{path.name}: {plural(found.skipped, 'line')} left out that nvprof did not print")
    return notes
