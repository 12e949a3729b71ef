"""Nsight Compute's launches and counters: ``ncu --csv`` in both its formats, and ``.ncu-rep`` reports.

How to get them:

    LC_ALL=C ncu --target-processes all --cache-control all --clock-control none -o REPORT \\
        --metrics gpu__time_duration.sum,smsp__sass_thread_inst_executed_op_fp32_pred_on.sum,\\
    dram__sectors_read.sum,dram__sectors_write.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,\\
    smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active PROGRAM
    ncu --import REPORT.ncu-rep --csv --page raw > FILE.csv

The raw page has full digits; ``--page details`` is read too, with what it rounds. With a list of the problems that
PROGRAM ran (--problems) the launches become dataset rows.
"""

from collections.abc import Sequence
from pathlib import Path

from surrogate.formats.attach import attach
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, read_lines
from surrogate.formats.imported import Imported, Progress, no_rows, plural
from surrogate.formats.launches import join, launch_table
from surrogate.formats.ncu_csv import parse_ncu
from surrogate.formats.ncu_report_file import read_report


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
    """Reports as a kernel table, each file one run; ``problems`` and ``kernel`` as in `attach`.

    Files of one-pass metric groups of the same program are joined: a run without times adds its counters to
    the others. Raises `InputError` naming the file.
    """
    timed, counted, notes = [], [], list[str]()
    for path in map(Path, paths):
        if path.suffix == ".ncu-rep":
            records = read_report(path)
        else:
            records, skipped = parse_ncu(read_lines(path, max_bytes=max_bytes, progress=progress), str(path))
            notes += (
                [f"{path.name}: {plural(skipped, 'line')} left out that ncu did not print"] if skipped else []
            )
        (timed if any("time_us" in record for record in records) else counted).append(records)
    joined, said = join(timed or counted[:1], counted if timed else counted[1:], [])
    launches = launch_table(joined, gpu)
    notes += said
    if problems is not None:
        imported = attach(launches, problems, kernel, library_version, numbering, max_bytes)
        return Imported(imported.rows, imported.kernels, notes=(*notes, *imported.notes))
    return Imported(no_rows(), launches, notes=tuple(notes), table="launches")
