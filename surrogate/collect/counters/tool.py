"""Which profiler serves a GPU, and its command lines (argument lists; no shell ever sees them)."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from surrogate.collect.counters.metrics import GROUPS, NVPROF, ncu_metrics
from surrogate.features.errors import InputError

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

    def passes(self, program: Sequence[str], folder: Path) -> tuple[Pass, ...]:
        """The runs of ``program`` that count everything, with their outputs in ``folder``."""
        if self.name == NVPROF_NAME:
            return tuple(
                self._nvprof(name, extra, program, folder)
                for name, extra in (("trace", ()), ("metrics", ("--metrics", ",".join(NVPROF))))
            )
        return tuple(self._ncu(group, program, folder) for group in GROUPS)

    def _ncu(self, group: str, program: Sequence[str], folder: Path) -> Pass:
        report = folder / f"group-{group}.ncu-rep"
        options = (
            "--target-processes", "all", "--profile-from-start", "off", "--nvtx", "--replay-mode", "kernel",
            "--cache-control", "all", "--clock-control", "none", "--force-overwrite",
            "--metrics", ncu_metrics(group), "--export", str(report),
        )  # fmt: skip
        # base units would round to two decimals, so the export keeps ncu's own, which the reader scales
        export = (
            self.path,
            "--import",
            str(report),
            "--csv",
            "--page",
            "raw",
            "--print-kernel-base",
            "mangled",
        )
        return Pass(group, (self.path, *options, *program), report, export)

    def _nvprof(self, name: str, extra: Sequence[str], program: Sequence[str], folder: Path) -> Pass:
        log = folder / f"{name}.csv"
        options = (
            "--profile-from-start",
            "off",
            "--print-gpu-trace",
            "--demangling",
            "off",
            "--csv",
            *extra,
            "--log-file",
            str(log),
        )
        return Pass(name, (self.path, *options, *program), log)


def find_tool(compute_capability: float, which: Callable[[str], str | None] = shutil.which) -> Tool:
    """nvprof for GPUs before compute capability 7.5 where it is installed, else Nsight Compute.

    Raises `InputError` where the profiler that the GPU needs is missing.
    """
    if compute_capability < NVPROF_BELOW:
        path = which(NVPROF_NAME)
        if path:
            return Tool(NVPROF_NAME, path)
    if compute_capability >= NCU_FROM:
        path = which(NCU)
        if path:
            return Tool(NCU, path)
        raise InputError("ncu is not on the PATH; install Nsight Compute, or collect times alone")
    raise InputError("nvprof is not on the PATH; install CUDA 11 or older, or collect times alone")


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The child's environment: the C locale, so that numbers have points and no thousands separators."""
    return {**(os.environ if base is None else base), "LC_ALL": "C", "PYTHONUNBUFFERED": "1"}


def permission_denied(text: str) -> bool:
    """True where a profiler's output says that counting is not permitted."""
    return any(mark.lower() in text.lower() for mark in PERMISSION_MARKS)
