"""What of a study survives when its workers are killed?

Four workers of ``seer tune`` share a study on each storage and are killed at random moments, never warned (SIGKILL).
"""

import itertools
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import optuna
import pandas as pd

from experiments.experiment import Effort, Outcome, program
from experiments.sources import Sources
from surrogate.dataset.store import write_dataset
from surrogate.evaluation.storage import RETRIED, opened
from tests.evaluation.postgresql import connections, postgresql

WORKERS = 4
SHAPES = 40
FAULTS = {"one of four killed, another begins": (1, 10), "all four killed, four begin": (WORKERS, 3)}
"""Fault → workers killed at once, and how often."""
WRONG = ("left_running", "valued_twice", "error_lines", "bad_exits", "connections_left")
"""Columns in which there should be nothing."""
TRIALS_BETWEEN = 4
"""Trials that finish between two faults, about."""


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
    study, trials = f"{killed}-killed", TRIALS_BETWEEN * (tries + 2)
    words = [sys.executable, "-m", "surrogate", "tune", f"{folder}/data.parquet", "--model", "linear-terms"]
    words += ["--storage", storage, "--study", study, "--trials", str(trials)]
    errors = folder / f"errors-{kind}-{study}"

    def begin() -> subprocess.Popen[bytes]:
        with errors.open("ab") as complaints:
            return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=complaints)

    start = time.perf_counter()
    workers = [begin() for _ in range(WORKERS)]
    with opened(storage) as held:
        for done in range(tries):
            enough = TRIALS_BETWEEN * (done + 1)
            while len(finished_trials(held, study)) < enough and any(w.poll() is None for w in workers):
                time.sleep(0.05)
            time.sleep(draw.uniform(0.0, 1.0))
            for place in draw.choice(WORKERS, killed, replace=False):
                workers[place].kill()
                workers[place].wait()
                workers[place] = begin()
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(600)
        every = held.get_all_trials(held.get_study_id_from_name(study))
        finished = finished_trials(held, study)
    states = Counter(trial.state.name for trial in every)
    counts: dict[str, int] = {
        "trials_asked": trials,
        "finished": len(finished),
        "tried_again": sum(trial.user_attrs.get(RETRIED, 0) for trial in every),
        "given_up": states["FAIL"],
        "left_running": states["RUNNING"] + states["WAITING"],
        "valued_twice": len(finished) - len({str(trial.params) for trial in finished}),
        "error_lines": sum(not line.startswith("tune: ") for line in errors.read_text().splitlines()),
        "bad_exits": sum(worker.returncode != 0 for worker in workers),
    }
    return {"storage": kind, "fault": fault, "tries": tries, **counts, "seconds": time.perf_counter() - start}


def finished_trials(storage: optuna.storages.BaseStorage, study: str) -> list[optuna.trial.FrozenTrial]:
    """Trials that ended well; none before there is a study."""
    try:
        trials = storage.get_all_trials(storage.get_study_id_from_name(study), deepcopy=False)
    except KeyError:
        return []
    return [trial for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")]


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
