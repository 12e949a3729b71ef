"""What does the collector make of faults under it: wrong rows, hangs, left-over processes, lost rows, tracebacks?

Every fault of ``tests/collect/fake/faults.toml`` is tried at random moments of `seer collect` over the fake of the
whole measuring chain, and then the same command goes on without it. The fake's times are computed, no measurement: they
are compared with those of a run without a fault, and no time is kept. Linux with a C compiler.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pandas as pd

from experiments.experiment import HOME, Outcome, in_one_line, write_outcome
from surrogate.collect.device import LOST
from surrogate.collect.merge import merge_runs
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS
from tests.collect.fake.chain import FAKE, build, compiler, environment

PLAN = "n2c16h14k16r3p1\nn4c64h14k64r1\nn1c24h20k8r5p2\n"
"""Problems that every algorithm of the fake takes or refuses."""
LIMIT_S, ENDING_S = 420.0, 10.0
"""A command that runs longer hangs (a first call may take 300 s); what lives on after it so long is left over."""
KILL_AFTER_S = (1.0, 15.0)
SAME = 0.03
"""Times that differ by less are the same: the fake's noise is 1 %."""
KINDS = ("wrong_rows", "hangs", "left_processes", "lost_rows", "tracebacks")
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
    with subprocess.Popen(
        [sys.executable, "-m", "surrogate", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        cwd=folder, env={**os.environ, **environment(library, state), **orders},
    ) as command:  # fmt: skip
        try:
            _, complaint = command.communicate(timeout=draw.uniform(*KILL_AFTER_S) if killed else LIMIT_S)
        except subprocess.TimeoutExpired:
            command.kill()
            complaint = ""
    hung = not killed and command.returncode == -signal.SIGKILL
    crashed = "Traceback" in complaint or (not hung and not killed and command.returncode not in (0, 1, 2))
    return {"hangs": hung, "left_processes": left_over(state), "tracebacks": crashed}


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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tries", default=5, show_default=True, type=click.IntRange(min=1), help="Of each fault.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), help="Tries at a time.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=HOME, help="Where tables/ lies.")
def main(tries: int, jobs: int, seed: int, out: Path) -> None:
    """Try every fault; exit status 1 where one led to a failure."""
    faults = tomllib.loads((FAKE / "faults.toml").read_text(encoding="utf-8"))["fault"]
    with in_one_line("collector_faults"), tempfile.TemporaryDirectory(prefix="seer-faults-") as name:
        if not compiler():
            raise InputError("the fake of the measuring chain needs Linux and a C compiler")
        home, library = Path(name), build(Path(name))
        tried(home / "whole", {}, library, "", rows(home))
        reference = rows(home / "whole")
        with ThreadPoolExecutor(jobs) as pool:
            futures = [
                pool.submit(tried, home / f"{at}-{number}", fault, library, f"{seed} {at} {number}", reference)
                for at, fault in enumerate(faults)
                for number in range(tries)
            ]
            results = pd.DataFrame([future.result() for future in futures])
    names = [fault["name"] for fault in faults for _ in range(tries)]
    named = results.assign(fault=names, failures=results.any(axis=1))
    table = named.groupby("fault", sort=False)[["failures", *KINDS]].sum().reset_index()
    table.insert(1, "tries", tries)
    write_outcome("collector_faults", Outcome(table, None, ""), out)
    click.echo(f"{table['failures'].sum()} of {len(names)} tries of {len(faults)} faults led to a failure")
    sys.exit(int(table["failures"].any()))


if __name__ == "__main__":
    main(prog_name="python -m experiments.collector_faults")
