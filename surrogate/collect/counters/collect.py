"""Counters of what a run has measured, written into its own log: for any run, and resumed like it."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from surrogate.collect.counters.pairs import SETTINGS, measured_pairs, stratified
from surrogate.collect.counters.profilers import Counted, count, find_tool
from surrogate.collect.log import RunLog, read
from surrogate.collect.plan import problem_key
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS

PAIRS_PER_SECOND = 4.0
"""Pairs that a second of counting is given; the profiled child stops by itself where they are too many."""


def collect_counters(run: RunLog, seconds: float | None = None, seed: int = 0) -> Counted:
    """Count a stratified part of the log's pairs, as many as ``seconds`` allow (None: all), and log their kernels.

    The device must be closed: the profiled program needs the GPU's memory. Raises `InputError` where the device is no
    GPU or its profiler is missing.
    """
    properties = run.header.device.properties
    if "compute_capability" not in properties:
        raise InputError(f"{run.header.device.gpu} is no GPU, there is nothing to count; give --device cudnn")
    tool = find_tool(float(properties["compute_capability"]))
    records = read(run.path).records
    held = {(record["problem"], record["algorithm"]) for record in records if record["kind"] == "counters"}
    pairs = [pair for pair in measured_pairs(records) if (problem_key(pair.conv), pair.algorithm) not in held]
    if not pairs:
        return Counted()
    seconds = seconds or max(60.0, len(pairs) / PAIRS_PER_SECOND)
    pairs = stratified(pairs, max(1, int(PAIRS_PER_SECOND * seconds)), seed)
    with TemporaryDirectory(dir=run.path.parent, prefix=".counters-") as folder:
        counted = count(pairs, tool, Path(folder), seconds=seconds)
    if len(counted.kernels):
        _append(run, counted)
    return counted


def _append(run: RunLog, counted: Counted) -> None:
    """A record per pair: its kernels in launch order, each with its name and its numbers."""
    problem = [*SETTINGS, *SIZE_COLUMNS]
    groups: Any = counted.kernels.groupby([*problem, "algorithm"], sort=False)
    for (*values, algorithm), kernels in groups:
        conv = Conv(**dict(zip(problem, values, strict=True)))
        numbers = kernels.sort_values("kernel_index").drop(columns=[*problem, "algorithm", "kernel_index"])
        rows = [row[row.notna()].to_dict() for _, row in numbers.astype(object).iterrows()]
        record = {"kind": "counters", "problem": problem_key(conv), "algorithm": algorithm, "kernels": rows}
        run.append(record)
    run.sync()
