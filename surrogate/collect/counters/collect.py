"""Counting: run the pairs under the profiler, pass by pass, read what it wrote, attribute and join it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd

from surrogate.collect.caps import GPU_CAPS, Caps
from surrogate.collect.counters.attribute import attribute, join_passes
from surrogate.collect.counters.pairs import Pair, write_pairs
from surrogate.collect.counters.tool import (
    NVPROF_NAME,
    PERMISSION_REMEDY,
    Pass,
    Tool,
    environment,
    permission_denied,
)
from surrogate.collect.device import demangled
from surrogate.features.errors import InputError
from surrogate.formats import ncu, nvprof
from surrogate.formats.imported import Imported

START_S = 15.0
"""What a pass takes beside the child's own loop: the profiler's start, the libraries, the report's writing."""
GRACE_S = 20.0
"""How far all passes together may exceed their time before they are stopped."""
EXPORT_S = 120.0
MESSAGE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Counted:
    """What counting gave: a row per kernel (empty without permission), and why anything is missing."""

    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: tuple[str, ...] = ()
    permitted: bool = True
    seconds: float = 0.0

    @property
    def seconds_per_kernel(self) -> float | None:
        """Cost of a counted kernel over all passes; None where none was counted."""
        return self.seconds / len(self.kernels) if len(self.kernels) else None


def program_for(pairs_file: Path, seconds: float, caps: Caps = GPU_CAPS) -> list[str]:
    """The command of the profiled child."""
    words = (pairs_file, seconds, caps.max_workspace_bytes, caps.max_tensor_bytes)
    return [sys.executable, "-m", "surrogate.collect.counters.workload", *map(str, words)]


def count(
    pairs: Sequence[Pair],
    tool: Tool,
    folder: Path,
    *,
    seconds: float,
    program: Callable[[Path, float], Sequence[str]] = program_for,
) -> Counted:
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
        for one in passes:
            left_s = began_s + seconds + GRACE_S - time.monotonic()
            problem = _run(one, min(share_s + GRACE_S, max(left_s, 1.0)))
            notes += [f"pass {one.name}: {problem}"] if problem else []
        for name, read in _readers(tool, passes):
            tables += _attributed(name, read, pairs, notes)
    except PermissionError:
        return Counted(notes=(PERMISSION_REMEDY,), permitted=False, seconds=time.monotonic() - began_s)
    if tables:
        joined, said = join_passes(tables)
        joined["kernel_name"] = joined["kernel_name"].map(demangled)
        return Counted(joined, (*notes, *said), True, time.monotonic() - began_s)
    return Counted(notes=tuple(notes), seconds=time.monotonic() - began_s)


def _attributed(
    name: str, read: Callable[[], Imported], pairs: Sequence[Pair], notes: list[str]
) -> list[pd.DataFrame]:
    """The kernels of one reading (none where it cannot be read); what was wrong goes to ``notes``."""
    try:
        table, said = attribute(_launches(read()), pairs)
    except InputError as error:
        if permission_denied(str(error)):
            raise PermissionError from None
        notes.append(f"pass {name}: {error}")
        return []
    notes += [f"pass {name}: {note}" for note in said]
    return [table]


def _run(one: Pass, timeout_s: float) -> str:
    """Run one pass; what went wrong in a line, or nothing. An earlier try's output is removed first.

    Raises `PermissionError` where the profiler says that it may not count.
    """
    one.output.unlink(missing_ok=True)
    try:
        # a process group of its own, so that the profiler's child can be stopped with it: it holds the GPU
        child = subprocess.Popen(
            one.command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"{one.command[0]} did not start ({error.strerror})"
    try:
        said, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _stop(child)
        return f"stopped after {timeout_s:.0f} s"
    except BaseException:
        _stop(child)
        raise
    if permission_denied(said):
        raise PermissionError
    if child.returncode and not one.output.exists():
        return f"exit status {child.returncode}: {' '.join(said.split())[-MESSAGE_CHARACTERS:]}"
    return ""


def _stop(child: "subprocess.Popen[str]") -> None:
    """Kill the profiler and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _readers(tool: Tool, passes: Sequence[Pass]) -> list[tuple[str, Callable[[], Imported]]]:
    """What reads the passes' outputs. nvprof's metrics name no grid, so they are read with the trace."""
    if tool.name == NVPROF_NAME:
        there = [one.output for one in passes if one.output.exists()]
        return [("+".join(one.name for one in passes), lambda: nvprof.read(there))]
    return [(one.name, partial(_read_report, one)) for one in passes]


def _read_report(one: Pass) -> Imported:
    """Nsight Compute's report by its CSV, whose raw page has full digits and mangled names."""
    if not one.output.exists():
        raise InputError(f"{one.output.name} was not written")
    exported = one.output.with_suffix(".csv")
    try:
        with exported.open("wb") as file:
            subprocess.run(
                one.export, env=environment(), stdout=file, stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL, timeout=EXPORT_S, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{one.output.name} could not be exported ({error})") from None
    return ncu.read([exported])


def _launches(imported: Imported) -> pd.DataFrame:
    assert imported.kernels is not None  # a profiler's file without a launch is refused by its reader
    return imported.kernels
