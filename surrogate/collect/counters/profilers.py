"""Counting: which profiler serves a GPU and what it is asked, the runs under it, and its files joined to the pairs.

Nsight Compute's counters come in groups of one pass each, so that no kernel is replayed and nothing is saved and
restored. Names and passes are those that CUPTI's host library tells of each chip (12.9). Never ask for
``sm__throughput``: alone it takes eight.
Commands are argument lists; no shell ever sees them.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from surrogate.collect.counters.pairs import KEY, Pair, attribute, join_passes, measured_pairs, stratified, write_pairs
from surrogate.collect.device import demangled
from surrogate.collect.log import RunLog, read
from surrogate.collect.plan import problem_key
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.formats import ncu, nvprof
from surrogate.formats.imported import Imported

_TABLE = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
LAUNCH = tuple(_TABLE["launch"])
"""Nsight Compute's metrics of the launch's shape."""
GROUPS = {name: tuple(metrics) for name, metrics in _TABLE["groups"].items()}
"""Group → Nsight Compute's metrics that every chip has."""

DRAM_SHARE = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
WITHOUT_DRAM_COUNTERS = (8.7, 10.1, 11.0, 12.1)
"""Compute capabilities whose memory is the CPU's: GA10B, GB10B, GB20B."""


def groups(compute_capability: float) -> dict[str, tuple[str, ...]]:
    """Group → the metrics of a chip. Volta and Turing need two passes for the DRAM's share: a group of its own."""
    if compute_capability in WITHOUT_DRAM_COUNTERS:
        return GROUPS
    ways = ("op_read", "op_write") if compute_capability >= 12.0 else ("read", "write")
    dram = tuple(f"dram__{unit}_{way}.sum" for unit in ("bytes", "sectors") for way in ways)
    if compute_capability < 8.0:
        return {**GROUPS, "A": (*GROUPS["A"], *dram), "D": (DRAM_SHARE,)}
    return {**GROUPS, "A": (*GROUPS["A"], *dram, DRAM_SHARE)}


NCU, NVPROF_NAME = "ncu", "nvprof"
NVPROF_BELOW = 7.5
"""nvprof counts up to compute capability 7.2 (and traces below 8.0) …"""
NCU_FROM = 7.0
"""… and Nsight Compute counts from 7.0 on."""
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
    """One run of the program under the profiler: its command, and the files that it leaves."""

    name: str
    command: tuple[str, ...]
    output: Path
    """What the profiler writes: a report, or nvprof's log."""
    export: tuple[str, ...] = ()
    """Prints ``output`` as CSV, where that is no CSV yet."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A profiler found on this machine."""

    name: str
    path: str
    compute_capability: float = 9.0
    """Of the GPU to count on."""

    def passes(self, program: Sequence[str], folder: Path) -> tuple[Pass, ...]:
        """The runs of ``program`` that count everything, with their outputs in ``folder``."""
        if self.name == NVPROF_NAME:
            metrics = ("--metrics", ",".join(_TABLE["nvprof"]))
            return self._nvprof("trace", (), program, folder), self._nvprof("metrics", metrics, program, folder)
        return tuple(self._ncu(group, program, folder) for group in groups(self.compute_capability))

    def _ncu(self, group: str, program: Sequence[str], folder: Path) -> Pass:
        report = folder / f"group-{group}.ncu-rep"
        metrics = ",".join(dict.fromkeys((*groups(self.compute_capability)[group], *LAUNCH)))
        options = (
            "--target-processes", "all", "--profile-from-start", "off", "--nvtx", "--replay-mode", "kernel",
            "--cache-control", "all", "--clock-control", "none", "--force-overwrite",
            "--metrics", metrics, "--export", str(report),
        )  # fmt: skip
        # base units would round to two decimals, so the export keeps ncu's own, which the reader scales
        page = ("--csv", "--page", "raw", "--print-kernel-base", "mangled")
        export = (self.path, "--import", str(report), *page)
        return Pass(group, (self.path, *options, *program), report, export)

    def _nvprof(self, name: str, extra: Sequence[str], program: Sequence[str], folder: Path) -> Pass:
        log = folder / f"{name}.csv"
        options = ("--profile-from-start", "off", "--print-gpu-trace", "--demangling", "off", "--csv")
        return Pass(name, (self.path, *options, *extra, "--log-file", str(log), *program), log)


def find_tool(compute_capability: float, which: Callable[[str], str | None] = shutil.which) -> Tool:
    """nvprof for GPUs before compute capability 7.5 where it is installed, else Nsight Compute.

    Raises `InputError` where the profiler that the GPU needs is missing.
    """
    served = {NVPROF_NAME: compute_capability < NVPROF_BELOW, NCU: compute_capability >= NCU_FROM}
    for name in (name for name, serves in served.items() if serves):
        path = which(name)
        if path:
            return Tool(name, path, compute_capability)
    if served[NCU]:
        raise InputError("ncu is not on the PATH; install Nsight Compute, or collect times alone")
    raise InputError("nvprof is not on the PATH; install CUDA 11 or older, or collect times alone")


def environment() -> dict[str, str]:
    """The child's environment: the C locale, so that numbers have points and no thousands separators."""
    return {**os.environ, "LC_ALL": "C", "PYTHONUNBUFFERED": "1"}


def permission_denied(text: str) -> bool:
    """True where a profiler's output says that counting is not permitted."""
    return any(mark.lower() in text.lower() for mark in PERMISSION_MARKS)


@dataclass(frozen=True, slots=True)
class Counted:
    """What counting gave: a row per kernel (empty without permission), and why anything is missing."""

    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: tuple[str, ...] = ()
    permitted: bool = True


def program_for(pairs_file: Path, seconds: float) -> list[str]:
    """The command of the profiled child."""
    return [sys.executable, "-m", "surrogate.collect.counters.workload", str(pairs_file), str(seconds)]


def count(
    pairs: Sequence[Pair], tool: Tool, folder: Path, *, seconds: float,
    program: Callable[[Path, float], Sequence[str]] = program_for,
) -> Counted:  # fmt: skip
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
            notes += [f"pass {profiled.name}: {problem}"] if problem else []
        for name, read in _readers(tool, passes):
            try:
                tables.append(attribute(read(), pairs))
            except InputError as error:
                if permission_denied(str(error)):
                    raise PermissionError from None
                notes.append(f"pass {name}: {error}")
    except PermissionError:
        return Counted(notes=(PERMISSION_REMEDY,), permitted=False)
    if not tables:
        return Counted(notes=tuple(notes))
    joined, joining_notes = join_passes(tables)
    joined["kernel_name"] = joined["kernel_name"].map(demangled)
    return Counted(joined, (*notes, *joining_notes))


def _run(profiled: Pass, timeout_s: float) -> str:
    """Run one pass; returns what went wrong in one line, or "". An earlier try's output is removed first.

    Raises `PermissionError` where the profiler says that it may not count.
    """
    profiled.output.unlink(missing_ok=True)
    try:
        # a process group of its own, so that the profiler's child can be stopped with it: it holds the GPU
        child = subprocess.Popen(
            profiled.command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
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
    if child.returncode and not profiled.output.exists():
        return f"exit status {child.returncode}: {' '.join(output.split())[-MESSAGE_CHARACTERS:]}"
    return ""


def _stop(child: "subprocess.Popen[str]") -> None:
    """Kill the profiler and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _readers(tool: Tool, passes: Sequence[Pass]) -> list[tuple[str, Callable[[], Imported]]]:
    """What reads the passes' outputs. nvprof's metrics name no grid, so they are read with the trace."""
    if tool.name == NVPROF_NAME:
        written = [profiled.output for profiled in passes if profiled.output.exists()]
        return [("+".join(profiled.name for profiled in passes), lambda: nvprof.read(written))]
    return [(profiled.name, partial(_read_report, profiled)) for profiled in passes]


def _read_report(profiled: Pass) -> Imported:
    """Nsight Compute's report by its CSV, whose raw page has full digits and mangled names."""
    if not profiled.output.exists():
        raise InputError(f"{profiled.output.name} was not written")
    exported = profiled.output.with_suffix(".csv")
    try:
        with exported.open("wb") as file:
            subprocess.run(
                profiled.export, env=environment(), stdout=file, stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL, timeout=EXPORT_S, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{profiled.output.name} could not be exported ({error})") from None
    return ncu.read([exported])


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
    problem = list(KEY[:-2])
    groups: Any = counted.kernels.groupby([*problem, "algorithm"], sort=False)
    for (*values, algorithm), kernels in groups:
        conv = Conv(**dict(zip(problem, values, strict=True)))
        numbers = kernels.sort_values("kernel_index").drop(columns=[*problem, "algorithm", "kernel_index"])
        rows = [row[row.notna()].to_dict() for _, row in numbers.astype(object).iterrows()]
        run.append({"kind": "counters", "problem": problem_key(conv), "algorithm": algorithm, "kernels": rows})
    run.sync()
