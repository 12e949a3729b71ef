"""A slice of convolutions or of other operators: measure, count where the slice asks for it, write log and tables."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from experiments.campaign.context import Context
from experiments.campaign.files import pack, unpack, write_parts
from experiments.campaign.slices import Slice, plan_of
from surrogate.collect import log
from surrogate.collect.counters.pairs import add_counters, measured_pairs, stratified
from surrogate.collect.counters.profilers import Counted, count, find_tool
from surrogate.collect.log import RunLog
from surrogate.collect.merge import DEVICE_COLUMNS, merge_runs
from surrogate.collect.open_device import open_operators
from surrogate.collect.operators.collect import collect_operators
from surrogate.collect.operators.operator import MAX_BYTES, sampled
from surrogate.collect.protocol import RepeatPolicy
from surrogate.collect.run import header_for, run
from surrogate.dataset.store import kernels_path
from surrogate.features.errors import InputError

PAIRS_PER_SECOND = 4.0
"""Pairs that a second of counting is given; the child stops by itself where they are too many."""


CPU_BYTES = 8 << 20
"""Largest operator on a CPU: a dry run is to end soon."""


@dataclass(slots=True)
class SliceReport:
    """What a slice did: counts, notes and the files it left."""

    number: int
    title: str
    done: int = 0
    planned: int = 0
    measured: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def line(self) -> str:
        """One line for a person."""
        counts = (
            ", ".join(f"{count} {status}" for status, count in sorted(self.measured.items())) or "nothing new"
        )
        text = f"slice {self.number} ({self.title}): {self.done} of {self.planned} problems; {counts}"
        return f"{text}; stopped: {self.stopped}" if self.stopped else text


def run_convolutions(one: Slice, context: Context) -> SliceReport:
    """Measure the slice's plan within its time, going on with its log; then write the tables.

    Raises `InputError` where the device cannot be had or the log is another campaign's.
    """
    plan = plan_of(one, context.caps, context.seed, context.problems)
    path = context.out / f"{one.stem}.jsonl"
    unpack(path, context.earlier)
    report = SliceReport(one.number, one.title, planned=len(plan))
    minutes, policy = context.measuring_minutes, RepeatPolicy()
    device = context.open_convolutions()
    try:
        with RunLog(path, header_for(plan, device, policy)) as run_log:
            outcome = run(
                plan, device, run_log, policy=policy, minutes=minutes * (1.0 - one.counters_share),
                progress=context.progress, clock=context.clock,
            )  # fmt: skip
    finally:
        device.close()
    report.done, report.measured = outcome.problems_done, dict(outcome.statuses)
    report.stopped = outcome.wrong_timer or outcome.stopped
    counted = None
    if one.counters_share:
        counted = _counted(path, context, 60.0 * minutes * one.counters_share, report)
    _write_tables(path, counted, report)
    report.files.append(pack(path).name)
    return report


def _counted(path: Path, context: Context, seconds: float, report: SliceReport) -> Counted | None:
    """Counters of a stratified part of what the log holds; None where there is no profiler for this device."""
    contents = log.read(path)
    pairs = stratified(
        measured_pairs(contents.records), max(1, int(PAIRS_PER_SECOND * seconds)), context.seed
    )
    try:
        if contents.header is None or "compute_capability" not in contents.header.device.properties:
            raise InputError("the device is no GPU")
        tool = find_tool(float(contents.header.device.properties["compute_capability"]))
        with TemporaryDirectory(dir=context.out, prefix=".counters-") as folder:
            counted = count(pairs, tool, Path(folder), seconds=seconds)
    except InputError as error:
        report.notes.append(f"no counters: {error}")
        return None
    report.notes += counted.notes
    return counted


def _write_tables(path: Path, counted: Counted | None, report: SliceReport) -> None:
    """The dataset, its kernels (with counters where there are any) and the counters by themselves."""
    try:
        merged = merge_runs([path])
    except InputError as error:
        report.notes.append(str(error))
        return
    target = path.with_suffix(".parquet")
    metadata: dict[str, Any] = {**merged.metadata, "candidates": merged.candidates}
    kernels = merged.kernels
    if counted is not None and len(counted.kernels):
        if len(kernels):
            kernels, hits = add_counters(kernels, counted.kernels)
            report.notes.append(f"counters joined to {hits} of {len(kernels)} kernels")
        counters_path = path.with_suffix(".counters.parquet")
        named = {name: merged.rows[name].iloc[0] for name in DEVICE_COLUMNS}
        counted_rows = pd.concat([pd.DataFrame(named, index=counted.kernels.index), counted.kernels], axis=1)
        report.files += [file.name for file in write_parts(counted_rows, counters_path, metadata)]
    files = write_parts(merged.rows, target, metadata)
    if len(kernels):
        files += write_parts(kernels, kernels_path(target), metadata)
    report.files += [file.name for file in files]


def run_operators(one: Slice, context: Context) -> SliceReport:
    """Measure the drawn operators within the slice's time, going on with its log; a lost device ends the slice."""
    path = context.out / f"{one.stem}.jsonl"
    unpack(path, context.earlier)
    number = one.problems if context.problems is None else context.problems
    operators = sampled(number, context.seed, MAX_BYTES if context.device == "cudnn" else CPU_BYTES)
    device, minutes = open_operators(context.device), context.measuring_minutes
    try:
        outcome = collect_operators(
            operators, device, path, minutes=minutes, progress=context.progress, clock=context.clock
        )
    finally:
        device.close()
    report = SliceReport(one.number, one.title, outcome.problems_done, len(operators), dict(outcome.statuses))
    report.stopped = outcome.stopped
    _write_tables(path, None, report)
    report.files.append(pack(path).name)
    return report
