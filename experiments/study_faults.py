"""What of a study survives when its workers are killed?

Four workers of ``seer tune`` share a study on each storage and are killed at random moments, never warned (SIGKILL).
"""

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import sqlalchemy

from experiments.experiment import Effort, Outcome, program
from experiments.sources import Sources
from surrogate.cli import main as seer
from surrogate.dataset.store import write_dataset
from surrogate.evaluation.storage import RETRIED, opened

WORKERS = 4
SHAPES = 40
FAULTS = {"one of four killed, another begins": (1, 10), "all four killed, four begin": (WORKERS, 3)}
"""Fault → workers killed at once, and how often."""
WRONG = ("left_running", "valued_twice", "error_lines", "bad_exits", "connections_left")
"""Columns in which there should be nothing."""
TRIALS_BETWEEN = 4
"""Trials that finish between two faults, about."""


@contextmanager
def postgresql() -> Iterator[str | None]:
    """The URL of an empty database on a server that listens on a socket of its own; None where none is installed."""
    search = os.pathsep.join([os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))])
    if not (initdb := shutil.which("initdb", path=search)):
        yield None
        return
    home = Path(os.path.realpath(initdb)).parent
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="seer-pg-") as folder:  # a socket's path has 107 bytes at most
        user: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}  # PostgreSQL refuses to run as root
        if user:
            shutil.chown(folder, "nobody")
        words = ["--auth=trust", "--username=seer", "--no-sync", "-D", f"{folder}/data"]
        subprocess.run([str(home / "initdb"), *words], check=True, capture_output=True, cwd=folder, **user)
        server = [str(home / "pg_ctl"), "-D", f"{folder}/data", "-w"]
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        started = [*server, "-l", f"{folder}/log", "-o", options, "start"]
        subprocess.run(started, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
        try:
            yield f"postgresql+psycopg://seer@/postgres?host={folder}"
        finally:
            stop = [*server, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)


def run(sources: Sources, effort: Effort) -> Outcome:
    """A study for each storage and fault; what it promised is counted when the last worker has ended."""
    with tempfile.TemporaryDirectory() as name, postgresql() as database:
        folder = Path(name)
        write_dataset(effort.sample(sources.dataset("cudnn"), SHAPES).frame, folder / "data.parquet")
        storages = {"journal": f"{folder}/study.journal", "SQLite": f"sqlite:///{folder}/study.db"}
        storages |= {"PostgreSQL": database} if database else {}
        work = partial(faulted, folder, tries=2 if effort.quick else None, seed=effort.seed)
        with ThreadPoolExecutor(2) as together:  # much of the time they wait
            records = list(together.map(work, itertools.product(storages.items(), FAULTS)))
        table = pd.DataFrame(records)
        table["connections_left"] = [connections(storages[kind]) for kind in table["storage"]]
    table["failures"] = (table["finished"] - table["trials_asked"]).abs() + table[list(WRONG)].sum(axis=1)
    return Outcome(table, None, answer(table))


def faulted(
    folder: Path, case: tuple[tuple[str, str], str], tries: int | None, seed: int
) -> dict[str, str | int | float]:
    """A study of four workers, some of which are killed ``tries`` times (None: the fault's own); what is wrong then."""
    (kind, storage), fault = case
    killed, usual = FAULTS[fault]
    tries = tries or usual
    draw = np.random.default_rng(seed)
    context = multiprocessing.get_context("forkserver")  # a worker need not import everything anew
    context.set_forkserver_preload([EXPERIMENT.run.__module__, "surrogate.cli.datasets", "surrogate.evaluation.tune"])
    study, trials = f"{killed}-killed", TRIALS_BETWEEN * (tries + 2)
    words = ["tune", f"{folder}/data.parquet", "--model", "linear-terms", "--storage", storage]
    words += ["--study", study, "--trials", str(trials)]
    errors = folder / f"errors-{kind}-{study}"

    def begin() -> BaseProcess:
        worker = context.Process(target=command, args=(words, str(errors)))
        worker.start()
        return worker

    start = time.perf_counter()
    workers = [begin() for _ in range(WORKERS)]
    with opened(storage) as held:
        for done in range(tries):
            while finished_trials(held, study) < TRIALS_BETWEEN * (done + 1) and any(w.is_alive() for w in workers):
                time.sleep(0.05)
            time.sleep(draw.uniform(0.0, 1.0))
            for place in draw.choice(WORKERS, killed, replace=False):
                workers[place].kill()
                workers[place].join()
                workers[place] = begin()
        for worker in workers:
            worker.join(600)
        every = held.get_all_trials(held.get_study_id_from_name(study))
    states = pd.Series([trial.state.name for trial in every]).value_counts()
    finished = [trial for trial in every if trial.state.name in ("COMPLETE", "PRUNED")]
    counts: dict[str, int] = {
        "trials_asked": trials,
        "finished": len(finished),
        "tried_again": sum(trial.user_attrs.get(RETRIED, 0) for trial in every),
        "given_up": int(states.get("FAIL", 0)),
        "left_running": int(states.get("RUNNING", 0) + states.get("WAITING", 0)),
        "valued_twice": len(finished) - len({str(trial.params) for trial in finished}),
        "error_lines": sum(not line.startswith("tune: ") for line in errors.read_text().splitlines()),
        "bad_exits": sum(worker.exitcode != 0 for worker in workers),
    }
    return {"storage": kind, "fault": fault, "tries": tries, **counts, "seconds": time.perf_counter() - start}


def command(words: list[str], errors: str) -> None:
    """``seer`` with these words, in this process; its errors go to the end of a file."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.argv = ["seer", *words]
    seer()


def finished_trials(storage: optuna.storages.BaseStorage, study: str) -> int:
    """Trials that ended well; 0 before there is a study."""
    try:
        trials = storage.get_all_trials(storage.get_study_id_from_name(study), deepcopy=False)
    except KeyError:
        return 0
    return sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in trials)


def connections(storage: str) -> int:
    """Connections to a PostgreSQL server besides the one that asks; none elsewhere."""
    if not storage.startswith("postgresql"):
        return 0
    engine = sqlalchemy.create_engine(storage)
    with engine.connect() as connection:
        where = "backend_type = 'client backend' and pid <> pg_backend_pid()"
        left = connection.execute(sqlalchemy.text(f"select count(*) from pg_stat_activity where {where}")).scalar()
    engine.dispose()
    return int(left or 0)


def answer(table: pd.DataFrame) -> str:
    """How many faults failed, per storage."""
    parts = [
        f"{kind} {int(part['failures'].sum())} failures in {int(part['tries'].sum())} faults"
        f" ({int(part['tried_again'].sum())} trials tried again, {int(part['finished'].sum())} of"
        f" {int(part['trials_asked'].sum())} finished)"
        for kind, part in table.groupby("storage", sort=False)
    ]
    return f"Trials lost, left running or valued twice, errors and connections left: {'; '.join(parts)}."


EXPERIMENT = program(run, "cudnn")
