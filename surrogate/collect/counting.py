"""Hardware counters of a few (problem, algorithm) pairs: one run under Nsight Compute, joined to the pairs.

One run of the program takes all counters: Nsight Compute replays each kernel in three passes. A replay saves and
restores the program's GPU memory, so the program allocates little. Names and numbers of passes of each chip are from
CUPTI's host library (12.9). Never request ``sm__throughput``: it needs eight passes.

Commands are argument lists and never pass through a shell. A launch belongs to the pair with the last marker before it.
The profiled program ends if this process ends, and the profiler ends with it.
"""

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from surrogate.collect.device import demangled, one_line
from surrogate.collect.log import LogRecord, RunLog, conv_of, read_log
from surrogate.collect.plan import problem_key
from surrogate.dataset.files import write_text
from surrogate.features import SIZE_COLUMNS, Conv, InputError, read_toml
from surrogate.formats import ncu
from surrogate.formats.imported import Imported
from surrogate.formats.launches import PERMISSION_REMEDY, permission_denied

MAX_PAIRS = 30_000
"""Maximum number of pairs. The size of a marker's grid is its pair's number, and a larger grid takes longer than the
pair."""
MARKER = "seer_marker"
"""An empty kernel, launched before each pair with grid x = the pair's number + 1."""
SETTINGS = ("direction", "dtype", "math", "layout")
KEY = (*SETTINGS, *SIZE_COLUMNS, "algorithm", "kernel_index")
"""The key of a kernel's row."""
_IGNORED = ("gpu", "run", "kernel_index", "start_us", "stream", "cc", "device")


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem with one algorithm."""

    conv: Conv
    algorithm: str

    @property
    def key(self) -> str:
        """Return the pair as one line."""
        return f"{problem_key(self.conv)} {self.algorithm}"


Stratum = tuple[str, int, int, bool, int]
"""A stratum of pairs: algorithm, filter, stride, whether the convolution has groups, decade of FLOPs."""


def measured_pairs(records: Iterable[LogRecord]) -> list[Pair]:
    """Return the pairs with an ok measurement in a run's records, each once, in order."""
    measured = (each for each in records if each["kind"] == "measure" and each["result"]["status"] == "ok")
    return list(dict.fromkeys(Pair(conv_of(each["problem"]), each["algorithm"]) for each in measured))


def stratified(pairs: Sequence[Pair], count: int, seed: int = 0) -> list[Pair]:
    """Return up to ``count`` pairs, and at most `MAX_PAIRS`, spread evenly over the strata.

    Each round takes the next pair of every stratum, in a random order by ``seed``, until there are enough pairs. So a
    rare algorithm is counted as often as a common one.
    """
    strata: dict[Stratum, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: hashlib.sha256(f"{seed} {pair.key}".encode()).digest()):
        strata.setdefault(stratum(pair), []).append(pair)
    rounds = zip_longest(*(members for _, members in sorted(strata.items())))
    return [pair for members in rounds for pair in members if pair][: min(count, MAX_PAIRS)]


def stratum(pair: Pair) -> Stratum:
    """Return the stratum of a pair. Filters from 7 on share a stratum, and so do strides from 2 on."""
    conv = pair.conv
    decade = int(math.log10(max(conv.flops, 1)))
    return pair.algorithm, min(conv.r, 7), min(conv.stride_h, 2), conv.groups > 1, decade


def write_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """Write the pairs for the child process, one JSON object a line, in order."""
    lines = [json.dumps({"conv": pair.conv.to_dict(), "algorithm": pair.algorithm}) for pair in pairs]
    write_text(path, "\n".join(lines) + "\n")


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file that `write_pairs` wrote."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Pair(Conv(**row["conv"]), row["algorithm"]) for row in rows]


def assign_launches(imported: Imported, pairs: Sequence[Pair]) -> pd.DataFrame:
    """Return a row per kernel of the profiled run, with `KEY`, ``kernel_name`` and its counters.

    ``imported`` holds the launches in order, as `surrogate.formats` reads them. A launch before the first marker, or
    after a marker without a pair, is left out. ``kernel_index`` counts a pair's kernels from 0.
    """
    launches = imported.kernels
    assert launches is not None  # the reader refuses a profiler's file without launches
    is_marker = launches["kernel_name"].str.startswith(MARKER)
    numbers = (launches["grid_x"].where(is_marker) - 1).ffill()
    is_owned = ~is_marker & (numbers < len(pairs))
    owner = numbers[is_owned].astype("int64")
    owned = launches[is_owned].drop(columns=list(_IGNORED), errors="ignore").reset_index(drop=True)
    rows = [pairs[number].conv.to_dict() | {"algorithm": pairs[number].algorithm} for number in owner]
    keys = pd.DataFrame(rows, columns=pd.Index(KEY[:-1]))
    keys["kernel_index"] = owner.groupby(owner).cumcount().to_numpy()
    return pd.concat([keys, owned], axis=1)


_TABLE = read_toml(__file__)
LAUNCH = tuple(_TABLE["launch"])
"""Nsight Compute's metrics of the launch's shape."""
METRICS = tuple(_TABLE["metrics"])
"""Nsight Compute's metrics that exist on every chip."""

DRAM_SHARE = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
WITHOUT_DRAM_COUNTERS = (8.7, 10.1, 11.0, 12.1)
"""Compute capabilities of chips that share the CPU's memory: GA10B, GB10B, GB20B."""


def metrics_of(compute_capability: float) -> tuple[str, ...]:
    """Return the metrics of a chip."""
    if compute_capability in WITHOUT_DRAM_COUNTERS:
        return METRICS
    ways = ("op_read", "op_write") if compute_capability >= 12.0 else ("read", "write")
    return (*METRICS, *(f"dram__{unit}_{way}.sum" for unit in ("bytes", "sectors") for way in ways), DRAM_SHARE)


MIN_COMPUTE_CAPABILITY = 7.0
"""The lowest compute capability that Nsight Compute supports."""
REPORT_S = 5.0
"""Seconds at the end of a run in which the profiler writes its report and exports it."""
GRACE_S = 20.0
"""Seconds by which a run may exceed its time before it is stopped."""
EXPORT_S = 120.0
MESSAGE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class NsightCompute:
    """The Nsight Compute of this machine, and the compute capability of the GPU."""

    path: str
    compute_capability: float = 9.0

    def profiling(self, report: Path) -> tuple[str, ...]:
        """Return the command before the program's that profiles it and writes the report."""
        metrics = ",".join((*metrics_of(self.compute_capability), *LAUNCH))
        return (self.path, *_TABLE["ncu_options"], "--metrics", metrics, "--export", str(report))

    def exporting(self, report: Path) -> tuple[str, ...]:
        """Return the command that prints the report as CSV.

        Base units would be rounded to two decimals. So the export keeps ncu's units, and the reader scales them.
        """
        return (self.path, "--import", str(report), "--csv", "--page", "raw", "--print-kernel-base", "mangled")


def find_tool(compute_capability: float, which: Callable[[str], str | None] = shutil.which) -> NsightCompute:
    """Return Nsight Compute. Raises `InputError` if it is missing, or if the GPU is too old for it."""
    if compute_capability < MIN_COMPUTE_CAPABILITY:
        needed = f"Nsight Compute needs compute capability {MIN_COMPUTE_CAPABILITY} or newer"
        too_old = f"{needed}, this GPU has {compute_capability}"
        raise InputError(f"{too_old}; run nvprof yourself, `seer import nvprof --how` explains it")
    path = which("ncu")
    if not path:
        raise InputError("ncu is not on the PATH; install Nsight Compute, or leave --counters out")
    return NsightCompute(path, compute_capability)


def environment() -> dict[str, str]:
    """Return the child's environment, with the C locale: numbers have decimal points and no thousands separators."""
    return {**os.environ, "LC_ALL": "C", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class CounterResult:
    """The result of counting: a row per kernel (empty without permission), and notes on missing counters."""

    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: tuple[str, ...] = ()
    permitted: bool = True


def program_for(pairs_file: Path, end_s: float) -> list[str]:
    """Return the command of the profiled program, which begins no pair after ``end_s`` (`time.monotonic`)."""
    return [sys.executable, "-m", "surrogate.collect.cudnn.profiled_program", str(pairs_file), str(end_s)]


def count_pairs(
    pairs: Sequence[Pair],
    tool: NsightCompute,
    folder: Path,
    *,
    seconds: float,
    program: Callable[[Path, float], Sequence[str]] = program_for,
) -> CounterResult:
    """Return counters of ``pairs`` within about ``seconds``. The profiler's files stay in ``folder``.

    If the run fails, the result is empty, and its note states the reason; without permission to count, the remedy.
    """
    pairs_file = folder / "pairs.jsonl"
    write_pairs(pairs, pairs_file)
    last_pair_s = time.monotonic() + max(seconds - REPORT_S, seconds / 2)
    try:
        kernels = _profile(tool, folder, program(pairs_file, last_pair_s), seconds + GRACE_S, pairs)
    except PermissionError:
        return CounterResult(notes=(f"counters need permission: {PERMISSION_REMEDY}",), permitted=False)
    except InputError as error:
        return CounterResult(notes=(str(error),))
    return CounterResult(kernels.assign(kernel_name=kernels["kernel_name"].map(demangled)))


def _profile(
    tool: NsightCompute, folder: Path, program: Sequence[str], timeout_s: float, pairs: Sequence[Pair]
) -> pd.DataFrame:
    """Profile ``program``, and return a row per kernel of ``pairs``. The report's raw page has all digits.

    Raises `InputError` with the profiler's last output if the report has no such kernel, and `PermissionError` if the
    profiler states that it is not permitted to count.
    """
    report, printed, exported = (folder / f"counters{ending}" for ending in (".ncu-rep", ".txt", ".csv"))
    ended = _run((*tool.profiling(report), *program), printed, timeout_s, subprocess.STDOUT)
    try:
        if not report.exists():
            raise InputError(f"{report.name} was not written")
        if failure := _run(tool.exporting(report), exported, EXPORT_S, subprocess.DEVNULL):
            raise InputError(f"{report.name} was not exported ({failure})")
        kernels = assign_launches(ncu.read([exported]), pairs)
        if kernels.empty:
            raise InputError(f"{report.name} has no kernel of a pair")
        return kernels
    except InputError as error:
        output = printed.read_text(encoding="utf-8", errors="replace")
        if permission_denied(f"{output} {error}"):
            raise PermissionError from None
        last = " ".join(output.split())[-MESSAGE_CHARACTERS:]
        raise InputError("; ".join(filter(None, (str(error), ended, last)))) from None


def _run(command: Sequence[str], output: Path, timeout_s: float, errors: int) -> str:
    """Run a command of the profiler with its output in a file; return its failure, or "".

    The command's standard input is a pipe. If this process ends, the pipe closes, and so the profiled program ends.
    """
    try:
        with output.open("wb") as file:
            # In its own process group the profiler can be stopped with its child, which holds the GPU.
            streams = {"stdin": subprocess.PIPE, "stdout": file, "stderr": errors}
            child = subprocess.Popen(command, env=environment(), start_new_session=True, **streams)
    except OSError as error:
        raise InputError(f"{command[0]} did not start ({one_line(error)})") from None
    with child:
        try:
            return f"exit status {status}" if (status := child.wait(timeout_s)) else ""
        except BaseException as reason:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            if isinstance(reason, subprocess.TimeoutExpired):
                return f"stopped after {timeout_s:.0f} s"
            raise


PAIRS_PER_SECOND = 4.0
"""Pairs planned per second of counting. If they are too many, the profiled child stops by itself."""


def collect_counters(run: RunLog, seconds: float | None = None, seed: int = 0) -> CounterResult:
    """Take counters of a stratified part of the log's pairs, and add them to the log.

    ``seconds`` limits the number of pairs (None: all). The device must be closed, because the profiled program needs
    the GPU's memory. Raises `InputError` if the device is no GPU, or if its profiler is missing.
    """
    if "compute_capability" not in run.header.device.properties:
        raise InputError(f"{run.header.device.gpu} is no GPU and has no counters; give --device cudnn")
    tool = find_tool(float(run.header.device.properties["compute_capability"]))
    records = read_log(run.path).records
    counted_keys = {(record["problem"], record["algorithm"]) for record in records if record["kind"] == "counters"}
    pairs = [pair for pair in measured_pairs(records) if (problem_key(pair.conv), pair.algorithm) not in counted_keys]
    if not pairs:
        return CounterResult()
    seconds = seconds or max(60.0, len(pairs) / PAIRS_PER_SECOND)
    pairs = stratified(pairs, max(1, int(PAIRS_PER_SECOND * seconds)), seed)
    with TemporaryDirectory(dir=run.path.parent, prefix=".counters-") as folder:
        counted = count_pairs(pairs, tool, Path(folder), seconds=seconds)
    if len(counted.kernels):
        _append(run, counted)
    return counted


def _append(run: RunLog, counted: CounterResult) -> None:
    """Add a record per pair to the log: its kernels in launch order, each with its name and counters."""
    problem = list(KEY[:-2])
    groups: Any = counted.kernels.groupby([*problem, "algorithm"], sort=False)
    for (*values, algorithm), kernels in groups:
        conv = Conv(**dict(zip(problem, values, strict=True)))
        numbers = kernels.sort_values("kernel_index").drop(columns=[*problem, "algorithm", "kernel_index"])
        rows = [row[row.notna()].to_dict() for _, row in numbers.astype(object).iterrows()]
        run.append({"kind": "counters", "problem": problem_key(conv), "algorithm": algorithm, "kernels": rows})
    run.sync()
