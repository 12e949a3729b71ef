"""Ask aiconfigurator for problems whose shapes its tables lack. Its answers are interpolated or inherited.

Its SDK runs in an interpreter that the user chooses. Its tables are a copy of the family's tables without these shapes,
for every framework and version. If a framework has several kernels of a problem, the answer is compared with the
fastest one.
"""

import subprocess
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from surrogate.dataset.problems import shape_names
from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.formats.aiconfigurator import COLUMNS, ENDING, GPUS, TABLES

FIND = "from importlib.util import find_spec; print(find_spec('aiconfigurator_core').submodule_search_locations[0])"
CONSTANT_ROWS = 200
"""Training rows per GPU and framework that show the constant time which an answer adds to the kernel."""
EXTRA_STEP_PHASE = "context"
"""The kind whose answers contain a further step of constant time, RoPE, which its tables do not time."""
FOLDERS = {name: folder for folder, name in GPUS.items()}


def systems_folder(python: str) -> Path:
    """Return the folder of tables of this interpreter's package. Raises `InputError` if the package is missing."""
    try:
        process = subprocess.run([python, "-c", FIND], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise InputError(
            f"{python} has no aiconfigurator-core; give an interpreter that has it with --aiconfigurator-python"
        ) from None
    return Path(process.stdout.strip()) / "systems"


def run_script(python: str, script: str, questions: pd.DataFrame, *words: Path) -> tuple[pd.DataFrame, str]:
    """Run a script of this folder in that interpreter; return its answers to ``questions`` and its messages.

    Raises `InputError` if the script fails.
    """
    with TemporaryDirectory() as folder:
        question, answer = Path(folder) / "questions.parquet", Path(folder) / "answers.parquet"
        questions.to_parquet(question)
        command = [python, str(Path(__file__).with_name(script)), *map(str, words), str(question), str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{python}: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
        return pd.read_parquet(answer), " ".join(done.stderr.split())


def reduced_tables(systems: Path, to: Path, kind: Family, folders: Collection[str], holdout: Collection[str]) -> int:
    """Copy the family's tables of these GPUs without the shapes ``holdout``; return the number of dropped rows."""
    to.mkdir(parents=True)
    for path in systems.glob("*.yaml"):
        (to / path.name).write_bytes(path.read_bytes())
    left_out = 0
    for path in sorted(p for folder in folders for p in (systems / "data" / folder).rglob(f"*{ENDING}")):
        if TABLES.get(path.name.removesuffix(ENDING), ("", {}))[0] != kind.name:
            continue
        table = pq.read_table(path)
        frame = table.to_pandas().rename(columns=COLUMNS)
        if not set(kind.shape_names) <= set(frame):
            continue
        is_left = ~np.isin(shape_names(frame, kind), list(holdout))
        left_out += int((~is_left).sum())
        target = to / path.relative_to(systems)
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.filter(pa.array(is_left)), target)
        for note in path.parent.glob("*.yaml"):
            (target.parent / note.name).write_bytes(note.read_bytes())
    return left_out


def queries(frame: pd.DataFrame, kind: Family) -> pd.DataFrame:
    """Return the columns that the script needs for each row: GPU, framework and problem."""
    texts = {name: frame[name].astype(str).to_numpy() for name in kind.setting_names}
    return frame[[*kind.size_names]].assign(
        **texts,
        system=[FOLDERS.get(name, name.replace("-", "_")) for name in frame["gpu"].astype(str)],
        backend=frame["library"].astype(str),
        version=frame["library_version"].astype(str),
        kind=texts.get("phase", kind.name),
    )


def answers(python: str, trained: pd.DataFrame, requested: pd.DataFrame, kind: Family) -> tuple[pd.DataFrame, str]:
    """Return `time_us`, `mode` and `heuristics_us` for the rows of ``requested``, and the script's messages.

    The tables contain no shape of ``requested``. The rows of ``trained`` stay in them.

    Raises `InputError` if the package is missing.
    """
    systems = systems_folder(python)
    measured = trained[trained["gpu"].isin(requested["gpu"].unique()) & trained["time_us"].notna()]
    measured = measured[measured["phase"] == EXTRA_STEP_PHASE] if "phase" in measured else measured.iloc[:0]
    measured = measured.sample(frac=1.0, random_state=0).groupby(["gpu", "library"], observed=True).head(CONSTANT_ROWS)
    both = queries(pd.concat([requested, measured], ignore_index=True), kind)
    distinct = both.drop_duplicates().reset_index(drop=True)
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "systems"
        reduced_tables(systems, tree, kind, set(both["system"]), set(shape_names(requested, kind)))
        answered_queries, complaint = run_script(python, "aiconfigurator_queries.py", distinct, tree)
    answered = both.merge(distinct.join(answered_queries), how="left", on=list(both))
    # The answer for a row of the tables is its measured time plus the constant.
    further = answered["time_us"].iloc[len(requested) :] - measured["time_us"].to_numpy()
    constant = further.groupby([answered["system"], answered["backend"]]).median()
    of_requested = answered.iloc[: len(requested)]
    places = pd.MultiIndex.from_frame(of_requested[["system", "backend"]])
    extra_us = constant.reindex(places).fillna(0.0).to_numpy() * (of_requested["kind"] == EXTRA_STEP_PHASE)
    return of_requested[["mode", "heuristics_us"]].assign(time_us=of_requested["time_us"] - extra_us), complaint
