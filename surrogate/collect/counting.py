"""Hardware counters of a few (problem, algorithm) pairs: the runs under Nsight Compute, its files joined to the pairs.

The counters come in groups of one pass each, so that no kernel is replayed and nothing is saved and
restored. Names and passes are those that CUPTI's host library tells of each chip (12.9). Never ask for
``sm__throughput``: alone it takes eight.
Commands are argument lists; no shell ever sees them. A launch belongs to the pair whose marker was launched last before
it.
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
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from surrogate.collect.device import demangled
from surrogate.collect.log import Entry, RunLog, conv_of, read_log
from surrogate.collect.plan import problem_key
from surrogate.dataset.files import write_text
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.formats import ncu
from surrogate.formats.imported import Imported

MAX_PAIRS = 30_000
"""Markers carry a pair's number in their grid; more than this would cost more than the pairs themselves."""
MARKER = "seer_marker"
"""The empty kernel that is launched before each pair, with grid x = the pair's number + 1."""
SETTINGS = ("direction", "dtype", "math", "layout")
KEY = (*SETTINGS, *SIZE_COLUMNS, "algorithm", "kernel_index")
"""What a counted kernel is joined by."""
_IGNORED = ("gpu", "run", "kernel_index", "start_us", "stream", "cc", "device")


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem run by one algorithm."""

    conv: Conv
    algorithm: str

    @property
    def key(self) -> str:
        """Names the pair in one line; also its NVTX range."""
        return f"{problem_key(self.conv)} {self.algorithm}"


Stratum = tuple[str, int, int, bool, int]
"""What pairs are spread over: algorithm, filter, stride, whether there are groups, decade of FLOPs."""


def measured_pairs(records: Iterable[Entry]) -> list[Pair]:
    """The pairs that a run's records show as ok, each once, in their order."""
    pairs: dict[str, Pair] = {}
    for record in records:
        if record["kind"] == "measure" and record["result"]["status"] == "ok":
            pair = Pair(conv_of(record["problem"]), record["algorithm"])
            pairs.setdefault(pair.key, pair)
    return list(pairs.values())


def stratified(pairs: Sequence[Pair], count: int, seed: int = 0) -> list[Pair]:
    """Up to ``count`` pairs, and never more than `MAX_PAIRS`, spread evenly over the strata.

    Whole rounds over the strata: each gives its next pair (in a random order that ``seed`` draws) until there
    are enough, so that a rare algorithm is counted as often as a common one.
    """
    strata: dict[Stratum, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: hashlib.sha256(f"{seed} {pair.key}".encode()).digest()):
        strata.setdefault(stratum(pair), []).append(pair)
    rounds = zip_longest(*(members for _, members in sorted(strata.items())))
    return [pair for members in rounds for pair in members if pair][: min(count, MAX_PAIRS)]


def stratum(pair: Pair) -> Stratum:
    """The stratum of a pair; filters of 7 and more are alike, and strides of 2 and more."""
    conv = pair.conv
    decade = int(math.log10(max(conv.flops, 1)))
    return pair.algorithm, min(conv.r, 7), min(conv.stride_h, 2), conv.groups > 1, decade


def write_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """The list for the child: one JSON object a line, in order."""
    lines = [json.dumps({"conv": pair.conv.to_dict(), "algorithm": pair.algorithm}) for pair in pairs]
    write_text(path, "\n".join(lines) + "\n")


def read_pairs(path: Path) -> list[Pair]:
    """The inverse of `write_pairs`."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Pair(Conv(**row["conv"]), row["algorithm"]) for row in rows]


def assign_launches(imported: Imported, pairs: Sequence[Pair]) -> pd.DataFrame:
    """A row per kernel of one profiled run, with `KEY`, ``kernel_name`` and its numbers.

    ``imported``: what `surrogate.formats` reads, its launches in order. A launch before the first marker, or after a
    marker that names no pair, is left out. ``kernel_index`` counts a pair's kernels from 0.
    """
    launches = imported.kernels
    assert launches is not None  # a profiler's file without a launch is refused by its reader
    is_marker = launches["kernel_name"].str.startswith(MARKER)
    numbers = (launches["grid_x"].where(is_marker) - 1).ffill()
    is_owned = ~is_marker & (numbers < len(pairs))
    owner = numbers[is_owned].astype("int64")
    owned = launches[is_owned].drop(columns=list(_IGNORED), errors="ignore").reset_index(drop=True)
    rows = [pairs[number].conv.to_dict() | {"algorithm": pairs[number].algorithm} for number in owner]
    keys = pd.DataFrame(rows, columns=pd.Index(KEY[:-1]))
    keys["kernel_index"] = owner.groupby(owner).cumcount().to_numpy()
    return pd.concat([keys, owned], axis=1)


def join_passes(passes: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, list[str]]:
    """One row per kernel with the counters of all passes; a value that an earlier pass has stays.

    Rows join by `KEY` and only where the kernel names agree: a pass in which cuDNN ran other kernels, or which
    was cut short, adds nothing for them, and the notes tell how many.
    """
    joined = passes[0].set_index([*KEY, "kernel_name"])
    notes: list[str] = []
    for number, other in enumerate(passes[1:], 2):
        extra = other.set_index([*KEY, "kernel_name"])
        missed = int((~joined.index.isin(extra.index)).sum())
        if missed:
            notes.append(f"pass {number} counted nothing for {missed} of {len(joined)} kernels")
        joined = joined.combine_first(extra.reindex(joined.index))
    return joined.reset_index(), notes


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LAUNCH = tuple(_TABLE["launch"])
"""Nsight Compute's metrics of the launch's shape."""
GROUPS = {name: tuple(metrics) for name, metrics in _TABLE["groups"].items()}
"""Group → Nsight Compute's metrics that every chip has."""

DRAM_SHARE = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
WITHOUT_DRAM_COUNTERS = (8.7, 10.1, 11.0, 12.1)
"""Compute capabilities whose memory is the CPU's: GA10B, GB10B, GB20B."""


def metric_groups(compute_capability: float) -> dict[str, tuple[str, ...]]:
    """Group → the metrics of a chip. Volta and Turing need two passes for the DRAM's share: a group of its own."""
    if compute_capability in WITHOUT_DRAM_COUNTERS:
        return GROUPS
    ways = ("op_read", "op_write") if compute_capability >= 12.0 else ("read", "write")
    dram = tuple(f"dram__{unit}_{way}.sum" for unit in ("bytes", "sectors") for way in ways)
    if compute_capability < 8.0:
        return {**GROUPS, "A": (*GROUPS["A"], *dram), "D": (DRAM_SHARE,)}
    return {**GROUPS, "A": (*GROUPS["A"], *dram, DRAM_SHARE)}


NCU_FROM = 7.0
"""The first compute capability that Nsight Compute counts on."""
PERMISSION_MARKS = ("ERR_NVGPUCTRPERM", "not permitted to count", "permission to access")
PERMISSION_REMEDY = (
    "counters need permission: load the driver with NVreg_RestrictProfilingToAdminUsers=0,"
    " or give the container CAP_SYS_ADMIN"
)
START_S = 15.0
"""What a pass takes beside the child's own loop: the profiler's start, the libraries, the report's writing."""
GRACE_S = 20.0
"""How far all passes together may exceed their time before they are stopped."""
EXPORT_S = 120.0
MESSAGE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of the program under the profiler: its command, the report that it leaves, what prints that as CSV."""

    group: str
    command: tuple[str, ...]
    report: Path
    export: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NsightCompute:
    """Nsight Compute as found on this machine, and the compute capability of the GPU to count on."""

    path: str
    compute_capability: float = 9.0

    def passes(self, program: Sequence[str], folder: Path) -> tuple[Pass, ...]:
        """The runs of ``program`` that count everything, with their reports in ``folder``."""
        made = []
        for group, metrics in metric_groups(self.compute_capability).items():
            report = folder / f"group-{group}.ncu-rep"
            names = ",".join(dict.fromkeys((*metrics, *LAUNCH)))
            options = (*_TABLE["ncu_options"], "--metrics", names, "--export", str(report))
            # base units would round to two decimals, so the export keeps ncu's own, which the reader scales
            page = ("--csv", "--page", "raw", "--print-kernel-base", "mangled")
            export = (self.path, "--import", str(report), *page)
            made.append(Pass(group, (self.path, *options, *program), report, export))
        return tuple(made)


def find_tool(compute_capability: float, which: Callable[[str], str | None] = shutil.which) -> NsightCompute:
    """Nsight Compute. Raises `InputError` if it is missing, or if the GPU is older than those it counts on."""
    if compute_capability < NCU_FROM:
        too_old = f"Nsight Compute counts from compute capability {NCU_FROM} on, this GPU has {compute_capability}"
        raise InputError(f"{too_old}; run nvprof yourself, `seer import nvprof --how` says how")
    path = which("ncu")
    if not path:
        raise InputError("ncu is not on the PATH; install Nsight Compute, or collect times alone")
    return NsightCompute(path, compute_capability)


def environment() -> dict[str, str]:
    """The child's environment: the C locale, so that numbers have points and no thousands separators."""
    return {**os.environ, "LC_ALL": "C", "PYTHONUNBUFFERED": "1"}


def permission_denied(text: str) -> bool:
    """True where a profiler's output says that counting is not permitted."""
    return any(mark.lower() in text.lower() for mark in PERMISSION_MARKS)


@dataclass(frozen=True, slots=True)
class CounterResult:
    """What counting gave: a row per kernel (empty without permission), and why anything is missing."""

    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: tuple[str, ...] = ()
    permitted: bool = True


def program_for(pairs_file: Path, seconds: float) -> list[str]:
    """The command of the profiled child."""
    return [sys.executable, "-m", "surrogate.collect.cudnn.profiled_program", str(pairs_file), str(seconds)]


def count_pairs(
    pairs: Sequence[Pair],
    tool: NsightCompute,
    folder: Path,
    *,
    seconds: float,
    program: Callable[[Path, float], Sequence[str]] = program_for,
) -> CounterResult:
    """Counters of ``pairs`` within about ``seconds``; the profiler's files stay in ``folder``.

    Without permission to count, the result is empty with the remedy in its notes: times alone remain. A pass
    that fails otherwise is told in the notes, and the others count.
    """
    began_s = time.monotonic()
    pairs_file = folder / "pairs.jsonl"
    write_pairs(pairs, pairs_file)
    share_s = seconds / len(tool.passes((), folder))
    passes = tool.passes(program(pairs_file, max(share_s - START_S, share_s / 2)), folder)
    notes: list[str] = []
    tables: list[pd.DataFrame] = []
    try:
        for profiled in passes:
            left_s = began_s + seconds + GRACE_S - time.monotonic()
            problem = _run(profiled, min(share_s + GRACE_S, max(left_s, 1.0)))
            notes += [f"pass {profiled.group}: {problem}"] if problem else []
        for profiled in passes:
            try:
                tables.append(assign_launches(_read_report(profiled), pairs))
            except InputError as error:
                if permission_denied(str(error)):
                    raise PermissionError from None
                notes.append(f"pass {profiled.group}: {error}")
    except PermissionError:
        return CounterResult(notes=(PERMISSION_REMEDY,), permitted=False)
    if not tables:
        return CounterResult(notes=tuple(notes))
    joined, joining_notes = join_passes(tables)
    joined["kernel_name"] = joined["kernel_name"].map(demangled)
    return CounterResult(joined, (*notes, *joining_notes))


def _run(profiled: Pass, timeout_s: float) -> str:
    """Run one pass; returns what went wrong in one line, or "". An earlier try's output is removed first.

    Raises `PermissionError` where the profiler says that it may not count.
    """
    profiled.report.unlink(missing_ok=True)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    text = {"env": environment(), "text": True, "errors": "replace"}
    try:
        # a process group of its own, so that the profiler's child can be stopped with it: it holds the GPU
        child = subprocess.Popen(profiled.command, start_new_session=True, **streams, **text)
    except OSError as error:
        return f"{profiled.command[0]} did not start ({error.strerror})"
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _stop(child)
        return f"stopped after {timeout_s:.0f} s"
    except BaseException:
        _stop(child)
        raise
    if permission_denied(output):
        raise PermissionError
    if child.returncode and not profiled.report.exists():
        return f"exit status {child.returncode}: {' '.join(output.split())[-MESSAGE_CHARACTERS:]}"
    return ""


def _stop(child: "subprocess.Popen[str]") -> None:
    """Kill the profiler and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _read_report(profiled: Pass) -> Imported:
    """Nsight Compute's report by its CSV, whose raw page has full digits and mangled names."""
    if not profiled.report.exists():
        raise InputError(f"{profiled.report.name} was not written")
    exported = profiled.report.with_suffix(".csv")
    try:
        with exported.open("wb") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.DEVNULL}
            subprocess.run(profiled.export, env=environment(), timeout=EXPORT_S, check=False, **streams)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{profiled.report.name} could not be exported ({error})") from None
    return ncu.read([exported])


PAIRS_PER_SECOND = 4.0
"""Pairs that a second of counting is given; the profiled child stops by itself where they are too many."""


def collect_counters(run: RunLog, seconds: float | None = None, seed: int = 0) -> CounterResult:
    """Count a stratified part of the log's pairs, as many as ``seconds`` allow (None: all), and log their kernels.

    The device must be closed: the profiled program needs the GPU's memory. Raises `InputError` where the device is no
    GPU or its profiler is missing.
    """
    properties = run.header.device.properties
    if "compute_capability" not in properties:
        raise InputError(f"{run.header.device.gpu} is no GPU, there is nothing to count; give --device cudnn")
    tool = find_tool(float(properties["compute_capability"]))
    records = read_log(run.path).records
    held = {(record["problem"], record["algorithm"]) for record in records if record["kind"] == "counters"}
    pairs = [pair for pair in measured_pairs(records) if (problem_key(pair.conv), pair.algorithm) not in held]
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
    """A record per pair: its kernels in launch order, each with its name and its numbers."""
    problem = list(KEY[:-2])
    groups: Any = counted.kernels.groupby([*problem, "algorithm"], sort=False)
    for (*values, algorithm), kernels in groups:
        conv = Conv(**dict(zip(problem, values, strict=True)))
        numbers = kernels.sort_values("kernel_index").drop(columns=[*problem, "algorithm", "kernel_index"])
        rows = [row[row.notna()].to_dict() for _, row in numbers.astype(object).iterrows()]
        run.append({"kind": "counters", "problem": problem_key(conv), "algorithm": algorithm, "kernels": rows})
    run.sync()
