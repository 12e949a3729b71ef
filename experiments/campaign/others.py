"""The slice of other operators: measure, write log and table. A lost device ends it; the same command goes on."""

from experiments.campaign.context import Context
from experiments.campaign.convolutions import SliceReport
from experiments.campaign.files import pack, unpack, write_parts
from experiments.campaign.slices import Slice
from surrogate.collect.merge import merge_runs
from surrogate.collect.operators.collect import collect_operators
from surrogate.collect.operators.operator import MAX_BYTES, sampled
from surrogate.features.errors import InputError

CPU_BYTES = 8 << 20
"""Largest operator on a CPU: a dry run is to end soon."""


def run_operators(one: Slice, context: Context) -> SliceReport:
    """Measure the drawn operators within the slice's time, going on with its log."""
    path = context.out / f"{one.stem}.jsonl"
    unpack(path, context.earlier)
    count = one.problems if context.problems is None else context.problems
    operators = sampled(count, context.seed, MAX_BYTES if context.device == "cudnn" else CPU_BYTES)
    device = context.open_operators()
    try:
        outcome = collect_operators(
            operators, device, path, minutes=context.measuring_minutes, progress=context.progress,
            clock=context.clock,
        )  # fmt: skip
    finally:
        device.close()
    report = SliceReport(one.number, one.title, outcome.problems_done, len(operators), dict(outcome.statuses))
    report.stopped = outcome.stopped
    try:
        merged = merge_runs([path])
        report.files += [
            file.name for file in write_parts(merged.rows, path.with_suffix(".parquet"), merged.metadata)
        ]
    except InputError as error:
        report.notes.append(str(error))
    report.files.append(pack(path).name)
    return report
