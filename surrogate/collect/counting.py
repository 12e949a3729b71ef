"""Hardware counters of a few (problem, algorithm) pairs: runs under Nsight Compute, joined to the pairs.

One run of the program takes all counters: Nsight Compute replays each kernel in three passes. A run for each group of
counters takes as many passes or more, and starts the profiler and the program each time, about 15 s. A replay saves and
restores the program's GPU memory, so the program allocates little. If the run counts nothing and time is left, each
group has a run of its own. Such a run needs no replay, and a metric that fails costs only its group. Names and numbers
of passes of each chip are from CUPTI's host library (12.9). Never request ``sm__throughput``: it needs eight passes.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, read_toml
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.formats import ncu
from surrogate.formats.imported import Imported

MAX_PAIRS = 30_000
"""Maximum number of pairs. The size of a marker's grid is its pair's number, and a larger grid takes longer than the
pair."""
MARKER = "seer_marker"
"""An empty kernel, launched before each pair with grid x = the pair's number + 1."""
SETTINGS = ("direction", "dtype", "math", "layout")
KEY = (*SETTINGS, *SIZE_COLUMNS, "algorithm", "kernel_index")
"""The key by which the runs of a kernel are joined."""
_IGNORED = ("gpu", "run", "kernel_index", "start_us", "stream", "cc", "device")


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem with one algorithm."""

    conv: Conv
    algorithm: str

    @property
    def key(self) -> str:
        """Return the pair as one line, which is also the name of its NVTX range."""
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
    """Return a row per kernel of one profiled run, with `KEY`, ``kernel_name`` and its counters.

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


def join_runs(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row per kernel with the counters of all runs, and notes. Values of earlier runs take precedence.

    Rows join by `KEY` if their kernel names agree. If cuDNN launched other kernels in a run, or if the run was cut, it
    adds nothing for some kernels; the notes state their number.
    """
    first, *others = ((name, table.set_index([*KEY, "kernel_name"])) for name, table in tables.items())
    joined = first[1]
    notes: list[str] = []
    for name, extra in others:
        missed = int((~joined.index.isin(extra.index)).sum())
        if missed:
            notes.append(f"{name} counted nothing for {missed} of {len(joined)} kernels")
        joined = joined.combine_first(extra.reindex(joined.index))
    return joined.reset_index(), notes


_TABLE = read_toml(__file__)
LAUNCH = tuple(_TABLE["launch"])
"""Nsight Compute's metrics of the launch's shape."""
GROUPS = {name: tuple(metrics) for name, metrics in _TABLE["groups"].items()}
"""Group → Nsight Compute's metrics that exist on every chip."""

DRAM_SHARE = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
WITHOUT_DRAM_COUNTERS = (8.7, 10.1, 11.0, 12.1)
"""Compute capabilities of chips that share the CPU's memory: GA10B, GB10B, GB20B."""


def metric_groups(compute_capability: float) -> dict[str, tuple[str, ...]]:
    """Return group → metrics of a chip. On Volta and Turing the DRAM's share needs two passes and so its own group."""
    if compute_capability in WITHOUT_DRAM_COUNTERS:
        return GROUPS
    ways = ("op_read", "op_write") if compute_capability >= 12.0 else ("read", "write")
    dram = tuple(f"dram__{unit}_{way}.sum" for unit in ("bytes", "sectors") for way in ways)
    if compute_capability < 8.0:
        return {**GROUPS, "A": (*GROUPS["A"], *dram), "D": (DRAM_SHARE,)}
    return {**GROUPS, "A": (*GROUPS["A"], *dram, DRAM_SHARE)}


MIN_COMPUTE_CAPABILITY = 7.0
"""The lowest compute capability that Nsight Compute supports."""
PERMISSION_MARKS = ("ERR_NVGPUCTRPERM", "not permitted to count", "permission to access")
PERMISSION_REMEDY = (
    "counters need permission: load the driver with NVreg_RestrictProfilingToAdminUsers=0,"
    " or give the container CAP_SYS_ADMIN"
)
REPORT_S = 5.0
"""Seconds at the end of a run in which the profiler writes its report and exports it."""
GRACE_S = 20.0
"""Seconds by which a run may exceed its time before it is stopped."""
EXPORT_S = 120.0
MESSAGE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """One run of the program under the profiler: the command before the program's, the report, and its CSV export."""

    name: str
    command: tuple[str, ...]
    report: Path
    export: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NsightCompute:
    """The Nsight Compute of this machine, and the compute capability of the GPU."""

    path: str
    compute_capability: float = 9.0

    def runs(self, folder: Path) -> tuple[ProfiledRun, ...]:
        """Return the run with all metrics, then a run for each group, with their reports in ``folder``."""
        groups = {f"group {name}": metrics for name, metrics in metric_groups(self.compute_capability).items()}
        every_metric = tuple(name for metrics in groups.values() for name in metrics)
        runs = []
        for name, metrics in {"all metrics": every_metric, **groups}.items():
            report = folder / f"{name.replace(' ', '-')}.ncu-rep"
            names = ",".join(dict.fromkeys((*metrics, *LAUNCH)))
            options = (*_TABLE["ncu_options"], "--metrics", names, "--export", str(report))
            # Base units would be rounded to two decimals. So the export keeps ncu's units, and the reader scales them.
            export = (self.path, "--import", str(report), "--csv", "--page", "raw", "--print-kernel-base", "mangled")
            runs.append(ProfiledRun(name, (self.path, *options), report, export))
        return tuple(runs)


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


def permission_denied(text: str) -> bool:
    """Return True if a profiler's output states that counting is not permitted."""
    return any(mark.lower() in text.lower() for mark in PERMISSION_MARKS)


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

    Without permission to count, the result is empty, and its notes state the remedy. Any other failure of a run
    becomes a note, and the other runs still count.
    """
    end_s = time.monotonic() + seconds
    pairs_file = folder / "pairs.jsonl"
    write_pairs(pairs, pairs_file)
    runs = tool.runs(folder)
    notes: list[str] = []
    tables: dict[str, pd.DataFrame] = {}
    for index, run in enumerate(runs):
        left_s = end_s - time.monotonic()
        if index and (runs[0].name in tables or left_s <= 0.0):
            break
        share_s = left_s / (len(runs) - index) if index else left_s
        last_pair_s = time.monotonic() + max(share_s - REPORT_S, share_s / 2)
        try:
            tables[run.name] = _profile(run, program(pairs_file, last_pair_s), share_s + GRACE_S, pairs)
        except PermissionError:
            return CounterResult(notes=(PERMISSION_REMEDY,), permitted=False)
        except InputError as error:
            notes.append(f"{run.name}: {error}")
    if not tables:
        return CounterResult(notes=tuple(notes))
    joined, joining_notes = join_runs(tables)
    joined["kernel_name"] = joined["kernel_name"].map(demangled)
    return CounterResult(joined, (*notes, *joining_notes))


def _profile(run: ProfiledRun, program: Sequence[str], timeout_s: float, pairs: Sequence[Pair]) -> pd.DataFrame:
    """Profile ``program``, and return a row per kernel of ``pairs``. The report's raw page has all digits.

    Raises `InputError` with the profiler's last output if the report has no such kernel, and `PermissionError` if the
    profiler states that it is not permitted to count.
    """
    run.report.unlink(missing_ok=True)  # of an earlier try
    printed, exported = run.report.with_suffix(".txt"), run.report.with_suffix(".csv")
    ended = _run((*run.command, *program), printed, timeout_s, subprocess.STDOUT)
    try:
        if not run.report.exists():
            raise InputError(f"{run.report.name} was not written")
        if failure := _run(run.export, exported, EXPORT_S, subprocess.DEVNULL):
            raise InputError(f"{run.report.name} was not exported ({failure})")
        kernels = assign_launches(ncu.read([exported]), pairs)
        if kernels.empty:
            raise InputError(f"{run.report.name} has no kernel of a pair")
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
