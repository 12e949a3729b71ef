"""One try of `seer collect` over the fake of the measuring chain: under a fault, and then again without it."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.collect.device import LOST
from surrogate.collect.merge import merge_runs
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS
from tests.collect.fake.chain import environment

PLAN = "n2c16h14k16r3p1\nn4c64h14k64r1\nn1c24h20k8r5p2\n"
"""Problems that every algorithm of the fake takes or refuses."""
LIMIT_S, ENDING_S = 420.0, 10.0
"""A command that runs longer hangs (a first call may take 300 s); what lives on after it so long is left over."""
KILL_AFTER_S = (1.0, 15.0)
SAME = 0.03
"""Times that differ by less are the same: the fake's noise is 1 %."""
KEY = [*SIZE_COLUMNS, "algorithm"]


def collected(folder: Path, fault: dict[str, Any], library: Path, draw: random.Random) -> dict[str, bool]:
    """One run of the command under ``fault`` in ``folder``, which holds the plan; what of it is a failure."""
    state = folder / f"state{len(list(folder.iterdir()))}"
    state.mkdir()
    orders = {name: str(value) for name, value in fault.items() if name.startswith("FAKE_")}
    if "FAKE_FAULTS" in orders:
        orders["FAKE_FAULTS"] = orders["FAKE_FAULTS"].replace("K", str(draw.randint(1, fault.get("calls", 1))))
    words = ["collect", "--device", "cudnn", "--plan", "plan.txt", *fault.get("words", ()), "-o", "run.jsonl"]
    killed = fault.get("killed", False)
    try:
        command = subprocess.run(
            [sys.executable, "-m", "surrogate", *words], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, check=False, cwd=folder,
            env={**os.environ, **environment(library, state), **orders},
            timeout=draw.uniform(*KILL_AFTER_S) if killed else LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # it was killed then
        return {"hangs": not killed, "left_processes": left_over(state), "tracebacks": False}
    crashed = "Traceback" in command.stderr or (not killed and command.returncode not in (0, 1, 2))
    return {"hangs": False, "left_processes": left_over(state), "tracebacks": crashed}


def left_over(state: Path) -> bool:
    """True where a process of the run is still there a while after its end; it is ended then."""
    end_s = time.monotonic() + ENDING_S
    mark = f"FAKE_STATE={state}".encode()
    while left := [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in held(path)]:
        if time.monotonic() > end_s:
            for process in left:
                os.kill(process, signal.SIGKILL)
            return True
        time.sleep(0.2)
    return False


def held(path: Path) -> list[bytes]:
    """The variables of a process; none of one that ended or is another user's."""
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


def rows(folder: Path) -> pd.DataFrame:
    """Row → status, time, number of kernels. A row that says of its device alone, which was lost, is none.

    A time that the table calls throttled or not CUPTI's is left out.
    """
    try:
        merged = merge_runs([folder / "run.jsonl"])
    except InputError:
        return pd.DataFrame(columns=["status", "time_us", "kernels"])
    frame = merged.frame[~merged.frame["reason"].fillna("").str.startswith(LOST)].set_index(KEY)
    marked = frame["throttled"].eq(True) | frame["timer"].ne("cupti")
    kernels = pd.DataFrame(columns=KEY) if merged.kernels is None else merged.kernels
    counted = kernels.groupby(KEY).size().reindex(frame.index) if len(kernels) else None
    return frame[["status"]].assign(time_us=frame["time_us"].mask(marked), kernels=counted)


def wrong(table: pd.DataFrame, reference: pd.DataFrame) -> bool:
    """True where a row has another status, time or number of kernels than without a fault, and does not say why."""
    if table.empty or reference.empty:
        return False
    right = reference.reindex(table.index)
    ok = table["status"].eq("ok")
    refused = table["status"].ne(right["status"]) & table["status"].ne("failed")
    times = (table["time_us"] / right["time_us"] - 1.0).abs() > SAME
    launches = table["time_us"].notna() & table["kernels"].ne(right["kernels"])
    return bool((refused | (ok & (times | launches))).any())


def tried(folder: Path, fault: dict[str, Any], library: Path, seed: str, reference: pd.DataFrame) -> dict[str, bool]:
    """One try: the run under the fault, then the same command without."""
    folder.mkdir()
    (folder / "plan.txt").write_text(PLAN)
    draw = random.Random(seed)
    first = collected(folder, fault, library, draw)
    misled = wrong(rows(folder), reference)
    second = collected(folder, {}, library, draw)
    table = rows(folder)
    misled = misled or wrong(table, reference)
    lost = not set(reference.index) <= set(table.index)
    return {"wrong_rows": misled, "lost_rows": lost} | {name: first[name] or second[name] for name in first}
