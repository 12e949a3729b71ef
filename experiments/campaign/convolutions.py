"""A slice of convolutions or of other operators: measure, count where the slice asks for it, write log and tables."""

import gzip
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from experiments.campaign.context import Context
from experiments.campaign.slices import Slice, plan_of
from surrogate.collect import log
from surrogate.collect.counters.pairs import add_counters, measured_pairs, stratified
from surrogate.collect.counters.profilers import Counted, Tool, count, find_tool
from surrogate.collect.log import RunLog
from surrogate.collect.merge import DEVICE_COLUMNS, merge_runs
from surrogate.collect.open_device import open_operators
from surrogate.collect.operators.collect import collect_operators
from surrogate.collect.operators.operator import sampled
from surrogate.collect.protocol import RepeatPolicy
from surrogate.collect.run import Outcome, header_for, run
from surrogate.dataset.columns import SCHEMA_VERSION
from surrogate.dataset.files import atomic_path
from surrogate.dataset.store import kernels_path
from surrogate.dataset.tables import write_table
from surrogate.features.errors import InputError

PAIRS_PER_SECOND = 4.0
"""Pairs that a second of counting is given; the child stops by itself where they are too many."""


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
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.measured.items()))
        done = f"{self.done} of {self.planned} problems; {counts or 'nothing new'}"
        text = f"slice {self.number} ({self.title}): {done}"
        return f"{text}; stopped: {self.stopped}" if self.stopped else text


def run_slice(one: Slice, context: Context) -> SliceReport:
    """Measure the slice's problems within its time, going on with its log; then write the tables and pack the log.

    Raises `InputError` where the device cannot be had or the log is another campaign's.
    """
    path = context.out / f"{one.stem}.jsonl"
    unpack(path, context.earlier)
    measure = _operators if one.source == "operators" else _convolutions
    outcome = measure(one, context, path, context.measuring_minutes * (1.0 - one.counters_share))
    report = SliceReport(one.number, one.title, outcome.problems_done, outcome.problems_total)
    report.measured = dict(outcome.statuses)
    report.stopped = outcome.wrong_timer or outcome.stopped
    counted = None
    if one.counters_share:
        counted = _counted(path, context, 60.0 * context.measuring_minutes * one.counters_share, report)
    _write_tables(path, counted, report)
    report.files.append(pack(path).name)
    return report


def _convolutions(one: Slice, context: Context, path: Path, minutes: float) -> Outcome:
    plan, policy = plan_of(one, context.caps, context.seed, context.problems), RepeatPolicy()
    with closing(context.open_convolutions()) as device:
        header = header_for(plan, device, policy)
        with RunLog(path, header) as run_log:
            told = {"progress": context.progress, "clock": context.clock}
            return run(plan, device, run_log, policy=policy, minutes=minutes, **told)


def _operators(one: Slice, context: Context, path: Path, minutes: float) -> Outcome:
    number = one.problems if context.problems is None else context.problems
    operators = sampled(number, context.seed)
    with closing(open_operators(context.device)) as device:
        told = {"progress": context.progress, "clock": context.clock}
        return collect_operators(operators, device, path, minutes=minutes, **told)


def profiler_of(path: Path) -> Tool:
    """The profiler that counts on the device of the log at ``path``; `InputError` where there is none."""
    header = log.read(path).header
    if header is None or "compute_capability" not in header.device.properties:
        raise InputError("the device is no GPU; there is nothing to count")
    return find_tool(float(header.device.properties["compute_capability"]))


def _counted(path: Path, context: Context, seconds: float, report: SliceReport) -> Counted | None:
    """Counters of a stratified part of what the log holds; None where there is no profiler for this device."""
    ok = measured_pairs(log.read(path).records)
    pairs = stratified(ok, max(1, int(PAIRS_PER_SECOND * seconds)), context.seed)
    try:
        tool = profiler_of(path)
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
    metadata: dict[str, Any] = {
        **merged.metadata, "candidates": merged.candidates, "schema": SCHEMA_VERSION,
    }  # fmt: skip
    target, kernels = path.with_suffix(".parquet"), merged.kernels
    tables = {}
    if counted is not None and len(counted.kernels):
        if kernels is not None and len(kernels):
            kernels, hits = add_counters(kernels, counted.kernels)
            report.notes.append(f"counters joined to {hits} of {len(kernels)} kernels")
        named = {name: merged.frame[name].iloc[0] for name in DEVICE_COLUMNS}
        device = pd.DataFrame(named, index=counted.kernels.index)
        tables[path.with_suffix(".counters.parquet")] = pd.concat([device, counted.kernels], axis=1)
    tables[target] = merged.frame
    if kernels is not None and len(kernels):
        tables[kernels_path(target)] = kernels
    for file, table in tables.items():
        write_table(table, file, metadata)
        report.files.append(file.name)


def unpack(log: Path, earlier: Path | None = None) -> None:
    """Make ``log`` from its packed form, beside it or in the folder ``earlier``, unless it is there."""
    for folder in (log.parent, earlier or log.parent):
        packed = folder / f"{log.name}.gz"
        if packed.is_file() and not log.exists():
            with atomic_path(log) as temporary:
                temporary.write_bytes(gzip.decompress(packed.read_bytes()))


def pack(log: Path) -> Path:
    """``log`` as ``log.gz``, and the log itself gone; the same bytes give the same file."""
    packed = log.with_name(f"{log.name}.gz")
    with atomic_path(packed) as temporary:
        temporary.write_bytes(gzip.compress(log.read_bytes(), mtime=0))
    log.unlink()
    return packed
